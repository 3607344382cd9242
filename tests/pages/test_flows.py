"""What happens when somebody uses a page: what is asked of the worker, what is refused, what the URL keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from tritune.plan import Configuration, JobKind, JobState
from tritune.settings import ROOT
from tritune.ui import history_view

PREFERRED = Configuration(16, True, (4, 8), 700, 2)


def open_page(page: str, **query: Any) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    if page != "app.py":
        app.switch_page(page)
    for key, value in query.items():
        app.query_params[key] = value
    return app.run()


def button(app: AppTest, label: str) -> Any:
    return next(button for button in app.button if button.label == label)


def primary(app: AppTest) -> str:
    return next(button.label for button in app.button if button.proto.type == "primary")


def errors(app: AppTest) -> str:
    return "\n".join(f"{getattr(error.proto, 'title', '')} {error.value}" for error in app.error).replace("\\", "")


def newest(installation: Any) -> Any:
    return installation.store.jobs()[0]


# --- home ---


def test_home_leads_through_the_job_step_by_step(
    installation: Any, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune.servers import embedded

    monkeypatch.setattr(embedded, "unsupported_reason", lambda: None)
    monkeypatch.setattr(embedded, "is_set_up", lambda settings: False)
    assert primary(open_page("app.py")) == "Set up the embedded Triton"
    monkeypatch.setattr(embedded, "is_set_up", lambda settings: True)
    assert primary(open_page("app.py")) == "Build the MNIST model"
    request.getfixturevalue("with_model")
    assert primary(open_page("app.py")) == "Start Triton"
    serve = request.getfixturevalue("serve")
    serve()
    assert primary(open_page("app.py")) == "Tune the batching"
    installation.tune()
    assert primary(open_page("app.py")) == "Run a load test"
    installation.trial()
    assert primary(open_page("app.py")) == "Try a second configuration"
    serve(PREFERRED)
    installation.tune()
    assert primary(open_page("app.py")) == "Run a load test"
    installation.trial(PREFERRED)
    assert primary(open_page("app.py")) == "Compare the configurations"


def test_a_job_that_ended_between_two_pages_is_seen_at_once(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.trial()
    assert primary(open_page("app.py")) == "Try a second configuration"
    serve(PREFERRED, forget=False)
    with_model.tune()
    assert primary(open_page("app.py")) == "Run a load test"


def test_the_set_up_can_be_started_from_home_and_its_failure_is_shown(
    installation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune.servers import embedded

    monkeypatch.setattr(embedded, "unsupported_reason", lambda: None)
    monkeypatch.setattr(embedded, "is_set_up", lambda settings: False)
    button(open_page("app.py"), "Set up the embedded Triton").click().run()
    assert newest(installation).kind is JobKind.SETUP
    installation.store.request_cancel(newest(installation).id)
    installation.ended(JobKind.SETUP, error="The package index could not be reached. Connect and try again.")
    assert "The package index could not be reached" in errors(open_page("app.py"))


def test_a_machine_that_cannot_run_triton_is_sent_to_attach(installation: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from tritune.servers import embedded

    monkeypatch.setattr(embedded, "unsupported_reason", lambda: "The embedded Triton needs Linux on x86-64.")
    app = open_page("pages/server.py")
    assert not [button for button in app.button if button.label == "Start Triton"]
    assert "needs Linux" in app.warning[0].value


# --- model ---


def test_building_asks_the_worker_with_the_chosen_opset(installation: Any) -> None:
    app = open_page("pages/model.py")
    app.number_input[0].set_value(15)
    app.checkbox[0].check()
    button(app, "Build the MNIST model").click().run()
    job = newest(installation)
    assert (job.kind, job.payload) == (JobKind.MODEL_BUILD, {"opset": 15, "simplify": True, "retrain": False})


def test_an_upload_is_kept_for_the_worker_under_a_name_that_triton_accepts(installation: Any) -> None:
    app = open_page("pages/model.py")
    app.file_uploader[0].upload("my model (1).onnx", b"not onnx at all").run()
    button(app, "Add the model").click().run()
    job = newest(installation)
    assert job.kind is JobKind.MODEL_ADD
    assert job.payload["name"] == "my_model_1"
    assert Path(job.payload["path"]).read_bytes() == b"not onnx at all"


def test_a_failed_import_says_why(installation: Any) -> None:
    installation.ended(JobKind.MODEL_ADD, error="model.onnx is not an ONNX file: it is cut short. Export it again.")
    assert "it is cut short" in errors(open_page("pages/model.py"))


# --- server ---


def test_attaching_to_nothing_says_so_and_leaves_the_page_whole(installation: Any) -> None:
    app = open_page("pages/server.py")
    app.text_input[0].set_value("http://127.0.0.1:1")
    button(app, "Attach").click().run()
    assert "127.0.0.1:1" in errors(app)
    assert "Log" in [heading.value for heading in app.subheader]


def test_a_header_line_without_a_colon_is_refused(installation: Any) -> None:
    app = open_page("pages/server.py")
    app.text_input[0].set_value("http://127.0.0.1:1")
    app.text_area[0].set_value("Authorization Bearer x")
    button(app, "Attach").click().run()
    assert "has no colon" in errors(app)


def test_loading_and_unloading_are_jobs(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    button(open_page("pages/server.py"), "Unload").click().run()
    assert (newest(with_model).kind, newest(with_model).payload) == (JobKind.UNLOAD_MODEL, {"model": "mnist"})


# --- tune ---


def test_a_change_is_previewed_and_then_asked_for(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_page("pages/tune.py")
    assert button(app, "Apply and reload").disabled
    app.text_input[0].set_value("4, 8").run()
    app.number_input[0].set_value(700).run()
    assert "preferred_batch_size" in app.code[0].value
    button(app, "Apply and reload").click().run()
    job = newest(with_model)
    assert job.kind is JobKind.TUNE
    assert job.payload["change"]["preferred_batch_size"] == [4, 8]
    assert job.payload["change"]["max_queue_delay_microseconds"] == 700
    assert job.payload["change"]["max_batch_size"] is None


@pytest.mark.parametrize(
    ("sizes", "delay_us", "said"),
    [
        ("999", 0, "999"),
        ("four", 0, "whole numbers"),
        ("", -5, "max_queue_delay_us=-5"),
        ("0", 0, "preferred_batch_size=0"),
    ],
)
def test_what_triton_would_refuse_is_refused_in_plain_words_before_it_is_sent(
    serve: Callable[..., None], with_model: Any, sizes: str, delay_us: int, said: str
) -> None:
    serve()
    app = open_page("pages/tune.py")
    app.text_input[0].set_value(sizes)
    app.number_input[0].set_value(delay_us).run()
    assert said in errors(app)
    assert button(app, "Apply and reload").disabled


def test_a_refused_tune_shows_the_reason_and_what_is_served_again(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.ended(JobKind.TUNE, error="Triton refused the new configuration: no. The last good one is served again.")
    assert "The last good one is served again" in errors(open_page("pages/tune.py"))


def test_a_preferred_size_that_caps_batches_is_pointed_out(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_page("pages/tune.py")
    app.text_input[0].set_value("4, 8").run()
    assert "capped at 8" in app.warning[0].value
    app.number_input[0].set_value(100).run()
    assert not app.warning


@pytest.fixture
def elsewhere(serve: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of somebody else that does not list its models."""
    from tritune import servers
    from tritune.errors import TritonRefusedError
    from tritune.plan import Endpoints
    from tritune.servers import ServerKind, ServerState, ServerStatus

    serve()
    remote = ServerStatus(ServerState.READY, ServerKind.REMOTE, Endpoints("gpu:8000"), "2.51.0", control=False)
    monkeypatch.setattr(servers, "status", lambda settings: remote)

    def restricted(self: Any) -> None:
        raise TritonRefusedError("The server would not list the models: restricted", status=403, reason="restricted")

    monkeypatch.setattr(type(servers.connect(Any)), "index", restricted)


def test_a_server_elsewhere_reads_its_own_repository(elsewhere: None) -> None:
    app = open_page("pages/tune.py")
    assert not app.exception
    assert "own model repository" in "".join(text.value for text in app.markdown)
    assert not [button for button in app.button if button.label == "Apply and reload"]


def test_home_leads_to_the_load_test_where_the_server_is_somebody_elses(elsewhere: None) -> None:
    assert primary(open_page("app.py")) == "Run a load test"


def test_a_model_of_a_server_that_lists_none_can_be_named(elsewhere: None, with_model: Any) -> None:
    import shutil

    shutil.rmtree(with_model.settings.model_repo / "mnist")
    app = open_page("pages/try_it.py")
    assert not app.error
    assert not app.code
    app = open_page("pages/try_it.py", model="mnist")
    assert {metric.label: metric.value for metric in app.metric}["The model says"] == "7"
    assert "does not list its models" in "".join(text.value for text in open_page("pages/server.py").caption)


def test_undo_is_offered_after_a_tune_and_asks_for_it(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    assert button(open_page("pages/tune.py"), "Undo the last tune").disabled
    with_model.tune()
    app = open_page("pages/tune.py")
    assert app.metric[0].value == "1,530 ms"
    button(app, "Undo the last tune").click().run()
    assert newest(with_model).payload == {"model": "mnist", "change": {}, "undo": True, "without_stall": False}


# --- load test ---


def start(app: AppTest) -> Any:
    return button(app, "Start the load test")


def test_a_load_test_is_asked_for_as_planned(
    serve: Callable[..., None], with_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune import jobs

    monkeypatch.setattr(jobs, "check_load", lambda settings, plan: None)
    serve()
    app = open_page("pages/load_test.py")
    app.get_by_key("load_loop").set_value("Rate").run()
    app.number_input(key="load_rate").set_value(250.0)
    app.selectbox(key="load_arrivals").set_value("poisson")
    app.text_input(key="load_labels").set_value("machine=laptop")
    app.text_input(key="load_note").set_value("first")
    start(app.run()).click().run()
    payload = newest(with_model).payload
    assert (payload["plan"]["rate_rps"], payload["plan"]["arrivals"], payload["plan"]["concurrency"]) == (
        250,
        "poisson",
        None,
    )
    assert (payload["labels"], payload["note"]) == ({"machine": "laptop"}, "first")


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("load_clients", 0, "concurrency=0"),
        ("load_duration", 0.1, "duration=0.1"),
        ("load_timeout", 0.0, "timeout=0"),
        ("load_seed", -1, "seed=-1"),
        ("load_workers", 9, "workers=9"),
    ],
)
def test_a_plan_out_of_range_is_refused_in_plain_words(
    serve: Callable[..., None], with_model: Any, key: str, value: float, said: str
) -> None:
    serve()
    app = open_page("pages/load_test.py")
    app.number_input(key=key).set_value(value).run()
    assert said in errors(app)
    assert start(app).disabled


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("load_labels", "laptop", "must be NAME=VALUE"),
        ("load_shapes", "INPUT", "must be NAME:sizes"),
        ("load_ranges", "INPUT:a:b", "must be NAME:lowest:highest"),
    ],
)
def test_text_that_cannot_be_read_is_refused(
    serve: Callable[..., None], with_model: Any, key: str, value: str, said: str
) -> None:
    serve()
    app = open_page("pages/load_test.py")
    app.text_input(key=key).set_value(value).run()
    assert said in errors(app)
    assert start(app).disabled


def test_what_is_folded_away_reaches_the_plan(installation: Any, with_model: Any, serve: Callable[..., None]) -> None:
    serve()
    app = open_page("pages/load_test.py")
    app.get_by_key("load_loop").set_value("Rate").run()
    app.text_input(key="load_stages").set_value("2s:100,3s:100-400")
    app.selectbox(key="load_compression").set_value("gzip")
    app.number_input(key="load_check").set_value(0.5)
    app.checkbox(key="load_raw").uncheck().run()
    button(app, "Start the load test").click().run()
    plan = newest(installation).payload["plan"]
    assert plan["stages"] == [[2.0, 100.0, 100.0], [3.0, 100.0, 400.0]]
    assert (plan["duration_s"], plan["rate_rps"], plan["compression"]) == (5.0, None, "gzip")
    assert (plan["check_share"], plan["max_raw_samples"]) == (0.5, 0)


def test_a_running_load_test_shows_its_last_second_and_can_be_cancelled(
    serve: Callable[..., None], with_model: Any
) -> None:
    serve()
    job = with_model.running()
    app = open_page("pages/load_test.py")
    assert {metric.label: metric.value for metric in app.metric}["P99, last second"] == "9.87 ms"
    button(app, "Cancel").click().run()
    assert with_model.store.job(job).cancel_requested


def test_warnings_stand_beside_the_numbers(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.trial(rate=30.0, duration_s=5.0)
    app = open_page("pages/load_test.py")
    assert "P99 needs 459" in app.warning[0].value
    assert "–" in {metric.label: metric.value for metric in app.metric}["P99 latency"]


# --- compare ---


def test_the_latest_configurations_of_one_load_are_compared_by_default(with_model: Any) -> None:
    with_model.several()
    app = open_page("pages/compare.py")
    assert app.multiselect(key="trials").value == ["t1", "t3", "t5"]
    assert app.selectbox[0].value == "t1"
    assert "No verdict" in "".join(caption.value for caption in app.caption)
    assert len(app.get("vega_lite_chart")) == 6


def test_selection_and_baseline_come_from_the_url(with_model: Any) -> None:
    with_model.several()
    app = open_page("pages/compare.py", trials=["t2", "t1"], baseline="t2")
    assert app.multiselect(key="trials").value == ["t2", "t1"]
    assert app.selectbox[0].value == "t2"
    assert app.dataframe[0].value["Load test"].tolist() == ["t2 (baseline)", "t1"]


def test_a_trial_that_is_gone_does_not_break_the_comparison(with_model: Any) -> None:
    with_model.several()
    app = open_page("pages/compare.py", trials=["t99", "t1"], baseline="t98")
    assert not app.exception
    assert not app.error


def test_different_loads_are_pointed_out(with_model: Any) -> None:
    with_model.several()
    app = open_page("pages/compare.py", trials=["t2", "t4"])
    assert "different loads" in "".join(warning.value for warning in app.warning)


def test_samples_that_were_not_kept_cost_their_curve_only(with_model: Any) -> None:
    with_model.several()
    for path in with_model.settings.trials.glob("*/samples.parquet"):
        path.unlink()
    app = open_page("pages/compare.py")
    assert not app.exception
    assert not app.error


# --- history ---


def history(installation: Any, rows: list[int], **query: Any) -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    app.switch_page("pages/history.py")
    for key, value in query.items():
        app.query_params[key] = value
    if rows:
        key = history_view.rows_key(installation.store.trials())
        app.session_state[key] = {"selection": {"rows": rows, "columns": [], "cells": []}}
    return app.run()


def test_the_search_finds_notes_labels_and_states(with_model: Any) -> None:
    with_model.several()
    with_model.failed_trial("The disk is full.")
    found = {
        query: len(history(with_model, [], q=query).dataframe[0].value)
        for query in ("tutorial", "laptop", "failed", "t")
    }
    assert found == {"tutorial": 1, "laptop": 1, "failed": 1, "t": 6}
    assert not history(with_model, [], q="nothing like it").dataframe


def test_a_failed_trial_shows_its_reason(with_model: Any) -> None:
    with_model.failed_trial("The disk is full. Free some space.")
    assert "The disk is full. Free some space." in errors(history(with_model, [0]))


def test_note_and_labels_can_be_changed(with_model: Any) -> None:
    with_model.trial()
    app = history(with_model, [0])
    labels, note = (field for field in app.text_input if field.label in ("Labels", "Note"))
    labels.set_value("machine=server, run=2")
    note.set_value("better")
    button(app, "Save note and labels").click().run()
    trial = with_model.store.trial("t1")
    assert (dict(trial.labels), trial.note) == ({"machine": "server", "run": "2"}, "better")


def test_a_tick_does_not_pass_to_another_trial_when_the_list_changes(with_model: Any) -> None:
    with_model.several()
    app = history(with_model, [0])
    assert "Load test t5" in [heading.value for heading in app.subheader]
    with_model.store.delete_trial("t5")
    app.run()
    assert not [heading for heading in app.subheader if "Load test" in heading.value]


# --- try it ---


def test_the_answer_and_the_code_stand_side_by_side(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_page("pages/try_it.py")
    assert {metric.label: metric.value for metric in app.metric}["The model says"] == "7"
    assert [code.value.split()[0] for code in app.code] == ["curl", "#", "#"]


def test_an_own_picture_is_used(serve: Callable[..., None], with_model: Any) -> None:
    import io

    from PIL import Image

    picture = np.full((60, 60), 255, np.uint8)
    picture[10:50, 28:33] = 0
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    serve()
    app = open_page("pages/try_it.py")
    before = app.code[0].value
    app.file_uploader[0].upload("one.png", file.getvalue()).run()
    assert not app.error
    assert app.code[0].value != before
    app.file_uploader[0].upload("two.png", b"not a picture").run()


def test_a_file_that_is_no_picture_is_refused(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_page("pages/try_it.py")
    app.file_uploader[0].upload("two.png", b"not a picture").run()
    assert "not a picture that can be read" in errors(app)


def test_no_request_is_sent_while_a_load_test_runs(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    with_model.running()
    app = open_page("pages/try_it.py")
    assert "A load test is running" in app.info[0].value
    assert not app.code


# --- what goes wrong in between ---


def test_something_unexpected_is_one_sentence_with_the_way_to_the_log(
    installation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune.repository import ModelRepository

    def broken(self: Any) -> None:
        raise ZeroDivisionError("a bug")

    app = open_page("pages/model.py")
    monkeypatch.setattr(ModelRepository, "strays", broken)
    monkeypatch.setattr(ModelRepository, "models", broken)
    app.run()
    assert not app.exception
    assert "ZeroDivisionError" in errors(app)
    log = installation.settings.results / "app.log"
    assert str(log) in errors(app)
    assert "a bug" in log.read_text()


def test_a_job_that_ends_redraws_the_page_with_its_outcome(installation: Any) -> None:
    job = installation.running(JobKind.MODEL_BUILD)
    app = open_page("pages/model.py")
    assert button(app, "Build the MNIST model").disabled
    result = {"model": "mnist", "version": 1, "accuracy": 0.9913, "loaded": False}
    installation.store.finish_job(job, "test", JobState.FINISHED, result=result)
    app.run()
    assert "99.13%" in app.success[0].value
    assert not button(app, "Build the MNIST model").disabled
