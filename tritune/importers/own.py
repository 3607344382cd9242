"""Tritune's own JSON, as report.json_text writes it, back as a job's payload and trials.

Belongs here: reading that document, checked as a stranger's. Never: writing it (report), other programs' formats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritune.errors import InputError, TrituneError
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, TrialState
from tritune.report import FORMAT, FORMAT_VERSION
from tritune.store import Cell, Trial

MAX_BYTES = 512 * 2**20
_NOT_MEASUREMENT = (
    *("trial_id", "study_id", "state", "model", "configuration", "load", "round", "attempt", "cell", "served_config"),
    *("labels", "note", "error", "created_at", "finished_at", "plan", "provenance"),
)
_LOST = "It had not ended when the study was exported."


@dataclass(frozen=True, slots=True)
class Exported:
    """A study of another installation: its job's payload and result, notes, trials, and what it was called there."""

    study_id: str
    payload: Mapping[str, Any]
    result: Mapping[str, Any]
    notes: tuple[Mapping[str, Any], ...]
    trials: tuple[Trial, ...]
    created_at: float
    tritune_version: str


def is_own(head: bytes) -> bool:
    return re.match(rb'\s*\{\s*"format"\s*:\s*"' + FORMAT.encode() + rb'"', head) is not None


def read(path: Path) -> Exported:
    """Raises InputError where the file is cut, changed or of a later version."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise InputError(f"{path.name} has {size / 2**20:,.0f} MiB; a study's JSON may have {MAX_BYTES >> 20} MiB.")
    try:
        whole = json.loads(path.read_text(encoding="utf-8-sig"), parse_constant=_no_number)
        version = int(whole["format_version"])
        if version > FORMAT_VERSION:
            raise InputError(
                f"{path.name} is of a later Tritune ({whole['tritune_version']}). Update this one to import it."
            )
        json.dumps(whole, ensure_ascii=False).encode()
        return _exported(whole)
    except InputError:
        raise
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        OverflowError,
        RecursionError,
        TrituneError,
    ) as e:
        raise InputError(
            f"{path.name} begins as an export of Tritune but cannot be read ({type(e).__name__}): it was cut or "
            "changed. Export the study again."
        ) from None


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _exported(whole: Mapping[str, Any]) -> Exported:
    job, study = whole["job"], whole["study"]
    trials = tuple(_trial(row) for row in study["trials"])
    if not trials:
        raise InputError(f"The export of {study['study_id']} has no trials, so there is nothing to import.")
    stopped = study["stopped"] or f"It was exported while it was {job['state']}."
    return Exported(
        study_id=str(study["study_id"]),
        payload={**job["payload"], "model": str(study["model"]), "title": str(study["title"])},
        result={**(job["result"] or {}), "stopped": str(stopped)},
        notes=tuple({**note, "code": str(note["code"]), "message": str(note["message"])} for note in job["notes"]),
        trials=trials,
        created_at=float(job["created_at"]),
        tritune_version=str(whole["tritune_version"]),
    )


def _trial(row: Mapping[str, Any]) -> Trial:
    state, error = TrialState(row["state"]), row["error"]
    if state in (TrialState.WAITING, TrialState.RUNNING):
        state, error = TrialState.CANCELLED, _LOST
    measured = {name: value for name, value in row.items() if name not in _NOT_MEASUREMENT}
    return Trial(
        trial_id=str(row["trial_id"]),
        study_id=str(row["study_id"]),
        state=state,
        model=str(row["model"]),
        configuration=Configuration.from_dict(row["configuration"]) if row["configuration"] else None,
        plan=LoadPlan.from_dict(row["plan"]),
        labels={str(name): str(value) for name, value in row["labels"].items()},
        note=str(row["note"]),
        measurement=measured or None,
        provenance={**row["provenance"], "served_config": row["served_config"]},
        error=None if error is None else str(error),
        created_at=float(row["created_at"]),
        finished_at=None if row["finished_at"] is None else float(row["finished_at"]),
        round=int(row["round"]),
        attempt=int(row["attempt"]),
        cell=Cell.from_dict(row["cell"]) if row["cell"] else None,
    )
