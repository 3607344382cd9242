"""What a generator tells while it runs (live.json) and when it has ended (outcome.json).

Belongs here: the two documents, and writing them so that a reader never sees half of one. Never: clocks, sending.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

PLAN_FILE = "plan.json"
LIVE_FILE = "live.json"
OUTCOME_FILE = "outcome.json"
LOG_FILE = "generator.log"
PARENT_VARIABLE = "TRITUNE_PARENT_PID"  # the generator ends when this process is no longer its parent
MAX_ERROR_KINDS = 20
EXIT_UNWRITABLE = 74  # EX_IOERR: not even the outcome could be written


class Phase(StrEnum):
    """Where a generator stands."""

    STARTING = "starting"
    WARMUP = "warmup"
    MEASURING = "measuring"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Live:
    """The last second of a running generator. The window is None until it is fixed.

    `throughput_rps` counts successful requests; `p99_ms` is None where the last second brought no answer.
    """

    phase: Phase
    elapsed_s: float
    total_s: float
    throughput_rps: float = 0.0
    p99_ms: float | None = None
    ok: int = 0
    failed: int = 0
    window_start_ns: int | None = None
    window_end_ns: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__} | {"phase": str(self.phase)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Live:
        known = {name: document[name] for name in cls.__slots__ if name in document}
        return cls(**{**known, "phase": Phase(document["phase"])})


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a generator's run ended.

    The window [window_start_ns, window_end_ns) is on CLOCK_MONOTONIC; wall_minus_monotonic_ns turns it into wall
    time. `spin_ns` is CPU time that was spent on purpose inside the window, to be exact, over all processes;
    `cpu_ns` the whole CPU time inside the window as the processes themselves saw it (0: not known).
    `fillable_cores` is how many cores the generator's threads can fill (0: one a process).
    `errors` are {message, count}, the most frequent first; `notes` are {code, message}. `error` is one sentence
    where the run ended early by itself: what was measured until then is in the samples.
    """

    window_start_ns: int
    window_end_ns: int
    wall_minus_monotonic_ns: int
    spin_ns: int = 0
    cpu_ns: int = 0
    fillable_cores: int = 0
    errors: tuple[Mapping[str, Any], ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    cancelled: bool = False
    notes: tuple[Mapping[str, str], ...] = ()
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        document["errors"] = [dict(row) for row in self.errors]
        document["notes"] = [dict(row) for row in self.notes]
        document["versions"] = dict(self.versions)
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Outcome:
        known = {name: document[name] for name in cls.__slots__ if name in document}
        known["errors"] = tuple(document.get("errors") or ())
        known["notes"] = tuple(document.get("notes") or ())
        return cls(**known)


def most_frequent(counts: Mapping[str, int]) -> tuple[Mapping[str, Any], ...]:
    """The error kinds as an outcome carries them: at most MAX_ERROR_KINDS, the most frequent first."""
    rows = sorted(counts.items(), key=lambda row: (-row[1], row[0]))[:MAX_ERROR_KINDS]
    return tuple({"message": message, "count": count} for message, count in rows)


def write_live(folder: Path, live: Live) -> None:
    """Replace live.json at once. A full disk costs the display, not the run: the samples' writer tells of it."""
    part = folder / (LIVE_FILE + ".part")
    with contextlib.suppress(OSError):
        part.write_text(json.dumps(live.to_dict()), encoding="utf-8")
        part.replace(folder / LIVE_FILE)


def reserve_outcome(folder: Path) -> None:
    """Take the outcome's place on the disk before the load begins, so that a full disk can still be told."""
    with (folder / (OUTCOME_FILE + ".part")).open("wb") as file:
        file.write(b" " * 16384)
        file.flush()
        os.fsync(file.fileno())


def write_outcome(folder: Path, outcome: Outcome) -> None:
    """Write outcome.json at once, into the reserved place where there is one. Raises OSError."""
    part = folder / (OUTCOME_FILE + ".part")
    text = json.dumps(outcome.to_dict()).encode()
    with part.open("r+b" if part.exists() else "wb") as file:
        file.write(text.ljust(16384) if len(text) < 16384 else text)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    part.replace(folder / OUTCOME_FILE)


def read_document(path: Path) -> dict[str, Any] | None:
    """The document, or None while there is none."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
