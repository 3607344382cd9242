"""The leader's side of a run: it fixes the window, keeps the samples, tells what happens, and ends it.

Belongs here: samples.arrow, live.json and outcome.json of one run, lost workers. Never: Locust, sending.
"""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gevent
import numpy as np
from numpy.typing import NDArray

from loadgen.keeping import Keeper, expected_requests
from loadgen.outcome import (
    EXIT_UNWRITABLE,
    PARENT_VARIABLE,
    Live,
    Outcome,
    Phase,
    most_frequent,
    reserve_outcome,
    write_live,
    write_outcome,
)
from loadgen.samples import SAMPLES_FILE, Samples, Status
from loadgen.schedule import planned_ns, share
from loadgen.shared_memory import unregister
from tritune.errors import LoadTestError
from tritune.load_plan import GeneratorPlan

LIVE_S = 1.0
CHECK_S = 0.1
READY_S = 120.0
GRACE_S = 5.0
PINGS = 20
PING_S = 0.02
NOTICE_NS = 500_000_000  # between fixing the window and its start, at least
LEAD_NS = 100_000_000  # between fixing the window and the first request

Send = Callable[[str, Mapping[str, Any]], None]


class _Worker:
    """What is known of one process that sends."""

    def __init__(self, node: str, pid: int | None) -> None:
        self.node = node
        self.pid = pid  # None: not a process that can be looked at from here
        self.clock = ClockMapping()
        self.is_done = False
        self.is_lost = False
        self.last_ns = 0
        self.received = 0


class ClockMapping:
    """How far another machine's monotonic clock is ahead, from an exchange of pings (the round trip that was shortest).

    The truth is at most half that round trip away (D. L. Mills, RFC 5905, section 8).
    """

    def __init__(self) -> None:
        self.ahead_ns = 0
        self.error_ns: int | None = None  # None: not asked, it is our own clock

    def add(self, sent_ns: int, theirs_ns: int, back_ns: int) -> None:
        """One ping: when it left and came back on our clock, and the other's clock between."""
        error_ns = (back_ns - sent_ns + 1) // 2
        if self.error_ns is None or error_ns < self.error_ns:
            self.error_ns = error_ns
            self.ahead_ns = theirs_ns - (sent_ns + back_ns) // 2


class Leader:
    """One run of `workers` members. `send` brings a message to all of them; `is_missing` tells whether Locust has lost
    one on another machine."""

    def __init__(self, plan: GeneratorPlan, folder: Path, workers: int, send: Send) -> None:
        self.plan = plan
        self.is_finished = False
        self.exit_code = 0
        self.is_missing: Callable[[str], bool] = lambda _: False
        self.wait_for_quiet: Callable[[], None] = lambda: None
        self.wait_for_members: Callable[[float], None] = self._wait_for_done
        self._folder = folder
        self._count = workers
        self._send = send
        self._workers: dict[int, _Worker] = {}
        self._errors: Counter[str] = Counter()
        self._spin_ns = self._cpu_ns = 0
        self._ok = self._failed = 0
        self._recent: deque[tuple[int, Samples]] = deque()
        _p99_ms(np.arange(8))  # NumPy loads things at first use
        self._next_live_ns = 0
        self._children = _children() if workers > 1 else []  # before gevent waits for those that end
        self._begin_ns = self._start_ns = self._end_ns = 0
        self._error: str | None = None
        self._is_unwritable = self._is_capped = False
        self._parent = int(os.environ[PARENT_VARIABLE]) if PARENT_VARIABLE in os.environ else None
        self._notes: list[Mapping[str, str]] = []
        reserve_outcome(folder)
        self._keeper = Keeper(folder / SAMPLES_FILE, plan.load.max_raw_samples)
        write_live(folder, Live(Phase.STARTING, 0.0, self._total_s))

    @property
    def _total_s(self) -> float:
        return self.plan.load.warmup_s + self.plan.load.duration_s

    # messages from the members

    def on_ready(self, node: str, data: Mapping[str, Any]) -> None:
        pid = data.get("pid")
        is_ours = self._count == 1 or pid in self._children
        self._workers[data["worker"]] = _Worker(node, pid if is_ours else None)
        if data.get("error"):
            self._error = self._error or data["error"]

    def on_samples(self, _node: str, data: Mapping[str, Any]) -> None:
        worker = self._workers.get(data["worker"])
        samples = Samples.from_packed(data["records"], data["worker"])
        if worker is not None and worker.clock.ahead_ns:
            samples = samples.earlier(worker.clock.ahead_ns)
        if worker is not None:
            worker.received += len(samples)
            worker.last_ns = max(worker.last_ns, int(samples.done_ns.max()))
        ok = int(np.count_nonzero(samples.status == Status.OK))
        self._ok += ok
        self._failed += len(samples) - ok
        self._recent.append((time.monotonic_ns(), samples))
        self._write(samples)

    def on_unsent(self, _node: str, data: Mapping[str, Any]) -> None:
        worker = self._workers.get(data["worker"])
        ahead_ns = worker.clock.ahead_ns if worker is not None else 0
        self._write(Samples.unsent(np.frombuffer(data["intended_ns"], dtype=np.int64) - ahead_ns, data["worker"]))

    def on_pong(self, _node: str, data: Mapping[str, Any]) -> None:
        worker = self._workers.get(data["worker"])
        if worker is not None:
            worker.clock.add(data["sent_ns"], data["theirs_ns"], time.monotonic_ns())

    def on_done(self, _node: str, data: Mapping[str, Any]) -> None:
        self._errors.update(data["errors"])
        self._spin_ns += data["spin_ns"]
        self._cpu_ns += data["cpu_ns"]
        self._error = self._error or data.get("error")
        self._is_capped = self._is_capped or data["is_capped"]
        if data["worker"] in self._workers:
            self._workers[data["worker"]].is_done = True

    def _write(self, samples: Samples) -> None:
        if self._is_unwritable:
            return
        try:
            self._keeper.write(samples)
        except LoadTestError as error:
            self._is_unwritable = True
            self._error = self._error or str(error)
            self._stop_members()

    # the run

    def conduct(self) -> None:
        """From the first member's readiness to the outcome."""
        limit = time.monotonic() + READY_S
        while len(self._workers) < self._count and self._error is None:
            if not all(_is_running(pid) for pid in self._children):
                self._error = (
                    "A generator process ended before the load had begun. See generator.log, and run it again."
                )
            if time.monotonic() > limit:
                self._error = (
                    f"{len(self._workers)} of {self._count} generator processes were ready after {READY_S:g} s. "
                    "See generator.log, use fewer workers, and run the load test again."
                )
            gevent.sleep(0.01)
        if self._error is None:
            self._map_clocks()
        if self._error is None:
            self._begin()
            self._follow()
        else:
            self._stop_members()
        self._finish(cancelled=False)

    def cancel(self) -> None:
        """End at once and keep what was measured."""
        self._stop_members()
        self.wait_for_members(1.0)
        self._finish(cancelled=True)

    def _map_clocks(self) -> None:
        """Ask every process that is not ours how late it is there."""
        others = [worker for worker in self._workers.values() if worker.pid is None]
        for _ in range(PINGS if others else 0):
            self._send("tritune_ping", {"sent_ns": time.monotonic_ns()})
            gevent.sleep(PING_S)
        limit = time.monotonic() + GRACE_S
        while any(worker.clock.error_ns is None for worker in others):
            if time.monotonic() > limit:
                self._error = "A worker on another machine did not answer in time. Check the network, and run it again."
                return
            gevent.sleep(PING_S)
        if others:
            worst_ms = max(worker.clock.error_ns or 0 for worker in others) / 1e6
            message = (
                f"{len(others)} of {self._count} workers run on other machines: their clocks were mapped to this one's "
                f"with an error of at most {worst_ms:.3g} ms. It is in no latency, which begins and ends on one clock; "
                "it is in the window's edges and in when a worker's share of the arrivals is sent."
            )
            self._notes.append({"code": "clock_mapping", "message": message})

    def _begin(self) -> None:
        warmup_ns = int(self.plan.load.warmup_s * 1e9)
        self._begin_ns = time.monotonic_ns() + max(LEAD_NS, NOTICE_NS - warmup_ns)
        self._start_ns = self._begin_ns + warmup_ns
        self._end_ns = self._start_ns + int(self.plan.load.duration_s * 1e9)
        load = self.plan.load
        rate_rps = load.peak_rate_rps if load.is_open_loop else None
        self._keeper.begin(self._start_ns, self._end_ns, expected_requests(self._total_s, rate_rps, load.workers))
        ahead_ns = {str(index): worker.clock.ahead_ns for index, worker in self._workers.items()}
        edges = {"begin_ns": self._begin_ns, "start_ns": self._start_ns, "end_ns": self._end_ns}
        self._send("tritune_go", {**edges, "ahead_ns": ahead_ns})
        self._write_live(time.monotonic_ns())

    def _follow(self) -> None:
        give_up_ns = self._end_ns + int((self.plan.load.timeout_s + GRACE_S) * 1e9)
        while not all(worker.is_done or worker.is_lost for worker in self._workers.values()):
            gevent.sleep(CHECK_S)
            now = time.monotonic_ns()
            if now >= self._next_live_ns:
                self.wait_for_quiet()
                self._write_live(now)
            if self._count > 1:
                self._look_for_lost(now)
            if self._parent is not None and os.getppid() != self._parent:
                self._error = "The process that had started this load test is gone. Run the load test again."
                self._stop_members()
                self._wait_for_done(GRACE_S)
                return
            if now > give_up_ns and self._error is None:
                self._error = "A generator process did not end in time. See generator.log and run the load test again."
                return

    def _stop_members(self) -> None:
        self._send("tritune_stop", {})

    def _wait_for_done(self, timeout_s: float) -> None:
        limit = time.monotonic() + timeout_s
        while time.monotonic() < limit and not all(worker.is_done for worker in self._workers.values()):
            gevent.sleep(0.02)

    def _look_for_lost(self, now: int) -> None:
        for index, worker in self._workers.items():
            if worker.is_done or worker.is_lost:
                continue
            if self.is_missing(worker.node) if worker.pid is None else not _is_running(worker.pid):
                worker.is_lost = True
                self._note_lost(index, worker, now)

    def _note_lost(self, index: int, worker: _Worker, now: int) -> None:
        load = self.plan.load
        what = f"Worker {index + 1} of {self._count} was lost {(now - self._start_ns) / 1e9:.1f} s into the window"
        if not load.is_open_loop:
            what += f": its share of the {load.concurrency} clients sent nothing after that"
        else:
            sent_until = max(worker.last_ns, self._begin_ns)
            missing = -worker.received
            for chunk in share(planned_ns(load, self._end_ns - self._begin_ns), index, self._count):
                times = chunk + self._begin_ns
                missing += int(np.searchsorted(times, sent_until, side="right"))
                self._write(Samples.unsent(times[times > sent_until], index))
            what += f": what it still had to send is counted as unsent, and {max(0, missing)} answers are missing"
        what += ". Up to 0.1 s of what it had measured is missing; all else is kept. Run the load test again."
        self._notes.append({"code": "lost_worker", "message": what})

    def _finish(self, *, cancelled: bool) -> None:
        if self.is_finished:
            return
        self.is_finished = True
        if self.plan.regions is not None and self._parent is not None and os.getppid() != self._parent:
            unregister(self.plan.regions, self.plan.endpoints)  # their owner cannot any more
        try:
            self._keeper.close()
        except LoadTestError as error:
            self._error = self._error or str(error)
        if self._keeper.note is not None:
            self._notes.append(self._keeper.note)
        if self._is_capped:
            self._notes.append(_capped(self.plan.load.max_connections))
        outcome = Outcome(
            window_start_ns=self._start_ns,
            window_end_ns=self._end_ns,
            wall_minus_monotonic_ns=time.time_ns() - time.monotonic_ns(),
            spin_ns=self._spin_ns,
            cpu_ns=self._cpu_ns,
            errors=most_frequent(self._errors),
            versions={name: version(name) for name in ("locust", "gevent")} | {"python": platform.python_version()},
            cancelled=cancelled,
            notes=tuple(self._notes),
            error=self._error,
        )
        try:
            write_outcome(self._folder, outcome)
            self.exit_code = 0 if self._error is None else 1
        except OSError:
            self.exit_code = EXIT_UNWRITABLE

    def _write_live(self, now: int) -> None:
        self._next_live_ns = now + int(LIVE_S * 1e9)
        until = self._recent[-1][0] if self._recent else now
        since = until - int(LIVE_S * 1e9)
        while self._recent and self._recent[0][0] < since:
            self._recent.popleft()
        latencies = [np.empty(0, dtype=np.int64)]
        for _, samples in self._recent:
            answered = (samples.status == Status.OK) & (samples.done_ns >= since)
            latencies.append((samples.done_ns - samples.intended_ns)[answered])
        last = np.concatenate(latencies)
        phase = Phase.WARMUP if now < self._start_ns else Phase.MEASURING if now < self._end_ns else Phase.DRAINING
        live = Live(
            phase=phase,
            elapsed_s=max(0.0, (now - self._begin_ns) / 1e9),
            total_s=self._total_s,
            throughput_rps=len(last) / LIVE_S,
            p99_ms=_p99_ms(last),
            ok=self._ok,
            failed=self._failed,
            window_start_ns=self._start_ns,
            window_end_ns=self._end_ns,
        )
        write_live(self._folder, live)


def _capped(connections: int) -> Mapping[str, str]:
    message = (
        f"All {connections} connections (max_connections) were in use, so requests waited for a free one; their "
        "latency counts from when they were due. The server is slower than the arrivals, or the cap is too low: lower "
        "the rate, or raise --max-connections."
    )
    return {"code": "connections_capped", "message": message}


def _p99_ms(latencies_ns: NDArray[np.int64]) -> float | None:
    return float(np.percentile(latencies_ns, 99)) / 1e6 if len(latencies_ns) else None


def _children() -> list[int]:
    """The processes that this one started."""
    pids = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{entry.name}/stat", "rb") as file:  # noqa: PTH123
                if int(file.read().rpartition(b")")[2].split()[1]) == os.getpid():
                    pids.append(int(entry.name))
    return pids


def _is_running(pid: int) -> bool:
    """Whether a process lives; one that has ended and was not waited for does not."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False
