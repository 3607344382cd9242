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


# --- compare --------------------------------------------------------------------------------------------------------


def test_a_finished_study_is_compared_with_its_verdicts_in_words(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    job = with_model.study()
    text = check(open_page("pages/compare.py", study=f"s{job}"))
    assert "12 configurations under 3 loads · round 4 of 4 · finished" in text
    assert "Best: " in text
    assert "Is batching in effect?" in text
    assert "better" in text
    assert "no difference shown" in text


def test_the_url_keeps_load_configurations_knobs_and_opens_the_same_view(
    serve: Callable[..., None], with_model: Any
) -> None:
    serve()
    job = with_model.study()
    query = {"study": f"s{job}", "load": "0", "show": ["0", "5"], "x": "preferred_batch_size", "of": "p99_ms"}
    app = open_page("pages/compare.py", **query)
    check(app)
    assert app.query_params["load"] == "0"
    assert app.query_params["show"] == ["0", "5"]
    shown = next(box for box in app.multiselect if box.label == "Configurations in detail")
    assert shown.value == [0, 5]
    assert "Under 1 client." in words(app)


def test_a_finished_study_is_what_compare_opens_with_and_load_tests_are_one_choice_away(
    serve: Callable[..., None], with_model: Any
) -> None:
    serve()
    with_model.several()
    job = with_model.study(rounds=3)
    app = open_page("pages/compare.py")
    assert app.query_params["study"] == f"s{job}"
    selectbox(app, "What to compare").select("Load tests").run()
    check(app)
    assert "study" not in app.query_params
    chosen = next(box for box in app.multiselect if box.label == "Load tests")
    assert len(chosen.options) == 5  # the study's own trials are compared within it


def test_a_study_that_does_not_exist_is_said(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.several()
    app = open_page("pages/compare.py", study="s99")
    check(app)
    assert "99" in app.warning[0].value


def test_the_winner_is_applied_with_every_knob(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.study()
    app = open_page("pages/compare.py")
    selectbox(app, "Configuration").select(5).run()
    button(app, "Apply this configuration").click().run()
    asked = with_model.store.jobs()[0]
    assert asked.kind is JobKind.TUNE
    assert asked.payload["model"] == "mnist"
    change = asked.payload["change"]
    assert (change["preferred_batch_size"], change["max_queue_delay_microseconds"]) == ([4, 8], 100)
    assert (change["max_batch_size"], change["instance_count"], change["dynamic_batching"]) == (32, 2, True)


def test_a_configuration_without_batching_is_applied_as_that() -> None:
    from tritune.ui import study_actions

    written = Configuration(32, True, (4, 8), 700, 2, (("intra_op_thread_count", 2),))
    change = study_actions.full_change(Configuration(16, False, (), 0, None), written)
    assert change.to_dict() | {} == {
        "preferred_batch_size": None,
        "max_queue_delay_microseconds": None,
        "max_batch_size": 16,
        "instance_count": None,
        "dynamic_batching": False,
        "further": {"intra_op_thread_count": None},
    }


def test_config_pbtxt_says_where_it_comes_from(with_model: Any) -> None:
    from tritune import model_config, study_result
    from tritune.ui import study_actions

    job = with_model.store.job(with_model.study(rounds=3))
    document = study_result.document(job, with_model.store.trials(study_id=f"s{job.id}", limit=1000))
    text = study_actions.config_text(document, 5)
    assert text is not None
    assert f"# From Tritune's study s{job.id} of mnist." in text
    assert "# 8 clients, against the baseline: throughput " in text
    assert model_config.parse(text).configuration.preferred_batch_size == (4, 8)


def test_a_pinned_baseline_is_the_baseline_of_every_page(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    trials = with_model.several()
    app = open_page("pages/compare.py", trials=trials[:3], baseline=trials[2])
    button(app, "Pin as baseline").click().run()
    app.switch_page("pages/sweep.py").run()
    check(app)
    assert f"pinned: {trials[2]}" in str(selectbox(app, "Baseline").options)
    app.switch_page("pages/compare.py").run()
    assert selectbox(app, "Baseline").value == trials[2]


# --- every state ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", ["pages/sweep.py", "pages/compare.py", "pages/history.py", "app.py"])
@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_running_study_is_shown_on_every_page(
    serve: Callable[..., None], with_model: Any, page: str, done: int
) -> None:
    serve()
    job = with_model.study(rounds=8, done=done, state=None)
    app = open_page(page, **({"study": f"s{job}"} if page != "app.py" else {}))
    text = check(app)
    assert button(app, "Cancel")
    if page == "pages/sweep.py":
        assert "▶ measuring now" in text


@pytest.mark.parametrize("page", ["pages/sweep.py", "pages/compare.py", "pages/history.py", "app.py"])
def test_a_study_with_failures_is_shown_when_the_server_is_down(with_model: Any, page: str) -> None:
    job = with_model.study(rounds=3, failures=True, state=JobState.INTERRUPTED)
    text = check(open_page(page, **({"study": f"s{job}"} if page != "app.py" else {})))
    assert "Triton stopped" in text


# --- sweep ----------------------------------------------------------------------------------------------------------


def test_a_plan_is_previewed_and_started_as_asked(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_page("pages/sweep.py")
    app.text_input(key="sweep_sizes").set_value("none;4;64")
    app.text_input(key="sweep_delays").set_value("0,100")
    app.text_input(key="sweep_concurrency").set_value("1,8").run()
    text = check(app)
    assert "4 configurations under 2 loads" in text
    assert "preferred_batch_size 64" in text  # larger than the maximum: left out, with the reason
    button(app, "Start the study").click().run()
    job = with_model.store.jobs()[0]
    assert job.kind is JobKind.SWEEP
    assert len(job.payload["candidates"]) == 4
    assert job.payload["plan"]["loads"]["concurrency"] == [1, 8]


def test_what_cannot_be_is_said_where_it_is_typed(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_page("pages/sweep.py")
    app.text_input(key="sweep_delays").set_value("soon").run()
    assert "max_queue_delay_us='soon' must be whole numbers" in check(app)
    assert button(app, "Start the study").disabled
    app.text_input(key="sweep_delays").set_value("")
    app.text_input(key="sweep_concurrency").set_value("").run()
    assert "A study needs a load." in check(app)


def test_a_preset_fills_the_form(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_page("pages/sweep.py")
    button(app, "Use this preset").click().run()
    check(app)
    assert app.text_input(key="sweep_delays").value == "100,1000"
    assert app.text_input(key="sweep_rate").value == "100"
    assert app.text_input(key="sweep_concurrency").value == ""


def test_the_preset_that_is_no_study_asks_for_a_reload_whose_stall_is_measured(
    serve: Callable[..., None], with_model: Any
) -> None:
    serve()
    app = open_page("pages/sweep.py")
    selectbox(app, "Preset").select("reload").run()
    button(app, "Reload and measure the stall").click().run()
    payload = with_model.store.jobs([JobKind.TUNE])[0].payload
    asked = {name: value for name, value in payload["change"].items() if value not in (None, {})}
    assert list(asked) in (["max_queue_delay_microseconds"], ["instance_count"])


def test_the_form_gives_back_the_plan_that_filled_it() -> None:
    from tritune import presets
    from tritune.study_plan import StudyPlan
    from tritune.ui import sweep_view

    plans = [each.plan("mnist") for each in presets.PRESETS.values() if each.make]
    further = {"intra_op_thread_count": (1, 2), "model_version": (1, 2), "inter_op_thread_count": (1, 4)}
    first = sweep_view.first("mnist")
    plans += [first, StudyPlan.from_dict(first.to_dict() | {"space": {"further": further}, "share": "us", "seed": 3})]
    for plan in plans:
        assert sweep_view.plan_of(sweep_view.texts(plan), plan) == plan


def test_an_interrupted_study_goes_on_where_it_was(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    number = with_model.study(rounds=8, done=2, state=JobState.INTERRUPTED)
    app = open_page("pages/sweep.py", study=f"s{number}")
    assert "interrupted" in check(app)
    button(app, "Resume").click().run()
    assert with_model.store.job(number).state is JobState.WAITING


def test_the_sweep_page_without_a_server_still_makes_a_plan(with_model: Any) -> None:
    app = open_page("pages/sweep.py")
    assert "No Triton is running" in check(app)
    assert button(app, "Start the study").disabled


# --- history ----------------------------------------------------------------------------------------------------------


def test_history_lists_studies_and_keeps_their_trials_apart(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.several()
    job = with_model.study(rounds=3)
    app = open_page("pages/history.py", kind="studies")
    table = app.dataframe[0].value
    assert list(table["Study"]) == [f"s{job}"]
    assert list(table["Configurations"]) == [12]
    app = open_page("pages/history.py")
    selectbox(app, "Study").select("none: single load tests").run()
    assert len(app.dataframe[0].value) == 5
    selectbox(app, "Study").select(f"s{job}").run()
    assert set(app.dataframe[0].value["Study"]) == {f"s{job}, round {n}" for n in (1, 2, 3)}
    check(app)
