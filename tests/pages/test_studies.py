"""Studies on the pages: planned, watched, compared, applied; what the URL keeps and what is asked of the worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from tritune.plan import Configuration, JobKind, JobState
from tritune.settings import ROOT


def open_page(page: str, **query: Any) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=60)
    if page != "app.py":
        app.switch_page(page)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def words(app: AppTest) -> str:
    found = [*app.markdown, *app.caption, *app.title, *app.subheader, *app.error, *app.warning, *app.success, *app.info]
    text = [str(element.value) for element in found]
    text += [str(getattr(alert.proto, "title", "")) for alert in [*app.error, *app.warning, *app.success, *app.info]]
    text += [element.label for element in [*app.button, *app.page_link]]
    text += [frame.value.to_string() for frame in app.dataframe]
    return "\n".join(text).replace("\\", "")


def check(app: AppTest) -> str:
    assert not app.exception
    text = words(app)
    assert "did not expect" not in text, text
    return text


def button(app: AppTest, label: str) -> Any:
    return next(button for button in app.button if button.label == label)


def selectbox(app: AppTest, label: str) -> Any:
    return next(box for box in app.selectbox if box.label == label)


# --- compare ---------------------------------------------------------------------------------------------------------


def test_a_finished_study_is_compared_with_its_verdicts_in_words(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    job = with_model.study()
    text = check(open_page("pages/compare.py", study=f"s{job}"))
    assert "12 configurations under 3 loads · round 4 of 4 · finished" in text
    assert "Best: " in text
    assert "Is batching in effect?" in text
    assert "better" in text
    assert "no difference shown" in text
