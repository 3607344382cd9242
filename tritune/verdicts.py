"""Every configuration of a study against its baseline: ratios, verdicts, rounds still needed; the drift check (pure).

Belongs here: decisions with documented formulas (docs/measurement.md). Never: how readings become estimates
(evidence), the levels of the looks (looks), which one is best (contest; its names are here too, so that whoever
decides about a study needs one module), trials and their documents (study_result), files, clocks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from tritune import looks
from tritune.contest import Best as Best
from tritune.contest import CellKey
from tritune.contest import Settled as Settled
from tritune.contest import best as best
from tritune.contest import settle as settle
from tritune.evidence import DRIFT, MEASURE, Estimate, Evidence
from tritune.evidence import Design as Design
from tritune.evidence import Reading as Reading
from tritune.study_plan import FIRST_LOOK, Metric

SHARED_ROUNDS = 2
"""A verdict needs so many rounds in which the configuration and the baseline were both measured."""
HOPELESS_ROUNDS = 200


class Verdict(StrEnum):
    """What is shown about a configuration against the baseline, about the objective's metric."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its interval; `low` 0 or `high` infinite where only a bound of it is known, or nothing."""

    value: float
    low: float
    high: float

    @property
    def at_least(self) -> bool:
        return self.low > 0 and math.isinf(self.high)

    @property
    def at_most(self) -> bool:
        return self.low == 0 and math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration under one load against the baseline. `more_rounds`: about how many more would settle it.

    `reason` says why there is no verdict, or why no number of rounds can be named.
    """

    candidate: int
    load: int
    metric: Metric
    throughput_ratio: Ratio | None
    p99_ratio: Ratio | None
    verdict: Verdict
    rounds: int
    more_rounds: int | None
    reason: str | None = None

    @property
    def ratio(self) -> Ratio | None:
        """The ratio that the verdict is about."""
        return self.throughput_ratio if self.metric is Metric.THROUGHPUT else self.p99_ratio


@dataclass(frozen=True, slots=True)
class Drift:
    """A round's first cell, measured again at the round's end: the second number over the first."""

    round: int
    candidate: int
    load: int
    throughput_ratio: float | None
    p99_ratio: float | None


def compare(design: Design, readings: Sequence[Reading] | Evidence) -> tuple[Comparison, ...]:
    """Every other configuration against the baseline under every load, candidates first."""
    evidence = _evidence(design, readings)
    candidates = sorted({*design.candidates, *(candidate for candidate, _ in evidence.cells)} - {design.baseline})
    return tuple(
        _comparison(design, evidence, candidate, load) for candidate in candidates for load in range(len(design.loads))
    )


def _comparison(design: Design, evidence: Evidence, candidate: int, load: int) -> Comparison:
    metric = design.objective.metric(design.loads[load])
    family = _compared(design, evidence)
    found = {
        which: evidence.table(load, which).difference(candidate, design.baseline)
        for which in (Metric.THROUGHPUT, Metric.P99)
    }
    ratios = {
        which: _ratio(design, estimate, family) or _plain_ratio(design, evidence, (candidate, load), which)
        for which, estimate in found.items()
    }
    shared = evidence.table(load, metric).shared(candidate, design.baseline)
    verdict, more, reason = _judge(design, evidence, (candidate, load), found[metric], ratios[metric], shared)
    return Comparison(
        candidate, load, metric, ratios[Metric.THROUGHPUT], ratios[Metric.P99], verdict, shared, more, reason
    )


def _judge(
    design: Design, evidence: Evidence, cell: CellKey, estimate: Estimate | None, ratio: Ratio | None, shared: int
) -> tuple[Verdict, int | None, str | None]:
    """The verdict of one comparison, how many more rounds it needs, and why there is none."""
    if estimate is None or ratio is None or math.isnan(estimate.value):
        return Verdict.NOT_MEASURED, None, _why_no_ratio(design, evidence, cell)
    if shared < SHARED_ROUNDS or estimate.look < FIRST_LOOK:
        rounds = f"{shared} round{'s' if shared != 1 else ''}"
        return Verdict.NOT_MEASURED, None, f"a verdict needs {FIRST_LOOK} rounds, and there are {rounds} of both"
    if estimate.freedom <= 0:
        return Verdict.NOT_MEASURED, None, "too few measurements to know their variation"
    metric = design.objective.metric(design.loads[cell[1]])
    is_more, is_less = ratio.low > 1, ratio.high < 1
    if is_more or is_less:
        return (Verdict.BETTER if is_more == (metric is Metric.THROUGHPUT) else Verdict.WORSE), None, None
    if estimate.bound:
        return Verdict.NO_DIFFERENCE, None, "its P99 is only known to be a bound, which more rounds do not change"
    more = _more_rounds(design, evidence, estimate)
    return Verdict.NO_DIFFERENCE, more, None if more else f"more than {HOPELESS_ROUNDS} more rounds would be needed"


def _why_no_ratio(design: Design, evidence: Evidence, cell: CellKey) -> str:
    candidate, load = cell
    metric = design.objective.metric(design.loads[load])
    table, throughput = evidence.table(load, metric), evidence.table(load, Metric.THROUGHPUT)
    for number, who in ((candidate, "it"), (design.baseline, "the baseline")):
        if table.level(number) is None:
            if metric is Metric.P99 and throughput.level(number) is not None:
                return f"too few requests of {who} were answered for a P99 (459 are needed)"
            return f"{who} has no finished measurement under this load"
    if not table.shared(candidate, design.baseline):
        return "it and the baseline were not measured in the same round in one go, so there is no fair ratio"
    return "both P99s are only known to be more than a bound, so nothing is known about their ratio"


def _ratio(design: Design, estimate: Estimate | None, family: int) -> Ratio | None:
    if estimate is None or math.isnan(estimate.value):
        return None
    critical = looks.critical(estimate.look, design.rounds, family, estimate.freedom)
    low, high = estimate.interval(critical)
    return Ratio(math.exp(estimate.value), math.exp(low), math.exp(high))


def _plain_ratio(design: Design, evidence: Evidence, cell: CellKey, metric: Metric) -> Ratio | None:
    """The ratio of two levels that share no round: a number about which nothing more is known."""
    table = evidence.table(cell[1], metric)
    mine, baseline = table.level(cell[0]), table.level(design.baseline)
    if mine is None or baseline is None or mine.bound or baseline.bound:
        return None
    return Ratio(math.exp(mine.value - baseline.value), 0.0, math.inf)


def _more_rounds(design: Design, evidence: Evidence, estimate: Estimate) -> int | None:
    """After how many more rounds the interval of the same effect with the same noise would exclude 1; None: > 200."""
    if not estimate.value or not math.isfinite(estimate.error):
        return None
    family, rate = _compared(design, evidence), estimate.freedom / max(estimate.rounds - 1, 1)

    def is_settled(more: int) -> bool:
        critical = looks.critical(estimate.look + more, design.rounds, family, estimate.freedom + more * rate)
        shrunk = estimate.error * math.sqrt(estimate.rounds / (estimate.rounds + more))
        return critical * shrunk < abs(estimate.value)

    found = 1 + bisect_left(range(1, HOPELESS_ROUNDS + 1), True, key=is_settled)
    return found if found <= HOPELESS_ROUNDS else None


def _compared(design: Design, evidence: Evidence) -> int:
    """How many comparisons with the baseline there are."""
    return sum(candidate != design.baseline for candidate, _ in evidence.cells)


def _evidence(design: Design, readings: Sequence[Reading] | Evidence) -> Evidence:
    return readings if isinstance(readings, Evidence) else Evidence.of(design, readings)


def drift(readings: Sequence[Reading]) -> tuple[Drift, ...]:
    """Each round's cell that was measured again at its end: the second number over the first, where both are known."""
    first = {(row.round, row.candidate, row.load): row for row in readings if row.role == MEASURE}
    found = []
    for again in sorted((row for row in readings if row.role == DRIFT), key=lambda row: row.round):
        begin = first.get((again.round, again.candidate, again.load))
        if begin is None or begin.session != again.session:
            continue
        throughput = p99 = None
        if begin.throughput_ips and again.throughput_ips:
            throughput = again.throughput_ips / begin.throughput_ips
        if begin.p99_ms and again.p99_ms and not begin.p99_at_least and not again.p99_at_least:
            p99 = again.p99_ms / begin.p99_ms
        found.append(Drift(again.round, again.candidate, again.load, throughput, p99))
    return tuple(found)


def drift_ratio(ratios: Sequence[float]) -> Ratio | None:
    """The geometric mean of drift ratios with its 95 % t interval; None below three rounds."""
    from scipy.special import stdtrit

    count = len(ratios)
    if count < FIRST_LOOK:
        return None
    logs = [math.log(ratio) for ratio in ratios]
    mean = math.fsum(logs) / count
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in logs) / (count - 1) / count)
    half = float(stdtrit(count - 1, 0.975)) * error
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
