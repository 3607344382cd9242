"""An ONNX file: its signature, whether Triton can batch it, whether it is sound, and making one from a torch module.

Belongs here: what any ONNX file has. Never: one network in particular (mnist), Triton's configuration (model_config),
the repository. onnx, onnxruntime and torch are imported where they are used, so that importing this module stays quick.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tritune import onnx_file
from tritune.errors import InputError, OnnxError, TrituneError
from tritune.plan import Signature, TensorSpec

if TYPE_CHECKING:
    import onnx
    import torch

DEFAULT_OPSET = 17
MIN_OPSET = 9
MAX_OPSET = 24
TOLERANCE = 1e-4
_EXPORTER_MAX_OPSET = 20
_BATCHES = (7, 11)
"""Two sizes to infer shapes with; odd ones, so that a fixed dimension is hardly mistaken for the batch."""

_DATATYPES = {
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "FLOAT16": "FP16",
    "BFLOAT16": "BF16",
    "INT8": "INT8",
    "INT16": "INT16",
    "INT32": "INT32",
    "INT64": "INT64",
    "UINT8": "UINT8",
    "UINT16": "UINT16",
    "UINT32": "UINT32",
    "UINT64": "UINT64",
    "BOOL": "BOOL",
    "STRING": "BYTES",
}


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """What an ONNX file says about itself.

    Shapes hold every dimension, the batch dimension included; -1 is a dimension chosen by the request. `opset` is that
    of the standard operators (0 where the model uses none). `external_files` are the weights beside the file, relative
    to its folder; `sha256` and `size_bytes` cover the file and those.
    """

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset: int
    ir_version: int
    producer: str
    metadata: Mapping[str, str]
    sha256: str
    size_bytes: int
    external_files: tuple[str, ...] = field(default=())

    @property
    def external_data(self) -> bool:
        """Whether weights lie in files beside the model."""
        return bool(self.external_files)

    @property
    def batchable(self) -> bool:
        """Whether dimension 0 of every input and output is dynamic: Triton's condition for max_batch_size > 0."""
        return self.fixed_batch is None

    @property
    def fixed_batch(self) -> TensorSpec | None:
        """The first input or output that keeps the model from being batched."""
        tensors = (*self.inputs, *self.outputs)
        return next((tensor for tensor in tensors if tensor.shape[:1] != (-1,)), None)

    def signature(self, max_batch_size: int) -> Signature:
        """What a request looks like: the batch dimension is left out of the shapes where `max_batch_size` > 0.

        Raises InputError where the model cannot be batched.
        """
        if max_batch_size <= 0:
            return Signature(self.inputs, self.outputs, 0)
        if (tensor := self.fixed_batch) is not None:
            raise InputError(f"max_batch_size={max_batch_size} must be 0: {_fixed_batch_text(self.path, tensor)}")
        inputs, outputs = (
            tuple(TensorSpec(tensor.name, tensor.datatype, tensor.shape[1:]) for tensor in tensors)
            for tensors in (self.inputs, self.outputs)
        )
        return Signature(inputs, outputs, max_batch_size)


def inspect(path: Path) -> OnnxModel:
    """What the ONNX file at `path` says about itself; weights outside the file are not loaded, only hashed.

    Raises OnnxError with one sentence for a file that is missing, empty, a folder, cut short, not ONNX, that names
    weights which are not there, or whose inputs and outputs Triton has no datatype or shape for.
    """
    return _describe(Path(path), onnx_file.read(Path(path), with_weights=False))


def check(path: Path) -> OnnxModel:
    """`inspect`, then onnx.checker and shape inference. Raises OnnxError with the first fault."""
    import onnx
    import onnx.checker
    import onnx.shape_inference

    path = Path(path)
    proto = onnx_file.read(path, with_weights=False)
    model = _describe(path, proto)
    try:
        onnx.checker.check_model(os.fspath(path))
        # Weights that were left outside cannot be looked at, so what depends on their values stays unknown.
        onnx.shape_inference.infer_shapes(
            proto, check_type=True, strict_mode=not model.external_data, data_prop=not model.external_data
        )
    except Exception as error:  # both raise plain subclasses of Exception
        raise OnnxError(
            f"{path} is not a valid ONNX model ({_one_line(error)}). Export it again and check it with onnx.checker."
        ) from error
    return model


def check_dynamic_batch(model: OnnxModel) -> tuple[str, ...]:
    """The names of all tensors whose dimension 0 is the batch, in the graph's order.

    Shapes are inferred once for each of two batch sizes; a tensor carries the batch where its dimension 0 follows.
    Raises OnnxError where an input or output has a fixed dimension 0, or is declared dynamic and is not.
    """
    if (tensor := model.fixed_batch) is not None:
        raise OnnxError(_fixed_batch_text(model.path, tensor))
    proto = onnx_file.read(model.path, with_weights=False)
    low, high = (_shapes_at(proto, model, batch) for batch in _BATCHES)
    carriers = {
        name for name, shape in low.items() if (shape[:1], high.get(name, ())[:1]) == ((_BATCHES[0],), (_BATCHES[1],))
    }
    producers = {output: node for node in proto.graph.node for output in node.output}
    for output in model.outputs:
        size = next(iter(low.get(output.name, ())), None)
        if output.name in carriers or size is None:
            continue
        node = _where_lost(output.name, producers, carriers)
        place = f" after the {node.op_type} that makes {node.output[0]}" if node is not None else ""
        raise OnnxError(
            f"{model.path} declares a dynamic batch, but dimension 0 of its output {output.name} is always "
            f"{size}{place}. Export it again without sizes of the example input baked in "
            "(such as `x.view(1, -1)`)."
        )
    order = [value.name for value in proto.graph.input] + list(producers)
    return tuple(name for name in order if name in carriers)


def compare_outputs(
    module: torch.nn.Module,
    path: Path,
    batches: Sequence[int] = (1, 3, 32),
    tolerance: float = TOLERANCE,
) -> float:
    """The largest absolute difference between the module in torch and the file in onnxruntime, over random inputs of
    each batch size (uniform in 0..1, seed 0). The module is put into evaluation mode.

    Raises OnnxError where it exceeds `tolerance` or is not a number.
    """
    import numpy as np
    import onnxruntime
    import torch

    model = inspect(path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(os.fspath(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise OnnxError(f"onnxruntime cannot load {path} ({_one_line(error)}). Choose a lower opset.") from error
    random = np.random.default_rng(0)
    module.eval()
    largest = 0.0
    for batch in batches:
        arrays = [random.random((batch, *tensor.shape[1:]), dtype=np.float32) for tensor in model.inputs]
        with torch.inference_mode():
            answer = module(*[torch.from_numpy(array) for array in arrays])
        expected = [answer] if isinstance(answer, torch.Tensor) else list(answer)
        try:
            feed = {tensor.name: array for tensor, array in zip(model.inputs, arrays, strict=True)}
            found = session.run([tensor.name for tensor in model.outputs], feed)
        except Exception as error:
            raise OnnxError(
                f"onnxruntime cannot run {path} at batch size {batch} ({_one_line(error)}). Export it again."
            ) from error
        for mine, theirs in zip(expected, found, strict=True):
            same = mine.shape == theirs.shape
            difference = float(np.max(np.abs(mine.numpy() - theirs))) if same else float("nan")
            if not difference <= tolerance:
                raise OnnxError(
                    f"{path} differs from torch by {difference:.2g} at batch size {batch} and may by {tolerance:g}. "
                    "Export it with another opset or without simplification."
                )
            largest = max(largest, difference)
    return largest


def export_module(
    module: torch.nn.Module,
    target: Path,
    *,
    input_shape: tuple[int, ...],
    input_name: str,
    output_name: str,
    opset: int,
    metadata: Mapping[str, str],
    simplify: bool = False,
) -> OnnxModel:
    """Write a module of one float32 input (batch, *input_shape) and one output as a checked ONNX file at `target`.

    Weights are inside, constants are folded, dimension 0 is dynamic. `target` appears only when onnx.checker, shape
    inference, the dynamic batch on every operator's output and the comparison with torch have passed; the largest
    difference is in the metadata as `max_abs_difference`. The same input gives the same bytes.

    Raises InputError for an opset outside MIN_OPSET..MAX_OPSET, OnnxError where a check fails.
    """
    if isinstance(opset, bool) or not isinstance(opset, int) or not MIN_OPSET <= opset <= MAX_OPSET:
        raise InputError(
            f"opset={opset} must be a whole number from {MIN_OPSET} to {MAX_OPSET}. {DEFAULT_OPSET} runs on every "
            "Triton since 2022; Triton 24.06 takes up to 21."
        )
    module.eval()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".export-", dir=target.parent) as folder:
            draft = Path(folder) / target.name
            proto = _convert(module, draft, input_shape, input_name, output_name, opset)
            if simplify:
                proto = _simplify(proto)
            _write(proto, draft)
            carriers = check_dynamic_batch(check(draft))
            fixed = [name for node in proto.graph.node for name in node.output if name not in carriers]
            if fixed:
                raise OnnxError(f"The export fixed dimension 0 of {', '.join(fixed)}. Choose another opset.")
            figures = {**metadata, "max_abs_difference": f"{compare_outputs(module, draft):.1e}"}
            for key, value in figures.items():
                proto.metadata_props.add(key=key, value=value)
            _write(proto, draft)
            check(draft)
            draft.replace(target)
    except OSError as error:
        raise TrituneError(
            f"The model could not be written to {target} ({error.strerror}). Make room there, or make it writable."
        ) from error
    return inspect(target)


def _convert(
    module: torch.nn.Module,
    draft: Path,
    input_shape: tuple[int, ...],
    input_name: str,
    output_name: str,
    opset: int,
) -> onnx.ModelProto:
    """The module as ONNX, by way of the file `draft`.

    The TorchScript exporter writes each opset up to 20 directly. (The newer one writes 18 and converts down, which
    fails below 16, and logs warnings.) Higher opsets come from it through onnx's version converter.
    """
    import onnx
    import onnx.helper
    import onnx.version_converter
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "legacy exporter": see above
        torch.onnx.export(
            module,
            (torch.zeros(2, *input_shape),),
            draft,
            dynamo=False,
            opset_version=min(opset, _EXPORTER_MAX_OPSET),
            do_constant_folding=True,
            input_names=[input_name],
            output_names=[output_name],
            dynamic_axes={input_name: {0: "batch"}, output_name: {0: "batch"}},
        )
    proto = onnx_file.read(draft)
    if opset > _EXPORTER_MAX_OPSET:
        proto = onnx.version_converter.convert_version(proto, opset)
        proto.ir_version = max(proto.ir_version, onnx.helper.find_min_ir_version_for(proto.opset_import))
    return proto


def _simplify(proto: onnx.ModelProto) -> onnx.ModelProto:
    import onnxslim

    try:
        slim: onnx.ModelProto = onnxslim.slim(proto)
    except Exception as error:
        raise OnnxError(f"onnxslim could not simplify the model ({_one_line(error)}). Export without it.") from error
    return slim


def _write(proto: onnx.ModelProto, path: Path) -> None:
    with path.open("wb") as file:
        file.write(proto.SerializeToString(deterministic=True))
        file.flush()
        os.fsync(file.fileno())


def _describe(path: Path, proto: onnx.ModelProto) -> OnnxModel:
    graph = proto.graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = tuple(_spec(path, value, "input") for value in graph.input if value.name not in weights)
    if not inputs:
        raise OnnxError(f"{path} has no input, so no request could be sent to it. Export it with one.")
    outputs = _with_inferred_shapes(proto)
    files = onnx_file.external_files(path, proto)
    digest = hashlib.sha256()
    size = 0
    try:
        for part in (path, *(path.parent / name for name in files)):
            with part.open("rb") as file:
                found = hashlib.file_digest(file, "sha256")
            digest = found if not files else digest
            if files:
                digest.update(found.digest())
            size += part.stat().st_size
    except OSError as error:
        raise OnnxError(f"{error.filename} cannot be read ({error.strerror}). Check its permissions.") from error
    return OnnxModel(
        path=path,
        inputs=inputs,
        outputs=tuple(_spec(path, value, "output") for value in outputs),
        opset=max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0),
        ir_version=proto.ir_version,
        producer=" ".join(part for part in (proto.producer_name, proto.producer_version) if part),
        metadata={entry.key: entry.value for entry in proto.metadata_props},
        sha256=digest.hexdigest(),
        size_bytes=size,
        external_files=files,
    )


def _with_inferred_shapes(proto: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    import onnx.shape_inference

    declared = list(proto.graph.output)
    if all(value.type.tensor_type.HasField("shape") for value in declared):
        return declared
    try:
        return list(onnx.shape_inference.infer_shapes(proto).graph.output)
    except Exception:  # an unsound graph: the missing shape is what the caller reports
        return declared


def _spec(path: Path, value: onnx.ValueInfoProto, role: str) -> TensorSpec:
    import onnx

    tensor = value.type.tensor_type
    if value.type.WhichOneof("value") != "tensor_type":
        raise OnnxError(f"{path} has an {role} {value.name} that is not a tensor, which Triton cannot serve.")
    known = tensor.elem_type in onnx.TensorProto.DataType.values()
    datatype = onnx.TensorProto.DataType.Name(tensor.elem_type) if known else str(tensor.elem_type)
    if datatype not in _DATATYPES:
        raise OnnxError(
            f"{path} has an {role} {value.name} of type {datatype}, which Triton has no datatype for. "
            "Export it with a Cast to FLOAT."
        )
    if not tensor.HasField("shape"):
        raise OnnxError(
            f"{path} does not say how many dimensions its {role} {value.name} has, and Triton must know. "
            "Export it with a shape, or write one with onnx.shape_inference."
        )
    dims = tuple(dim.dim_value if dim.WhichOneof("value") == "dim_value" else -1 for dim in tensor.shape.dim)
    return TensorSpec(value.name, _DATATYPES[datatype], tuple(max(dim, -1) for dim in dims))


def _shapes_at(proto: onnx.ModelProto, model: OnnxModel, batch: int) -> dict[str, tuple[int | None, ...]]:
    """Inferred shapes of all tensors when every input's dimension 0 is `batch`; None is an unknown dimension."""
    import onnx
    import onnx.shape_inference

    fixed = onnx.ModelProto()
    fixed.CopyFrom(proto)
    del fixed.graph.value_info[:]
    names = {tensor.name for tensor in model.inputs}
    for value in fixed.graph.input:
        if value.name in names:
            value.type.tensor_type.shape.dim[0].dim_value = batch
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    try:
        graph = onnx.shape_inference.infer_shapes(fixed, strict_mode=not model.external_data, data_prop=True).graph
    except Exception as error:
        raise OnnxError(
            f"{model.path} declares a dynamic batch and does not work with batch size {batch} ({_one_line(error)}). "
            "Export it again without sizes of the example input baked in."
        ) from error
    return {
        value.name: tuple(
            dim.dim_value if dim.HasField("dim_value") else None for dim in value.type.tensor_type.shape.dim
        )
        for value in (*graph.input, *graph.value_info, *graph.output)
    }


def _where_lost(name: str, producers: Mapping[str, onnx.NodeProto], carriers: set[str]) -> onnx.NodeProto | None:
    """The operator, looking back from the tensor `name`, that took in the batch and did not pass it on."""
    waiting, seen = [name], set[str]()
    while waiting:
        node = producers.get(waiting.pop(0))
        if node is None or node.output[0] in seen:
            continue
        if carriers.intersection(node.input):
            return node
        seen.add(node.output[0])
        waiting.extend(node.input)
    return None


def _fixed_batch_text(path: Path, tensor: TensorSpec) -> str:
    shape = ",".join(str(dim) for dim in tensor.shape)
    return (
        f"{path} has a fixed batch dimension: its tensor {tensor.name} has the shape [{shape}]. Export it again with a "
        "dynamic dimension 0 on every input and output, or serve it unbatched with max_batch_size 0."
    )


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:299] + "…"
