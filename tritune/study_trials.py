"""Which trials of a study count, and where in it each was measured (pure).

Belongs here: attempts, rounds, and the parts of a round that were measured in one go. Never: what the numbers say
(evidence, verdicts), documents (study_result), the store.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tritune.analysis import estimate, surroundings
from tritune.evidence import MEASURE, Reading
from tritune.plan import TrialState
from tritune.store import Cell, Trial, trial_number

GAP_S = 300.0
"""A round with a longer pause between two trials, and one longer than ten usual ones, counts as two: it was not
measured in one go."""


def readings(trials: Sequence[Trial]) -> list[Reading]:
    """What the finished trials of a study say, oldest first: of repeated attempts the newest finished one.

    Trials without a cell, and the A/A before the first round, are no part of a round and so have no reading.
    """
    counted = newest(trials)
    sessions = sessions_of(counted)
    return [reading(trial, trial.cell, sessions[trial.trial_id]) for trial in counted if trial.cell and trial.round > 0]


def newest(trials: Iterable[Trial]) -> list[Trial]:
    """The finished trials, oldest first; of one round's attempts at a cell the newest. Those without a cell all."""
    found: dict[object, Trial] = {}
    for trial in sorted(trials, key=lambda trial: (trial.attempt, trial_number(trial.trial_id))):
        if trial.state is TrialState.FINISHED and trial.measurement is not None:
            found[(trial.round, trial.cell) if trial.round and trial.cell else trial.trial_id] = trial
    return sorted(found.values(), key=lambda trial: trial_number(trial.trial_id))


def sessions_of(trials: Sequence[Trial]) -> dict[str, int]:
    """The number of the part of its round in which a trial was measured: another one after a long pause, and for
    every other machine, server address or version."""
    places: dict[tuple[str, ...], int] = {}
    groups: dict[tuple[int, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        hardware, path, versions, _ = surroundings(trial)
        groups[trial.round, places.setdefault((hardware, path, versions), len(places))].append(trial)
    for group in groups.values():
        group.sort(key=_end)
    pauses = [_begin(later) - _end(trial) for group in groups.values() for trial, later in pairwise(group)]
    longest = max(GAP_S, 10 * statistics.median(pauses)) if pauses else GAP_S
    found: dict[str, int] = {}
    for (_, place), group in groups.items():
        part = 0
        for earlier, trial in zip([group[0], *group], group, strict=False):
            part += int(_begin(trial) - _end(earlier) > longest)
            found[trial.trial_id] = place * 1000 + part
    return found


def _end(trial: Trial) -> float:
    return trial.finished_at or trial.created_at


def _begin(trial: Trial) -> float:
    return _end(trial) - trial.plan.warmup_s - trial.plan.duration_s


def reading(trial: Trial, cell: Cell, session: int) -> Reading:
    throughput, p99 = estimate(trial, "throughput_ips"), estimate(trial, "p99")
    return Reading(
        candidate=cell.candidate,
        load=cell.load,
        round=trial.round,
        role=cell.role,
        throughput_ips=throughput.value,
        p99_ms=p99.value,
        p99_at_least=p99.at_least,
        trial_id=trial.trial_id,
        session=session,
    )


def rounds_done(trials: Sequence[Trial]) -> int:
    """How many rounds have nothing left to measure. Round 0 is the A/A of side by side.

    A cell is over once it is finished or failed; a row that was cancelled counts as over where its configuration was
    given up because it failed. A round is only begun when the one before is over.
    """
    over: dict[int, dict[Cell | None, bool]] = defaultdict(dict)
    failed = {trial.cell.candidate for trial in trials if trial.cell and trial.state is TrialState.FAILED}
    for trial in trials:
        is_over = trial.state in (TrialState.FINISHED, TrialState.FAILED)
        if trial.state is TrialState.CANCELLED and trial.cell:
            is_over = trial.cell.candidate in failed
        if trial.round > 0:
            over[trial.round][trial.cell] = over[trial.round].get(trial.cell, False) or is_over
    return sum(number < max(over) or all(cells.values()) for number, cells in over.items())


def by_cell(trials: Sequence[Trial]) -> dict[tuple[int, int], list[Trial]]:
    found: dict[tuple[int, int], list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.cell and trial.cell.role == MEASURE:
            found[trial.cell.candidate, trial.cell.load].append(trial)
    return found
