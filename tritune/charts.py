"""Charts: one function a chart, from a table of frames.py to an Altair chart.

Belongs here: marks, scales, titles with units, tooltips, alt text. Never: aggregation, widgets, and what charts share
in looks (chart_style).

Every chart fits its container's width, leaves its background and its text to the theme, and can be read without
colour: names and values stand beside the marks, lines differ in dashes, points in shapes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

from tritune.analysis import significant
from tritune.chart_style import (
    BAR_DOWN_PX,
    BAR_PX,
    DASHES,
    JUDGED,
    NARROW,
    NO_COLOR,
    PALETTE,
    PART_COLORS,
    ROW_PX,
    SHAPES,
    by_trial,
    color_by_trial,
    finish,
    names,
    row_axis,
    rows,
    values,
)
from tritune.chart_style import colors as colors

if TYPE_CHECKING:
    import pandas as pd

    from tritune.chart_style import Chart

_DIGITS = ",.3r"


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
        axis=alt.Axis(format=",~f", tickCount=5),
        scale=alt.Scale(zero=True, nice=True),
    )
    color = color_by_trial(headline, colors)
    bars = base.mark_bar(height=BAR_PX, yOffset=BAR_DOWN_PX, fillOpacity=0.3, strokeWidth=1.5, cornerRadiusEnd=2)
    whiskers = base.transform_filter(f"isValid(datum.{low})")
    layers = [
        bars.encode(x=x, y=names(headline), color=color, stroke=color.copy(), tooltip=tooltip),
        whiskers.mark_rule(strokeWidth=2.5, yOffset=BAR_DOWN_PX).encode(
            x=alt.X(f"{low}:Q"), x2=f"{high}:Q", y=values(headline, texts), color=color, tooltip=tooltip
        ),
        *(
            whiskers.mark_tick(thickness=2.5, size=BAR_PX - 2, yOffset=BAR_DOWN_PX).encode(
                x=f"{end}:Q", y=rows(headline, None), color=color, tooltip=tooltip
            )
            for end in (low, high)
        ),
    ]
    told = "; ".join(f"{label}: {text}" for label, text in zip(headline["label"], texts, strict=True))
    return finish(
        alt.layer(*layers).resolve_axis(y="independent"),
        f"{title}, {unit}",
        f"Bar chart of {title.lower()} in {unit} with 95 % intervals. {told}.",
        height=ROW_PX * max(len(headline), 1),
    )


def server_time_bars(times: pd.DataFrame) -> Chart:
    """Where a request's time in Triton goes: queue, compute input, inference, compute output, stacked."""
    title, whose = "Time in Triton per request, ms", "time per request in Triton in ms"
    return stacked_times(times, PART_COLORS, title, f"the mean {whose}", each="Trial")


def stacked_times(times: pd.DataFrame, palette: Sequence[str], title: str, what: str, *, each: str) -> Chart:
    """The parts of a mean time stacked, a row for each trial: `palette` has a colour for each part's order, `what`
    stands in the alt text, `each` is what a row is called."""
    trials = times.drop_duplicates("trial_id")
    totals = times.groupby("trial_id", sort=False)["time_ms"].sum()
    queues = times[times["part"] == "Queue"].set_index("trial_id")["time_ms"]
    texts = [
        f"{significant(total)} ({_percent(queues.get(trial_id, 0.0), total)} queue)"
        for trial_id, total in totals.items()
    ]
    placed = times.sort_values("order").drop_duplicates("part")
    parts = list(placed["part"])
    bars = alt.Chart(times).mark_bar(height=BAR_PX, yOffset=BAR_DOWN_PX)
    bars = bars.encode(
        x=alt.X("time_ms:Q", title="ms, mean of all requests", stack="zero", axis=alt.Axis(format=",~f", tickCount=5)),
        y=names(trials),
        color=alt.Color(
            "part:N",
            title=None,
            sort=parts,
            scale=alt.Scale(domain=parts, range=[palette[int(order)] for order in placed["order"]]),
            legend=alt.Legend(orient="bottom", direction="horizontal", columns=2, symbolType="square"),
        ),
        order=alt.Order("order:Q"),
        tooltip=[
            alt.Tooltip("label:N", title=each),
            alt.Tooltip("part:N", title="Part"),
            alt.Tooltip("time_ms:Q", title="Time per request, ms", format=_DIGITS),
        ],
    )
    # invisible: it only carries the axis with the totals
    carrier = alt.Chart(trials).mark_tick(opacity=0).encode(y=values(trials, texts))
    told = "; ".join(f"{label}: {text}" for label, text in zip(trials["label"], texts, strict=True))
    return finish(
        alt.layer(bars, carrier).resolve_axis(y="independent"),
        title,
        f"Stacked bar chart of {what}: {', '.join(parts)}. {told}.",
        height=ROW_PX * max(len(trials), 1),
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
        axis = row_axis(named, "format(datum.value, '.2f')", right=right)
        axis["values"], axis["labelBaseline"] = marks, "middle"
        axis["labelOffset"] = alt.ExprRef(f"{NARROW} ? 14 : 0") if right else 0
        return alt.Y("floor:Q", title=None, scale=scale, axis=axis)

    largest = int(sizes["batch_size"].max()) if len(sizes) else 1
    x = alt.X(
        "left:Q",
        title=f"Batch size (tallest column: {100 * highest:.0f} % of inferences)",
        scale=alt.Scale(domain=[0.4, largest + 0.6], nice=False),
        axis=alt.Axis(tickMinStep=1, format="d", grid=False, tickCount=min(largest, 12)),
    )
    color = color_by_trial(sizes, colors)
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
    return finish(
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
    color = color_by_trial(drawn, colors, legend=True)
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
            x=x, y=y, color=color, shape=by_trial("shape", drawn, SHAPES, among=headline), tooltip=tooltip
        ),
    ]
    told = "; ".join(
        f"{row.label}: {significant(row.throughput_ips)} inferences/s at {_p99(row)} ms"
        for row in drawn.itertuples(index=False)
    )
    return finish(
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
            color=color_by_trial(curves, colors),
            strokeDash=by_trial("strokeDash", curves, DASHES, among=headline, legend=False),
            detail="trial_id:N",
        ),
        alt.Chart(points)
        .mark_point(size=90, filled=True, opacity=1)
        .encode(
            x="latency_ms:Q",
            y=alt.Y("share:Q", axis=None),
            color=color_by_trial(curves, colors, legend=True),
            shape=by_trial("shape", curves, SHAPES, among=headline),
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
    return finish(
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


def rate_probes(probes: pd.DataFrame, limit_ms: float) -> Chart:
    """P99 latency at each rate that a search tried, with 95 % intervals and the limit, both axes logarithmic.

    Probes without a P99 are left out.
    """
    drawn = probes[probes["p99_ms"].notna()]
    base = alt.Chart(drawn.assign(words=[JUDGED[name][0] for name in drawn["judgement"]]))
    x = alt.X(
        "rate_rps:Q",
        title="Rate, requests/s (logarithmic)",
        scale=alt.Scale(type="log", nice=False, padding=24),
        axis=alt.Axis(format=",~r", tickCount=5, labelOverlap=True),
    )
    y = alt.Y(
        "p99_ms:Q",
        title="P99 latency, ms (logarithmic)",
        scale=alt.Scale(type="log", nice=True),
        axis=alt.Axis(format="~g", tickCount=5, labelOverlap=True),
    )
    present = [name for name in JUDGED if name in set(drawn["judgement"])]
    words, shown, shapes = ([JUDGED[name][part] for name in present] for part in range(3))
    legend = alt.Legend(orient="bottom", direction="horizontal", columns=2, symbolSize=110, symbolStrokeWidth=2)
    color = alt.Color("words:N", title=None, sort=None, scale=alt.Scale(domain=words, range=shown), legend=legend)
    shape = alt.Shape("words:N", title=None, sort=None, scale=alt.Scale(domain=words, range=shapes), legend=legend)
    tooltip = [
        alt.Tooltip("trial_id:N", title="Trial"),
        alt.Tooltip("rate_rps:Q", title="Rate, requests/s", format=_DIGITS),
        alt.Tooltip("p99_ms:Q", title="P99 latency, ms", format=_DIGITS),
        alt.Tooltip("words:N", title="Judged"),
    ]
    limit = alt.Chart(alt.InlineData(values=[{"limit_ms": limit_ms}]))
    right = alt.Axis(orient="right", values=[limit_ms], labelExpr=f"'limit {limit_ms:g}'", grid=False, labelPadding=4)
    layers = [
        limit.mark_rule(color=NO_COLOR, strokeDash=[6, 4], strokeWidth=2).encode(
            y=alt.Y("limit_ms:Q", title=None, axis=right)
        ),
        base.mark_rule(strokeWidth=2).encode(x=x, y=alt.Y("p99_low:Q", axis=None), y2="p99_high:Q", color=color),
        base.mark_point(size=110, filled=True, opacity=1).encode(x=x, y=y, color=color, shape=shape, tooltip=tooltip),
    ]
    told = "; ".join(
        f"{significant(row.rate_rps)}/s: {_p99(row)} ms, {JUDGED[row.judgement][0]}"
        for row in drawn.sort_values("rate_rps").itertuples(index=False)
    )
    return finish(
        alt.layer(*layers).resolve_axis(y="independent"),
        "P99 latency at each rate tried, ms",
        f"Scatter plot of the P99 latency in ms with 95 % intervals at each rate in requests per second, with the "
        f"limit of {limit_ms:g} ms. {told or 'No rate was tried yet'}.",
        height=300,
    )


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
        y=alt.Y(f"{field}:Q", title=None, scale=alt.Scale(zero=True), axis=alt.Axis(format=",~f", tickCount=4)),
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
    return finish(
        alt.layer(*layers),
        f"{title}, {unit}",
        f"Line chart of {title.lower()} in {unit} over the elapsed time. {latest}",
        height=180,
    )


# --- words ----------------------------------------------------------------------------------------------------------


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
