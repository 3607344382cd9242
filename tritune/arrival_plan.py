"""Arrivals that are more than one rate: stages (steps, ramps, a spike) and recorded intervals, as values.

Belongs here: what they are, how they are written, what is refused. Never: the times themselves (loadgen/schedule.py),
files, clocks.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tritune.errors import InputError

MAX_RATE_RPS = 1_000_000.0
MAX_STAGES = 1000
MAX_INTERVALS = 100_000
MAX_INTERVAL_US = 3600 * 1_000_000
_STAGES_FORM = "Write duration:rate or duration:from-to, with commas between, such as 10s:100,5s:100-400,1s:1000."
_STAGE = re.compile(r"(?P<length>[\d.]+)(?P<unit>ms|s|m|h)?:(?P<first>[\d.]+)(?:-(?P<last>[\d.]+))?")
_UNIT_S = {"ms": 1e-3, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Stage:
    """A stretch of an open loop whose rate goes evenly from `from_rps` to `to_rps`; equal ones are a step.

    A rate of 0 is a pause. Raises InputError where a value is out of range.
    """

    duration_s: float
    from_rps: float
    to_rps: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.duration_s) and self.duration_s > 0):
            raise InputError(f"A stage of {self.duration_s:g} s has no length. {_STAGES_FORM}")
        for rate in (self.from_rps, self.to_rps):
            if not 0 <= rate <= MAX_RATE_RPS:
                raise InputError(
                    f"A stage's rate of {rate:g} must be at least 0 and at most {MAX_RATE_RPS:g} requests per second."
                )

    @property
    def requests(self) -> float:
        """How many requests are due in it."""
        return self.duration_s * (self.from_rps + self.to_rps) / 2

    def __str__(self) -> str:
        rate = f"{self.from_rps:g}" if self.from_rps == self.to_rps else f"{self.from_rps:g}-{self.to_rps:g}"
        return f"{self.duration_s:g}s:{rate}"


def parse_stages(text: str) -> tuple[Stage, ...]:
    """Read `10s:100,5s:100-400,1s:1000,10s:100`; a length without a unit is seconds. Raises InputError."""
    stages = []
    for part in text.split(","):
        found = _STAGE.fullmatch(part.strip())
        try:
            if found is None:
                raise ValueError
            first = float(found["first"])
            length = float(found["length"]) * _UNIT_S[found["unit"]]
            stages.append(Stage(length, first, float(found["last"]) if found["last"] else first))
        except ValueError:
            raise InputError(f"The stage {part.strip()!r} cannot be read. {_STAGES_FORM}") from None
    return check_stages(stages)


def check_stages(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """The stages, where they can be sent. Raises InputError."""
    if len(stages) > MAX_STAGES:
        raise InputError(f"{len(stages)} stages are too many: at most {MAX_STAGES}. Use ramps, or --intervals FILE.")
    if not any(stage.requests > 0 for stage in stages):
        raise InputError("The stages send nothing: every rate is 0. Give one of them a rate.")
    return tuple(stages)


def describe_stages(stages: Sequence[Stage]) -> str:
    """As `parse_stages` reads them."""
    return ",".join(str(stage) for stage in stages)


def parse_intervals(text: str, name: str) -> tuple[int, ...]:
    """Read perf_analyzer's --request-intervals: one whole number of microseconds a line. `name` is the file's.

    Raises InputError.
    """
    intervals = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            intervals.append(int(line))
        except ValueError:
            raise InputError(
                f"{name}, line {number}: {line.strip()[:40]!r} is no interval. Write one whole number of microseconds "
                "a line."
            ) from None
    return check_intervals(intervals, name)


def check_intervals(intervals: Sequence[int], name: str = "The intervals") -> tuple[int, ...]:
    """The intervals, where they can be sent. Raises InputError."""
    if not intervals:
        raise InputError(f"{name} holds no interval. Write one whole number of microseconds a line.")
    if len(intervals) > MAX_INTERVALS:
        raise InputError(
            f"{name} holds {len(intervals):,} intervals and at most {MAX_INTERVALS:,} are taken. Cut it: it repeats."
        )
    for interval in intervals:
        if isinstance(interval, bool) or not isinstance(interval, int) or not 0 <= interval <= MAX_INTERVAL_US:
            raise InputError(
                f"{name}: an interval of {interval} must be a whole number from 0 to {MAX_INTERVAL_US} microseconds."
            )
    total_us = sum(intervals)
    if total_us == 0 or len(intervals) / total_us * 1e6 > MAX_RATE_RPS:
        raise InputError(
            f"{name}: {len(intervals):,} intervals of {total_us} µs in all are more than {MAX_RATE_RPS:g} requests per "
            "second. The intervals are in microseconds; make them longer."
        )
    return tuple(intervals)


def mean_rate_rps(intervals_us: Sequence[int]) -> float:
    """How many requests per second the intervals make on average."""
    return len(intervals_us) / sum(intervals_us) * 1e6


def fingerprint(intervals_us: Sequence[int]) -> dict[str, Any]:
    """What tells two files of intervals apart: {count, mean_rps, sha256 (its first 12 digits)}."""
    joined = ",".join(map(str, intervals_us)).encode()
    return {
        "count": len(intervals_us),
        "mean_rps": round(mean_rate_rps(intervals_us), 6),
        "sha256": hashlib.sha256(joined).hexdigest()[:12],
    }
