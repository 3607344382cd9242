"""config.pbtxt as a value: read, generate, change, check, compare. Triton's own protobuf does the reading and writing.

Belongs here: one model's configuration and what can be done with it. Never: files (repository), servers (triton,
deploy), the single rules (model_rules, onnx_rules), the text format (model_syntax).
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tritune import config_difference, knob_rules, knobs, model_rules, model_syntax, onnx_rules
from tritune.errors import ConfigError, InputError, ServerError
from tritune.model_rules import ONNX_PLATFORM, Finding, config_type, enum_name, preferred_sizes, shape_text
from tritune.plan import Configuration, Signature, TensorSpec, TuneChange

if TYPE_CHECKING:
    from tritune.onnx_model import OnnxModel

__all__ = [
    "DEFAULT_MAX_BATCH_SIZE",
    "Finding",
    "ModelConfig",
    "change",
    "complete",
    "diff",
    "differences",
    "findings",
    "from_served",
    "generate",
    "parse",
    "text_findings",
]

DEFAULT_MAX_BATCH_SIZE = 16
"""max_batch_size of a generated configuration whose model can batch."""


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One configuration. `message` is Triton's protobuf message `inference.ModelConfig`; it must not be modified."""

    message: Any

    @property
    def text(self) -> str:
        """The canonical text: fields in the protobuf's order, without comments."""
        return model_syntax.write(self.message)

    @property
    def json(self) -> str:
        """The same as JSON, with the protobuf's field names: what the load API takes."""
        from google.protobuf import json_format

        return str(json_format.MessageToJson(self.message, preserving_proto_field_name=True))

    def copy(self) -> Any:
        """A copy of the message, to be modified."""
        copy = type(self.message)()
        copy.CopyFrom(self.message)
        return copy

    @property
    def configuration(self) -> Configuration:
        """The flat view, the same for a written and a served configuration.

        Triton fills an absent preferred_batch_size with [max_batch_size], so that one list reads as none.
        `instance_count` is the sum over the instance groups, None where Triton chooses.
        """
        message = self.message
        batching = message.dynamic_batching
        preferred = tuple(batching.preferred_batch_size)
        counts = [max(group.count, 0) for group in message.instance_group]
        return Configuration(
            max_batch_size=message.max_batch_size,
            dynamic_batching=message.HasField("dynamic_batching"),
            preferred_batch_size=() if preferred == (message.max_batch_size,) else preferred,
            max_queue_delay_microseconds=batching.max_queue_delay_microseconds,
            instance_count=sum(counts) if counts and all(counts) else None,
            further=knobs.read(message),
        )

    @property
    def signature(self) -> Signature:
        """What requests look like; shapes without the batch dimension where the model batches."""

        def specs(tensors: Any) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(tensor.name, _datatype(tensor), tuple(tensor.dims)) for tensor in tensors)

        return Signature(specs(self.message.input), specs(self.message.output), self.message.max_batch_size)


def parse(text: str) -> ModelConfig:
    """Read a config.pbtxt. Raises ConfigError with line, column, the offending word and the right one."""
    read = model_syntax.read(text)
    if isinstance(read, Finding):
        raise ConfigError(f"config.pbtxt, {read.sentence()}")
    return ModelConfig(read)


def from_served(document: Mapping[str, Any]) -> ModelConfig:
    """The configuration that a server reports (GET /v2/models/M/config); fields unknown to this protobuf are left out.

    Raises ServerError where the document is not a model configuration.
    """
    from google.protobuf import json_format

    message = model_syntax.protobuf().ModelConfig()
    try:
        json_format.ParseDict(document, message, ignore_unknown_fields=True)
    except (json_format.ParseError, TypeError, AttributeError, ValueError) as error:
        raise ServerError(
            f"The server's configuration of the model could not be read: {error}. Is it a Triton server?"
        ) from error
    return ModelConfig(message)


def generate(model: OnnxModel, name: str, max_batch_size: int | None = None) -> ModelConfig:
    """A full configuration for an ONNX file: every input and output, and dynamic batching where the model can batch.

    `max_batch_size` None: 16 where the model can batch, else 0. Raises InputError for a batch size that the model
    cannot take and for a tensor type that Triton does not know.
    """
    fixed = onnx_rules.fixed_batch((*model.inputs, *model.outputs))
    if max_batch_size and fixed is not None:
        raise InputError(_fixed_batch_sentence(f"max_batch_size {max_batch_size}", fixed))
    if max_batch_size is None:
        max_batch_size = DEFAULT_MAX_BATCH_SIZE if fixed is None else 0
    message = model_syntax.protobuf().ModelConfig(
        name=name, platform=ONNX_PLATFORM, max_batch_size=_int32("max_batch_size", max_batch_size)
    )
    if max_batch_size > 0:
        message.dynamic_batching.SetInParent()
    _fill_tensors(message, model)
    return ModelConfig(message)


def complete(config: ModelConfig, model: OnnxModel, name: str) -> ModelConfig:
    """`config` with everything written out that Triton's auto-complete would add, so that nothing is added later.

    As the ONNX Runtime backend does: where inputs or outputs are missing and the model can batch, max_batch_size 0
    becomes 4, and dynamic batching is switched on where no scheduler is named. Raises InputError for a tensor type
    that Triton does not know.
    """
    if not model_rules.serves_onnx(config.message) or (config.message.input and config.message.output):
        return config
    message = config.copy()
    message.name = message.name or name
    if not message.backend:
        message.platform = ONNX_PLATFORM
    if onnx_rules.fixed_batch((*model.inputs, *model.outputs)) is None:
        message.max_batch_size = message.max_batch_size or onnx_rules.AUTO_COMPLETE_BATCH_SIZE
        if message.max_batch_size > 1 and message.WhichOneof("scheduling_choice") is None:
            message.dynamic_batching.SetInParent()
    _fill_tensors(message, model)
    return ModelConfig(message)


def change(config: ModelConfig, change: TuneChange) -> ModelConfig:
    """`config` with the knobs of `change`; every other field stays as it is.

    A new instance group has no kind: Triton then uses a GPU where there is one and the CPU elsewhere. Raises InputError
    where Triton would refuse the result, with the value, the limit and the next step.
    """
    message = config.copy()
    dims_before = [list(tensor.dims) for tensor in message.input]
    if change.max_batch_size is not None and change.max_batch_size != message.max_batch_size:
        _set_max_batch_size(message, change.max_batch_size)
    if change.instance_count is not None:
        _set_instance_count(message, change.instance_count)
    _set_batching(message, change)
    _set_further(message, change, dims_before)
    _refuse_preferred(message, change)
    known = {(finding.code, finding.seen) for finding in _rules(config.message)}
    for finding in _rules(message):
        refused = finding.severity == "error" or (change.further and finding.code in knob_rules.REFUSED_WHEN_ASKED)
        if refused and (finding.code, finding.seen) not in known:
            raise InputError(finding.sentence())
    return ModelConfig(message)


def findings(config: ModelConfig, model: OnnxModel | None, name: str | None) -> tuple[Finding, ...]:
    """What Triton would refuse or do otherwise, errors first. `name`: the model's folder, None where unknown."""
    found = [*model_rules.rules(config.message, name, has_onnx=model is not None), *knob_rules.rules(config.message)]
    if model is not None:
        found.extend(onnx_rules.rules(config.message, model))
    order = ("error", "warning", "info")
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def text_findings(text: str, model: OnnxModel | None, name: str | None) -> tuple[Finding, ...]:
    """`findings` of a text, which may be one that cannot be read: then that is the one finding."""
    read = model_syntax.read(text)
    return (read,) if isinstance(read, Finding) else findings(ModelConfig(read), model, name)


def diff(before: str, after: str) -> str:
    """What changes between two texts, as a unified diff; "" where both say the same.

    A readable `before` is compared in its canonical form, so that layout is no change; a last line names the comments
    that a rewrite loses.
    """
    read = model_syntax.read(before)
    old = before if isinstance(read, Finding) or not before.strip() else model_syntax.write(read)
    lines = list(
        difflib.unified_diff(
            old.splitlines(), after.splitlines(), "config.pbtxt (now)", "config.pbtxt (new)", lineterm=""
        )
    )
    lost = [comment for comment in model_syntax.comments(before) if comment not in after]
    if lines and lost:
        count = "1 comment is" if len(lost) == 1 else f"{len(lost)} comments are"
        lines.append(f"# The file is written anew: {count} not kept ({'; '.join(lost[:3])})")
    return "\n".join(lines) + "\n" if lines else ""


def differences(asked: ModelConfig, served: ModelConfig, versions: Sequence[int] | None = None) -> tuple[str, ...]:
    """What the server serves otherwise than asked, one sentence each; empty where all that was asked is in effect.

    Left out is what Triton fills in or renames by itself: a preferred size of [max_batch_size], the names, kinds and
    counts of instances that nobody asked for, the default version policy, pinned memory, backend and file name.
    `versions` are the model's versions that the server has loaded: they decide about the version policy where they are
    known, since Triton goes on reporting the policy that a version was loaded under.
    """
    return config_difference.differences(asked.message, served.message, versions)


def _datatype(tensor: Any) -> str:
    name = enum_name(tensor, "data_type").removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _int32(name: str, value: int) -> int:
    if not 0 <= value < 2**31:
        raise InputError(f"{name}={value} must be from 0 to {2**31 - 1}. Use a size that fits into memory.")
    return value


def _fixed_batch_sentence(asked: str, fixed: str) -> str:
    return (
        f"{asked} cannot be used: the batch dimension is fixed in {fixed}, and Triton batches only where the first "
        "dimension of every input and output is free (-1). Re-export the model with a dynamic batch dimension."
    )


def _fill_tensors(message: Any, model: OnnxModel) -> None:
    """Write the missing inputs and outputs as Triton's auto-complete does."""
    types = model_syntax.protobuf().DataType
    for tensors, specs in ((message.input, model.inputs), (message.output, model.outputs)):
        if tensors:
            continue
        for spec in specs:
            kind = config_type(spec.datatype)
            if kind not in types.keys():  # noqa: SIM118 (an enum's wrapper, not a dict)
                raise InputError(
                    f"Tensor {spec.name} has the type {spec.datatype}, which Triton cannot serve. "
                    "Add a Cast to a type such as FP32 and export again."
                )
            dims = spec.shape[1:] if message.max_batch_size > 0 else spec.shape
            tensor = tensors.add(name=spec.name, data_type=types.Value(kind), dims=dims or (1,))
            if not dims and message.max_batch_size > 0:
                tensor.reshape.SetInParent()


def _set_max_batch_size(message: Any, size: int) -> None:
    """Change max_batch_size, and where batching as such is switched on or off the dims with it."""
    before, message.max_batch_size = message.max_batch_size, size
    if (before > 0) == (size > 0):
        return
    if size == 0 and message.HasField("dynamic_batching"):
        message.ClearField("dynamic_batching")
    tensors = [*message.input, *message.output]
    if not message.input or not message.output:
        raise InputError(
            f"max_batch_size cannot go from {before} to {size} where config.pbtxt leaves inputs or outputs to Triton's "
            "auto-complete. Write inputs and outputs in full first."
        )
    shapes = [shape for tensor in tensors for shape in _shapes(tensor)]
    if size > 0:
        fixed = [
            f"{tensor.name} {shape_text(shape)}"
            for tensor in tensors
            for shape in _shapes(tensor)
            if not len(shape) or shape[0] != -1
        ]
        if fixed:
            raise InputError(_fixed_batch_sentence(f"max_batch_size {size}", ", ".join(fixed)))
    for shape in shapes:
        sizes = list(shape[1:]) if size > 0 else [-1, *shape]
        del shape[:]
        shape.extend(sizes)
    for tensor in tensors:
        if not tensor.dims:
            tensor.dims.append(1)
            tensor.reshape.SetInParent()
        elif size == 0 and list(tensor.reshape.shape) == [-1]:
            # One number a sample, [1] for requests and [] for the model: without batching it is [-1] for both.
            tensor.ClearField("reshape")
            del tensor.dims[1:]


def _shapes(tensor: Any) -> list[Any]:
    return [tensor.dims, tensor.reshape.shape] if tensor.HasField("reshape") else [tensor.dims]


def _set_instance_count(message: Any, count: int) -> None:
    groups = message.instance_group
    if len(groups) > 1:
        kinds = ", ".join(f"{enum_name(group, 'kind')} × {group.count}" for group in groups)
        raise InputError(
            f"instances={count} is ambiguous: config.pbtxt has {len(groups)} instance groups ({kinds}). "
            "Edit the groups in config.pbtxt, or leave one."
        )
    if message.HasField("ensemble_scheduling"):
        raise InputError(f"instances={count} cannot be used: an ensemble has no instances. Tune its models instead.")
    (groups[0] if groups else groups.add()).count = count


def _set_further(message: Any, change: TuneChange, dims_before: list[list[int]]) -> None:
    """Write the further knobs; the warm-up samples are made anew where the shapes of the inputs changed."""
    changes = dict(change.further)
    if [list(tensor.dims) for tensor in message.input] != dims_before:
        changes.setdefault("model_warmup", knobs.knob("model_warmup").read(message))
    knobs.write(message, changes)


def _rules(message: Any) -> tuple[Finding, ...]:
    return (*model_rules.rules(message), *knob_rules.rules(message))


def _set_batching(message: Any, change: TuneChange) -> None:
    batched = change.preferred_batch_size is not None or change.max_queue_delay_microseconds is not None
    if change.dynamic_batching is False:
        if not (message.input and message.output):
            raise InputError(
                "Dynamic batching cannot be switched off where config.pbtxt leaves inputs or outputs to Triton's "
                "auto-complete, which switches it on again. Write inputs and outputs in full first."
            )
        message.ClearField("dynamic_batching")
        return
    if not batched and not change.dynamic_batching:
        return
    scheduler = message.WhichOneof("scheduling_choice")
    if scheduler not in (None, "dynamic_batching"):
        raise InputError(
            f"Dynamic batching cannot be switched on: the model uses {scheduler}, and Triton allows one of them. "
            f"Remove {scheduler} from config.pbtxt first."
        )
    if message.max_batch_size == 0:
        raise InputError(
            "Dynamic batching cannot be switched on with max_batch_size 0: the model has no batch dimension there. "
            "Set max_batch_size too; where the ONNX file has a fixed batch, re-export with a dynamic batch dimension."
        )
    batching = message.dynamic_batching
    batching.SetInParent()
    if change.preferred_batch_size is not None:
        del batching.preferred_batch_size[:]
        batching.preferred_batch_size.extend(change.preferred_batch_size)
    if change.max_queue_delay_microseconds is not None:
        batching.max_queue_delay_microseconds = change.max_queue_delay_microseconds


def _refuse_preferred(message: Any, change: TuneChange) -> None:
    """Say which of the two numbers was changed and which was there already."""
    for _, sizes in preferred_sizes(message):
        top = max(sizes, default=0)
        if top <= message.max_batch_size:
            continue
        if change.preferred_batch_size is None and change.max_batch_size is not None:
            raise InputError(
                f"max_batch_size {message.max_batch_size} is below preferred_batch_size {top}, which config.pbtxt has "
                f"already. Give preferred sizes up to {message.max_batch_size} (or none) together with it."
            )
        if top not in (change.preferred_batch_size or ()):
            continue
        raise InputError(model_rules.preferred_above_maximum(top, message.max_batch_size).sentence())
