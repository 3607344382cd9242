"""The model repository: every rule of layout and configuration for every model, and what lies beside the models.

Belongs here: going through the folder and attaching what can be done. Never: the rules of one model (repository).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tritune.doctor import remedies
from tritune.doctor.diagnosis import Area, Checked, Diagnosis, Job, Remedy, Report
from tritune.errors import TrituneError
from tritune.model_rules import Finding
from tritune.plan import JobKind
from tritune.repository import ModelRepository
from tritune.repository_rules import CONFIG_FILE, MODEL_FILE, version_number
from tritune.settings import Settings


def diagnose(settings: Settings) -> Report:
    """The findings of the whole repository, and the models that are in order."""
    repository = ModelRepository(settings.model_repo)
    found: list[Diagnosis] = []
    checked: list[Checked] = []
    try:
        entries = repository.models()
        found += [_found(finding) for finding in _root(repository.path)]
        for finding in repository.strays():
            folder = finding.seen.partition(" ")[2].removeprefix("folder ").strip("'")
            found.append(_with_remedy(settings, repository, folder, finding))
    except TrituneError as error:
        return Report((_found(_unreadable(repository.path, error)),))
    if not entries and not found:
        finding = Finding(
            "no_model", "info", f"{repository.path} holds no model", "A Triton that reads it has nothing to serve.",
            "Build MNIST, or add an ONNX file: `tritune model build`, `tritune model add FILE`.",
        )  # fmt: skip
        remedy = Remedy("Build the MNIST model", job=Job(JobKind.MODEL_BUILD, {}))
        found.append(Diagnosis(finding, Area.REPOSITORY, remedy=remedy))
    for entry in entries:
        try:
            findings = repository.check(entry.name)
            findings += tuple(_nested(repository.path / entry.name))
        except (TrituneError, OSError) as error:
            findings = (_unreadable(repository.path / entry.name, error),)
        found += [_with_remedy(settings, repository, entry.name, finding) for finding in findings]
        if not any(finding.severity != "info" for finding in findings):
            versions = ", ".join(str(version) for version in entry.versions)
            checked.append(Checked(Area.REPOSITORY, entry.name, f"layout and configuration; version {versions}"))
    return Report(tuple(found), tuple(checked)).sorted()


def _found(finding: Finding, model: str = "") -> Diagnosis:
    return Diagnosis(finding, Area.REPOSITORY, model)


def _with_remedy(settings: Settings, repository: ModelRepository, model: str, finding: Finding) -> Diagnosis:
    return Diagnosis(
        finding, Area.REPOSITORY, model, remedy=remedies.find(settings, repository, model, finding)
    )  # fmt: skip


def _unreadable(path: Path, error: Exception) -> Finding:
    return Finding(
        "unreadable", "error", str(path), f"{error}", "Give this user the right to read it, or name another folder."
    )


def _root(root: Path) -> Iterator[Finding]:
    """A repository that is a model itself (the wrong folder was named or mounted), and files that belong elsewhere."""
    if not root.is_dir():
        return
    names = {path.name: path for path in root.iterdir()}
    versions = [
        name for name, path in names.items()
        if version_number(name) is not None and path.is_dir() and (path / MODEL_FILE).is_file()
    ]  # fmt: skip
    if (CONFIG_FILE in names and names[CONFIG_FILE].is_file()) or versions:
        what = CONFIG_FILE if CONFIG_FILE in names else f"{versions[0]}/{MODEL_FILE}"
        yield Finding(
            "repository_is_model", "error", f"{root}/{what}",
            "This folder is one model; Triton wants the folder above it, whose subfolders are the models.",
            f"Name the folder above: TRITUNE_MODEL_REPO={root.parent} (or mount that one).",
        )  # fmt: skip
    for name, path in sorted(names.items()):
        if path.is_file() and path.suffix == ".onnx":
            model = path.stem
            yield Finding(
                "model_outside", "warning", f"{root}/{name}",
                "A file beside the models' folders is never loaded.",
                f"Publish it: `tritune model add {name} --name {model}`.",
            )  # fmt: skip


def _nested(folder: Path) -> Iterator[Finding]:
    """A model whose folder holds models: a repository one level too deep."""
    for path in sorted(folder.iterdir()):
        if path.is_dir() and version_number(path.name) is None and (path / "1" / MODEL_FILE).is_file():
            yield Finding(
                "nested", "error", f"{folder.name}/{path.name}/1/{MODEL_FILE}",
                f"{path.name} is a model one level too deep, so Triton does not see it.",
                f"Move {folder.name}/{path.name} one level up, beside {folder.name}.",
            )  # fmt: skip
