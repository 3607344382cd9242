"""How exact reported percentiles are, against a server whose delays are known.

    python -m benchmarks.fidelity [--rounds 3] [--duration 12] [--out FILE]

The truth is the server's own log of its delays, applied to the seeded schedule (laws.truth_ns), not the law's
parameter. Ours sends Poisson arrivals, perf_analyzer its default, constant ones; a plain Locust user knows no open
loop, so its users pace themselves (constant_throughput). Ours reports as Tritune does; perf_analyzer's export goes
through the same percentile code; plain Locust reports what its own CSV says.
Ours times an answer by the kernel that had it, so its own waking up is in no latency; what is left is how late it
sends, which on a busy machine is the scheduler's doing (the machine's other processes are in the notes), and the way
there and back.
The server has the last core for itself and never sleeps; the clients have the others. Its own error is in the last
table.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.clients import finished, locust_percentiles, ours, plain_locust
from benchmarks.command import FAILURES, Options, run, say
from benchmarks.laws import QUANTILES, Int64s, Law, ServerLog, error_percent, quantile_ms, truth_ns
from benchmarks.processes import BenchmarkError, Group
from benchmarks.served import Served, law_server
from benchmarks.tables import Report, Table, median, number, order
from loadgen.samples import Samples
from loadgen.schedule import offsets_ns
from tritune.load_plan import Arrivals, Driver
from tritune.window import Window

LAWS = {
    "fixed": "fixed:5",
    "bimodal": "bimodal:2:20:0.05",
    "lognormal": "lognormal:5:0.5",
    "stall": "stall:5:10000:1000",
}
RATE_RPS = 500.0
STALL_RATE_RPS = 300.0  # one second of it is in flight at once
STALL_FACTOR = 2  # its windows are longer, so that they hold more than one stall
WARMUP_S = 1.0
LOCUST_RATE_PER_USER = 10.0
DISTURBED_US = 100.0  # the server's own P99 on a quiet machine is 6 to 20
PARTS = ("intended to sent", "sent to the server's kernel", "answered to done")
NAMES = tuple(f"P{100 * quantile:g}" for quantile in QUANTILES)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one client reported in one run, and the truth, both in ms by QUANTILES; of ours also the P99 of each of
    PARTS."""

    law: str
    client: str
    reported: tuple[float, ...]
    truth: tuple[float, ...]
    requests: int
    late_us: tuple[float, ...]
    unseen_us: float
    parts_us: tuple[float, ...] = ()

    @property
    def errors(self) -> tuple[float, ...]:
        return tuple(error_percent(*pair) for pair in zip(self.reported, self.truth, strict=True))


def finding(name: str, client: str, reported: tuple[float, ...], truth: Int64s, log: ServerLog) -> Finding:
    log = log.answered()
    late_us = tuple(quantile_ms(log.late_ns, quantile) * 1e3 for quantile in QUANTILES)
    unseen_us = quantile_ms(log.unseen_ns, 0.99) * 1e3
    true = tuple(quantile_ms(truth, quantile) for quantile in QUANTILES)
    return Finding(name, client, reported, true, len(truth), late_us, unseen_us)


Log = Callable[[], ServerLog]


def _tritune(
    driver: Driver, name: str, law: Law, served: Served, log: Log, folder: Path, duration_s: float, seed: int
) -> Finding:
    rate_rps = STALL_RATE_RPS if name == "stall" else RATE_RPS
    arrivals = Arrivals.POISSON if driver is Driver.LOCUST else Arrivals.CONSTANT
    load = {"driver": driver, "rate_rps": rate_rps, "arrivals": arrivals, "seed": seed}
    with ours(served, folder / "run", warmup_s=WARMUP_S, duration_s=duration_s, **load) as running:
        samples, outcome = finished(running)
    start_ns, end_ns = outcome.window_start_ns, outcome.window_end_ns
    cut = Window.cut(samples, start_ns, end_ns)
    reported = tuple((q.value / 1e6 if (q := cut.latencies.quantile(p)) else float("nan")) for p in QUANTILES)
    begin_ns = start_ns - int(WARMUP_S * 1e9)
    offsets = np.concatenate(list(offsets_ns(rate_rps, arrivals, seed, end_ns - begin_ns)))
    server_log = log()
    truth = truth_ns(law, server_log, offsets + begin_ns, start_ns, end_ns)
    client = "ours" if driver is Driver.LOCUST else "perf_analyzer"
    sent = int(np.count_nonzero(samples.sent_ns >= 0))
    if driver is Driver.LOCUST and len(server_log) != sent:
        raise BenchmarkError(f"Ours says that it has sent {sent} requests, and the server has seen {len(server_log)}.")
    found = finding(name, client, reported, truth, server_log)
    if driver is Driver.LOCUST and len(server_log.answered()) == len(samples):
        return replace(found, parts_us=parts_us(samples, server_log, start_ns, end_ns))
    return found


def parts_us(samples: Samples, log: ServerLog, start_ns: int, end_ns: int) -> tuple[float, ...]:
    """The P99 of each of PARTS: where a latency is more than what the server took. The k-th sent is the k-th seen."""
    order_ = np.argsort(samples.sent_ns, kind="stable")
    intended, sent, done = (times[order_] for times in (samples.intended_ns, samples.sent_ns, samples.done_ns))
    inside = (intended >= start_ns) & (intended < end_ns)
    parts = (sent - intended, log.arrived_ns - sent, done - log.answered_ns)
    return tuple(quantile_ms(part[inside], 0.99) * 1e3 for part in parts)


def _plain_locust(name: str, law: Law, served: Served, log: Log, folder: Path, duration_s: float) -> Finding:
    rate_rps = STALL_RATE_RPS if name == "stall" else RATE_RPS
    users = int(rate_rps / LOCUST_RATE_PER_USER)
    command, environment = plain_locust(served, users=users, rate_per_user=LOCUST_RATE_PER_USER)
    command += ["--run-time", f"{duration_s + WARMUP_S:g}", "--csv", str(folder / "plain"), "--exit-code-on-error", "0"]
    with Group(command, folder, environment=environment, end_signal=signal.SIGTERM) as group:
        group.process.wait(duration_s + WARMUP_S + 60)
        if group.process.returncode != 0:
            raise BenchmarkError(f"plain Locust ended with exit code {group.process.returncode}: {group.words()}")
    percentiles = locust_percentiles(folder / "plain_stats.csv")
    server_log = log()
    if not len(server_log):
        raise BenchmarkError("plain Locust has sent nothing.")
    start_ns = int(server_log.arrived_ns[0])  # its numbers are about the whole run
    end_ns = start_ns + int((duration_s + WARMUP_S) * 1e9)
    schedule = start_ns + (np.arange(int((duration_s + WARMUP_S) * rate_rps)) * 1e9 / rate_rps).astype(np.int64)
    truth = truth_ns(law, server_log, schedule, start_ns, end_ns)
    return finding(name, "plain Locust", tuple(percentiles.values()), truth, server_log)


CLIENTS: Mapping[str, Callable[..., Finding]] = {
    "ours": lambda *arguments: _tritune(Driver.LOCUST, *arguments),
    "perf_analyzer": lambda *arguments: _tritune(Driver.PERF_ANALYZER, *arguments),
    "plain Locust": lambda *arguments: _plain_locust(*arguments[:-1]),
}


@contextmanager
def last_core_left_free() -> Iterator[int | None]:
    """Keep this process and what it starts off the last core; None where there is only one."""
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        yield None
        return
    try:
        os.sched_setaffinity(0, cores - {max(cores)})
        yield max(cores)
    finally:
        os.sched_setaffinity(0, cores)


def rounds(options: Options, notes: list[str]) -> list[Finding]:
    findings = []
    with last_core_left_free() as core:
        if core is None:
            notes.append("This machine has one core: server and clients disturbed each other.")
        for number_ in range(options.rounds):
            for name, text in LAWS.items():
                duration_s = options.duration_s * (STALL_FACTOR if name == "stall" else 1)
                for client in order(list(CLIENTS), number_):
                    folder = options.fresh(client)
                    try:
                        with law_server(folder, text, core=core, seed=number_) as (served, log):
                            run_one = CLIENTS[client]
                            found = run_one(name, Law.parse(text), served, log, folder, duration_s, number_)
                    except FAILURES as error:
                        notes.append(f"{name}, {client}, round {number_ + 1}: {error}")
                        say(notes[-1])
                        continue
                    findings.append(found)
                    errors = ", ".join(
                        f"{label} {error:+.2f} %" for label, error in zip(NAMES, found.errors, strict=True)
                    )
                    say(f"round {number_ + 1}/{options.rounds}: {name}, {client}: {errors}")
    return findings


def errors_table(findings: list[Finding]) -> Table:
    """Medians over the rounds."""
    rows = []
    for name, text in LAWS.items():
        for client in CLIENTS:
            these = [found for found in findings if (found.law, found.client) == (name, client)]
            if not these:
                continue
            cells = [text, client, str(len(these))]
            for index in range(len(QUANTILES)):
                truth = median([found.truth[index] for found in these])
                reported = median([found.reported[index] for found in these])
                error = median([found.errors[index] for found in these])
                cells.append(f"{number(reported, 4)} / {number(truth, 4)}: {error:+.2f} %")
            rows.append(tuple(cells))
    header = ("law (ms)", "client", "rounds", *(f"{name}: reported / truth, ms" for name in NAMES))
    return Table("Reported percentiles against the truth (medians over rounds)", header, tuple(rows))


def server_table(findings: list[Finding]) -> Table:
    rows = []
    for name, text in LAWS.items():
        these = [found for found in findings if found.law == name]
        if these:
            late = (number(median([found.late_us[index] for found in these])) for index in range(len(QUANTILES)))
            rows.append((text, *late, number(median([found.unseen_us for found in these]))))
    header = ("law (ms)", *(f"late {name}, µs" for name in NAMES), "seen late P99, µs")
    return Table(
        "The server's own error, which is in the truth: answers behind the law's delay",
        header,
        tuple(rows),
    )


def parts_table(findings: list[Finding]) -> Table:
    """Medians over the rounds."""
    rows = []
    for name, text in LAWS.items():
        these = [found for found in findings if found.law == name and found.parts_us]
        if these:
            cells = (number(median([found.parts_us[index] for found in these])) for index in range(len(PARTS)))
            rows.append((text, *cells))
    title = "Ours beside the server's log: P99 of what is added to the truth, µs"
    return Table(title, ("law (ms)", *PARTS), tuple(rows))


def disturbed(findings: list[Finding]) -> Iterator[str]:
    """What shows that other processes took the cores: the server, which has one for itself, was late itself."""
    index = QUANTILES.index(0.99)
    for name in LAWS:
        late_us = [found.late_us[index] for found in findings if found.law == name]
        if late_us and max(late_us) > DISTURBED_US:
            yield (
                f"Disturbed ({name}): in one run the server's own answers were {number(max(late_us))} µs late at P99, "
                "though it has a core for itself. Other processes took it, and the clients' core too: run it on a "
                "quiet machine."
            )


def figures(findings: list[Finding]) -> dict[str, float]:
    """The worst law's median absolute error of ours at P99."""
    index = QUANTILES.index(0.99)
    by_law = {
        name: median([abs(found.errors[index]) for found in findings if (found.law, found.client) == (name, "ours")])
        for name in LAWS
    }
    return {"p99_error": max(by_law[name] for name in LAWS if name != "stall"), "p99_error_stall": by_law["stall"]}


def measure(options: Options) -> Report:
    """All laws, all clients, in interleaved rounds."""
    notes: list[str] = []
    findings = rounds(options, notes)
    notes += disturbed(findings)
    raw = [
        {
            "law": found.law,
            "client": found.client,
            "reported": found.reported,
            "truth": found.truth,
            "n": found.requests,
        }
        for found in findings
    ]
    tables = (errors_table(findings), parts_table(findings), server_table(findings))
    return Report("fidelity", tables, tuple(notes), figures(findings), raw)


if __name__ == "__main__":
    sys.exit(run(measure, __doc__, rounds=3, duration_s=12))
