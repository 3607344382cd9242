"""Joins Locust's events to a run: members send, the leader fixes the window and keeps what they recorded.

Belongs here: the order of a run over one process or a Locust master and its workers, and Locust's events.
Never: sending, the files' contents (leader.py).

Messages: tritune_ready, tritune_pong, tritune_samples, tritune_unsent, tritune_done go to the leader; tritune_ping,
tritune_go, tritune_stop to the members. In one process Locust's local runner delivers them itself, so there is one
path for both.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent
from locust.runners import MasterRunner, WorkerRunner

from loadgen.outcome import PLAN_FILE
from loadgen.users.leader import Leader
from loadgen.users.member import Member
from tritune.errors import InputError, TrituneError
from tritune.load_plan import Arrivals, GeneratorPlan, LoadPlan, Protocol
from tritune.plan import Endpoints

logger = logging.getLogger(__name__)
_BY_HAND_S = 24 * 3600.0


def attach(environment: Any, users: Mapping[str, type]) -> None:
    """Listen to the events of one Locust environment. `users` are the User classes by protocol."""
    options = environment.parsed_options
    runner = environment.runner
    is_worker = isinstance(runner, WorkerRunner)
    is_master = isinstance(runner, MasterRunner)
    leader = None
    if options.tritune_folder and not is_worker:
        folder = Path(options.tritune_folder)
        options.tritune_plan = (folder / PLAN_FILE).read_text(encoding="utf-8")
        plan = _plan(environment)
        leader = Leader(plan, folder, options.expect_workers if is_master else 1, runner.send_message)
    if not options.user_classes:
        protocol = _plan(environment).load.protocol if options.tritune_plan else options.tritune_protocol
        environment.user_classes = [users[str(protocol)]]
    if leader is not None:
        _attach_leader(environment, leader)
    if not is_master:
        _attach_member(environment, leader)


def _plan(environment: Any) -> GeneratorPlan:
    """The plan of the run: what came with the options, or what they ask for by hand. Raises TrituneError."""
    options = environment.parsed_options
    if options.tritune_plan:
        return GeneratorPlan.from_dict(json.loads(options.tritune_plan))
    from tritune.triton import Triton

    host = (environment.host or "http://127.0.0.1:8000").rstrip("/")
    scheme, _, address = host.rpartition("://")
    grpc = options.tritune_grpc or f"{address.rpartition(':')[0]}:8001"
    endpoints = Endpoints(http=address, grpc=grpc, tls={} if scheme == "https" else None)
    load = LoadPlan(
        model=options.tritune_model,
        protocol=Protocol(options.tritune_protocol),
        concurrency=None if options.tritune_rate else 1,  # the users decide
        rate_rps=options.tritune_rate or None,
        arrivals=Arrivals(options.tritune_arrivals),
        batch=options.tritune_batch,
        duration_s=_BY_HAND_S,
        warmup_s=0,
        seed=options.tritune_seed,
        timeout_s=options.tritune_timeout,
    )
    return GeneratorPlan(load, endpoints, Triton(endpoints).signature(load.model))


def _attach_leader(environment: Any, leader: Leader) -> None:
    runner = environment.runner
    for name in ("ready", "samples", "unsent", "done", "pong"):
        handler = getattr(leader, f"on_{name}")
        runner.register_message(
            f"tritune_{name}", lambda environment, msg, handler=handler, **_: handler(msg.node_id, msg.data)
        )

    leader.is_missing = lambda node: getattr(runner.clients.get(node), "state", "missing") == "missing"

    def conduct() -> None:
        leader.conduct()
        environment.process_exit_code = leader.exit_code
        runner.quit()

    conducting: list[gevent.Greenlet] = []

    @environment.events.test_start.add_listener  # type: ignore[untyped-decorator, unused-ignore]
    def begin(**_: Any) -> None:
        if not conducting:
            conducting.append(gevent.spawn(conduct))

    @environment.events.quitting.add_listener  # type: ignore[untyped-decorator, unused-ignore]
    def end(**_: Any) -> None:
        if not leader.is_finished:
            leader.cancel()
            environment.process_exit_code = leader.exit_code


def _attach_member(environment: Any, leader: Leader | None) -> None:
    runner = environment.runner

    @environment.events.test_start.add_listener  # type: ignore[untyped-decorator, unused-ignore]
    def make(**_: Any) -> None:
        is_conducted = bool(environment.parsed_options.tritune_plan)
        index = max(0, runner.worker_index)
        environment.tritune_member = None
        try:
            plan = _plan(environment)
            count = plan.load.workers if is_conducted else int(getattr(runner, "worker_count", 1) or 1)
            if is_conducted and index >= count:
                raise InputError(
                    f"A Locust worker too many (number {index + 1}) is connected to a load test that asks for {count}. "
                    "Ask for as many workers as there are, or start as many as are asked for."
                )
            send = runner.send_message if is_conducted else lambda *_: None
            member = Member(plan, index, count, send, environment.stats)
        except TrituneError as error:
            logger.error("%s", error)
            if is_conducted:
                runner.send_message("tritune_ready", {"worker": index, "pid": os.getpid(), "error": str(error)})
            else:
                gevent.spawn(runner.stop)
            return
        environment.tritune_member = member
        if not is_conducted:
            now = time.monotonic_ns()
            member.go(now, now, now + int(plan.load.duration_s * 1e9), takes_more_clients=True)

    @environment.events.spawning_complete.add_listener  # type: ignore[untyped-decorator, unused-ignore]
    def report(**_: Any) -> None:
        member: Member | None = getattr(environment, "tritune_member", None)
        if member is not None and environment.parsed_options.tritune_plan and not member.is_reported:
            gevent.spawn(member.report_ready)

    @environment.events.test_stop.add_listener  # type: ignore[untyped-decorator, unused-ignore]
    def stop(**_: Any) -> None:
        member: Member | None = getattr(environment, "tritune_member", None)
        if member is not None:
            member.stop()
            member.wait(timeout_s=2.0)

    def go(environment: Any, msg: Any, **_: Any) -> None:
        member: Member = environment.tritune_member
        ahead_ns = msg.data["ahead_ns"].get(str(member.index), 0)
        member.go(*(msg.data[name] + ahead_ns for name in ("begin_ns", "start_ns", "end_ns")))

    def answer(environment: Any, msg: Any, **_: Any) -> None:
        pong = {"worker": environment.tritune_member.index, "sent_ns": msg.data["sent_ns"]}
        runner.send_message("tritune_pong", {**pong, "theirs_ns": time.monotonic_ns()})

    runner.register_message("tritune_go", go)
    runner.register_message("tritune_ping", answer)
    runner.register_message("tritune_stop", lambda environment, msg, **_: environment.tritune_member.stop())
    if leader is not None:  # in one process a cancel must not wait for messages, and the leader's work delays sends
        leader.wait_for_quiet = lambda: environment.tritune_member.wait_for_quiet()
        leader.wait_for_members = lambda timeout_s: environment.tritune_member.wait(timeout_s)
