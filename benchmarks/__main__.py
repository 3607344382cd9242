"""The short forms of all benchmarks: `make bench`, about ten minutes. Writes RESULTS.md beside this file.

Every part is kept as soon as it is measured (results/benchmarks/), and RESULTS.md is written after each; --resume
takes the parts that an interrupted run of the last hours had finished. A part that cannot be measured is named with
its reason and does not stop the others.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks import efficiency, fidelity, lost, soak
from benchmarks.command import FAILURES, Part, measured, say
from benchmarks.machine import describe
from benchmarks.processes import ended_by_signals
from benchmarks.served import ROOT
from benchmarks.tables import Report, targets_table
from tritune.settings import Settings

RESULTS = ROOT / "benchmarks" / "RESULTS.md"
RESUME_S = 6 * 3600.0


@dataclass(frozen=True, slots=True)
class Short:
    """A part in its short form."""

    part: Part
    rounds: int
    duration_s: float
    about_s: float
    documentation: str | None


PARTS = {
    "efficiency": Short(efficiency.measure, 3, 5.0, 200, efficiency.__doc__),
    "fidelity": Short(fidelity.measure, 2, 10.0, 330, fidelity.__doc__),
    "soak": Short(soak.measure, 1, 2.0, 90, soak.__doc__),
    "lost": Short(lost.measure, 1, 3.0, 30, lost.__doc__),
}


def markdown(machine: Mapping[str, str], reports: Mapping[str, Report | str]) -> str:
    """RESULTS.md. A report that is a string is the reason why there is none."""
    figures: dict[str, float] = {}
    for report in reports.values():
        if isinstance(report, Report):
            figures |= report.figures
    lines = ["# Benchmarks", "", "Written by `make bench` (`python -m benchmarks`); don't edit.", ""]
    lines += [f"- {name}: {value}" for name, value in machine.items()]
    lines += ["", targets_table(figures).markdown(), ""]
    for name, report in reports.items():
        lines += [f"## {name.capitalize()}", ""]
        if isinstance(report, str):
            lines += [f"Not measured: {report}", ""]
            continue
        lines += [_method(PARTS[name].documentation), ""]
        for table in report.tables:
            lines += [table.markdown(), ""]
        lines += [f"- {note}" for note in report.notes]
        lines += ["", f"Took {report.took_s:.0f} s.", ""]
    return "\n".join(lines).replace("\n\n\n", "\n\n")


def _method(documentation: str | None) -> str:
    """The docstring without its command line: what was done."""
    paragraphs = (documentation or "").strip().split("\n\n")
    return "\n\n".join(paragraph for paragraph in paragraphs if not paragraph.startswith("    "))


def _kept(path: Path) -> Report | None:
    """What an earlier run has left, where it is young enough."""
    try:
        if time.time() - path.stat().st_mtime < RESUME_S:
            return Report.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text, encoding="utf-8")
    os.replace(part, path)  # noqa: PTH105


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--rounds", type=int, help="instead of each part's own number")
    parser.add_argument("--duration", type=float, help="seconds of a measurement, instead of each part's own")
    parser.add_argument("--resume", action="store_true", help="take parts that were finished in the last six hours")
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: benchmarks/RESULTS.md")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    if unknown := set(names) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    kept_in = Settings.from_env().results / "benchmarks"
    kept_in.mkdir(parents=True, exist_ok=True)
    machine = describe()
    reports: dict[str, Report | str] = {}
    with ended_by_signals():
        try:
            for place, name in enumerate(names):
                short, path = PARTS[name], kept_in / f"{name}.json"
                report = _kept(path) if options.resume else None
                if report is not None:
                    say(f"{name}: taken from an earlier run")
                else:
                    say(f"{name} ({place + 1} of {len(names)}, about {short.about_s:.0f} s)")
                    try:
                        report = measured(
                            short.part, options.rounds or short.rounds, options.duration or short.duration_s
                        )
                        _write(path, json.dumps(report.to_dict(), indent=1))
                    except Exception as error:  # the other parts are still worth having
                        if not isinstance(error, FAILURES):
                            traceback.print_exc()
                        reports[name] = str(error) or type(error).__name__
                        say(f"{name} was not measured: {reports[name]}")
                        _write(options.out, markdown(machine, reports))
                        continue
                reports[name] = report
                _write(options.out, markdown(machine, reports))
        except KeyboardInterrupt:
            say("Interrupted; everything that was started has been ended. --resume goes on from here.")
            return 130
    _write(options.out, markdown(machine, reports))
    print(
        targets_table({k: v for r in reports.values() if isinstance(r, Report) for k, v in r.figures.items()}).plain()
    )
    say(f"Written: {options.out.name}")
    return 1 if any(isinstance(report, str) for report in reports.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
