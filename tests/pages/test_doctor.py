"""The doctor's page: findings with their lines, buttons that do and undo, and logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tritune.plan import JobKind, JobState
from tritune.settings import ROOT

TOOLKIT = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'


def open_page() -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    app.switch_page("pages/doctor.py")
    return app.run()


def words(app: AppTest) -> str:
    assert not app.exception
    found = [*app.markdown, *app.error, *app.success, *app.code, *app.caption]
    text = "\n".join(str(element.value) for element in found).replace("\\", "")
    assert "did not expect" not in text, text
    return text


def press(app: AppTest, label: str) -> AppTest:
    return next(button for button in app.button if button.label == label).click().run()


@pytest.fixture
def wrong_name(with_model: Any) -> Any:
    """A configuration that names an input which the ONNX file does not have."""
    path = with_model.settings.model_repo / "mnist" / "config.pbtxt"
    path.write_text(path.read_text().replace("INPUT__0", "input.1"))
    return with_model


def test_a_wrong_input_name_is_told_mended_by_a_button_and_put_back(wrong_name: Any) -> None:
    path = wrong_name.settings.model_repo / "mnist" / "config.pbtxt"
    before = path.read_text()
    app = open_page()
    text = words(app)
    assert "1 error" in text
    assert "input input.1" in text
    assert 'Write name: "INPUT__0".' in text
    assert "+  name:" in text

    app = press(app, "Write inputs and outputs as the ONNX file has them")
    assert "It can be undone below" in words(app)
    assert "Nothing is wrong" in words(app) or "1 error" not in words(app)
    assert "INPUT__0" in path.read_text()

    app = press(app, "Undo")
    assert "Undone" in words(app)
    assert path.read_text() == before
    assert "1 error" in words(app)


def test_a_model_that_is_not_loaded_is_loaded_by_the_worker_and_unloaded_again(
    serve: Callable[..., None], with_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune import servers

    serve()
    triton = type(servers.connect(with_model.settings))
    monkeypatch.setattr(triton, "index", lambda self: [])
    app = press(open_page(), "Load it")
    job = with_model.store.jobs()[0]
    assert (job.kind, job.payload) == (JobKind.LOAD_MODEL, {"model": "mnist"})
    with_model.store.claim("test")
    with_model.store.finish_job(job.id, "test", JobState.FINISHED, result={"model": "mnist"})
    app = press(app.run(), "Undo")
    assert with_model.store.jobs()[0].kind is JobKind.UNLOAD_MODEL


def test_a_pasted_log_is_explained_with_its_line(installation: Any) -> None:
    app = open_page()
    app.text_area[0].input(f"all is well\n{TOOLKIT}\n").run()
    text = words(app)
    assert TOOLKIT in text
    assert "NVIDIA Container Toolkit" in text
    assert "line 2" in text
    app.text_area[0].input("I1130 09:12:01.5 1 a.cc:1] fine").run()
    assert "No line looks like an error" in words(app)


def test_an_unknown_error_in_a_pasted_log_is_shown_and_not_explained(installation: Any) -> None:
    app = open_page()
    app.text_area[0].input("ERROR: the flux capacitor broke").run()
    text = words(app)
    assert "ERROR: the flux capacitor broke" in text
    assert "does not know" in text


def test_the_servers_own_log_is_looked_through(
    serve: Callable[..., None], with_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune import servers

    serve()
    monkeypatch.setattr(servers, "logs", lambda settings, lines=200: TOOLKIT)
    app = open_page()
    app.segmented_control(key="log_source").set_value("This server's log").run()
    text = words(app)
    assert TOOLKIT in text
    assert "The last 1 lines were looked through" in text


def test_text_of_a_log_is_never_read_as_markup(installation: Any) -> None:
    app = open_page()
    app.text_area[0].input("ERROR: $x$ [a](http://b) <b>bold</b> `code` :red[x]").run()
    assert any("<b>bold</b>" in code.value for code in app.code)
    assert not [text for text in app.markdown if "<b>bold</b>" in str(text.value)]
