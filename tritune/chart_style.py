"""What charts share: colours, shapes and dashes, rows with names above the marks, legends, title and size.

Belongs here: how charts look. Never: what a chart shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt

if TYPE_CHECKING:
    import pandas as pd

    Chart = alt.Chart | alt.LayerChart

PALETTE = ("#0078B4", "#D25A00", "#1EA5A5", "#964B78", "#3C96FF", "#C30F3C", "#004BFF", "#FF5A78")
"""Colours of configurations: contrast of 3 to white and to the dark theme's background, and apart from each other in
normal, deuteranopic and protanopic vision (tests/unit/test_charts.py measures both)."""
PART_COLORS = ("#C3875A", "#6996D2", "#006996", "#875A00")
"""Colours of Triton's times, which no configuration has."""
JUDGED = {
    "held": ("holds", PART_COLORS[2], "circle"),
    "missed": ("misses the limit", PART_COLORS[0], "square"),
    "undecided": ("not decided", PART_COLORS[1], "triangle-up"),
    "generator": ("generator was the limit", PART_COLORS[3], "diamond"),
}
"""Words, colour and shape of each judgement of a probed rate."""
NO_COLOR = "#808080"
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")
DASHES: tuple[list[int], ...] = ([1, 0], [8, 4], [2, 2], [8, 3, 2, 3], [14, 4], [4, 4], [14, 3, 2, 3, 2, 3], [1, 4])

ROW_PX = 52
BAR_PX = 12
BAR_DOWN_PX = 13
_TEXT_DOWN_PX = -3
_NAME_DOWN_PX = -16
"""From a row's middle to its bar, to the line of text above it, and to the name above that on a narrow screen."""
NARROW = "width < 520"
_VALUE_PX = 190
_LONG = 32


def colors(keys: Sequence[str]) -> dict[str, str]:
    """The colour of each configuration by its place in `analysis.configuration_keys` of the whole installation."""
    return {key: PALETTE[place % len(PALETTE)] for place, key in enumerate(keys)}


def finish(chart: Any, title: str, alt_text: str, *, height: int) -> Chart:
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


def color_by_trial(table: pd.DataFrame, colors: Mapping[str, str], *, legend: bool = False) -> alt.Color:
    """Colour by trial, each trial in its configuration's colour."""
    trials = table.drop_duplicates("trial_id")
    shown = [colors.get(key, NO_COLOR) for key in trials["key"]]
    scale = alt.Scale(domain=list(trials["trial_id"]), range=shown)
    return alt.Color("trial_id:N", title=None, sort=None, scale=scale, legend=_legend(trials) if legend else None)


def by_trial(
    channel: str, table: pd.DataFrame, choices: Sequence[Any], *, among: pd.DataFrame, legend: bool = True
) -> Any:
    """A shape or a dash for each trial of the table, by its place among all trials of the page."""
    trials = table.drop_duplicates("trial_id")
    place = {trial_id: number for number, trial_id in enumerate(among["trial_id"])}
    shown = [choices[place[trial_id] % len(choices)] for trial_id in trials["trial_id"]]
    scale = alt.Scale(domain=list(trials["trial_id"]), range=shown)
    channels = {"shape": alt.Shape, "strokeDash": alt.StrokeDash}
    legends = _legend(trials) if legend else None
    return channels[channel]("trial_id:N", title=None, sort=None, scale=scale, legend=legends)


def _legend(trials: pd.DataFrame) -> alt.Legend:
    """One name below another under the chart; a long name takes two lines, which fit a phone."""
    broken = {row.trial_id: _broken(row.label) for row in trials.itertuples(index=False)}
    return alt.Legend(
        orient="bottom",
        direction="vertical",
        columns=1,
        labelExpr=f"split({lookup(broken, 'datum.label')}, '\\n')",
        labelLimit=320,
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


def names(trials: pd.DataFrame) -> alt.Y:
    """The rows of a bar chart, named above the bar from the left."""
    named = dict(zip(trials["trial_id"], trials["label"], strict=True))
    return rows(trials, row_axis(named, "datum.value", right=False))


def values(trials: pd.DataFrame, texts: Sequence[str]) -> alt.Y:
    """The same rows, with a value above the bar from the right."""
    named = dict(zip(trials["trial_id"], texts, strict=True))
    return rows(trials, row_axis(named, "datum.value", right=True))


def rows(trials: pd.DataFrame, axis: alt.Axis | None) -> alt.Y:
    return alt.Y("trial_id:N", title=None, sort=list(trials["trial_id"]), axis=axis)


def row_axis(named: Mapping[str, str], value: str, *, right: bool) -> alt.Axis:
    """An axis whose labels lie inside the plot, above the marks: names from the left, values from the right. Where both
    do not fit into a line, names move up into their own."""
    narrow_offset = alt.ExprRef(f"{NARROW} ? {_NAME_DOWN_PX} : {_TEXT_DOWN_PX}")
    return alt.Axis(
        orient="right" if right else "left",
        labelAlign="right" if right else "left",
        labelPadding=0,
        labelOffset=_TEXT_DOWN_PX if right else narrow_offset,
        labelExpr=lookup(named, value),
        labelLimit=alt.ExprRef("width" if right else f"{NARROW} ? width : width - {_VALUE_PX}"),
        labelFontWeight="bold" if right else "normal",
        domain=False,
        ticks=False,
        grid=False,
        zindex=1,
    )


def lookup(named: Mapping[str, str], value: str) -> str:
    """A Vega expression that turns an id into its text."""
    return f"({json.dumps(dict(named), ensure_ascii=False)})[{value}]"
