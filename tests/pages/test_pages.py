"""Every page in every state: no traceback, and the words that matter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tritune.errors import ServerDownError
from tritune.settings import ROOT

PAGES = ["app.py", *sorted(f"pages/{path.name}" for path in (ROOT / "pages").glob("*.py"))]


def open_page(page: str, **query: Any) -> AppTest:
    """A page as a browser would show it."""
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    if page != "app.py":
        app.switch_page(page)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def words(app: AppTest) -> str:
    """All text of the page, without the marks that keep Markdown from reading it."""
    found = [*app.markdown, *app.caption, *app.title, *app.subheader, *app.error, *app.warning, *app.success, *app.info]
    text = [str(element.value) for element in found]
    text += [str(getattr(alert.proto, "title", "")) for alert in [*app.error, *app.warning]]
    text += [f"{metric.label} {metric.value}" for metric in app.metric]
    text += [element.label for element in [*app.button, *app.page_link]]
    text += [code.value for code in app.code]
    text += [frame.value.to_string() for frame in app.dataframe]
    return "\n".join(text).replace("\\", "")


def check(app: AppTest) -> str:
    """Nothing unexpected happened; returns the words."""
    assert not app.exception
    text = words(app)
    assert "did not expect" not in text, text
    return text


def button(app: AppTest, label: str) -> Any:
    return next(button for button in app.button if button.label == label)


def primaries(app: AppTest) -> list[str]:
    return [button.label for button in app.button if button.proto.type == "primary"]


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_installation_shows_every_page_with_the_way_on(installation: Any, page: str) -> None:
    text = check(open_page(page))
    assert "Triton stopped" in text
    assert "nothing running" in text


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_itself_while_a_load_test_runs(serve: Callable[..., None], with_model: Any, page: str) -> None:
    serve()
    with_model.several()
    with_model.running()
    app = open_page(page)
    check(app)
    assert any("Load test" in bar.text and "7 s left" in bar.text for bar in app.progress)
    assert button(app, "Cancel")


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_itself_with_finished_load_tests(
    serve: Callable[..., None], with_model: Any, page: str
) -> None:
    serve()
    with_model.several()
    with_model.failed_trial("The disk is full.")
    with_model.tune()
    app = open_page(page)
    assert "Triton ready" in check(app)
    assert len(primaries(app)) <= 1


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_itself_when_the_server_is_gone(
    with_model: Any, page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune import servers
    from tritune.servers import ServerKind, ServerState, ServerStatus

    def gone(settings: Any) -> None:
        raise ServerDownError("No Triton is running: it ended. Start it again with `tritune server start`.")

    failed = ServerStatus(ServerState.FAILED, ServerKind.EMBEDDED, reason="The process ended with signal 9.")
    monkeypatch.setattr(servers, "status", lambda settings: failed)
    monkeypatch.setattr(servers, "connect", gone)
    with_model.several()
    assert "Triton failed" in check(open_page(page))


@pytest.mark.parametrize("page", PAGES)
def test_a_database_that_cannot_be_read_is_told_in_one_sentence(
    installation: Any, page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.db"
    broken.write_text("this is not a database" * 100)
    monkeypatch.setenv("TRITUNE_DATABASE_URL", f"sqlite:///{broken}")
    app = open_page(page)
    assert not app.exception
    assert "not a Tritune database" in words(app)
