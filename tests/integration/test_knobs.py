"""Further knobs that are really in effect in the embedded Triton: threads, served version, warm-up, queue policy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tritune import deploy
from tritune.errors import TritonRefusedError
from tritune.plan import TuneChange
from tritune.repository import ModelRepository
from tritune.servers import ServerStatus
from tritune.settings import Settings
from tritune.triton import Triton

MODEL = "versions"


def tune(
    triton: Triton, repository: ModelRepository, model: str, change: TuneChange, *progress: Callable[[str], None]
) -> deploy.Applied:
    """As the worker tunes."""
    return deploy.apply(triton, repository, deploy.preview(repository, model, change), *progress)


@pytest.fixture(scope="module")
def repository(installation: Settings, triton_server: ServerStatus, publish: Callable[..., Path]) -> ModelRepository:
    """A model of two versions: the first doubles, the second squares."""
    folder = publish(installation.model_repo, MODEL)
    model = onnx.load(folder / "1" / "model.onnx")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "x"], ["y"])], "square", list(model.graph.input), list(model.graph.output)
    )
    (folder / "2").mkdir()
    square = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert square.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    onnx.save(square, folder / "2" / "model.onnx")
    return ModelRepository(installation.model_repo)


def answer(triton: Triton, value: float) -> float:
    """The model's answer to one number."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
    status, _, body = triton.infer(MODEL, json.dumps({"inputs": [tensor]}).encode(), {})
    assert status == 200, body
    return float(json.loads(body)["outputs"][0]["data"][0])


def threads(server: ServerStatus) -> list[int]:
    """How many threads each instance of the model has."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            status = (process / "status").read_text()
        except OSError:
            continue
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        if fields.get("PPid", "").strip() == str(server.pid) and any(f"/{MODEL}/".encode() in word for word in words):
            found.append(int(fields["Threads"]))
    return found


def test_one_of_two_versions_is_served_by_choice(triton: Triton, repository: ModelRepository) -> None:
    for version, expected in ((1, 6.0), (None, 9.0), (2, 9.0)):
        applied = tune(triton, repository, MODEL, TuneChange(further={"model_version": version}))
        assert applied.differences == ()
        assert (answer(triton, 3.0), triton.versions(MODEL)) == (expected, (version or 2,))


def test_threads_and_execution_mode_are_those_that_were_asked_for(
    triton: Triton, repository: ModelRepository, triton_server: ServerStatus
) -> None:
    def with_(**further: int | None) -> int:
        change = TuneChange(instance_count=1, further=further)
        assert tune(triton, repository, MODEL, change).verified
        deadline = time.monotonic() + 10
        while len(found := threads(triton_server)) != 1 and time.monotonic() < deadline:
            time.sleep(0.05)  # what was served before is still ending
        (count,) = found
        return count

    one = with_(intra_op_thread_count=1)
    # ONNX Runtime's pools hold one thread less than asked: the caller works too.
    assert with_(intra_op_thread_count=4, inter_op_thread_count=3, execution_mode=1) == one + 3 + 2


def test_warm_up_queue_policy_and_priorities_are_served_as_asked(triton: Triton, repository: ModelRepository) -> None:
    further = {
        "model_warmup": "1,4",
        "timeout_action": "DELAY",
        "default_timeout_microseconds": 500_000,
        "allow_timeout_override": True,
        "max_queue_size": 64,
        "priority_levels": 3,
        "default_priority_level": 2,
        "graph_optimization_level": 1,
        "response_cache": True,
    }
    applied = tune(triton, repository, MODEL, TuneChange(dynamic_batching=True, further=further))
    assert applied.verified
    assert dict(applied.served.further).items() >= further.items()
    assert answer(triton, 3.0) == 9.0
    removed = tune(triton, repository, MODEL, TuneChange(further=dict.fromkeys(further)))
    assert removed.verified
    assert not set(further) & set(dict(removed.served.further))


def test_a_gpu_that_is_not_there_is_refused_and_the_model_goes_on(triton: Triton, repository: ModelRepository) -> None:
    assert triton.has_gpu() is False
    with pytest.raises(TritonRefusedError, match=r"no GPUs are available.*is served again"):
        tune(triton, repository, MODEL, TuneChange(further={"instance_kind": "KIND_GPU"}))
    assert answer(triton, 3.0) == 9.0
