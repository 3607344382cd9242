"""Samples lost: two Locust workers, and one of two killed in the middle of a run.

    python -m benchmarks.lost [--rounds 1] [--duration 4] [--out FILE]

The server's log is what was really answered, row by row with its connection: a sample is lost where the server has
answered and the merged samples have nothing. A killed worker's connections are those that were closed when it was
killed; all others belong to the living worker, whose samples must all be there.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.clients import finished, ours, window_of
from benchmarks.command import Options, run, say
from benchmarks.laws import ServerLog
from benchmarks.processes import children_of
from benchmarks.served import law_server
from benchmarks.tables import Report, Table
from loadgen.samples import Samples

LAW = "fixed:5"
WARMUP_S = 0.5
CONCURRENCY = 8
RATE_RPS = 400.0
LOADS: dict[str, dict[str, Any]] = {"closed loop": {"concurrency": CONCURRENCY}, "open loop": {"rate_rps": RATE_RPS}}


@dataclass(frozen=True, slots=True)
class Loss:
    """What one run recorded and what the server has answered, of both workers and of the living one."""

    load: str
    killed: bool
    answered: int
    recorded: int
    living_answered: int
    living_recorded: int
    stated: str

    @property
    def lost_of_living(self) -> int:
        return self.living_answered - self.living_recorded


def of_killed(log: ServerLog, killed_ns: int, end_ns: int) -> NDArray[np.bool_]:
    """Which rows came over connections that were closed from the kill on and before the load ended: the kernel closed
    them, since a living worker keeps its own to the end."""
    by_the_kernel = (log.closed_ns >= killed_ns) & (log.closed_ns < end_ns)
    return by_the_kernel[log.connection]


def one(options: Options, name: str, *, kill: bool) -> Loss:
    folder = options.fresh("lost")
    load = {**LOADS[name], "workers": 2, "warmup_s": WARMUP_S, "duration_s": options.duration_s}
    killed_ns = 0
    with law_server(folder, LAW) as (served, read_log):
        with ours(served, folder / "run", **load) as running:
            start_ns, end_ns = window_of(running)
            if kill:
                middle = (start_ns + end_ns) / 2e9
                time.sleep(max(0.0, middle - time.monotonic()))
                workers = children_of(running.pid)
                killed_ns = time.monotonic_ns()  # before the kill: the server may see it before we run again
                os.kill(workers[-1], signal.SIGKILL)
            samples, outcome = finished(running)
        log = read_log()
    arrived = samples.sent_ns >= 0
    notes = [note["message"] for note in outcome.notes if note["code"] == "lost_worker"]
    if not kill:
        count = int(np.count_nonzero(arrived))
        return Loss(name, kill, len(log), count, len(log), count, "; ".join(notes))
    gone = of_killed(log, killed_ns, end_ns)
    living = _living(samples, killed_ns)
    mine = arrived & (samples.worker == living)
    return Loss(
        name,
        kill,
        len(log),
        int(np.count_nonzero(arrived)),
        int(np.count_nonzero(~gone)),
        int(np.count_nonzero(mine)),
        "; ".join(notes),
    )


def _living(samples: Samples, killed_ns: int) -> int:
    """The worker that still sent after the other one was killed."""
    late = samples.worker[(samples.sent_ns > killed_ns + 300_000_000)]
    return int(np.bincount(late.astype(np.int64)).argmax()) if len(late) else -1


def measure(options: Options) -> Report:
    """Both loops, with and without a kill, in every round."""
    losses = []
    for number in range(options.rounds):
        for name in LOADS:
            for kill in (False, True):
                losses.append(one(options, name, kill=kill))
                last = losses[-1]
                what = "one killed" if kill else "two workers"
                say(f"round {number + 1}/{options.rounds}: {name}, {what}: {last.lost_of_living} lost")
    rows = tuple(
        (
            loss.load,
            "one of two killed" if loss.killed else "two workers",
            f"{loss.answered:,}",
            f"{loss.recorded:,}",
            f"{loss.living_answered:,} / {loss.living_recorded:,}" if loss.killed else "–",
            str(loss.lost_of_living),
            ("yes" if loss.stated else "no") if loss.killed else "–",
        )
        for loss in losses
    )
    header = (
        "load",
        "what",
        "server answered",
        "recorded",
        "living worker: answered / recorded",
        "lost",
        "loss stated",
    )
    notes = [f"Stated ({loss.load}): {loss.stated}" for loss in losses if loss.killed and loss.stated][:2]
    figures = {
        "lost_two_workers": float(max(abs(loss.lost_of_living) for loss in losses if not loss.killed)),
        "lost_when_killed": float(max(abs(loss.lost_of_living) for loss in losses if loss.killed)),
        "loss_not_stated": float(sum(1 for loss in losses if loss.killed and not loss.stated)),
    }
    raw = [{name: getattr(loss, name) for name in loss.__slots__} for loss in losses]
    return Report("lost", (Table("Samples lost", header, rows),), tuple(notes), figures, raw)


if __name__ == "__main__":
    sys.exit(run(measure, __doc__, rounds=1, duration_s=4))
