"""The search for the highest rate on the load test page, and goodput wherever a limit was set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tritune.plan import JobKind, JobState
from tritune.settings import ROOT

FIND = "Find the highest rate"


def open_page(page: str, **query: Any) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30).switch_page(page)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def searching(app: AppTest) -> AppTest:
    app.get_by_key("load_loop").set_value(FIND)
    return app.run()


def button(app: AppTest) -> Any:
    return next(button for button in app.button if button.label == FIND)


def said(app: AppTest) -> str:
    boxes = [*app.success, *app.warning, *app.error]
    return "\n".join(f"{box.proto.title} {box.value}" for box in boxes).replace("\\", "")


def alts(app: AppTest) -> list[str]:
    return [chart.proto.alt for chart in app.get("vega_lite_chart")]


def test_a_search_is_asked_for_as_planned(
    serve: Callable[..., None], with_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune import jobs

    monkeypatch.setattr(jobs, "check_load", lambda settings, plan: None)
    serve()
    app = searching(open_page("pages/load_test.py"))
    app.number_input(key="load_find_limit").set_value(12.5)
    app.number_input(key="load_budget").set_value(4.0)
    app.number_input(key="load_duration").set_value(5.0)
    app.selectbox(key="load_arrivals").set_value("poisson")
    app.text_input(key="load_note").set_value("how far")
    button(app.run()).click().run()
    job = with_model.store.jobs()[0]
    assert job.kind is JobKind.FIND_RATE
    assert job.payload["goal"]["limit_ms"] == 12.5
    assert job.payload["goal"]["budget_s"] == 240.0
    plan = job.payload["plan"]
    assert (plan["p99_limit_ms"], plan["arrivals"], plan["duration_s"]) == (12.5, "poisson", 5.0)
    assert job.payload["note"] == "how far"


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("load_find_limit", 0.0, "p99_ms=0"),
        ("load_find_limit", 10_000.0, "under the timeout"),
        ("load_budget", 0.0, "budget=0"),
        ("load_driver", "perf_analyzer", "locust driver"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused_in_plain_words(
    serve: Callable[..., None], with_model: Any, key: str, value: Any, words: str
) -> None:
    serve()
    app = searching(open_page("pages/load_test.py"))
    app.get_by_key(key).set_value(value)
    app.run()
    assert words in said(app)
    assert button(app).disabled


def test_a_running_search_shows_its_probes_and_can_be_cancelled(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    job = with_model.search(state=None)
    app = open_page("pages/load_test.py")
    shown = {metric.label: metric.value for metric in app.metric}
    assert shown["Highest that holds"] == "900 req/s"
    assert shown["Lowest that fails"] == "1,120 req/s"
    assert shown["P99, last second"] == "9.87 ms"
    assert any("limit of 20 ms" in alt and "900/s" in alt and "not decided" in alt for alt in alts(app))
    assert app.dataframe[0].value["Judged"].tolist()[-1] == "closed loop"
    assert any("Rate search" in bar.text and "Probe 7, 921/s" in bar.text for bar in app.progress)
    next(button for button in app.button if button.label == "Cancel").click().run()
    assert with_model.store.job(job).cancel_requested


def test_the_result_is_told_in_words_with_its_probes(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.trial()
    with_model.search()
    app = open_page("pages/load_test.py")
    assert "900 requests/s hold a P99 under 20 ms; 1,120/s do not." in said(app)
    assert "Highest rate" in [heading.value for heading in app.subheader]
    assert "Latest result" not in [heading.value for heading in app.subheader]
    assert len(app.dataframe[0].value) == 6
    with_model.trial()  # a load test that came after it is the page's result again
    app = open_page("pages/load_test.py")
    assert "Latest result" in [heading.value for heading in app.subheader]
    assert any("900 requests/s hold" in fold.label for fold in app.expander)


def test_a_search_that_was_cancelled_keeps_its_probes(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.search(state=JobState.CANCELLED)
    app = open_page("pages/load_test.py")
    assert "900 requests/s hold" in said(app)
    assert len(app.dataframe[0].value) == 6


def test_goodput_stands_wherever_a_limit_was_set(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.trial()
    assert "Goodput" not in [metric.label for metric in open_page("pages/load_test.py").metric]
    assert "Goodput" not in open_page("pages/history.py").dataframe[0].value
    with_model.trial(p99_limit_ms=5.0)
    app = open_page("pages/load_test.py")
    goodput = next(metric.value for metric in app.metric if metric.label == "Goodput")
    assert goodput.endswith("req/s")
    assert any("within 5 ms: the limit is missed" in caption.value for caption in app.caption)
    table = open_page("pages/history.py").dataframe[0].value
    assert table["P99 limit"].tolist()[0] == 5.0
    assert 0 < table["Goodput"].tolist()[0] < 1200
    compared = open_page("pages/compare.py", trials=["t1", "t2"]).dataframe[0].value["Goodput, req/s"].tolist()
    assert compared[0] == ""
    assert "(within 5 ms)" in compared[1]
