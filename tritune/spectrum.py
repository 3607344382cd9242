"""Latency percentiles up to P99.99 of several load tests together, and one load test second by second (pure).

Belongs here: what is computed from kept samples for a chart. Never: files, intervals, verdicts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen import histogram
from loadgen.histogram import Tally
from loadgen.samples import Samples
from tritune.estimators import CountedDurations, Int64, required_successes
from tritune.window import NS_PER_MS, NS_PER_S, Window

if TYPE_CHECKING:
    Array = np.ndarray[Any, Any]

    Part = tuple[Samples | Tally, Sequence[int]]
    """The samples of one load test and its window [start, end) in ns."""

HIGHEST = 0.9999
POINTS = 240
MARKS = (0.5, 0.9, 0.99, 0.999, 0.9999)
LEAST_IN_A_SECOND = 100
"""A second with fewer requests has no percentiles in a timeline: its P99 would be its slowest request."""
MOST_STEPS = 600


def spectrum(parts: Sequence[Part]) -> tuple[Array, Array]:
    """Shares q and the latency in ms at each, both of one length: P_q = x_k with k = ⌈q n⌉ of all requests together.

    The points are even in the logarithm of 1/(1 − q) and end at P99.99, or at the last percentile for which the
    requests suffice (docs/measurement.md), or before the first that reaches requests without an answer.
    """
    values, counts, total = _pooled(parts)
    if not total:
        return np.empty(0), np.empty(0)
    ends = np.cumsum(counts)
    answered = int(ends[-1]) if ends.size else 0
    shares = np.unique(np.concatenate([1 - np.geomspace(1, 1 - HIGHEST, POINTS), MARKS]).round(12))
    shares = shares[shares > 0]
    ranks = np.ceil(shares * total - 1e-9).astype(np.int64)
    needed = np.array([required_successes(float(share)) for share in shares])
    good = (ranks >= 1) & (ranks <= answered) & (needed <= answered)
    places = np.searchsorted(ends, ranks[good], side="left")
    return shares[good], values[places] / NS_PER_MS


def _pooled(parts: Sequence[Part]) -> tuple[Int64, Int64, int]:
    """Latencies in ns, ascending, how often each occurred, and how many requests there were, unanswered ones too."""
    values: list[Int64] = []
    counts: list[Int64] = []
    total = 0
    for samples, window_ns in parts:
        latencies = Window.cut(samples, int(window_ns[0]), int(window_ns[1])).latencies
        total += latencies.size
        if isinstance(latencies, CountedDurations):
            values.append(latencies.tops[: latencies.exact_buckets])
            counts.append(latencies.counts[:, : latencies.exact_buckets].sum(axis=0))
        else:
            values.append(latencies.exact)
            counts.append(np.ones(latencies.exact.size, np.int64))
    if not values:
        return np.empty(0, np.int64), np.empty(0, np.int64), 0
    every, number = np.concatenate(values), np.concatenate(counts)
    order = np.argsort(every, kind="stable")
    return every[order], number[order], total


def timeline(
    samples: Samples | Tally, window_ns: Sequence[int], batch: int, share: float = 0.99
) -> tuple[Array, Array, Array]:
    """Middle of each step in s from the window's start, answered inferences per second in it, and the percentile in ms
    of the requests intended in it (NaN where there are fewer than 100, or where it reaches requests without an answer).

    A step is a second, longer where the window has more than 600; a load test that kept counts only has 200 steps.
    """
    start, end = int(window_ns[0]), int(window_ns[1])
    length_s = (end - start) / NS_PER_S
    if isinstance(samples, Tally):
        window = Window.cut(samples, start, end)
        assert isinstance(window.latencies, CountedDurations)
        answers, found = window.answers_by_slot, _quantiles_of_counts(window.latencies, share)
        width_s = length_s / answers.size
        middles = (np.arange(answers.size) + 0.5) * width_s
        return middles, answers * batch / width_s, found
    whole_s = max(1, math.ceil(length_s / MOST_STEPS))
    edges = np.append(np.arange(0, max(length_s - 0.5 * whole_s, 0.5 * length_s), whole_s), length_s)
    seen = histogram.cut(samples, start, end)
    answers = np.histogram((seen.answers_ns - start) / NS_PER_S, edges)[0]
    step = np.searchsorted(edges, (seen.intended_ns - start) / NS_PER_S, side="right") - 1
    steps = (step == place for place in range(answers.size))
    found = np.array([_quantile(seen.latencies[inside], seen.censored[inside], share) for inside in steps])
    return (edges[:-1] + edges[1:]) / 2, answers * batch / np.diff(edges), found


def _quantile(latencies: Int64, censored: Array, share: float) -> float:
    exact = np.sort(latencies[~censored])
    place = math.ceil(share * latencies.size)
    if latencies.size < LEAST_IN_A_SECOND or place > exact.size:
        return math.nan
    return float(exact[place - 1]) / NS_PER_MS


def _quantiles_of_counts(latencies: CountedDurations, share: float) -> Array:
    ends = np.cumsum(latencies.counts, axis=1)
    totals = ends[:, -1] if ends.shape[1] else np.zeros(ends.shape[0], np.int64)
    found = np.full(totals.size, math.nan)
    for place, total in enumerate(totals):
        bucket = int(np.searchsorted(ends[place], math.ceil(share * total)))
        if total >= LEAST_IN_A_SECOND and bucket < latencies.exact_buckets:
            found[place] = latencies.tops[bucket] / NS_PER_MS
    return found
