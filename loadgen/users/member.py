"""One process that sends: it makes the engine for a plan, runs it, and passes on what it recorded.

Belongs here: a worker's (or the only process's) side of a run. Never: the window, files, other processes.
"""

from __future__ import annotations

import gc
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import gevent
import gevent.event
import numpy as np
from numpy.typing import NDArray

from loadgen.encoding import grpc_messages, http_bodies
from loadgen.outcome import PARENT_VARIABLE
from loadgen.payload import payloads
from loadgen.responses import ResponseCheck
from loadgen.schedule import planned_ns, share
from loadgen.shared_memory import layout
from loadgen.users.grpc import GrpcConnection, grpc_requests, header_block
from loadgen.users.grpc_stream import STREAM_METHOD, GrpcStreamConnection, stream_messages
from loadgen.users.http import Head, HttpConnection, http_requests
from loadgen.users.loops import ClosedLoop, OpenLoop
from loadgen.users.statistics import StatisticsFeed
from loadgen.users.wire import Connection, resolve, tls_context
from tritune.errors import InputError, ServerDownError
from tritune.load_plan import GeneratorPlan, Protocol

SHIP_S = 0.5  # with its own leader in the process: shipping costs about a millisecond
SHIP_FAR_S = 0.1  # what a killed worker may lose
FEED_S = 1.0
SETTLE_S = 30.0
CHORE_NS = 4_000_000  # as long as shipping, or telling what happens, may take
NEARLY = 0.9  # of the longest gap soon: what is left of it when one is seen
PATIENCE_S = 0.1

Send = Callable[[str, Mapping[str, Any]], None]


def connector(plan: GeneratorPlan) -> tuple[Callable[[], Connection], int]:
    """A function that makes unopened connections, and how many different requests they can send.

    Raises InputError and ServerDownError.
    """
    load, endpoints = plan.load, plan.endpoints
    pool = payloads(plan.signature, load)
    check = None
    if load.check_share:
        shared = layout(plan.regions, pool, plan.signature, load).outputs if plan.regions is not None else {}
        check = ResponseCheck(plan.signature, load, shared)
    if load.protocol is Protocol.GRPC:
        if endpoints.grpc is None:
            raise InputError(
                "This server has no gRPC address. Attach it with --grpc HOST:PORT, or use --protocol http."
            )
        address = resolve(endpoints.grpc)
        context = tls_context(endpoints.tls, "h2")
        messages = grpc_messages(pool, plan)
        blocks: dict[bytes, dict[str, str]] = {}
        if load.grpc_stream:
            block = header_block(STREAM_METHOD, endpoints.grpc, endpoints.headers, is_tls=context is not None)
            parts = stream_messages(messages)
            return lambda: GrpcStreamConnection(address, context, parts, block, blocks, check), len(pool)
        frames = grpc_requests(messages, endpoints.grpc, endpoints.headers, is_tls=context is not None)
        return lambda: GrpcConnection(address, context, frames, blocks, check), len(pool)
    address = resolve(endpoints.http)
    context = tls_context(endpoints.tls, "http/1.1")
    bodies = http_bodies(pool, plan)
    requests = http_requests(bodies, load.model, endpoints.http, endpoints.headers, load.compression)
    heads: dict[bytes, Head] = {}
    return lambda: HttpConnection(address, context, requests, heads, check), len(requests)


def _give_way() -> None:
    """Let every greenlet run whose time has come. gevent.sleep(0) would come back before gevent has looked at its
    timers and sockets; an idle watcher comes back after it has."""
    gevent.idle()


class Member:
    """Sends a plan's load, as worker `index` of `count`. `send` brings a message to the conductor."""

    def __init__(self, plan: GeneratorPlan, index: int, count: int, send: Send, statistics: Any) -> None:
        self.plan = plan
        self.index = index
        self.over = gevent.event.Event()
        self._send = send
        load = plan.load
        self._feed = StatisticsFeed(statistics, f"/v2/models/{load.model}/infer", load.protocol.value)
        connect, request_count = connector(plan)
        common = (connect, request_count, load.timeout_s, _give_way)
        self.engine: ClosedLoop | OpenLoop
        if not load.is_open_loop:
            self.engine = ClosedLoop(*common)
        else:

            def arrivals(length_ns: int) -> Iterator[NDArray[np.int64]]:
                return share(planned_ns(load, length_ns), index, count)

            rate_rps = load.peak_rate_rps / count
            cap = load.max_connections // count + (index < load.max_connections % count)
            self.engine = OpenLoop(*common, arrivals=arrivals, rate_rps=rate_rps, max_connections=max(1, cap))
            self.engine.prepare()
        self.is_reported = False
        self._is_begun = False
        self._parent = os.getppid()
        self._ship_s = SHIP_S if count == 1 else SHIP_FAR_S
        self._unfed: array[int] = array("q")
        self._feed_next_s = 0.0
        self._running = gevent.spawn(self._run)

    def join(self) -> Connection | None:
        """One more client of a closed loop; None where there is nothing to do (an open loop needs no clients, and
        a load that has begun takes none)."""
        if isinstance(self.engine, OpenLoop) or self._is_begun:
            return None
        return self.engine.add_client()

    def leave(self, client: Connection | None) -> None:
        if client is not None and isinstance(self.engine, ClosedLoop) and not self.over.is_set():
            self.engine.remove_client(client)

    def report_ready(self) -> None:
        """Wait until the connections are open and tell the conductor; with `error` where none could be opened."""
        self.is_reported = True
        gc.collect()
        gc.freeze()  # a full collection of what Locust has loaded would stop the sends for 50 ms
        limit = time.monotonic() + min(SETTLE_S, max(1.0, self.plan.load.timeout_s))
        while not self.engine.is_settled and time.monotonic() < limit:
            gevent.sleep(0.01)
        error = None
        if not self.engine.opened:
            protocol = self.plan.load.protocol
            where = self.plan.endpoints.grpc if protocol is Protocol.GRPC else self.plan.endpoints.http
            why = self.engine.open_error or "no answer to the connection"
            error = (
                f"Nothing that speaks {protocol.value} answers at {where}: {why}. "
                "See `tritune server status`, and start or attach a server."
            )
        self._send("tritune_ready", {"worker": self.index, "pid": os.getpid(), "error": error})

    def go(self, begin_ns: int, start_ns: int, end_ns: int, *, takes_more_clients: bool = False) -> None:
        """Begin the load at `begin_ns`."""
        self._is_begun = not takes_more_clients
        self.engine.schedule(begin_ns, start_ns, end_ns)

    def stop(self) -> None:
        """End the load soon."""
        self.engine.stop()

    def wait_for_quiet(self) -> None:
        """Let a greenlet wait until its chore delays no send: for one of the longest gaps of the next 0.1 s."""
        limit = time.monotonic() + PATIENCE_S
        wanted = min(CHORE_NS, NEARLY * self.engine.longest_gap_ns())
        while self.engine.gap_ns() < wanted and time.monotonic() < limit:
            gevent.sleep(0.001)

    def wait(self, timeout_s: float) -> None:
        """Wait until the engine has ended and everything has been passed on."""
        self._running.join(timeout_s)

    def _run(self) -> None:
        shipping = gevent.spawn(self._ship_regularly)
        error = None
        try:
            self.engine.run()
        except (InputError, ServerDownError) as failure:
            error = str(failure)
        shipping.kill()
        self._ship()
        self._feed.add(self._unfed, self.engine.errors)
        if isinstance(self.engine, OpenLoop):
            for chunk in self.engine.leftover():
                self._send("tritune_unsent", {"worker": self.index, "intended_ns": chunk.tobytes()})
                gevent.sleep(0)
        self._send(
            "tritune_done",
            {
                "worker": self.index,
                "errors": self.engine.errors,
                "spin_ns": self.engine.spin_ns,
                "cpu_ns": self.engine.cpu_ns,
                "is_capped": isinstance(self.engine, OpenLoop) and self.engine.is_capped,
                "error": error,
            },
        )
        self.over.set()
        self.engine.close()

    def _ship_regularly(self) -> None:
        while True:
            gevent.sleep(self._ship_s)
            if PARENT_VARIABLE in os.environ and os.getppid() != self._parent:
                self.engine.stop()
            self.wait_for_quiet()
            self._ship()
            if time.monotonic() >= self._feed_next_s:
                self.wait_for_quiet()
                self._feed_next_s = time.monotonic() + FEED_S
                self._feed.add(self._unfed, self.engine.errors)
                del self._unfed[:]

    def _ship(self) -> None:
        records = self.engine.take_records()
        if records:
            self._send("tritune_samples", {"worker": self.index, "records": records.tobytes()})
            self._unfed.extend(records)
