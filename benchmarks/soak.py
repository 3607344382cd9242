"""Memory against requests: the generator's whole process group, and the worker that measures, by the real command line.

    python -m benchmarks.soak [--duration 2] [--rounds 1] [--out FILE]

A worker of a temporary installation runs two load tests against the canned answer, one of about 100,000 requests and
one of about 1,000,000 (--duration is that of a short one before, which shows the rate). The generator's memory is read
when the server has counted 100,000 and 1,000,000 requests of the second test, the worker's is its peak during each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.clients import CLIENTS
from benchmarks.command import Options, run, say
from benchmarks.processes import (
    BenchmarkError,
    Group,
    children_of,
    forget_peak,
    group_of,
    group_rss_bytes,
    peak_rss_bytes,
)
from benchmarks.served import ROOT, Served, canned, find_nginx
from benchmarks.tables import Report, Table, median, number

MARKS = (100_000, 1_000_000)
MARGIN = 1.1  # to be sure to pass the mark
ATTEMPTS = 2  # the rate of a busy machine may fall
MAX_DURATION_S = 180.0
WARMUP_S = 0.2
MB = 1e6


@dataclass(slots=True)
class Test:
    """One load test: RSS of the generator's group when each mark was passed, its largest, and the worker's peak."""

    requests: int = 0
    duration_s: float = 0.0
    generator_at: dict[int, float] = field(default_factory=dict)
    generator_peak: float = 0.0
    worker_peak: float = 0.0
    worker_before: float = 0.0


def _environment(folder: Path) -> dict[str, str]:
    return {
        "TRITUNE_MODEL_REPO": str(folder / "models"),
        "TRITUNE_RESULTS": str(folder / "results"),
        "TRITUNE_DATABASE_URL": "",
        "PYTHONPATH": str(ROOT),
    }


def _tritune(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tritune.cli", *arguments]


@contextmanager
def worker(served: Served, folder: Path) -> Iterator[int]:
    """A worker of a new installation that is attached to the server; its pid."""
    environment = _environment(folder)
    attach = subprocess.run(
        _tritune("server", "attach", f"http://{served.endpoints.http}"),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if attach.returncode:
        raise BenchmarkError(f"The canned server could not be attached: {attach.stderr.strip()[-300:]}")
    with Group(_tritune("worker", "--service"), folder, environment=environment) as group:
        yield group.pid


def load_test(served: Served, folder: Path, worker_pid: int, duration_s: float) -> Test:
    """Run one `tritune load` and watch memory until it has ended."""
    test = Test(duration_s=duration_s, worker_before=_rss(worker_pid))
    forget_peak(worker_pid)
    before = served.count()
    command = _tritune("load", served.model, "--concurrency", str(CLIENTS), "--duration", f"{duration_s:.1f}")
    command += ["--warmup", f"{WARMUP_S:g}", "--json"]
    with Group(command, folder, environment=_environment(folder)) as group:
        limit = time.monotonic() + duration_s + 120
        while group.process.poll() is None:
            if time.monotonic() > limit:
                raise BenchmarkError(f"A load test of {duration_s:.0f} s had not ended after {duration_s + 120:.0f} s.")
            rss = sum(group_rss_bytes(pid) for pid in children_of(worker_pid) if _leads_group(pid)) / MB
            done = served.count() - before
            for mark in MARKS:
                if done >= mark and mark not in test.generator_at and rss:
                    test.generator_at[mark] = rss
            test.generator_peak = max(test.generator_peak, rss)
            time.sleep(0.05)
        test.requests = served.count() - before
        test.worker_peak = peak_rss_bytes(worker_pid) / MB
        if group.process.returncode not in (0, 3):
            raise BenchmarkError(f"`tritune load` ended with exit code {group.process.returncode}: {group.words()}")
    return test


def _leads_group(pid: int) -> bool:
    return any(member == pid for member, _ in group_of(pid))


def _rss(pid: int) -> float:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") / MB


def one_round(options: Options) -> tuple[Test, Test]:
    """A load test of about 100,000 requests, and one of about 1,000,000 in the same worker."""
    folder = options.fresh("soak")
    with canned(options.fresh("canned")) as served, worker(served, folder) as pid:
        say("calibrating")
        first = load_test(served, folder, pid, options.duration_s)
        rate = first.requests / (first.duration_s + WARMUP_S)
        tests = {}
        for mark in MARKS:
            for _ in range(ATTEMPTS):
                wanted_s = min(MAX_DURATION_S, max(0.5, mark * MARGIN / rate - WARMUP_S))
                say(f"a load test of about {mark:,} requests: {wanted_s:.1f} s at {rate:,.0f} requests/s")
                tests[mark] = load_test(served, folder, pid, wanted_s)
                rate = tests[mark].requests / (wanted_s + WARMUP_S)
                if tests[mark].requests >= mark:
                    break
    return tests[MARKS[0]], tests[MARKS[1]]


def measure(options: Options) -> Report:
    """Rounds of both tests; figures are medians."""
    notes = []
    if find_nginx() is None:
        notes.append("nginx is not installed (apt-get install nginx-light); a slower Python server took its place.")
    rows: list[tuple[str, ...]] = []
    generator_growth, worker_growth = [], []
    raw = []
    for number_ in range(options.rounds):
        small, large = one_round(options)
        at = [large.generator_at.get(mark, float("nan")) for mark in MARKS]
        if MARKS[1] in large.generator_at:
            generator_growth.append(at[1] - at[0])
            worker_growth.append(large.worker_peak - small.worker_peak)
        else:
            notes.append(f"Only {large.requests:,} requests were reached in {large.duration_s:.0f} s.")
        rows += [
            (f"generator, round {number_ + 1}", *(number(value, 4) for value in at), number(at[1] - at[0])),
            (
                f"worker (peak), round {number_ + 1}",
                number(small.worker_peak, 4),
                number(large.worker_peak, 4),
                number(large.worker_peak - small.worker_peak),
            ),
        ]
        notes.append(
            f"Round {number_ + 1}: tests of {small.requests:,} and {large.requests:,} requests. In the second the "
            f"generator took at most {large.generator_peak:.0f} MB; the worker had {large.worker_before:.0f} MB before."
        )
        raw += [json.loads(json.dumps(vars_of(test))) for test in (small, large)]
    table = Table("Resident memory, MB", ("process", *(f"{mark:,} requests" for mark in MARKS), "growth"), tuple(rows))
    figures = {"memory_growth": median(generator_growth), "worker_memory_growth": median(worker_growth)}
    return Report("soak", (table,), tuple(notes), figures, raw)


def vars_of(test: Test) -> dict[str, object]:
    return {name: getattr(test, name) for name in test.__slots__}


if __name__ == "__main__":
    sys.exit(run(measure, __doc__, rounds=1, duration_s=2))
