"""Results of other programs and other installations as studies here: recognised by content, all of a file or nothing.

Belongs here: which format a file has, marking its rows as imported, storing them. Never: formats (importers).
"""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.samples import Samples, write_parquet
from tritune import study_frames, study_result
from tritune.errors import InputError, LoadTestError, TrituneError
from tritune.importers import own, requests, tables
from tritune.importers.rows import Found, Row, text
from tritune.load_plan import describe_load
from tritune.plan import MODEL_NAME_PATTERN, JobKind, JobState, TrialState
from tritune.settings import Settings
from tritune.store import Cell, Job, Store, Trial

IMPORTED = "imported"
"""The code of the warning that every imported measurement carries."""
KNOWN = (
    "a study's .json from `tritune study export`, perf_analyzer's CSV (-f) or profile export, AIPerf's "
    "profile_export.jsonl, Locust's _stats.csv or _stats_history.csv, Model Analyzer's metrics-model-inference.csv"
)
_HEAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Study:
    """A file's study, ready to be stored. `samples` are those of the trials, None where the file has none."""

    format: str
    payload: Mapping[str, Any]
    result: Mapping[str, Any]
    notes: tuple[Mapping[str, Any], ...]
    trials: tuple[Trial, ...]
    samples: tuple[Samples | None, ...]
    created_at: float


def import_file(settings: Settings, store: Store, path: Path, *, name: str | None = None) -> str:
    """Store a file's results as a study of their own; returns its id (`s7`). `name`: the model, where the file tells
    none or another name is wanted.

    Raises InputError for a file that is none of the known ones or is damaged; nothing of it is stored then.
    """
    study = read(path, name=name)
    job_id, trial_ids = store.insert_import(
        study.payload, study.trials, created_at=study.created_at, result=study.result, notes=study.notes
    )
    try:
        for trial_id, samples in zip(trial_ids, study.samples, strict=True):
            if samples is not None:
                folder = settings.trials / trial_id
                folder.mkdir(parents=True, exist_ok=True)
                write_parquet(samples, folder / "samples.parquet")
    except (LoadTestError, OSError) as error:
        store.delete_job(job_id)
        raise InputError(f"The requests of {path.name} could not be kept, so nothing is imported ({error}).") from error
    return f"s{job_id}"


def read(path: Path, *, name: str | None = None, clock: Callable[[], float] = time.time) -> Study:
    """What a file holds, checked as far as a page would use it. Raises InputError."""
    if name is not None and not re.fullmatch(MODEL_NAME_PATTERN, name):
        raise InputError(f"{text(name)!r} is no name of a model. Use up to 64 letters, digits and any of _ . -")
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD).removeprefix(b"\xef\xbb\xbf")
        study = _read(path, head, name, clock())
    except OSError as error:
        raise InputError(f"{path} could not be read ({error.strerror or error}).") from None
    _check(study, path)
    return study


def _read(path: Path, head: bytes, name: str | None, now: float) -> Study:
    if own.is_own(head):
        return _of_own(own.read(path), path, name)
    model = name or _model_name(path)
    if requests.is_profile_export(head):
        return _of_rows(requests.profile_export(path, model), path, name, now)
    if head.lstrip().startswith(b"{") and requests.is_aiperf(head.lstrip().split(b"\n", 1)[0]):
        return _of_rows(requests.aiperf(path, model), path, name, now)
    columns = _columns(head)
    if tables.is_perf_analyzer(columns):
        return _of_rows(tables.perf_analyzer(path, model), path, name, now)
    if tables.is_model_analyzer(columns):
        return _of_rows(tables.model_analyzer(path, name), path, name, now)
    if tables.is_locust_history(columns):
        return _of_rows(tables.locust_history(path, model), path, name, now)
    if tables.is_locust_stats(columns):
        return _of_rows(tables.locust_stats(path, model), path, name, now)
    raise InputError(f"{path.name} is nothing that can be imported. What can: {KNOWN}.")


def _columns(head: bytes) -> Sequence[str]:
    """The names in the first line with any, or none where that is no text."""
    line = next((line for line in head.splitlines() if line.strip()), b"")
    try:
        return [cell.strip() for cell in next(csv.reader([line[:65536].decode()]), [])]
    except (UnicodeDecodeError, csv.Error):
        return []


def _model_name(path: Path) -> str:
    """A model's name out of a file's, where the file tells none."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", path.stem).strip("._-")[:64] or "imported"


def _check(study: Study, path: Path) -> None:
    """Make of it what pages and reports make of it, so that nothing damaged is stored."""
    job = Job(
        0, JobKind.IMPORT, study.payload, JobState.FINISHED, {}, study.result, None, False, 0.0, None, 0.0, study.notes
    )
    try:
        document = study_result.document(job, study.trials)
        study_frames.cell_frame(document)
        study_frames.varied(document)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, ArithmeticError, TrituneError) as error:
        raise InputError(
            f"{path.name} holds figures that do not fit together ({type(error).__name__}), so nothing is imported. "
            "Export it again."
        ) from error


# --- our own ----------------------------------------------------------------------------------------------------------


def _of_own(found: own.Exported, path: Path, name: str | None) -> Study:
    source = {"format": "Tritune export", "file": text(path.name), "study_id": found.study_id}
    source |= {"tritune_version": found.tritune_version}
    warning = f"This was measured in study {text(found.study_id)} of another installation and imported from a file."
    return Study(
        format="Tritune export",
        payload={**found.payload, **({"model": name} if name else {})},
        result=found.result,
        notes=found.notes,
        trials=tuple(_marked(trial, source, warning, name) for trial in found.trials),
        samples=(None,) * len(found.trials),
        created_at=found.created_at,
    )


def _marked(trial: Trial, source: Mapping[str, Any], warning: str, name: str | None) -> Trial:
    """A trial that says that it is imported; where it was imported before, its first source stays."""
    measured = trial.measurement
    if measured is not None and all(each["code"] != IMPORTED for each in measured["warnings"]):
        measured = {**measured, "warnings": [*measured["warnings"], {"code": IMPORTED, "message": warning}]}
    first = trial.provenance.get("imported_from") or source
    marked = replace(trial, measurement=measured, provenance={**trial.provenance, "imported_from": first})
    return replace(marked, model=name, plan=replace(trial.plan, model=name)) if name else marked


# --- others' ----------------------------------------------------------------------------------------------------------


def _of_rows(found: Found, path: Path, name: str | None, now: float) -> Study:
    """Rows as trials: one candidate a label, one load each that differs; a label's second row under the same load is
    its second round. They were not interleaved as far as a file tells, so they get ratios and no verdicts."""
    model = name or found.model or _model_name(path)
    if not re.fullmatch(MODEL_NAME_PATTERN, model):
        raise InputError(
            f"{path.name} names its model {text(model)!r}, which is no name here. Give another with --name."
        )
    plans = [replace(row.plan, model=model) for row in found.rows]
    labels = list(dict.fromkeys(row.label for row in found.rows))
    loads = {str(plan.load()): plan for plan in plans}
    places = {load: number for number, load in enumerate(loads)}
    source = {"format": found.format, "file": text(path.name)}
    rounds: dict[Cell, int] = {}
    trials = []
    for number, (row, plan) in enumerate(zip(found.rows, plans, strict=True)):
        cell = Cell(labels.index(row.label), places[str(plan.load())])
        rounds[cell] = rounds.get(cell, 0) + 1
        trials.append(_trial(number, row, plan.model, cell, rounds[cell], source, row.at or now, plan))
    payload = {
        "model": model,
        "title": text(f"{found.format}: {path.name}"),
        "candidates": [
            {"number": number, "label": label, "configuration": None, "change": None}
            for number, label in enumerate(labels)
        ],
        "loads": [plan.to_dict() for plan in loads.values()],
        "left_out": [],
        "baseline": 0,
        "interleaved": False,
        "labels": {},
        "note": "",
    }
    stopped = f"Imported from {source['file']} ({found.format})."
    samples = tuple(row.samples for row in found.rows)
    return Study(found.format, payload, {"stopped": stopped}, (), tuple(trials), samples, now)


def _trial(
    number: int, row: Row, model: str, cell: Cell, round: int, source: Mapping[str, Any], at: float, plan: Any
) -> Trial:
    message = f"Imported from {source['format']}; Tritune did not measure it. {row.unknown}".strip()
    warnings = [*row.measurement["warnings"], {"code": IMPORTED, "message": message}]
    return Trial(
        trial_id=f"t{number + 1}",
        study_id="s0",
        state=TrialState.FINISHED,
        model=model,
        configuration=None,
        plan=plan,
        labels={},
        note=row.label if row.label != "as measured" else "",
        measurement={**row.measurement, "warnings": warnings},
        provenance={"imported_from": dict(source)},
        error=None,
        created_at=at,
        finished_at=at,
        round=round,
        attempt=1,
        cell=cell,
    )


def sentence(store: Store, study_id: str) -> str:
    """What was imported, for a person."""
    trials = store.trials(study_id=study_id, limit=1_000_000)
    loads = sorted({describe_load(trial.load) for trial in trials})
    source = trials[0].provenance["imported_from"]
    return (
        f"{source['file']} ({source['format']}) is {study_id}: {len(trials)} trials of {trials[0].model}, "
        f"{'; '.join(loads[:4])}{' …' if len(loads) > 4 else ''}."
    )
