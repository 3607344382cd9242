"""The further knobs on the tune page: shown as written, asked for by name, hidden without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlit.testing.v1 import AppTest

from tritune import model_config
from tritune.plan import TuneChange
from tritune.repository import ModelRepository
from tritune.settings import ROOT


def open_tune() -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    app.switch_page("pages/tune.py")
    return app.run()


def named(widgets: Any, label: str) -> Any:
    return next(widget for widget in widgets if widget.label == label)


def labels(app: AppTest) -> set[str]:
    return {widget.label for widget in (*app.selectbox, *app.number_input, *app.text_input)}


def write(installation: Any, **further: Any) -> None:
    """Put these knobs into MNIST's config.pbtxt."""
    repository = ModelRepository(installation.settings.model_repo)
    changed = model_config.change(repository.config("mnist"), TuneChange(dynamic_batching=True, further=further))
    repository.write_config("mnist", changed.text)


def test_a_further_knob_is_previewed_and_asked_for(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_tune()
    named(app.number_input, "Intra-op threads").set_value(2).run()
    named(app.selectbox, "Served version").set_value(1).run()
    assert "intra_op_thread_count" in app.code[0].value
    assert "specific" in app.code[0].value
    named(app.button, "Apply and reload").click().run()
    job = with_model.store.jobs()[0]
    assert job.payload["change"]["further"] == {"intra_op_thread_count": 2, "model_version": 1}


def test_what_is_written_is_shown_and_can_be_taken_out(serve: Callable[..., None], with_model: Any) -> None:
    write(with_model, intra_op_thread_count=4, priority_levels=2, default_priority_level=1, model_warmup="1,4")
    serve()
    app = open_tune()
    assert named(app.number_input, "Intra-op threads").value == 4
    assert named(app.number_input, "Priority levels").value == 2
    assert named(app.text_input, "Warm up batch sizes").value == "1,4"
    assert "More settings (4 set)" in [expander.label for expander in app.expander]
    assert "Priority levels" in app.dataframe[0].value["Setting"].tolist()
    named(app.text_input, "Warm up batch sizes").set_value("").run()
    named(app.number_input, "Intra-op threads").set_value(None).run()
    named(app.button, "Apply and reload").click().run()
    assert with_model.store.jobs()[0].payload["change"]["further"] == {
        "model_warmup": None,
        "intra_op_thread_count": None,
    }


def test_a_value_that_cannot_be_is_refused_and_the_others_stay(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_tune()
    named(app.number_input, "Intra-op threads").set_value(2).run()
    named(app.text_input, "Warm up batch sizes").set_value("four").run()
    assert "such as 1,4,16" in "\n".join(error.value for error in app.error).replace("\\", "")
    assert named(app.button, "Apply and reload").disabled
    assert named(app.number_input, "Intra-op threads").value == 2
    named(app.text_input, "Warm up batch sizes").set_value("500").run()
    assert "even crashes" in app.error[0].value
    named(app.text_input, "Warm up batch sizes").set_value("1, 4").run()
    assert not app.error
    named(app.number_input, "Default priority").set_value(1).run()
    assert "Set priority" in app.error[0].value


def test_settings_for_gpus_are_hidden_where_the_server_has_none(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_tune()
    assert not labels(app) & {"Accelerator", "GPUs", "TensorRT precision"}
    assert any("appear here when the server has one" in caption.value for caption in app.caption)
    write(with_model, execution_accelerator="tensorrt", precision_mode="FP16")
    app = open_tune()
    assert labels(app) & {"Accelerator", "GPUs", "TensorRT precision"} == {"Accelerator", "TensorRT precision"}


def test_settings_for_gpus_are_offered_where_the_server_has_one(serve: Callable[..., None], with_model: Any) -> None:
    serve(gpu=True)
    app = open_tune()
    named(app.selectbox, "TensorRT precision").set_value("FP16").run()
    assert "needs execution" in app.error[0].value
    named(app.selectbox, "Accelerator").set_value("tensorrt").run()
    named(app.text_input, "GPUs").set_value("0,1").run()
    assert not app.error
    assert 'name: "tensorrt"' in app.code[0].value
    named(app.button, "Apply and reload").click().run()
    assert with_model.store.jobs()[0].payload["change"]["further"] == {
        "execution_accelerator": "tensorrt",
        "precision_mode": "FP16",
        "instance_gpus": "0,1",
    }


def test_the_queue_is_left_alone_where_batching_is_off(serve: Callable[..., None], with_model: Any) -> None:
    serve()
    app = open_tune()
    app.toggle[0].set_value(False).run()
    assert named(app.number_input, "Longest queue").disabled
    named(app.button, "Apply and reload").click().run()
    change = with_model.store.jobs()[0].payload["change"]
    assert change["dynamic_batching"] is False
    assert "further" not in change
