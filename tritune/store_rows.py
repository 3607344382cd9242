"""What the store gives: jobs, trials, their place in a study, their names.

Belongs here: the rows as values. Never: SQL, transactions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tritune.errors import InputError
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, JobKind, JobState, TrialState

MAX_ID = 2**31 - 1  # what a database's INTEGER holds


@dataclass(frozen=True, slots=True)
class Job:
    """One piece of work as the store has it. Times are unix seconds."""

    id: int
    kind: JobKind
    payload: Mapping[str, Any]
    state: JobState
    progress: Mapping[str, Any]
    result: Mapping[str, Any] | None
    error: str | None
    cancel_requested: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    notes: tuple[Mapping[str, Any], ...] = ()
    """What happened on the way: {"code", "message", "at"}, kept whatever ends the worker."""
    home: str | None = None
    """The installation whose worker does it; None: asked for by a Tritune that knew no homes."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Where a trial stands in a study: its candidate and load by number, and what it is there for.

    `role`: `measure`; `drift`: the round's first cell once more; `alone` and `together`: the A/A of side by side.
    """

    candidate: int
    load: int
    role: str = "measure"

    def to_dict(self) -> dict[str, Any]:
        return {"candidate": self.candidate, "load": self.load, "role": self.role}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Cell:
        return cls(int(document["candidate"]), int(document["load"]), str(document.get("role", "measure")))


@dataclass(frozen=True, slots=True)
class Trial:
    """One measured (or failed) load test. `measurement` is `Measurement.to_dict()`. Times are unix seconds."""

    trial_id: str
    study_id: str
    state: TrialState
    model: str
    configuration: Configuration | None
    plan: LoadPlan
    labels: Mapping[str, str]
    note: str
    measurement: Mapping[str, Any] | None
    provenance: Mapping[str, Any]
    error: str | None
    created_at: float
    finished_at: float | None
    round: int
    attempt: int
    cell: Cell | None = None

    @property
    def load(self) -> dict[str, Any]:
        """What must be equal for two trials to be comparable."""
        return self.plan.load()

    def to_dict(self) -> dict[str, Any]:
        """The document that `tritune load --json` prints."""
        return {
            "trial_id": self.trial_id,
            "study_id": self.study_id,
            "state": str(self.state),
            "model": self.model,
            "configuration": self.configuration.to_dict() if self.configuration else None,
            "load": self.load,
            "round": self.round,
            "attempt": self.attempt,
            "cell": self.cell.to_dict() if self.cell else None,
            **(self.measurement or {}),
            "served_config": self.provenance.get("served_config"),
            "labels": dict(self.labels),
            "note": self.note,
            "error": self.error,
            "created_at": self.created_at,
            "finished_at": self.finished_at,
            "plan": self.plan.to_dict(),
            "provenance": {key: value for key, value in self.provenance.items() if key != "served_config"},
        }


def trial_number(trial_id: str) -> int:
    """The row behind `t12` (or `12`). Raises InputError for anything else."""
    return _row_number(trial_id, "trial", "Trials are named t1, t2, …")


def study_number(study_id: str) -> int:
    """The row behind `s7` (or `7`). Raises InputError for anything else."""
    return _row_number(study_id, "study", "Studies are named s1, s2, …")


def _row_number(name: str, kind: str, rule: str) -> int:
    text = name.strip().lower().removeprefix(kind[0])
    if not text.isascii() or not text.isdigit():
        raise InputError(f"{name!r} is not a {kind}. {rule}; `tritune study list` shows them.")
    digits = text.lstrip("0") or "0"
    if len(digits) > 10 or int(digits) > MAX_ID:
        raise InputError(f"There is no {kind} {name}. `tritune study list` shows those that exist.")
    return int(digits)


def job_of(row: Any) -> Job:
    return Job(
        id=row.id,
        kind=JobKind(row.kind),
        payload=row.payload,
        state=JobState(row.state),
        progress=row.progress or {},
        result=row.result,
        error=row.error,
        cancel_requested=bool(row.cancel_requested),
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        notes=tuple(row.notes or ()),
        home=row.home,
    )


def trial_of(row: Any) -> Trial:
    return Trial(
        trial_id=f"t{row.id}",
        study_id=f"s{row.job_id}",
        state=TrialState(row.state),
        model=row.model,
        configuration=Configuration.from_dict(row.configuration) if row.configuration else None,
        plan=LoadPlan.from_dict(row.plan),
        labels=row.labels,
        note=row.note,
        measurement=row.measurement,
        provenance=row.provenance,
        error=row.error,
        created_at=row.created_at,
        finished_at=row.finished_at,
        round=row.round,
        attempt=row.attempt,
        cell=Cell.from_dict(row.cell) if row.cell else None,
    )


def columns(trial: Trial) -> dict[str, Any]:
    """A trial as its row, without what the database gives it: its id and its job's."""
    return {
        "round": trial.round,
        "attempt": trial.attempt,
        "state": str(trial.state),
        "model": trial.model,
        "configuration": trial.configuration.to_dict() if trial.configuration else None,
        "plan": trial.plan.to_dict(),
        "labels": dict(trial.labels),
        "note": trial.note,
        "measurement": dict(trial.measurement) if trial.measurement is not None else None,
        "provenance": dict(trial.provenance),
        "error": trial.error,
        "created_at": trial.created_at,
        "finished_at": trial.finished_at,
        "cell": trial.cell.to_dict() if trial.cell else None,
    }
