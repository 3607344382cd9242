"""A search for the highest rate as a document: what `tritune load --find-rate --json` prints and the page shows.

Belongs here: shapes and words. Never: which rate is tried (search), running it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tritune import p99_limit
from tritune.analysis import Number, significant
from tritune.load_plan import LoadPlan
from tritune.p99_limit import Judgement, Probe
from tritune.search import Board, Outcome, RateGoal, Verdict

if TYPE_CHECKING:
    from tritune.store import Job, Trial

STOPPED = "The search ended before it was done"


def document(job: Job, trials: Sequence[Trial]) -> dict[str, Any]:
    """What a search found, or has found so far; `trials` are those of its study, in any order."""
    head = {"study_id": f"s{job.id}", "state": str(job.state), "error": job.error}
    if job.result is not None and "rate_rps" in job.result:
        return {**head, **job.result}
    reason = "" if not job.state.is_final else f"{STOPPED} ({job.error or job.state}); finished probes are kept."
    return {**head, **result(RateGoal.from_dict(job.payload["goal"]), trials, None, reason=reason)}


def result(goal: RateGoal, trials: Sequence[Trial], verdict: Verdict | None, *, reason: str = "") -> dict[str, Any]:
    """The result of a search; `verdict` None while it goes on, or where it was stopped for `reason`."""
    made = sorted((trial for trial in trials if trial.measurement), key=lambda trial: int(trial.trial_id[1:]))
    board = Board(goal, [p99_limit.probe_of(trial) for trial in made])
    low = verdict.low_rps if verdict else board.low_rps
    shown = [trial for trial in made if trial.plan.rate_rps == low and low is not None]
    p99 = None
    if low is not None:
        good = [probe for probe in board.by_rate[low] if _counts(probe, goal)]
        p99 = p99_limit.pool(good) or good[-1].p99_ms
    goodputs = [trial.measurement["goodput_rps"] for trial in shown if trial.measurement]
    return {
        "model": made[-1].model if made else None,
        "configuration": made[-1].configuration.to_dict() if made and made[-1].configuration else None,
        "outcome": str(verdict.outcome) if verdict else None,
        "rate_rps": {"value": low, "low": low, "high": verdict.high_rps if verdict else board.high_rps},
        "p99_ms": _estimate(p99),
        "limit_ms": goal.limit_ms,
        "goodput_rps": sum(goodputs) / len(goodputs) if goodputs and None not in goodputs else None,
        "closed_loop_rps": board.capacity_rps,
        "precision": goal.precision,
        "budget_s": goal.budget_s,
        "spent_s": sum(probe.took_s for probe in board.probes),
        "probes": [_probe(trial, goal) for trial in made],
        "reason": verdict.reason if verdict else reason,
        "warnings": _warnings(made, low, verdict),
    }


def _counts(probe: Probe, goal: RateGoal) -> bool:
    """Whether the judgement that a rate holds rests on this probe of it: the others were disturbed."""
    return p99_limit.judge(probe, goal.limit_ms)[0] in (Judgement.HELD, Judgement.UNDECIDED)


def _probe(trial: Trial, goal: RateGoal) -> dict[str, Any]:
    probe = p99_limit.probe_of(trial)
    judgement, why = p99_limit.judge(probe, goal.limit_ms)
    found: Mapping[str, Any] = trial.measurement or {}
    return {
        "trial_id": trial.trial_id,
        "round": trial.round,
        "attempt": trial.attempt,
        "rate_rps": probe.rate_rps,
        "concurrency": trial.plan.concurrency,
        "answered_rps": probe.answered_rps,
        "goodput_rps": found.get("goodput_rps"),
        "p99_ms": _estimate(probe.p99_ms),
        "judgement": str(judgement),
        "reason": why,
        "warnings": [warning["code"] for warning in found.get("warnings", ())],
    }


def _warnings(made: Sequence[Trial], low: float | None, verdict: Verdict | None) -> list[dict[str, str]]:
    """The doubts about the probes that the result rests on, each kind once; of a full generator also its own."""
    found: dict[str, dict[str, str]] = {}
    limited = verdict is not None and verdict.outcome is Outcome.GENERATOR_LIMITED
    for trial in made:
        for warning in (trial.measurement or {}).get("warnings", ()):
            rate = trial.plan.rate_rps
            generators = limited and rate is not None and warning["code"] in p99_limit.GENERATOR_DOUBTS
            if (rate is not None and rate == low) or generators:
                found[warning["code"]] = dict(warning)
    return list(found.values())


def _estimate(number: Number | None) -> dict[str, Any]:
    if number is None:
        return {"value": None, "ci95": None, "at_least": False}
    interval = [number.low, number.high] if number.low is not None and number.high is not None else None
    return {"value": number.value, "ci95": interval, "at_least": number.at_least}


_WORDS: Mapping[str, str] = {
    Judgement.OPENING: "closed loop",
    Judgement.HELD: "holds",
    Judgement.MISSED: "misses the limit",
    Judgement.UNDECIDED: "not decided",
    Judgement.GENERATOR: "generator was the limit",
}


def row(job: Job, trials: Sequence[Trial]) -> dict[str, Any]:
    """A search as one of `tritune study list`."""
    found = document(job, trials)
    return {
        "study_id": found["study_id"],
        "state": found["state"],
        "model": job.payload["plan"]["model"],
        "found": headline(found).rstrip("."),
        "load": {**LoadPlan.from_dict(job.payload["plan"]).load(), "concurrency": None},
        "limit_ms": found["limit_ms"],
        "rate_rps": found["rate_rps"],
        "trial_ids": [probe["trial_id"] for probe in found["probes"]],
        "error": job.error,
        "created_at": job.created_at,
    }


def sentences(found: Mapping[str, Any]) -> list[str]:
    """The document in words: the result, one line a probe, the warnings."""
    lines = [headline(found)]
    if found["reason"]:
        lines.append(f"  {found['reason']}")
    lines += [f"  {_line(probe)}" for probe in found["probes"]]
    return [*lines, *(f"  warning: {warning['message']}" for warning in found["warnings"])]


def headline(found: Mapping[str, Any]) -> str:
    """`1,230/s with a P99 under 20 ms (fails at 1,290/s)`."""
    rate, limit = found["rate_rps"], f"{found['limit_ms']:g} ms"
    if rate["value"] is None:
        return f"No rate was shown to hold a P99 under {limit}."
    if rate["high"] is not None:
        return f"{rate['value']:,g} requests/s hold a P99 under {limit}; {rate['high']:,g}/s do not."
    return f"At least {rate['value']:,g} requests/s hold a P99 under {limit}."


def words(probe: Mapping[str, Any]) -> str:
    """How one probe was judged."""
    return _WORDS[probe["judgement"]]


def p99_words(probe: Mapping[str, Any]) -> str:
    """`12.3 (11.9 to 12.8)`: a probe's P99 in milliseconds with its interval."""
    p99 = probe["p99_ms"]
    bounds = f" ({significant(p99['ci95'][0])} to {significant(p99['ci95'][1])})" if p99["ci95"] else ""
    return f"{'≥ ' if p99['at_least'] else ''}{significant(p99['value'])}{bounds}"


def _line(probe: Mapping[str, Any]) -> str:
    load = f"{probe['rate_rps']:,g}/s" if probe["rate_rps"] is not None else f"{probe['concurrency']} clients"
    answers = f"{significant(probe['answered_rps'])} answers/s"
    return f"{probe['trial_id']} {load}: {answers}, P99 {p99_words(probe)} ms, {words(probe)}"
