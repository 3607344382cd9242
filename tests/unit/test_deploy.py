"""A configuration is written, reloaded, verified, and on a refusal the last good one is served again."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from tritune import deploy, model_config, onnx_model
from tritune.errors import ConfigError, InputError, ServerDownError, TritonRefusedError, UnknownModelError
from tritune.plan import Endpoints, TuneChange
from tritune.repository import ModelRepository
from tritune.triton import Triton


def tune(
    triton: Triton, repository: ModelRepository, model: str, change: TuneChange, *progress: Callable[[str], None]
) -> deploy.Applied:
    """As the worker tunes."""
    return deploy.apply(triton, repository, deploy.preview(repository, model, change), *progress)


def restore(triton: Triton, repository: ModelRepository, model: str, text: str | None) -> deploy.Applied:
    """As the worker undoes a tune."""
    return deploy.apply(triton, repository, deploy.earlier(repository, model, text))


def onnx_file(path: Path, batch: str | int = "batch") -> Path:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "relu",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def repository(tmp_path: Path) -> ModelRepository:
    repository = ModelRepository(tmp_path / "a repository")
    file = onnx_file(tmp_path / "relu.onnx")
    repository.publish("relu", file, model_config.generate(onnx_model.inspect(file), "relu", 16))
    return repository


class FakeTriton(Triton):
    """Serves what the repository says, unless told to refuse; answers probes at once. Unit tests only."""

    repository: ModelRepository
    refuse: str | None = None
    unsafe: str | None = None
    gone: bool = False
    controls: bool = True
    serves: str | None = None
    load_s: float = 0.0
    ignores: bool = False

    @classmethod
    def on(cls, repository: ModelRepository, **state: Any) -> FakeTriton:
        def make(endpoints: Endpoints) -> FakeTriton:
            triton = object.__new__(cls)
            object.__setattr__(triton, "endpoints", endpoints)
            return triton

        cls.repository = repository
        cls.refuse, cls.unsafe, cls.gone, cls.load_s, cls.ignores = None, None, False, 0.0, False
        cls.serves, cls.controls = repository.config_text("relu"), True
        for name, value in state.items():
            setattr(cls, name, value)
        return make(Endpoints("127.0.0.1:1"))

    @property
    def has_model_control(self) -> bool:
        return type(self).controls

    def model_ready(self, name: str) -> bool:
        return type(self).serves is not None

    def load(self, name: str, timeout_s: float = 0.0) -> None:
        cls = type(self)
        time.sleep(cls.load_s)
        if cls.gone:
            raise ServerDownError("Nothing answers at 127.0.0.1:1.")
        text = cls.repository.config_text(name)
        if cls.unsafe and text is not None and cls.unsafe in text:
            raise InputError("That configuration holds shell characters.")
        if cls.refuse and text is not None and cls.refuse in text:
            raise TritonRefusedError("load failed", status=400, reason="the model does not like it.")
        if not cls.ignores:
            cls.serves = text or "auto-completed"

    def config(self, name: str) -> dict[str, Any]:
        from google.protobuf import json_format

        text = type(self).serves
        assert text is not None
        return dict(json_format.MessageToDict(model_config.parse(text).message, preserving_proto_field_name=True))

    def signature(self, name: str) -> Any:
        return model_config.parse(type(self).serves or "").signature

    def infer(self, name: str, body: bytes, headers: Any = None, **_: Any) -> tuple[int, dict[str, str], bytes]:
        time.sleep(0.001)
        return 200, {}, b""


@pytest.fixture(autouse=True)
def _probe_uses_the_fake(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(endpoints: Endpoints) -> FakeTriton:
        triton = object.__new__(FakeTriton)
        object.__setattr__(triton, "endpoints", endpoints)
        return triton

    monkeypatch.setattr(deploy, "Triton", make)
    monkeypatch.setattr(deploy, "PROBE_LEAD_S", 0.02)


def test_a_change_is_written_reloaded_and_verified(repository: ModelRepository) -> None:
    triton = FakeTriton.on(repository, load_s=0.08)
    applied = tune(triton, repository, "relu", TuneChange(preferred_batch_size=(4, 8)))
    assert applied.verified
    assert applied.served.preferred_batch_size == (4, 8)
    assert repository.config("relu").configuration.preferred_batch_size == (4, 8)
    assert "+  preferred_batch_size: [4, 8]" in applied.diff
    assert applied.reload_ms >= 80
    assert applied.stall_ms is not None


def test_what_the_server_serves_otherwise_than_asked_is_told(repository: ModelRepository) -> None:
    triton = FakeTriton.on(repository, ignores=True)
    applied = tune(triton, repository, "relu", TuneChange(max_queue_delay_microseconds=700))
    assert not applied.verified
    assert "700" in " ".join(applied.differences)


def test_a_refusal_gives_the_reason_and_the_last_good_configuration_again(repository: ModelRepository) -> None:
    before = repository.config_text("relu")
    triton = FakeTriton.on(repository, refuse="microseconds: 700")
    with pytest.raises(TritonRefusedError, match=r"does not like it\. The last good configuration is served again"):
        tune(triton, repository, "relu", TuneChange(max_queue_delay_microseconds=700))
    assert repository.config_text("relu") == before
    assert FakeTriton.serves == before


def test_what_triton_must_never_be_shown_is_rolled_back_too(repository: ModelRepository) -> None:
    before = repository.config_text("relu")
    triton = FakeTriton.on(repository, unsafe="700")
    with pytest.raises(InputError, match=r"shell characters\. The last good configuration is served again"):
        tune(triton, repository, "relu", TuneChange(max_queue_delay_microseconds=700))
    assert repository.config_text("relu") == before


def test_a_server_that_is_gone_leaves_the_previous_file(repository: ModelRepository) -> None:
    before = repository.config_text("relu")
    triton = FakeTriton.on(repository, gone=True)
    with pytest.raises(ServerDownError, match=r"previous config\.pbtxt of relu is in place again"):
        tune(triton, repository, "relu", TuneChange(max_queue_delay_microseconds=700))
    assert repository.config_text("relu") == before


def test_a_model_without_a_config_gets_none_back_after_a_refusal(tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "r")
    repository.publish("relu", onnx_file(tmp_path / "relu.onnx"), None)
    triton = FakeTriton.on(repository, refuse="700", serves=None)
    with pytest.raises(TritonRefusedError):
        tune(triton, repository, "relu", TuneChange(max_queue_delay_microseconds=700))
    assert repository.config_text("relu") is None


@pytest.mark.parametrize("word", range(5))
def test_a_tune_that_is_cancelled_changes_nothing_or_is_done_to_its_end(repository: ModelRepository, word: int) -> None:
    class Cancelled(Exception):
        pass

    triton = FakeTriton.on(repository)
    before = repository.config_text("relu")
    said: list[str] = []

    def progress(text: str) -> None:
        said.append(text)
        if len(said) > word:
            raise Cancelled

    try:
        applied = tune(triton, repository, "relu", TuneChange(preferred_batch_size=(4, 8)), progress)
    except Cancelled:
        assert repository.config_text("relu") == FakeTriton.serves == before
    else:
        assert repository.config_text("relu") == FakeTriton.serves == applied.after != before


def test_a_server_without_model_control_is_named_and_nothing_is_written(repository: ModelRepository) -> None:
    before = repository.config_text("relu")
    triton = FakeTriton.on(repository, controls=False)
    with pytest.raises(InputError, match="model-control-mode=explicit"):
        tune(triton, repository, "relu", TuneChange(max_batch_size=8))
    assert repository.config_text("relu") == before


def test_what_is_not_given_stays_as_it_is_also_where_no_config_was_written(tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "r")
    repository.publish("relu", onnx_file(tmp_path / "relu.onnx"), None)
    before = repository.config("relu").configuration
    triton = FakeTriton.on(repository, serves="served")
    applied = tune(triton, repository, "relu", TuneChange(max_queue_delay_microseconds=700))
    assert applied.served.max_batch_size == before.max_batch_size == 4
    back = restore(triton, repository, "relu", applied.before)
    assert applied.before is None
    assert back.served == before


def test_undo_serves_the_earlier_text(repository: ModelRepository) -> None:
    triton = FakeTriton.on(repository)
    applied = tune(triton, repository, "relu", TuneChange(dynamic_batching=False))
    assert applied.before is not None
    back = restore(triton, repository, "relu", applied.before)
    assert back.served.dynamic_batching
    assert repository.config_text("relu") == applied.before


def test_the_first_load_has_no_stall_and_says_why(repository: ModelRepository) -> None:
    triton = FakeTriton.on(repository, serves=None)
    applied = tune(triton, repository, "relu", TuneChange(max_batch_size=8))
    assert applied.stall_ms is None
    assert applied.stall_reason == "The model was not served before."


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (TuneChange(preferred_batch_size=(999,)), ["999", "16"]),
        (TuneChange(max_batch_size=8, preferred_batch_size=(16,)), ["16", "8"]),
    ],
)
def test_what_triton_would_refuse_is_refused_before_anything_is_written(
    repository: ModelRepository, change: TuneChange, words: list[str]
) -> None:
    before = repository.config_text("relu")
    with pytest.raises(InputError) as raised:
        deploy.preview(repository, "relu", change)
    for word in words:
        assert word in str(raised.value)
    assert repository.config_text("relu") == before


def test_batching_a_model_with_a_fixed_batch_is_refused_with_the_reason(tmp_path: Path) -> None:
    repository = ModelRepository(tmp_path / "r")
    file = onnx_file(tmp_path / "fixed.onnx", batch=1)
    repository.publish("fixed", file, model_config.generate(onnx_model.inspect(file), "fixed"))
    with pytest.raises(InputError, match="batch"):
        deploy.preview(repository, "fixed", TuneChange(max_batch_size=8))


def test_a_broken_file_is_told_with_its_line(repository: ModelRepository) -> None:
    (repository.path / "relu" / "config.pbtxt").write_text('name: "relu"\nbatching_option [ ]\n')
    with pytest.raises(ConfigError, match="dynamic_batching"):
        deploy.preview(repository, "relu", TuneChange(max_batch_size=8))


def test_an_unknown_model_is_named_with_those_that_exist(repository: ModelRepository) -> None:
    with pytest.raises(UnknownModelError, match="relu"):
        deploy.preview(repository, "nobody", TuneChange(max_batch_size=8))
