"""The load generators that are compared, each run as its user would, measured between the edges of one window.

Belongs here: starting a client and reading its cost. Never: servers, ratios.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import BenchmarkError, Group, group_cpu_ns, wait_until
from benchmarks.served import Served
from loadgen import child, perf_analyzer
from loadgen.outcome import Outcome
from loadgen.payload import http_body, payloads, perf_analyzer_document
from loadgen.samples import Samples, Status, read_stream
from tritune.load_plan import Driver, GeneratorPlan, LoadPlan, Protocol
from tritune.settings import Settings

CLIENTS = 16
INSET_S = 0.2  # both edges are read this far inside our own window
LOADED = 50  # so many requests, and the load has begun
PLAIN_LOCUSTFILE = Path(__file__).resolve().parent / "plain_locustfile.py"


@dataclass(frozen=True, slots=True)
class Reading:
    """One client in one window: the server's count, and the CPU time of the client's process group."""

    client: str
    requests: int
    cpu_ns: int
    spin_ns: int
    window_s: float

    @property
    def cpu_us(self) -> float:
        """Microseconds of CPU a request, deliberate spinning apart."""
        return (self.cpu_ns - self.spin_ns) / 1e3 / max(1, self.requests)

    @property
    def rps(self) -> float:
        return self.requests / self.window_s

    @property
    def rps_per_core(self) -> float:
        return 1e6 / self.cpu_us if self.cpu_us else float("nan")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"cpu_us": self.cpu_us, "rps": self.rps}


def between_edges(client: str, pgid: int, served: Served, duration_s: float) -> Reading:
    """Read the group's CPU and the server's count, wait, read both again, in the same order."""
    began, cpu_ns, count = time.monotonic(), group_cpu_ns(pgid), served.count()
    time.sleep(max(0.0, began + duration_s - time.monotonic()))
    ended, cpu_end_ns, count_end = time.monotonic(), group_cpu_ns(pgid), served.count()
    if count_end - count < LOADED:
        raise BenchmarkError(f"{client} had only {count_end - count} requests answered in {duration_s:g} s.")
    return Reading(client, count_end - count, cpu_end_ns - cpu_ns, 0, ended - began)


@contextmanager
def ours(served: Served, folder: Path, **load: Any) -> Iterator[child.Child]:
    """Our generator for a load, from its start to the end of the block."""
    running = child.start(GeneratorPlan(LoadPlan(served.model, **load), served.endpoints, served.signature), folder)
    try:
        yield running
    finally:
        running.cancel()


def window_of(running: child.Child) -> tuple[int, int]:
    """Wait until the measurement window is fixed."""

    def is_fixed() -> bool:
        if running.window() is not None:
            return True
        if running.poll() is not None:
            running.outcome()
            raise BenchmarkError("The load generator ended before it had begun.")
        return False

    wait_until(is_fixed, "window of the load generator")
    window = running.window()
    assert window is not None
    return window


def finished(running: child.Child) -> tuple[Samples, Outcome]:
    """Wait for its end; what it recorded. Raises LoadTestError."""
    window = window_of(running)
    running.wait(max(1.0, window[1] / 1e9 - time.monotonic() + 60))
    outcome = running.outcome()
    return read_stream(running.folder / "samples.arrow"), outcome


def cost_of_ours(protocol: Protocol, served: Served, folder: Path, warmup_s: float, duration_s: float) -> Reading:
    """Ours, as a closed loop of CLIENTS. Raises BenchmarkError where a request failed or was not recorded."""
    before = served.count()
    load = {"concurrency": CLIENTS, "warmup_s": warmup_s, "duration_s": duration_s + 2 * INSET_S, "protocol": protocol}
    with ours(served, folder / "ours", **load) as running:
        start_ns, _ = window_of(running)
        time.sleep(max(0.0, start_ns / 1e9 + INSET_S - time.monotonic()))
        reading = between_edges(f"ours {protocol}", running.pid, served, duration_s)
        samples, outcome = finished(running)
    failed = int(np.count_nonzero(samples.status != Status.OK))
    if failed:
        raise BenchmarkError(f"{failed} of our {len(samples)} requests failed: {outcome.errors[:1]}")
    if (counted := served.count() - before) != len(samples):
        raise BenchmarkError(f"{served.name} has counted {counted} requests, and ours has recorded {len(samples)}.")
    return Reading(reading.client, reading.requests, reading.cpu_ns, outcome.spin_ns, reading.window_s)


def cost_of_command(
    client: str, group: Group, served: Served, before: int, warmup_s: float, duration_s: float
) -> Reading:
    """A client that runs until it is ended: wait for its load, warm up, measure."""

    def is_loaded() -> bool:
        group.check()
        return served.count() - before > LOADED

    wait_until(is_loaded, f"load from {client}", pause_s=0.05)
    time.sleep(warmup_s)
    reading = between_edges(client, group.pid, served, duration_s)
    group.check()
    return reading


def cost_of_perf_analyzer(
    protocol: Protocol, served: Served, folder: Path, warmup_s: float, duration_s: float
) -> Reading:
    """perf_analyzer with the same payloads, without its profile export, in windows that never satisfy it."""
    load = LoadPlan(served.model, Driver.PERF_ANALYZER, protocol, concurrency=CLIENTS, duration_s=duration_s)
    plan = GeneratorPlan(load, served.endpoints, served.signature)
    tool = perf_analyzer.find(Settings.from_env())
    with tempfile.TemporaryDirectory(prefix="tritune-bench-") as name:
        private = Path(name)
        for link, target in tool.links.items():
            (private / link).symlink_to(target.absolute())
        inputs = private / "input.json"
        inputs.write_text(json.dumps(perf_analyzer_document(payloads(plan.signature, load), plan.signature)))
        command = perf_analyzer.command(tool, plan, inputs, private / "export")
        place = command.index("--profile-export-file")
        del command[place : place + 2]
        path = ":".join(filter(None, (name, os.environ.get("LD_LIBRARY_PATH"))))
        before = served.count()
        with Group(command, folder, environment={"LD_LIBRARY_PATH": path}) as group:
            return cost_of_command(f"perf_analyzer {protocol}", group, served, before, warmup_s, duration_s)


def plain_locust(served: Served, *, users: int, rate_per_user: float = 0.0) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a plain Locust user around tritonclient."""
    (tensor,) = served.signature.inputs
    command = [sys.executable, "-m", "locust", "-f", str(PLAIN_LOCUSTFILE), "--headless", "--only-summary"]
    command += ["--host", served.endpoints.http, "--users", str(users), "--spawn-rate", str(users)]
    environment = {
        "BENCH_MODEL": served.model,
        "BENCH_INPUT": tensor.name,
        "BENCH_SHAPE": ",".join(str(size) for size in (1, *tensor.shape)),
        "BENCH_RATE": str(rate_per_user),
    }
    return command, environment


def cost_of_plain_locust(served: Served, folder: Path, warmup_s: float, duration_s: float) -> Reading:
    command, environment = plain_locust(served, users=CLIENTS)
    before = served.count()
    with Group(command, folder, environment=environment, end_signal=signal.SIGTERM) as group:
        return cost_of_command("plain Locust + tritonclient", group, served, before, warmup_s + 1, duration_s)


def cost_of_wrk(served: Served, folder: Path, warmup_s: float, duration_s: float) -> Reading:
    """wrk with one thread, CLIENTS connections and one of our payloads."""
    program = shutil.which("wrk")
    assert program is not None
    body = http_body(payloads(served.signature, LoadPlan(served.model, concurrency=1), count=1)[0])
    (folder / "body.bin").write_bytes(body.body)
    (folder / "post.lua").write_text(
        f'local file = io.open("{folder}/body.bin", "rb")\nwrk.method = "POST"\nwrk.body = file:read("*a")\n'
        f'wrk.headers["Content-Type"] = "application/octet-stream"\n'
        f'wrk.headers["Inference-Header-Content-Length"] = "{body.json_length}"\n'
    )
    url = f"http://{served.endpoints.http}/v2/models/{served.model}/infer"
    length = str(int(warmup_s + duration_s) + 10)
    command = [program, "-t", "1", "-c", str(CLIENTS), "-d", length, "-s", str(folder / "post.lua"), url]
    before = served.count()
    with Group(command, folder) as group:
        return cost_of_command("wrk", group, served, before, warmup_s, duration_s)


Cost = Callable[[Served, Path, float, float], Reading]


def cost(of: Callable[..., Reading], protocol: Protocol) -> Cost:
    """A client that speaks two protocols, for one of them."""
    return lambda served, folder, warmup_s, duration_s: of(protocol, served, folder, warmup_s, duration_s)


def locust_percentiles(csv_file: Path) -> dict[str, float]:
    """The Aggregated row of Locust's _stats.csv: what its user sees, in milliseconds."""
    import csv

    with csv_file.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["Name"] == "Aggregated" and row["50%"] != "N/A":
                return {name: float(row[name]) for name in ("50%", "99%", "99.9%")}
    raise BenchmarkError("Plain Locust has had no answer.")
