"""What a study's rounds say: ratios to the baseline, verdicts, the best, what is out, whether it is settled (pure).

Belongs here: decisions with documented formulas (docs/measurement.md); the fit is in additive.py, the levels of the
looks in looks.py. Never: trials and their documents (study_result), files, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from tritune import looks
from tritune.additive import Fit, Floats, fit
from tritune.load_plan import LoadPlan
from tritune.study_plan import FIRST_LOOK, Metric, Objective

CellKey = tuple[int, int]
"""(candidate, load), by number."""

MEASURE, DRIFT = "measure", "drift"
SUSTAINED_SHARE = 0.97
"""An open loop of which fewer inferences are answered in the window does not keep up: its queue only grows."""
HOPELESS_ROUNDS = 200
DRIFT_SHARE = 0.05
"""A machine that changes by so much within a round is warned of, even where the noise could explain it."""


class Verdict(StrEnum):
    """What is shown about a configuration against the baseline, about the objective's metric."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Reading:
    """One finished trial. None: it has no such number; `p99_at_least`: the P99 is a lower bound.

    `session` tells apart the parts of a round that were not measured in one go on one machine.
    """

    candidate: int
    load: int
    round: int
    role: str
    throughput_ips: float | None
    p99_ms: float | None
    p99_at_least: bool
    trial_id: str
    session: int = 0


@dataclass(frozen=True, slots=True)
class Design:
    """What the study compares: its loads and rounds as planned, the objective, the baseline's number."""

    objective: Objective
    loads: tuple[LoadPlan, ...]
    rounds: int
    baseline: int = 0
    precision: float | None = None


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its interval; `low` 0 or `high` infinite where only a bound of it is known, or nothing."""

    value: float
    low: float
    high: float

    @property
    def at_least(self) -> bool:
        return self.low > 0 and math.isinf(self.high)

    @property
    def at_most(self) -> bool:
        return self.low == 0 and math.isfinite(self.high)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration under one load against the baseline. `more_rounds`: about how many more would settle it.

    `reason` says why there is no verdict, or why no number of rounds can be named.
    """

    candidate: int
    load: int
    metric: Metric
    throughput_ratio: Ratio | None
    p99_ratio: Ratio | None
    verdict: Verdict
    rounds: int
    more_rounds: int | None
    reason: str | None = None

    @property
    def ratio(self) -> Ratio | None:
        """The ratio that the verdict is about."""
        return self.throughput_ratio if self.metric is Metric.THROUGHPUT else self.p99_ratio


@dataclass(frozen=True, slots=True)
class Best:
    """The best cell and those that cannot be told from it. `doubt`: what is not certain about it, in words."""

    candidate: int
    load: int
    indistinguishable: tuple[CellKey, ...]
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class Settled:
    """After a round: which cells are measured no further and why, since which round, and why the study may stop."""

    out: Mapping[CellKey, str] = field(default_factory=dict)
    after: Mapping[CellKey, int] = field(default_factory=dict)
    stop: str | None = None


@dataclass(frozen=True, slots=True)
class Drift:
    """A round's first cell, measured again at the round's end: the second number over the first."""

    round: int
    candidate: int
    load: int
    throughput_ratio: float | None
    p99_ratio: float | None
