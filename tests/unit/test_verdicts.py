"""What rounds decide: ratios, verdicts, the best, what is out, when a study stops; and how often that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.verdicts import Scenario, simulate
from tritune import additive, looks, study_words, verdicts
from tritune.evidence import Design, Reading
from tritune.load_plan import LoadPlan
from tritune.study_plan import Metric, Objective
from tritune.verdicts import Comparison, Drift, Ratio, Verdict

CLOSED = LoadPlan("m", concurrency=8)
OPEN = LoadPlan("m", rate_rps=100.0)


def design(
    objective: Objective | None = None, loads: tuple[LoadPlan, ...] = (CLOSED,), rounds: int = 8, **other: float
) -> Design:
    return Design(objective or Objective(), loads, rounds, **other)  # type: ignore[arg-type]


def rounds_of(
    throughput: dict[int, float],
    p99: dict[int, float] | None = None,
    rounds: int = 8,
    load: int = 0,
    noise: float = 0.01,
    seed: int = 3,
    at_least: Callable[[int, int], bool] = lambda _candidate, _round: False,
) -> list[Reading]:
    """Readings of every candidate in every round around the given numbers."""
    chance = np.random.default_rng(seed)
    found = []
    for round in range(1, rounds + 1):
        for candidate, value in throughput.items():
            slow = (p99 or {}).get(candidate, 10.0)
            found.append(
                Reading(
                    candidate,
                    load,
                    round,
                    "measure",
                    value * math.exp(chance.normal(0, noise)),
                    slow * math.exp(chance.normal(0, noise)),
                    at_least(candidate, round),
                    f"t{len(found)}",
                )
            )
    return found


def verdict(found: tuple[Comparison, ...], candidate: int, load: int = 0) -> Verdict:
    return next(row.verdict for row in found if (row.candidate, row.load) == (candidate, load))


# --- the fit and the looks -------------------------------------------------------------------------------------------


def test_the_fit_is_ordinary_least_squares_also_where_cells_are_empty() -> None:
    chance = np.random.default_rng(0)
    table = chance.normal(size=(4, 6))
    table[1, 3:] = np.nan
    table[2, 1] = np.nan
    there = np.argwhere(np.isfinite(table))
    columns = np.zeros((len(there), 4 + 5))
    for row, (candidate, block) in enumerate(there):
        columns[row, candidate] = 1
        if block:
            columns[row, 3 + block] = 1
    y = table[np.isfinite(table)]
    solution, squares, rank, _ = np.linalg.lstsq(columns, y)
    covariance = np.linalg.inv(columns.T @ columns) * squares[0] / (y.size - rank)
    contrast = np.zeros(9)
    contrast[[1, 0]] = (1, -1)
    found = additive.fit(table)
    value, variance, freedom = found.difference(np.asarray(0))
    assert found.freedom == y.size - rank
    assert found.variance == pytest.approx(squares[0] / (y.size - rank))
    assert value[1] == pytest.approx(solution[1] - solution[0])
    assert variance[1] == pytest.approx(contrast @ covariance @ contrast)
    assert freedom[1] == found.freedom


def test_what_shares_no_round_by_any_chain_has_no_difference() -> None:
    table = np.array([[1.0, 1.1, np.nan, np.nan], [np.nan, np.nan, 1.2, 1.3]])
    value, variance, _ = additive.fit(table).difference(np.asarray(0))
    assert np.isnan(value[1])
    assert np.isnan(variance[1])


def test_a_round_that_is_slower_for_all_changes_no_difference() -> None:
    table = np.random.default_rng(1).normal(size=(3, 5))
    slower = table + np.array([0, 0, -2.0, 0, 0])
    for one, two in zip(
        additive.fit(table).difference(np.asarray(0)), additive.fit(slower).difference(np.asarray(0)), strict=True
    ):
        assert one == pytest.approx(two)


def test_a_candidate_that_is_much_noisier_keeps_a_variance_of_its_own() -> None:
    table = np.random.default_rng(2).normal(size=(6, 8)) * 0.01
    table[4] *= 10
    found = additive.fit(table)
    assert found.variances[4] > 10 * found.variances[5]
    assert found.variances[5] < 0.02**2
    assert found.freedoms[4] == 7
    _, variance, freedom = found.difference(np.asarray(0))
    assert variance[4] > 5 * variance[5]
    assert freedom[4] < 8


def test_the_looks_spend_five_percent_together() -> None:
    chance = np.random.default_rng(4)
    sums = chance.normal(size=(200_000, 8)).cumsum(axis=1) / np.sqrt(np.arange(1, 9))
    critical = [looks.critical(look, 8, 1, 1e9) for look in range(3, 9)]
    # 200,000 draws: standard error 0.05 %.
    assert (np.abs(sums[:, 2:]) > critical).any(axis=1).mean() == pytest.approx(0.05, abs=0.002)
    assert critical == sorted(critical, reverse=True)


def test_one_look_spends_all_and_a_family_shares_it() -> None:
    assert looks.level(3, 3, 1) == pytest.approx(0.05)
    assert looks.level(3, 3, 10) == pytest.approx(0.005)
    assert looks.level(12, 8, 5) == looks.level(8, 8, 5)
    assert looks.critical(3, 3, 1, 0.0) == math.inf


# --- verdicts ----------------------------------------------------------------------------------------------------


def test_more_throughput_is_better_less_is_worse_and_equal_is_not_told() -> None:
    found = verdicts.compare(design(), rounds_of({0: 1000, 1: 1200, 2: 900, 3: 1001}))
    assert [row.verdict for row in found] == [Verdict.BETTER, Verdict.WORSE, Verdict.NO_DIFFERENCE]
    assert found[0].ratio is not None
    assert found[0].ratio.low < 1.2 < found[0].ratio.high


def test_in_an_open_loop_a_lower_p99_is_better() -> None:
    readings = rounds_of(dict.fromkeys(range(3), 100.0), {0: 10, 1: 5, 2: 20})
    found = verdicts.compare(design(loads=(OPEN,)), readings)
    assert [row.metric for row in found] == [Metric.P99, Metric.P99]
    assert [row.verdict for row in found] == [Verdict.BETTER, Verdict.WORSE]


def test_two_rounds_give_a_ratio_and_no_verdict() -> None:
    row = verdicts.compare(design(rounds=2), rounds_of({0: 1000, 1: 500}, rounds=2))[0]
    assert row.verdict is Verdict.NOT_MEASURED
    assert row.throughput_ratio is not None
    assert row.throughput_ratio.value == pytest.approx(0.5, rel=0.05)
    assert "needs 3 rounds" in study_words.comparison_sentence(row)


def test_a_p99_that_is_a_bound_can_be_worse_but_never_better() -> None:
    throughput = dict.fromkeys(range(4), 100.0)
    worse = verdicts.compare(
        design(loads=(OPEN,)), rounds_of(throughput, {0: 10, 1: 40}, at_least=lambda candidate, _round: candidate == 1)
    )
    assert verdict(worse, 1) is Verdict.WORSE
    assert worse[0].p99_ratio is not None
    assert worse[0].p99_ratio.at_least
    assert "times the P99 or more" in study_words.comparison_sentence(worse[0])
    lower = verdicts.compare(
        design(loads=(OPEN,)), rounds_of(throughput, {0: 10, 1: 2}, at_least=lambda candidate, _round: candidate == 1)
    )
    assert verdict(lower, 1) is Verdict.NO_DIFFERENCE
    both = verdicts.compare(
        design(loads=(OPEN,)), rounds_of(throughput, at_least=lambda candidate, _round: candidate < 2)
    )
    assert verdict(both, 1) is Verdict.NOT_MEASURED
    assert "both P99s" in study_words.comparison_sentence(both[0])


def test_too_few_requests_for_a_p99_are_named() -> None:
    readings = [
        Reading(row.candidate, 0, row.round, "measure", row.throughput_ips, None if row.candidate else 9.0, False, "t")
        for row in rounds_of({0: 100, 1: 100})
    ]
    row = verdicts.compare(design(loads=(OPEN,)), readings)[0]
    assert row.verdict is Verdict.NOT_MEASURED
    assert "459" in study_words.comparison_sentence(row)


def test_what_was_measured_in_another_part_of_the_round_has_a_ratio_without_a_verdict() -> None:
    readings = [
        Reading(r.candidate, 0, r.round, r.role, r.throughput_ips, r.p99_ms, False, r.trial_id, session=r.candidate)
        for r in rounds_of({0: 1000, 1: 2000})
    ]
    row = verdicts.compare(design(), readings)[0]
    assert row.verdict is Verdict.NOT_MEASURED
    assert row.throughput_ratio is not None
    assert row.throughput_ratio.value == pytest.approx(2, rel=0.05)
    assert math.isinf(row.throughput_ratio.high)


def test_an_interval_without_end_is_no_difference() -> None:
    some = rounds_of({0: 1000, 1: 1200}, rounds=3, noise=0.05)
    row = verdicts.compare(design(rounds=3), [r for r in some if (r.candidate, r.round) != (1, 2)])[0]
    assert row.verdict is Verdict.NO_DIFFERENCE
    assert row.throughput_ratio is not None
    assert row.throughput_ratio.low < 1 < row.throughput_ratio.high


def test_a_small_difference_says_how_many_more_rounds_would_settle_it() -> None:
    readings = rounds_of({0: 1000, 1: 1025, 2: 1000, 3: 1000}, noise=0.03)
    row = verdicts.compare(design(), readings)[0]
    assert row.verdict is Verdict.NO_DIFFERENCE
    assert row.more_rounds is not None
    settled = verdicts.compare(
        design(rounds=8 + row.more_rounds), rounds_of({0: 1000, 1: 1025, 2: 1000, 3: 1000}, noise=0.0, rounds=3)
    )
    assert settled[0].verdict is Verdict.BETTER
    assert f"about {row.more_rounds} more round" in study_words.comparison_sentence(row)


def test_nothing_to_settle_is_said_as_such() -> None:
    chance = rounds_of({0: 1000, 1: 1000}, noise=0.03)
    mirrored = [
        Reading(1 - r.candidate, 0, r.round + 8, r.role, r.throughput_ips, r.p99_ms, False, r.trial_id) for r in chance
    ]
    row = verdicts.compare(design(rounds=16), [*chance, *mirrored])[0]
    assert row.more_rounds is None
    assert "more than 200 more rounds" in study_words.comparison_sentence(row)


# --- sentences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "metric", "words"),
    [
        (Ratio(1.124, 1.091, 1.158), Metric.THROUGHPUT, "12.4 % more throughput (95 % 9.1 to 15.8 %)"),
        (Ratio(0.918, 0.87, 0.969), Metric.P99, "8.2 % lower P99 (95 % 3.1 to 13.0 %)"),
        (Ratio(0.99, 0.95, 1.03), Metric.THROUGHPUT, "1.0 % less throughput (95 % −3.0 to 5.0 %)"),
        (Ratio(6.1, 5.5, 6.8), Metric.P99, "6.10 times the P99 (95 % 5.50 to 6.80 times)"),
        (Ratio(1.3, 1.2, math.inf), Metric.P99, "30.0 % higher P99 or more"),
        (Ratio(1.3, 0.0, math.inf), Metric.P99, "30.0 % higher P99"),
        (Ratio(1.001, 0.9995, 1.0025), Metric.THROUGHPUT, "0.10 % more throughput (95 % −0.05 to 0.25 %)"),
    ],
)
def test_a_ratio_in_words(ratio: Ratio, metric: Metric, words: str) -> None:
    assert study_words.ratio_words(ratio, metric) == words


# --- the best --------------------------------------------------------------------------------------------------------


def test_the_best_has_the_highest_throughput_and_names_what_cannot_be_told_from_it() -> None:
    found, reason = verdicts.best(design(), rounds_of({0: 1000, 1: 1200, 2: 1201, 3: 1100}))
    assert found is not None
    assert {found.candidate, *(candidate for candidate, _ in found.indistinguishable)} == {1, 2}
    assert reason == "highest throughput"


def test_under_a_limit_the_fastest_that_is_clearly_above_it_is_not_the_best() -> None:
    readings = rounds_of({0: 1000, 1: 2000, 2: 1500}, {0: 10, 1: 40, 2: 15})
    found, reason = verdicts.best(design(Objective(p99_ms=20)), readings)
    assert found is not None
    assert (found.candidate, found.indistinguishable, found.doubt) == (2, (), None)
    assert reason == "highest throughput with P99 ≤ 20 ms"


def test_no_configuration_keeps_the_limit_and_the_nearest_is_named() -> None:
    found, reason = verdicts.best(design(Objective(p99_ms=5)), rounds_of({0: 1000, 1: 2000}, {0: 10, 1: 40}))
    assert found is None
    assert reason.startswith(
        "No configuration keeps P99 ≤ 5 ms. The nearest is configuration 0 with 8 clients: its P99, 1"
    )


def test_one_that_only_may_keep_the_limit_is_doubted() -> None:
    readings = rounds_of({0: 1000, 1: 900}, {0: 20.2, 1: 40}, noise=0.05)
    found, _ = verdicts.best(design(Objective(p99_ms=20)), readings)
    assert found is not None
    assert found.candidate == 0
    assert found.doubt is not None


def test_the_lowest_p99_among_those_with_throughput_enough() -> None:
    readings = rounds_of({0: 1000, 1: 2000, 2: 1900}, {0: 1, 1: 9, 2: 5})
    found, reason = verdicts.best(design(Objective(min_throughput_ips=1500)), readings)
    assert found is not None
    assert found.candidate == 2
    assert reason == "lowest P99 with throughput ≥ 1500/s"


def test_in_open_loops_the_highest_rate_that_is_kept_up_with_counts() -> None:
    slow, fast = LoadPlan("m", rate_rps=100.0), LoadPlan("m", rate_rps=1000.0)
    readings = [
        *rounds_of({0: 100, 1: 100}, {0: 5, 1: 9}),
        *rounds_of({0: 700, 1: 1000}, {0: 50, 1: 20}, load=1),
    ]
    found, _ = verdicts.best(design(loads=(slow, fast)), readings)
    assert found is not None
    assert (found.candidate, found.load, found.indistinguishable) == (1, 1, ())


def test_a_p99_that_is_only_a_bound_above_the_limit_disqualifies() -> None:
    readings = rounds_of({0: 1000, 1: 2000}, {0: 10, 1: 30}, at_least=lambda candidate, _round: candidate == 1)
    found, _ = verdicts.best(design(Objective(p99_ms=20)), readings)
    assert found is not None
    assert found.candidate == 0


def test_nothing_measured_has_no_best() -> None:
    assert verdicts.best(design(), []) == (None, "Nothing has been measured yet.")


# --- looks at a running study ----------------------------------------------------------------------------------------


def test_what_is_clearly_worse_is_out_after_the_third_round_but_never_the_baseline() -> None:
    readings = rounds_of({0: 500, 1: 1000, 2: 1001, 3: 400}, rounds=3)
    settled = verdicts.settle(design(), readings, 3)
    assert set(settled.out) == {(3, 0)}
    assert settled.after == {(3, 0): 3}
    assert settled.out[3, 0] == "0.395 times the throughput of configuration 1, the best under this load"
    assert settled.stop is None
    assert verdicts.settle(design(), readings, 2).out == {}


def test_a_study_stops_when_the_best_is_told_from_all_others() -> None:
    settled = verdicts.settle(design(), rounds_of({0: 500, 1: 1000, 2: 600}, rounds=3), 3)
    assert settled.stop == "After round 3 the best is told from all others."


def test_a_cell_stays_out_and_the_same_rounds_say_the_same_later() -> None:
    readings = [row for row in rounds_of({0: 1000, 1: 1003, 2: 600}) if row.candidate < 2 or row.round <= 3]
    first = verdicts.settle(design(), [row for row in readings if row.round <= 3], 3)
    last = verdicts.settle(design(), readings, 7)
    assert dict(first.out) == dict(last.out)
    assert last.after == {(2, 0): 3}


def test_above_the_latency_limit_is_out_and_a_study_without_hope_stops() -> None:
    readings = rounds_of({0: 1000, 1: 2000, 2: 900}, {0: 40, 1: 50, 2: 60}, rounds=3)
    settled = verdicts.settle(design(Objective(p99_ms=20)), readings, 3)
    assert set(settled.out) == {(1, 0), (2, 0)}
    assert settled.out[1, 0].startswith("its P99, ")
    assert settled.out[1, 0].endswith("is above 20 ms")
    assert settled.stop == "After round 3 every configuration is clearly outside P99 ≤ 20 ms."


def test_a_limit_on_a_p99_that_nobody_has_ends_the_study_with_the_reason() -> None:
    readings = [
        Reading(row.candidate, 0, row.round, "measure", row.throughput_ips, None, False, "t")
        for row in rounds_of({0: 1000, 1: 1000}, rounds=3)
    ]
    asked = design(Objective(p99_ms=20))
    assert (verdicts.settle(asked, readings, 3).stop or "").endswith("(459 are needed). Measure longer.")
    found, reason = verdicts.best(asked, readings)
    assert found is None
    assert reason.startswith("No configuration can be shown to keep P99 ≤ 20 ms")


def test_a_fast_cell_that_may_break_the_limit_puts_no_other_out() -> None:
    readings = rounds_of({0: 1000, 1: 2000}, {0: 5, 1: 20}, rounds=3, noise=0.02)
    assert verdicts.settle(design(Objective(p99_ms=20)), readings, 3).out == {}


def test_a_study_stops_at_the_precision_that_was_asked_for() -> None:
    readings = rounds_of({0: 1000, 1: 1001, 2: 1002}, rounds=4, noise=0.005)
    settled = verdicts.settle(design(precision=0.05), readings, 4)
    assert settled.stop == "After round 3 every interval that still matters is within ±5 %."
    assert settled.round == 3


def test_cells_to_keep_and_studies_that_do_not_stop_early_lose_nothing() -> None:
    readings = rounds_of({0: 1000, 1: 500})
    assert verdicts.settle(design(), readings, 3, keep={(1, 0)}).out == {}
    settled = verdicts.settle(design(), readings, 8, stop_early=False)
    assert (settled.out, settled.stop) == ({}, "All 8 planned rounds are done.")


def test_one_configuration_alone_is_measured_to_the_end() -> None:
    assert verdicts.settle(design(), rounds_of({0: 1000}), 5).stop is None


# --- drift -----------------------------------------------------------------------------------------------------------


def test_drift_is_the_second_measurement_of_a_round_over_its_first() -> None:
    readings = rounds_of({0: 1000, 1: 1000}, rounds=2, noise=0.0)
    again = Reading(1, 0, 2, "drift", 900.0, 12.0, False, "t9")
    assert verdicts.drift([*readings, again]) == (Drift(2, 1, 0, pytest.approx(0.9), pytest.approx(1.2)),)


def test_a_machine_that_slows_down_within_every_round_is_warned_of() -> None:
    slowing = [Drift(round, 0, 0, ratio, 1.0) for round, ratio in enumerate((0.97, 0.965, 0.972, 0.968), start=1)]
    warnings = study_words.drift_warnings(slowing)
    assert [str(row.code) for row in warnings] == ["drift"]
    assert "−3.1 %" in warnings[0].message
    steady = [Drift(round, 0, 0, ratio, 1.0) for round, ratio in enumerate((1.01, 0.98, 1.02, 0.99), start=1)]
    assert study_words.drift_warnings(steady) == []


# --- how often all that is wrong -------------------------------------------------------------------------------------


def test_equal_configurations_come_out_equal() -> None:
    """A quick form of `python -m benchmarks.verdicts`: 65 of 1,000 are allowed, some 20 are seen; of 100 then 2."""
    found = simulate(Scenario("12 equal, 3 %, 8 rounds"), 100, seed=1)
    assert found.wrong <= 7
    assert found.wrong_out <= 7


def test_a_ten_percent_difference_is_found_in_eight_rounds() -> None:
    found = simulate(Scenario("12, one 10 % more", effects={5: 0.10}), 50, seed=1)
    assert found.found >= 45
    assert found.best_lost <= 2
    assert found.measured / found.studies < 0.8
