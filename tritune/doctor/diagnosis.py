"""What the doctor hands out: findings with where they are from and what can be done about them by a button.

Belongs here: the types that the checks share. Never: a check, a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from tritune.model_rules import Finding, Severity
from tritune.plan import JobKind

ORDER: tuple[Severity, ...] = ("error", "warning", "info")


class Area(StrEnum):
    """Where a finding is from."""

    MACHINE = "environment"
    REPOSITORY = "repository"
    SERVER = "server"
    LOG = "log"


@dataclass(frozen=True, slots=True)
class Step:
    """One change of a file: `path` is moved to `target`; or where `model` is given, its config.pbtxt becomes `text`."""

    path: Path
    target: Path | None = None
    model: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """Something for the worker, as the pages ask for it, and what undoes it."""

    kind: JobKind
    payload: Mapping[str, Any]
    undo_kind: JobKind | None = None
    undo_payload: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Remedy:
    """What a button does about a finding: change files (which can be undone), or ask for a job."""

    label: str
    steps: tuple[Step, ...] = ()
    job: Job | None = None
    preview: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A finding with its place. `line` and `count` are a log's; `model` is "" where it is about no model."""

    finding: Finding
    area: Area
    model: str = ""
    source: str = ""
    line: int | None = None
    count: int = 1
    remedy: Remedy | None = None

    def to_dict(self) -> dict[str, Any]:
        return self.finding.to_dict() | {
            "area": str(self.area),
            "model": self.model or None,
            "source": self.source or None,
            "line": self.line,
            "count": self.count,
            "action": self.remedy.label if self.remedy else None,
        }


@dataclass(frozen=True, slots=True)
class Checked:
    """Something that was looked at and is in order, and what was seen."""

    area: Area
    what: str
    seen: str

    def to_dict(self) -> dict[str, str]:
        return {"area": str(self.area), "what": self.what, "seen": self.seen}


@dataclass(frozen=True, slots=True)
class Report:
    """All that one look found, errors first within each area, and what was in order."""

    findings: tuple[Diagnosis, ...] = ()
    checked: tuple[Checked, ...] = ()

    def __add__(self, other: Report) -> Report:
        return Report((*self.findings, *other.findings), (*self.checked, *other.checked))

    @property
    def errors(self) -> int:
        return self.count("error")

    def count(self, severity: Severity) -> int:
        return sum(found.finding.severity == severity for found in self.findings)

    def sorted(self) -> Report:
        """Errors first; within a severity as they were found."""
        return Report(tuple(sorted(self.findings, key=lambda found: ORDER.index(found.finding.severity))), self.checked)

    def to_dict(self) -> dict[str, Any]:
        return {
            "findings": [found.to_dict() for found in self.findings],
            "checked": [checked.to_dict() for checked in self.checked],
        }
