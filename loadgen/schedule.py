"""Arrival times: constant, Poisson, stages, replay; seeded, the same whatever the number of workers.

Belongs here: pure functions from a load plan to nanosecond offsets. Never: clocks, sending, I/O.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tritune.arrival_plan import Stage
from tritune.load_plan import Arrivals, LoadPlan

CHUNK = 4096


def planned_ns(plan: LoadPlan, length_ns: int, *, chunk: int = CHUNK) -> Iterator[NDArray[np.int64]]:
    """Yield all arrival offsets of an open loop in [0, length_ns), ascending, at most `chunk` at a time.

    Offset 0 is the warm-up's begin. `chunk` does not change the values.
    """
    if plan.intervals_us:
        return _until(_replay(plan.intervals_us, chunk), length_ns)
    if plan.stages:
        first = plan.stages[0].from_rps
        warmup = [Stage(plan.warmup_s, first, first)] if plan.warmup_s else []
        return _until(_staged([*warmup, *plan.stages], plan.arrivals, plan.seed, chunk), length_ns)
    assert plan.rate_rps is not None
    return offsets_ns(plan.rate_rps, plan.arrivals, plan.seed, length_ns, chunk=chunk)


def offsets_ns(
    rate_rps: float, arrivals: Arrivals, seed: int, length_ns: int, *, chunk: int = CHUNK
) -> Iterator[NDArray[np.int64]]:
    """The same for one rate.

    Constant: the k-th arrival (from 0) is at floor(k / rate). Poisson: exponential gaps of mean 1 / rate, summed,
    the first arrival after one gap (Law and Kelton, Simulation Modeling and Analysis, 6.12).
    """
    period_ns = 1e9 / rate_rps
    times = ((places * period_ns).astype(np.int64) for places in _places(arrivals, seed, chunk))
    return _until(times, length_ns)


def _places(arrivals: Arrivals, seed: int, chunk: int) -> Iterator[NDArray[np.float64]]:
    """The arrivals of a process whose rate is 1, without end."""
    generator = np.random.default_rng(seed)
    first = 0
    clock = 0.0
    while True:
        if arrivals is Arrivals.CONSTANT:
            yield np.arange(first, first + chunk, dtype=np.float64)
            first += chunk
        else:
            # a running sum, gap by gap, so that the chunk's size cannot change a rounding
            gaps = generator.standard_exponential(chunk)
            gaps[0] += clock
            sums = np.cumsum(gaps)
            clock = float(sums[-1])
            yield sums


def _staged(stages: Sequence[Stage], arrivals: Arrivals, seed: int, chunk: int) -> Iterator[NDArray[np.int64]]:
    """Arrivals of rate 1 on the axis of the expected count, brought back to time through the count's inverse.

    With L(t) the integral of the rate, L⁻¹ of a Poisson process of rate 1 is the Poisson process with that rate (E.
    Çınlar, Introduction to Stochastic Processes, 1975, 4.7; Law and Kelton 8.6.2); L⁻¹(0), L⁻¹(1), … is its even form.
    In a stage from a to b over T, L(t) = a t + (b − a) t² / 2T, so t = 2 u / (a + √(a² + 2 u (b − a) / T)).
    """
    ends_s = np.cumsum([stage.duration_s for stage in stages])
    begins_s = ends_s - [stage.duration_s for stage in stages]
    counts = np.concatenate([[0.0], np.cumsum([stage.requests for stage in stages])])
    first = np.array([stage.from_rps for stage in stages])
    slope = np.array([(stage.to_rps - stage.from_rps) / stage.duration_s for stage in stages])
    for places in _places(arrivals, seed, chunk):
        places = places[: int(np.searchsorted(places, counts[-1], side="left"))]
        if not len(places):
            return
        stage = np.searchsorted(counts, places, side="right") - 1
        inside = places - counts[stage]
        root = np.sqrt(np.maximum(first[stage] ** 2 + 2 * inside * slope[stage], 0.0))
        slowest = np.maximum(first[stage] + root, 1e-300)  # 0 only at the begin of a ramp from 0
        times_s = begins_s[stage] + np.where(inside > 0, 2 * inside / slowest, 0.0)
        yield np.rint(np.minimum(times_s, ends_s[stage]) * 1e9).astype(np.int64)


def _replay(intervals_us: Sequence[int], chunk: int) -> Iterator[NDArray[np.int64]]:
    """The first arrival after the first interval, from the last one back to the first, without end."""
    ends = np.cumsum(np.asarray(intervals_us, dtype=np.int64)) * 1000
    begin = 0
    while True:
        for start in range(0, len(ends), chunk):
            yield ends[start : start + chunk] + begin
        begin += int(ends[-1])


def _until(chunks: Iterator[NDArray[np.int64]], length_ns: int) -> Iterator[NDArray[np.int64]]:
    for offsets in chunks:
        if offsets[-1] >= length_ns:
            offsets = offsets[: int(np.searchsorted(offsets, length_ns, side="left"))]
            if len(offsets):
                yield offsets
            return
        yield offsets


def share(chunks: Iterator[NDArray[np.int64]], worker: int, workers: int) -> Iterator[NDArray[np.int64]]:
    """The arrivals of one worker: the k-th of the whole schedule belongs to worker k mod `workers`."""
    position = 0
    for chunk in chunks:
        mine = chunk[(worker - position) % workers :: workers]
        position += len(chunk)
        if len(mine):
            yield mine
