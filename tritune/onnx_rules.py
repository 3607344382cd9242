"""Where a config.pbtxt does not fit its ONNX file: the ONNX Runtime backend's rules, in plain words.

Belongs here: pure rules over one `ModelConfig` protobuf message and the signature of an ONNX file. Never: files,
servers, rules that need no ONNX file (model_rules).

Source: Triton's onnxruntime_backend `onnxruntime.cc` (AutoCompleteConfig, ValidateInputs, ValidateOutputs) and
`onnxruntime_utils.cc` (CompareDimsSupported).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tritune.model_rules import Finding, config_type, enum_name, nearest, serves_onnx, shape_text
from tritune.plan import TensorSpec

if TYPE_CHECKING:
    from tritune.onnx_model import OnnxModel

AUTO_COMPLETE_BATCH_SIZE = 4
"""What the ONNX Runtime backend fills in for max_batch_size 0 where it completes a configuration."""


def rules(message: Any, model: OnnxModel) -> Iterator[Finding]:
    """Where the configuration does not fit the ONNX file; nothing where another backend serves the model."""
    if not serves_onnx(message) or message.max_batch_size < 0:
        return
    fixed = fixed_batch((*model.inputs, *model.outputs))
    batches = message.max_batch_size > 0
    if batches and fixed is not None:
        yield Finding(
            "fixed_batch",
            "error",
            f"max_batch_size {message.max_batch_size} with a fixed first dimension in the ONNX file: {fixed}",
            "To batch, the first dimension of every input and output must be free (-1).",
            "Set max_batch_size: 0 and remove dynamic_batching, or re-export with a dynamic batch dimension.",
        )
    if not message.input or not message.output:
        if fixed is None:
            yield _auto_complete(message)
    else:
        yield from _names(message, model)
    for is_input, tensors, specs in ((True, message.input, model.inputs), (False, message.output, model.outputs)):
        by_name = {spec.name: spec for spec in specs}
        for tensor in tensors:
            spec = by_name.get(tensor.name)
            if spec is not None:
                yield from _against_tensor(tensor, spec, is_input, batches)


def _auto_complete(message: Any) -> Finding:
    missing = " and ".join(kind for kind in ("input", "output") if not getattr(message, kind))
    size = message.max_batch_size or AUTO_COMPLETE_BATCH_SIZE
    added = f"max_batch_size {size}"
    if size > 1 and message.WhichOneof("scheduling_choice") is None:
        added += " and dynamic_batching"
    return Finding(
        "auto_complete",
        "warning",
        f"no {missing} in config.pbtxt",
        f"Triton completes the configuration by itself and serves it with {added}, which is not what is written.",
        "Write every input and output in full; any change by Tritune does.",
    )


def _names(message: Any, model: OnnxModel) -> Iterator[Finding]:
    for kind, tensors, specs in (("input", message.input, model.inputs), ("output", message.output, model.outputs)):
        right = [spec.name for spec in specs]
        written = [tensor.name for tensor in tensors]
        unknown = [name for name in written if name and name not in right]
        free = [name for name in right if name not in written]
        missing = len(free) - len(unknown)
        for name in unknown:
            guess = free[0] if len(free) == 1 else nearest(name, free)
            yield Finding(
                "tensor_name",
                "error",
                f"{kind} {name}",
                f"The ONNX file has no {kind} of that name; it has: {', '.join(right)}.",
                f'Write name: "{guess}".' if guess else f"Use one of: {', '.join(free or right)}.",
            )
            if guess:
                free.remove(guess)
        if kind == "input" and missing > 0 and not message.batch_input:
            yield Finding(
                "input_missing",
                "error",
                f"{len(written)} of {len(right)} inputs are written",
                "Triton wants every input of the ONNX file in config.pbtxt.",
                f"Add the missing input: {', '.join(free)}.",
            )


def _against_tensor(tensor: Any, spec: TensorSpec, is_input: bool, batches: bool) -> Iterator[Finding]:
    what = f"{'input' if is_input else 'output'} {tensor.name}"
    written, right_type = enum_name(tensor, "data_type"), config_type(spec.datatype)
    if written not in ("TYPE_INVALID", right_type):
        yield Finding(
            "tensor_type",
            "error",
            f"{what}: data_type {written}",
            f"The ONNX file says {right_type}.",
            f"Write data_type: {right_type}.",
        )
    if batches and spec.shape[:1] != (-1,):
        return
    dims = tuple(tensor.reshape.shape) if tensor.HasField("reshape") else tuple(tensor.dims)
    seen = f"{what}: {'reshape' if tensor.HasField('reshape') else 'dims'} {shape_text(dims)}"
    if is_input and tensor.allow_ragged_batch:
        if spec.shape != (-1,):
            cause = f"A ragged input must have the shape [-1] in the ONNX file, which says {shape_text(spec.shape)}."
            yield Finding("ragged", "error", f"{what}: allow_ragged_batch", cause, "Remove allow_ragged_batch.")
        return
    if not spec.shape:
        if any(size != 1 for size in dims):
            cause = "The ONNX file has a single number (a scalar) there."
            yield Finding("tensor_dims", "error", seen, cause, "Write dims: [1].")
        return
    right = spec.shape[1:] if batches else spec.shape
    if _fits(dims, right, is_input) or any(size < 1 and size != -1 for size in dims) or not tensor.dims:
        return
    yield _wrong_dims(seen, dims, right, spec, is_input, batches)


def _fits(dims: Sequence[int], right: Sequence[int], is_input: bool) -> bool:
    """Triton's compare_exact for outputs; the free dimensions of an input may be narrowed."""
    return len(dims) == len(right) and all(
        mine == theirs or (is_input and theirs == -1) for mine, theirs in zip(dims, right, strict=True)
    )


def _wrong_dims(
    seen: str, dims: tuple[int, ...], right: tuple[int, ...], spec: TensorSpec, is_input: bool, batches: bool
) -> Finding:
    fix = f"Write dims: {shape_text(right)}."
    if not right:
        fix = "Write dims: [1] and reshape { shape: [] }."
    code = "tensor_dims"
    if batches and dims[:1] in ((-1,), (1,)) and _fits(dims[1:], right, is_input):
        code = "batch_written_twice"
        cause = (
            "The batch dimension is written twice: with max_batch_size > 0 Triton puts it before dims by itself "
            f"and so expects {shape_text((-1, *dims))}, and the ONNX file has {shape_text(spec.shape)}."
        )
    elif not batches and len(dims) + 1 == len(right):
        cause = (
            f"With max_batch_size 0 dims is the whole shape, and the ONNX file has {shape_text(spec.shape)}; "
            "the first dimension is missing."
        )
    elif len(dims) != len(right):
        cause = f"The ONNX file has {len(right)} dimensions there, {shape_text(right)}, not {len(dims)}."
    elif is_input:
        cause = f"The ONNX file has {shape_text(right)}: only its free dimensions (-1) may be narrowed."
    else:
        cause = f"The ONNX file has {shape_text(right)}, and outputs must be equal to it, -1 included."
    return Finding(code, "error", seen, cause, fix)


def fixed_batch(tensors: Sequence[TensorSpec]) -> str | None:
    """The tensors whose first dimension is not free, as text; None where every one can batch. Shapes are complete."""
    fixed = [f"{tensor.name} {shape_text(tensor.shape)}" for tensor in tensors if tensor.shape[:1] != (-1,)]
    return ", ".join(fixed) or None
