"""What very long runs keep instead of every request: counts in buckets of three digits, by stretch of time.

Belongs here: which request counts for what (docs/measurement.md, "The window and who is in it"), the buckets, and
adding up. Never: percentiles, files, clocks.

The buckets are those of an HDR histogram with three significant digits (G. Tene, HdrHistogram): whole nanoseconds below
2,048, then 1,024 to every doubling, so a bucket is at most 1/1024 of its value wide. Counted with NumPy a chunk at a
time: hdrhistogram 0.10.8 costs 1.3 µs a value, this 0.2, and it knows no stretches of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.samples import Int64s, Samples, Status

BLOCKS = 20
MIN_BLOCKS = 10
MIN_BLOCK_S = 0.1
SLOTS_PER_BLOCK = 10
THIRDS = 3  # what is compared for stability
LINEAR = 2048
PER_DOUBLING = 1024
LARGEST_NS = 2**43 - 1  # two hours and a half
BUCKETS = LINEAR + PER_DOUBLING * 32
COUNTS = ("ok", "failed", "warmup", "drain", "unsent", "timeout", "rejected", "completed", "uncertain", "answers")


def block_count(window_s: float) -> int:
    """How many blocks a window has: 20, fewer where a block would be under 0.1 s, 0 below 10 blocks.

    10 to 30 batches are what the length of the interval asks for, however long the run (Schmeiser 1982): so blocks
    grow with the window and outlast whatever correlation there is.
    """
    blocks = min(BLOCKS, int(window_s / MIN_BLOCK_S + 1e-9))
    return blocks if blocks >= MIN_BLOCKS else 0


def slot_count(start_ns: int, end_ns: int) -> int:
    """How many slots the blocks of a window have, those of one block where it has no blocks."""
    return max(1, block_count((end_ns - start_ns) / 1e9)) * SLOTS_PER_BLOCK


def bucket_of(values: Int64s) -> Int64s:
    """The bucket of each duration; longer ones than LARGEST_NS are in the last."""
    clipped = np.clip(values, 0, LARGEST_NS)
    shift = np.maximum(np.frexp(clipped.astype(np.float64))[1] - 11, 0).astype(np.int64)
    return np.where(shift == 0, clipped, LINEAR + (shift - 1) * PER_DOUBLING + (clipped >> shift) - PER_DOUBLING)


def highest_of(buckets: Int64s) -> Int64s:
    """The longest duration of each bucket: what stands for it, so that no percentile reads too low."""
    above = np.maximum(buckets - LINEAR, 0)
    shift = above // PER_DOUBLING + 1
    return np.where(buckets < LINEAR, buckets, ((above % PER_DOUBLING + PER_DOUBLING + 1) << shift) - 1)


@dataclass(frozen=True, slots=True)
class Cut:
    """Requests seen from a window [start, end). The durations and times are those of docs/measurement.md.

    `latencies`, `censored` and `intended_ns` are parallel, as are `lags` and `lags_censored`.
    """

    counts: Mapping[str, int]
    latencies: Int64s
    censored: NDArray[np.bool_]
    intended_ns: Int64s
    services: Int64s
    lags: Int64s
    lags_censored: NDArray[np.bool_]
    answers_ns: Int64s


def cut(samples: Samples, start_ns: int, end_ns: int) -> Cut:
    """Sort requests by what they count for."""
    intended, sent, done, status = samples.intended_ns, samples.sent_ns, samples.done_ns, samples.status
    inside = (intended >= start_ns) & (intended < end_ns)
    answered = (status == Status.OK) & (done >= 0)
    ends_inside = (done >= start_ns) & (done < end_ns)
    unsent = (status == Status.UNSENT) | (sent < 0)
    silent = ~unsent & ((status == Status.TIMEOUT) | (done < 0))
    population = inside & (answered | unsent | silent)
    known_until = np.where(done >= 0, done, end_ns)[population]
    scheduled = np.where(sent >= 0, sent, end_ns)[inside]
    served = inside & answered
    masks = {
        "ok": served & (done < end_ns),
        "failed": inside & (status == Status.FAILED) & ~unsent & ~silent,
        "warmup": answered & (intended < start_ns),
        "drain": answered & (intended >= start_ns) & (done >= end_ns),
        "unsent": inside & unsent,
        "timeout": inside & silent,
        "rejected": inside & (status == Status.REJECTED) & ~unsent & ~silent,
        "completed": ends_inside & (sent >= 0),
        "uncertain": silent,
        "answers": answered & ends_inside,
    }
    return Cut(
        counts={name: int(np.count_nonzero(mask)) for name, mask in masks.items()},
        latencies=np.maximum(known_until - intended[population], 0),
        censored=~answered[population],
        intended_ns=intended[population],
        services=(done - sent)[served],
        lags=np.maximum(scheduled - intended[inside], 0),
        lags_censored=(sent < 0)[inside],
        answers_ns=done[masks["answers"]],
    )


def part_of(times_ns: Int64s, start_ns: int, end_ns: int, parts: int) -> Int64s:
    """The part (0 to parts - 1) of the window that each time is in."""
    return np.minimum((times_ns - start_ns) * parts // (end_ns - start_ns), parts - 1)


class Tally:
    """The requests of one window, added up as they come; its memory does not grow with their number.

    `latencies` and `censored` are counts by (slot, bucket), `services`, `lags` and `lags_censored` by bucket, `answers`
    by slot, `planned`, `thirds_answers` and `thirds_sum_ns` by third of the window.
    """

    TABLES = ("latencies", "censored", "services", "lags", "lags_censored", "answers", *("planned", "thirds_answers"))

    def __init__(self, start_ns: int, end_ns: int) -> None:
        self.start_ns, self.end_ns = start_ns, end_ns
        self.counts = dict.fromkeys(COUNTS, 0)
        self.slots = slots = slot_count(start_ns, end_ns)
        self.latencies = np.zeros((slots, BUCKETS), dtype=np.int64)  # the kernel gives only the pages that are used
        self.censored = np.zeros((slots, BUCKETS), dtype=np.int64)
        self.services = np.zeros(BUCKETS, dtype=np.int64)
        self.lags = np.zeros(BUCKETS, dtype=np.int64)
        self.lags_censored = np.zeros(BUCKETS, dtype=np.int64)
        self.answers = np.zeros(slots, dtype=np.int64)
        self.planned = np.zeros(THIRDS, dtype=np.int64)
        self.thirds_answers = np.zeros(THIRDS, dtype=np.int64)
        self.thirds_sum_ns = np.zeros(THIRDS, dtype=np.int64)
        self.longest_ns = 0
        self.requests = 0

    def __len__(self) -> int:
        return self.requests

    def add(self, samples: Samples) -> None:
        """Count a chunk."""
        self.requests += len(samples)
        seen = cut(samples, self.start_ns, self.end_ns)
        for name, count in seen.counts.items():
            self.counts[name] += count
        edges = (self.start_ns, self.end_ns)
        slots, buckets = part_of(seen.intended_ns, *edges, self.slots), bucket_of(seen.latencies)
        _count(self.latencies, slots[~seen.censored] * BUCKETS + buckets[~seen.censored])
        _count(self.censored, slots[seen.censored] * BUCKETS + buckets[seen.censored])
        _count(self.services, bucket_of(seen.services))
        lags = bucket_of(seen.lags)
        _count(self.lags, lags[~seen.lags_censored])
        _count(self.lags_censored, lags[seen.lags_censored])
        self.answers += np.bincount(part_of(seen.answers_ns, *edges, self.slots), minlength=self.slots)
        third = part_of(seen.intended_ns, *edges, THIRDS)
        self.planned += np.bincount(third, minlength=THIRDS)
        self.thirds_answers += np.bincount(part_of(seen.answers_ns, *edges, THIRDS), minlength=THIRDS)
        np.add.at(self.thirds_sum_ns, third, seen.latencies)
        self.longest_ns = max(self.longest_ns, int(seen.latencies.max(initial=0)))

    def rows(self) -> Iterator[tuple[int, Int64s, Int64s]]:
        """What is not zero, by number of the table: (table, places, counts)."""
        for number, name in enumerate(self.TABLES):
            flat = getattr(self, name).ravel()
            places = np.flatnonzero(flat)
            yield number, places, flat[places]

    def head(self) -> dict[str, Any]:
        """All else, for a file."""
        return {
            "start_ns": self.start_ns,
            "end_ns": self.end_ns,
            "counts": self.counts,
            "thirds_sum_ns": self.thirds_sum_ns.tolist(),
            "longest_ns": self.longest_ns,
            "requests": self.requests,
        }

    @classmethod
    def from_rows(cls, head: Mapping[str, Any], tables: Int64s, places: Int64s, counts: Int64s) -> Tally:
        """What `head` and `rows` gave. Raises KeyError, IndexError, ValueError where they are damaged."""
        tally = cls(int(head["start_ns"]), int(head["end_ns"]))
        tally.counts = {name: int(head["counts"][name]) for name in COUNTS}
        tally.thirds_sum_ns = np.array(head["thirds_sum_ns"], dtype=np.int64)
        tally.longest_ns, tally.requests = int(head["longest_ns"]), int(head["requests"])
        for number, name in enumerate(cls.TABLES):
            mine = tables == number
            getattr(tally, name).ravel()[places[mine]] = counts[mine]
        return tally


def _count(table: Int64s, places: Int64s) -> None:
    found, counts = np.unique(places, return_counts=True)
    table.ravel()[found] += counts
