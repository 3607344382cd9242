"""Charts of a whole study: one function a chart, from a table of study_frames.py to an Altair chart.

Belongs here: marks, scales, titles with units, tooltips, alt text. Never: aggregation, widgets, single trials
(detail_charts). A chart of all configurations marks what they are in the result (best, not told from it, baseline),
since sixty cannot each have a colour; a chart of a few has the colours of every page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from tritune.analysis import significant
from tritune.chart_style import (
    BAR_DOWN_PX,
    NO_COLOR,
    PALETTE,
    PART_COLORS,
    ROW_PX,
    SHAPES,
    by_trial,
    color_by_trial,
    finish,
    names,
    rows,
    values,
)
from tritune.study_frames import BASELINE, BEST, EQUAL, OTHER, OUT, Document, keys

if TYPE_CHECKING:
    import pandas as pd

    from tritune.chart_style import Chart

STAR = (
    "M0,-1L0.235,-0.324L0.951,-0.309L0.38,0.124L0.588,0.809L0,0.4L-0.588,0.809L-0.38,0.124L-0.951,-0.309L-0.235,-0.324Z"
)
STANDS: Mapping[str, tuple[str, str, int]] = {
    BEST: (PART_COLORS[2], STAR, 340),
    EQUAL: (PART_COLORS[1], "diamond", 150),
    BASELINE: (PART_COLORS[3], "square", 130),
    OTHER: (NO_COLOR, "circle", 45),
    OUT: (NO_COLOR, "cross", 45),
}
"""Colour, shape and size of what a configuration is in the result."""
JUDGED: Mapping[str, tuple[str, str]] = {
    "better": (PART_COLORS[2], "triangle-up"),
    "worse": (PART_COLORS[0], "triangle-down"),
    "no difference shown": (NO_COLOR, "circle"),
    "not measured": (NO_COLOR, "cross"),
}
"""Colour and shape of a verdict."""
INKS = ("#17211E", "#FFFFFF")
SHADES = ("#E3EDF5", "#00466E")
"""From the least to the best value of a heat map; the values are written in the ink that is readable on them."""
_DIGITS = ",.3r"
_CHANGE = "(datum.value < 1 ? '−' : datum.value > 1 ? '+' : '±') + format(abs(100 * (datum.value - 1)), '.3~r') + ' %'"


def colors(document: Document, shown: Sequence[int], ours: Mapping[str, str]) -> dict[str, str]:
    """Colours by configuration key for the configurations shown: the one of every page (`ours`), except where two of
    those shown would have the same; then the later one takes a colour that is free."""
    named = keys(document)
    found: dict[str, str] = {}
    for number in shown:
        own = ours.get(named[number], PALETTE[number % len(PALETTE)])
        free = [color for color in PALETTE if color not in found.values()]
        found[named[number]] = own if own in free or not free else free[0]
    return found


# --- all configurations ----------------------------------------------------------------------------------------------


def frontier(cells: pd.DataFrame, limit_ms: float | None, least_ips: float | None) -> Chart:
    """Throughput against P99 latency of every cell with 95 % intervals; for each load a line through the configurations
    that no other one beats in both, and the objective's limits."""
    drawn = cells[cells["p99_ms"].notna() & cells["throughput_ips"].notna()]
    order = list(STANDS)[::-1]
    drawn = drawn.assign(place=[order.index(stands) for stands in drawn["standing"]]).sort_values("place")
    drawn = drawn.assign(p99_text=[_bound(row.p99_ms, row.p99_at_least) for row in drawn.itertuples(index=False)])
    x = alt.X(
        "throughput_ips:Q",
        title="Throughput, inferences/s",
        scale=alt.Scale(zero=False, nice=False, padding=36),
        axis=alt.Axis(format=",~f", tickCount=5),
    )
    y = _log_y("p99_ms", "P99 latency, ms (logarithmic)")
    base = alt.Chart(drawn.assign(size=[STANDS[stands][2] for stands in drawn["standing"]]))
    faint = alt.condition(f"indexof({[BEST, EQUAL, BASELINE]}, datum.standing) >= 0", alt.value(1), alt.value(0.4))
    color = _standing(drawn, "color")
    best = drawn[drawn["on_frontier"]].sort_values(["load", "throughput_ips"])
    lines = alt.Chart(best).mark_line(color=PALETTE[0], strokeWidth=2, opacity=0.7)
    ends = best.drop_duplicates("load", keep="last")
    dash = alt.StrokeDash("load_words:N", sort=list(best["load_words"].unique()), legend=None)
    layers: list[Any] = [
        *_limits(limit_ms, least_ips),
        lines.encode(x=x, y=y, strokeDash=dash, detail="load:N"),
        base.transform_filter("isValid(datum.throughput_low)")
        .mark_rule()
        .encode(x="throughput_low:Q", x2="throughput_high:Q", y=y, color=color, opacity=faint),
        base.transform_filter("isValid(datum.p99_low)")
        .mark_rule()
        .encode(x=x, y="p99_low:Q", y2="p99_high:Q", color=color, opacity=faint),
        base.mark_point(filled=True, strokeWidth=1).encode(
            x=x,
            y=y,
            color=color,
            shape=_standing(drawn, "shape"),
            size=alt.Size("size:Q", scale=None, legend=None),
            opacity=faint,
            tooltip=_tooltip("load_words", "rounds", "standing"),
        ),
        alt.Chart(ends)
        .mark_text(align="center", dy=-20, fontSize=12, fontWeight="bold", color=NO_COLOR)
        .encode(x=x, y=y, text="load_words:N"),
    ]
    told = "; ".join(
        f"{words}: " + ", ".join(f"{row.label} {_pair(row)}" for row in part.itertuples(index=False))
        for words, part in best.groupby("load_words", sort=False)
    )
    marked = drawn[drawn["standing"].isin([BEST, EQUAL])]
    winners = "; ".join(f"{row.standing}: {row.label}, {row.load_words}, {_pair(row)}" for row in marked.itertuples())
    limits = [f"P99 at most {limit_ms:g} ms"] if limit_ms else []
    limits += [f"at least {least_ips:g} inferences/s"] if least_ips else []
    return finish(
        alt.layer(*layers),
        "Throughput against P99 latency",
        f"Scatter plot of throughput in inferences per second against P99 latency in ms with 95 % intervals, "
        f"{len(drawn)} cells. {'Objective: ' + ' and '.join(limits) + '. ' if limits else ''}"
        f"{winners + '. ' if winners else ''}On the frontier: {told or 'nothing yet'}.",
        height=400,
    )


def _limits(limit_ms: float | None, least_ips: float | None) -> list[Any]:
    """The objective's line or lines, each with its words beside it."""
    found: list[Any] = []
    for value, field, words in ((limit_ms, "p99_ms", "ms"), (least_ips, "throughput_ips", "inferences/s")):
        if value is None:
            continue
        is_flat = field == "p99_ms"
        text = f"{'at most' if is_flat else 'at least'} {value:g} {words}"
        base = alt.Chart(alt.InlineData(values=[{field: value, "text": text}]))
        rule = base.mark_rule(color=NO_COLOR, strokeDash=[6, 4], strokeWidth=2)
        place = {"y": alt.Y(f"{field}:Q")} if is_flat else {"x": alt.X(f"{field}:Q")}
        edge = {"x": alt.value(4)} if is_flat else {"y": alt.value(8)}
        label = base.mark_text(align="left", dx=0 if is_flat else 6, dy=-8 if is_flat else 0, color=NO_COLOR)
        found += [rule.encode(**place), label.encode(**place, **edge, text="text:N")]
    return found


def heat_map(
    cells: pd.DataFrame, across: tuple[str, Sequence[str]], down: tuple[str, Sequence[str]], value: str, load: str
) -> Chart:
    """Throughput or P99 at each pair of values of two knobs under one load; `across` and `down` are a knob's name and
    its values in order."""
    title, unit = ("Throughput", "inferences/s") if value == "throughput_ips" else ("P99 latency", "ms")
    best_last = value == "throughput_ips"
    low, high = (float(cells["value"].min()), float(cells["value"].max())) if len(cells) else (0.0, 1.0)
    middle = math.sqrt(low * high) if low > 0 else (low + high) / 2
    mark = {BEST: " ★", EQUAL: " ≈", BASELINE: " ▪"}
    drawn = cells.assign(
        text=[_bound(row.value, row.at_least) + mark.get(row.standing, "") for row in cells.itertuples(index=False)],
        ink=[INKS[int((found > middle) == best_last)] for found in cells["value"]],
    )
    x = alt.X(
        "across:N", title=across[0], sort=list(across[1]), axis=alt.Axis(labelAngle=0, labelLimit=76, orient="top")
    )
    y = alt.Y("down:N", title=down[0], sort=list(down[1]), axis=alt.Axis(labelLimit=76))
    tooltip = [
        alt.Tooltip("label:N", title="Configuration"),
        alt.Tooltip("across:N", title=across[0]),
        alt.Tooltip("down:N", title=down[0]),
        alt.Tooltip("value:Q", title=f"{title}, {unit}", format=_DIGITS),
        alt.Tooltip("standing:N", title="In the result"),
        alt.Tooltip("others:Q", title="Others at this place"),
    ]
    scale = alt.Scale(type="log" if low > 0 and high > low else "linear", domain=[low, high], range=list(SHADES))
    if not best_last:
        scale["range"] = list(SHADES)[::-1]
    base = alt.Chart(drawn).encode(x=x, y=y, tooltip=tooltip)
    layers = [
        base.mark_rect(cornerRadius=3).encode(color=alt.Color("value:Q", scale=scale, legend=None)),
        base.transform_filter(f"datum.standing == '{BEST}'").mark_rect(
            filled=False, stroke="#D25A00", strokeWidth=3, cornerRadius=3
        ),
        base.mark_text(fontSize=12, fontWeight="bold").encode(text="text:N", color=alt.Color("ink:N", scale=None)),
    ]
    told = "; ".join(f"{row.across} and {row.down}: {row.text}" for row in drawn.itertuples(index=False))
    return finish(
        alt.layer(*layers).resolve_scale(color="independent"),
        f"{title}, {unit}, {load}",
        f"Heat map of {title.lower()} in {unit} under {load} by {across[0]} (across) and {down[0]} (down); darker is "
        f"better. {told or 'Nothing was measured yet'}.",
        height=46 * max(len(down[1]), 1),
    )


def ratios(verdicts: pd.DataFrame, load: str) -> Chart:
    """Each configuration against the baseline under one load: the change with its interval, the verdict in words."""
    metric = verdicts["metric"].iloc[0] if len(verdicts) else "throughput_ips"
    title = "Throughput" if metric == "throughput_ips" else "P99 latency"
    texts = [f"{row.verdict}{_change(row)}" for row in verdicts.itertuples(index=False)]
    base = alt.Chart(verdicts.assign(text=texts))
    present = [name for name in JUDGED if name in set(verdicts["verdict"])]
    pick = {
        channel: alt.Scale(domain=present, range=[JUDGED[name][place] for name in present])
        for place, channel in enumerate(("color", "shape"))
    }
    color = alt.Color("verdict:N", scale=pick["color"], legend=None)
    tooltip = [
        alt.Tooltip("label:N", title="Configuration"),
        alt.Tooltip("text:N", title=f"{title} against the baseline"),
        alt.Tooltip("rounds:Q", title="Rounds"),
        alt.Tooltip("more_rounds:Q", title="More rounds to settle it, about"),
        alt.Tooltip("sentence:N", title="In words"),
    ]
    x = alt.X(
        "ratio:Q",
        title="Change, with 95 % intervals",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(labelExpr=_CHANGE, tickCount=5, labelOverlap=True),
    )
    one = alt.Chart(alt.InlineData(values=[{"ratio": 1.0}]))
    layers = [
        one.mark_rule(color=NO_COLOR, strokeDash=[4, 4]).encode(x=x),
        base.transform_filter("isValid(datum.low) && isValid(datum.high)")
        .mark_rule(strokeWidth=2.5, yOffset=BAR_DOWN_PX)
        .encode(x=alt.X("low:Q"), x2="high:Q", y=values(verdicts, texts), color=color, tooltip=tooltip),
        base.transform_filter("isValid(datum.ratio)")
        .mark_point(filled=True, size=120, opacity=1, yOffset=BAR_DOWN_PX)
        .encode(
            x=x,
            y=names(verdicts),
            color=color,
            shape=alt.Shape("verdict:N", scale=pick["shape"], legend=None),
            tooltip=tooltip,
        ),
        # invisible: it keeps a row for a configuration without a ratio
        alt.Chart(verdicts).mark_tick(opacity=0).encode(y=rows(verdicts, None)),
    ]
    told = "; ".join(f"{label}: {text}" for label, text in zip(verdicts["label"], texts, strict=True))
    return finish(
        alt.layer(*layers).resolve_axis(y="independent"),
        f"{title} against the baseline, %, {load}",
        f"Each configuration's {title.lower()} as a change of the baseline's in % with its 95 % interval, under "
        f"{load}. {told or 'Nothing to compare yet'}.",
        height=ROW_PX * max(len(verdicts), 1),
    )


def p99_by_load(
    cells: pd.DataFrame, shown: Sequence[str], colors: Mapping[str, str], *, unit: str, limit_ms: float | None
) -> Chart:
    """P99 latency at each offered load; the configurations `shown` (`c3`) in their colours with 95 % intervals, the
    others as thin lines."""
    drawn = cells[cells["p99_ms"].notna() & cells["level"].notna()]
    drawn = drawn.assign(p99_text=[_bound(row.p99_ms, row.p99_at_least) for row in drawn.itertuples(index=False)])
    few = drawn[drawn["trial_id"].isin(shown)]
    levels = sorted(drawn["level"].unique())
    x = alt.X(
        "level:Q",
        title=f"Offered load, {unit} (logarithmic)",
        scale=alt.Scale(type="log", nice=False, padding=24),
        axis=alt.Axis(values=levels, format=",~r", labelOverlap=True, grid=False),
    )
    y = _log_y("p99_ms", "P99 latency, ms (logarithmic)")
    among = few.drop_duplicates("trial_id")
    base = alt.Chart(few)
    color = color_by_trial(few, colors)
    layers = [
        *_limits(limit_ms, None),
        alt.Chart(drawn[~drawn["trial_id"].isin(shown)])
        .mark_line(color=NO_COLOR, strokeWidth=1, opacity=0.45)
        .encode(x=x, y=y, detail="trial_id:N", tooltip=_tooltip("load_words", "standing")),
        base.mark_line(strokeWidth=2).encode(x=x, y=y, color=color, detail="trial_id:N"),
        base.transform_filter("isValid(datum.p99_low)")
        .mark_rule(strokeWidth=2)
        .encode(x=x, y="p99_low:Q", y2="p99_high:Q", color=color),
        base.mark_point(filled=True, size=110, opacity=1).encode(
            x=x,
            y=y,
            color=color_by_trial(few, colors, legend=True),
            shape=by_trial("shape", few, SHAPES, among=among),
            tooltip=_tooltip("load_words", "standing"),
        ),
    ]
    told = "; ".join(
        f"{label}: " + ", ".join(f"{row.p99_text} ms at {row.load_words}" for row in part.itertuples(index=False))
        for label, part in few.sort_values("level").groupby("label", sort=False)
    )
    return finish(
        alt.layer(*layers).resolve_legend(color="independent", shape="independent"),
        "P99 latency at each offered load, ms",
        f"Line chart of the P99 latency in ms at each load in {unit}, both axes logarithmic. {told or 'No P99 yet'}.",
        height=340,
    )


def drift(table: pd.DataFrame) -> Chart:
    """Each round's first cell measured again at its end, as a change: what the machine did meanwhile."""
    metrics = list(table["metric"].unique())
    chosen = [PART_COLORS[2], PART_COLORS[0]][: len(metrics)]
    legend = alt.Legend(orient="bottom", direction="horizontal", symbolSize=120)
    color = alt.Color("metric:N", title=None, scale=alt.Scale(domain=metrics, range=chosen), legend=legend)
    shape = alt.Shape(
        "metric:N", title=None, scale=alt.Scale(domain=metrics, range=list(SHAPES[: len(metrics)])), legend=legend
    )
    x = alt.X("round:O", title="Round", axis=alt.Axis(labelAngle=0, labelOverlap=True))
    y = alt.Y(
        "ratio:Q",
        title="Second time against the first",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(labelExpr=_CHANGE, tickCount=5),
    )
    tooltip = [
        alt.Tooltip("round:O", title="Round"),
        alt.Tooltip("metric:N", title="Of"),
        alt.Tooltip("ratio:Q", title="Second time / first", format=".3f"),
        alt.Tooltip("load_words:N", title="Load"),
    ]
    base = alt.Chart(table)
    one = alt.Chart(alt.InlineData(values=[{"ratio": 1.0}]))
    layers = [
        one.mark_rule(color=NO_COLOR, strokeDash=[4, 4]).encode(y=y),
        base.mark_line(strokeWidth=1.5).encode(x=x, y=y, color=color),
        base.mark_point(filled=True, size=90, opacity=1).encode(x=x, y=y, color=color, shape=shape, tooltip=tooltip),
    ]
    told = "; ".join(
        f"{metric}: " + ", ".join(f"{100 * (row.ratio - 1):+.1f} % in round {row.round}" for row in part.itertuples())
        for metric, part in table.groupby("metric", sort=False)
    )
    return finish(
        alt.layer(*layers),
        "Drift within each round, %",
        f"The first measurement of each round repeated at its end, as a change in %. {told or 'Nothing yet'}.",
        height=240,
    )


# --- pieces ---------------------------------------------------------------------------------------------------------


def _log_y(field: str, title: str) -> alt.Y:
    return alt.Y(
        f"{field}:Q",
        title=title,
        scale=alt.Scale(type="log", nice=False, padding=24),
        axis=alt.Axis(format="~g", tickCount=5, labelOverlap=True),
    )


def _standing(table: pd.DataFrame, channel: str) -> Any:
    """Colour or shape by what a configuration is in the result."""
    place = ("color", "shape").index(channel)
    present = [name for name in STANDS if name in set(table["standing"])]
    scale = alt.Scale(domain=present, range=[STANDS[name][place] for name in present])
    legend = alt.Legend(orient="bottom", direction="horizontal", columns=2, symbolSize=130, symbolStrokeWidth=1)
    kind = (alt.Color, alt.Shape)[place]
    return kind("standing:N", title=None, sort=None, scale=scale, legend=legend)


def _tooltip(*further: str) -> list[alt.Tooltip]:
    titles = {"load_words": "Load", "rounds": "Rounds", "standing": "In the result"}
    return [
        alt.Tooltip("label:N", title="Configuration"),
        alt.Tooltip("throughput_ips:Q", title="Throughput, inferences/s", format=_DIGITS),
        alt.Tooltip("p99_text:N", title="P99 latency, ms"),
        *(alt.Tooltip(f"{name}:N", title=titles[name]) for name in further),
    ]


def _bound(value: float, at_least: bool) -> str:
    return f"{'≥ ' if at_least else ''}{significant(value)}"


def _pair(row: Any) -> str:
    return f"{significant(row.throughput_ips)} inferences/s at {_bound(row.p99_ms, row.p99_at_least)} ms"


def _change(row: Any) -> str:
    """`, +12.3 % (+9.8 to +14.9)`, or nothing where there is no ratio."""
    if math.isnan(row.ratio):
        return ""
    if math.isnan(row.low) or math.isnan(row.high):
        return f", {100 * (row.ratio - 1):+.1f} %"
    return f", {100 * (row.ratio - 1):+.1f} % ({100 * (row.low - 1):+.1f} to {100 * (row.high - 1):+.1f})"
