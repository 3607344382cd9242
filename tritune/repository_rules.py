"""What Triton refuses or ignores in the layout of a model's folder, in plain words.

Belongs here: rules about names and places of files and folders. Never: writing, what a configuration says
(model_rules).

Sources: Triton core `model_lifecycle.cc` (VersionsToLoad), `model_repository_manager.cc`, docs `model_repository.md`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tritune.model_rules import Finding
from tritune.onnx_rules import AUTO_COMPLETE_BATCH_SIZE

if TYPE_CHECKING:
    from tritune.onnx_model import OnnxModel

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.onnx"
_LARGEST_VERSION = 2**63 - 1
_NOT_VERSIONS = ("configs", "warmup", "initial_state")
"""Folders of a model that Triton knows and does not take for versions."""


def version_number(name: str) -> int | None:
    """The version that a folder of this name is; None where Triton ignores it."""
    if not re.fullmatch(r"0|[1-9][0-9]*", name) or int(name) > _LARGEST_VERSION:
        return None
    return int(name)


def stray(name: str) -> Finding:
    """A folder of the repository that is never loaded."""
    return Finding(
        "model_name",
        "error",
        f"the folder {name!r}",
        "Its name is not safe for Triton, whose Python stubs start through a shell, so it is never loaded.",
        "Rename it: up to 64 letters, digits, '_', '.' or '-', beginning with a letter, a digit or '_'.",
    )


def no_config(model: OnnxModel | None) -> Finding:
    """A model without a config.pbtxt: what Triton makes of it."""
    served = (
        f"max_batch_size {AUTO_COMPLETE_BATCH_SIZE} and dynamic_batching"
        if model and model.batchable
        else "no batching"
    )
    return Finding(
        "no_config",
        "info" if model is not None else "error",
        f"no {CONFIG_FILE}",
        f"Triton completes the configuration by itself and serves the model with {served}."
        if model is not None
        else "Without a readable model Triton has nothing to make a configuration from.",
        f"Any change by Tritune writes {CONFIG_FILE} in full.",
    )


def layout(folder: Path, file_name: str | None) -> Iterator[Finding]:
    """The faults of one model's folder. `file_name`: `default_model_filename`, None for model.onnx."""
    name, expected = folder.name, file_name or MODEL_FILE
    children = sorted(folder.iterdir())
    versions = {
        number: path for path in children if path.is_dir() and (number := version_number(path.name)) is not None
    }
    for path in children:
        if path.is_dir() and path.name not in _NOT_VERSIONS and version_number(path.name) is None:
            yield _no_version(name, path.name)
        elif path.is_file() and path.name != CONFIG_FILE:
            yield from _odd_file(name, path.name, bool(versions))
    if not versions:
        yield Finding(
            "no_version",
            "error",
            f"{name} has no version folder",
            "Triton loads nothing without a folder whose name is a number.",
            f"Put the model at {name}/1/{expected}, or use `tritune model add FILE --name {name}`.",
        )
    for number, path in versions.items():
        yield from _version(name, path, expected, newest=number == max(versions))


def missing_versions(asked: tuple[int, ...], versions: tuple[int, ...]) -> Iterator[Finding]:
    """Versions of version_policy { specific } without a folder."""
    for number in asked:
        if number not in versions:
            known = ", ".join(str(version) for version in versions) or "none"
            yield Finding(
                "version_missing",
                "error",
                f"version_policy names version {number}",
                f"There is no such version folder; the model has: {known}.",
                "Publish that version, or name one that exists.",
            )


def _no_version(model: str, folder: str) -> Finding:
    cause, fix = "Triton ignores a folder whose name is not a number.", f"Move {model}/{folder} out of the repository."
    number = re.match(r"\s*[+-]?\d+", folder)
    if folder.isascii() and folder.isdecimal():
        cause = "Triton ignores version folders with leading zeros."
        fix = f"Rename {model}/{folder} to {model}/{int(folder)}."
    elif number:
        cause = f"Triton reads this name as version {int(number.group())} and then does not find that folder."
    return Finding("version_name", "warning", f"{model}/{folder}", cause, fix)


def _odd_file(model: str, name: str, has_versions: bool) -> Iterator[Finding]:
    where = f"{model}/{name}"
    if name.endswith(".onnx"):
        yield Finding(
            "model_place",
            "warning" if has_versions else "error",
            where,
            "Triton looks for the model in a version folder.",
            f"Move it to {model}/1/{MODEL_FILE}.",
        )
    elif re.search(r"\.sw[a-p]$|~$|^#.*#$", name):
        yield Finding(
            "editor_file",
            "warning",
            where,
            "An editor's file inside the model's folder makes Triton reload the whole model for a change of instances.",
            "Close the editor or remove the file.",
        )
    elif name.lower().startswith("config.") and name != CONFIG_FILE:
        fix = f"Rename it to {CONFIG_FILE}, or move it out of the folder."
        yield Finding("config_name", "warning", where, f"Triton reads {CONFIG_FILE} only and ignores this file.", fix)


def _version(model: str, folder: Path, expected: str, *, newest: bool) -> Iterator[Finding]:
    where = f"{model}/{folder.name}"
    if (folder / CONFIG_FILE).exists():
        yield Finding(
            "config_place",
            "error",
            f"{where}/{CONFIG_FILE}",
            f"Triton reads {CONFIG_FILE} in the model's folder only and silently ignores this one; without another "
            f"it serves max_batch_size {AUTO_COMPLETE_BATCH_SIZE} with dynamic_batching.",
            f"Move it to {model}/{CONFIG_FILE}.",
        )
    if (folder / expected).exists():
        return
    others = sorted(path.name for path in folder.iterdir() if path.suffix == ".onnx")
    seen = f"{where} holds {', '.join(others)} and no {expected}" if others else f"{where} holds no {expected}"
    fix = f"Remove {where}, or publish the model again with `tritune model add FILE --name {model}`."
    if len(others) == 1:
        fix = f'Rename {others[0]} to {expected}, or write default_model_filename: "{others[0]}".'
    cause = f"Triton looks for {expected} there, and by default it loads the newest version only."
    yield Finding("model_file", "error" if newest else "warning", seen, cause, fix)
