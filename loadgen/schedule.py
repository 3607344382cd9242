"""Arrival times: constant and Poisson, seeded, the same whatever the number of workers.

Belongs here: pure functions from a rate, a seed and a length to nanosecond offsets. Never: clocks, sending, I/O.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from tritune.plan import Arrivals

CHUNK = 4096


def offsets_ns(
    rate_rps: float, arrivals: Arrivals, seed: int, length_ns: int, *, chunk: int = CHUNK
) -> Iterator[NDArray[np.int64]]:
    """Yield all arrival offsets in [0, length_ns), ascending, at most `chunk` at a time.

    Constant: the k-th arrival (from 0) is at floor(k / rate). Poisson: exponential gaps of mean 1 / rate, summed,
    the first arrival after one gap (Law and Kelton, Simulation Modeling and Analysis, 6.12). `chunk` does not
    change the values.
    """
    period_ns = 1e9 / rate_rps
    generator = np.random.default_rng(seed)
    first = 0
    clock_ns = 0.0
    while True:
        if arrivals is Arrivals.CONSTANT:
            times = np.arange(first, first + chunk, dtype=np.float64) * period_ns
        else:
            # a running sum, gap by gap, so that the chunk's size cannot change a rounding
            gaps = generator.standard_exponential(chunk) * period_ns
            gaps[0] += clock_ns
            times = np.cumsum(gaps)
            clock_ns = float(times[-1])
        first += chunk
        offsets = times.astype(np.int64)
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
