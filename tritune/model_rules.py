"""Triton's rules for a model's configuration, in plain words: what a server would refuse, and what it would do instead.

Belongs here: pure rules over one `ModelConfig` protobuf message, and what a finding is. Never: files,
servers, the text format (model_syntax), the ONNX file (onnx_rules), the model repository's layout (repository).

Source: Triton core `model_config_utils.cc` (ValidateModelConfig, ValidateIOShape, ValidateInstanceGroup).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "info"]

ONNX_PLATFORM = "onnxruntime_onnx"
ONNX_BACKEND = "onnxruntime"

_PLATFORMS = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "pytorch_aoti": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
_WHOLE_NUMBER_PARAMETERS = ("intra_op_thread_count", "inter_op_thread_count", "execution_mode")


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault or remark: what was seen, what it means, the one next step. `cause` and `fix` are sentences."""

    code: str
    severity: Severity
    seen: str
    cause: str
    fix: str

    def to_dict(self) -> dict[str, str]:
        return {
            "code": self.code,
            "severity": self.severity,
            "seen": self.seen,
            "cause": self.cause,
            "fix": self.fix,
        }

    def sentence(self) -> str:
        """Seen, cause and fix as one line, for an error's text."""
        return f"{self.seen}: {self.cause} {self.fix}"


def rules(message: Any, name: str | None = None, *, has_onnx: bool = False) -> tuple[Finding, ...]:
    """What Triton would refuse or do otherwise, whatever the model file holds.

    `name` is the model's folder; `has_onnx`: there is a model.onnx, from which Triton guesses a missing platform.
    """
    found = [*_identity(message, has_onnx, name), *_batching(message), *_instances(message), *_parameters(message)]
    tensors = [*((True, tensor) for tensor in message.input), *((False, tensor) for tensor in message.output)]
    for is_input, tensor in tensors:
        found.extend(_tensor(tensor, is_input, message))
    return (*found, *_repeated_names(message))


def serves_onnx(message: Any) -> bool:
    """Whether the ONNX Runtime backend would serve it (or would be chosen because nothing else is named)."""
    return message.backend in ("", ONNX_BACKEND) and message.platform in ("", ONNX_PLATFORM)


def nearest(wrong: str, names: Iterable[str]) -> str | None:
    """The most similar of `names`, whatever the case; None where nothing is similar."""
    by_lower = {name.lower(): name for name in names}
    close = difflib.get_close_matches(wrong.lower(), by_lower, n=1, cutoff=0.55)
    return by_lower[close[0]] if close else None


def enum_name(message: Any, field: str) -> str:
    """The name of an enum field's value, such as TYPE_FP32."""
    number = getattr(message, field)
    value = message.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number.get(number)
    return str(value.name) if value is not None else str(number)


def shape_text(shape: Iterable[int]) -> str:
    """A shape as config.pbtxt writes it: [-1, 28]."""
    return "[" + ", ".join(str(size) for size in shape) + "]"


def config_type(datatype: str) -> str:
    """KServe's datatype (FP32, BYTES) in the words of config.pbtxt (TYPE_FP32, TYPE_STRING)."""
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _identity(message: Any, has_onnx: bool, name: str | None) -> Iterator[Finding]:
    if name is not None and message.name and message.name != name:
        yield Finding(
            "name_mismatch",
            "error",
            f'name: "{message.name}" in config.pbtxt of the folder {name}',
            "Triton wants the folder's name to equal the model's name.",
            f'Write name: "{name}", or leave the field out.',
        )
    platform, backend = message.platform, message.backend
    right = f'Write platform: "{ONNX_PLATFORM}" for an ONNX model.'
    pair = f'platform: "{platform}", backend: "{backend}"'
    if not platform and not backend:
        yield Finding(
            "no_platform",
            "warning" if has_onnx else "error",
            "neither platform nor backend",
            "Triton must be told which backend serves the model"
            + ("; it guesses ONNX Runtime from model.onnx unless auto-complete is disabled." if has_onnx else "."),
            right,
        )
    elif platform == "ensemble":
        return
    elif not backend and platform not in _PLATFORMS:
        guess = nearest(platform, _PLATFORMS)
        fix = f'Write platform: "{guess}".' if guess and not has_onnx else right
        yield Finding("platform", "error", pair, "Triton knows no such platform.", fix)
    elif backend == ONNX_BACKEND and platform not in ("", ONNX_PLATFORM):
        yield Finding("platform", "error", pair, "Triton refuses this pair of platform and backend.", right)
    elif platform == ONNX_PLATFORM and backend not in ("", ONNX_BACKEND):
        fix = f'Remove the backend, or write backend: "{ONNX_BACKEND}".'
        yield Finding("platform", "error", pair, "Triton would give the ONNX file to another backend.", fix)
    elif has_onnx and not backend and platform != ONNX_PLATFORM:
        yield Finding("platform", "error", pair, "This platform cannot serve an ONNX file.", right)


def _batching(message: Any) -> Iterator[Finding]:
    largest = message.max_batch_size
    if largest < 0:
        fix = "Use 0 for a model without a batch dimension, or the largest batch that one execution may take."
        yield Finding("max_batch_size", "error", f"max_batch_size: {largest}", "It must be >= 0.", fix)
        return
    for where, sizes in preferred_sizes(message):
        for size in sizes:
            if size < 1:
                yield Finding(
                    "preferred_batch_size",
                    "error",
                    f"preferred_batch_size {size} in {where}",
                    "A preferred batch size must be positive.",
                    "Remove it, or use sizes that clients can fill, such as 4, 8.",
                )
            elif size > largest:
                yield preferred_above_maximum(size, largest)
    for sample in message.model_warmup:
        if max(largest, 1) < sample.batch_size:
            yield Finding(
                "warmup_batch_size",
                "error",
                f'model_warmup "{sample.name}" has batch_size {sample.batch_size}, above max_batch_size {largest}',
                "Triton fails to load a model whose warm-up is larger than its largest batch (2.51 even crashes).",
                f"Use batch_size {largest} or less there, or raise max_batch_size to {sample.batch_size}."
                if largest
                else "Use batch_size 1 there.",
            )
    if message.HasField("dynamic_batching"):
        yield from _dynamic_batching(message.dynamic_batching, largest)


def preferred_sizes(message: Any) -> Iterator[tuple[str, Any]]:
    """Where a configuration names preferred batch sizes, and which (protobuf's own lists)."""
    if message.HasField("dynamic_batching"):
        yield "dynamic_batching", message.dynamic_batching.preferred_batch_size
    if message.HasField("sequence_batching") and message.sequence_batching.HasField("oldest"):
        yield "sequence_batching.oldest", message.sequence_batching.oldest.preferred_batch_size


def preferred_above_maximum(size: int, largest: int) -> Finding:
    """Triton: "dynamic batching preferred size must be <= max batch size"."""
    if largest == 0:
        fix = "Remove preferred_batch_size, or give the model a batch dimension and a max_batch_size."
    else:
        fix = f"Use preferred sizes up to {largest}, or raise max_batch_size to {size}."
    return Finding(
        "preferred_batch_size",
        "error",
        f"preferred_batch_size {size} is above max_batch_size {largest}",
        "Triton refuses a preferred size above the largest batch.",
        fix,
    )


def _dynamic_batching(batching: Any, largest: int) -> Iterator[Finding]:
    top = max(batching.preferred_batch_size, default=0)
    if largest == 0:
        yield Finding(
            "batching_without_batch",
            "warning",
            "dynamic_batching with max_batch_size 0",
            "A model without a batch dimension is never batched: each request is executed alone.",
            "Remove dynamic_batching, or re-export with a dynamic batch dimension and set max_batch_size.",
        )
    elif 0 < top < largest and batching.max_queue_delay_microseconds == 0:
        yield Finding(
            "capped_batches",
            "warning",
            f"preferred_batch_size {shape_text(batching.preferred_batch_size)} with max_batch_size {largest}, no delay",
            f"Batches will be capped at {top} < {largest}: without a delay Triton sends exactly a preferred size "
            "as soon as it can, however many requests wait.",
            f"Remove preferred_batch_size (best for most ONNX models), or add {largest} to it, or set a "
            "max_queue_delay_microseconds above 0.",
        )
    levels = batching.priority_levels
    if levels:
        wrong = [level for level in batching.priority_queue_policy if not 1 <= level <= levels]
        if not 1 <= batching.default_priority_level <= levels:
            wrong.insert(0, batching.default_priority_level)
        if wrong:
            yield Finding(
                "priority_level",
                "error",
                f"priority level {wrong[0]} with priority_levels: {levels}",
                f"A priority level must be in the range 1 to {levels}.",
                f"Set default_priority_level (and the keys of priority_queue_policy) to 1 to {levels}.",
            )
    if levels > 1 and batching.preserve_ordering:
        yield Finding(
            "preserve_ordering",
            "error",
            f"preserve_ordering: true with priority_levels: {levels}",
            "Triton allows only one priority level where it preserves the ordering.",
            "Remove one of the two.",
        )


def _instances(message: Any) -> Iterator[Finding]:
    for group in message.instance_group:
        kind = enum_name(group, "kind")
        if kind in ("KIND_CPU", "KIND_MODEL") and group.gpus:
            yield Finding(
                "instance_group",
                "error",
                f"instance_group kind: {kind} with gpus: {shape_text(group.gpus)}",
                f"Triton refuses GPUs for {kind}.",
                "Remove gpus, or use kind: KIND_GPU.",
            )
        if group.count < 0:
            yield Finding(
                "instance_group",
                "warning",
                f"instance_group count: {group.count}",
                "Triton takes its own default for a count below 1.",
                "Use a count of 1 or more, or leave it out.",
            )
        if group.profile and message.platform != "tensorrt_plan":
            yield Finding(
                "instance_group",
                "error",
                f"instance_group profile: {list(group.profile)}",
                "Optimisation profiles exist for TensorRT models only.",
                "Remove profile.",
            )
        if kind == "KIND_GPU":
            yield Finding(
                "needs_gpu",
                "info",
                "instance_group kind: KIND_GPU",
                "A server without a GPU refuses to load the model.",
                "Leave kind out to use a GPU where there is one and the CPU elsewhere.",
            )


def _parameters(message: Any) -> Iterator[Finding]:
    if not serves_onnx(message):
        return
    for key in _WHOLE_NUMBER_PARAMETERS:
        if key not in message.parameters:
            continue
        value = message.parameters[key].string_value
        if not value.strip().lstrip("+-").isdecimal():
            yield Finding(
                "parameter",
                "error",
                f'parameter {key}: "{value}"',
                "ONNX Runtime's backend wants a whole number there.",
                f'Write parameters {{ key: "{key}" value {{ string_value: "1" }} }} with the number that you want.',
            )


def _tensor(tensor: Any, is_input: bool, message: Any) -> Iterator[Finding]:
    """ValidateIOShape and ValidateModelInput/Output of Triton core, for one tensor."""
    what = f"{'input' if is_input else 'output'} {tensor.name or '(without a name)'}"

    def fault(code: str, seen: str, cause: str, fix: str) -> Finding:
        return Finding(code, "error", f"{what}: {seen}", cause, fix)

    if not tensor.name:
        yield fault("tensor_name", "no name", "Triton wants a name.", "Write the tensor's name in the ONNX file.")
    if enum_name(tensor, "data_type") == "TYPE_INVALID":
        yield fault("tensor_type", "no data_type", "Triton wants a data type.", "Write data_type, such as TYPE_FP32.")
    if not tensor.dims:
        fix = "Write dims; for one number a sample write dims: [1] and reshape { shape: [] }."
        yield fault("tensor_dims", "no dims", "Triton wants a shape.", fix)
    wrong = [size for size in (*tensor.dims, *tensor.reshape.shape) if size < 1 and size != -1]
    if wrong:
        cause = "A dimension must be at least 1, or -1 where the request chooses it."
        yield fault("tensor_dims", f"dimension {wrong[0]}", cause, "Use -1 for a dimension of variable size.")
    elif tensor.HasField("reshape") and not _same_elements(tensor, message.max_batch_size):
        seen = f"dims {shape_text(tensor.dims)}, reshape {shape_text(tensor.reshape.shape)}"
        cause = "Both must hold the same number of elements; a reshape cannot add a batch dimension."
        yield fault("reshape", seen, cause, "Remove reshape and write the model's own shape as dims.")
    if is_input and enum_name(tensor, "format") != "FORMAT_NONE" and len(tensor.dims) != 3:
        seen = f"format {enum_name(tensor, 'format')} with {len(tensor.dims)} dims"
        yield fault("tensor_format", seen, "This format wants 3 dims.", "Remove format; ONNX models do not need it.")
    if tensor.is_shape_tensor and message.platform != "tensorrt_plan":
        yield fault("shape_tensor", "is_shape_tensor", "Only TensorRT models have shape tensors.", "Remove it.")
    if is_input and tensor.optional and message.max_batch_size != 0 and serves_onnx(message):
        cause = f"Optional inputs are not supported for a model that batches (max_batch_size {message.max_batch_size})."
        yield fault("optional_input", "optional: true", cause, "Remove optional, or set max_batch_size: 0.")


def _same_elements(tensor: Any, max_batch_size: int) -> bool:
    """Triton's rule: the chunks between variable dimensions hold equally many elements on both sides."""

    def chunks(shape: Sequence[int]) -> list[int]:
        parts: list[list[int]] = [[]]
        for size in shape:
            if size == -1:
                parts.append([])
            else:
                parts[-1].append(size)
        return [math.prod(part) for part in parts]

    if not tensor.reshape.shape and max_batch_size == 0:
        return False
    return chunks(tensor.dims) == chunks(tensor.reshape.shape)


def _repeated_names(message: Any) -> Iterator[Finding]:
    for kind, tensors in (("input", message.input), ("output", message.output)):
        names = [tensor.name for tensor in tensors if tensor.name]
        for name in sorted({name for name in names if names.count(name) > 1}):
            fix = f"Keep one of the {names.count(name)} entries."
            yield Finding("tensor_name", "error", f"{kind} {name} is there twice", "Each name may occur once.", fix)
