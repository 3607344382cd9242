"""What a button does about a finding in the model repository: which files change and how, done and undone.

Belongs here: from a finding to the new content or place of a file, doing it with a record, undoing it from the record.
Never: what is wrong (model_rules, onnx_rules, repository_rules), the worker's jobs.

A new text is offered only where Triton's rules find it better: the finding is gone and no new one of its kind or worse
is there. Nothing is deleted: what is taken out of the repository lies in results/doctor/ until it is put back.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritune import model_config, onnx_model
from tritune.doctor.diagnosis import Remedy, Step
from tritune.errors import InputError, TrituneError
from tritune.model_config import ModelConfig
from tritune.model_rules import ONNX_PLATFORM, Finding
from tritune.onnx_model import OnnxModel
from tritune.plan import MODEL_NAME_PATTERN
from tritune.repository import ModelRepository
from tritune.repository_rules import CONFIG_FILE, MODEL_FILE
from tritune.settings import Settings

_TENSORS = (
    "tensor_name", "tensor_type", "tensor_dims", "batch_written_twice", "input_missing", "auto_complete", "reshape",
    "ragged", "tensor_format", "optional_input", "shape_tensor",
)  # fmt: skip


def find(settings: Settings, repository: ModelRepository, model: str, finding: Finding) -> Remedy | None:
    """What can be done about a finding of `model` by a button; None where only a person can."""
    if finding.code in _LAYOUT:
        steps = _LAYOUT[finding.code](settings, repository.path, model, finding)
        return Remedy(steps[0], (steps[1],)) if steps else None
    return _text(repository, model, finding)


# --- the layout ------------------------------------------------------------------------------------------------------

_Layout = Callable[[Settings, Path, str, Finding], tuple[str, Step] | None]


def _moved(root: Path, path: Path, target: Path) -> tuple[str, Step] | None:
    if not path.exists() or target.exists() or not path.resolve().is_relative_to(root.resolve()):
        return None
    return f"Move it to {target.relative_to(root)}", Step(path, target)


def _set_aside(settings: Settings, root: Path, path: Path) -> tuple[str, Step] | None:
    """Out of the repository, to be put back by undo."""
    if not path.exists() or path == root:
        return None
    return "Take it out of the repository", Step(path, settings.results / "doctor" / "set aside" / path.name)


def _misplaced_config(settings: Settings, root: Path, model: str, finding: Finding) -> tuple[str, Step] | None:
    path = root / finding.seen
    return _moved(root, path, root / model / CONFIG_FILE) or _set_aside(settings, root, path)


def _misnamed_config(settings: Settings, root: Path, model: str, finding: Finding) -> tuple[str, Step] | None:
    path = root / finding.seen
    return _moved(root, path, root / model / CONFIG_FILE) or _set_aside(settings, root, path)


def _misnamed_version(settings: Settings, root: Path, model: str, finding: Finding) -> tuple[str, Step] | None:
    path = root / finding.seen
    if path.name.isascii() and path.name.isdecimal():
        moved = _moved(root, path, path.with_name(str(int(path.name))))
        return moved or _set_aside(settings, root, path)
    return _set_aside(settings, root, path)


def _misplaced_model(settings: Settings, root: Path, model: str, finding: Finding) -> tuple[str, Step] | None:
    path = root / finding.seen
    moved = _moved(root, path, root / model / "1" / MODEL_FILE)
    return moved if finding.severity == "error" and moved else _set_aside(settings, root, path)


def _misnamed_model(settings: Settings, root: Path, model: str, finding: Finding) -> tuple[str, Step] | None:
    found = re.fullmatch(r"(.+/\d+) holds ([^,]+\.onnx) and no (\S+)", finding.seen)
    return _moved(root, root / found[1] / found[2], root / found[1] / found[3]) if found else None


def _stray_file(settings: Settings, root: Path, model: str, finding: Finding) -> tuple[str, Step] | None:
    return _set_aside(settings, root, root / finding.seen)


def _unsafe_name(settings: Settings, root: Path, model: str, finding: Finding) -> tuple[str, Step] | None:
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", model).lstrip(".-")[:64]
    return _moved(root, root / model, root / name) if re.fullmatch(MODEL_NAME_PATTERN, name) else None


_LAYOUT: dict[str, _Layout] = {
    "config_place": _misplaced_config,
    "config_name": _misnamed_config,
    "version_name": _misnamed_version,
    "model_place": _misplaced_model,
    "model_file": _misnamed_model,
    "editor_file": _stray_file,
    "stray_file": _stray_file,
    "model_name": _unsafe_name,
}


# --- config.pbtxt ----------------------------------------------------------------------------------------------------


def _text(repository: ModelRepository, model: str, finding: Finding) -> Remedy | None:
    try:
        entry = repository.entry(model)
        text = repository.config_text(model)
        onnx = onnx_model.inspect(entry.onnx_path) if entry.onnx_path is not None else None
        if text is None:
            if finding.code != "no_config" or onnx is None:
                return None
            new = repository.completed(model, None).text
            return _written(repository, model, "Write config.pbtxt in full", "", new)
        for label, new in _candidates(text, onnx, model, finding):
            if _is_better(text, new, onnx, model, finding):
                return _written(repository, model, label, text, new)
    except TrituneError:
        return None
    return None


def _written(repository: ModelRepository, model: str, label: str, before: str, new: str) -> Remedy:
    step = Step(repository.path / model / CONFIG_FILE, model=model, text=new)
    return Remedy(label, (step,), preview=model_config.diff(before, new))


def _is_better(text: str, new: str, onnx: OnnxModel | None, model: str, finding: Finding) -> bool:
    """Whether the new text lacks the finding and has no fault that the old one, as far as it can be read, has not."""
    old = model_config.text_findings(text, onnx, model)
    now = model_config.text_findings(new, onnx, model)
    gone = (finding.code, finding.seen) not in {(found.code, found.seen) for found in now}
    errors = [sum(found.severity == "error" for found in founds) for founds in (old, now)]
    unreadable = finding.code in ("unknown_field", "unknown_value", "syntax")
    readable = not any(found.code in ("unknown_field", "unknown_value", "syntax") for found in now)
    return gone and (readable if unreadable else errors[1] <= errors[0])


def _candidates(text: str, onnx: OnnxModel | None, model: str, finding: Finding) -> Iterator[tuple[str, str]]:
    """(what the button says, the text then), the mildest first."""
    yield from _other_word(text, finding)
    if finding.code in ("unknown_field", "unknown_value", "syntax"):
        return
    message = model_config.parse(text).message
    changed = type(message)()
    changed.CopyFrom(message)
    label = _change(changed, onnx, model, finding)
    if label:
        yield label, ModelConfig(changed).text


def _change(message: Any, onnx: OnnxModel | None, model: str, finding: Finding) -> str:
    """Change the message; returns what the button says, "" where nothing can be done."""
    code = finding.code
    if code in _TENSORS and onnx is not None:
        _tensors_of(message, onnx, model)
        return "Write inputs and outputs as the ONNX file has them"
    if code == "fixed_batch" and onnx is not None:
        message.max_batch_size = 0
        message.ClearField("dynamic_batching")
        _tensors_of(message, onnx, model)
        return "Switch batching off (max_batch_size 0)"
    if code == "batching_without_batch":
        message.ClearField("dynamic_batching")
        return "Remove dynamic_batching"
    if code == "name_mismatch":
        message.name = model
        return f'Write name: "{model}"'
    if code in ("platform", "no_platform") and onnx is not None:
        message.platform = ONNX_PLATFORM
        message.ClearField("backend")
        return f'Write platform: "{ONNX_PLATFORM}"'
    if code in ("preferred_batch_size", "capped_batches") and message.HasField("dynamic_batching"):
        batching = message.dynamic_batching
        fit = [size for size in batching.preferred_batch_size if 1 <= size <= message.max_batch_size]
        del batching.preferred_batch_size[:]
        if code == "preferred_batch_size":
            batching.preferred_batch_size.extend(fit)
            return "Remove the sizes that do not fit"
        return "Remove preferred_batch_size"
    if code == "instance_group":
        for group in message.instance_group:
            if group.kind != group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_name["KIND_GPU"].number:
                del group.gpus[:]
        return "Remove gpus from it"
    return ""


def _tensors_of(message: Any, onnx: OnnxModel, model: str) -> None:
    """Inputs and outputs from the graph; the label files of outputs that keep their names stay."""
    labels = {tensor.name: tensor.label_filename for tensor in message.output}
    right = model_config.generate(onnx, model, message.max_batch_size).message
    for field in ("input", "output"):
        message.ClearField(field)
        getattr(message, field).extend(getattr(right, field))
    for tensor in message.output:
        tensor.label_filename = labels.get(tensor.name, "")


def _other_word(text: str, finding: Finding) -> Iterator[tuple[str, str]]:
    """The word at the finding's line and column replaced by the one that its next step names."""
    if finding.cause.startswith("The file begins with an invisible mark"):
        yield "Remove the mark", text.lstrip("\ufeff")
        return
    place = re.match(r"line (\d+), column (\d+): (\S+)$", finding.seen)
    right = re.match(r"Write (\w+)(?: instead of \w+)?(?::| without quotes\.|\.)", finding.fix)
    if not place or not right or finding.code not in ("unknown_field", "unknown_value"):
        return
    lines = text.split("\n")
    line, column = int(place[1]) - 1, int(place[2]) - 1
    if line >= len(lines):
        return
    start = sum(len(before) + 1 for before in lines[:line]) + column
    wrong = re.match(r"[\"']?\w+[\"']?", text[start:])
    if wrong is None:
        return
    rest = text[start + len(wrong[0]) :]
    label = f"Write {right[1]} instead of {wrong[0]}"
    yield label, text[:start] + right[1] + rest
    if (inner := _without_list(rest)) is not None:
        yield label, text[:start] + right[1] + inner


def _without_list(rest: str) -> str | None:
    """` [ { … } ] …` without its square brackets: a field that stands once takes no list."""
    opened = re.match(r"\s*:?\s*\[\s*(?=\{)", rest)
    if opened is None:
        return None
    depth = 0
    for index in range(opened.end(), len(rest)):
        depth += (rest[index] == "{") - (rest[index] == "}")
        if depth == 0:
            closed = re.match(r"\s*\]", rest[index + 1 :])
            return " " + rest[opened.end() : index + 1] + rest[index + 1 + closed.end() :] if closed else None
    return None


# --- doing and undoing -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """A remedy that was applied: its record and what it was."""

    record: Path
    label: str
    model: str
    at: float


def apply(settings: Settings, repository: ModelRepository, model: str, remedy: Remedy) -> Done:
    """Do a remedy's steps and record how they are undone. Raises TrituneError; then nothing is recorded."""
    folder = settings.results / "doctor"
    at = time.time()
    log: list[dict[str, Any]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for step in remedy.steps:
            if step.model:
                before = repository.config_text(step.model)
                repository.write_config(step.model, step.text)
                log.append({"model": step.model, "before": before, "after": step.text})
            elif step.target is not None:
                target = _free_place(step.target)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(step.path, target)
                log.append({"from": str(step.path), "to": str(target)})
        number = max((int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()), default=0) + 1
        record = folder / f"{number}.json"
        document = {"label": remedy.label, "model": model, "at": at, "steps": log}
        temporary = record.with_name(f".{record.name}.{os.getpid()}")
        temporary.write_text(json.dumps(document, indent=1))
        temporary.replace(record)
    except OSError as error:
        raise TrituneError(
            f"{remedy.label}: the system refused ({error.strerror or error}: {error.filename}). Check rights and space."
        ) from error
    return Done(record, remedy.label, model, at)


def done(settings: Settings) -> tuple[Done, ...]:
    """What was applied and can be undone, newest first."""
    found = []
    for path in (settings.results / "doctor").glob("*.json"):
        try:
            document = json.loads(path.read_text())
            found.append(Done(path, str(document["label"]), str(document["model"]), float(document["at"])))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return tuple(sorted(found, key=lambda entry: entry.at, reverse=True))


def undo(repository: ModelRepository, entry: Done) -> None:
    """Put back what a remedy changed, and forget its record.

    Raises InputError where it was changed again meanwhile, since undo would then lose that change.
    """
    try:
        steps = json.loads(entry.record.read_text())["steps"]
        for step in reversed(steps):
            if "to" in step:
                _move_back(Path(step["from"]), Path(step["to"]), entry.label)
                continue
            if repository.config_text(step["model"]) != step["after"]:
                raise InputError(
                    f"config.pbtxt of {step['model']} was changed after '{entry.label}', so it is not undone. "
                    "Edit the file by hand."
                )
            if step["before"] is None:
                repository.remove_config(step["model"])
            else:
                repository.write_config(step["model"], step["before"])
        entry.record.unlink()
    except OSError as error:
        raise TrituneError(
            f"'{entry.label}' could not be undone ({error.strerror}: {error.filename}). Check rights and space."
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise TrituneError(f"{entry.record} cannot be understood, so nothing is undone. Remove it.") from error


def _move_back(source: Path, target: Path, label: str) -> None:
    if source.exists() or not target.exists():
        raise InputError(
            f"'{label}' cannot be undone: {source if source.exists() else target} is "
            f"{'there again' if source.exists() else 'gone'}. Move the files by hand."
        )
    source.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(target, source)


def _free_place(target: Path) -> Path:
    """`target`, or with a number behind it where something lies there already."""
    place, number = target, 1
    while place.exists():
        number += 1
        place = target.with_name(f"{target.name} {number}")
    return place
