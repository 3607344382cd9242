"""The closed and the open loop on the engine.

Belongs here: when a request is sent and on which connection. Never: sockets, protocols, Locust, files.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.samples import Status
from loadgen.users.engine import BACK_OFF_NS, FOREVER, TICK_NS, Engine
from loadgen.users.wire import Connection

FIRST_CONNECTIONS = 8
OPENING_AT_ONCE = 32
SPIN_NS = 400_000
ATTEMPT_NS = 500_000  # of a closed loop's clients against a dead server, so that thousands do not fill a core
QUIET_NS = 2_000_000  # a gap between sends that is long enough for other work
QUIET_SHARE = 0.7  # of the usual gap, where that is shorter
LOOK_AHEAD = 50  # arrivals
MAX_SPIN_SHARE = 0.2  # of one core: a server on the same machine needs it more
_TICK_S = TICK_NS / 1e9


class ClosedLoop(Engine):
    """Every client sends its next request when its last one has ended; intended = sent."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waiting: list[Connection] = []

    def add_client(self) -> Connection:
        """One more client; it begins as soon as the load does."""
        connection = self._connect()
        self._open(connection)
        return connection

    def remove_client(self, connection: Connection) -> None:
        """The client ends after the request that it has in flight."""
        connection.is_retired = True
        if not connection.is_busy:
            self._forget(connection)
        self._down = [row for row in self._down if row[1] is not connection]
        self._waiting = [other for other in self._waiting if other is not connection]

    def _before_wait(self) -> float:
        now = self._clock()
        if now >= self._next_tick_ns and self._tick(now):
            return -1.0
        if self._waiting:
            if now < self.begin_ns:
                self._timer.set(self.begin_ns)
                return _TICK_S
            waiting, self._waiting = self._waiting, []
            if now < self.end_ns:
                for connection in waiting:
                    now = self._clock()
                    self._send(connection, now, now)
        return _TICK_S

    def _idle(self, connection: Connection) -> None:
        now = self._clock()
        if self.begin_ns <= now < self.end_ns:
            self._send(connection, now, now)
        else:
            self._waiting.append(connection)

    def _reopen_after_failure(self, connection: Connection, now: int) -> None:
        self._down.append((now + max(BACK_OFF_NS, ATTEMPT_NS * len(self._down)), connection))

    def _refused(self, connection: Connection, now: int, message: str) -> None:
        at = connection.opened_ns
        if self.begin_ns <= at < self.end_ns:
            self._records.extend((at, at, now, Status.FAILED))
            self._count_error(message)

    def _lost(self, connection: Connection) -> None:
        self._waiting = [other for other in self._waiting if other is not connection]


class OpenLoop(Engine):
    """Requests leave at the times of a schedule, whatever the server does, over as many connections as that takes.

    `arrivals` yields ascending offsets from `begin_ns`; `rate_rps` is this process's own, the highest it
    has. At most `max_connections` are opened; an arrival without a free one waits, keeps its intended time, and is
    unsent if the window ends first. `is_capped` then says so.
    """

    def __init__(
        self,
        *arguments: Any,
        arrivals: Callable[[int], Iterator[NDArray[np.int64]]],
        rate_rps: float,
        max_connections: int,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._make_arrivals = arrivals
        self._arrivals: Iterator[NDArray[np.int64]] = iter(())
        self._chunk: list[int] = []
        self._position = 0
        self._rate_rps = rate_rps
        self._max_connections = max_connections
        self._free: list[Connection] = []
        self._opening = 0
        self._connections = 0
        self.is_capped = False  # whether an arrival waited while all connections were in use
        self._outage: str | None = None
        self._quiet_ns = int(min(QUIET_NS, QUIET_SHARE * 1e9 / rate_rps))
        self._spin_lead_ns = int(min(SPIN_NS, MAX_SPIN_SHARE * 1e9 / rate_rps))

    @property
    def connections(self) -> int:
        """How many are open or being opened."""
        return self._connections

    def prepare(self) -> None:
        """Open the first connections."""
        first = max(FIRST_CONNECTIONS, int(self._rate_rps * 0.01))
        for _ in range(min(self._max_connections, first)):
            self._add_connection()

    def schedule(self, begin_ns: int, start_ns: int, end_ns: int) -> None:
        super().schedule(begin_ns, start_ns, end_ns)
        self._arrivals = self._make_arrivals(end_ns - begin_ns)
        self._next_chunk()

    def gap_ns(self) -> int:
        now = self._clock()
        return self._next_due(now) - now

    def longest_gap_ns(self) -> int:
        times = self._chunk[self._position : self._position + LOOK_AHEAD]
        return max((later - earlier for earlier, later in itertools.pairwise(times)), default=FOREVER)

    def leftover(self) -> Iterator[NDArray[np.int64]]:
        """After `run`: the intended times of what was to be sent until the end and was not, a chunk at a time."""
        rest = np.asarray(self._chunk[self._position :], dtype=np.int64)
        for chunk in itertools.chain([rest], (offsets + self.begin_ns for offsets in self._arrivals)):
            due = chunk[: int(np.searchsorted(chunk, self.end_ns))]
            if len(due):
                yield due
            if len(due) < len(chunk):
                return

    def _next_chunk(self) -> bool:
        chunk = next(self._arrivals, None)
        self._position = 0
        self._chunk = [] if chunk is None else (chunk + self.begin_ns).tolist()
        return chunk is not None

    def _add_connection(self) -> None:
        self._connections += 1
        self._open(self._connect())

    def _open(self, connection: Connection) -> None:
        self._opening += 1
        super()._open(connection)

    def _opened(self, connection: Connection) -> None:
        self._opening -= 1
        super()._opened(connection)

    def _refused(self, connection: Connection, now: int, message: str) -> None:
        self._opening -= 1
        self._outage = message

    def _reopen_after_failure(self, connection: Connection, now: int) -> None:
        # the next arrival opens what it needs; while none can be opened, one attempt at a time is enough
        if self._outage is not None and not self._down:
            super()._reopen_after_failure(connection, now)
        else:
            self._connections -= 1

    def _lost(self, connection: Connection) -> None:
        self._free = [other for other in self._free if other is not connection]

    def _idle(self, connection: Connection) -> None:
        self._outage = None
        self._free.append(connection)

    def _before_wait(self) -> float:
        while True:
            now = self._clock()
            due = self._next_due(now)
            gap = due - now
            is_time = now >= self._next_tick_ns
            if is_time and (gap > self._quiet_ns or now >= self._next_tick_ns + 4 * TICK_NS):
                if self._tick(now):
                    return -1.0
            elif gap > self._spin_lead_ns:
                if gap < 2 * TICK_NS:
                    self._timer.set(due - self._spin_lead_ns)
                return _TICK_S
            elif gap > 0:
                if self._spin(due):
                    return 0.0
            elif not self._send_due(due, now):
                return _TICK_S if self._opening or self._busy else 0.001

    def _next_due(self, now: int) -> int:
        """When the next request is to leave; FOREVER where there is none."""
        if now >= self.end_ns:
            return FOREVER
        if self._position < len(self._chunk) or self._next_chunk():
            return self._chunk[self._position]
        return FOREVER

    def _send_due(self, due: int, now: int) -> bool:
        """Send the arrival at hand; False where it has to wait for a connection."""
        if self._free:
            self._position += 1
            self._send(self._free.pop(), due, now)
            return True
        if self._outage is not None and self._busy == 0:
            self._position += 1
            self._records.extend((due, now, now, Status.FAILED))
            self._count_error(self._outage)
            return True
        overdue = bisect_right(self._chunk, now, self._position) - self._position
        wanted = min(overdue, OPENING_AT_ONCE) - self._opening
        if self._connections >= self._max_connections and not self._opening:
            self.is_capped = True
        for _ in range(min(wanted, self._max_connections - self._connections)):
            self._add_connection()
        return False

    def _spin(self, until_ns: int) -> bool:
        """Burn the last stretch before a send; True where an event came that wants handling first."""
        clock, poll = self._clock, self._epoll.poll
        cpu = time.thread_time_ns()
        is_interrupted = False
        while (now := clock()) < until_ns:
            if poll(0):  # level-triggered: the loop's own poll sees the same events again
                is_interrupted = True
                break
        if self.start_ns <= now < self.end_ns:
            self.spin_ns += time.thread_time_ns() - cpu
        return is_interrupted
