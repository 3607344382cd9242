"""Estimators for durations that are partly censored, and their block-bootstrap intervals (docs/measurement.md).

Belongs here: pure numpy formulas on arrays, each with its source. Never: files, clocks, what a request or a
trial is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.histogram import BLOCKS as BLOCKS
from loadgen.histogram import SLOTS_PER_BLOCK as SLOTS_PER_BLOCK
from loadgen.histogram import block_count as block_count

Int64 = NDArray[np.int64]
Interval = tuple[float, float]

CONFIDENCE_OF_TAIL = 0.99
"""A percentile is given only where its sample passes the true percentile with at least this probability."""

REPLICATES = 2000
_CHUNK = 250
_RANKS = 1 << 17
_TIERS = ((0.9, 1000), (0.095, 1500), (0.005, 1500))
"""(share of the sample from the bottom up, cells): how a sorted sample is cut for the bootstrap of a percentile."""


def required_successes(quantile: float) -> int:
    """How many observations a percentile needs: the least n with 1 - quantile^n >= 0.99.

    With n observations the largest one lies above the true quantile with probability 1 - quantile^n (Wilks 1942);
    this is also the first step of MLPerf's early stopping (mlcommons/inference, loadgen/early_stopping.cc:
    ceil(log(1 - c) / log(p)) with c = 0.99). P50: 7, P90: 44, P95: 90, P99: 459, P99.9: 4603.
    """
    return math.ceil(math.log(1 - CONFIDENCE_OF_TAIL) / math.log(quantile))


def rank(quantile: float, count: int) -> int:
    """The 1-based rank of a quantile among `count` sorted values: ceil(quantile * count), at least 1."""
    return max(1, math.ceil(quantile * count - 1e-9))


@dataclass(frozen=True, slots=True)
class Quantile:
    """A quantile in the unit of the sample; `at_least` where it falls on a censored value."""

    value: float
    at_least: bool


@dataclass(frozen=True, slots=True)
class Durations:
    """Durations, some of them right-censored: `exact` int64 and the known lower `bounds` of the others, both ascending.

    A censored duration counts as longer than every exact one, so in the order (first `exact`, then `bounds`) its bound
    is raised to the largest exact value.
    """

    exact: Int64
    bounds: Int64

    @classmethod
    def of(cls, values: Int64, censored: NDArray[np.bool_]) -> Durations:
        """From values of shape (n,) in any order; those that are `censored` are bounds."""
        return cls(np.sort(values[~censored]), np.sort(values[censored]))

    @property
    def size(self) -> int:
        """How many there are, censored ones included."""
        return int(self.exact.size + self.bounds.size)

    @property
    def successes(self) -> int:
        """How many are exact."""
        return int(self.exact.size)

    @property
    def mean(self) -> float:
        return (int(self.exact.sum()) + int(self.bounds.sum())) / self.size if self.size else 0.0

    @property
    def longest(self) -> float:
        return float(max(self.exact.max(initial=0), self.bounds.max(initial=0)))

    @property
    def has_censored(self) -> bool:
        return self.bounds.size > 0

    def within(self, limit: float) -> int:
        """How many exact ones are at most `limit`."""
        return int(np.searchsorted(self.exact, limit, side="right"))

    def at(self, places: NDArray[np.intp]) -> Int64:
        """The values at places (from 0) of the order."""
        least = self.exact[-1] if self.exact.size else 0
        hidden = np.maximum(self.bounds, least)[np.maximum(places - self.exact.size, 0)] if self.bounds.size else least
        if not self.exact.size:
            return np.asarray(hidden)
        return np.where(places < self.exact.size, self.exact[np.minimum(places, self.exact.size - 1)], hidden)

    def quantile(self, quantile: float) -> Quantile | None:
        """The inverse of the empirical distribution function: the value at rank ceil(q * n) (Hyndman & Fan 1996,
        definition 1; numpy's `inverted_cdf`). It is one of the observed values, never one between two. None for an
        empty sample.
        """
        if not self.size:
            return None
        place = rank(quantile, self.size)
        return Quantile(float(self.at(np.array([place - 1]))[0]), place > self.exact.size)

    def smallest_bound(self) -> float:
        """Where the censored values begin in the order; infinity where there are none."""
        return float(self.at(np.array([self.exact.size]))[0]) if self.has_censored else math.inf


@dataclass(frozen=True, slots=True)
class CountedDurations:
    """The same, counted in buckets by slot of the window: what a long run keeps (loadgen/histogram.py).

    `tops` (b,) are the buckets' largest durations, ascending, first those with exact durations, then those with
    censored ones raised to the largest exact; `counts` int64 of shape (slots, b); `exact_buckets` is how many of the b
    are exact. `total` and `longest` are exact.
    """

    tops: Int64
    counts: Int64
    exact_buckets: int
    total: float
    longest: float
    ends: Int64 = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "ends", np.cumsum(self.counts.sum(axis=0)))

    @classmethod
    def of(
        cls, tops_ns: Int64, exact: Int64, censored: Int64, total: float = math.nan, longest: float = math.nan
    ) -> CountedDurations:
        """From two tables (slots, buckets), or (buckets,), and the largest duration of every bucket."""
        exact, censored = np.atleast_2d(exact), np.atleast_2d(censored)
        some, bounds = np.flatnonzero(exact.any(axis=0)), np.flatnonzero(censored.any(axis=0))
        raised = np.maximum(tops_ns[bounds], tops_ns[some[-1]]) if some.size else tops_ns[bounds]
        counts = np.concatenate([exact[:, some], censored[:, bounds]], axis=1)
        return cls(np.concatenate([tops_ns[some], raised]), counts, int(some.size), total, longest)

    @property
    def size(self) -> int:
        return int(self.ends[-1]) if self.ends.size else 0

    @property
    def successes(self) -> int:
        return int(self.ends[self.exact_buckets - 1]) if self.exact_buckets else 0

    @property
    def has_censored(self) -> bool:
        return self.successes < self.size

    @property
    def mean(self) -> float:
        return self.total / self.size if self.size else 0.0

    def within(self, limit: float) -> int:
        """How many exact ones are in buckets that end at most at `limit`."""
        reached = int(np.searchsorted(self.tops[: self.exact_buckets], limit, side="right"))
        return int(self.ends[reached - 1]) if reached else 0

    def quantile(self, quantile: float) -> Quantile | None:
        """As Durations.quantile: the top of the bucket that holds the value of that rank."""
        if not self.size:
            return None
        bucket = int(np.searchsorted(self.ends, rank(quantile, self.size)))
        return Quantile(float(self.tops[bucket]), bucket >= self.exact_buckets)

    def smallest_bound(self) -> float:
        return float(self.tops[self.exact_buckets]) if self.has_censored else math.inf

    def intervals(self, quantiles: Sequence[float], draws: NDArray[np.float32]) -> tuple[Interval, ...]:
        """The 95 % intervals of quantiles, by block bootstrap over the slots."""
        return _intervals(self.counts.astype(np.float64), self.tops.astype(np.float64), quantiles, draws)


def draw_blocks(blocks: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """How often each replicate of a circular moving-block bootstrap (Politis & Romano 1992) draws each slot:
    shape (2000, 10 * blocks), each row summing to 10 * blocks."""
    slots = blocks * SLOTS_PER_BLOCK
    starts = rng.integers(0, slots, size=(REPLICATES, blocks, 1))
    drawn = (starts + np.arange(SLOTS_PER_BLOCK)) % slots
    flat = drawn.reshape(REPLICATES, slots) + np.arange(REPLICATES)[:, None] * slots
    return np.bincount(flat.ravel(), minlength=REPLICATES * slots).reshape(REPLICATES, slots).astype(np.float32)


def interval_of_replicates(replicates: NDArray[np.float64], blocks: int) -> Interval:
    """The 95 % interval: percentiles of the replicates, expanded for the small number of blocks.

    The tail is Phi(-sqrt(b / (b - 1)) * t[0.975, b - 1]) instead of 0.025, which gives a mean of b blocks the
    width of its t interval (Hesterberg 2015, the expanded percentile interval).
    """
    from scipy.special import ndtr, stdtrit

    tail = float(ndtr(-math.sqrt(blocks / (blocks - 1)) * stdtrit(blocks - 1, 0.975)))
    low, high = np.quantile(replicates, (tail, 1 - tail))
    return float(low), float(high)


def interval_of_rate(counts_per_slot: Int64, window_s: float, draws: NDArray[np.float32]) -> Interval:
    """The 95 % interval of (sum of counts) / window, by block bootstrap."""
    totals = draws.astype(np.float64) @ counts_per_slot.astype(np.float64)
    return interval_of_replicates(totals / window_s, draws.shape[1] // SLOTS_PER_BLOCK)


def intervals_of_quantiles(
    durations: Durations, slots: NDArray[Any], quantiles: Sequence[float], draws: NDArray[np.float32]
) -> tuple[Interval, ...]:
    """The 95 % intervals of quantiles, by block bootstrap; `slots` (n,) is the slot of each duration in their order.

    The sorted sample is cut into at most 4,000 cells, which get narrower towards the tail; a replicate's quantile
    is the largest value of the cell that it falls into. From P90 up this is exact for 15,000 values; of a million
    values a cell near P99 holds 64, near P99.9 four. A replicate costs one row of a matrix product, not a sort.
    """
    edges = _cell_edges(durations.size)
    cells = edges.size - 1
    table = np.zeros(draws.shape[1] * cells, dtype=np.int64)
    for first in range(0, durations.size, _RANKS):  # a stretch at a time, for the memory's sake
        ranks = np.arange(first, min(first + _RANKS, durations.size))
        keys = slots[ranks].astype(np.int64) * cells + np.searchsorted(edges, ranks, side="right") - 1
        table += np.bincount(keys, minlength=table.size)
    tops = durations.at(edges[1:] - 1).astype(np.float64)
    return _intervals(table.reshape(-1, cells).astype(np.float32), tops, quantiles, draws)


def _intervals(
    table: NDArray[Any], tops: NDArray[np.float64], quantiles: Sequence[float], draws: NDArray[np.float32]
) -> tuple[Interval, ...]:
    """From counts by (slot, cell) and the largest value of every cell."""
    replicates: list[list[NDArray[np.float64]]] = [[] for _ in quantiles]
    for first in range(0, draws.shape[0], _CHUNK):
        cumulative = np.cumsum(draws[first : first + _CHUNK] @ table, axis=1, dtype=np.float64)
        for place, quantile in enumerate(quantiles):
            needed = np.ceil(quantile * cumulative[:, -1:] - 1e-6)
            index = np.minimum(np.sum(cumulative < needed, axis=1), tops.size - 1)
            replicates[place].append(tops[index])
    blocks = draws.shape[1] // SLOTS_PER_BLOCK
    return tuple(interval_of_replicates(np.concatenate(part), blocks) for part in replicates)


def _cell_edges(count: int) -> NDArray[np.intp]:
    """Ranks at which cells begin and end: 0 first, `count` last, strictly rising."""
    parts = [np.zeros(1)]
    reached = 0.0
    for share, cells in _TIERS:
        parts.append((reached + share * np.arange(1, cells + 1) / cells) * count)
        reached += share
    edges = np.unique(np.concatenate(parts).round().astype(np.intp))
    edges[-1] = count
    return edges
