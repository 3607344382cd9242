"""The command line that all parts share.

Belongs here: options, printing, keeping the result, ending. Never: measuring.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.machine import busy_percent
from benchmarks.processes import BenchmarkError, ended_by_signals
from benchmarks.tables import Report
from tritune.errors import TrituneError

QUIET_PERCENT = 5.0
FAILURES = (BenchmarkError, TrituneError, OSError, subprocess.SubprocessError)


@dataclass(frozen=True, slots=True)
class Options:
    """How long and how often. `folder` is a temporary one, removed in the end."""

    rounds: int
    duration_s: float
    folder: Path

    def fresh(self, name: str) -> Path:
        """A new folder for one run."""
        return Path(tempfile.mkdtemp(prefix=f"{name.replace(' ', '-')}-", dir=self.folder))


Part = Callable[[Options], Report]


def say(text: str) -> None:
    """Progress, with the time of day."""
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def measured(part: Part, rounds: int, duration_s: float) -> Report:
    """Run a part in a temporary folder; a note says where the machine was not quiet."""
    busy = busy_percent()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tritune-bench-", ignore_cleanup_errors=True) as name:
        report = part(Options(rounds, duration_s, Path(name)))
    notes = report.notes
    if busy > QUIET_PERCENT:
        notes = (f"Not a quiet machine: just before, other processes used {busy:.0f} % of its CPU.", *notes)
    return replace(report, notes=notes, took_s=time.monotonic() - began)


def run(part: Part, documentation: str | None, *, rounds: int, duration_s: float) -> int:
    """A part as a script: read the options, run it, print its tables; the exit code."""
    parser = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"interleaved rounds (default {rounds})")
    parser.add_argument(
        "--duration", type=float, default=duration_s, help=f"seconds of one measurement (default {duration_s:g})"
    )
    parser.add_argument("--out", type=Path, help="a JSON file for the tables and all single readings")
    options = parser.parse_args()
    if options.rounds < 1 or options.duration < 0.5:
        parser.error("--rounds must be at least 1 and --duration at least 0.5")
    with ended_by_signals():
        try:
            report = measured(part, options.rounds, options.duration)
        except KeyboardInterrupt:
            say("Interrupted; everything that was started has been ended.")
            return 130
        except FAILURES as error:
            say(f"Not measured: {error}")
            return 1
    for table in report.tables:
        print(table.plain(), end="\n\n")
    for note in report.notes:
        print(note)
    if options.out is not None:
        options.out.write_text(json.dumps(report.to_dict(), indent=1))
    return 0
