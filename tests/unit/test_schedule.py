"""Arrival times are a pure function of rate, arrivals, seed and length."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from loadgen.schedule import offsets_ns, planned_ns, share
from tritune.arrival_plan import parse_stages
from tritune.load_plan import Arrivals, LoadPlan

SECOND = 10**9
RATED = [Arrivals.CONSTANT, Arrivals.POISSON]


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


@pytest.mark.parametrize("arrivals", RATED)
def test_the_chunk_size_does_not_change_the_schedule(arrivals: Arrivals) -> None:
    whole = times(997, arrivals, 5, 10 * SECOND)
    assert times(997, arrivals, 5, 10 * SECOND, chunk=7) == whole
    assert whole == sorted(whole)
    assert whole[-1] < 10 * SECOND


@pytest.mark.parametrize("arrivals", RATED)
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


def planned(chunk: int = 4096, **options: object) -> list[int]:
    """The whole schedule of a plan."""
    values: dict[str, object] = {"warmup_s": 0, **options}
    if stages := values.pop("text", None):
        values["stages"] = parse_stages(str(stages))
        values["duration_s"] = sum(stage.duration_s for stage in values["stages"])  # type: ignore[attr-defined]
    plan = LoadPlan("m", **values)  # type: ignore[arg-type]
    length_ns = int((plan.warmup_s + plan.duration_s) * 1e9)
    chunks = list(planned_ns(plan, length_ns, chunk=chunk))
    return np.concatenate(chunks).tolist() if chunks else []


def per_second(offsets: list[int], seconds: int) -> list[int]:
    return np.bincount(np.array(offsets) // SECOND, minlength=seconds).tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("2s:100,1s:300,1s:50", [100, 100, 300, 50]),
        ("1s:100,2s:0,1s:100", [100, 0, 0, 100]),  # a pause
        ("2s:0-200", [50, 150]),  # a ramp: the integral of 100 t
        ("2s:200-0", [150, 50]),
        ("1s:100,1s:1000,1s:100", [100, 1000, 100]),  # a spike
        ("2s:100-300", [150, 250]),
    ],
)
def test_stages_send_the_integral_of_their_rate(text: str, counts: list[int]) -> None:
    offsets = planned(text=text)
    # a ramp's last arrival of a second may fall just beyond it
    np.testing.assert_allclose(per_second(offsets, len(counts)), counts, atol=1)
    assert len(offsets) == sum(counts)
    assert offsets == sorted(offsets)


def test_a_constant_stage_is_evenly_spaced_from_its_begin() -> None:
    offsets = planned(text="1s:4,1s:2", warmup_s=1)
    assert offsets == [round(t * SECOND) for t in (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5)]


def test_poisson_stages_have_the_stages_rates_and_exponential_gaps() -> None:
    offsets = planned(text="30s:100,30s:1000,30s:1000-2000", arrivals=Arrivals.POISSON, seed=3)
    counts = np.array(per_second(offsets, 90))
    # 5 standard errors of a Poisson count
    for part, mean in ((counts[:30], 3000), (counts[30:60], 30_000), (counts[60:], 45_000)):
        assert abs(int(part.sum()) - mean) < 5 * mean**0.5
    gaps = np.diff([time for time in offsets if 30 * SECOND <= time < 60 * SECOND]) / 1e9
    assert gaps.std() == pytest.approx(1e-3, rel=0.03)


@pytest.mark.parametrize(
    "options",
    [
        {"text": "1s:50-500,0.5s:1000,1s:0,1s:20"},
        {"text": "1s:50-500,0.5s:1000,1s:0,1s:20", "arrivals": Arrivals.POISSON, "warmup_s": 0.3},
        {"intervals_us": (1000, 0, 250, 40_000, 7), "arrivals": Arrivals.REPLAY, "duration_s": 2.5},
    ],
)
def test_stages_and_replays_are_the_same_whatever_the_chunks_and_the_workers(options: dict[str, object]) -> None:
    whole = planned(**options)  # type: ignore[arg-type]
    assert planned(chunk=3, **options) == whole  # type: ignore[arg-type]
    assert len(whole) > 100
    parts = [whole[index::3] for index in range(3)]
    mine = [list(itertools.chain.from_iterable(share(iter([np.array(whole)]), index, 3))) for index in range(3)]
    assert mine == parts


def test_a_replay_repeats_its_intervals_from_the_last_to_the_first() -> None:
    offsets = planned(intervals_us=(100_000, 300_000), arrivals=Arrivals.REPLAY, duration_s=1.0)
    assert offsets == [100_000_000, 400_000_000, 500_000_000, 800_000_000, 900_000_000]
