"""Where a server serves a model otherwise than its config.pbtxt asks, leaving out what Triton fills in by itself.

Belongs here: the comparison of two `ModelConfig` protobuf messages. Never: files, servers, rules about one message.

Source of what is filled in: Triton core `model_config_utils.cc` (NormalizeModelConfig, NormalizeInstanceGroup,
AutoCompleteBackendFields).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritune.model_rules import enum_name, preferred_sizes, shape_text

_FILLED_BY_TRITON = ("name", "platform", "backend", "runtime", "default_model_filename", "instance_group")
_SEQUENCE_IDLE_US = 1_000_000


def differences(asked: Any, served: Any, versions: Sequence[int] | None = None) -> tuple[str, ...]:
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
        elif field.name == "version_policy" and versions:
            if not _picks(mine.version_policy, versions):
                loaded = ", ".join(str(version) for version in versions)
                found.append(f"version_policy: asked {_short(mine, field.name)}, served version {loaded}")
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


def _picks(policy: Any, versions: Sequence[int]) -> bool:
    """Whether these served versions are what the policy picks, as far as they tell.

    Triton goes on reporting the policy that a version was loaded under, so what is served is the better witness.
    """
    if policy.HasField("specific"):
        return set(policy.specific.versions) == set(versions)
    if policy.HasField("all"):
        return True
    return len(versions) <= max(int(policy.latest.num_versions), 1)


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
    """Instances per kind, where kinds or counts were asked for; KIND_AUTO is whatever the server chose, and so is a
    count of 0."""
    asked = [
        (enum_name(group, "kind"), group.count)
        for group in mine.instance_group
        if group.count > 0 or enum_name(group, "kind") != "KIND_AUTO"
    ]
    given = [(enum_name(group, "kind"), group.count) for group in theirs.instance_group]
    if not asked or not given:
        return []
    free = [entry for entry in given if entry not in asked]
    for kind, count in asked:
        if (kind, count) in given:
            continue
        match = next(
            (entry for entry in free if kind in ("KIND_AUTO", entry[0]) and (count <= 0 or entry[1] == count)), None
        )
        if match is None:
            served = ", ".join(f"{kind} × {count}" for kind, count in given)
            wanted = ", ".join(f"{kind} × {count}" if count > 0 else kind for kind, count in asked)
            wanted = wanted.replace("KIND_AUTO × ", "")
            return [f"instance_group: asked {wanted}, served {served}"]
        free.remove(match)
    wanted_gpus, given_gpus = (
        sorted({gpu for group in side.instance_group for gpu in group.gpus}) for side in (mine, theirs)
    )
    if wanted_gpus and wanted_gpus != given_gpus:
        return [f"instance_group: asked gpus {shape_text(wanted_gpus)}, served gpus {shape_text(given_gpus)}"]
    return []
