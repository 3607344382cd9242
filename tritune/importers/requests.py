"""Files with single requests: perf_analyzer's profile export and AIPerf's profile_export.jsonl.

Belongs here: their timestamps, read a piece at a time. Their percentiles and intervals are ours (measurement). Never:
tables of summary figures (importers.tables).
"""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.outcome import Outcome
from loadgen.profile_export import ProfileReader
from loadgen.samples import Samples, Status
from tritune.errors import InputError, LoadTestError
from tritune.importers.rows import UNKNOWN_GENERATOR, Found, Row
from tritune.load_plan import MAX_CONCURRENCY, Driver, LoadPlan
from tritune.measurement import measure

MAX_REQUESTS = 20_000_000
MAX_LEVELS = 1000
_PIECE = 1 << 20
_KEEP = 1 << 16  # longer than the head of a level and its list of windows
_LEVEL = re.compile(rb'"experiment"\s*:\s*\{\s*"mode"\s*:\s*"(\w+)"\s*,\s*"value"\s*:\s*([-+.\deE]+)\s*\}')
_WINDOWS = re.compile(rb'"window_boundaries"\s*:\s*\[([\d,\s]*)\]')
_AS_MEASURED = 3  # windows that perf_analyzer's own figures are of


# --- perf_analyzer ----------------------------------------------------------------------------------------------------


def is_profile_export(head: bytes) -> bool:
    return re.match(rb'\s*\{\s*"experiments"\s*:', head) is not None


def profile_export(path: Path, model: str) -> Found:
    """One row a level, over its last three windows, as perf_analyzer's own figures are."""
    rows = []
    for mode, value, times, windows in _levels(path):
        if not len(times):
            continue
        start, end = int(times[:, 0].min()), int(times[:, 1].max())
        if len(windows) >= 2:
            start, end = int(windows[-min(len(windows), _AS_MEASURED + 1)]), int(windows[-1])
        is_rate = mode == "request_rate"
        load: dict[str, Any] = {"rate_rps": value} if is_rate else {"concurrency": max(1, round(value))}
        unknown = "The file tells neither protocol nor batch: HTTP and 1 stand there."
        statuses = np.full(len(times), Status.OK, np.int8)
        rows.append(_row(model, load, _samples(times, statuses), start, end, unknown))
    if not rows:
        raise InputError(f"{path.name} has no answered request. Measure again with --profile-export-file.")
    return Found("perf_analyzer profile export", tuple(rows))


def _levels(path: Path) -> Iterator[tuple[str, float, NDArray[np.int64], NDArray[np.int64]]]:
    """Each level's mode, value, times (sent, answered) and window edges. The file is never in memory as a whole."""
    reader: ProfileReader | None = None
    mode, value, count, tail = "", 0.0, 0, b""
    edges: NDArray[np.int64] = np.empty(0, np.int64)
    with path.open("rb") as file:
        while True:
            piece = file.read(_PIECE)
            data, cut = tail + piece, 0
            for head in _LEVEL.finditer(data):
                if reader is not None:
                    reader.feed(data[cut : head.start()])
                    edges = _edges(data[cut : head.start()], edges)
                    yield mode, value, reader.times(), edges
                cut, count = head.end(), count + 1
                mode, value, reader = head[1].decode("ascii", "replace"), _value(head[2], path), ProfileReader()
                edges = np.empty(0, np.int64)
            last = len(data) if not piece else max(cut, len(data) - _KEEP)
            if reader is not None:
                reader.feed(data[cut:last])
                edges = _edges(data[cut:], edges)
            tail = data[last:]
            if count > MAX_LEVELS or (reader is not None and reader.count > MAX_REQUESTS):
                raise InputError(f"{path.name} has more than {MAX_REQUESTS:,} requests or {MAX_LEVELS:,} levels.")
            if not piece:
                break
    if reader is None:
        raise InputError(f"{path.name} has no level of load in it: it was cut. Measure again.")
    yield mode, value, reader.times(), edges


def _edges(data: bytes, before: NDArray[np.int64]) -> NDArray[np.int64]:
    found = _WINDOWS.search(data)
    return np.array([int(edge) for edge in found[1].split(b",") if edge.strip()], np.int64) if found else before


def _value(digits: bytes, path: Path) -> float:
    try:
        value = float(digits)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1e7:
        raise InputError(f"{path.name} names a load of {digits[:20].decode('ascii', 'replace')}. Measure again.")
    return value


# --- AIPerf -----------------------------------------------------------------------------------------------------------


def is_aiperf(first_line: bytes) -> bool:
    try:
        row = json.loads(first_line)
    except (ValueError, RecursionError):
        return False
    return isinstance(row, dict) and "request_start_ns" in (row.get("metadata") or {}) and "metrics" in row


def aiperf(path: Path, model: str) -> Found:
    """The run as one row: the requests of its profiling phase, from the first sent to the last one begun."""
    times: array[int] = array("q")
    statuses = array("b")
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
                about = row["metadata"]
                if about.get("benchmark_phase", "profiling") != "profiling":
                    continue
                sent, done = int(about["request_start_ns"]), int(about["request_end_ns"])
                is_bad = bool(row.get("error")) or bool(about.get("was_cancelled"))
                if not 0 < sent <= done < 2**62:
                    raise ValueError("times out of order")
                times.extend((sent, done))
                statuses.append(Status.FAILED if is_bad else Status.OK)
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
                raise InputError(
                    f"Line {number:,} of {path.name} is no record of AIPerf ({type(error).__name__}): the file was cut "
                    "or changed. Copy it again."
                ) from None
            if len(statuses) > MAX_REQUESTS:
                raise InputError(f"{path.name} has more than {MAX_REQUESTS:,} requests. Import a part of it.")
    if not statuses:
        raise InputError(f"{path.name} has no request of the profiling phase. Measure again.")
    table = np.array(times, np.int64).reshape(-1, 2)
    start, end = int(table[:, 0].min()), int(table[:, 0].max())
    if end - start < 1e9:
        end = int(table[:, 1].max())
    length_ns = max(end - start, 1)
    overlap_ns = np.minimum(table[:, 1], end) - np.maximum(table[:, 0], start)
    clients = min(MAX_CONCURRENCY, max(1, round(float(np.maximum(overlap_ns, 0).sum()) / length_ns)))
    unknown = (
        f"The file tells neither the load nor the batch: {clients}, the mean number of requests in flight, and 1 stand "
        "there."
    )
    samples = _samples(table, np.array(statuses, np.int8))
    return Found("AIPerf profile_export.jsonl", (_row(model, {"concurrency": clients}, samples, start, end, unknown),))


# --- both -------------------------------------------------------------------------------------------------------------


def _samples(times: NDArray[np.int64], statuses: NDArray[np.int8]) -> Samples:
    sent, done = (np.ascontiguousarray(times[:, place]) for place in (0, 1))
    return Samples(sent, sent, done, statuses, np.zeros(len(times), np.int16))


def _row(model: str, load: dict[str, Any], samples: Samples, start: int, end: int, unknown: str) -> Row:
    """The numbers of one load; times are of the wall clock in ns."""
    plan = LoadPlan(
        model, Driver.PERF_ANALYZER, duration_s=min(86400.0, max(0.5, (end - start) / 1e9)), warmup_s=0, **load
    )
    nobody = Outcome(start, end, 0)
    try:
        found = measure(
            plan,
            samples,
            nobody,
            None,
            generator_cpu_ns=0,
            generator_processes=1,
            asked=None,
            served=None,
            server_restarted=False,
        ).to_dict()
    except LoadTestError:
        raise InputError("The times in the file make no window of measurement. Measure again.") from None
    at = start / 1e9
    return Row(plan, "as measured", found | {"generator": dict(UNKNOWN_GENERATOR)}, unknown, at, samples)
