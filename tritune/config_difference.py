"""Where a server serves a model otherwise than its config.pbtxt asks, leaving out what Triton fills in by itself.

Belongs here: the comparison of two `ModelConfig` protobuf messages. Never: files, servers, rules about one message.

Source of what is filled in: Triton core `model_config_utils.cc` (NormalizeModelConfig, NormalizeInstanceGroup,
AutoCompleteBackendFields).
"""

from __future__ import annotations

from typing import Any

from tritune.model_rules import enum_name, preferred_sizes

_FILLED_BY_TRITON = ("name", "platform", "backend", "runtime", "default_model_filename", "instance_group")
_SEQUENCE_IDLE_US = 1_000_000


def differences(asked: Any, served: Any) -> tuple[str, ...]:
    """One sentence for each difference between two messages; see `model_config.differences`."""
    mine, theirs = _normalised(asked), _normalised(served)
    found = []
    for field in mine.DESCRIPTOR.fields:
        wanted, given = getattr(mine, field.name), getattr(theirs, field.name)
        if field.name in _FILLED_BY_TRITON:
            if field.name == "instance_group" or not wanted or wanted == given:
                continue
        elif field.name in ("input", "output"):
            if not wanted or _tensors(wanted) == _tensors(given):
                continue
        elif field.name == "dynamic_batching":
            found.extend(_batching_differences(mine, theirs))
            continue
        elif _has(mine, field.name) == _has(theirs, field.name) and wanted == given:
            continue
        found.append(f"{field.name}: asked {_short(mine, field.name)}, served {_short(theirs, field.name)}")
    found.extend(_instance_differences(mine, theirs))
    return tuple(found)


def _normalised(message: Any) -> Any:
    """A copy without what Triton's NormalizeModelConfig fills in, so that equal behaviour compares equal."""
    copy = type(message)()
    copy.CopyFrom(message)
    for _, sizes in preferred_sizes(copy):
        if list(sizes) == [copy.max_batch_size]:
            del sizes[:]
    if copy.sequence_batching.max_sequence_idle_microseconds == _SEQUENCE_IDLE_US:
        copy.sequence_batching.ClearField("max_sequence_idle_microseconds")
    policy = copy.version_policy
    if policy.HasField("latest") and policy.latest.num_versions <= 1:
        copy.ClearField("version_policy")
    for memory in ("input_pinned_memory", "output_pinned_memory"):
        if getattr(copy.optimization, memory).enable:
            copy.optimization.ClearField(memory)
    for name in ("optimization", "model_transaction_policy", "response_cache", "model_operations"):
        if not getattr(copy, name).ByteSize():
            copy.ClearField(name)
    return copy


def _has(message: Any, name: str) -> bool:
    return name in {field.name for field, _ in message.ListFields()}


def _short(message: Any, name: str) -> str:
    """One field's value in one line."""
    from google.protobuf import text_format

    value, field = getattr(message, name), message.DESCRIPTOR.fields_by_name[name]
    if field.message_type is None and isinstance(value, str | int | float):
        return f"{value}" if value != "" else "nothing"
    part = type(message)()
    part.CopyFrom(message)
    for other, _ in message.ListFields():
        if other.name != name:
            part.ClearField(other.name)
    text = text_format.MessageToString(part, as_one_line=True, use_short_repeated_primitives=True, as_utf8=True)
    return str(text).strip().removeprefix(f"{name}: ") or "nothing"


def _tensors(tensors: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (tensor.name, tensor.data_type, tuple(tensor.dims), tuple(tensor.reshape.shape)) for tensor in tensors
    )


def _batching_differences(mine: Any, theirs: Any) -> list[str]:
    on, served_on = mine.HasField("dynamic_batching"), theirs.HasField("dynamic_batching")
    if on != served_on:
        words = {True: "on", False: "off"}
        return [f"dynamic_batching: asked {words[on]}, served {words[served_on]}"]
    found = []
    for field in mine.dynamic_batching.DESCRIPTOR.fields:
        wanted, given = getattr(mine.dynamic_batching, field.name), getattr(theirs.dynamic_batching, field.name)
        if wanted != given:
            both = (_short(side.dynamic_batching, field.name) for side in (mine, theirs))
            found.append("{}: asked {}, served {}".format(field.name, *both))
    return found


def _instance_differences(mine: Any, theirs: Any) -> list[str]:
    """Instances per kind, where the counts were asked for; KIND_AUTO is whatever the server chose."""
    asked = [(enum_name(group, "kind"), group.count) for group in mine.instance_group if group.count > 0]
    given = [(enum_name(group, "kind"), group.count) for group in theirs.instance_group]
    if not asked or not given:
        return []
    free = [entry for entry in given if entry not in asked]
    for kind, count in asked:
        if (kind, count) in given:
            continue
        match = next((entry for entry in free if kind in ("KIND_AUTO", entry[0]) and entry[1] == count), None)
        if match is None:
            served = ", ".join(f"{kind} × {count}" for kind, count in given)
            wanted = ", ".join(f"{kind} × {count}" for kind, count in asked).replace("KIND_AUTO × ", "")
            return [f"instance_group: asked {wanted}, served {served}"]
        free.remove(match)
    return []
