"""Whether a P99 is under its limit: of one load test, of one probe of a search, of several probes of one rate.

Belongs here: pure judgements, each with its reason in words (docs/measurement.md). Never: which rate is tried next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from tritune.analysis import Number, estimate, significant
from tritune.doubts import WarningCode

if TYPE_CHECKING:
    from tritune.store import Trial

SUSTAINED_SHARE = 0.97
"""Answers over planned requests in the window: below it the server does not keep up, however long the limit is."""
LOST_SHARE = 0.01
"""With more than 1 % of the requests without a good answer, 99 % were not answered within the limit."""
ATTEMPTS = 3
"""Probes of a rate, at most, until it is decided."""
OPENING_CLIENTS = 64
"""Clients of the short closed loop that a search begins with."""
Z95 = 1.96
GENERATOR_DOUBTS = (WarningCode.GENERATOR_SATURATED, WarningCode.SCHEDULE_LAG)


class Judgement(StrEnum):
    """What a probe, or the probes of one rate, say about the limit."""

    OPENING = "opening"
    HELD = "held"
    MISSED = "missed"
    UNDECIDED = "undecided"
    GENERATOR = "generator"


@dataclass(frozen=True, slots=True)
class Probe:
    """What one finished trial of a search said. `rate_rps` None: the closed loop that it began with.

    `answered_share` is answers over planned requests in the window, `lost_share` the planned requests without a good
    answer; `doubt` is why the generator may have been the limit. `planned_s` and `took_s` are warm-up with window, and
    all the time it took.
    """

    rate_rps: float | None
    answered_rps: float
    p99_ms: Number
    answered_share: float = 1.0
    lost_share: float = 0.0
    doubt: str | None = None
    planned_s: float = 12.0
    took_s: float = 15.0

    @property
    def is_sustained(self) -> bool:
        """Whether the planned requests were answered, however late."""
        return self.lost_share <= LOST_SHARE and self.answered_share >= SUSTAINED_SHARE


def probe_of(trial: Trial) -> Probe:
    """A finished trial as the search sees it. `trial.measurement` must be there."""
    found = trial.measurement or {}
    requests, window_s = found["requests"], float(found["window_s"])
    lost = sum(requests[name] for name in ("failed", "rejected", "timeout", "unsent"))
    planned = max(requests["ok"] + requests["drain"] + lost, 1)
    answered_rps = (found["throughput_ips"]["value"] or 0.0) / trial.plan.batch
    doubt = next((row["message"] for row in found["warnings"] if row["code"] in GENERATOR_DOUBTS), None)
    planned_s = trial.plan.warmup_s + trial.plan.duration_s
    return Probe(
        rate_rps=trial.plan.rate_rps,
        answered_rps=answered_rps,
        p99_ms=estimate(trial, "p99"),
        answered_share=answered_rps * window_s / planned,
        lost_share=lost / planned,
        doubt=doubt,
        planned_s=planned_s,
        took_s=(trial.finished_at or trial.created_at + planned_s) - trial.created_at,
    )


def side(p99_ms: Number, limit_ms: float) -> Judgement:
    """On which side of the limit a P99 lies: decided only where its whole 95 % interval does, or its lower bound."""
    if p99_ms.at_least:
        return Judgement.MISSED if (p99_ms.value or 0.0) > limit_ms else Judgement.UNDECIDED
    if p99_ms.high is not None and p99_ms.high <= limit_ms:
        return Judgement.HELD
    if p99_ms.low is not None and p99_ms.low > limit_ms:
        return Judgement.MISSED
    return Judgement.UNDECIDED


def trial_side(trial: Trial) -> Judgement | None:
    """On which side of its own limit a finished trial's P99 lies; None where it has no limit or no measurement."""
    limit_ms = trial.plan.p99_limit_ms
    return None if limit_ms is None or trial.measurement is None else side(estimate(trial, "p99"), limit_ms)


LIMIT_WORDS: Mapping[Judgement, str] = {
    Judgement.HELD: "the limit holds",
    Judgement.MISSED: "the limit is missed",
    Judgement.UNDECIDED: "the P99 may lie on either side of it",
}
"""What `trial_side` says, as a person reads it."""


def judge(probe: Probe, limit_ms: float) -> tuple[Judgement, str]:
    """Whether one probe held the limit, and why in words.

    Decided only where the whole 95 % interval lies on one side. A probe whose generator was saturated or late can show
    that a rate holds, since its latencies count from the intended time, but never that the server failed.
    """
    if probe.rate_rps is None:
        return Judgement.OPENING, f"{OPENING_CLIENTS} clients got {significant(probe.answered_rps)} answers/s"
    p99 = probe.p99_ms
    if probe.is_sustained and side(p99, limit_ms) is Judgement.HELD:
        return Judgement.HELD, f"P99 {_number(p99)} is under {limit_ms:g} ms"
    missed = _missed(probe, limit_ms)
    if missed is None:
        return Judgement.UNDECIDED, f"P99 {_number(p99)} is on neither side of {limit_ms:g} ms"
    return (Judgement.GENERATOR, probe.doubt) if probe.doubt else (Judgement.MISSED, missed)


def _missed(probe: Probe, limit_ms: float) -> str | None:
    """Why a probe did not hold the limit, or None where that is not decided."""
    if probe.lost_share > LOST_SHARE:
        return f"{probe.lost_share:.1%} of the requests got no good answer"
    if probe.answered_share < SUSTAINED_SHARE:
        behind = f"{probe.answered_share:.0%} of the planned requests were answered in the window"
        return f"the answers fell behind: {behind}, so the queue only grows"
    if probe.p99_ms.at_least or side(probe.p99_ms, limit_ms) is Judgement.MISSED:
        return f"P99 {_number(probe.p99_ms)} is above {limit_ms:g} ms"
    return None


def pool(probes: Sequence[Probe]) -> Number | None:
    """The P99 of several probes of one rate with its 95 % interval; None where one has none, or was not sustained.

    The mean of log P99, weighted by the inverse squares of the standard errors that the intervals mean; where the
    probes differ by more than these explain, the error grows by sqrt(chi2 / (n - 1)) (Birge 1932; Particle Data Group,
    "Introduction", 5.2.2).
    """
    logs, weights = [], []
    for probe in probes:
        value, low, high = probe.p99_ms.value, probe.p99_ms.low, probe.p99_ms.high
        if not value or not low or not high or probe.p99_ms.at_least or not probe.is_sustained:
            return None
        logs.append(math.log(value))
        weights.append(1 / max(math.log(high / low) / (2 * Z95), 1e-4) ** 2)
    if not logs:
        return None
    mean = sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights)
    error = 1 / math.sqrt(sum(weights))
    if len(logs) > 1:
        chi2 = sum(w * (x - mean) ** 2 for w, x in zip(weights, logs, strict=True))
        error *= max(1.0, math.sqrt(chi2 / (len(logs) - 1)))
    return Number(math.exp(mean), math.exp(mean - Z95 * error), math.exp(mean + Z95 * error))


def judge_rate(probes: Sequence[Probe], limit_ms: float) -> tuple[Judgement, str]:
    """What all probes of one rate say: what they agree on; else their pooled interval; else, of three, the majority.

    Where one was decided, those whose generator was the limit do not count.
    """
    judged = [(probe, *judge(probe, limit_ms)) for probe in probes]
    if any(row[1] in (Judgement.HELD, Judgement.MISSED) for row in judged):
        judged = [row for row in judged if row[1] is not Judgement.GENERATOR]
    found = [row[1] for row in judged]
    if len(set(found)) == 1 and (found[0] is not Judgement.UNDECIDED or len(found) == 1):
        return found[-1], judged[-1][2]
    pooled = pool([row[0] for row in judged])
    together = side(pooled, limit_ms) if pooled else Judgement.UNDECIDED
    doubt = next((row[0].doubt for row in judged if row[0].doubt), None)
    if pooled and together is Judgement.MISSED and doubt:
        return Judgement.GENERATOR, doubt
    if pooled and together is not Judgement.UNDECIDED:
        where = "under" if together is Judgement.HELD else "above"
        return together, f"P99 {_number(pooled)} of {len(found)} probes is {where} {limit_ms:g} ms"
    for judgement in (Judgement.HELD, Judgement.MISSED, Judgement.GENERATOR):
        if len(found) >= ATTEMPTS and 2 * found.count(judgement) > len(found):
            why = next(row[2] for row in judged if row[1] is judgement)
            count = "" if judgement is Judgement.GENERATOR else f"{found.count(judgement)} of {len(found)} probes: "
            return judgement, f"{count}{why}"
    words = f"P99 {_number(pooled)} of {len(found)} probes" if pooled else f"{len(found)} probes"
    return Judgement.UNDECIDED, f"{words} cannot tell which side of {limit_ms:g} ms it is"


def _number(p99: Number) -> str:
    """`12.3 ms (95 % 11.9 to 12.8)`."""
    text = f"{'≥ ' if p99.at_least else ''}{significant(p99.value)} ms"
    if p99.low is not None and p99.high is not None:
        text += f" (95 % {significant(p99.low)} to {significant(p99.high)})"
    return text
