"""What a file of another program gives: rows with a load and numbers, and how its words and numbers are read.

Belongs here: the value, a measurement without requests to compute from, numbers and text out of cells. Never: formats.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritune.errors import InputError
from tritune.load_plan import LoadPlan

if TYPE_CHECKING:
    from loadgen.samples import Samples

MAX_TABLE_BYTES = 64 * 2**20
MAX_ROWS = 20_000
MAX_TEXT = 120
NO_INTERVAL = "The imported file has no single requests, so there is nothing to compute an interval from."


@dataclass(frozen=True, slots=True)
class Row:
    """One measured load. `label` is how the file calls what was measured; `measurement` is as Measurement.to_dict()
    gives it; `at` is when it was measured (unix seconds), None where the file does not say; `unknown` says in words
    what the file does not tell and what stands there instead."""

    plan: LoadPlan
    label: str
    measurement: Mapping[str, Any]
    unknown: str = ""
    at: float | None = None
    samples: Samples | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """All of one file: the program it is from, the model where it names one, its rows."""

    format: str
    rows: tuple[Row, ...]
    model: str | None = None


def measurement(
    *,
    throughput_ips: float | None,
    latency_ms: Mapping[str, float | None],
    loop: str,
    requests: Mapping[str, int] | None = None,
    server: Mapping[str, float | None] | None = None,
    window_s: float | None = None,
    reason: str = NO_INTERVAL,
) -> dict[str, Any]:
    """A measurement from summary figures: no intervals, and nothing where the file says nothing."""
    tails = {
        name: {"value": latency_ms.get(name), "ci95": None, "at_least": False, "reason": reason} for name in _TAILS
    }
    plain = {name: latency_ms.get(name) for name in ("p50", "p90", "p95", "mean", "max")}
    return {
        "throughput_ips": {"value": throughput_ips, "ci95": None},
        "latency_ms": {**plain, **tails, "service_p50": None, "service_p99": None, "lower_bounds": []},
        "requests": dict(requests or {}),
        "generator": dict(UNKNOWN_GENERATOR),
        "server": {"average_batch": None, "batch_sizes": {}, **server} if server else None,
        "warnings": [],
        "goodput_rps": None,
        "window_s": window_s,
        "window_ns": None,
        "loop": loop,
        "latency_from": "sent",
    }


_TAILS = ("p99", "p999")
UNKNOWN_GENERATOR: Mapping[str, None] = dict.fromkeys(
    ("cpu_us_per_request", "cpu_percent", "lag_p99_ms", "spin_percent", "processes")
)


# --- tables -----------------------------------------------------------------------------------------------------------


def table(path: Path) -> list[dict[str, str]]:
    """The rows of the first table of a CSV file by their column. Raises InputError where it is none."""
    size = path.stat().st_size
    if size > MAX_TABLE_BYTES:
        raise InputError(
            f"{path.name} has {size / 2**20:,.0f} MiB; a table of results has at most {MAX_TABLE_BYTES >> 20} MiB. "
            "Import the part that you need."
        )
    rows: list[dict[str, str]] = []
    try:
        lines = csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig")), strict=True)
        names = [name.strip() for name in next((line for line in lines if any(line)), [])]
        for line in lines:
            if not any(line) or len(line) < len(names):  # another table follows, or the file was cut
                break
            rows.append(dict(zip(names, (cell.strip() for cell in line), strict=False)))
            if len(rows) > MAX_ROWS:
                raise InputError(f"{path.name} has more than {MAX_ROWS:,} rows. Import the part that you need.")
    except UnicodeDecodeError:
        raise InputError(f"{path.name} is no UTF-8 text. Save it as CSV in UTF-8 and import that.") from None
    except csv.Error as error:
        raise InputError(f"{path.name} is no well-formed CSV ({error}). Export it again.") from None
    if not rows:
        raise InputError(f"{path.name} has column names but no rows. Export it again once something is measured.")
    return rows


def number(row: Mapping[str, str], column: str, scale: float = 1.0) -> float | None:
    """A figure out of a cell, None where it is empty or not available; of a list (several models) the first one.
    Raises InputError for anything that is no finite number of at least 0."""
    text = row.get(column, "").strip()
    if text.lower() in ("", "n/a", "none", "nan", "-"):
        return None
    first = re.match(r"\[?\s*([^,\]\s]+)", text)
    try:
        value = float(first[1]) if first else math.nan
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1e15:
        raise InputError(f"{column} is {text[:40]!r}, which is no number of at least 0. Export the file again.")
    return value * scale


def whole(row: Mapping[str, str], column: str) -> int | None:
    value = number(row, column)
    return None if value is None else round(value)


def text(value: Any) -> str:
    """Words out of a file: one line, not too long, only what can be shown and kept."""
    words = "".join(character if character.isprintable() else " " for character in str(value))
    return " ".join(words.split())[:MAX_TEXT]
