"""The readings of a study as tables, load by load, and what can be said about two cells or one (pure).

Belongs here: which readings enter, pairs and levels with their standard errors, lower bounds. Never: the levels of
the looks (looks), the fit itself (additive), verdicts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tritune.additive import Fit, Floats, fit
from tritune.load_plan import LoadPlan
from tritune.study_plan import FIRST_LOOK, Metric, Objective

MEASURE, DRIFT = "measure", "drift"
UNKNOWN = 25.0
"""An interval that reaches further than a factor of e to the 25 says nothing."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One finished trial. None: it has no such number; `p99_at_least`: the P99 is a lower bound.

    `session` tells apart the parts of a round that were not measured in one go on one machine: only what was measured
    in the same round and session is compared directly.
    """

    candidate: int
    load: int
    round: int
    role: str
    throughput_ips: float | None
    p99_ms: float | None
    p99_at_least: bool
    trial_id: str
    session: int = 0


@dataclass(frozen=True, slots=True)
class Design:
    """What the study compares: its loads, objective and planned rounds, the baseline's number, its candidates' (those
    with a reading are there in any case), and the precision that ends it (0.05: every interval within ±5 %).
    """

    objective: Objective
    loads: tuple[LoadPlan, ...]
    rounds: int
    baseline: int = 0
    candidates: tuple[int, ...] = ()
    precision: float | None = None
    names: Mapping[int, str] = field(default_factory=dict)

    def name(self, candidate: int) -> str:
        """What a candidate is called in a sentence."""
        return self.names.get(candidate) or f"configuration {candidate}"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A logarithm with its standard error (NaN: not known). `bound` 1: the truth is this or more; -1: or less."""

    value: float
    error: float
    freedom: float
    rounds: int
    look: int
    bound: int = 0

    def interval(self, critical: float) -> tuple[float, float]:
        """Both ends at a critical t value, endless on the side where only a bound is known."""
        half = critical * self.error if self.error > 0 else 0.0 if self.error == 0 else math.inf
        half = half if half < UNKNOWN else math.inf
        low = -math.inf if self.bound < 0 else self.value - half
        high = math.inf if self.bound > 0 else self.value + half
        return low, high


class Table:
    """One number of one load: candidates by blocks, a block being a round and session, in natural logarithms.

    `exact` (candidates, blocks) holds the numbers, `all` lower bounds as well; NaN where there is neither. Round
    effects and variances come from exact numbers only.
    """

    def __init__(
        self, candidates: Sequence[int], rounds: Sequence[int] | NDArray[np.int64], exact: Floats, all_: Floats
    ) -> None:
        self.candidates = tuple(candidates)
        self.rounds = np.asarray(rounds, dtype=np.int64)
        self.exact, self.all = exact, all_
        self._row = {candidate: row for row, candidate in enumerate(self.candidates)}
        self._fit: Fit | None = None
        self._against: dict[int, tuple[Floats, Floats, Floats]] = {}

    @property
    def fit(self) -> Fit:
        if self._fit is None:
            self._fit = fit(self.exact)
        return self._fit

    def until(self, round: int, after: Mapping[int, int]) -> Table:
        """The table as it was after that round; of candidates in `after` only up to their round there."""
        there = self.rounds <= round
        rounds, exact, all_ = self.rounds[there], self.exact[:, there], self.all[:, there]
        for candidate, last in after.items():
            if candidate in self._row:
                exact[self._row[candidate], rounds > last] = np.nan
                all_[self._row[candidate], rounds > last] = np.nan
        return Table(self.candidates, rounds, exact, all_)

    def measured(self) -> tuple[int, ...]:
        """The candidates with any number."""
        return tuple(self.candidates[row] for row in np.flatnonzero(np.isfinite(self.all).any(axis=1)))

    def level(self, candidate: int) -> Estimate | None:
        """The mean over the candidate's own rounds."""
        row = self._row.get(candidate)
        there = np.isfinite(self.all[row]) if row is not None else np.zeros(0, dtype=bool)
        if row is None or not there.any():
            return None
        count = int(there.sum())
        bound = int(np.isnan(self.exact[row][there]).any())
        more = max(float(self.fit.variances[row] - self.fit.variance), 0.0) if self.fit.freedom else 0.0
        freedom = float(min(self.fit.level_freedom, self.fit.freedoms[row]) if more else self.fit.level_freedom)
        error = math.sqrt((float(self.fit.level_variance) + more) / count)
        return self._estimate(float(self.all[row][there].mean()), error, freedom, there, bound)

    def effect(self, candidate: int) -> float:
        """The candidate's level with the rounds' effects removed; NaN without an exact number."""
        row = self._row.get(candidate)
        return math.nan if row is None else float(self.fit.effects[row])

    def shared(self, candidate: int, reference: int) -> int:
        """In how many blocks both were measured."""
        one, two = self._row.get(candidate), self._row.get(reference)
        if one is None or two is None:
            return 0
        return int((np.isfinite(self.all[one]) & np.isfinite(self.all[two])).sum())

    def difference(self, candidate: int, reference: int) -> Estimate | None:
        """The candidate's logarithm minus the reference's, round effects removed; None where they share no block.

        Where one of them has lower bounds, it is the mean over shared blocks, and itself a bound; where both have, it
        says nothing.
        """
        if not self.shared(candidate, reference):
            return None
        one, two = self._row[candidate], self._row[reference]
        bounds = [bool((np.isfinite(self.all[row]) & np.isnan(self.exact[row])).any()) for row in (one, two)]
        if any(bounds):
            if all(bounds):
                return None
            there = np.isfinite(self.all[one]) & np.isfinite(self.all[two])
            value = float((self.all[one] - self.all[two])[there].mean())
            error = math.sqrt(2 * float(self.fit.variances[[one, two]].max()) / int(there.sum()))
            return self._estimate(value, error, float(self.fit.freedom), there, 1 if bounds[0] else -1)
        if two not in self._against:
            self._against[two] = self.fit.difference(np.asarray(two))
        values, variances, freedoms = self._against[two]
        there = np.isfinite(self.all[one])
        return self._estimate(float(values[one]), math.sqrt(float(variances[one])), float(freedoms[one]), there, 0)

    def _estimate(self, value: float, error: float, freedom: float, there: NDArray[np.bool_], bound: int) -> Estimate:
        return Estimate(value, error, freedom, int(there.sum()), int(self.rounds[there].max()), bound)


class Evidence:
    """All readings of a study: a table of throughput and one of P99 for every load.

    `cells` are the (candidate, load) with any number, `look` the last round that has one.
    """

    def __init__(self, tables: dict[tuple[int, Metric], Table]) -> None:
        self._tables = tables
        self.cells = tuple(
            (candidate, load)
            for (load, metric), table in sorted(tables.items())
            if metric is Metric.THROUGHPUT
            for candidate in table.measured()
        )
        self.look = max((int(table.rounds.max()) for table in tables.values() if table.rounds.size), default=0)

    @classmethod
    def of(cls, design: Design, readings: Sequence[Reading]) -> Evidence:
        tables: dict[tuple[int, Metric], Table] = {}
        for load in range(len(design.loads)):
            mine = [row for row in readings if row.load == load and row.role == MEASURE]
            candidates = sorted({row.candidate for row in mine})
            blocks = sorted({(row.round, row.session) for row in mine})
            rows = {candidate: place for place, candidate in enumerate(candidates)}
            columns = {block: place for place, block in enumerate(blocks)}
            values = np.full((3, len(candidates), len(blocks)), np.nan)
            for reading in mine:
                at = (rows[reading.candidate], columns[reading.round, reading.session])
                if reading.throughput_ips:
                    values[0][at] = math.log(reading.throughput_ips)
                if reading.p99_ms:
                    values[2][at] = math.log(reading.p99_ms)
                    if not reading.p99_at_least:
                        values[1][at] = values[2][at]
            rounds = [round for round, _ in blocks]
            tables[load, Metric.THROUGHPUT] = Table(candidates, rounds, values[0], values[0])
            tables[load, Metric.P99] = Table(candidates, rounds, values[1], values[2])
        return cls(tables)

    def until(self, round: int, after: Mapping[tuple[int, int], int]) -> Evidence:
        """The evidence as it was after that round; of the cells in `after` only up to their round there."""
        by_load: dict[int, dict[int, int]] = defaultdict(dict)
        for (candidate, load), last in after.items():
            by_load[load][candidate] = last
        return Evidence({key: table.until(round, by_load[key[0]]) for key, table in self._tables.items()})

    def table(self, load: int, metric: Metric) -> Table:
        return self._tables[load, metric]

    @property
    def can_decide(self) -> bool:
        """Whether there are rounds enough for a verdict."""
        return self.look >= FIRST_LOOK

    def difference(self, one: tuple[int, int], two: tuple[int, int], metric: Metric) -> Estimate | None:
        """The first cell's logarithm minus the second's.

        Under one load round by round; under two loads the difference of the levels, whose rounds have nothing in
        common (their variances add, degrees of freedom by Welch and Satterthwaite).
        """
        if one[1] == two[1]:
            return self.table(one[1], metric).difference(one[0], two[0])
        first = self.table(one[1], metric).level(one[0])
        second = self.table(two[1], metric).level(two[0])
        if first is None or second is None or (first.bound and second.bound):
            return None
        total = first.error**2 + second.error**2
        spread = sum(part.error**4 / part.freedom for part in (first, second) if part.freedom > 0)
        return Estimate(
            first.value - second.value,
            math.sqrt(total),
            total**2 / spread if spread > 0 else min(first.freedom, second.freedom),
            min(first.rounds, second.rounds),
            max(first.look, second.look),
            first.bound - second.bound,
        )
