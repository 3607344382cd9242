"""Results as tables, and the table of what must be reached.

Belongs here: pure functions from readings to medians, ratios, verdicts and Markdown. Never: running anything.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a header."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def markdown(self) -> str:
        lines = [self.header, tuple("---" for _ in self.header), *self.rows]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)])

    def plain(self) -> str:
        """For a terminal: columns of equal width."""
        lines = [self.header, *self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(self.header))]
        return "\n".join(
            [
                self.title,
                *(
                    "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
                    for line in lines
                ),
            ]
        )


@dataclass(frozen=True, slots=True)
class Report:
    """What one part has found. `figures` are the numbers that targets are held against, by their key; `raw` are all
    the single readings."""

    part: str
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    figures: Mapping[str, float] = field(default_factory=dict)
    raw: Sequence[Mapping[str, Any]] = ()
    took_s: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "part": self.part,
            "tables": [{"title": table.title, "header": table.header, "rows": table.rows} for table in self.tables],
            "notes": list(self.notes),
            "figures": dict(self.figures),
            "raw": [dict(row) for row in self.raw],
            "took_s": self.took_s,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Report:
        tables = tuple(
            Table(table["title"], tuple(table["header"]), tuple(tuple(row) for row in table["rows"]))
            for table in document["tables"]
        )
        return cls(
            document["part"],
            tables,
            tuple(document["notes"]),
            document["figures"],
            document["raw"],
            document["took_s"],
        )


@dataclass(frozen=True, slots=True)
class Target:
    """One row of what must be reached: the figure is at most `limit` (`wanted`: there is more to wish for)."""

    key: str
    what: str
    limit: float
    unit: str = ""
    wanted: float | None = None

    def verdict(self, value: float | None) -> str:
        if value is None or math.isnan(value):
            return NOT_MEASURED
        if value > self.limit:
            return "**not reached**"
        if self.wanted is None:
            return "reached"
        return "reached" if value <= self.wanted else f"reached; the wanted {self.wanted:g} is not"


TARGETS = (
    Target("http_to_perf_analyzer", "CPU per request, our HTTP / perf_analyzer HTTP", 0.4),
    Target("grpc_to_perf_analyzer", "CPU per request, our gRPC / perf_analyzer gRPC", 1.9, wanted=0.9),
    Target("http_to_plain_locust", "CPU per request, our HTTP / plain Locust user with tritonclient", 0.33),
    Target("http_to_wrk", "CPU per request, our HTTP / wrk on the canned answer", 3.0),
    Target("p99_error", "error of P99 against the truth: fixed, bimodal, lognormal (the worst)", 2.0, " %"),
    Target("p99_error_stall", "error of P99 with the stalling server, open loop", 5.0, " %"),
    Target("memory_growth", "memory growth from 100,000 to 1,000,000 requests, generator", 20.0, " MB"),
    Target("worker_memory_growth", "memory growth from 100,000 to 1,000,000 requests, worker", 20.0, " MB"),
    Target("lost_two_workers", "samples lost with 2 workers", 0),
    Target("lost_when_killed", "samples of the living worker lost when the other is killed", 0),
    Target("loss_not_stated", "killed workers whose loss is not stated", 0),
)


def number(value: float, digits: int = 3) -> str:
    """Three significant digits, thousands with commas."""
    if math.isnan(value):
        return "–"
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def targets_table(figures: Mapping[str, float]) -> Table:
    rows = []
    for target in TARGETS:
        value = figures.get(target.key)
        got = "–" if value is None or math.isnan(value) else number(value) + target.unit
        rows.append((target.what, f"{target.limit:g}{target.unit}", got, target.verdict(value)))
    return Table("What must be reached", ("what", "at most", "measured", "verdict"), tuple(rows))


def order(names: Sequence[str], round_number: int) -> list[str]:
    """The order of a round: A B C, then C A B, then B C A, …"""
    shift = round_number % len(names)
    return [*names[len(names) - shift :], *names[: len(names) - shift]]


def ratios(rounds: Sequence[Mapping[str, float]], name: str, baseline: str) -> list[float]:
    """name / baseline in every round that has both."""
    return [row[name] / row[baseline] for row in rounds if name in row and row.get(baseline)]


def median(values: Sequence[float]) -> float:
    """NaN of nothing."""
    return statistics.median(values) if values else float("nan")


def spread(values: Sequence[float]) -> str:
    """The median with the range, such as `33.1 (32.0–35.2)`."""
    if not values:
        return "–"
    middle = number(median(values))
    return middle if len(values) == 1 else f"{middle} ({number(min(values))}–{number(max(values))})"
