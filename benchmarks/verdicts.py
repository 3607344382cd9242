"""How often a study's verdicts are wrong, and how often they find what is there: simulated studies, real decisions.

    python -m benchmarks.verdicts [--studies 1000] [--only NAME] [--seed 1]

Each study is drawn as log-normal numbers (candidate x load x round) and goes through the same code as a real one:
looks after every round from the third on, configurations left out, an early stop, verdicts at its end. No server, no
clock: a few minutes of one core for all.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.tables import Table as Printed
from tritune import verdicts
from tritune.evidence import Design, Evidence, Table
from tritune.load_plan import LoadPlan
from tritune.study_plan import Metric, Objective
from tritune.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of study. `effects`: what a candidate's number is more than the baseline's (0.1: 10 %), by its number.

    `noise` is the standard deviation of one trial's logarithm, `tails` the degrees of freedom of a t distribution
    (None: normal), `drift` the standard deviation of what a whole round shares, `loud` that of one candidate's noise
    (`loud_at`) over the others', `lost` the share of trials that fail. `asked`: a search, which measures about so many
    candidates beside the baseline in a round, drawn at random.
    """

    name: str
    configurations: int = 12
    loads: int = 1
    rounds: int = 8
    noise: float = 0.03
    tails: float | None = None
    drift: float = 0.0
    loud: float = 1.0
    loud_at: int = -1
    metric: Metric = Metric.THROUGHPUT
    effects: Mapping[int, float] = field(default_factory=dict)
    lost: float = 0.0
    asked: int | None = None
    stop_early: bool = True


NOTHING = (
    Scenario("12 equal, 3 %, 8 rounds"),
    Scenario("the same, 3 rounds", rounds=3),
    Scenario("the same, 5 rounds", rounds=5),
    Scenario("the same, nothing left out, no early stop", stop_early=False),
    Scenario("the same, 3 loads", loads=3),
    Scenario("heavy tails (t, 4 df)", tails=4.0),
    Scenario("heavy tails, 3 rounds", tails=4.0, rounds=3),
    Scenario("rounds drift by 10 %", drift=0.10),
    Scenario("one trial in 20 fails", lost=0.05),
    Scenario("a search: 4 of 11 a round", asked=4),
    Scenario("P99, 8 %", noise=0.08, metric=Metric.P99),
    Scenario("4 equal, 2 loads, 3 rounds", configurations=4, loads=2, rounds=3),
    Scenario("2 equal, 8 rounds", configurations=2),
    Scenario("one candidate 3 times as noisy", loud=3.0),
    Scenario("the baseline 3 times as noisy", loud=3.0, loud_at=0),
    Scenario("the baseline so, 3 rounds", loud=3.0, loud_at=0, rounds=3),
)
SOMETHING = (
    Scenario("12, one 10 % more, 3 %, 8 rounds", effects={5: 0.10}),
    Scenario("the same, 5 rounds", rounds=5, effects={5: 0.10}),
    Scenario("the same, 3 rounds", rounds=3, effects={5: 0.10}),
    Scenario("the same, 3 loads", loads=3, effects={5: 0.10}),
    Scenario("5 % more, 8 rounds", effects={5: 0.05}),
    Scenario("heavy tails, 10 % more", tails=4.0, effects={5: 0.10}),
    Scenario("P99, 8 %, 10 % lower", noise=0.08, metric=Metric.P99, effects={5: -0.10}),
    Scenario("P99, 8 %, 25 % lower", noise=0.08, metric=Metric.P99, effects={5: -0.25}),
    Scenario("11 spread from −25 % to +10 %", effects={n: -0.25 + 0.035 * (n - 1) for n in range(1, 12)}),
)


@dataclass(slots=True)
class Outcome:
    """What a number of studies came to."""

    studies: int = 0
    wrong: int = 0
    wrong_out: int = 0
    found: int = 0
    to_find: int = 0
    best_lost: int = 0
    measured: float = 0.0
    took_s: float = 0.0

    def share(self, count: int, of: int | None = None) -> float:
        return count / max(self.studies if of is None else of, 1)


def simulate(scenario: Scenario, studies: int, seed: int) -> Outcome:
    """So many studies of one kind."""
    chance = np.random.default_rng([seed, *scenario.name.encode()])
    begun, outcome = time.perf_counter(), Outcome()
    loads = tuple(_load(scenario, number) for number in range(scenario.loads))
    design = Design(Objective(), loads, scenario.rounds)
    truth = np.zeros(scenario.configurations)
    for candidate, effect in scenario.effects.items():
        truth[candidate] = math.log1p(effect)
    for tables in _draws(scenario, truth, studies, chance):
        _study(scenario, design, truth, Evidence(tables), outcome)
    outcome.took_s = time.perf_counter() - begun
    return outcome


def _load(scenario: Scenario, number: int) -> LoadPlan:
    """Throughput is compared in closed loops, P99 in open ones; their rate is far below what is answered."""
    if scenario.metric is Metric.THROUGHPUT:
        return LoadPlan("simulated", concurrency=2**number)
    return LoadPlan("simulated", rate_rps=1.0 + number)


def _draws(
    scenario: Scenario, truth: NDArray[np.float64], studies: int, chance: np.random.Generator
) -> Iterator[dict[tuple[int, Metric], Table]]:
    """The tables of one study after the other: (candidates, rounds) for every load."""
    shape = (studies, scenario.loads, scenario.configurations, scenario.rounds)
    if scenario.tails is None:
        errors = chance.normal(size=shape)
    else:
        errors = chance.standard_t(scenario.tails, size=shape) * math.sqrt((scenario.tails - 2) / scenario.tails)
    errors *= scenario.noise
    errors[:, :, scenario.loud_at] *= scenario.loud
    shared = chance.normal(size=(studies, scenario.loads, 1, scenario.rounds)) * scenario.drift
    lost = chance.random(size=shape) < scenario.lost
    if scenario.asked is not None:
        order = chance.random(size=shape).argsort(axis=2)
        lost |= (order >= scenario.asked) & (np.arange(scenario.configurations) > 0)[:, None]
    numbers = np.where(lost, np.nan, 7.0 + truth[:, None] + errors + shared)
    names, rounds = range(scenario.configurations), np.arange(1, scenario.rounds + 1)
    steady = np.full(shape[2:], 7.0)
    for study in numbers:
        tables: dict[tuple[int, Metric], Table] = {}
        for load, table in enumerate(study):
            other = np.where(np.isnan(table), np.nan, steady)
            for metric in Metric:
                values = table if metric is scenario.metric else other
                tables[load, metric] = Table(names, rounds, values, values)
        yield tables


def _study(
    scenario: Scenario, design: Design, truth: NDArray[np.float64], evidence: Evidence, outcome: Outcome
) -> None:
    """One study from its first look to its verdicts, counted."""
    better = 1.0 if scenario.metric is Metric.THROUGHPUT else -1.0
    settled = verdicts.settle(design, evidence, scenario.rounds, stop_early=scenario.stop_early)
    kept = evidence.until(settled.round, settled.after)
    is_wrong, signs = False, {Verdict.BETTER: better, Verdict.WORSE: -better}
    for row in verdicts.compare(design, kept):
        sign = signs.get(row.verdict, 0.0)
        effect = truth[row.candidate] - truth[0]
        is_wrong |= sign != 0.0 and sign != np.sign(effect)
        if abs(effect) > 0.02:
            outcome.to_find += 1
            outcome.found += int(sign == np.sign(effect))
    top = (better * truth).max()
    wrong_out = [cell for cell in settled.out if better * truth[cell[0]] >= top]
    best, _ = verdicts.best(design, kept)
    named = {cell[0] for cell in (*best.indistinguishable, (best.candidate, best.load))} if best else set()
    outcome.studies += 1
    outcome.wrong += int(is_wrong)
    outcome.wrong_out += int(bool(wrong_out))
    outcome.best_lost += int(not named & set(np.flatnonzero(better * truth >= top).tolist()))
    cells = scenario.configurations * scenario.loads
    outcome.measured += sum(
        min(settled.after.get((candidate, load), settled.round), settled.round)
        for candidate in range(scenario.configurations)
        for load in range(scenario.loads)
    ) / (cells * scenario.rounds)


def report(scenarios: Mapping[str, Outcome], title: str, is_power: bool) -> Printed:
    header = ["studies", "wrong verdict", "wrongly out"]
    header += ["difference found", "best lost"] if is_power else []
    rows = []
    for name, outcome in scenarios.items():
        row = [name, f"{outcome.share(outcome.wrong):.1%}", f"{outcome.share(outcome.wrong_out):.1%}"]
        if is_power:
            row += [f"{outcome.share(outcome.found, outcome.to_find):.1%}", f"{outcome.share(outcome.best_lost):.1%}"]
        rows.append(
            (*row, f"{outcome.share(1, 1) * outcome.measured / outcome.studies:.0%}", f"{outcome.took_s:.0f} s")
        )
    return Printed(title, (*header, "trials made", "took"), tuple(rows))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="scenarios whose name holds this")
    options = parser.parse_args()
    for title, scenarios, is_power in (
        ("Nothing is different", NOTHING, False),
        ("Something is different", SOMETHING, True),
    ):
        found = {}
        for scenario in scenarios:
            if options.only in scenario.name:
                found[scenario.name] = simulate(scenario, options.studies, options.seed)
                print(report({scenario.name: found[scenario.name]}, title, is_power).plain(), file=sys.stderr)
        if found:
            print(report(found, title, is_power).markdown(), end="\n\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
