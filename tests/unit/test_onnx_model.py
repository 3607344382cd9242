"""An ONNX file: what it says about itself, and what is refused in one sentence."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import onnx.external_data_helper
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritune import onnx_file, onnx_model
from tritune.errors import InputError, OnnxError
from tritune.plan import TensorSpec

FLOAT = TensorProto.FLOAT


def tensor(name: str, shape: Iterable[str | int | None] | None, elem: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, elem, None if shape is None else list(shape))


def model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8, producer_name="hand", producer_version="1"
    )


def linear(batch: str | int = "batch") -> onnx.ModelProto:
    weights = {"w": np.ones((4, 3), np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    return model(nodes, [tensor("x", (batch, 4))], [tensor("y", (batch, 3))], weights)


def save(proto: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.onnx"


def test_inspect_gives_the_signature_with_the_batch_dimension(path: Path) -> None:
    proto = linear()
    proto.metadata_props.add(key="accuracy", value="0.99")
    found = onnx_model.inspect(save(proto, path))
    assert found.inputs == (TensorSpec("x", "FP32", (-1, 4)),)
    assert found.outputs == (TensorSpec("y", "FP32", (-1, 3)),)
    assert (found.opset, found.ir_version, found.producer) == (17, 8, "hand 1")
    assert found.metadata == {"accuracy": "0.99"}
    assert found.batchable
    assert not found.external_data
    assert (found.size_bytes, len(found.sha256)) == (path.stat().st_size, 64)


def test_the_signature_leaves_the_batch_dimension_out_where_the_model_batches(path: Path) -> None:
    found = onnx_model.inspect(save(linear(), path))
    assert found.signature(8).inputs == (TensorSpec("x", "FP32", (4,)),)
    assert found.signature(8).max_batch_size == 8
    assert found.signature(0).inputs == (TensorSpec("x", "FP32", (-1, 4)),)


def test_a_fixed_batch_is_not_batchable_and_says_what_to_do(path: Path) -> None:
    found = onnx_model.inspect(save(linear(1), path))
    assert not found.batchable
    with pytest.raises(InputError, match=r"max_batch_size=8 must be 0: .* fixed batch .* x has the shape \[1,4\]"):
        found.signature(8)
    with pytest.raises(OnnxError, match="Export it again with a dynamic dimension 0"):
        onnx_model.check_dynamic_batch(found)
    assert found.signature(0).outputs == (TensorSpec("y", "FP32", (1, 3)),)


def test_a_scalar_input_is_not_batchable(path: Path) -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", ())], [tensor("y", ())])
    assert not onnx_model.inspect(save(proto, path)).batchable


def test_weights_listed_as_inputs_are_not_inputs(path: Path) -> None:
    proto = linear()
    proto.graph.input.append(tensor("w", (4, 3)))
    assert [spec.name for spec in onnx_model.inspect(save(proto, path)).inputs] == ["x"]


def test_an_output_without_a_shape_gets_the_inferred_one(path: Path) -> None:
    proto = linear()
    proto.graph.output[0].CopyFrom(tensor("y", None))
    assert onnx_model.inspect(save(proto, path)).outputs == (TensorSpec("y", "FP32", (-1, 3)),)


@pytest.mark.parametrize(
    ("elem", "datatype"),
    [
        (TensorProto.INT64, "INT64"),
        (TensorProto.FLOAT16, "FP16"),
        (TensorProto.BFLOAT16, "BF16"),
        (TensorProto.STRING, "BYTES"),
        (TensorProto.BOOL, "BOOL"),
        (TensorProto.UINT8, "UINT8"),
    ],
)
def test_datatypes_are_kserves(path: Path, elem: int, datatype: str) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    found = onnx_model.inspect(save(model([node], [tensor("x", ("n",), elem)], [tensor("y", ("n",), elem)]), path))
    assert found.inputs[0].datatype == found.outputs[0].datatype == datatype


def test_a_datatype_that_triton_does_not_have_is_named(path: Path) -> None:
    elem = TensorProto.COMPLEX64
    node = helper.make_node("Identity", ["x"], ["y"])
    save(model([node], [tensor("x", ("n",), elem)], [tensor("y", ("n",), elem)]), path)
    with pytest.raises(OnnxError, match="input x of type COMPLEX64, which Triton has no datatype for"):
        onnx_model.inspect(path)


def test_an_input_that_is_not_a_tensor_is_refused(path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    node = helper.make_node("SequenceLength", ["x"], ["y"])
    save(model([node], [sequence], [tensor("y", (), TensorProto.INT64)]), path)
    with pytest.raises(OnnxError, match="input x that is not a tensor"):
        onnx_model.inspect(path)


def test_an_input_without_a_shape_is_refused(path: Path) -> None:
    save(model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", None)], [tensor("y", None)]), path)
    with pytest.raises(OnnxError, match="does not say how many dimensions its input x has"):
        onnx_model.inspect(path)


def test_a_model_without_inputs_is_refused(path: Path) -> None:
    node = helper.make_node("Constant", [], ["y"], value=numpy_helper.from_array(np.ones(1, np.float32)))
    save(model([node], [], [tensor("y", (1,))]), path)
    with pytest.raises(OnnxError, match="has no input"):
        onnx_model.inspect(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is empty"),
        (b"hello, this is a text file\n", "not an ONNX model; it looks like text"),
        (b"<!DOCTYPE html><html></html>", "looks like a web page"),
        (b'{"model": 1}', "looks like JSON"),
        (b"PK\x03\x04" + bytes(50), "looks like a zip archive, such as a PyTorch checkpoint"),
        (b"\x80\x02}q\x00.", "looks like a Python pickle"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (bytes(100), "not an ONNX model"),
        (b"\x08\x08", "without a graph"),
        (b"\x08\x08\x12\x07pytorch", "without a graph"),
    ],
)
def test_what_is_not_onnx_is_told_in_one_sentence_with_the_next_step(path: Path, content: bytes, words: str) -> None:
    path.write_bytes(content)
    for look in (onnx_model.inspect, onnx_model.check):
        with pytest.raises(OnnxError) as caught:
            look(path)
        assert words in str(caught.value)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_paths_that_hold_no_file_are_told(tmp_path: Path) -> None:
    with pytest.raises(OnnxError, match="There is no file"):
        onnx_model.inspect(tmp_path / "absent.onnx")
    with pytest.raises(OnnxError, match=r"is a folder\. Give the \.onnx file inside it"):
        onnx_model.inspect(tmp_path)
    with pytest.raises(OnnxError, match="cannot be read"):
        onnx_model.inspect(tmp_path / "nul\0byte")
    with pytest.raises(OnnxError, match="cannot be read"):
        onnx_model.inspect(tmp_path / ("long" * 100))
    (tmp_path / "file").touch()
    with pytest.raises(OnnxError, match=r"cannot be read|There is no file"):
        onnx_model.inspect(tmp_path / "file" / "model.onnx")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OnnxError, match="not a regular file"):
        onnx_model.inspect(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OnnxError, match="cannot be read"):
        onnx_model.inspect(tmp_path / "loop")


def test_a_model_cut_anywhere_is_refused(path: Path) -> None:
    whole = linear().SerializeToString()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(OnnxError):
            onnx_model.check(path)
    path.write_bytes(whole)
    onnx_model.check(path)


def test_a_truncated_model_is_called_cut_short_with_both_sizes(path: Path) -> None:
    whole = linear().SerializeToString()
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OnnxError, match=rf"cut short: it has {len(whole) // 2} bytes and needs at least \d+"):
        onnx_model.inspect(path)


def test_random_bytes_are_never_taken_for_a_model(path: Path) -> None:
    source = random.Random(0)
    for round_ in range(500):
        start = b"\x08\x08" if round_ % 2 else b""  # half of them begin like an ONNX file
        path.write_bytes(start + source.randbytes(source.randrange(1, 60)))
        with pytest.raises(OnnxError):
            onnx_model.inspect(path)


def test_a_model_with_any_byte_changed_is_refused_or_read_and_nothing_else(path: Path) -> None:
    whole = bytearray(linear().SerializeToString())
    for position in range(len(whole)):
        spoiled = bytearray(whole)
        spoiled[position] ^= 0xFF
        path.write_bytes(spoiled)
        with contextlib.suppress(OnnxError):
            onnx_model.check_dynamic_batch(onnx_model.check(path))


def test_a_file_beyond_the_limit_of_protobuf_is_refused_without_being_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(linear(), path)
    monkeypatch.setattr(onnx_file, "PROTOBUF_LIMIT_BYTES", 10)
    with pytest.raises(OnnxError, match="Save it with its weights as external data"):
        onnx_model.inspect(path)


def with_outside_weights(path: Path, location: str = "weights.bin") -> Path:
    proto = linear()
    onnx.external_data_helper.convert_model_to_external_data(proto, location=location, size_threshold=0)
    onnx.save(proto, path)
    return path


def test_outside_weights_are_listed_and_part_of_the_hash(path: Path) -> None:
    first = onnx_model.check(with_outside_weights(path))
    assert first.external_data
    assert first.external_files == ("weights.bin",)
    assert first.size_bytes == path.stat().st_size + 48
    weights = path.parent / "weights.bin"
    weights.write_bytes(bytes(48))
    assert onnx_model.inspect(path).sha256 != first.sha256
    assert onnx_model.check_dynamic_batch(first) == ("x", "h", "y")


def test_missing_or_short_outside_weights_are_named(path: Path) -> None:
    weights = with_outside_weights(path).parent / "weights.bin"
    weights.write_bytes(bytes(47))
    with pytest.raises(OnnxError, match=r"weights\.bin is cut short: it has 47 bytes and model\.onnx needs 48"):
        onnx_model.inspect(path)
    weights.unlink()
    with pytest.raises(OnnxError, match=r"needs its weights in weights\.bin beside it, and that file is missing"):
        onnx_model.inspect(path)


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "", "link", "loop", "nul\0byte"])
def test_outside_weights_must_lie_in_the_models_folder(path: Path, location: str) -> None:
    proto = linear()
    (path.parent / "link").symlink_to("/etc/hostname")
    (path.parent / "loop").symlink_to("loop")
    weight = proto.graph.initializer[0]
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    with pytest.raises(OnnxError, match="outside its own folder"):
        onnx_model.inspect(save(proto, path))


def test_outside_weights_inside_a_subgraph_are_found(path: Path) -> None:
    weight = numpy_helper.from_array(np.ones(1, np.float32))
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="deep.bin")
    branch = helper.make_graph([helper.make_node("Constant", [], ["b"], value=weight)], "b", [], [tensor("b", (1,))])
    node = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    save(model([node], [tensor("x", (1,), TensorProto.BOOL)], [tensor("y", (1,))]), path)
    with pytest.raises(OnnxError, match=r"deep\.bin beside it, and that file is missing"):
        onnx_model.inspect(path)


def test_check_refuses_an_unknown_operator_and_shapes_that_do_not_fit(path: Path) -> None:
    proto = linear()
    proto.graph.node[1].op_type = "Reloo"
    with pytest.raises(OnnxError, match=r"not a valid ONNX model .*Reloo"):
        onnx_model.check(save(proto, path))
    proto = linear()
    proto.graph.input[0].CopyFrom(tensor("x", ("batch", 5)))
    with pytest.raises(OnnxError, match="Incompatible dimensions"):
        onnx_model.check(save(proto, path))


def test_check_accepts_operators_of_another_domain(path: Path) -> None:
    proto = model([helper.make_node("Gelu", ["x"], ["y"], domain="com.microsoft")], [tensor("x", ("n", 2))], [])
    proto.graph.output.append(tensor("y", ("n", 2)))
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    assert onnx_model.check(save(proto, path)).batchable


def test_the_tensors_that_carry_the_batch_are_found_by_inference(path: Path) -> None:
    proto = linear()
    proto.graph.node.append(helper.make_node("Shape", ["h"], ["size"]))
    assert onnx_model.check_dynamic_batch(onnx_model.check(save(proto, path))) == ("x", "h", "y")


def test_a_batch_that_is_lost_in_a_reshape_is_found_and_the_place_named(path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"]),
        helper.make_node("Reshape", ["h", "size"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["y"]),
    ]
    weights = {"size": np.array([1, -1], np.int64)}
    proto = model(nodes, [tensor("x", ("batch", 2, 2))], [tensor("y", ("batch", "n"))], weights)
    found = onnx_model.check(save(proto, path))
    assert found.batchable  # by its own word
    with pytest.raises(OnnxError, match="output y is always 1 after the Reshape that makes flat"):
        onnx_model.check_dynamic_batch(found)


def test_a_constant_that_only_fits_one_batch_size_is_found(path: Path) -> None:
    weights = {"w": np.ones((2, 4), np.float32)}
    node = helper.make_node("Add", ["x", "w"], ["y"])
    proto = model([node], [tensor("x", ("batch", 4))], [tensor("y", ("batch", 4))], weights)
    with pytest.raises(OnnxError, match="does not work with batch size 7"):
        onnx_model.check_dynamic_batch(onnx_model.check(save(proto, path)))


def test_a_batch_taken_from_the_inputs_own_shape_is_dynamic(path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "zero"], ["first"]),
        helper.make_node("Concat", ["first", "rest"], ["size"], axis=0),
        helper.make_node("Reshape", ["x", "size"], ["y"]),
    ]
    weights = {"zero": np.array([0], np.int64), "rest": np.array([-1], np.int64)}
    proto = model(nodes, [tensor("x", ("batch", 2, 2))], [tensor("y", ("batch", 4))], weights)
    assert onnx_model.check_dynamic_batch(onnx_model.check(save(proto, path))) == ("x", "y")


def test_a_difference_from_torch_beyond_the_tolerance_is_told(path: Path) -> None:
    import torch

    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x @ torch.ones(4, 3)) * self.factor

    module = Double()
    module.factor = 1.0
    save(linear(), path)
    assert onnx_model.compare_outputs(module, path) <= 1e-6
    module.factor = 1.001
    with pytest.raises(OnnxError, match=r"differs from torch by .* at batch size 1 and may by 0\.0001"):
        onnx_model.compare_outputs(module, path)
    module.factor = float("nan")
    with pytest.raises(OnnxError, match="differs from torch by nan"):
        onnx_model.compare_outputs(module, path)


def test_a_failed_export_leaves_the_old_file_and_no_rubbish(path: Path) -> None:
    import torch

    class Baked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(2, 4)

    path.write_bytes(b"the good one")
    with pytest.raises(OnnxError):
        onnx_model.export_module(
            Baked(), path, input_shape=(2, 2), input_name="x", output_name="y", opset=17, metadata={}
        )
    assert path.read_bytes() == b"the good one"
    assert [entry.name for entry in path.parent.iterdir()] == ["model.onnx"]


def test_importing_the_module_imports_neither_onnx_nor_torch() -> None:
    code = "import sys, tritune.onnx_model; print(*{'torch', 'onnx', 'onnxruntime', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
