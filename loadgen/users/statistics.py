"""Locust's own statistics, fed in batches: its web page, its --csv and its summary show the same requests as ours.

Belongs here: the translation of a packed batch into locust.stats entries. Never: what Tritune keeps.

Locust buckets times to whole milliseconds; here a time keeps three significant digits.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from locust import stats as locust_stats
from numpy.typing import NDArray

from loadgen.samples import RECORD_WIDTH, Status


def three_digits(milliseconds: float) -> float:
    """The bucket of a time: its first three significant digits."""
    return float(f"{milliseconds:.3g}")


def _summary(table: NDArray[np.int64]) -> tuple[NDArray[np.float64], dict[float, int]]:
    """Latencies in milliseconds, and how many are in each bucket of three digits."""
    milliseconds = (table[:, 2] - table[:, 0]) / 1e6
    scale = 10.0 ** (np.floor(np.log10(np.maximum(milliseconds, 1e-6))) - 2)
    keys, counts = np.unique(np.round(milliseconds / scale) * scale, return_counts=True)
    buckets: Counter[float] = Counter()
    for key, count in zip(keys.tolist(), counts.tolist(), strict=True):
        buckets[three_digits(key)] += count
    return milliseconds, dict(buckets)


class StatisticsFeed:
    """Adds batches of records to one entry, and to the aggregate, of a RequestStats."""

    def __init__(self, statistics: Any, name: str, method: str) -> None:
        locust_stats.bucket_response_time = cast(Any, three_digits)
        self._statistics = statistics
        self._name = name
        self._method = method
        self._seen: dict[str, int] = {}
        _summary(np.array([[0, 0, 1, Status.OK]], dtype=np.int64))  # NumPy loads things at first use

    def add(self, records: array[int], errors: Mapping[str, int]) -> None:
        """Count a batch of rows (intended, sent, done, status); `errors` are the totals so far by message."""
        if records:
            self._add(np.frombuffer(records, dtype=np.int64).reshape(-1, RECORD_WIDTH))
        for message, count in errors.items():
            self._count_error(message, count - self._seen.get(message, 0))
        self._seen = dict(errors)

    def _add(self, table: NDArray[np.int64]) -> None:
        milliseconds, buckets = _summary(table)
        failed = int(np.count_nonzero(table[:, 3] != Status.OK))
        seconds = np.floor(table[:, 2] / 1e9 + (time.time() - time.monotonic())).astype(np.int64)
        per_second = Counter(seconds.tolist())
        failed_seconds = Counter(seconds[table[:, 3] != Status.OK].tolist())
        for entry in (self._statistics.total, self._statistics.get(self._name, self._method)):
            self._count(entry, milliseconds, failed, buckets, per_second, failed_seconds)

    def _count(
        self,
        entry: Any,
        milliseconds: Any,
        failed: int,
        buckets: Mapping[float, int],
        per_second: Mapping[int, int],
        failed_seconds: Mapping[int, int],
    ) -> None:
        if entry.use_response_times_cache:
            entry._cache_response_times(int(time.time()) - 1)
        entry.num_requests += len(milliseconds)
        entry.num_failures += failed
        entry.total_response_time += float(milliseconds.sum())
        low, high = float(milliseconds.min()), float(milliseconds.max())
        entry.min_response_time = low if entry.min_response_time is None else min(entry.min_response_time, low)
        entry.max_response_time = max(entry.max_response_time, high)
        entry.last_request_timestamp = time.time()
        for bucket, count in buckets.items():
            entry.response_times[bucket] += count
        for second, count in per_second.items():
            entry.num_reqs_per_sec[second] += count
        for second, count in failed_seconds.items():
            entry.num_fail_per_sec[second] += count

    def _count_error(self, message: str, count: int) -> None:
        if count <= 0:
            return
        key = locust_stats.StatsError.create_key(self._method, self._name, message)
        entry = self._statistics.errors.get(key)
        if entry is None:
            entry = self._statistics.errors[key] = locust_stats.StatsError(self._method, self._name, message)
        entry.occurrences += count
