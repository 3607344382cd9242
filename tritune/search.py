"""The highest rate whose P99 stays under a limit: which rate to try next, and when to stop (docs/measurement.md).

Belongs here: pure functions from the probes made so far to the next one or the verdict, so that a search that was
interrupted goes on where it was. Never: running a probe, clocks, the store.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import pairwise
from typing import Any

from tritune.arrival_plan import MAX_RATE_RPS
from tritune.errors import InputError
from tritune.estimators import required_successes
from tritune.load_plan import Driver, LoadPlan
from tritune.p99_limit import ATTEMPTS, Judgement, Probe, judge_rate

OPENING_S = 3.0
OPENING_WARMUP_S = 1.0
FIRST_SHARE = 0.7
"""The first rate, as a share of the closed loop's throughput."""
LOWEST_SHARE = 1 / 64
LOWEST_BUDGET_SHARE = 1 / 4
"""The lowest rate: this share of the closed loop's throughput, but with a P99 within this share of the budget."""
GROWTH = 1.5
SAMPLES = math.ceil(1.3 * required_successes(0.99))
LIMITS_PER_WINDOW = 20
"""A window is at least so many limits long, so that a queue that only grows shows as answers that fall behind."""
CONFIRMED = {"missed": 2, "generator": 3}
"""Probes of the rate that ends the search: one alone may have been disturbed."""
UNCLEAR_RATES = 3
OVERHEAD_S = 5.0


class Outcome(StrEnum):
    """How a search ended."""

    FOUND = "found"
    GENERATOR_LIMITED = "generator_limited"
    BUDGET_SPENT = "budget_spent"
    LIMIT_MISSED = "limit_missed"
    LIMIT_NOT_REACHED = "limit_not_reached"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class RateGoal:
    """What is searched for, how exactly and for how long. `duration_s` and `warmup_s` are of one probe.

    Raises InputError where a value is out of range.
    """

    limit_ms: float
    precision: float = 0.05
    budget_s: float = 600.0
    duration_s: float = 10.0
    warmup_s: float = 2.0

    def __post_init__(self) -> None:
        for name, value, low, high, hint in (
            ("budget", self.budget_s, 10.0, 86400.0, "It is in seconds; --budget-min is in minutes."),
            ("precision", self.precision, 0.02, 0.5, "It is the width of the found range: 0.05 is 5 %."),
            ("duration", self.duration_s, 1.0, 3600.0, "A shorter window gives P99 no interval."),
        ):
            if not math.isfinite(value) or not low <= value <= high:
                raise InputError(f"{name}={value:g} must be from {low:g} to {high:g} for a search. {hint}")

    def to_dict(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of(cls, plan: LoadPlan, **options: float) -> RateGoal:
        """The search whose probes are made as `plan` says, apart from their rate; `options` as in RateGoal.

        Raises InputError where the plan has no limit, or one that its requests cannot tell.
        """
        if plan.p99_limit_ms is None:
            raise InputError("A search for the highest rate needs a limit. Give the P99 in milliseconds (--p99-ms).")
        if plan.driver is not Driver.LOCUST:
            raise InputError(
                "The highest rate is searched for with the locust driver: perf_analyzer does not tell when a request "
                "was due, so that its latencies hide a server that falls behind."
            )
        if plan.p99_limit_ms >= plan.timeout_s * 1e3:
            raise InputError(
                f"p99_ms={plan.p99_limit_ms:g} must be under the timeout of {plan.timeout_s:g} s, or a request that is "
                "given up could not be told from a good one. Raise --timeout."
            )
        return cls(plan.p99_limit_ms, duration_s=plan.duration_s, warmup_s=plan.warmup_s, **options)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> RateGoal:
        return cls(**{name: float(document[name]) for name in cls.__slots__ if name in document})

    def window_s(self, rate_rps: float) -> float:
        """How long to measure at a rate: long enough for a P99, and many times the limit."""
        return max(self.duration_s, math.ceil(SAMPLES / rate_rps), LIMITS_PER_WINDOW * self.limit_ms / 1e3)


@dataclass(frozen=True, slots=True)
class Ask:
    """The next probe. `rate_rps` None: a closed loop of OPENING_CLIENTS clients."""

    rate_rps: float | None
    duration_s: float
    warmup_s: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a search: `low_rps` is the highest rate shown to hold, `high_rps` the lowest one shown to fail."""

    outcome: Outcome
    low_rps: float | None
    high_rps: float | None
    reason: str


# --- all rates -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Board:
    """All that a search knows: the probes by rate, and what each rate was judged to be."""

    goal: RateGoal
    probes: Sequence[Probe]

    @cached_property
    def by_rate(self) -> Mapping[float, Sequence[Probe]]:
        found: dict[float, list[Probe]] = {}
        for probe in self.probes:
            if probe.rate_rps is not None:
                found.setdefault(probe.rate_rps, []).append(probe)
        return dict(sorted(found.items()))

    @cached_property
    def judged(self) -> Mapping[float, tuple[Judgement, str]]:
        return {rate: judge_rate(probes, self.goal.limit_ms) for rate, probes in self.by_rate.items()}

    def rates(self, *judgements: Judgement) -> list[float]:
        return [rate for rate, (judgement, _) in self.judged.items() if judgement in judgements]

    @property
    def capacity_rps(self) -> float | None:
        """What the closed loop got: a guess of what the server can do at most."""
        return max((probe.answered_rps for probe in self.probes if probe.rate_rps is None), default=None)

    @property
    def low_rps(self) -> float | None:
        return max(self.rates(Judgement.HELD), default=None)

    @property
    def high_rps(self) -> float | None:
        return min((rate for rate in self.rates(Judgement.MISSED) if rate > (self.low_rps or 0.0)), default=None)

    @property
    def ceiling_rps(self) -> float | None:
        """Where the search must stay below: where the server failed, or the generator was the limit."""
        above = self.rates(Judgement.MISSED, Judgement.GENERATOR)
        return min((rate for rate in above if rate > (self.low_rps or 0.0)), default=None)

    @property
    def unclear_rps(self) -> list[float]:
        """Rates between the two that stayed undecided."""
        low, ceiling = self.low_rps or 0.0, self.ceiling_rps or math.inf
        return [rate for rate in self.rates(Judgement.UNDECIDED) if low < rate < ceiling]

    def probes_left(self) -> int:
        """About how many probes are still to come."""
        low, ceiling = self.low_rps, self.ceiling_rps
        if low is None or ceiling is None:
            return 7
        return 1 + max(0, math.ceil(math.log2(math.log(ceiling / low) / math.log(1 + self.goal.precision))))


def next_step(goal: RateGoal, probes: Sequence[Probe], *, spent_s: float) -> Ask | Verdict:
    """The next probe, or the verdict: a function of the finished probes alone, and of the seconds spent.

    A closed loop gives a guess of the capacity; from 70 % of it the rate falls by 2, 4, 16 … or rises to it and beyond
    until the limit lies between two rates, and then halves their ratio. A rate that stays undecided is probed three
    times; the rate that ends the search is probed twice, or three times where it was the generator's limit. It ends
    where the two rates differ by no more than `goal.precision`, or before a probe that would not fit into the budget.
    """
    board = Board(goal, probes)
    if board.capacity_rps is None:
        return Ask(None, min(OPENING_S, goal.duration_s), min(OPENING_WARMUP_S, goal.warmup_s))
    found = _next_rate(board)
    if isinstance(found, Verdict):
        return found
    ask = Ask(found, goal.window_s(found), goal.warmup_s)
    overhead_s = max((probe.took_s - probe.planned_s for probe in probes), default=OVERHEAD_S)
    needed_s = ask.warmup_s + ask.duration_s + max(overhead_s, 0.0)
    if spent_s + needed_s <= goal.budget_s:
        return ask
    decided = found in board.judged and board.judged[found][0] is not Judgement.UNDECIDED
    return _verdict(board) if decided else _out_of_budget(board, found, needed_s)  # decided: only to be confirmed


def _next_rate(board: Board) -> float | Verdict:
    """The rate to try, or the verdict where the search is done."""
    for rate in reversed(board.rates(Judgement.UNDECIDED)):
        if len(board.by_rate[rate]) < ATTEMPTS:
            return rate
    capacity, unclear = board.capacity_rps or 0.0, board.unclear_rps
    low, ceiling = board.low_rps, board.ceiling_rps
    if ceiling is None:
        return _higher(board, max([*unclear, low or 0.0]), capacity)
    if low is None:
        return _lower(board, min([*unclear, ceiling]), capacity)
    points = [low, *unclear, ceiling]
    gap, start = max((after / before, before) for before, after in pairwise(points))
    if gap > 1 + board.goal.precision and len(unclear) < UNCLEAR_RATES:
        return _rounded(start * math.sqrt(gap))
    if len(board.by_rate[ceiling]) < CONFIRMED[board.judged[ceiling][0]]:
        return ceiling
    return _verdict(board)


def _rounded(rate: float) -> float:
    return min(float(f"{rate:.3g}"), MAX_RATE_RPS)


def _higher(board: Board, reached: float, capacity: float) -> float | Verdict:
    """Up from the highest rate that did not fail."""
    if reached >= MAX_RATE_RPS:
        return Verdict(
            Outcome.LIMIT_NOT_REACHED, board.low_rps, None, f"No rate up to {MAX_RATE_RPS:,.0f}/s missed the limit."
        )
    if not reached:
        return _rounded(max(FIRST_SHARE * capacity, 0.1))
    return _rounded(capacity if reached < 0.9 * capacity else GROWTH * reached)


def _lower(board: Board, reached: float, capacity: float) -> float | Verdict:
    """Down from the lowest rate that did not hold, faster each time."""
    lowest = _rounded(max(LOWEST_SHARE * capacity, SAMPLES / (LOWEST_BUDGET_SHARE * board.goal.budget_s)))
    if reached > lowest:
        return max(_rounded(reached / 2 ** (2 ** (len(board.by_rate) - 1))), lowest)
    if len(board.by_rate[reached]) < CONFIRMED.get(board.judged[reached][0], 0):
        return reached
    return _verdict(board)


# --- the end -------------------------------------------------------------------------------------------------------


def _verdict(board: Board) -> Verdict:
    """What the search found, once no further probe would tell more."""
    low, high, ceiling = board.low_rps, board.high_rps, board.ceiling_rps
    limit = f"{board.goal.limit_ms:g} ms"
    if ceiling is not None and board.judged[ceiling][0] is Judgement.GENERATOR:
        begin = f"Up to {_rate(low)} the P99 stays under {limit}" if low else "No rate was shown to hold"
        why = board.judged[ceiling][1]
        return Verdict(
            Outcome.GENERATOR_LIMITED,
            low,
            high,
            f"{begin}; at {_rate(ceiling)} the generator was the limit and not the server, which may be able to do "
            f"more. {why}",
        )
    if low is None:
        first = next(iter(board.judged))
        judgement, why = board.judged[first]
        if judgement is Judgement.UNDECIDED:
            words = f"Even at the lowest rate, {_rate(first)}, it stays open whether the limit holds: {why}."
            return Verdict(Outcome.UNDECIDED, None, high, f"{words} Measure longer.")
        words = f"Even the lowest rate, {_rate(first)}, misses the limit: {why}."
        return Verdict(Outcome.LIMIT_MISSED, None, high, f"{words} No rate of this configuration can hold it.")
    assert high is not None
    words = f"Up to {_rate(low)} the P99 stays under {limit}; at {_rate(high)} it does not: {board.judged[high][1]}."
    if unclear := board.unclear_rps:
        between = ", ".join(_rate(rate) for rate in unclear)
        words += f" At {between} the noise leaves it open. Longer probes would narrow this down."
    return Verdict(Outcome.FOUND, low, high, words)


def _out_of_budget(board: Board, rate: float, needed_s: float) -> Verdict:
    """What is known when the next probe does not fit."""
    low, high = board.low_rps, board.high_rps
    minutes = (
        f"the budget of {board.goal.budget_s / 60:.3g} min is spent: a probe at {_rate(rate)} takes {needed_s:.0f} s"
    )
    if low is not None and high is not None:
        words = f"Up to {_rate(low)} the P99 stays under {board.goal.limit_ms:g} ms, at {_rate(high)} it does not"
    elif low is not None:
        words = f"Up to {_rate(low)} the P99 stays under {board.goal.limit_ms:g} ms, and no rate was shown to miss it"
    elif high is not None:
        words = f"At {_rate(high)} the P99 misses {board.goal.limit_ms:g} ms, and no rate was shown to hold it"
    else:
        words = "No rate was decided"
    return Verdict(Outcome.BUDGET_SPENT, low, high, f"{words}; {minutes}. Give it more with --budget-min.")


def _rate(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:,g}/s" if rate < 1e6 else f"{rate:,.0f}/s"
