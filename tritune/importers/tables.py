"""Summary tables of others: perf_analyzer's CSV, Locust's two, Model Analyzer's inference table.

Belongs here: their columns and units. Never: single requests (importers.requests).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from tritune.errors import InputError
from tritune.importers.rows import Found, Row, measurement, number, table, text, whole
from tritune.load_plan import Driver, LoadPlan

# --- perf_analyzer ----------------------------------------------------------------------------------------------------


def is_perf_analyzer(names: Sequence[str]) -> bool:
    return "Inferences/Second" in names and bool({"Concurrency", "Request Rate"} & set(names))


_SERVER_US = {
    "queue_us": "Server Queue",
    "compute_input_us": "Server Compute Input",
    "compute_infer_us": "Server Compute Infer",
    "compute_output_us": "Server Compute Output",
}


def perf_analyzer(path: Path, model: str) -> Found:
    """One row a level, latencies in microseconds. It leaves out levels that it called unstable."""
    found = []
    for row in table(path):
        plan = _plan(row, model, Driver.PERF_ANALYZER, batch=1)
        latency = {name: number(row, f"{name} latency", 1e-3) for name in ("p50", "p90", "p95", "p99")}
        latency["mean"] = number(row, "Avg latency", 1e-3)
        server = {name: number(row, column) for name, column in _SERVER_US.items() if column in row}
        measured = measurement(
            throughput_ips=number(row, "Inferences/Second"),
            latency_ms=latency,
            server=server or None,
            loop="open" if plan.is_open_loop else "closed",
        )
        unknown = "The file tells neither protocol nor batch: HTTP and 1 stand there."
        found.append(Row(plan, "as measured", measured, unknown))
    return Found("perf_analyzer CSV", tuple(found))


def _plan(row: Mapping[str, str], model: str, driver: Driver, batch: int) -> LoadPlan:
    clients, rate = whole(row, "Concurrency"), number(row, "Request Rate")
    if clients:
        return LoadPlan(model, driver, concurrency=clients, batch=batch)
    if rate:
        return LoadPlan(model, driver, rate_rps=rate, batch=batch)
    raise InputError("A row has neither a concurrency nor a request rate of at least 1. Export the file again.")


# --- Model Analyzer ---------------------------------------------------------------------------------------------------


def is_model_analyzer(names: Sequence[str]) -> bool:
    return "Model Config Path" in names and "Throughput (infer/sec)" in names


_SERVER_MS = {
    "queue_us": "Server Queue time (ms)",
    "compute_input_us": "Server Compute Input time (ms)",
    "compute_infer_us": "Server Compute Infer time (ms)",
    "compute_output_us": "Server Compute Output time (ms)",
}


def model_analyzer(path: Path, model: str | None) -> Found:
    """One row a model configuration and load; the table does not say what the queue delay was."""
    rows = table(path)
    names = {text(row.get("Model", "")) for row in rows} - {""}
    if model is None and len(names) > 1:
        raise InputError(
            f"{path.name} has {len(names)} models ({text(', '.join(sorted(names)))}). Import the rows of one at a time."
        )
    found = []
    for row in rows:
        batch = whole(row, "Batch") or 1
        plan = _plan(row, "model", Driver.PERF_ANALYZER, batch)
        latency = {name: number(row, f"{name} Latency (ms)") for name in ("p90", "p95", "p99")}
        latency["mean"] = number(row, "Avg Latency (ms)")
        server = {name: number(row, column, 1e3) for name, column in _SERVER_MS.items() if column in row}
        measured = measurement(
            throughput_ips=number(row, "Throughput (infer/sec)"),
            latency_ms=latency,
            server=server or None,
            loop="open" if plan.is_open_loop else "closed",
        )
        unknown = "The file does not tell the protocol: HTTP stands there."
        found.append(Row(plan, _variant(row), measured, unknown))
    return Found("Model Analyzer CSV", tuple(found), next(iter(names), None))


def _variant(row: Mapping[str, str]) -> str:
    """`mnist_config_3 · max batch 16 · 2:CPU`: what the table says of a configuration."""
    parts = [row["Model Config Path"]]
    for column, before in (
        ("Max Batch Size", "max batch "),
        ("Preferred Batch Sizes", "preferred "),
        ("Instance Group", ""),
    ):
        if row.get(column):
            parts.append(before + row[column])
    return text(" · ".join(parts))


# --- Locust -----------------------------------------------------------------------------------------------------------

_PERCENTILES = {"p50": "50%", "p90": "90%", "p95": "95%", "p99": "99%", "p999": "99.9%"}
_AGGREGATED = "Aggregated"
_ROUNDED = (
    "Locust rounds its percentiles (to 1 ms, or two digits), counts failed requests in them and the ramp-up too, and "
    "the file has no single requests: there is no interval."
)


def is_locust_stats(names: Sequence[str]) -> bool:
    return {"Type", "Name", "Request Count", "Failure Count", "Requests/s", "Average Response Time"} <= set(names)


def locust_stats(path: Path, model: str) -> Found:
    """The whole run, one row for each name that was requested."""
    rows = [row for row in table(path) if whole(row, "Request Count")]
    named = [row for row in rows if row["Name"] != _AGGREGATED] or rows
    if not named:
        raise InputError(f"{path.name} has no answered request. Export it again after a run.")
    found = []
    for row in named:
        count, failed = whole(row, "Request Count") or 0, whole(row, "Failure Count") or 0
        rate, mean = number(row, "Requests/s") or 0.0, number(row, "Average Response Time") or 0.0
        plan = LoadPlan(model, Driver.LOCUST, concurrency=_in_flight(rate, mean))
        latency = {name: number(row, column) for name, column in _PERCENTILES.items()}
        latency |= {"mean": mean, "max": number(row, "Max Response Time")}
        measured = measurement(
            throughput_ips=rate * (count - failed) / count,
            latency_ms=latency,
            requests=_counts(count, failed),
            loop="closed",
            window_s=count / rate if rate else None,
            reason=_ROUNDED,
        )
        unknown = (
            "The file does not tell the users: requests per second times the mean time, the mean number in flight, "
            "stands there; one sample a request is assumed."
        )
        found.append(Row(plan, text(f"{row['Type']} {row['Name']}"), measured, unknown))
    return Found("Locust _stats.csv", tuple(found))


def _in_flight(rate_rps: float, mean_ms: float) -> int:
    """How many requests were in flight on average (Little 1961: L = λ W)."""
    return min(4096, max(1, round(rate_rps * mean_ms / 1e3)))


def _counts(count: int, failed: int) -> dict[str, int]:
    counts = dict.fromkeys(("ok", "failed", "warmup", "drain", "unsent", "timeout", "rejected"), 0)
    return counts | {"ok": max(0, count - failed), "failed": failed}


def is_locust_history(names: Sequence[str]) -> bool:
    return {"Timestamp", "User Count", "Name", "Requests/s", "Total Request Count"} <= set(names)


def locust_history(path: Path, model: str) -> Found:
    """One row for each stretch of at least two seconds with the same number of users, from the counts at its ends."""
    rows = [row for row in table(path) if row["Name"] == _AGGREGATED]
    has_windows = len(rows) < len(table(path))
    levels = [list(part) for _, part in groupby(rows, key=lambda row: whole(row, "User Count"))]
    levels = [part for part in levels if (whole(part[0], "User Count") or 0) > 0]
    found = [each for part in levels for each in _level(part, model, is_all=len(levels) == 1 and not has_windows)]
    if not found:
        raise InputError(f"{path.name} has no two seconds with the same number of users. Measure longer.")
    return Found("Locust _stats_history.csv", tuple(found))


def _level(rows: Sequence[Mapping[str, str]], model: str, *, is_all: bool) -> Iterator[Row]:
    first, last = rows[0], rows[-1]
    begin, end = (number(row, "Timestamp") or 0.0 for row in (first, last))
    counts = [(whole(row, "Total Request Count") or 0, whole(row, "Total Failure Count") or 0) for row in (first, last)]
    count, failed = (after - before for before, after in zip(*counts, strict=True))
    if end - begin < 2 or count <= 0 or not 0 <= failed <= count:
        return
    plan = LoadPlan(model, Driver.LOCUST, concurrency=min(4096, whole(first, "User Count") or 1))
    latency: dict[str, Any] = {}
    reason = "Locust's percentiles are of another stretch of the run than these requests, so none is taken over."
    if is_all:
        reason = _ROUNDED
        latency = {name: number(last, column) for name, column in _PERCENTILES.items()}
        latency |= {"mean": number(last, "Total Average Response Time"), "max": number(last, "Total Max Response Time")}
    measured = measurement(
        throughput_ips=(count - failed) / (end - begin),
        latency_ms=latency,
        requests=_counts(count, failed),
        loop="closed",
        window_s=end - begin,
        reason=reason,
    )
    yield Row(plan, "as measured", measured, "One sample a request is assumed.", at=begin)
