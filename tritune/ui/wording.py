"""Numbers, times and text as people read them on a page.

Belongs here: pure functions from a value to words. Never: widgets, reads.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from datetime import datetime

from tritune import knobs as further
from tritune.analysis import significant
from tritune.plan import Configuration


def plain(text: str) -> str:
    """Text as Markdown that reads exactly as written; what stands between two backticks reads as code."""
    parts = text.split("`")
    is_paired = len(parts) % 2 == 1
    for index in range(0, len(parts), 2 if is_paired else 1):
        parts[index] = re.sub(r"[\\*_\[\]$~<#:]", r"\\\g<0>", parts[index])
    return ("`" if is_paired else "\\`").join(parts)


def rounded(value: float | None) -> float | None:
    """Three significant digits, for a column of numbers; None where there is no number."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.3g}")


def figure(value: float | None, unit: str = "") -> str:
    """Three significant digits with the unit: `3,210 inf/s`, `0.0123 ms`; a dash where there is no number."""
    words = significant(value)
    return f"{words} {unit}" if unit and words != "–" else words


def interval(bounds: Sequence[float] | None, unit: str = "") -> str:
    """`95 %: 3,150 to 3,270 /s`, or nothing where there is no interval."""
    if not bounds:
        return ""
    return f"95 %: {figure(bounds[0])} to {figure(bounds[1], unit)}"


def duration(seconds: float) -> str:
    """`8 s`, `2 min 05 s`, `1 h 10 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def ago(at: float | None) -> str:
    """`just now`, `5 min ago`, or the date."""
    if at is None:
        return ""
    past = time.time() - at
    if past < 60:
        return "just now"
    if past < 3600:
        return f"{int(past // 60)} min ago"
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")


def knobs(configuration: Configuration | None) -> dict[str, str]:
    """A configuration's knobs as label → words, for tables."""
    if configuration is None:
        return {}
    batching = configuration.dynamic_batching
    sizes = ", ".join(str(size) for size in configuration.preferred_batch_size) or "none"
    count = configuration.instance_count
    shown = [(name, value) for name, value in configuration.further if name in further.KNOBS]
    return {
        "Dynamic batching": "on" if batching else "off",
        "Preferred batch sizes": sizes if batching else "–",
        "Max queue delay": f"{configuration.max_queue_delay_microseconds:,} µs" if batching else "–",
        "Max batch size": str(configuration.max_batch_size),
        "Instances": "Triton's default" if count is None else str(count),
        **{further.KNOBS[name].label: further.KNOBS[name].words(value) for name, value in shown},
    }
