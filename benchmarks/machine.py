"""The machine and the versions that a result is about.

Belongs here: reading what is there. Never: paths or names of this computer.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.served import ROOT, find_nginx

PACKAGES = ("locust", "gevent", "geventhttpclient", "tritonclient", "grpcio", "numpy", "pyarrow")


def _said(command: list[str | Path], pattern: str) -> str:
    """What a program says of its version, from either stream; "not installed" where it is not."""
    try:
        done = subprocess.run(
            [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return "not installed"
    found = re.search(pattern, done.stdout + done.stderr)
    return found[1] if found else "unknown"


def _package(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def load_average() -> str:
    return " ".join(f"{value:.2f}" for value in os.getloadavg())


def busy_percent(seconds: float = 2.0) -> float:
    """How much of all cores is used by others while this process sleeps."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields) - fields[3] - fields[4], sum(fields)

    busy, whole = ticks()
    time.sleep(seconds)
    busy_after, whole_after = ticks()
    return 100 * (busy_after - busy) / max(1, whole_after - whole)


def describe() -> dict[str, str]:
    """Label and value, in the order in which they are shown."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())
    wrk, nginx = shutil.which("wrk"), find_nginx()
    commit = _said(["git", "rev-parse", "--short", "HEAD"], r"(\w+)")
    changed = _said(["git", "status", "--porcelain", "--untracked-files=no"], r"(?s)(\S.*)") != "unknown"
    programs = {
        "wrk": _said([wrk, "--version"], r"wrk \D*(\d[\w.]*)") if wrk else "not installed",
        "nginx": _said([nginx, "-v"], r"nginx/(\S+)") if nginx else "not installed",
    }
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "CPU": f"{cpu[1].strip() if cpu else platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{int(memory[1]) / 1024**2:.1f} GiB" if memory else "unknown",
        "kernel": platform.release(),
        "load average at start": load_average(),
        "Python": platform.python_version(),
        "packages": ", ".join(f"{name} {_package(name)}" for name in PACKAGES),
        "programs": ", ".join(f"{name} {text}" for name, text in programs.items()),
        "Tritune": commit + (" with changes that are not committed" if changed else ""),
    }
