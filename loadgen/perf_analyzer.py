"""NVIDIA's perf_analyzer as a driver: found, run for one window, its export turned into our samples.

Belongs here: finding it, its command line, its output. Never: Locust, percentiles.

    python -m loadgen.perf_analyzer FOLDER        (child.py starts this; the folder holds plan.json)

perf_analyzer knows neither a warm-up nor a fixed end. It is never satisfied with its own windows, the load is stopped
by SIGINT at our window's end, and its requests are cut by their timestamps. It records when a request was sent, not
when it was meant to be, so intended = sent and its latencies are service times.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from loadgen.keeping import Keeper
from loadgen.outcome import (
    EXIT_UNWRITABLE,
    PARENT_VARIABLE,
    PLAN_FILE,
    Live,
    Outcome,
    Phase,
    reserve_outcome,
    write_live,
    write_outcome,
)
from loadgen.payload import payloads, perf_analyzer_document
from loadgen.profile_export import ProfileReader
from loadgen.samples import SAMPLES_FILE, Samples, Status
from tritune.errors import LoadTestError, TrituneError
from tritune.load_plan import GeneratorPlan, LoadPlan, Protocol, SharedMemory, Wire
from tritune.settings import Settings

NAME = "perf_analyzer"
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
RATE_THREADS = 64  # what an open loop can have in flight; its asynchronous mode collapses when it is overloaded
WINDOW_MS = 1000
TAIL_NS = 1_500_000_000  # it may lose its last window when it is stopped, so that one comes after ours
LOST_NS = 250_000_000  # without an answer before our window's end: it lost more
LEAD_NS = 100_000_000
LIVE_S = 1.0
SPARE_WINDOWS = 20
START_S = 60.0
EXPORT_S = 600.0
CANCEL_S = 4.0
KEPT_UP = 0.9  # of the rate that was asked for; Poisson arrivals vary too
CLOCK_STEP_NS = 1_000_000
_LOAD_BEGINS = re.compile(r"Request (concurrency|Rate):")
_REPLAY_BEGINS = re.compile(r"Using \w+ calls for inference")  # the last thing it says before a replay
_PASS = re.compile(r"Pass \[\d+\] throughput: ([\d.]+)")
_ERROR = re.compile(r"(?:^|\n)\s*(?:[Ee]rror: |Thread \[\d+\] had error: )([^\n]+)")
_NOT_KEPT_UP = re.compile(r"not able to keep up with the desired request rate")


@dataclass(frozen=True, slots=True)
class Tool:
    """A perf_analyzer that starts, and the links that its LD_LIBRARY_PATH needs ({name: target})."""

    path: Path
    links: Mapping[str, Path]


def find(settings: Settings) -> Tool:
    """The first perf_analyzer that starts: on PATH, in this environment's wheel, in the embedded environment.

    Raises LoadTestError with what was tried.
    """
    tried = []
    links = _links(settings.embedded_env)
    folders = [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep) if name]
    for folder in (*folders, Path(sys.executable).parent, settings.embedded_env / "bin"):
        path = folder / NAME
        if not path.is_file() or not os.access(path, os.X_OK):
            continue
        reason = _why_not(Tool(path, links))
        if reason is None:
            return Tool(path, links)
        tried.append(f"{path} does not start ({reason})")
    found = "; ".join(tried) if tried else f"none on PATH, in this environment or in {settings.embedded_env}"
    raise LoadTestError(
        f"No usable perf_analyzer was found: {found}. Run `tritune setup`, which brings one, or use --driver locust."
    )


def _links(environment: Path) -> dict[str, Path]:
    """The two libraries that the wheel tritonclient 2.50 leaves out and nvidia-pytriton has under hashed names."""
    links = {}
    for name, pattern in LIBRARIES.items():
        for found in sorted(environment.glob(f"lib/python3*/site-packages/nvidia_pytriton.libs/{pattern}")):
            links[name] = found
    return links


@contextlib.contextmanager
def _library_folder(tool: Tool) -> Iterator[tuple[Path, dict[str, str]]]:
    """A private folder with the links, and the environment that uses them."""
    with tempfile.TemporaryDirectory(prefix="tritune-pa-") as name:
        folder = Path(name)
        for link, target in tool.links.items():
            (folder / link).symlink_to(target.absolute())
        path = os.pathsep.join(filter(None, (name, os.environ.get("LD_LIBRARY_PATH"))))
        yield folder, {**os.environ, "LD_LIBRARY_PATH": path}


def _why_not(tool: Tool) -> str | None:
    with _library_folder(tool) as (_, environment):
        try:
            done = subprocess.run(
                [tool.path, "--version"], env=environment, capture_output=True, text=True, timeout=20, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if "Perf Analyzer" in done.stdout + done.stderr:
        return None
    return (done.stderr.strip().splitlines() or ["it says nothing"])[-1]


def command(tool: Tool, plan: GeneratorPlan, inputs: Path, export: Path, intervals: Path | None = None) -> list[str]:
    """The argument list: one level of load, more windows than it will need, since no two are equal to 0.001 % and we
    end it. Not many more: its schedule of a rate is made for all of them before it sends. `intervals` is the file of
    a replay."""
    load, endpoints = plan.load, plan.endpoints
    windows = math.ceil((load.warmup_s + load.duration_s) * 1000 / WINDOW_MS) + SPARE_WINDOWS
    arguments = [str(tool.path), "-m", load.model, "-b", str(load.batch), "-v", "--input-data", str(inputs)]
    arguments += ["-p", str(WINDOW_MS), "-s", "0.001", "--max-trials", str(windows)]
    arguments += ["--profile-export-file", str(export)]
    if load.rate_rps is not None:
        arguments += ["--request-rate-range", f"{load.rate_rps:g}", "--request-distribution", str(load.arrivals)]
        arguments += ["--max-threads", str(RATE_THREADS)]
    elif intervals is not None:
        arguments += ["--request-intervals", str(intervals), "--max-threads", str(RATE_THREADS)]
    else:
        arguments += ["--concurrency-range", str(load.concurrency)]
    if load.wire is Wire.JSON:
        arguments += ["--input-tensor-format", "json", "--output-tensor-format", "json"]
    if load.shared_memory is SharedMemory.SYSTEM:
        arguments += ["--shared-memory", "system"]
    for tensor in plan.signature.inputs:
        if -1 in tensor.shape and tensor.name in load.shapes:
            arguments += ["--shape", f"{tensor.name}:{','.join(str(size) for size in load.shapes[tensor.name])}"]
    tls = endpoints.tls
    if load.protocol is Protocol.GRPC:
        if endpoints.grpc is None:
            raise LoadTestError("This server has no gRPC address. Attach it with --grpc HOST:PORT, or use HTTP.")
        arguments += ["-i", "grpc", "-u", endpoints.grpc]
        if tls is not None:
            arguments += ["--ssl-grpc-use-ssl"]
            names = {"ca": "root-certifications", "key": "private-key", "cert": "certificate-chain"}
            for key, name in names.items():
                arguments += [f"--ssl-grpc-{name}-file", str(tls[key])] if tls.get(key) else []
        return arguments
    arguments += ["-i", "http", "-u", f"https://{endpoints.http}" if tls is not None else endpoints.http]
    for name, value in endpoints.headers.items():
        arguments += ["-H", f"{name}:{value}"]
    if tls is not None:
        if tls.get("verify") is False:
            arguments += ["--ssl-https-verify-peer", "0", "--ssl-https-verify-host", "0"]
        names = {"ca": "ca-certificates", "key": "private-key", "cert": "client-certificate"}
        for key, name in names.items():
            arguments += [f"--ssl-https-{name}-file", str(tls[key])] if tls.get(key) else []
    return arguments


class Run:
    """One run of perf_analyzer for a folder's plan."""

    def __init__(self, folder: Path, tool: Tool, log: IO[str]) -> None:
        self.folder = folder
        self.plan = GeneratorPlan.from_dict(json.loads((folder / PLAN_FILE).read_text(encoding="utf-8")))
        self.is_cancelled = False
        self._tool = tool
        self._log = log
        self._said = ""
        self._start_ns = self._end_ns = 0
        self._next_live_ns = 0
        self._reader = ProfileReader()
        self._keeper = Keeper(folder / SAMPLES_FILE, self._load.max_raw_samples)
        self._wall_minus_monotonic_ns = time.time_ns() - time.monotonic_ns()

    @property
    def _load(self) -> LoadPlan:
        return self.plan.load

    def run(self) -> Outcome:
        """Run to the end of the window (or until cancelled), and write the samples. Raises TrituneError."""
        write_live(self.folder, Live(Phase.STARTING, 0.0, self._load.warmup_s + self._load.duration_s))
        with _library_folder(self._tool) as (private, environment):
            pool = payloads(self.plan.signature, self._load)
            inputs, export = private / "input.json", private / "export.json"
            inputs.write_text(json.dumps(perf_analyzer_document(pool, self.plan.signature)), encoding="utf-8")
            intervals = private / "intervals.txt" if self._load.intervals_us else None
            if intervals is not None:
                intervals.write_text("".join(f"{interval}\n" for interval in self._load.intervals_us))
            process = subprocess.Popen(
                command(self._tool, self.plan, inputs, export, intervals),
                env=environment,
                cwd=private,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            try:
                self._follow(process, export)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if process.returncode != 0 and not self.is_cancelled:
            raise LoadTestError(self._sentence(process.returncode))
        return self._finish()

    def _follow(self, process: subprocess.Popen[bytes], export: Path) -> None:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        parent = os.environ.get(PARENT_VARIABLE)
        begins = _REPLAY_BEGINS if self._load.intervals_us else _LOAD_BEGINS
        limit = time.monotonic() + START_S
        pipe: int | None = None
        is_stopped = False
        try:
            while process.poll() is None:
                self._listen(process.stdout)
                now = time.monotonic_ns()
                if self._start_ns == 0:
                    if begins.search(self._said):
                        os.mkfifo(export)  # only now: perf_analyzer refuses a path that exists when it starts
                        pipe = os.open(export, os.O_RDONLY | os.O_NONBLOCK)
                        self._fix_window(now)
                    elif time.monotonic() > limit:
                        raise LoadTestError(f"perf_analyzer had sent nothing after {START_S:g} s. See generator.log.")
                elif now >= self._next_live_ns:
                    self._write_live(now)
                gone = parent is not None and os.getppid() != int(parent)
                if (self.is_cancelled or gone or (self._end_ns and now >= self._end_ns + TAIL_NS)) and not is_stopped:
                    is_stopped = True
                    self.is_cancelled = self.is_cancelled or gone
                    process.send_signal(signal.SIGINT)
                    limit = time.monotonic() + (CANCEL_S if self.is_cancelled else EXPORT_S)
                if is_stopped and time.monotonic() > limit:
                    return
                if pipe is None or not self._read(pipe):
                    left_s = (self._end_ns + TAIL_NS - now) / 1e9 if self._end_ns else 1.0
                    time.sleep(min(0.02, max(0.0005, left_s)))
            while pipe is not None and self._read(pipe):
                pass
            self._listen(process.stdout)
        finally:
            if pipe is not None:
                os.close(pipe)

    def _listen(self, output: IO[bytes]) -> None:
        if said := output.read():
            text = said.decode("utf-8", "replace")
            self._said = (self._said + text)[-200_000:]
            self._log.write(text)
            self._log.flush()

    def _read(self, pipe: int) -> bool:
        try:
            piece = os.read(pipe, 1 << 20)
        except BlockingIOError:
            return False
        self._reader.feed(piece)
        return bool(piece)

    def _fix_window(self, now: int) -> None:
        self._start_ns = now + LEAD_NS + int(self._load.warmup_s * 1e9)
        self._end_ns = self._start_ns + int(self._load.duration_s * 1e9)
        self._write_live(now)

    def _write_live(self, now: int) -> None:
        self._next_live_ns = now + int(LIVE_S * 1e9)
        total_s = self._load.warmup_s + self._load.duration_s
        phase = Phase.WARMUP if now < self._start_ns else Phase.MEASURING if now < self._end_ns else Phase.DRAINING
        passes = _PASS.findall(self._said)
        live = Live(
            phase=phase,
            elapsed_s=max(0.0, total_s - (self._end_ns - now) / 1e9),
            total_s=total_s,
            throughput_rps=float(passes[-1]) / self._load.batch if passes else 0.0,
            window_start_ns=self._start_ns,
            window_end_ns=self._end_ns,
        )
        write_live(self.folder, live)

    def _sentence(self, code: int) -> str:
        errors = _ERROR.findall(self._said)
        lines = [line.strip() for line in self._said.splitlines() if line.strip()]
        said = (errors or lines[-1:] or ["it said nothing"])[0].rstrip(". ")
        return f"perf_analyzer ended with exit code {code}: {said}. Its output is in generator.log."

    def _finish(self) -> Outcome:
        notes: list[Mapping[str, str]] = []
        offset = time.time_ns() - time.monotonic_ns()
        if abs(offset - self._wall_minus_monotonic_ns) > CLOCK_STEP_NS:
            step_ms = (offset - self._wall_minus_monotonic_ns) / 1e6
            message = f"The wall clock, which perf_analyzer uses, was moved by {step_ms:.1f} ms during the load test."
            notes.append({"code": "clock_step", "message": message})
        times = self._reader.times() - offset
        times = times[times[:, 0] < self._end_ns]
        last_ns = int(times[:, 1].max(initial=self._start_ns))
        if len(times) and not self.is_cancelled and last_ns < self._end_ns - LOST_NS - _usual_gap_ns(times):
            message = (
                f"perf_analyzer lost the last {(self._end_ns - last_ns) / 1e9:.1f} s of its records, so the throughput "
                "is too low. It was overloaded: lower the load, or use --driver locust."
            )
            notes.append({"code": "records_lost", "message": message})
        self._keeper.begin(self._start_ns, self._end_ns, len(times))
        for start in range(0, len(times), 65536):
            part = times[start : start + 65536]
            ok = np.full(len(part), Status.OK, dtype=np.int8)
            sent, done = np.ascontiguousarray(part[:, 0]), np.ascontiguousarray(part[:, 1])
            self._keeper.write(Samples(sent, sent, done, ok, np.zeros(len(part), dtype=np.int16)))
        self._keeper.close()
        if self._keeper.note is not None:
            notes.append(self._keeper.note)
        if self._load.is_open_loop:
            wanted_rps = self._load.peak_rate_rps  # it knows no stages, so this is the mean rate
            rate_rps = np.count_nonzero(times[:, 0] >= self._start_ns) / self._load.duration_s
            if _NOT_KEPT_UP.search(self._said) or rate_rps < KEPT_UP * wanted_rps:
                message = (
                    f"perf_analyzer was not able to keep up with the rate: {wanted_rps:g} requests/s were "
                    f"asked for, {rate_rps:.0f} sent. Use a lower rate, or --driver locust."
                )
                notes.append({"code": "not_kept_up", "message": message})
            message = "perf_analyzer records no intended times: its latencies are service times, from the send on."
            notes.append({"code": "service_time", "message": message})
        return Outcome(
            window_start_ns=self._start_ns,
            window_end_ns=self._end_ns,
            wall_minus_monotonic_ns=offset,
            fillable_cores=min(self._load.concurrency or RATE_THREADS, len(os.sched_getaffinity(0))),
            versions={NAME: str(self._tool.path)},
            cancelled=self.is_cancelled,
            notes=tuple(notes),
        )


def _usual_gap_ns(times: NDArray[np.int64]) -> int:
    """Ten times what lies between two answers on average, and the longest answer: that long nothing need come."""
    spread = int(times[:, 1].max() - times[:, 1].min())
    return 10 * spread // len(times) + int((times[:, 1] - times[:, 0]).max())


def main(folder: Path) -> int:
    """Run the plan in `folder`; the exit code."""
    try:
        reserve_outcome(folder)
        run = Run(folder, find(Settings.from_env()), sys.stdout)

        def cancel(*_: object) -> None:
            run.is_cancelled = True

        signal.signal(signal.SIGTERM, cancel)
        try:
            outcome = run.run()
        except TrituneError as error:
            outcome = Outcome(0, 0, 0, error=str(error), cancelled=run.is_cancelled)
        write_outcome(folder, outcome)
    except OSError:
        return EXIT_UNWRITABLE
    return 0 if outcome.error is None else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
