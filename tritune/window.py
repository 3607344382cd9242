"""Which requests of a load test count for what: seen from the measurement window.

Belongs here: the populations of docs/measurement.md. Never: estimates, files, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.histogram import BUCKETS, THIRDS, Tally, block_count, cut, highest_of, part_of, slot_count
from loadgen.samples import Samples
from tritune.errors import LoadTestError
from tritune.estimators import (
    CountedDurations,
    Durations,
    Int64,
    Interval,
    intervals_of_quantiles,
)

NS_PER_MS = 1e6
NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class RequestCounts:
    """Requests, each counted once. `warmup`: answered, intended before the window; `ok`: intended and answered
    in it; `drain`: answered after it. The other four were intended in the window and not answered."""

    ok: int
    failed: int
    warmup: int
    drain: int
    unsent: int
    timeout: int
    rejected: int

    @property
    def missed(self) -> int:
        return self.failed + self.unsent + self.timeout + self.rejected

    def to_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Thirds:
    """What each third of the window saw: requests planned (of the population), answers, and the sum of latencies."""

    planned: Int64
    answers: Int64
    sums_ns: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Window:
    """The requests of one load test, seen from its measurement window [start_ns, end_ns).

    `latencies` are those of every request intended inside the window that was answered (also after it) or that is
    censored at its known lower bound (timed out, unsent, unfinished). `lags` likewise are sent - intended of every
    request intended inside. `answers` counts all answers inside the window, whenever their request was intended.
    """

    start_ns: int
    end_ns: int
    counts: RequestCounts
    latencies: Durations | CountedDurations
    services: Durations | CountedDurations
    lags: Durations | CountedDurations
    answers: int
    completed: int
    """Requests that came to an end inside the window, well or badly: what the generator's CPU was spent on."""
    uncertain: int
    """Requests sent and never answered as far as we know; the server may have answered them."""
    thirds: Thirds
    blocks: int
    """How many blocks the intervals are drawn from; 0: the window is too short for intervals."""
    answers_by_slot: Int64
    slots: Int64 | None
    """The slot of each latency, where there are single ones."""

    @property
    def length_s(self) -> float:
        return (self.end_ns - self.start_ns) / NS_PER_S

    @property
    def successes(self) -> int:
        return self.latencies.successes

    def quantile_intervals(self, quantiles: Sequence[float], draws: NDArray[np.float32]) -> tuple[Interval, ...]:
        """The 95 % intervals of the latencies' quantiles."""
        if isinstance(self.latencies, CountedDurations):
            return self.latencies.intervals(quantiles, draws)
        assert self.slots is not None
        return intervals_of_quantiles(self.latencies, self.slots, quantiles, draws)

    @classmethod
    def cut(cls, samples: Samples | Tally, start_ns: int, end_ns: int) -> Window:
        """Raises LoadTestError where the window is empty, or where counts are of another window."""
        if end_ns <= start_ns:
            raise LoadTestError(
                f"The load test was measured from {start_ns} to {end_ns} ns, which is no window: it ended before its "
                "warm-up did. Run it again."
            )
        if isinstance(samples, Tally):
            return cls._of_tally(samples, start_ns, end_ns)
        seen = cut(samples, start_ns, end_ns)
        blocks = block_count((end_ns - start_ns) / NS_PER_S)
        slots = slot_count(start_ns, end_ns)
        third = part_of(seen.intended_ns, start_ns, end_ns, THIRDS)
        thirds = Thirds(
            np.bincount(third, minlength=THIRDS),
            np.bincount(part_of(seen.answers_ns, start_ns, end_ns, THIRDS), minlength=THIRDS),
            np.bincount(third, weights=seen.latencies, minlength=THIRDS).astype(np.float64),
        )
        return cls(
            start_ns=start_ns,
            end_ns=end_ns,
            counts=_request_counts(seen.counts),
            latencies=Durations(seen.latencies, seen.censored),
            services=Durations(seen.services, np.zeros(seen.services.size, dtype=np.bool_)),
            lags=Durations(seen.lags, seen.lags_censored),
            answers=seen.counts["answers"],
            completed=seen.counts["completed"],
            uncertain=seen.counts["uncertain"],
            thirds=thirds,
            blocks=blocks,
            answers_by_slot=np.bincount(part_of(seen.answers_ns, start_ns, end_ns, slots), minlength=slots),
            slots=part_of(seen.intended_ns, start_ns, end_ns, slots),
        )

    @classmethod
    def _of_tally(cls, tally: Tally, start_ns: int, end_ns: int) -> Window:
        if (tally.start_ns, tally.end_ns) != (start_ns, end_ns):
            raise LoadTestError("The counts of this load test are those of another window. Run it again.")
        tops = highest_of(np.arange(BUCKETS, dtype=np.int64))
        total = float(tally.thirds_sum_ns.sum())
        blocks = block_count((end_ns - start_ns) / NS_PER_S)
        return cls(
            start_ns=start_ns,
            end_ns=end_ns,
            counts=_request_counts(tally.counts),
            latencies=CountedDurations.of(tops, tally.latencies, tally.censored, total, float(tally.longest_ns)),
            services=CountedDurations.of(tops, tally.services, np.zeros_like(tally.services)),
            lags=CountedDurations.of(tops, tally.lags, tally.lags_censored),
            answers=tally.counts["answers"],
            completed=tally.counts["completed"],
            uncertain=tally.counts["uncertain"],
            thirds=Thirds(tally.planned, tally.thirds_answers, tally.thirds_sum_ns.astype(np.float64)),
            blocks=blocks,
            answers_by_slot=tally.answers,
            slots=None,
        )


def _request_counts(counts: Mapping[str, int]) -> RequestCounts:
    return RequestCounts(**{name: counts[name] for name in RequestCounts.__slots__})
