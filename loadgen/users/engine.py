"""What all clients of one generator process share: one epoll, one record buffer, one loop.

Belongs here: events, time-outs, reconnecting, recording; the closed and the open loop build on it (loops.py).
Never: Locust, protocols, files.

The loop runs in a greenlet but waits in its own epoll, not in gevent's: persistent registrations save the
system calls that gevent.socket makes for every wait, and the loop can spin for an exact send while it still reads
answers. It gives way to the other greenlets every few milliseconds.
"""

from __future__ import annotations

import struct
import time
from array import array
from collections.abc import Callable
from typing import Any

from gevent.monkey import get_original

from loadgen.samples import Status
from loadgen.users.timer import Timer
from loadgen.users.wire import Connection, ConnectionFailed

_epoll_class = get_original("select", "epoll")
IN, OUT, EDGE = 0x1, 0x4, 1 << 31
TICK_NS = 10_000_000
SCAN_NS = 50_000_000
BACK_OFF_NS = 10_000_000
FOREVER = 2**62
MAX_ERROR_KINDS = 1000
OTHER_ERRORS = "other errors"
_timespec = struct.Struct("@ll").unpack_from


class Engine:
    """Sends from `begin_ns` until `end_ns` and follows what is in flight until it is answered or given up.

    `connect` makes one new, unopened connection; `request_count` is the size of its pool. `give_way` lets other
    greenlets run. The times are CLOCK_MONOTONIC. Before `schedule` is called nothing is sent.
    """

    def __init__(
        self,
        connect: Callable[[], Connection],
        request_count: int,
        timeout_s: float,
        give_way: Callable[[], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._connect = connect
        self._request_count = request_count
        self._request = 0
        self._timeout_ns = int(timeout_s * 1e9)
        self._timeout_message = f"no answer within the time-out of {timeout_s:g} s"
        self._give_way = give_way
        self._clock = clock
        self._epoll: Any = _epoll_class()
        self._timer = Timer()
        self._epoll.register(self._timer.fd, IN | EDGE)
        self._by_fd: dict[int, Connection] = {}
        self._down: list[tuple[int, Connection]] = []  # (when to open again, connection)
        self._records: array[int] = array("q")
        self._busy = 0
        self._next_tick_ns = 0
        self._next_scan_ns = 0
        self._scan_ns = min(SCAN_NS, max(1_000_000, self._timeout_ns // 8))
        self._is_stopped = False
        self._looked_ns = 0  # when the poll before the last one returned
        self._wall_ahead_ns = time.time_ns() - time.monotonic_ns()
        self.begin_ns = self.start_ns = self.end_ns = FOREVER
        self.errors: dict[str, int] = {}
        self.open_error: str | None = None  # why the last connection could not be opened
        self.opened = 0  # how many connections ever were
        self.spin_ns = 0
        self.cpu_ns = 0
        self._cpu_at_start: int | None = None
        self._cpu_is_known = False

    # what the owner calls

    def schedule(self, begin_ns: int, start_ns: int, end_ns: int) -> None:
        """Fix when the load begins, and the window [start_ns, end_ns)."""
        self.begin_ns, self.start_ns, self.end_ns = begin_ns, start_ns, end_ns

    def stop(self) -> None:
        """End `run` soon; what is in flight is not followed further."""
        self._is_stopped = True
        self.end_ns = min(self.end_ns, self._clock())

    def take_records(self) -> array[int]:
        """The records since the last call: rows of intended, sent, done, status."""
        records, self._records = self._records, array("q")
        return records

    @property
    def is_settled(self) -> bool:
        """Whether every connection that was asked for has been opened or has failed to."""
        if self.open_error is not None:
            return True
        return bool(self._by_fd) and all(connection.is_ready for connection in self._by_fd.values())

    def gap_ns(self) -> int:
        """How long nothing has to be sent."""
        return FOREVER

    def longest_gap_ns(self) -> int:
        """The longest such stretch soon."""
        return FOREVER

    def close(self) -> None:
        for connection in list(self._by_fd.values()):
            self._forget(connection)
        self._epoll.close()
        self._timer.close()

    # the loop

    def run(self) -> None:
        """Run until the load is over and every request sent has ended, or `stop`."""
        poll, clock, by_fd = self._epoll.poll, self._clock, self._by_fd
        now = 0
        while (wait_s := self._before_wait()) >= 0:
            events = poll(wait_s)
            self._looked_ns, now = now, clock()
            for fd, mask in events:
                connection = by_fd.get(fd)
                if connection is None:
                    continue
                try:
                    if mask != IN or not connection.is_busy:
                        self._rare_event(connection, mask, now)
                        continue
                    answer = connection.receive()
                    if answer is not None:
                        self._answered(connection, now, answer[0], answer[1])
                    elif connection.is_blocked:
                        self._watch(connection)
                except ConnectionFailed as error:
                    self._broke(connection, now, str(error))

    def _answered(self, connection: Connection, now: int, status: int, message: str | None) -> None:
        self._records.extend((connection.intended_ns, connection.sent_ns, self._arrival_ns(connection, now), status))
        connection.is_busy = False
        self._busy -= 1
        if message is not None:
            self._count_error(message)
        if connection.is_retired:
            self._forget(connection)
        elif connection.must_reopen:
            self._forget(connection)
            self._open(connection)
        else:
            self._idle(connection)

    def _arrival_ns(self, connection: Connection, now: int) -> int:
        """When the kernel had the last bytes of an answer; `now`, when the poll that told of them returned, where it
        does not say. What this process was late to wake up, or did meanwhile, is in no latency."""
        if connection.stamp is None:
            return now
        seconds, nanoseconds = _timespec(connection.stamp)
        at: int = seconds * 1_000_000_000 + nanoseconds - self._wall_ahead_ns
        # the wall clock may be stepped: an answer came after its request, and after the last look
        return min(max(at, connection.sent_ns, self._looked_ns), now)

    def _rare_event(self, connection: Connection, mask: int, now: int) -> None:
        if not connection.is_ready:
            if connection.opened_ns >= now:
                return  # an event of an older connection with the same file descriptor
            if connection.step():
                self._watch(connection)
                self._opened(connection)
            else:
                self._watch(connection)
            return
        if mask & OUT:
            connection.flush()
            if not connection.is_blocked:
                self._watch(connection)
        if mask & ~OUT:
            if not connection.is_busy:
                connection.idle_event()
                if connection.must_reopen:
                    raise ConnectionFailed("the server is going away")
                return
            answer = connection.receive()
            if answer is not None:
                self._answered(connection, now, answer[0], answer[1])
            elif connection.is_blocked:
                self._watch(connection)

    def _tick(self, now: int) -> bool:
        """The rare work; True when the load is over."""
        self._next_tick_ns = now + TICK_NS
        self._wall_ahead_ns = time.time_ns() - time.monotonic_ns()
        if now >= self._next_scan_ns:
            self._next_scan_ns = now + self._scan_ns
            self._give_up_late(now)
        if self._down:
            due = [connection for when, connection in self._down if when <= now]
            self._down = [row for row in self._down if row[0] > now]
            for connection in due:
                self._open(connection)
        self._note_cpu(now)
        if self._is_stopped or (now >= self.end_ns and not self._busy):
            return True
        self._give_way()
        return False

    def _note_cpu(self, now: int) -> None:
        if self._cpu_at_start is None and now >= self.start_ns:
            self._cpu_at_start = time.process_time_ns()
        if not self._cpu_is_known and self._cpu_at_start is not None and now >= self.end_ns:
            self._cpu_is_known = True
            self.cpu_ns = time.process_time_ns() - self._cpu_at_start

    def _give_up_late(self, now: int) -> None:
        limit = now - self._timeout_ns
        for connection in list(self._by_fd.values()):
            if connection.is_busy and connection.sent_ns <= limit:
                self._records.extend((connection.intended_ns, connection.sent_ns, now, Status.TIMEOUT))
                self._count_error(self._timeout_message)
                self._busy -= 1
                self._forget(connection)
                self._open(connection)
            elif not connection.is_ready and connection.opened_ns <= limit:
                self._broke(connection, now, f"could not connect within the time-out of {self._timeout_ns / 1e9:g} s")

    # connections

    def _open(self, connection: Connection) -> None:
        now = connection.opened_ns = self._clock()
        try:
            connection.open()
        except ConnectionFailed as error:
            connection.close()
            self._not_opened(connection, now, str(error))
            return
        self._by_fd[connection.fd] = connection
        self._epoll.register(connection.fd, IN | OUT)

    def _watch(self, connection: Connection) -> None:
        self._epoll.modify(connection.fd, IN | OUT if connection.is_blocked else IN)

    def _forget(self, connection: Connection) -> None:
        if self._by_fd.pop(connection.fd, None) is not None:
            self._epoll.unregister(connection.fd)
        connection.close()

    def _broke(self, connection: Connection, now: int, message: str) -> None:
        """A connection failed: while opening, with a request in flight, or idle."""
        was_ready, was_busy = connection.is_ready, connection.is_busy
        self._forget(connection)
        if not was_ready:
            self._not_opened(connection, now, message)
            return
        if was_busy:
            self._records.extend((connection.intended_ns, connection.sent_ns, now, Status.FAILED))
            self._count_error(message)
            self._busy -= 1
        self._lost(connection)
        if not connection.is_retired:
            self._reopen_after_failure(connection, now)

    def _reopen_after_failure(self, connection: Connection, now: int) -> None:
        self._down.append((now + BACK_OFF_NS, connection))

    def _not_opened(self, connection: Connection, now: int, message: str) -> None:
        self.open_error = message
        if not connection.is_retired:
            self._refused(connection, now, message)
            self._reopen_after_failure(connection, now)

    def _count_error(self, message: str) -> None:
        if message not in self.errors and len(self.errors) >= MAX_ERROR_KINDS:
            message = OTHER_ERRORS
        self.errors[message] = self.errors.get(message, 0) + 1

    def _send(self, connection: Connection, intended_ns: int, now: int) -> None:
        """Send one request at `now`; a connection that breaks at once is a failed request."""
        connection.intended_ns = intended_ns
        connection.sent_ns = now
        connection.is_busy = True
        self._busy += 1
        request = self._request
        self._request = request + 1 if request + 1 < self._request_count else 0
        try:
            connection.send(request)
        except ConnectionFailed as error:
            self._broke(connection, self._clock(), str(error))
            return
        if connection.is_blocked:
            self._watch(connection)

    # what the loops decide

    def _before_wait(self) -> float:
        """Send what is due; how long to wait for events, in seconds, negative when the load is over."""
        raise NotImplementedError

    def _opened(self, connection: Connection) -> None:
        """A connection has been opened."""
        self.opened += 1
        self._idle(connection)

    def _idle(self, connection: Connection) -> None:
        """A connection can take a request."""
        raise NotImplementedError

    def _refused(self, connection: Connection, now: int, message: str) -> None:
        """A connection could not be opened."""
        raise NotImplementedError

    def _lost(self, connection: Connection) -> None:
        """A connection that had been open is gone."""
