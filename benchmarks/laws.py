"""Latency laws: what a server adds to every answer, and what a perfect load generator would have reported.

Belongs here: pure functions of laws, schedules and the server's log. Never: sockets, clocks, clients.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
LOG_WIDTH = 5  # arrived, planned, answered, connection, unseen
QUANTILES = (0.5, 0.99, 0.999)


@dataclass(frozen=True, slots=True)
class Law:
    """A delay in milliseconds: fixed:D, bimodal:D1:D2:SHARE_OF_D2, lognormal:MEDIAN:SIGMA, or stall:D:EVERY:FOR (D,
    but a request that comes in the last FOR of every EVERY waits for its end first). none: no delay."""

    kind: str
    values: tuple[float, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Law:
        kind, *numbers = text.split(":")
        wanted = {"none": 0, "fixed": 1, "bimodal": 3, "lognormal": 2, "stall": 3}
        if wanted.get(kind) != len(numbers):
            raise ValueError(f"{text!r} is no latency law")
        return cls(kind, tuple(float(number) for number in numbers))

    @property
    def is_memoryless(self) -> bool:
        """Whether a delay has nothing to do with when its request came."""
        return self.kind != "stall"

    def delay_ns(self, since_start_ns: int, chance: random.Random) -> int:
        """The delay of a request that comes `since_start_ns` after the server's start."""
        if self.kind == "none":
            return 0
        if self.kind == "fixed":
            return int(self.values[0] * 1e6)
        if self.kind == "bimodal":
            return int(self.values[chance.random() < self.values[2]] * 1e6)
        if self.kind == "lognormal":
            return int(self.values[0] * 1e6 * chance.lognormvariate(0.0, self.values[1]))
        delay_ns, every_ns, for_ns = (int(value * 1e6) for value in self.values)
        left_ns = every_ns - since_start_ns % every_ns
        return left_ns + delay_ns if left_ns <= for_ns else delay_ns


@dataclass(frozen=True, slots=True)
class ServerLog:
    """What a law's server did, one row a request in the order of arrival; nanoseconds of CLOCK_MONOTONIC.

    `arrived_ns` is when the kernel had the request, `unseen_ns` how long it then waited until the server saw it (both
    are part of how long it was served), `planned_ns` the delay that the law asked for, `answered_ns` when the answer
    was handed to the kernel; -1: never. `closed_ns` is when the client closed each connection, by its number (from 0);
    0: it was open to the end.
    """

    started_ns: int
    arrived_ns: Int64s
    planned_ns: Int64s
    answered_ns: Int64s
    connection: Int64s
    unseen_ns: Int64s
    closed_ns: Int64s

    @classmethod
    def from_bytes(cls, data: bytes) -> ServerLog:
        """What law_server.py writes: the start, how many connections, when each was closed, and the rows."""
        numbers = np.frombuffer(data, dtype=np.int64)
        connections = int(numbers[1])
        table = numbers[2 + connections :].reshape(-1, LOG_WIDTH)
        table = table[np.argsort(table[:, 0], kind="stable")]
        arrived, planned, answered, connection, unseen = (np.ascontiguousarray(column) for column in table.T)
        closed = numbers[2 : 2 + connections]
        return cls(int(numbers[0]), arrived, planned, answered, connection, unseen, closed)

    def __len__(self) -> int:
        return len(self.arrived_ns)

    def answered(self) -> ServerLog:
        """Without the requests whose client had gone before its answer was due."""
        kept = self.answered_ns >= 0
        names = ("arrived_ns", "planned_ns", "answered_ns", "connection", "unseen_ns")
        return replace(self, **{name: getattr(self, name)[kept] for name in names})

    @property
    def served_ns(self) -> Int64s:
        """How long each answer really took, seen from the server."""
        return self.answered_ns - self.arrived_ns

    @property
    def late_ns(self) -> Int64s:
        """The server's own error: how much later than the law's delay each answer went out."""
        return self.served_ns - self.planned_ns


def truth_ns(law: Law, log: ServerLog, schedule_ns: Int64s, start_ns: int, end_ns: int) -> Int64s:
    """The latencies that the requests intended in [start_ns, end_ns) of a schedule truly had, or would have had.

    A memoryless law: what the server's log says of those requests, the k-th to arrive being the k-th of the schedule;
    where a client has not sent the schedule, of the requests that arrived in that stretch. A stall: the delay at each
    *intended* time, plus the lateness of the request that really came at or after it, so that a client that holds
    requests back changes nothing about the truth.
    """
    log = log.answered()
    inside = (schedule_ns >= start_ns) & (schedule_ns < end_ns)
    if law.is_memoryless:
        if len(log) == len(schedule_ns):
            return log.served_ns[inside]
        return log.served_ns[(log.arrived_ns >= start_ns) & (log.arrived_ns < end_ns)]
    chance = random.Random(0)
    times = schedule_ns[inside]
    delays = [law.delay_ns(int(time) - log.started_ns, chance) for time in times]
    next_arrival = np.minimum(np.searchsorted(log.arrived_ns, times), len(log) - 1)
    return np.asarray(delays, dtype=np.int64) + log.late_ns[next_arrival]


def quantile_ms(latencies_ns: Int64s, quantile: float) -> float:
    """The inverse of the empirical distribution function, as Tritune's own percentiles; NaN of nothing."""
    if not len(latencies_ns):
        return float("nan")
    return float(np.quantile(latencies_ns, quantile, method="inverted_cdf")) / 1e6


def error_percent(reported: float, truth: float) -> float:
    """By how many percent of the truth a report is too high (+) or too low (-)."""
    return (reported - truth) / truth * 100
