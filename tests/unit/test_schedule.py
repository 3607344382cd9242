"""Arrival times are a pure function of rate, arrivals, seed and length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from loadgen.schedule import offsets_ns, share
from tritune.plan import Arrivals

SECOND = 10**9


def times(rate: float, arrivals: Arrivals, seed: int, length_ns: int, chunk: int = 4096) -> list[int]:
    chunks = list(offsets_ns(rate, arrivals, seed, length_ns, chunk=chunk))
    return np.concatenate(chunks).tolist() if chunks else []


@pytest.mark.parametrize(
    ("rate", "length_ns", "expected"),
    [
        (4, SECOND, [0, 250_000_000, 500_000_000, 750_000_000]),  # the end is not part of the window
        (4, SECOND + 1, [0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000]),
        (3, SECOND, [0, 333_333_333, 666_666_666]),
        (0.5, SECOND, [0]),
        (1, 1, [0]),
        (1_000_000, 3000, [0, 1000, 2000]),
        (5, 0, []),
    ],
)
def test_constant_arrivals_are_evenly_spaced_from_zero(rate: float, length_ns: int, expected: list[int]) -> None:
    assert times(rate, Arrivals.CONSTANT, 0, length_ns) == expected


@pytest.mark.parametrize("arrivals", list(Arrivals))
def test_the_chunk_size_does_not_change_the_schedule(arrivals: Arrivals) -> None:
    whole = times(997, arrivals, 5, 10 * SECOND)
    assert times(997, arrivals, 5, 10 * SECOND, chunk=7) == whole
    assert whole == sorted(whole)
    assert whole[-1] < 10 * SECOND


@pytest.mark.parametrize("arrivals", list(Arrivals))
@pytest.mark.parametrize("workers", [1, 2, 3, 7])
def test_workers_together_send_the_whole_schedule(arrivals: Arrivals, workers: int) -> None:
    whole = times(300, arrivals, 1, 2 * SECOND)
    shares = [
        list(itertools.chain.from_iterable(share(offsets_ns(300, arrivals, 1, 2 * SECOND, chunk=64), index, workers)))
        for index in range(workers)
    ]
    assert sorted(itertools.chain.from_iterable(shares)) == whole
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    assert shares[0] == whole[::workers]


def test_poisson_gaps_are_exponential_with_the_rates_mean() -> None:
    rate = 1000.0
    gaps = np.diff(times(rate, Arrivals.POISSON, 2, 60 * SECOND)) / 1e9
    # 60,000 gaps: mean and standard deviation of an exponential are both 1/rate; 5 standard errors are 2 %
    assert gaps.mean() == pytest.approx(1 / rate, rel=0.02)
    assert gaps.std() == pytest.approx(1 / rate, rel=0.03)
    assert np.mean(gaps > 1 / rate) == pytest.approx(np.exp(-1), rel=0.03)


def test_a_seed_repeats_a_poisson_schedule_and_another_changes_it() -> None:
    first = times(50, Arrivals.POISSON, 0, 5 * SECOND)
    assert times(50, Arrivals.POISSON, 0, 5 * SECOND) == first
    assert times(50, Arrivals.POISSON, 1, 5 * SECOND) != first
    assert first[0] > 0


def test_a_schedule_of_billions_is_not_made_at_once() -> None:
    chunks = offsets_ns(1_000_000, Arrivals.POISSON, 0, 3600 * SECOND)
    assert len(next(chunks)) == 4096
