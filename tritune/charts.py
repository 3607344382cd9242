"""Charts: one function a chart, from a table of frames.py to an Altair chart.

Belongs here: marks, scales, titles with units, tooltips, alt text, colours. Never: aggregation, widgets.

Every chart fits its container's width, leaves its background and its text to the theme, and can be read without
colour: names and values stand beside the marks, lines differ in dashes, points in shapes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from tritune.analysis import significant

if TYPE_CHECKING:
    import pandas as pd

    Chart = alt.Chart | alt.LayerChart

PALETTE = ("#0078B4", "#D25A00", "#1EA5A5", "#964B78", "#3C96FF", "#C30F3C", "#004BFF", "#FF5A78")
"""Colours of configurations: contrast of 3 to white and to the dark theme's background, and apart from each other in
normal, deuteranopic and protanopic vision (tests/unit/test_charts.py measures both)."""
PART_COLORS = ("#C3875A", "#6996D2", "#006996", "#875A00")
"""Colours of Triton's times, which no configuration has."""
NO_COLOR = "#808080"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES: tuple[list[int], ...] = ([1, 0], [8, 4], [2, 2], [8, 3, 2, 3], [14, 4], [4, 4], [14, 3, 2, 3, 2, 3], [1, 4])

_ROW_PX = 52
_BAR_PX = 12
_BAR_DOWN_PX = 13
_TEXT_DOWN_PX = -3
_NAME_DOWN_PX = -16
"""From a row's middle to its bar, to the line of text above it, and to the name above that on a narrow screen."""
_NARROW = "width < 520"
_VALUE_PX = 190
_LONG = 32
_DIGITS = ",.3r"


def colors(keys: Sequence[str]) -> dict[str, str]:
    """The colour of each configuration by its place in `analysis.configuration_keys` of the whole installation."""
    return {key: PALETTE[place % len(PALETTE)] for place, key in enumerate(keys)}


# --- bars ----------------------------------------------------------------------------------------------------------


def throughput_bars(headline: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """Throughput of each trial with its 95 % interval."""
    texts = [
        _with_interval(row.throughput_ips, row.throughput_low, row.throughput_high)
        for row in headline.itertuples(index=False)
    ]
    return _bars(headline, colors, "throughput", "ips", "Throughput", "inferences/s", texts)


def p99_bars(headline: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """P99 latency of each trial with its 95 % interval; a lower bound reads "at least"."""
    texts = [
        ("≥ " if row.p99_at_least else "") + _with_interval(row.p99_ms, row.p99_low, row.p99_high, "too few samples")
        for row in headline.itertuples(index=False)
    ]
    return _bars(headline, colors, "p99", "ms", "P99 latency", "ms", texts)


def _bars(
    headline: pd.DataFrame,
    colors: Mapping[str, str],
    name: str,
    suffix: str,
    title: str,
    unit: str,
    texts: Sequence[str],
) -> Chart:
    """Horizontal bars; name and value stand above each bar, so that long names cost no width."""
    value, low, high = f"{name}_{suffix}", f"{name}_low", f"{name}_high"
    base = alt.Chart(headline.assign(value_text=list(texts)))
    tooltip = [
        alt.Tooltip("label:N", title="Trial"),
        alt.Tooltip("value_text:N", title=f"{title}, {unit}"),
        alt.Tooltip("load:N", title="Load"),
        alt.Tooltip("trial_id:N", title="Id"),
    ]
    x = alt.X(
        f"{value}:Q",
        title=f"{unit}, with 95 % intervals",
        axis=alt.Axis(format=",f", tickCount=5),
        scale=alt.Scale(zero=True, nice=True),
    )
    color = _color(headline, colors)
    bars = base.mark_bar(height=_BAR_PX, yOffset=_BAR_DOWN_PX, fillOpacity=0.3, strokeWidth=1.5, cornerRadiusEnd=2)
    whiskers = base.transform_filter(f"isValid(datum.{low})")
    layers = [
        bars.encode(x=x, y=_names(headline), color=color, stroke=color.copy(), tooltip=tooltip),
        whiskers.mark_rule(strokeWidth=2.5, yOffset=_BAR_DOWN_PX).encode(
            x=alt.X(f"{low}:Q"), x2=f"{high}:Q", y=_values(headline, texts), color=color, tooltip=tooltip
        ),
        *(
            whiskers.mark_tick(thickness=2.5, size=_BAR_PX - 2, yOffset=_BAR_DOWN_PX).encode(
                x=f"{end}:Q", y=_rows(headline, None), color=color, tooltip=tooltip
            )
            for end in (low, high)
        ),
    ]
    told = "; ".join(f"{label}: {text}" for label, text in zip(headline["label"], texts, strict=True))
    return _finish(
        alt.layer(*layers).resolve_axis(y="independent"),
        f"{title}, {unit}",
        f"Bar chart of {title.lower()} in {unit} with 95 % intervals. {told}.",
        height=_ROW_PX * max(len(headline), 1),
    )


def server_time_bars(times: pd.DataFrame) -> Chart:
    """Where a request's time in Triton goes: queue, compute input, inference, compute output, stacked."""
    trials = times.drop_duplicates("trial_id")
    totals = times.groupby("trial_id", sort=False)["time_ms"].sum()
    queues = times[times["part"] == "Queue"].set_index("trial_id")["time_ms"]
    texts = [
        f"{significant(total)} ({_percent(queues.get(trial_id, 0.0), total)} queue)"
        for trial_id, total in totals.items()
    ]
    parts = list(times.sort_values("order")["part"].unique())
    bars = alt.Chart(times).mark_bar(height=_BAR_PX, yOffset=_BAR_DOWN_PX)
    bars = bars.encode(
        x=alt.X("time_ms:Q", title="ms, mean of all requests", stack="zero", axis=alt.Axis(format=",f", tickCount=5)),
        y=_names(trials),
        color=alt.Color(
            "part:N",
            title=None,
            sort=parts,
            scale=alt.Scale(domain=parts, range=list(PART_COLORS[: len(parts)])),
            legend=alt.Legend(orient="bottom", direction="horizontal", columns=2, symbolType="square"),
        ),
        order=alt.Order("order:Q"),
        tooltip=[
            alt.Tooltip("label:N", title="Trial"),
            alt.Tooltip("part:N", title="Part"),
            alt.Tooltip("time_ms:Q", title="Time per request, ms", format=_DIGITS),
        ],
    )
    # invisible: it only carries the axis with the totals
    carrier = alt.Chart(trials).mark_tick(opacity=0).encode(y=_values(trials, texts))
    told = "; ".join(f"{label}: {text}" for label, text in zip(trials["label"], texts, strict=True))
    return _finish(
        alt.layer(bars, carrier).resolve_axis(y="independent"),
        "Time in Triton per request, ms",
        f"Stacked bar chart of the mean time per request in Triton in ms: {', '.join(parts)}. {told}.",
        height=_ROW_PX * max(len(trials), 1),
    )


def batch_size_histogram(sizes: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """How many inferences travelled in a batch of each size: one row of columns a trial, all on one scale."""
    trials = sizes.drop_duplicates("trial_id").reset_index(drop=True)
    place = {trial_id: len(trials) - 1 - row for row, trial_id in enumerate(trials["trial_id"])}
    floor = sizes["trial_id"].map(place).astype(float)
    highest = float(sizes["share"].max()) if len(sizes) else 1.0
    drawn = sizes.assign(
        floor=floor,
        top=floor + 0.66 * sizes["share"] / highest,
        left=sizes["batch_size"] - 0.4,
        right=sizes["batch_size"] + 0.4,
    )
    averages = {
        trial_id: float((part["batch_size"] * part["executions"]).sum() / part["executions"].sum())
        for trial_id, part in sizes.groupby("trial_id", sort=False)
    }
    texts = [f"average {significant(averages[trial_id])}" for trial_id in trials["trial_id"]]
    heights = {f"{place[trial_id] + 0.85:.2f}": trial_id for trial_id in trials["trial_id"]}
    marks = [float(text) for text in heights]
    ids = list(heights.values())
    scale = alt.Scale(domain=[0, max(len(trials), 1)], nice=False)

    def y(words: Sequence[str], *, right: bool) -> alt.Y:
        named = dict(zip(heights, words, strict=True))
        axis = _row_axis(named, "format(datum.value, '.2f')", right=right)
        axis["values"], axis["labelBaseline"] = marks, "middle"
        axis["labelOffset"] = alt.ExprRef(f"{_NARROW} ? 14 : 0") if right else 0
        return alt.Y("floor:Q", title=None, scale=scale, axis=axis)

    largest = int(sizes["batch_size"].max()) if len(sizes) else 1
    x = alt.X(
        "left:Q",
        title=f"Batch size (tallest column: {100 * highest:.0f} % of inferences)",
        scale=alt.Scale(domain=[0.4, largest + 0.6], nice=False),
        axis=alt.Axis(tickMinStep=1, format="d", grid=False, tickCount=min(largest, 12)),
    )
    color = _color(sizes, colors)
    base = alt.Chart(drawn)
    columns = base.mark_bar(fillOpacity=0.8, strokeWidth=1).encode(
        x=x,
        x2="right:Q",
        y=y(list(trials["label"]), right=False),
        y2="top:Q",
        color=color,
        stroke=color.copy(),
        tooltip=[
            alt.Tooltip("label:N", title="Trial"),
            alt.Tooltip("batch_size:Q", title="Batch size"),
            alt.Tooltip("share:Q", title="Share of inferences", format=".3~p"),
            alt.Tooltip("executions:Q", title="Executions", format=","),
        ],
    )
    carrier = alt.Chart(trials.assign(floor=0.0)).mark_tick(opacity=0).encode(y=y(texts, right=True))
    told = "; ".join(
        f"{label}: {text}, most in batches of {int(_mode(sizes, trial_id))}"
        for label, text, trial_id in zip(trials["label"], texts, ids, strict=True)
    )
    return _finish(
        alt.layer(columns, carrier).resolve_axis(y="independent"),
        "Inferences by batch size",
        f"Histogram of the batch sizes that Triton executed. {told}.",
        height=84 * max(len(trials), 1),
    )


def _mode(sizes: pd.DataFrame, trial_id: str) -> float:
    part = sizes[sizes["trial_id"] == trial_id]
    return float(part.loc[part["share"].idxmax(), "batch_size"])


# --- points and lines ----------------------------------------------------------------------------------------------


def tradeoff(headline: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """Throughput against P99 latency, with both 95 % intervals. Trials without a P99 are left out."""
    drawn = headline[headline["p99_ms"].notna()]
    base = alt.Chart(drawn)
    x = alt.X(
        "throughput_ips:Q",
        title="Throughput, inferences/s (more is better)",
        scale=alt.Scale(zero=False, nice=True, padding=12),
        axis=alt.Axis(tickCount=5),
    )
    y = alt.Y(
        "p99_ms:Q",
        title="P99 latency, ms (less is better)",
        scale=alt.Scale(zero=False, nice=True, padding=12),
        axis=alt.Axis(tickCount=5),
    )
    color = _color(drawn, colors, legend=True)
    tooltip = [
        alt.Tooltip("label:N", title="Trial"),
        alt.Tooltip("throughput_ips:Q", title="Throughput, inferences/s", format=_DIGITS),
        alt.Tooltip("p99_ms:Q", title="P99 latency, ms", format=_DIGITS),
        alt.Tooltip("load:N", title="Load"),
    ]
    layers = [
        base.mark_rule(strokeWidth=1.5).encode(x=alt.X("throughput_low:Q"), x2="throughput_high:Q", y=y, color=color),
        base.mark_rule(strokeWidth=1.5).encode(x=x, y=alt.Y("p99_low:Q"), y2="p99_high:Q", color=color),
        base.mark_point(size=120, filled=True, opacity=1).encode(
            x=x, y=y, color=color, shape=_by_trial("shape", drawn, SHAPES), tooltip=tooltip
        ),
    ]
    told = "; ".join(
        f"{row.label}: {significant(row.throughput_ips)} inferences/s at {_p99(row)} ms"
        for row in drawn.itertuples(index=False)
    )
    return _finish(
        alt.layer(*layers),
        "Throughput against P99 latency",
        f"Scatter plot of throughput in inferences per second against P99 latency in ms. {told}.",
        height=320,
    )


def latency_curves(curves: pd.DataFrame, headline: pd.DataFrame, colors: Mapping[str, str]) -> Chart:
    """The share of requests answered within a latency, on a logarithmic axis, with rules at P50 and P99."""
    x = alt.X(
        "latency_ms:Q",
        title="Latency, ms (logarithmic)",
        scale=alt.Scale(type="log", nice=False),
        axis=alt.Axis(format="~g", tickCount=6),
    )
    y = alt.Y(
        "share:Q",
        title="Requests answered",
        scale=alt.Scale(domain=[0, 1]),
        axis=alt.Axis(format=".0%", values=[0, 0.25, 0.5, 0.75, 1]),
    )
    lines = alt.Chart(curves).mark_line(interpolate="step-after", strokeWidth=2)
    points = _marked(headline, set(curves["trial_id"]))
    rules = alt.Chart(alt.InlineData(values=[{"share": 0.5}, {"share": 0.99}]))
    right = alt.Axis(
        orient="right", values=[0.5, 0.99], labelExpr="'P' + format(100 * datum.value, 'd')", grid=False, labelPadding=4
    )
    layers = [
        rules.mark_rule(color=NO_COLOR, strokeDash=[4, 4]).encode(y=alt.Y("share:Q", title=None, axis=right)),
        lines.encode(
            x=x,
            y=y,
            color=_color(curves, colors),
            strokeDash=_by_trial("strokeDash", curves, DASHES, legend=False),
            detail="trial_id:N",
        ),
        alt.Chart(points)
        .mark_point(size=90, filled=True, opacity=1)
        .encode(
            x="latency_ms:Q",
            y=alt.Y("share:Q", axis=None),
            color=_color(curves, colors, legend=True),
            shape=_by_trial("shape", curves, SHAPES),
            tooltip=[
                alt.Tooltip("label:N", title="Trial"),
                alt.Tooltip("name:N", title="Percentile"),
                alt.Tooltip("latency_ms:Q", title="Latency, ms", format=_DIGITS),
            ],
        ),
    ]
    told = "; ".join(
        f"{label}: " + ", ".join(f"{row.name} {significant(row.latency_ms)} ms" for row in part.itertuples(index=False))
        for label, part in points.groupby("label", sort=False)
    )
    return _finish(
        alt.layer(*layers).resolve_axis(y="independent").resolve_legend(color="independent", shape="independent"),
        "Requests answered within a latency",
        f"Cumulative distribution of latency in ms on a logarithmic axis. {told}.",
        height=320,
    )


def _marked(headline: pd.DataFrame, shown: set[str]) -> pd.DataFrame:
    """P50 and P99 of each trial as points of its curve."""
    import pandas as pd

    columns = ["trial_id", "label"]
    parts = [
        headline[columns].assign(latency_ms=headline[f"{name.lower()}_ms"], share=share, name=name)
        for name, share in (("P50", 0.5), ("P99", 0.99))
    ]
    found = pd.concat(parts, ignore_index=True)
    return found[found["trial_id"].isin(shown) & found["latency_ms"].notna()]


def live_throughput(live: pd.DataFrame) -> Chart:
    """Answers per second while a load test runs."""
    return _live(live, "throughput_rps", "Answers in the last second", "requests/s", PALETTE[0])


def live_p99(live: pd.DataFrame) -> Chart:
    """P99 latency of each second while a load test runs."""
    return _live(live, "p99_ms", "P99 latency of the last second", "ms", PALETTE[1])


def _live(live: pd.DataFrame, field: str, title: str, unit: str, color: str) -> Chart:
    measuring = live[live["phase"] == "measuring"]
    begins = len(measuring) > 0 and len(measuring) < len(live)
    words = "Elapsed, s (dashed: the measurement begins)" if begins else "Elapsed, s"
    x = alt.X("elapsed_s:Q", title=words, scale=alt.Scale(domainMin=0, nice=False), axis=alt.Axis(tickCount=6))
    base = alt.Chart(live).encode(
        x=x,
        y=alt.Y(f"{field}:Q", title=None, scale=alt.Scale(zero=True), axis=alt.Axis(format=",f", tickCount=4)),
        tooltip=[
            alt.Tooltip("elapsed_s:Q", title="Elapsed, s", format=",.0f"),
            alt.Tooltip(f"{field}:Q", title=f"{title}, {unit}", format=_DIGITS),
            alt.Tooltip("phase:N", title="Phase"),
        ],
    )
    layers: list[alt.Chart] = [
        base.mark_line(color=color, strokeWidth=2),
        base.mark_point(color=color, filled=True, size=30, opacity=1),
    ]
    if begins:
        start = alt.InlineData(values=[{"elapsed_s": float(measuring["elapsed_s"].min())}])
        layers.append(alt.Chart(start).mark_rule(color=NO_COLOR, strokeDash=[4, 4]).encode(x="elapsed_s:Q"))
    known = live[field].dropna()
    latest = f"The latest value is {significant(float(known.iloc[-1]))} {unit}." if len(known) else "No answer yet."
    return _finish(
        alt.layer(*layers),
        f"{title}, {unit}",
        f"Line chart of {title.lower()} in {unit} over the elapsed time. {latest}",
        height=180,
    )


# --- what charts share ---------------------------------------------------------------------------------------------


def _finish(chart: Any, title: str, alt_text: str, *, height: int) -> Chart:
    """Title, alt text and size. Background and text colours are left to the theme, so there is no subtitle, which
    Streamlit's theme does not colour."""
    finished: Chart = chart.properties(
        title=alt.TitleParams(title, anchor="start", offset=12),
        description=alt_text,
        width="container",
        height=height,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),  # the height is the marks' alone
    )
    return finished


def _color(table: pd.DataFrame, colors: Mapping[str, str], *, legend: bool = False) -> alt.Color:
    """Colour by trial, each trial in its configuration's colour."""
    trials = table.drop_duplicates("trial_id")
    shown = [colors.get(key, NO_COLOR) for key in trials["key"]]
    scale = alt.Scale(domain=list(trials["trial_id"]), range=shown)
    return alt.Color("trial_id:N", title=None, sort=None, scale=scale, legend=_legend(trials) if legend else None)


def _by_trial(channel: str, table: pd.DataFrame, values: Sequence[Any], *, legend: bool = True) -> Any:
    """A shape or a dash for each trial, by its place in the chart."""
    trials = table.drop_duplicates("trial_id")
    scale = alt.Scale(
        domain=list(trials["trial_id"]), range=[values[place % len(values)] for place in range(len(trials))]
    )
    channels = {"shape": alt.Shape, "strokeDash": alt.StrokeDash}
    shown = _legend(trials) if legend else None
    return channels[channel]("trial_id:N", title=None, sort=None, scale=scale, legend=shown)


def _legend(trials: pd.DataFrame) -> alt.Legend:
    """One name a line below the chart; on a narrow screen a long name takes two."""
    broken = _lookup({row.trial_id: _broken(row.label) for row in trials.itertuples(index=False)}, "datum.label")
    return alt.Legend(
        orient="bottom",
        direction="vertical",
        columns=1,
        labelExpr=f"{_NARROW} ? split({broken}, '\\n') : replace({broken}, '\\n', ' · ')",
        labelLimit=alt.ExprRef("width"),
        symbolSize=120,
        symbolStrokeWidth=2,
    )


def _broken(label: str) -> str:
    """The label with a line break instead of its middle separator, where it is long."""
    parts = label.split(" · ")
    if len(label) <= _LONG or len(parts) < 2:
        return label
    place = min(range(1, len(parts)), key=lambda cut: abs(len(" · ".join(parts[:cut])) - len(label) / 2))
    return " · ".join(parts[:place]) + "\n" + " · ".join(parts[place:])


def _names(trials: pd.DataFrame) -> alt.Y:
    """The rows of a bar chart, named above the bar from the left."""
    named = dict(zip(trials["trial_id"], trials["label"], strict=True))
    return _rows(trials, _row_axis(named, "datum.value", right=False))


def _values(trials: pd.DataFrame, texts: Sequence[str]) -> alt.Y:
    """The same rows, with a value above the bar from the right."""
    named = dict(zip(trials["trial_id"], texts, strict=True))
    return _rows(trials, _row_axis(named, "datum.value", right=True))


def _rows(trials: pd.DataFrame, axis: alt.Axis | None) -> alt.Y:
    return alt.Y("trial_id:N", title=None, sort=list(trials["trial_id"]), axis=axis)


def _row_axis(named: Mapping[str, str], value: str, *, right: bool) -> alt.Axis:
    """An axis whose labels lie inside the plot, above the marks: names from the left, values from the right. Where both
    do not fit into a line, names move up into their own."""
    narrow_offset = alt.ExprRef(f"{_NARROW} ? {_NAME_DOWN_PX} : {_TEXT_DOWN_PX}")
    return alt.Axis(
        orient="right" if right else "left",
        labelAlign="right" if right else "left",
        labelPadding=0,
        labelOffset=_TEXT_DOWN_PX if right else narrow_offset,
        labelExpr=_lookup(named, value),
        labelLimit=alt.ExprRef("width" if right else f"{_NARROW} ? width : width - {_VALUE_PX}"),
        labelFontWeight="bold" if right else "normal",
        domain=False,
        ticks=False,
        grid=False,
        zindex=1,
    )


def _lookup(named: Mapping[str, str], value: str) -> str:
    """A Vega expression that turns an id into its text."""
    return f"({json.dumps(dict(named), ensure_ascii=False)})[{value}]"


def _with_interval(value: float, low: float, high: float, missing: str = "none") -> str:
    """`3,210 (3,110–3,310)`, without the bracket where there is no interval."""
    if math.isnan(value):
        return missing
    if math.isnan(low) or math.isnan(high):
        return significant(value)
    return f"{significant(value)} ({significant(low)}–{significant(high)})"


def _p99(row: Any) -> str:
    return f"{'≥ ' if row.p99_at_least else ''}{significant(row.p99_ms)}"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
