"""Which cell of a study is best, what cannot be told from it, what is clearly out, and when a study may stop (pure).

Belongs here: decisions about cells against each other and against the objective's limits (docs/measurement.md).
Never: comparisons with the baseline (verdicts), how readings become estimates (evidence), files, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tritune import looks
from tritune.analysis import significant
from tritune.evidence import Design, Evidence, Reading
from tritune.load_plan import describe_arrivals
from tritune.p99_limit import SUSTAINED_SHARE, Judgement
from tritune.study_plan import FIRST_LOOK, Metric

CellKey = tuple[int, int]
"""(candidate, load), by number."""


@dataclass(frozen=True, slots=True)
class Best:
    """The best cell, those that cannot be told from it, and what is not certain about it, in words."""

    candidate: int
    load: int
    indistinguishable: tuple[CellKey, ...]
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """After round `round`: which cells are measured no further and why, after which round that was, and why the study
    stops, where it does. (A study that could have stopped earlier has the round in which it could.)"""

    out: Mapping[CellKey, str] = field(default_factory=dict)
    after: Mapping[CellKey, int] = field(default_factory=dict)
    stop: str | None = None
    round: int = 0


def best(design: Design, readings: Sequence[Reading] | Evidence) -> tuple[Best | None, str]:
    """The best cell under the objective, or None, and in words what it was chosen by or why there is none.

    Under every load the highest throughput (the lowest P99 where that is its metric) among the cells that keep the
    limits; of these the one with the highest throughput, or the lowest P99 where a throughput is asked for. A cell
    whose P99 may lie on either side of its limit is taken only where no cell's mean is under it.
    """
    evidence = readings if isinstance(readings, Evidence) else Evidence.of(design, readings)
    contest = _Contest(design, evidence)
    if not evidence.cells:
        return None, "Nothing has been measured yet."
    standing = {cell: contest.standing(cell) for cell in evidence.cells}
    qualified = [cell for cell in evidence.cells if standing[cell] is not Judgement.MISSED]
    if not qualified:
        return None, contest.why_none()
    likely = [cell for cell in qualified if contest.keeps_on_average(cell)]
    winners = contest.winners(likely or qualified)
    winner = contest.top(winners.values(), contest.overall)
    if winner is None:
        return None, f"No cell has a {_NAMES[contest.overall]} that could be compared."
    alike = tuple(
        cell for cell in qualified if cell != winner and not contest.is_told(cell, winner, winners.get(cell[1]))
    )
    doubt = None
    if standing[winner] is Judgement.UNDECIDED and contest.limits:
        sides = "its mean is within, its interval is not" if likely else "even its mean is outside"
        doubt = f"Whether it keeps {contest.limits} is not certain: {sides}."
    return Best(*winner, alike, doubt), contest.chosen_by()


def settle(
    design: Design,
    readings: Sequence[Reading] | Evidence,
    round: int,
    keep: Collection[CellKey] = (),
    stop_early: bool = True,
) -> Settled:
    """What the rounds up to `round`, which is over, decide. Replays every look, so that nothing has to be kept.

    The baseline and the cells of `keep` are never out. A cell is out where its interval lies wholly below the best of
    its load, or wholly outside a limit. Without `stop_early` only the planned rounds end a study.
    """
    everything = readings if isinstance(readings, Evidence) else Evidence.of(design, readings)
    out: dict[CellKey, str] = {}
    after: dict[CellKey, int] = {}
    stop = None
    for look in range(FIRST_LOOK, round + 1) if stop_early else ():
        contest = _Contest(design, everything.until(look, after))
        found, open_loads = contest.look(look, out)
        for cell, reason in found.items():
            if cell[0] != design.baseline and cell not in keep:
                out[cell], after[cell] = reason, look
        stop = contest.stop(look, out, open_loads)
        if stop:
            return Settled(out, after, stop, look)
    if stop is None and round >= design.rounds:
        stop = f"All {design.rounds} planned rounds are done." if design.rounds > 1 else "The planned round is done."
    return Settled(out, after, stop, round)


_NAMES = {Metric.THROUGHPUT: "throughput", Metric.P99: "P99"}
_TOO_FEW = "too few requests were answered for a P99 (459 are needed)"


class _Contest:
    """The cells of one look against each other. All statements that one cell beats another are right together in
    95 % of studies (all pairs of cells), and so are those about the limits (all cells)."""

    def __init__(self, design: Design, evidence: Evidence) -> None:
        self.design, self.evidence = design, evidence
        self.objective = design.objective
        cells = len(evidence.cells)
        self.pairs = cells * (cells - 1) // 2
        by_p99 = self.objective.min_throughput_ips is not None and self.objective.p99_ms is None
        self.overall = Metric.P99 if by_p99 else Metric.THROUGHPUT

    # --- limits ------------------------------------------------------------------------------------------------------

    @property
    def limits(self) -> str:
        """The objective's limits in words, empty where there are none."""
        words = []
        if self.objective.p99_ms is not None:
            words.append(f"P99 ≤ {self.objective.p99_ms:g} ms")
        if self.objective.min_throughput_ips is not None:
            words.append(f"throughput ≥ {self.objective.min_throughput_ips:g}/s")
        return " and ".join(words)

    def _floor(self, load: int) -> float | None:
        """The throughput that a cell must reach: the objective's, and what keeps up with an open loop."""
        plan = self.design.loads[load]
        offered = SUSTAINED_SHARE * plan.rate_rps * plan.batch if plan.rate_rps else None
        return max((value for value in (offered, self.objective.min_throughput_ips) if value), default=None)

    def standing(self, cell: CellKey) -> Judgement:
        """Whether a cell keeps the limits: HELD or MISSED where its whole interval says so."""
        return self._judge(cell)[0]

    def _judge(self, cell: CellKey) -> tuple[Judgement, str]:
        sides = [Judgement.HELD]
        for metric, limit, sign in (
            (Metric.P99, self.objective.p99_ms, 1),
            (Metric.THROUGHPUT, self._floor(cell[1]), -1),
        ):
            if limit is None:
                continue
            level = self.evidence.table(cell[1], metric).level(cell[0])
            if level is None:
                return Judgement.MISSED, _TOO_FEW
            critical = looks.critical(level.look, self.design.rounds, len(self.evidence.cells), level.freedom)
            low, high = level.interval(critical)
            if not math.isfinite(level.error) and level.bound * sign > 0 and level.value > math.log(limit):
                low = level.value
            outside, inside = (low, high) if sign > 0 else (-high, -low)
            edge = sign * math.log(limit)
            if outside > edge:
                return Judgement.MISSED, self._missed(metric, math.exp(level.value), limit, bool(level.bound))
            sides.append(Judgement.HELD if inside <= edge else Judgement.UNDECIDED)
        return (Judgement.UNDECIDED if Judgement.UNDECIDED in sides else Judgement.HELD), ""

    @staticmethod
    def _missed(metric: Metric, value: float, limit: float, at_least: bool) -> str:
        if metric is Metric.P99:
            return f"its P99, {'≥ ' if at_least else ''}{significant(value)} ms, is above {limit:g} ms"
        return f"its throughput, {significant(value)}/s, is below {significant(limit)}/s"

    def keeps_on_average(self, cell: CellKey) -> bool:
        """Whether the means of a cell are inside the limits, none of them being a mere bound."""
        limit, floor = self.objective.p99_ms, self._floor(cell[1])
        if limit is not None:
            p99 = self.evidence.table(cell[1], Metric.P99).level(cell[0])
            if p99 is None or p99.bound or p99.value > math.log(limit):
                return False
        throughput = self.evidence.table(cell[1], Metric.THROUGHPUT).level(cell[0])
        return floor is None or (throughput is not None and throughput.value >= math.log(floor))

    # --- one against another -----------------------------------------------------------------------------------------

    def metric(self, load: int) -> Metric:
        return self.objective.metric(self.design.loads[load])

    def _score(self, cell: CellKey, metric: Metric) -> float:
        """The higher, the better; a lower bound of a P99 is no score."""
        table = self.evidence.table(cell[1], metric)
        level = table.level(cell[0])
        if level is None or (metric is Metric.P99 and level.bound):
            return -math.inf
        if math.isfinite(value := float(table.effect(cell[0]))):
            return value if metric is Metric.THROUGHPUT else -value
        return level.value if metric is Metric.THROUGHPUT else -level.value

    def top(self, cells: Collection[CellKey], metric: Metric) -> CellKey | None:
        """The cell with the best number; None where none has one."""
        scored = [(self._score(cell, metric), cell) for cell in cells]
        found = max(scored, key=lambda row: (row[0], -row[1][0], -row[1][1]), default=(-math.inf, (0, 0)))
        return found[1] if math.isfinite(found[0]) else None

    def winners(self, cells: Collection[CellKey]) -> dict[int, CellKey]:
        """The best of each load by its own metric."""
        found = {}
        for load in range(len(self.design.loads)):
            winner = self.top([cell for cell in cells if cell[1] == load], self.metric(load))
            if winner is not None:
                found[load] = winner
        return found

    def beaten(self, cell: CellKey, by: CellKey, metric: Metric) -> float | None:
        """The ratio of the two, where the whole interval lies on the worse side; else None."""
        estimate = self.evidence.difference(cell, by, metric)
        if estimate is None or math.isnan(estimate.error) or not self.evidence.can_decide:
            return None
        critical = looks.critical(estimate.look, self.design.rounds, self.pairs, estimate.freedom)
        low, high = estimate.interval(critical)
        is_worse = high < 0 if metric is Metric.THROUGHPUT else low > 0
        return math.exp(estimate.value) if is_worse else None

    def is_told(self, cell: CellKey, winner: CellKey, of_its_load: CellKey | None) -> bool:
        """Whether a cell is shown to be worse than the best one, or than the best of its own load."""
        if cell[1] == winner[1]:
            return self.beaten(cell, winner, self.metric(cell[1])) is not None
        if of_its_load is not None and cell != of_its_load:
            own = self.beaten(cell, of_its_load, self.metric(cell[1]))
            if own is not None:
                return True
        return self.beaten(cell, winner, self.overall) is not None

    # --- a look ------------------------------------------------------------------------------------------------------

    def look(self, round: int, out: Mapping[CellKey, str]) -> tuple[dict[CellKey, str], dict[int, list[CellKey]]]:
        """The cells that are found to be out, with the reason; and for every load those still in the running."""
        found: dict[CellKey, str] = {}
        running: dict[int, list[CellKey]] = {}
        for load in range(len(self.design.loads)):
            cells = [cell for cell in self.evidence.cells if cell[1] == load and cell not in out]
            judged = {cell: self._judge(cell) for cell in cells}
            found |= {cell: words for cell, (side, words) in judged.items() if side is Judgement.MISSED}
            metric = self.metric(load)
            leader = self.top([cell for cell in cells if judged[cell][0] is Judgement.HELD], metric)
            for cell in cells:
                if leader is None or cell in found or cell == leader:
                    continue
                ratio = self.beaten(cell, leader, metric)
                if ratio is not None:
                    found[cell] = self._out_words(ratio, metric, leader)
            running[load] = [cell for cell in cells if cell not in found]
        return found, running

    def _out_words(self, ratio: float, metric: Metric, leader: CellKey) -> str:
        amount = f"{abs(ratio - 1) * 100:.3g} %" if 0.5 < ratio < 2 else f"{ratio:.3g} times"
        share, times = ("less throughput", "throughput") if metric is Metric.THROUGHPUT else ("higher P99", "P99")
        words = f"{amount} {share} than" if "%" in amount else f"{amount} the {times} of"
        return f"{words} {self.design.name(leader[0])}, the best under this load"

    def stop(self, round: int, out: Mapping[CellKey, str], running: Mapping[int, list[CellKey]]) -> str | None:
        """Why the study stops after this look; None where it goes on."""
        if not any(running.values()):
            if all(self._judge(cell)[1] == _TOO_FEW for cell in self.evidence.cells):
                return f"After round {round} there is no P99 to hold against {self.limits}: {_TOO_FEW}. Measure longer."
            return f"After round {round} every configuration is clearly outside {self.limits or 'the limits'}."
        if all(self._is_settled(cells) for cells in running.values()):
            return f"After round {round} the best is told from all others."
        width = self.design.precision
        if width is None:
            return None
        for load, cells in running.items():
            for cell in () if self._is_settled(cells) else cells:
                if cell[0] != self.design.baseline and not self._is_precise(cell, load, width):
                    return None
        return f"After round {round} every interval that still matters is within ±{width * 100:g} %."

    def _is_settled(self, cells: Sequence[CellKey]) -> bool:
        """Whether one cell of a load is left of several, and is known to keep the limits; or none is."""
        alone = len({candidate for candidate, _ in self.evidence.cells}) == 1
        return not alone and (not cells or (len(cells) == 1 and self.standing(cells[0]) is Judgement.HELD))

    def _is_precise(self, cell: CellKey, load: int, width: float) -> bool:
        estimate = self.evidence.difference(cell, (self.design.baseline, load), self.metric(load))
        if estimate is None or not math.isfinite(estimate.error):
            return False
        family = sum(candidate != self.design.baseline for candidate, _ in self.evidence.cells)
        critical = looks.critical(estimate.look, self.design.rounds, family, estimate.freedom)
        return critical * estimate.error <= math.log1p(width)

    # --- words -------------------------------------------------------------------------------------------------------

    def chosen_by(self) -> str:
        """What the best one is chosen by."""
        if self.overall is Metric.P99:
            return f"lowest P99 with {self.limits}"
        if all(plan.is_open_loop for plan in self.design.loads):
            limits = f" with {self.limits}" if self.limits else ""
            return f"lowest P99 at the highest rate that is kept up with{limits}"
        return f"highest throughput{f' with {self.limits}' if self.limits else ''}"

    def why_none(self) -> str:
        """Why no cell qualifies, with the one that comes nearest."""
        metric = Metric.P99 if self.objective.p99_ms is not None else Metric.THROUGHPUT
        nearest = self.top(self.evidence.cells, metric)
        limits = self.limits or "the offered rate"
        if nearest is None:
            return f"No configuration can be shown to keep {limits}: none has the number that it is about."
        _, words = self._judge(nearest)
        load = describe_arrivals(self.design.loads[nearest[1]].load())
        return f"No configuration keeps {limits}. The nearest is {self.design.name(nearest[0])} with {load}: {words}."
