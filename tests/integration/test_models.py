"""Models of many kinds, published as anybody would, served by the real Triton, and answered as ONNX Runtime does."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto as T
from onnx import helper, numpy_helper
from PIL import Image

from loadgen import child
from loadgen.payload import Payload, payloads
from loadgen.samples import Status, read_stream
from tritune import publish, snippets
from tritune.load_plan import Driver, GeneratorPlan, LoadPlan, Protocol
from tritune.servers import ServerStatus
from tritune.settings import Settings
from tritune.shape_mix import parse_shapes
from tritune.triton import Triton

RANDOM = np.random.default_rng(0)
value = helper.make_tensor_value_info


def weights(name: str, *shape: int, dtype: str = "float32") -> onnx.TensorProto:
    return numpy_helper.from_array((RANDOM.random(shape) - 0.5).astype(dtype), name)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], inits: list[Any], *domains: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, outputs, inits)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), *domains], ir_version=8)
    onnx.checker.check_model(made)
    return made


def sentence_embedding() -> onnx.ModelProto:
    """Token numbers and a mask of any length to one normalised vector."""
    node = helper.make_node
    nodes = [
        node("Gather", ["table", "input_ids"], ["words"]),
        node("Cast", ["attention_mask"], ["mask"], to=T.FLOAT),
        node("Unsqueeze", ["mask", "last"], ["wide"]),
        node("Mul", ["words", "wide"], ["kept"]),
        node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
        node("LpNormalization", ["sum"], ["embedding"], axis=1, p=2),
    ]
    inits = [weights("table", 100, 16), numpy_helper.from_array(np.array([2]), "last")]
    inits.append(numpy_helper.from_array(np.array([1]), "middle"))
    ids = [value(name, T.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")]
    return model(nodes, ids, [value("embedding", T.FLOAT, ["batch", 16])], inits)


def image_classifier() -> onnx.ModelProto:
    """Pictures as bytes, channels last, to ten shares."""
    node = helper.make_node
    nodes = [
        node("Cast", ["image"], ["wide"], to=T.FLOAT),
        node("Transpose", ["wide"], ["first"], perm=[0, 3, 1, 2]),
        node("Conv", ["first", "kernel"], ["seen"], strides=[2, 2]),
        node("Relu", ["seen"], ["lit"]),
        node("GlobalAveragePool", ["lit"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Softmax", ["flat"], ["shares"]),
    ]
    images = [value("image", T.UINT8, ["n", 32, 32, 3])]
    return model(nodes, images, [value("shares", T.FLOAT, ["n", 10])], [weights("kernel", 10, 3, 3, 3)])


def tabular() -> onnx.ModelProto:
    """A word, a yes or no and a number in FP64 to a word and a score: operators of ai.onnx.ml."""
    node = helper.make_node
    codes = {"keys_strings": ["red", "blue"], "values_floats": [1.0, 2.0], "default_float": 0.5}
    words = {"keys_int64s": [0, 1], "values_strings": ["no", "yes"], "default_string": "?"}
    nodes = [
        node("LabelEncoder", ["colour"], ["code"], domain="ai.onnx.ml", **codes),
        node("Cast", ["known"], ["bit"], to=T.FLOAT),
        node("Cast", ["price"], ["amount"], to=T.FLOAT),
        node("Sum", ["code", "bit", "amount"], ["score"]),
        node("Cast", ["known"], ["number"], to=T.INT64),
        node("LabelEncoder", ["number"], ["verdict"], domain="ai.onnx.ml", **words),
    ]
    inputs = [value("colour", T.STRING, ["n", 1]), value("known", T.BOOL, ["n", 1]), value("price", T.DOUBLE, ["n", 1])]
    outputs = [value("verdict", T.STRING, ["n", 1]), value("score", T.FLOAT, ["n", 1])]
    return model(nodes, inputs, outputs, [], helper.make_opsetid("ai.onnx.ml", 3))


def half_network() -> onnx.ModelProto:
    """Two layers in FP16."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("MatMul", ["b", "v"], ["y"]),
    ]
    inits = [weights("w", 8, 16, dtype="float16"), weights("v", 16, 4, dtype="float16")]
    return model(nodes, [value("x", T.FLOAT16, ["n", 8])], [value("y", T.FLOAT16, ["n", 4])], inits)


def detector() -> onnx.ModelProto:
    """A picture of any size to as many places and scores as there are: no batch dimension, outputs of dynamic size."""
    nodes = [
        helper.make_node("Greater", ["picture", "limit"], ["lit"]),
        helper.make_node("NonZero", ["lit"], ["places"]),
        helper.make_node("Transpose", ["places"], ["boxes"]),
        helper.make_node("GatherND", ["picture", "boxes"], ["scores"]),
        helper.make_node("Shape", ["scores"], ["count"]),
    ]
    inits = [numpy_helper.from_array(np.array(0.7, np.float32), "limit")]
    outputs = [value("boxes", T.INT64, ["m", 4]), value("scores", T.FLOAT, ["m"]), value("count", T.INT64, [1])]
    return model(nodes, [value("picture", T.FLOAT, [1, 3, "high", "wide"])], outputs, inits)


def sequence() -> onnx.ModelProto:
    """An LSTM over a sequence, batch first."""
    nodes = [
        helper.make_node("Transpose", ["steps"], ["turned"], perm=[1, 0, 2]),
        helper.make_node("LSTM", ["turned", "w", "r"], ["", "hidden"], hidden_size=5),
        helper.make_node("Squeeze", ["hidden", "first"], ["state"]),
    ]
    inits = [weights("w", 1, 20, 3), weights("r", 1, 20, 5), numpy_helper.from_array(np.array([0]), "first")]
    return model(nodes, [value("steps", T.FLOAT, ["n", "t", 3])], [value("state", T.FLOAT, ["n", 5])], inits)


WHOLE = {f"{sign}INT{bits}": f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)}


def whole_numbers() -> onnx.ModelProto:
    """Every type of whole number, as it comes."""
    kinds = {name: getattr(T, kind) for name, kind in WHOLE.items()}
    nodes = [helper.make_node("Identity", [name], [f"same_{name}"]) for name in kinds]
    inputs = [value(name, kind, ["n", 4]) for name, kind in kinds.items()]
    return model(nodes, inputs, [value(f"same_{name}", kind, ["n", 4]) for name, kind in kinds.items()], [])


def brain_float() -> onnx.ModelProto:
    """BF16 in, BF16 and FP32 out."""
    nodes = [helper.make_node("Cast", ["x"], ["wide"], to=T.FLOAT), helper.make_node("Identity", ["x"], ["same"])]
    outputs = [value("wide", T.FLOAT, ["n", 4]), value("same", T.BFLOAT16, ["n", 4])]
    return model(nodes, [value("x", T.BFLOAT16, ["n", 4])], outputs, [])


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "embedding": (
        sentence_embedding,
        {
            "shapes": {"input_ids": (7,), "attention_mask": (7,)},
            "int_ranges": {"input_ids": (0, 99), "attention_mask": (1, 1)},
        },
    ),
    "classifier": (image_classifier, {}),
    "tabular": (tabular, {}),
    "half": (half_network, {}),
    "detector": (detector, {"shapes": {"picture": (1, 3, 9, 11)}}),
    "lstm": (sequence, {"shapes": {"steps": (6, 3)}}),
    "whole": (whole_numbers, {"int_ranges": dict.fromkeys(WHOLE, (0, 100))}),
    "bf16": (brain_float, {}),
}


@pytest.fixture(scope="module")
def served(installation: Settings, triton_server: ServerStatus, tmp_path_factory: Any) -> Iterator[dict[str, Path]]:
    """All of them, published into the running server: name → file."""
    assert triton_server.endpoints is not None
    folder = tmp_path_factory.mktemp("onnx")
    files = {name: folder / f"{name}.onnx" for name in MODELS}

    def add(name: str) -> None:
        onnx.save(MODELS[name][0](), files[name])
        assert publish.add(installation, files[name], name, progress=lambda text: None)["loaded"]

    with ThreadPoolExecutor(4) as pool, Triton(triton_server.endpoints) as triton:
        list(pool.map(add, MODELS))
        yield files
        list(pool.map(triton.unload, MODELS))
    for name in MODELS:
        shutil.rmtree(installation.model_repo / name)


def ask(triton: Triton, protocol: Protocol, name: str, payload: Payload) -> dict[str, np.ndarray[Any, Any]]:
    """The answer as arrays, by NVIDIA's own client."""
    client = importlib.import_module(f"tritonclient.{protocol}")
    address = triton.endpoints.http if protocol is Protocol.HTTP else triton.endpoints.grpc
    inputs = []
    for tensor in payload:
        inputs.append(client.InferInput(tensor.name, list(tensor.shape), tensor.datatype))
        array = snippets.values(tensor)
        # NVIDIA's client wants this type for BF16 since 26.06.
        inputs[-1].set_data_from_numpy(array.astype(ml_dtypes.bfloat16) if tensor.datatype == "BF16" else array)
    with client.InferenceServerClient(address) as connection:
        answer = connection.infer(name, inputs)
    return {spec.name: answer.as_numpy(spec.name) for spec in triton.signature(name).outputs}


def as_text(array: Any) -> Any:
    return np.array([item.decode() for item in array.ravel()]).reshape(array.shape) if array.dtype == object else array


@pytest.mark.parametrize("name", MODELS)
def test_a_model_answers_over_http_and_grpc_as_onnx_runtime_does(
    served: dict[str, Path], triton: Triton, name: str
) -> None:
    signature = triton.signature(name)
    batch = 3 if signature.max_batch_size else 1
    plan = LoadPlan(name, concurrency=1, batch=batch, **MODELS[name][1])
    (payload,) = payloads(signature, plan, count=1)
    feed = {tensor.name: as_text(snippets.values(tensor)) for tensor in payload}
    if name == "bf16":
        expected = {"wide": feed["x"], "same": feed["x"]}
    else:
        session = onnxruntime.InferenceSession(served[name], providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        expected = dict(zip(names, session.run(names, feed), strict=True))
    for protocol in Protocol:
        for output, found in ask(triton, protocol, name, payload).items():
            wanted = expected[output]
            assert found.shape == wanted.shape
            if wanted.dtype == object:
                assert as_text(found).tolist() == wanted.tolist()
            else:
                np.testing.assert_allclose(
                    found.astype(wanted.dtype), wanted, rtol=1e-3, atol=1e-6
                )  # FP16: three digits


def test_the_models_batch_where_their_graphs_can(served: dict[str, Path], triton: Triton) -> None:
    sizes = {name: triton.signature(name).max_batch_size for name in served}
    assert sizes == dict.fromkeys(MODELS, 16) | {"detector": 0}
    assert "dynamic_batching" not in triton.config("detector")


def picture(folder: Path) -> dict[str, Any]:
    """A folder with two pictures of other sizes than the model's."""
    for number in range(2):
        Image.fromarray(RANDOM.integers(0, 255, (40, 50, 3), np.uint8)).save(folder / f"{number}.png")
    return {"input_data": str(folder)}


def mixed(folder: Path) -> dict[str, Any]:
    names = ("input_ids", "attention_mask")
    shapes, mix = parse_shapes([f"{name}:{size}" for name in names for size in ("4@3", "40")])
    return {"shapes": shapes, "shape_mix": mix, "int_ranges": {"input_ids": (0, 99)}}


def arrays(folder: Path) -> dict[str, Any]:
    colours = np.array([["red"], ["blue"], ["green"]])
    np.savez(folder / "rows.npz", colour=colours, known=np.array([[True]] * 3), price=np.ones((3, 1)))
    return {"input_data": str(folder / "rows.npz")}


def nothing(folder: Path) -> dict[str, Any]:
    return {}


LOADS = {
    "pictures": ("classifier", Driver.LOCUST, Protocol.HTTP, picture),
    "mixed shapes": ("embedding", Driver.LOCUST, Protocol.GRPC, mixed),
    "mixed shapes, perf_analyzer": ("embedding", Driver.PERF_ANALYZER, Protocol.HTTP, mixed),
    "strings from NumPy": ("tabular", Driver.LOCUST, Protocol.HTTP, arrays),
    "strings from NumPy, perf_analyzer": ("tabular", Driver.PERF_ANALYZER, Protocol.GRPC, arrays),
    "BF16": ("bf16", Driver.LOCUST, Protocol.GRPC, nothing),
    "BF16, perf_analyzer": ("bf16", Driver.PERF_ANALYZER, Protocol.GRPC, nothing),
    "FP16, perf_analyzer": ("half", Driver.PERF_ANALYZER, Protocol.HTTP, nothing),
    "no batch": ("detector", Driver.LOCUST, Protocol.HTTP, lambda folder: MODELS["detector"][1]),
    "no batch, perf_analyzer": ("detector", Driver.PERF_ANALYZER, Protocol.GRPC, lambda f: MODELS["detector"][1]),
}


@pytest.mark.parametrize(("name", "driver", "protocol", "options"), LOADS.values(), ids=LOADS)
def test_a_load_on_it_has_no_failed_request(
    served: dict[str, Path],
    triton: Triton,
    tmp_path: Path,
    name: str,
    driver: Driver,
    protocol: Protocol,
    options: Callable[[Path], dict[str, Any]],
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    checked = {"check_share": 1.0} if driver is Driver.LOCUST else {}
    plan = LoadPlan(name, driver, protocol, concurrency=4, duration_s=0.5, warmup_s=0.2, **checked, **options(data))
    made = child.start(GeneratorPlan(plan, triton.endpoints, triton.signature(name)), tmp_path / "run")
    try:
        made.wait(60)
    finally:
        made.cancel()
    samples = read_stream(tmp_path / "run" / "samples.arrow")
    sent = samples.status[samples.status != Status.UNSENT]
    assert set(sent.tolist()) == {Status.OK}, made.outcome().errors
    assert len(sent) > 20
