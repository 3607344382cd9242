"""The search for the highest rate, against simulated servers whose truth is known."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest

from tritune.analysis import Number
from tritune.errors import InputError
from tritune.p99_limit import Judgement, Probe, judge, judge_rate, pool
from tritune.search import LOWEST_SHARE, Ask, Board, Outcome, RateGoal, Verdict, next_step

GOAL = RateGoal(limit_ms=20.0)
OVERHEAD_S = 3.0


@dataclass
class Queue:
    """A server with one exponential queue behind a fixed delay: P99 = delay + ln 100 / (capacity - rate).

    What the interval of a probe reports is `error` (of log P99); `drift` comes on top and is in no interval; with the
    chance of `hiccup` something else disturbs a whole probe. The generator is full from `generator_rps` on.
    """

    capacity_rps: float
    chance: random.Random
    delay_ms: float = 2.0
    error: float = 0.06
    drift: float = 0.04
    hiccup: float = 0.03
    generator_rps: float = math.inf

    def truth_rps(self, limit_ms: float) -> float:
        return self.capacity_rps - 1e3 * math.log(100) / (limit_ms - self.delay_ms)

    def probe(self, ask: Ask) -> Probe:
        planned_s = ask.warmup_s + ask.duration_s
        took_s = planned_s + OVERHEAD_S * self.chance.uniform(0.7, 1.0)
        if ask.rate_rps is None:
            rate = min(self.capacity_rps * self.chance.uniform(0.8, 1.0), self.generator_rps)
            return Probe(None, rate, Number(None), planned_s=planned_s, took_s=took_s)
        rate, share = ask.rate_rps, min(1.0, self.capacity_rps / ask.rate_rps)
        if rate < 0.999 * self.capacity_rps:
            true_ms = self.delay_ms + 1e3 * math.log(100) / (self.capacity_rps - rate)
        else:
            true_ms = self.delay_ms + 1e3 * (1 - share) * ask.duration_s + 1e3
        value = true_ms * math.exp(self.chance.gauss(0, math.hypot(self.error, self.drift)))
        if self.chance.random() < self.hiccup:
            value *= 4
        width = math.exp(1.96 * self.error * self.chance.uniform(0.8, 1.2))
        full = rate > self.generator_rps
        return Probe(
            rate,
            rate * share,
            Number(value * (10 if full else 1), value / width, value * width * (10 if full else 1)),
            answered_share=share,
            doubt="The load generator used 99 % of a core." if full else None,
            planned_s=planned_s,
            took_s=took_s,
        )


def run(server: Queue, goal: RateGoal = GOAL) -> tuple[Verdict, list[Probe], float]:
    """A whole search; returns verdict, probes and the seconds that it took."""
    probes: list[Probe] = []
    spent_s = 0.0
    while True:
        step = next_step(goal, probes, spent_s=spent_s)
        if isinstance(step, Verdict):
            return step, probes, spent_s
        probes.append(server.probe(step))
        spent_s += probes[-1].took_s
        assert len(probes) < 100


@pytest.mark.parametrize(("noise", "share"), [(0.0, 0.95), (1.0, 0.95), (2.0, 0.9)])
def test_the_found_rate_is_within_10_percent_of_the_truth_in_9_of_10_runs_and_within_the_budget(
    noise: float, share: float
) -> None:
    good, runs = 0, 400
    for seed in range(runs):
        chance = random.Random(seed)
        server = Queue(10 ** chance.uniform(2.8, 4.3), chance, error=0.06 * noise, drift=0.04 * noise)
        verdict, _, spent_s = run(server)
        assert spent_s <= GOAL.budget_s
        truth = server.truth_rps(GOAL.limit_ms)
        good += verdict.low_rps is not None and abs(verdict.low_rps / truth - 1) <= 0.10
    assert good / runs >= share


def test_without_noise_the_range_holds_the_truth_and_is_as_narrow_as_asked() -> None:
    for seed in range(50):
        chance = random.Random(seed)
        server = Queue(10 ** chance.uniform(2.8, 4.3), chance, error=1e-6, drift=0, hiccup=0)
        verdict, probes, _ = run(server)
        assert verdict.outcome is Outcome.FOUND
        assert verdict.low_rps is not None
        assert verdict.high_rps is not None
        assert verdict.low_rps <= server.truth_rps(20.0) <= verdict.high_rps
        assert verdict.high_rps / verdict.low_rps <= 1.05 + 1e-9
        assert len(probes) <= 12


def test_a_limit_below_the_idle_latency_is_missed_at_the_lowest_rate() -> None:
    server = Queue(1000, random.Random(1), delay_ms=30.0)
    verdict, probes, _ = run(server)
    assert (verdict.outcome, verdict.low_rps) == (Outcome.LIMIT_MISSED, None)
    assert "Even the lowest rate" in verdict.reason
    lowest = min(probe.rate_rps for probe in probes if probe.rate_rps)
    assert verdict.high_rps == lowest
    assert lowest == pytest.approx(LOWEST_SHARE * probes[0].answered_rps, rel=0.02)


def test_a_generous_limit_ends_where_the_answers_fall_behind() -> None:
    server = Queue(1000, random.Random(2), hiccup=0)
    verdict, _, _ = run(server, replace(GOAL, limit_ms=1500.0, budget_s=3600.0))
    assert verdict.outcome is Outcome.FOUND
    assert verdict.low_rps == pytest.approx(1000, rel=0.1)
    assert "fell behind" in verdict.reason or "above 1500 ms" in verdict.reason


def test_a_limit_that_no_rate_misses_ends_at_the_highest_rate_that_there_is() -> None:
    server = Queue(1e9, random.Random(3), hiccup=0)
    server.capacity_rps = 5e6
    verdict, _, _ = run(server)
    assert (verdict.outcome, verdict.low_rps, verdict.high_rps) == (Outcome.LIMIT_NOT_REACHED, 1e6, None)


def test_a_full_generator_is_never_the_servers_limit() -> None:
    for seed in range(20):
        server = Queue(20_000, random.Random(seed), generator_rps=5000)
        verdict, _, _ = run(server)
        assert verdict.outcome is Outcome.GENERATOR_LIMITED
        assert verdict.high_rps is None
        assert verdict.low_rps == pytest.approx(5000, rel=0.1)
        assert "generator was the limit" in verdict.reason
        assert "99 % of a core" in verdict.reason


def test_a_generator_that_lags_in_deep_overload_does_not_hide_the_servers_limit() -> None:
    """Far above its capacity a server uses up the connections, so that requests leave late."""

    class Late(Queue):
        def probe(self, ask: Ask) -> Probe:
            probe = super().probe(ask)
            late = ask.rate_rps is not None and ask.rate_rps > 1.05 * self.capacity_rps
            return replace(probe, doubt="Requests left late.") if late else probe

    server = Late(2000, random.Random(4), hiccup=0)
    verdict, _, _ = run(server)
    assert verdict.outcome is Outcome.FOUND
    assert verdict.low_rps == pytest.approx(server.truth_rps(20.0), rel=0.1)


def test_a_budget_that_is_spent_says_what_is_known() -> None:
    server = Queue(2000, random.Random(5), hiccup=0)
    verdict, _, spent_s = run(server, replace(GOAL, budget_s=40.0))
    assert verdict.outcome is Outcome.BUDGET_SPENT
    assert spent_s <= 40.0
    assert verdict.low_rps is not None
    assert "--budget-min" in verdict.reason


def test_a_slow_model_is_measured_long_enough_for_a_p99() -> None:
    assert GOAL.window_s(10.0) == 60.0
    server = Queue(20.0, random.Random(6), hiccup=0)
    verdict, probes, spent_s = run(server, replace(GOAL, limit_ms=2000.0, budget_s=3600.0))
    assert spent_s <= 3600
    assert verdict.low_rps == pytest.approx(server.truth_rps(2000.0), rel=0.15)
    assert all(probe.planned_s >= 40 for probe in probes[1:])
    verdict, _, spent_s = run(server)  # 20 ms is far below what such a model needs
    assert verdict.outcome is Outcome.LIMIT_MISSED
    assert spent_s <= GOAL.budget_s


def test_a_search_that_was_interrupted_goes_on_where_it_was() -> None:
    server = Queue(2000, random.Random(7))
    _, probes, _ = run(server)
    for count in range(len(probes)):
        step = next_step(GOAL, probes[:count], spent_s=0.0)
        assert isinstance(step, Ask)
        assert step.rate_rps == probes[count].rate_rps


# --- one rate ---


def probe(value: float, low: float | None, high: float | None, **options: object) -> Probe:
    return replace(Probe(100.0, 100.0, Number(value, low, high)), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("made", "judgement"),
    [
        (probe(15, 14, 19), Judgement.HELD),
        (probe(25, 21, 30), Judgement.MISSED),
        (probe(19, 15, 25), Judgement.UNDECIDED),
        (probe(19, None, None), Judgement.UNDECIDED),
        (replace(probe(0, 0, 0), p99_ms=Number(25.0, at_least=True)), Judgement.MISSED),
        (probe(15, 14, 19, lost_share=0.02), Judgement.MISSED),
        (probe(15, 14, 19, answered_share=0.9), Judgement.MISSED),
        (probe(15, 14, 19, doubt="late"), Judgement.HELD),
        (probe(25, 21, 30, doubt="late"), Judgement.GENERATOR),
        (probe(19, 15, 25, doubt="late"), Judgement.UNDECIDED),
        (probe(15, 14, 19, answered_share=0.9, doubt="late"), Judgement.GENERATOR),
    ],
)
def test_a_probe_is_decided_only_by_a_whole_interval(made: Probe, judgement: Judgement) -> None:
    assert judge(made, 20.0)[0] is judgement


def test_probes_of_one_rate_are_pooled_and_a_contradiction_widens_the_interval() -> None:
    alike = pool([probe(17, 14.2, 20.4), probe(17.2, 14.3, 20.6), probe(16.8, 14, 20.2)])
    assert alike is not None
    assert alike.low is not None
    assert alike.high is not None
    assert 14.3 < alike.low < 17 < alike.high < 20  # each alone reaches beyond 20
    assert judge_rate([probe(17, 14.2, 20.4)] * 3, 20.0)[0] is Judgement.HELD
    apart = pool([probe(10, 9.5, 10.5), probe(40, 38, 42)])
    assert apart is not None
    assert apart.low is not None
    assert apart.high is not None
    assert apart.low < 13
    assert apart.high > 30
    assert pool([probe(10, None, None)]) is None


def test_two_of_three_decide_where_one_was_disturbed() -> None:
    held, missed = probe(10, 9.5, 10.5), probe(40, 38, 42)
    assert judge_rate([missed, held], 20.0)[0] is Judgement.UNDECIDED
    assert judge_rate([missed, held, held], 20.0)[0] is Judgement.HELD
    assert judge_rate([missed, held, missed], 20.0)[0] is Judgement.MISSED
    behind = probe(10, 9.5, 10.5, answered_share=0.9)
    assert judge_rate([behind, held], 20.0)[0] is Judgement.UNDECIDED


def test_a_probe_of_the_generator_counts_only_where_no_other_decides() -> None:
    late, held = probe(40, 38, 42, doubt="late"), probe(10, 9.5, 10.5)
    near, near_late = probe(22, 19, 26), probe(22, 19, 26, doubt="late")
    assert judge_rate([late, late], 20.0)[0] is Judgement.GENERATOR
    assert judge_rate([late, held], 20.0)[0] is Judgement.HELD
    assert judge_rate([late, probe(40, 38, 42)], 20.0)[0] is Judgement.MISSED
    assert judge_rate([near, late, late], 20.0)[0] is Judgement.GENERATOR
    assert judge_rate([near, near, near], 20.0)[0] is Judgement.MISSED
    assert judge_rate([near, near, near_late], 20.0)[0] is Judgement.GENERATOR  # late ones show no server's limit


def test_the_board_guesses_how_many_probes_are_left() -> None:
    opening = Probe(None, 1000.0, Number(None))
    held, missed = probe(10, 9, 11), replace(probe(40, 38, 42), rate_rps=200.0)
    assert Board(GOAL, [opening]).probes_left() == 7
    assert 4 <= Board(GOAL, [opening, held, missed]).probes_left() <= 6


@pytest.mark.parametrize("wrong", [{"precision": 0.0}, {"budget_s": 0.0}, {"duration_s": 0.5}, {"budget_s": math.nan}])
def test_a_search_that_cannot_be_made_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError):
        replace(GOAL, **wrong)


def test_a_goal_survives_its_document() -> None:
    goal = RateGoal(12.5, 0.1, 120.0, 4.0, 1.0)
    assert RateGoal.from_dict(goal.to_dict()) == goal
