"""Where each further knob stands in a `ModelConfig` protobuf message: how it is read and written there.

Belongs here: one small class for each kind of place; it gives a value of a flat knob and puts one in. Never: labels,
limits and rules (knobs), files, servers. Values are what knobs.check allows; None is "not there".

Names and meaning: Triton common `model_config.proto`, and the README of NVIDIA's onnxruntime_backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

Scalar = bool | int | float | str

WARMUP_NAME = "tritune_batch_"


class Place(Protocol):
    """One place in a message."""

    def read(self, message: Any) -> Scalar | None:
        """The value there, None where nothing (or nothing that a knob could say) is written."""

    def write(self, message: Any, value: Scalar | None) -> None:
        """Put `value` there; None takes it out, together with what is then empty."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """`parameters { key: "…" value { string_value: "…" } }`, whole numbers."""

    key: str

    def read(self, message: Any) -> Scalar | None:
        if self.key not in message.parameters:
            return None
        return _whole(message.parameters[self.key].string_value)

    def write(self, message: Any, value: Scalar | None) -> None:
        if value is None:
            message.parameters.pop(self.key, None)
        else:
            message.parameters[self.key].string_value = str(value)


@dataclass(frozen=True, slots=True)
class Version:
    """`version_policy { specific { versions: [ N ] } }` with one version."""

    def read(self, message: Any) -> Scalar | None:
        versions = message.version_policy.specific.versions
        return int(versions[0]) if len(versions) == 1 else None

    def write(self, message: Any, value: Scalar | None) -> None:
        if value is None and not message.version_policy.HasField("specific"):
            return
        message.ClearField("version_policy")
        if value is not None:
            message.version_policy.specific.versions.append(value)


@dataclass(frozen=True, slots=True)
class GraphLevel:
    """`optimization { graph { level: N } }`; 0 is all optimisations, as nothing is."""

    def read(self, message: Any) -> Scalar | None:
        return int(message.optimization.graph.level) or None

    def write(self, message: Any, value: Scalar | None) -> None:
        if value is not None:
            message.optimization.graph.level = value
        elif message.optimization.HasField("graph"):
            message.optimization.ClearField("graph")
            _tidy(message, "optimization")


@dataclass(frozen=True, slots=True)
class ResponseCache:
    """`response_cache { enable: true }`."""

    def read(self, message: Any) -> Scalar | None:
        return bool(message.response_cache.enable) if message.HasField("response_cache") else None

    def write(self, message: Any, value: Scalar | None) -> None:
        message.ClearField("response_cache")
        if value is not None:
            message.response_cache.enable = value


@dataclass(frozen=True, slots=True)
class Batching:
    """A number in `dynamic_batching { … }`, or, with `policy`, in its `default_queue_policy { … }`; 0 is nothing."""

    field: str
    policy: bool = False

    def read(self, message: Any) -> Scalar | None:
        holder = message.dynamic_batching.default_queue_policy if self.policy else message.dynamic_batching
        value = getattr(holder, self.field)
        descriptor = holder.DESCRIPTOR.fields_by_name[self.field]
        if descriptor.enum_type is not None:
            return str(descriptor.enum_type.values_by_number[value].name) if value else None
        return value or None

    def write(self, message: Any, value: Scalar | None) -> None:
        if value is None and not message.HasField("dynamic_batching"):
            return
        holder = message.dynamic_batching.default_queue_policy if self.policy else message.dynamic_batching
        descriptor = holder.DESCRIPTOR.fields_by_name[self.field]
        if value is None:
            holder.ClearField(self.field)
        elif descriptor.enum_type is not None:
            setattr(holder, self.field, descriptor.enum_type.values_by_name[value].number)
        else:
            setattr(holder, self.field, value)
        if self.policy and not holder.ByteSize():
            message.dynamic_batching.ClearField("default_queue_policy")


@dataclass(frozen=True, slots=True)
class InstanceKind:
    """The kind of the one instance group; KIND_AUTO is nothing."""

    def read(self, message: Any) -> Scalar | None:
        if len(message.instance_group) != 1:
            return None
        group = message.instance_group[0]
        return None if group.kind == group.KIND_AUTO else str(type(group).Kind.Name(group.kind))

    def write(self, message: Any, value: Scalar | None) -> None:
        if value is None and not message.instance_group:
            return
        group = message.instance_group[0] if message.instance_group else message.instance_group.add()
        group.kind = group.KIND_AUTO if value is None else type(group).Kind.Value(value)
        if value != "KIND_GPU":
            del group.gpus[:]
        if not group.ByteSize():
            del message.instance_group[:]


@dataclass(frozen=True, slots=True)
class InstanceGpus:
    """The GPUs of the one instance group, as `0,1`."""

    def read(self, message: Any) -> Scalar | None:
        if len(message.instance_group) != 1 or not message.instance_group[0].gpus:
            return None
        return ",".join(str(gpu) for gpu in message.instance_group[0].gpus)

    def write(self, message: Any, value: Scalar | None) -> None:
        if value is None and not message.instance_group:
            return
        group = message.instance_group[0] if message.instance_group else message.instance_group.add()
        del group.gpus[:]
        group.gpus.extend(numbers(value))
        if not group.ByteSize():
            del message.instance_group[:]


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The name in `optimization { execution_accelerators { gpu_execution_accelerator [ … ] } }`, where there is one."""

    def read(self, message: Any) -> Scalar | None:
        entries = message.optimization.execution_accelerators.gpu_execution_accelerator
        return str(entries[0].name) if len(entries) == 1 else None

    def write(self, message: Any, value: Scalar | None) -> None:
        if value == self.read(message):
            return
        holder = message.optimization.execution_accelerators
        del holder.gpu_execution_accelerator[:]
        if value is not None:
            holder.gpu_execution_accelerator.add(name=value)
            return
        if not holder.ByteSize():
            message.optimization.ClearField("execution_accelerators")
        _tidy(message, "optimization")


@dataclass(frozen=True, slots=True)
class AcceleratorParameter:
    """`parameters { key: "…" value: "…" }` of the GPU accelerator called `engine`; `type_` is the value's."""

    engine: str
    key: str
    type_: type[bool] | type[int] | type[str] = str

    def read(self, message: Any) -> Scalar | None:
        entry = self._entry(message)
        if entry is None or self.key not in entry.parameters:
            return None
        text = str(entry.parameters[self.key])
        if self.type_ is bool:
            return {"1": True, "true": True, "0": False, "false": False}.get(text.lower(), text)
        return _whole(text) if self.type_ is int else text

    def write(self, message: Any, value: Scalar | None) -> None:
        entry = self._entry(message)
        if entry is None:
            return
        if value is None:
            entry.parameters.pop(self.key, None)
        else:
            entry.parameters[self.key] = str(int(value)) if isinstance(value, bool) else str(value)

    def _entry(self, message: Any) -> Any | None:
        entries = message.optimization.execution_accelerators.gpu_execution_accelerator
        return next((entry for entry in entries if entry.name == self.engine), None)


@dataclass(frozen=True, slots=True)
class Warmup:
    """`model_warmup [ … ]`: one sample of zeros for each batch size, as `1,4,16`; others are left alone.

    A free dimension is 1 there, since a sample must have a size.
    """

    def read(self, message: Any) -> Scalar | None:
        ours = [sample.batch_size for sample in message.model_warmup if sample.name.startswith(WARMUP_NAME)]
        return ",".join(str(size) for size in ours) or None

    def write(self, message: Any, value: Scalar | None) -> None:
        others = [sample for sample in message.model_warmup if not sample.name.startswith(WARMUP_NAME)]
        kept = [type(sample).FromString(sample.SerializeToString()) for sample in others]
        del message.model_warmup[:]
        message.model_warmup.extend(kept)
        for size in numbers(value):
            sample = message.model_warmup.add(name=f"{WARMUP_NAME}{size}", batch_size=size)
            for tensor in message.input:
                filled = sample.inputs[tensor.name]
                filled.data_type = tensor.data_type
                filled.dims.extend(1 if dim < 0 else dim for dim in tensor.dims)
                filled.zero_data = True


def numbers(value: Scalar | None) -> tuple[int, ...]:
    """`1,4,16` → (1, 4, 16); None → ()."""
    return tuple(int(part) for part in str(value).split(",")) if value not in (None, "") else ()


def _whole(text: str) -> Scalar:
    """A whole number, or the text where it is none (model_rules names it)."""
    try:
        return int(text)
    except ValueError:
        return text


def _tidy(message: Any, name: str) -> None:
    if not getattr(message, name).ByteSize():
        message.ClearField(name)
