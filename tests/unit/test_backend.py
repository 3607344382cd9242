"""The embedded server's onnxruntime backend on real ONNX Runtime sessions, without Triton.

Triton's side (triton_python_backend_utils) is a fake here; tests/integration has the real one. The expected words are
those of triton-inference-server/onnxruntime_backend.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tritune.servers import launch

FLOAT, INT64, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.STRING


class FakeTensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name, self._array = name, np.asarray(array)

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


class FakeRequest:
    def __init__(self, inputs: dict[str, np.ndarray], outputs: tuple[str, ...] = ("y",)) -> None:
        self._inputs, self._outputs = [FakeTensor(name, array) for name, array in inputs.items()], outputs

    def inputs(self) -> list[FakeTensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return list(self._outputs)


class FakeResponse:
    def __init__(self, output_tensors: list[FakeTensor] | None = None, error: str | None = None) -> None:
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors or []}
        self.error = error


@pytest.fixture(scope="module")
def backend() -> Iterator[ModuleType]:
    """The backend's module, imported with a fake of what Triton gives it."""
    fake = ModuleType("triton_python_backend_utils")
    fake.Tensor, fake.InferenceResponse, fake.TritonError = FakeTensor, FakeResponse, str  # type: ignore[attr-defined]
    fake.Logger = SimpleNamespace(log_info=lambda _: None, log_warn=lambda _: None)  # type: ignore[attr-defined]
    sys.modules[fake.__name__] = fake
    sys.path.append(str(launch.BACKEND))  # as Triton's stub does
    spec = importlib.util.spec_from_file_location("tritune_onnxruntime_backend", launch.BACKEND / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(launch.BACKEND))
    del sys.modules[fake.__name__], sys.modules["backend_rules"]


def tensor(backend: ModuleType, name: str, dims: list[int | str], kind: str = "tensor(float)") -> Any:
    return backend.TensorInfo(SimpleNamespace(name=name, type=kind, shape=dims))


def entry(name: str, dims: list[int], kind: str = "TYPE_FP32", **more: Any) -> dict[str, Any]:
    return {"name": name, "data_type": kind, "dims": dims, **more}


# --- completing ----------------------------------------------------------------------------------------------------


def completed(backend: ModuleType, config: dict[str, Any], x: list[int | str], y: list[int | str]) -> dict[str, Any]:
    backend.complete(config, [tensor(backend, "x", x)], [tensor(backend, "y", y)])
    return config


def test_a_batchable_model_gets_batch_size_4_and_dynamic_batching(backend: ModuleType) -> None:
    assert completed(backend, {"name": "m"}, ["n", 3], ["n", "k"]) == {
        "name": "m",
        "max_batch_size": 4,
        "dynamic_batching": {},
        "input": [entry("x", [3])],
        "output": [entry("y", [-1])],
    }


def test_what_is_given_is_kept(backend: ModuleType) -> None:
    given = {"name": "m", "max_batch_size": 1, "output": [entry("y", [7])]}
    config = completed(backend, given, ["n", 3], ["n", 3])
    assert (config["max_batch_size"], "dynamic_batching" in config, config["output"]) == (1, False, [entry("y", [7])])
    config = completed(backend, {"name": "m", "max_batch_size": 8, "sequence_batching": {}}, ["n", 3], ["n", 3])
    assert (config["max_batch_size"], "dynamic_batching" in config) == (8, False)
    config = completed(backend, {"name": "m", "dynamic_batching": {"preferred_batch_size": [2]}}, ["n"], ["n"])
    assert config["dynamic_batching"] == {"preferred_batch_size": [2]}


def test_a_batch_of_scalars_is_reshaped(backend: ModuleType) -> None:
    config = completed(backend, {"name": "m"}, ["n"], ["n", 2])
    assert config["input"] == [entry("x", [1], reshape={"shape": []})]


def test_a_model_without_a_batch_dimension_keeps_its_full_shape(backend: ModuleType) -> None:
    config = completed(backend, {"name": "m", "max_batch_size": 0}, [1, "k"], ["n", 3])
    assert (config["max_batch_size"], "dynamic_batching" in config) == (0, False)
    assert (config["input"], config["output"]) == ([entry("x", [1, -1])], [entry("y", [-1, 3])])
    with pytest.raises(backend.InvalidArgument) as refused:
        completed(backend, {"name": "m", "max_batch_size": 8}, [1, 3], ["n", 3])
    assert str(refused.value) == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )


def test_with_inputs_and_outputs_given_nothing_is_completed(backend: ModuleType) -> None:
    class Given:
        def as_dict(self) -> dict[str, Any]:
            return {"name": "m", "input": [entry("x", [3])], "output": [entry("y", [3])]}

    given = Given()
    assert backend.TritonPythonModel.auto_complete_config(given) is given
    assert not backend.is_complete({"input": [entry("x", [3])], "output": []})


# --- refusing ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "exact"),
    [([3], 8, True), ([3], 8, False), ([-1], 8, False)],
)
def test_shapes_that_fit_are_taken(backend: ModuleType, dims: list[int], max_batch_size: int, exact: bool) -> None:
    sys.modules["backend_rules"].compare_dims(
        "m", tensor(backend, "x", ["n", dims[0]]), dims, max_batch_size, exact=exact
    )
    sys.modules["backend_rules"].compare_dims("m", tensor(backend, "x", [2, *dims]), [2, *dims], 0, exact=exact)


def test_an_input_may_be_narrower_than_the_model_and_an_output_not(backend: ModuleType) -> None:
    wide = tensor(backend, "x", ["n", "k"])
    sys.modules["backend_rules"].compare_dims("m", wide, [25], 8, exact=False)
    with pytest.raises(backend.InvalidArgument) as refused:
        sys.modules["backend_rules"].compare_dims("m", wide, [25], 8, exact=True)
    assert str(refused.value) == (
        "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,-1]) but the model configuration specifies "
        "2 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit tensor shape, "
        "making complete shape [-1,25])"
    )


X, Y = ["n", 3], ["n", 3]
IN, OUT = [entry("x", [3])], [entry("y", [3])]


@pytest.mark.parametrize(
    ("config", "x", "words"),
    [
        (
            {"max_batch_size": 8, "input": [entry("x", [-1, 3])], "output": OUT},
            X,
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
            "specifies 3 dimensions (an initial batch dimension because max_batch_size > 0 followed by the explicit "
            "tensor shape, making complete shape [-1,-1,3])",
        ),
        (
            {"max_batch_size": 0, "input": IN, "output": OUT},
            X,
            "model 'm', tensor 'x': the model expects 2 dimensions (shape [-1,3]) but the model configuration "
            "specifies 1 dimensions (shape [3])",
        ),
        (
            {"max_batch_size": 8, "input": IN, "output": OUT},
            [1, 3],
            "model 'm', tensor 'x': for the model to support batching the shape should have at least 1 dimension and "
            "the first dimension must be -1; but shape expected by the model is [1,3]",
        ),
        (
            {"max_batch_size": 8, "input": [entry("x", [3], "TYPE_INT64")], "output": OUT},
            X,
            "unable to load model 'm', configuration expects datatype TYPE_INT64 for input 'x', model provides "
            "TYPE_FP32",
        ),
        (
            {"max_batch_size": 8, "input": IN, "output": [entry("y", [3], "TYPE_STRING")]},
            X,
            "unable to load model 'm', configuration expects datatype TYPE_STRING for output 'y', model provides "
            "TYPE_FP32",
        ),
        (
            {"max_batch_size": 8, "input": IN, "output": [entry("y", [3], "TYPE_INVALID")]},
            X,
            "unsupported datatype TYPE_INVALID for output 'y' for model 'm'",
        ),
        (
            {"max_batch_size": 8, "input": [entry("z", [3])], "output": OUT},
            X,
            "unexpected inference input 'z', allowed inputs are: x",
        ),
        (
            {"max_batch_size": 8, "input": IN, "output": [entry("308", [3])]},
            X,
            "unexpected inference output '308', allowed outputs are: y",
        ),
        (
            {"max_batch_size": 8, "input": [*IN, entry("z", [3])], "output": OUT},
            X,
            "unable to load model 'm', configuration expects 2 inputs, model provides 1",
        ),
        (
            {"max_batch_size": 8, "input": [*IN, entry("z", [3], optional=True)], "output": OUT},
            X,
            "unable to load model 'm', optional input 'z' is not supported for models that support batching",
        ),
        (
            {"max_batch_size": 0, "input": [entry("x", [2])], "output": [entry("y", [-1, 3])]},
            [],
            "unable to load model 'm', scalar tensor 'x', should only provide 1 in the model configuration when the "
            "model doesn't support batching. Model configuration provided: [2].",
        ),
    ],
)
def test_what_does_not_fit_is_refused_in_nvidias_words(
    backend: ModuleType, config: dict[str, Any], x: list[int | str], words: str
) -> None:
    with pytest.raises(backend.InvalidArgument) as refused:
        backend.validate("m", config, [tensor(backend, "x", x)], [tensor(backend, "y", Y)])
    assert str(refused.value) == words


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"input": [entry("x", [-1], allow_ragged_batch=True)], "output": OUT}, "allow_ragged_batch"),
        ({"input": IN, "output": OUT, "batch_input": [{}]}, "batch_input"),
        ({"input": IN, "output": OUT, "sequence_batching": {"state": [{}]}}, "sequence_batching.state"),
        ({"input": [entry("x", [3], "TYPE_STRING")], "output": [entry("y", [3], "TYPE_BF16")]}, "TYPE_STRING beside"),
    ],
)
def test_what_this_backend_cannot_do_is_refused_with_the_way_out(
    backend: ModuleType, config: dict[str, Any], field: str
) -> None:
    with pytest.raises(
        backend.InvalidArgument, match=f"{field}.* is not supported by the embedded.*NVIDIA's container"
    ):
        backend.validate("m", config, [tensor(backend, "x", X)], [tensor(backend, "y", Y)])


def test_a_model_that_gives_no_tensor_is_refused(backend: ModuleType) -> None:
    with pytest.raises(backend.InvalidArgument) as refused:
        tensor(backend, "z", [], "seq(map(int64,tensor(float)))")
    assert str(refused.value) == "Unsupported ONNX Type 'ONNX_TYPE_SEQUENCE' for I/O 'z', expected 'ONNX_TYPE_TENSOR'."


# --- session options -----------------------------------------------------------------------------------------------


def parameters(**values: str) -> dict[str, Any]:
    return {"parameters": {key: {"string_value": value} for key, value in values.items()}}


@pytest.mark.parametrize(
    ("config", "counts"),
    [
        ({}, (8, 0)),
        ({"instance_group": [{"count": 2}]}, (4, 0)),
        ({"instance_group": [{"count": 2}, {"count": 1}]}, (2, 0)),
        ({"instance_group": [{"count": 16}]}, (1, 0)),
        (parameters(intra_op_thread_count="0"), (8, 0)),
        (parameters(intra_op_thread_count="3", inter_op_thread_count="5"), (3, 5)),
    ],
)
def test_instances_share_the_cores_unless_the_configuration_says_otherwise(
    backend: ModuleType, config: dict[str, Any], counts: tuple[int, int]
) -> None:
    assert backend.thread_counts(config, cores=8) == counts


def test_options_follow_the_configuration(backend: ModuleType) -> None:
    config = {
        **parameters(execution_mode="1", intra_op_thread_count="2", inter_op_thread_count="3", enable_mem_arena="off"),
        "optimization": {"graph": {"level": "1"}},
    }
    options = backend.session_options(config, onnxruntime)
    assert options.execution_mode == onnxruntime.ExecutionMode.ORT_PARALLEL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.graph_optimization_level == onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    assert not options.enable_cpu_mem_arena


@pytest.mark.parametrize(
    ("level", "name"),
    [(-1, "ORT_ENABLE_BASIC"), (0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_graph_levels_mean_what_they_mean_to_nvidias_backend(backend: ModuleType, level: int, name: str) -> None:
    options = backend.session_options({"optimization": {"graph": {"level": level}}}, onnxruntime)
    assert options.graph_optimization_level == getattr(onnxruntime.GraphOptimizationLevel, name)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (
            parameters(execution_mode="2"),
            "Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got 2 .",
        ),
        (parameters(intra_op_thread_count="many"), "failed to convert 'many' to integral number"),
        (parameters(enable_mem_pattern="perhaps"), "failed to convert 'perhaps' to boolean"),
        (
            {"optimization": {"execution_accelerators": {"cpu_execution_accelerator": [{"name": "openvino"}]}}},
            "unknown Execution Accelerator 'openvino' is requested",
        ),
    ],
)
def test_options_that_cannot_be_are_refused_in_nvidias_words(
    backend: ModuleType, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(backend.InvalidArgument) as refused:
        backend.session_options(config, onnxruntime)
    assert str(refused.value) == words


# --- running -------------------------------------------------------------------------------------------------------


def served(
    backend: ModuleType,
    folder: Path,
    nodes: list[onnx.NodeProto],
    x: tuple[int, list[int | str]],
    outputs: dict[str, tuple[int, list[int | str]]],
    config: dict[str, Any],
    initializers: tuple[onnx.TensorProto, ...] = (),
) -> Any:
    """A model that the backend has initialized, from its only version's file."""
    ins = [helper.make_tensor_value_info("x", *x)]
    outs = [helper.make_tensor_value_info(name, *value) for name, value in outputs.items()]
    graph = helper.make_graph(nodes, "g", ins, outs, list(initializers))
    (folder / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "1" / "model.onnx")
    instance = backend.TritonPythonModel()
    instance.initialize(
        {
            "model_name": "m",
            "model_config": json.dumps({"name": "m", **config}),
            "model_repository": str(folder),
            "model_version": "1",
            "model_instance_name": "m_0",
        }
    )
    return instance


class CountingSession:
    """A real session that counts its runs and the outputs asked for."""

    def __init__(self, session: Any) -> None:
        self._session, self.runs = session, []

    def run(self, names: list[str], feed: dict[str, np.ndarray], options: Any) -> Any:
        self.runs.append((tuple(names), {name: array.shape for name, array in feed.items()}))
        return self._session.run(names, feed, options)


@pytest.fixture
def doubling(backend: ModuleType, tmp_path: Path) -> Any:
    """y = x + x and z = x · x, both FP32 [n, 3]."""
    nodes = [helper.make_node("Add", ["x", "x"], ["y"]), helper.make_node("Mul", ["x", "x"], ["z"])]
    config = {"max_batch_size": 8, "input": IN, "output": [*OUT, entry("z", [3])]}
    model = served(backend, tmp_path, nodes, (FLOAT, X), {"y": (FLOAT, Y), "z": (FLOAT, Y)}, config)
    model._session = CountingSession(model._session)
    return model


def rows(*values: float) -> np.ndarray:
    return np.array([[value] * 3 for value in values], np.float32)


def test_the_requests_of_a_batch_are_one_run_and_each_gets_its_own_rows(doubling: Any) -> None:
    requests = [FakeRequest({"x": rows(1)}), FakeRequest({"x": rows(2, 3)}), FakeRequest({"x": rows(4)})]
    answers = doubling.execute(requests)
    assert [answer.error for answer in answers] == [None] * 3
    assert [answer.outputs["y"].tolist() for answer in answers] == [
        rows(2).tolist(),
        rows(4, 6).tolist(),
        rows(8).tolist(),
    ]
    assert doubling._session.runs == [(("y",), {"x": (4, 3)})]


def test_one_request_is_run_without_a_copy(doubling: Any) -> None:
    array = rows(1, 2)
    seen = []
    doubling._run = lambda names, feed: seen.append(feed["x"]) or [feed["x"]]
    doubling.execute([FakeRequest({"x": array})])
    assert np.shares_memory(seen[0], array)


def test_only_the_outputs_that_somebody_asked_for_are_computed(doubling: Any) -> None:
    doubling.execute([FakeRequest({"x": rows(1)}, ("z",))])
    doubling.execute([FakeRequest({"x": rows(1)}, ("z",)), FakeRequest({"x": rows(1)}, ("y",))])
    assert [names for names, _ in doubling._session.runs] == [("z",), ("y", "z")]


def test_a_bad_request_of_a_batch_fails_alone_with_onnx_runtimes_words(backend: ModuleType, tmp_path: Path) -> None:
    table = helper.make_tensor("t", FLOAT, [3], [0, 10, 20])
    config = {
        "max_batch_size": 8,
        "input": [entry("x", [1], "TYPE_INT64", reshape={"shape": []})],
        "output": [entry("y", [1], reshape={"shape": []})],
    }
    gather = [helper.make_node("Gather", ["t", "x"], ["y"])]
    model = served(backend, tmp_path, gather, (INT64, ["n"]), {"y": (FLOAT, ["n"])}, config, (table,))
    good, bad, last = model.execute([FakeRequest({"x": np.array([n])}) for n in (1, 99, 2)])
    assert (good.outputs["y"].tolist(), last.outputs["y"].tolist()) == ([10], [20])
    assert bad.error.startswith("onnx runtime error ")
    assert "99" in bad.error


def test_strings_are_text(backend: ModuleType, tmp_path: Path) -> None:
    config = {
        "max_batch_size": 8,
        "input": [entry("x", [2], "TYPE_STRING")],
        "output": [entry("y", [2], "TYPE_STRING")],
    }
    shape: list[int | str] = ["n", 2]
    same = [helper.make_node("Identity", ["x"], ["y"])]
    model = served(backend, tmp_path, same, (STRING, shape), {"y": (STRING, shape)}, config)
    fine = FakeRequest({"x": np.array([["é".encode(), b""]], object)})
    odd = FakeRequest({"x": np.array([[b"\xff", b"a"]], object)})
    first, second = model.execute([fine, odd])
    assert first.outputs["y"].tolist() == [["é", ""]]
    assert "input 'x' of model 'm' is not UTF-8 text" in second.error


def test_a_scalar_is_one_number_to_triton(backend: ModuleType, tmp_path: Path) -> None:
    config = {"max_batch_size": 0, "input": [entry("x", [1])], "output": [entry("y", [1])]}
    double = [helper.make_node("Add", ["x", "x"], ["y"])]
    model = served(backend, tmp_path, double, (FLOAT, []), {"y": (FLOAT, [])}, config)
    (answer,) = model.execute([FakeRequest({"x": np.array([21], np.float32)})])
    assert answer.outputs["y"].tolist() == [42]


def test_an_output_without_its_batch_is_an_error_not_a_wrong_answer(backend: ModuleType, tmp_path: Path) -> None:
    config = {"max_batch_size": 8, "input": IN, "output": [entry("y", [3])]}
    unique = [helper.make_node("Slice", ["x", "zero", "one"], ["y"])]
    ends = (helper.make_tensor("zero", INT64, [1], [0]), helper.make_tensor("one", INT64, [1], [1]))
    model = served(backend, tmp_path, unique, (FLOAT, X), {"y": (FLOAT, ["k", 3])}, config, ends)
    answers = model.execute([FakeRequest({"x": rows(1)}), FakeRequest({"x": rows(2)})])
    assert [answer.error for answer in answers] == ["model 'm' answered a batch of 2 with outputs of shape [1,3]"] * 2


def test_a_file_that_is_not_there_or_no_onnx_is_refused_in_nvidias_words(backend: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(backend.InvalidArgument) as refused:
        backend.model_file(tmp_path, {"name": "m"})
    assert str(refused.value) == f"unable to find '{tmp_path}/model.onnx' for model instance 'm'"
    (tmp_path / "model.onnx").write_bytes(b"no ONNX at all")
    with pytest.raises(backend.InvalidArgument, match=r"^onnx runtime error 7: Load model from .* failed:"):
        backend.open_session(tmp_path / "model.onnx", onnxruntime.SessionOptions(), onnxruntime)
    (tmp_path / "folder.onnx").mkdir()
    (tmp_path / "folder.onnx" / "model.onnx").touch()
    assert backend.model_file(tmp_path, {"default_model_filename": "folder.onnx"}).parent.name == "folder.onnx"
