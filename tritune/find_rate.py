"""The search for the highest rate under a P99 limit: what the worker does for a `find_rate` job.

Each probe is a trial of the same study: stored when it ends, and never changed. What comes next is a function of the
stored trials alone, so nothing else has to survive.

Belongs here: asking, running, telling. Never: which rate comes next (search), how a trial is made (trial).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tritune import rate_report, search, trial
from tritune.errors import LoadTestError
from tritune.load_plan import LoadPlan
from tritune.p99_limit import OPENING_CLIENTS, probe_of
from tritune.plan import TrialState
from tritune.search import Ask, Board, RateGoal, Verdict
from tritune.store import Store, Trial

RETRIES = 1
"""How often in a row a probe is made again whose generator failed."""


def run(
    context: trial.Context, plan: LoadPlan, goal: RateGoal, *, labels: Mapping[str, str], note: str
) -> dict[str, Any]:
    """Search and return the result as a document; `plan` is the closed loop that it begins
    with (OPENING_CLIENTS clients) and has everything that the probes share.

    Raises what trial.run raises; a TrialEnded then carries what was found until then.
    """
    study, begun = f"s{context.job.id}", time.monotonic()
    earlier_s = sum(probe_of(made).took_s for made in _finished(context.store, study))
    lost = 0
    while True:
        context.progress("Deciding on the next rate")
        trials = _finished(context.store, study)
        probes = [probe_of(made) for made in trials]
        step = search.next_step(goal, probes, spent_s=earlier_s + time.monotonic() - begun)
        if isinstance(step, Verdict):
            return rate_report.result(goal, trials, step)
        numbers = _numbers(context.store.trials(study_id=study), step)
        try:
            trial.run(
                _probing(context, Board(goal, probes), step),
                _probe_plan(plan, step),
                labels=labels,
                note=note,
                round=numbers[0],
                attempt=numbers[1],
            )
            lost = 0
        except trial.TrialEnded as ended:
            lost += 1
            if isinstance(ended.__cause__, LoadTestError) and lost <= RETRIES:
                continue  # the generator gave up, not the server: the failed trial is kept, and the rate tried again
            done = rate_report.result(goal, _finished(context.store, study), None, reason=rate_report.STOPPED)
            done["reason"] = f"{rate_report.STOPPED} ({ended.reason or ended.state}); finished probes are kept."
            raise trial.TrialEnded(ended.state, ended.reason, {**done, **ended.result}) from ended
        if step.rate_rps is None:
            _require_answers(_finished(context.store, study)[-1])


def _finished(store: Store, study: str) -> list[Trial]:
    """The probes of this study that were measured, in the order in which they were made."""
    return [made for made in reversed(store.trials(study_id=study)) if made.state is TrialState.FINISHED]


def _probe_plan(plan: LoadPlan, step: Ask) -> LoadPlan:
    timed = replace(plan, duration_s=step.duration_s, warmup_s=step.warmup_s)
    return timed if step.rate_rps is None else replace(timed, concurrency=None, rate_rps=step.rate_rps)


def _numbers(trials: Sequence[Trial], step: Ask) -> tuple[int, int]:
    """Round and attempt of the next probe: a round is a rate."""
    rounds = {made.plan.rate_rps: made.round for made in trials}
    attempts = [made.attempt for made in trials if made.plan.rate_rps == step.rate_rps]
    return rounds.get(step.rate_rps, max(rounds.values(), default=0) + 1), max(attempts, default=0) + 1


def _require_answers(first: Trial) -> None:
    """Raise LoadTestError where not one request of the opening was answered: no rate can be found then."""
    if probe_of(first).answered_rps > 0:
        return
    told = " ".join(warning["message"] for warning in (first.measurement or {})["warnings"][:2])
    raise LoadTestError(f"Not one request of the closed loop that the search begins with was answered. {told}")


def _probing(context: trial.Context, board: Board, step: Ask) -> trial.Part:
    """The context of one probe."""
    done, left = len(board.probes), board.probes_left()
    at = f"{step.rate_rps:,g}/s" if step.rate_rps is not None else f"{OPENING_CLIENTS} clients"
    return trial.Part(context, f"Probe {done + 1}, {at}", lambda fraction: (done + fraction) / (done + left))
