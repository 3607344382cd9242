"""Which requests of a load test count for what: seen from the measurement window.

Belongs here: the populations of docs/measurement.md. Never: estimates, files, clocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.histogram import BUCKETS, THIRDS, Tally, block_count, cut, highest_of, part_of, slot_count
from loadgen.samples import SampleFile, Samples
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
_SLOT_BITS = 8  # there are at most 200 slots
_SLOT = (1 << _SLOT_BITS) - 1


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
    slots: NDArray[np.uint8] | None
    """The slot of each latency in the order of `latencies`, where there are single ones."""

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
    def cut(cls, samples: Samples | SampleFile | Tally, start_ns: int, end_ns: int) -> Window:
        """Raises LoadTestError where the window is empty, or where counts are of another window."""
        if end_ns <= start_ns:
            raise LoadTestError(
                f"The load test was measured from {start_ns} to {end_ns} ns, which is no window: it ended before its "
                "warm-up did. Run it again."
            )
        if isinstance(samples, Tally):
            return cls._of_tally(samples, start_ns, end_ns)
        return _Sorter(len(samples), start_ns, end_ns).window(samples)

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


class _Sorter:
    """Sorts the requests of a window a chunk at a time: beyond the chunk it holds nine bytes a request, and 16 more
    where requests have left at other times than they were intended to.

    A latency and its slot are one number while they are sorted: latencies that are equal are in the order of slots.
    """

    def __init__(self, count: int, start_ns: int, end_ns: int) -> None:
        self._edges = (start_ns, end_ns)
        self._slots = slot_count(start_ns, end_ns)
        self._counts: Counter[str] = Counter()
        self._keys = np.empty(count, dtype=np.int64)  # the kernel gives only the pages that are written
        self._services = np.empty(count, dtype=np.int64)
        self._lags = np.empty(count, dtype=np.int64)
        self._served = self._scheduled = 0
        self._are_services_latencies = self._are_lags_zero = True
        self._hidden = [np.empty(0, dtype=np.int64)]  # keys of what is censored
        self._hidden_lags = [np.empty(0, dtype=np.int64)]
        self._answers = np.zeros(self._slots, dtype=np.int64)
        self._planned = np.zeros(THIRDS, dtype=np.int64)
        self._third_answers = np.zeros(THIRDS, dtype=np.int64)
        self._third_sums = np.zeros(THIRDS, dtype=np.float64)

    def window(self, samples: Samples | SampleFile) -> Window:
        for chunk in samples.chunks():
            self._add(chunk)
        keys = self._keys[: self._served]
        keys.sort()
        hidden = np.sort(np.concatenate(self._hidden))
        slots = np.empty(keys.size + hidden.size, dtype=np.uint8)
        np.bitwise_and(keys, _SLOT, out=slots[: keys.size], casting="unsafe")
        np.bitwise_and(hidden, _SLOT, out=slots[keys.size :], casting="unsafe")
        keys >>= _SLOT_BITS
        none = np.empty(0, dtype=np.int64)
        lags = np.broadcast_to(np.int64(0), self._scheduled)
        if not self._are_lags_zero:
            lags = np.sort(self._lags[: self._scheduled])
        return Window(
            start_ns=self._edges[0],
            end_ns=self._edges[1],
            counts=_request_counts(self._counts),
            latencies=Durations(keys, hidden >> _SLOT_BITS),
            services=Durations(keys if self._are_services_latencies else np.sort(self._services[: self._served]), none),
            lags=Durations(lags, np.sort(np.concatenate(self._hidden_lags))),
            answers=self._counts["answers"],
            completed=self._counts["completed"],
            uncertain=self._counts["uncertain"],
            thirds=Thirds(self._planned, self._third_answers, self._third_sums),
            blocks=block_count((self._edges[1] - self._edges[0]) / NS_PER_S),
            answers_by_slot=self._answers,
            slots=slots,
        )

    def _add(self, chunk: Samples) -> None:
        seen = cut(chunk, *self._edges)
        self._counts.update(seen.counts)
        keys = (seen.latencies << _SLOT_BITS) | part_of(seen.intended_ns, *self._edges, self._slots)
        exact = ~seen.censored
        self._hidden.append(keys[seen.censored])
        self._keep_services(seen.services, seen.latencies[exact])
        self._keep_lags(seen.lags[~seen.lags_censored])
        self._hidden_lags.append(seen.lags[seen.lags_censored])
        self._keys[self._served : self._served + seen.services.size] = keys[exact]
        self._served += seen.services.size
        self._answers += np.bincount(part_of(seen.answers_ns, *self._edges, self._slots), minlength=self._slots)
        third = part_of(seen.intended_ns, *self._edges, THIRDS)
        self._planned += np.bincount(third, minlength=THIRDS)
        self._third_answers += np.bincount(part_of(seen.answers_ns, *self._edges, THIRDS), minlength=THIRDS)
        self._third_sums += np.bincount(third, weights=seen.latencies, minlength=THIRDS)

    def _keep_services(self, services: Int64, latencies: Int64) -> None:
        if self._are_services_latencies and not np.array_equal(services, latencies):
            self._are_services_latencies = False
            self._services[: self._served] = self._keys[: self._served] >> _SLOT_BITS
        if not self._are_services_latencies:
            self._services[self._served : self._served + services.size] = services

    def _keep_lags(self, lags: Int64) -> None:
        if self._are_lags_zero and lags.any():
            self._are_lags_zero = False
            self._lags[: self._scheduled] = 0
        if not self._are_lags_zero:
            self._lags[self._scheduled : self._scheduled + lags.size] = lags
        self._scheduled += lags.size


def _request_counts(counts: Mapping[str, int]) -> RequestCounts:
    return RequestCounts(**{name: counts[name] for name in RequestCounts.__slots__})
