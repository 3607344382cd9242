"""Studies out and in on the pages: downloads, the import dialog, and what an import looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tritune import imports
from tritune.settings import ROOT

TABLES = {
    "perf_analyzer.csv": (
        "Concurrency,Inferences/Second,Client Send,Server Queue,Server Compute Input,Server Compute Infer,"
        "Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
        "1,1299.16,83,27,15,1072,61,0,1106,1456,3132,5868\n2,1938.17,117,41,16,1266,52,0,1853,3047,3738,6054\n"
    ),
    "model_analyzer.csv": (
        "Model,Batch,Concurrency,Model Config Path,Instance Group,Max Batch Size,"
        "Throughput (infer/sec),p99 Latency (ms)\n"
        "mnist,1,8,mnist_config_2,2:CPU,16,3721.1,4.2\nmnist,1,8,mnist_config_default,1:CPU,32,3326.0,\n"
    ),
}


def open_page(page: str, **query: Any) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60).switch_page(page)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def told(app: AppTest) -> str:
    assert not app.exception
    words = [*app.markdown, *app.caption, *app.info, *app.warning, *app.error]
    return "\n".join(str(element.value) for element in words).replace("\\", "")


@pytest.mark.parametrize("name", TABLES)
def test_an_import_is_shown_with_ratios_and_without_a_verdict(with_model: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text(TABLES[name])
    study_id = imports.import_file(with_model.settings, with_model.store, tmp_path / name)
    app = open_page("pages/compare.py", study=study_id)
    text = told(app)
    assert "did not expect" not in text, text
    assert "not interleaved" in text
    app = open_page("pages/history.py", kind="studies")
    assert "did not expect" not in told(app)
    app = open_page("pages/history.py")
    assert "did not expect" not in told(app)


def test_history_offers_to_import_and_says_what_can_be(with_model: Any) -> None:
    app = open_page("pages/history.py")
    next(button for button in app.button if button.label == "Import results").click().run()
    text = told(app)
    for kind in ("perf_analyzer", "AIPerf", "Locust", "Model Analyzer"):
        assert kind in text
