"""Studies and load tests side by side, as one document like a study's: what reports and the command line show.

Belongs here: which trials are put together, and under which names. Never: numbers (study_result, analysis), markup.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tritune import study_result
from tritune.analysis import labels
from tritune.errors import InputError
from tritune.plan import JobKind, JobState
from tritune.store import Cell, Job, Store, Trial, study_number
from tritune.study_frames import Document
from tritune.study_trials import newest

ALL = 1_000_000


def is_study(name: str) -> bool:
    """Whether `s7` is meant, not `t12`."""
    return name.strip().lower().startswith("s")


def compared(store: Store, names: Sequence[str], baseline: str | None = None) -> tuple[Job, Document]:
    """One study as it is, with another of its configurations as the baseline where `baseline` names a trial of it;
    several studies and trials as one comparison without verdicts, since they were not interleaved. The job is what
    would have asked for such a study.

    Raises InputError for unknown names, and where there are not two configurations to compare.
    """
    if len(names) == 1 and is_study(names[0]):
        return _one(store, names[0], baseline)
    return _several(store, list(dict.fromkeys(names)), baseline)


def _one(store: Store, name: str, baseline: str | None) -> tuple[Job, Document]:
    job = store.job(study_number(name))
    trials = store.trials(study_id=f"s{job.id}", limit=ALL)
    if baseline is not None:
        cell = next((trial.cell for trial in trials if trial.trial_id == baseline.strip().lower()), None)
        if cell is None:
            raise InputError(f"{baseline} is no trial of s{job.id}, so its configuration cannot be the baseline there.")
        job = replace(job, payload={**job.payload, "baseline": cell.candidate})
    return job, study_result.document(job, trials)


def _several(store: Store, names: Sequence[str], baseline: str | None) -> tuple[Job, Document]:
    groups: dict[str, list[Trial]] = {}
    configurations: dict[str, Trial] = {}
    single = [store.trial(name) for name in names if not is_study(name)]
    named = labels(single)
    for name in names:
        if is_study(name):
            job = store.job(study_number(name))
            parts = _parts(job, store.trials(study_id=f"s{job.id}", limit=ALL))
        else:
            trial = store.trial(name)
            parts = {named[trial.trial_id]: [trial]}
        for label, trials in parts.items():
            groups.setdefault(label, []).extend(trials)
            configurations.setdefault(label, trials[0])
    for label, trials in groups.items():
        if all(trial.measurement is None for trial in trials):
            raise InputError(f"{label} has nothing finished to compare. Choose another one.")
    if len(groups) < 2:
        raise InputError("A comparison needs a study, or at least two trials. Choose another one as well.")
    first = next(iter(groups))
    if baseline is not None:
        wanted = baseline.strip().lower()
        holds = (label for label, trials in groups.items() if wanted in (part.trial_id for part in trials))
        found = next(holds, None) or next((label for label in groups if label.startswith(f"{wanted} · ")), None)
        if found is None:
            raise InputError(f"The baseline {baseline} is not among what is compared. Add it or choose one.")
        first = found
    return _document(names, groups, configurations, list(groups).index(first))


def _parts(job: Job, trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    """A study's finished trials by configuration, under names that say which study it was."""
    said = study_result.document(job, trials)
    named = {each["candidate"]: each["label"] for each in said["candidates"]}
    if not said["cells"]:
        raise InputError(f"s{job.id} has nothing finished to compare. Choose another one.")
    by_id = {trial.trial_id: trial for trial in newest(trials)}
    found: dict[str, list[Trial]] = {}
    for cell in said["cells"]:
        label = f"s{job.id} · {named[cell['candidate']]}"
        found.setdefault(label, []).extend(by_id[name] for name in cell["trial_ids"])
    return found


def _document(
    names: Sequence[str], groups: dict[str, list[Trial]], configurations: dict[str, Trial], baseline: int
) -> tuple[Job, Document]:
    loads = {str(trial.load): trial.plan for trials in groups.values() for trial in trials}
    places = {load: number for number, load in enumerate(loads)}
    candidates, placed, rounds = [], [], 0
    for number, (label, trials) in enumerate(groups.items()):
        served = configurations[label].configuration
        candidates.append(
            {"number": number, "label": label, "configuration": served.to_dict() if served else None, "change": None}
        )
        placed += [replace(trial, cell=Cell(number, places[str(trial.load)])) for trial in trials]
        rounds = max(rounds, *(trial.round for trial in trials))
    models = list(dict.fromkeys(trial.model for trial in placed))
    payload = {
        "model": ", ".join(models),
        "title": f"Comparison of {', '.join(names)}",
        "candidates": candidates,
        "loads": [plan.to_dict() for plan in loads.values()],
        "left_out": [],
        "baseline": baseline,
        "interleaved": False,
    }
    begun = min(trial.created_at for trial in placed)
    ended = max(trial.finished_at or trial.created_at for trial in placed)
    result = {"stopped": "These were measured at different times, not in turns."}
    job = Job(0, JobKind.SWEEP, payload, JobState.FINISHED, {}, result, None, False, begun, begun, ended)
    found = study_result.document(job, placed)
    return job, {**found, "study_id": " ".join(names)}
