"""CPU per request of load generators: against the real Triton with MNIST, and against the same canned answer as wrk.

    python -m benchmarks.efficiency [--rounds 5] [--duration 8] [--out FILE]

CPU is user and system time of the client's whole process group between the edges of the window, from /proc, per
request that the *server* counted between them; deliberate spinning apart. 16 clients in a closed loop. In every round
each client runs once, in rotating order; ratios are taken within a round, and the median over the rounds is shown with
its range.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping

from benchmarks.clients import (
    CLIENTS,
    Cost,
    Reading,
    cost,
    cost_of_ours,
    cost_of_perf_analyzer,
    cost_of_plain_locust,
    cost_of_wrk,
)
from benchmarks.command import FAILURES, Options, run, say
from benchmarks.served import Served, canned, find_nginx, triton_with_mnist
from benchmarks.tables import Report, Table, median, number, order, ratios, spread
from tritune.load_plan import Protocol

WARMUP_S = 1.0
PLAIN = "plain Locust + tritonclient"
ON_TRITON: Mapping[str, Cost] = {
    "ours http": cost(cost_of_ours, Protocol.HTTP),
    "ours grpc": cost(cost_of_ours, Protocol.GRPC),
    "perf_analyzer http": cost(cost_of_perf_analyzer, Protocol.HTTP),
    "perf_analyzer grpc": cost(cost_of_perf_analyzer, Protocol.GRPC),
    PLAIN: cost_of_plain_locust,
}
ON_CANNED: Mapping[str, Cost] = {"ours http": cost(cost_of_ours, Protocol.HTTP), "wrk": cost_of_wrk}
TRITON_RATIOS = {
    "http_to_perf_analyzer": ("ours http", "perf_analyzer http"),
    "grpc_to_perf_analyzer": ("ours grpc", "perf_analyzer grpc"),
    "http_to_plain_locust": ("ours http", PLAIN),
}
CANNED_RATIOS = {"http_to_wrk": ("ours http", "wrk")}

Rounds = list[dict[str, Reading]]


def rounds_on(served: Served, clients: Mapping[str, Cost], options: Options, notes: list[str]) -> Rounds:
    """Every client once a round. A client that cannot be run twice is left out, and a note says why."""
    rounds: Rounds = []
    failures: dict[str, int] = {}
    for number_ in range(options.rounds):
        rounds.append({})
        for name in order(list(clients), number_):
            if failures.get(name, 0) >= 2:
                continue
            try:
                reading = clients[name](served, options.fresh(name), WARMUP_S, options.duration_s)
            except FAILURES as error:
                failures[name] = failures.get(name, 0) + 1
                notes.append(f"{name}, round {number_ + 1}: {error}")
                say(notes[-1])
                continue
            rounds[-1][name] = reading
            say(
                f"{served.name}, round {number_ + 1}/{options.rounds}: {name} {number(reading.cpu_us)} µs/request, "
                f"{number(reading.rps)} requests/s"
            )
    return rounds


def table(served: Served, rounds: Rounds, clients: Mapping[str, Cost]) -> Table:
    rows = []
    for name in clients:
        readings = [row[name] for row in rounds if name in row]
        per_core = median([reading.rps_per_core for reading in readings])
        rows.append(
            (
                name,
                spread([reading.cpu_us for reading in readings]),
                number(per_core),
                spread([reading.rps for reading in readings]),
                number(median([reading.cpu_ns / 1e7 / reading.window_s for reading in readings])),
                str(len(readings)),
            )
        )
    header = ("client", "CPU µs/request", "requests/s per core", "requests/s", "CPU % of a core", "rounds")
    return Table(f"{CLIENTS} clients against {served.name}, {served.model}", header, tuple(rows))


def ratio_rows(rounds: Rounds, pairs: Mapping[str, tuple[str, str]]) -> tuple[dict[str, float], list[tuple[str, ...]]]:
    """The figures by their key, and the rows of a table."""
    costs = [{name: reading.cpu_us for name, reading in row.items()} for row in rounds]
    found = {key: ratios(costs, *pair) for key, pair in pairs.items()}
    rows: list[tuple[str, ...]] = [
        (f"{pairs[key][0]} / {pairs[key][1]}", spread(values)) for key, values in found.items() if values
    ]
    return {key: median(values) for key, values in found.items() if values}, rows


def measure(options: Options) -> Report:
    """Both servers, one after the other. What is missing on this machine is skipped in one sentence."""
    notes: list[str] = []
    tables: list[Table] = []
    figures: dict[str, float] = {}
    raw: list[Mapping[str, object]] = []
    lines: list[tuple[str, ...]] = []

    def add(served: Served, clients: Mapping[str, Cost], pairs: Mapping[str, tuple[str, str]]) -> None:
        rounds = rounds_on(served, clients, options, notes)
        tables.append(table(served, rounds, clients))
        numbers, rows = ratio_rows(rounds, pairs)
        figures.update(numbers)
        lines.extend(rows)
        raw.extend(
            {"server": served.name, "round": index, **reading.to_dict()}
            for index, row in enumerate(rounds)
            for reading in row.values()
        )

    try:
        with triton_with_mnist(options.fresh("triton"), say) as served:
            add(served, ON_TRITON, TRITON_RATIOS)
    except FAILURES as error:
        notes.append(f"Nothing was measured against Triton: {error}")
        say(notes[-1])
    has_wrk = shutil.which("wrk") is not None
    if not has_wrk:
        notes.append("wrk is not installed (apt-get install wrk), so its row is missing.")
    if find_nginx() is None:
        notes.append(
            "nginx is not installed (apt-get install nginx-light); the canned answer came from a slower Python server."
        )
    with canned(options.fresh("canned")) as served:
        clients = {name: client for name, client in ON_CANNED.items() if name != "wrk" or has_wrk}
        add(served, clients, CANNED_RATIOS)
    tables.append(Table("Ratios of CPU per request", ("ratio", "median (range) over rounds"), tuple(lines)))
    return Report("efficiency", tuple(tables), tuple(notes), figures, raw)


if __name__ == "__main__":
    sys.exit(run(measure, __doc__, rounds=5, duration_s=8))
