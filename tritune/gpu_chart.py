"""What a trial's GPUs did over its window, as charts; only where Triton's metrics told it.

Belongs here: one function a chart, from the `series` of triton_statistics.gpu_document. Never: reading metrics, st.*.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import altair as alt

from tritune.analysis import significant
from tritune.chart_style import PALETTE, finish

if TYPE_CHECKING:
    import pandas as pd

    from tritune.chart_style import Chart


def gpu_utilization(series: pd.DataFrame) -> Chart:
    """Utilisation of each GPU in percent over the window; `series` has at_s, uuid, utilization (0 to 1)."""
    shown = series.dropna(subset=["utilization"]).assign(value=lambda rows: rows["utilization"] * 100)
    return _lines(shown, "GPU utilisation", "%", alt.Scale(domain=[0, 100]))


def gpu_memory(series: pd.DataFrame) -> Chart:
    """Memory in use on each GPU over the window in GB; `series` has at_s, uuid, memory_used_bytes."""
    shown = series.dropna(subset=["memory_used_bytes"]).assign(value=lambda rows: rows["memory_used_bytes"] / 1e9)
    return _lines(shown, "GPU memory in use", "GB", alt.Scale(zero=True))


def _lines(shown: pd.DataFrame, title: str, unit: str, scale: alt.Scale) -> Chart:
    gpus = sorted(set(shown["uuid"]))
    colors = [PALETTE[index % len(PALETTE)] for index in range(len(gpus))]
    chart = (
        alt.Chart(shown)
        .mark_line(strokeWidth=2, point=True)
        .encode(
            x=alt.X("at_s:Q", title="Time in the window, s", scale=alt.Scale(domainMin=0, nice=False)),
            y=alt.Y("value:Q", title=None, scale=scale, axis=alt.Axis(tickCount=4)),
            color=alt.Color(
                "uuid:N",
                title="GPU",
                scale=alt.Scale(domain=gpus, range=colors),
                legend=alt.Legend() if len(gpus) > 1 else None,
            ),
            tooltip=[
                alt.Tooltip("uuid:N", title="GPU"),
                alt.Tooltip("at_s:Q", title="Time, s", format=",.1f"),
                alt.Tooltip("value:Q", title=f"{title}, {unit}", format=",.3~r"),
            ],
        )
    )
    means = ", ".join(
        f"{gpu} {significant(float(rows['value'].mean()))} {unit} on average" for gpu, rows in shown.groupby("uuid")
    )
    words = f"Line chart of {title.replace('GPU', 'the GPU', 1)} in {unit} over the window. {means or 'Not available'}."
    return finish(chart, f"{title}, {unit}", words, height=180)
