"""A load generator as a child in its own process group.

Belongs here: starting it, watching it, ending it, and its last word. Never: what it sends, what its numbers mean.

Its folder: plan.json in; samples.arrow (samples.py), live.json, outcome.json (outcome.py) and generator.log out.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from loadgen import encoding, locust_driver, perf_analyzer, shared_memory
from loadgen.outcome import (
    EXIT_UNWRITABLE,
    LIVE_FILE,
    LOG_FILE,
    OUTCOME_FILE,
    PARENT_VARIABLE,
    PLAN_FILE,
    Live,
    Outcome,
    read_document,
)
from loadgen.payload import payloads
from loadgen.samples import SAMPLES_FILE
from tritune.errors import LoadTestError
from tritune.load_plan import Driver, GeneratorPlan
from tritune.settings import Settings

__all__ = ["Child", "Live", "Outcome", "start"]

ROOT = Path(__file__).resolve().parent.parent
CANCEL_S = 5.0
_TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")


def start(plan: GeneratorPlan, folder: Path) -> Child:
    """Write plan.json into `folder` (made if missing) and start the plan's driver.

    Raises InputError where no request can be made from the plan, LoadTestError where nothing can be started.
    """
    encoding.check(plan.signature, plan.load)
    pool = payloads(plan.signature, plan.load, count=None if shared_memory.is_wanted(plan.load) else 1)
    folder = folder.absolute()
    if plan.load.driver is Driver.PERF_ANALYZER:
        perf_analyzer.find(Settings.from_env())
        arguments = [sys.executable, "-m", "loadgen.perf_analyzer", str(folder)]
    else:
        arguments = locust_driver.command(plan.load, folder)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LOCUST_")}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment[PARENT_VARIABLE] = str(os.getpid())
    regions = shared_memory.Regions.create(plan, pool) if shared_memory.is_wanted(plan.load) else None
    if regions is not None:
        plan = replace(plan, regions=regions.prefix)
    try:
        return Child(_started(plan, folder, arguments, environment), folder, regions)
    except BaseException:
        if regions is not None:
            regions.release()
        raise


def _started(
    plan: GeneratorPlan, folder: Path, arguments: list[str], environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in (SAMPLES_FILE, LIVE_FILE, OUTCOME_FILE):
            (folder / name).unlink(missing_ok=True)
        _write_plan(plan, folder)
        with (folder / LOG_FILE).open("wb") as log:
            return subprocess.Popen(
                arguments,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
    except OSError as error:
        raise LoadTestError(
            f"The load generator could not be started in {folder} ({error.strerror or error}). "
            "Check that the folder can be written and has space, then run the load test again."
        ) from error


def _write_plan(plan: GeneratorPlan, folder: Path) -> None:
    part = folder / (PLAN_FILE + ".part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(plan.to_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / PLAN_FILE)


class Child:
    """A running (or ended) load generator: all processes of its group, and what memory it shares with the server."""

    def __init__(
        self, process: subprocess.Popen[bytes], folder: Path, regions: shared_memory.Regions | None = None
    ) -> None:
        self._process = process
        self._regions = regions
        self._is_cancelled = self._is_ended = False
        self.folder = folder

    @property
    def pid(self) -> int:
        """The first process, and the id of the group."""
        return self._process.pid

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        code = self._process.poll()
        if code is not None and not self._is_ended:
            self._is_ended = True
            self._end_group()
            if self._regions is not None:
                self._regions.release()
        return code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; the exit code. Raises LoadTestError where it still runs after `timeout` seconds."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise LoadTestError(
                f"The load generator still runs after {timeout:g} s. Wait longer, or cancel the load test."
            ) from None
        code = self.poll()
        assert code is not None
        return code

    def live(self) -> Live | None:
        """What the last second brought, None before the generator has told anything."""
        document = read_document(self.folder / LIVE_FILE)
        return None if document is None else Live.from_dict(document)

    def window(self) -> tuple[int, int] | None:
        """The measurement window [start_ns, end_ns) on CLOCK_MONOTONIC, None until it is fixed."""
        live = self.live()
        if live is None or live.window_start_ns is None or live.window_end_ns is None:
            return None
        return live.window_start_ns, live.window_end_ns

    def cpu_ns(self) -> int:
        """User and system time of the whole process group since its start, in the kernel's ticks of 10 ms."""
        return sum(ticks for _, ticks in self._group()) * _TICK_NS

    def processes(self) -> int:
        """How many processes of the group are alive."""
        return sum(1 for is_alive, _ in self._group() if is_alive)

    def _group(self) -> list[tuple[bool, int]]:
        """(is alive, CPU ticks with those of children that it waited for) for each process of the group."""
        rows = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                with open(f"/proc/{entry.name}/stat", "rb") as file:  # noqa: PTH123
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == self.pid:
                rows.append((fields[0] not in (b"Z", b"X"), sum(int(field) for field in fields[11:15])))
        return rows

    def cancel(self) -> None:
        """End it: SIGTERM, so that it keeps what was measured; SIGKILL to the group where that takes over 5 s."""
        self._is_cancelled = True
        if self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(CANCEL_S)
        if self.poll() is None:
            self._end_group()
            self.poll()

    def _end_group(self) -> None:
        """No process of the group may outlive its first one."""
        limit = time.monotonic() + 1.0
        while self.processes() and self._process.poll() is not None and time.monotonic() < limit:
            time.sleep(0.02)
        if self.processes():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            limit = time.monotonic() + 1.0
            while self.processes() and time.monotonic() < limit:
                time.sleep(0.002)

    def outcome(self) -> Outcome:
        """How the run ended. Raises LoadTestError: it still runs, died, or ended early by itself (one sentence)."""
        document = read_document(self.folder / OUTCOME_FILE)
        if document is not None:
            outcome = Outcome.from_dict(document)
            if outcome.error:
                raise LoadTestError(outcome.error)
            return outcome
        code = self.poll()
        if code is None:
            raise LoadTestError("The load generator still runs. Wait for its end, or cancel the load test.")
        if self._is_cancelled:
            raise LoadTestError("The load test was cancelled before it had measured anything. Run it again.")
        if code == EXIT_UNWRITABLE:
            raise LoadTestError(
                f"The samples could not be written to {self.folder}: no space is left there. What was measured before "
                "is kept. Free some space, or set TRITUNE_RESULTS to a folder on another disk, and run it again."
            )
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        raise LoadTestError(
            f"The load generator {how} before it had finished{self._last_words()}. "
            f"Its log is {self.folder / LOG_FILE}; run the load test again."
        )

    def _last_words(self) -> str:
        try:
            lines = (self.folder / LOG_FILE).read_text(encoding="utf-8", errors="replace").split("\n")
        except OSError:
            return ""
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f": {last[:300].rstrip('.')}" if last else ""
