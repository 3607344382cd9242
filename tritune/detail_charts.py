"""Charts of a few configurations of a study in detail: where a request's time goes, percentiles, second by second.

Belongs here: marks, scales, titles with units, tooltips, alt text. Never: aggregation, widgets, whole studies
(study_charts).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import altair as alt

from tritune import charts
from tritune.analysis import significant
from tritune.chart_style import (
    DASHES,
    NO_COLOR,
    PALETTE,
    PART_COLORS,
    SHAPES,
    by_trial,
    color_by_trial,
    finish,
)

if TYPE_CHECKING:
    import pandas as pd

    from tritune.chart_style import Chart

TIMES = (NO_COLOR, *PART_COLORS)
"""Colours of network and client, queue, compute input, inference, compute output."""
NINES = {2.0: "P50", 10.0: "P90", 100.0: "P99", 1000.0: "P99.9", 10000.0: "P99.99"}
_DIGITS = ",.3r"


def server_time(times: pd.DataFrame, load: str) -> Chart:
    """Where the mean request's time goes, stacked: network and client, queue, compute input, inference, output."""
    title, what = f"Where a request's time goes, ms, {load}", f"the mean time of a request in ms under {load}"
    return charts.stacked_times(times, TIMES, title, what, each="Configuration")


def spectra(curves: pd.DataFrame, colors: Mapping[str, str], load: str) -> Chart:
    """Latency at every percentile up to P99.99, on an axis that gives each nine the same room."""
    drawn = curves.assign(nines=1 / (1 - curves["share"]))
    among = drawn.drop_duplicates("trial_id")
    words = " : ".join(f"datum.value == {value:g} ? '{name}'" for value, name in NINES.items())
    x = alt.X(
        "nines:Q",
        title="Percentile of all rounds' requests (logarithmic)",
        scale=alt.Scale(type="log", domain=[1, 10000], nice=False),
        axis=alt.Axis(values=list(NINES), labelExpr=f"{words} : ''"),
    )
    y = alt.Y(
        "latency_ms:Q",
        title="Latency, ms (logarithmic)",
        scale=alt.Scale(type="log", nice=False, padding=16),
        axis=alt.Axis(format="~g", tickCount=5, labelOverlap=True),
    )
    marked = drawn[drawn["nines"].round(6).isin(NINES)]
    marked = marked.assign(percentile=[NINES[round(value, 6)] for value in marked["nines"]])
    layers = [
        alt.Chart(drawn)
        .mark_line(strokeWidth=2)
        .encode(
            x=x,
            y=y,
            color=color_by_trial(drawn, colors),
            strokeDash=by_trial("strokeDash", drawn, DASHES, among=among, legend=False),
            detail="trial_id:N",
        ),
        alt.Chart(marked)
        .mark_point(size=90, filled=True, opacity=1)
        .encode(
            x=x,
            y=y,
            color=color_by_trial(drawn, colors, legend=True),
            shape=by_trial("shape", drawn, SHAPES, among=among),
            tooltip=[
                alt.Tooltip("label:N", title="Configuration"),
                alt.Tooltip("percentile:N", title="Percentile"),
                alt.Tooltip("latency_ms:Q", title="Latency, ms", format=_DIGITS),
            ],
        ),
    ]
    told = "; ".join(
        f"{label}: "
        + ", ".join(f"{row.percentile} {significant(row.latency_ms)} ms" for row in part.itertuples(index=False))
        for label, part in marked.groupby("label", sort=False)
    )
    return finish(
        alt.layer(*layers).resolve_legend(color="independent", shape="independent"),
        f"Latency at every percentile, ms, {load}",
        f"Line chart of latency in ms against the percentile up to P99.99, both axes logarithmic, under {load}. "
        f"{told or 'No samples are kept'}.",
        height=340,
    )


def throughput_over_time(steps: pd.DataFrame, name: str) -> Chart:
    """Answers in every second of one trial."""
    return _over_time(steps, "throughput_ips", "Throughput", "inferences/s", PALETTE[0], name)


def p99_over_time(steps: pd.DataFrame, name: str) -> Chart:
    """The P99 latency of every second of one trial."""
    return _over_time(steps, "p99_ms", "P99 latency", "ms", PALETTE[1], name)


def _over_time(steps: pd.DataFrame, field: str, title: str, unit: str, color: str, name: str) -> Chart:
    known = steps[steps[field].notna()]
    base = alt.Chart(known).encode(
        x=alt.X(
            "elapsed_s:Q",
            title="Time since the measurement began, s",
            scale=alt.Scale(domainMin=0, nice=False),
            axis=alt.Axis(tickCount=6),
        ),
        y=alt.Y(f"{field}:Q", title=None, scale=alt.Scale(zero=True), axis=alt.Axis(format=",~f", tickCount=4)),
        tooltip=[
            alt.Tooltip("elapsed_s:Q", title="Middle of the step, s", format=".1f"),
            alt.Tooltip(f"{field}:Q", title=f"{title}, {unit}", format=_DIGITS),
        ],
    )
    span = (
        f"From {significant(known[field].min())} to {significant(known[field].max())} {unit}."
        if len(known)
        else "No second has enough requests."
    )
    return finish(
        alt.layer(base.mark_line(color=color, strokeWidth=2), base.mark_point(color=color, filled=True, size=40)),
        f"{title} by second, {unit}",
        f"Line chart of {title.lower()} in {unit} in every second of {name}. {span}",
        height=200,
    )
