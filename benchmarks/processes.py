"""Processes in groups of their own: start, CPU and memory from /proc, end.

Belongs here: what is true of any client's or server's processes. Never: what they do.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

TICK_NS = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
PATIENCE_S = 5.0


class BenchmarkError(Exception):
    """A benchmark could not be run; one sentence."""


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/<pid>/stat from the third (state) on, None where there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None


def processes_where(is_wanted: Callable[[int, list[bytes]], bool]) -> list[tuple[int, list[bytes]]]:
    """(pid, stat fields) of all living processes that `is_wanted` says yes to."""
    rows = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (fields := _stat(int(entry.name))) and is_wanted(int(entry.name), fields):
            rows.append((int(entry.name), fields))
    return rows


def group_of(pgid: int) -> list[tuple[int, list[bytes]]]:
    return processes_where(lambda _, fields: int(fields[2]) == pgid)


def children_of(pid: int) -> list[int]:
    return [child for child, _ in processes_where(lambda _, fields: int(fields[1]) == pid)]


def group_cpu_ns(pgid: int) -> int:
    """User and system time of a process group, children that it waited for included, in ticks of 10 ms."""
    return TICK_NS * sum(sum(int(field) for field in fields[11:15]) for _, fields in group_of(pgid))


def group_rss_bytes(pgid: int) -> int:
    """The resident memory of a process group, shared pages counted in each of its processes."""
    return PAGE_BYTES * sum(int(fields[21]) for _, fields in group_of(pgid))


def peak_rss_bytes(pid: int) -> int:
    """The most memory that a process has had resident (VmHWM) since its start or `forget_peak`; 0 where it is gone."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def forget_peak(pid: int) -> None:
    """Let VmHWM begin anew."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


class Group:
    """A command in its own process group, ended with its `with` block. `log` takes its output unless `output` does."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        end_signal: int = signal.SIGINT,
        **options: Any,
    ) -> None:
        self.name = Path(command[0]).name
        self.log = folder / f"{self.name}-{time.monotonic_ns()}.log"
        self._end_signal = end_signal
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [str(part) for part in command],
                cwd=folder,
                env={**os.environ, **(environment or {})},
                process_group=0,
                **{"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **options},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self.process.pid

    def words(self) -> str:
        """What it said last."""
        lines = [line.strip() for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"

    def check(self) -> None:
        """Raise BenchmarkError where it has ended by itself."""
        if self.process.poll() is not None:
            raise BenchmarkError(f"{self.name} ended with exit code {self.process.returncode}: {self.words()}")

    def end(self) -> None:
        """Ask it to end, and end its whole group where it does not within 5 s."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self.process.poll() is None:
            self.process.send_signal(self._end_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_S)
        if group_of(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


def wait_until(condition: Callable[[], bool], what: str, limit_s: float = 60.0, pause_s: float = 0.02) -> None:
    """Wait for `condition`. Raises BenchmarkError after `limit_s`."""
    limit = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > limit:
            raise BenchmarkError(f"After {limit_s:g} s there was still no {what}.")
        time.sleep(pause_s)


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP are treated as Ctrl-C is, so that every `with` block ends what it has started."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
