"""Compare: configurations side by side."""

import streamlit as st

from tritune import analysis, charts, frames, ui
from tritune.ui import compare_view

ui.frame("Compare", "Configurations side by side: throughput, latency, and where the server's time goes.")

with ui.guard():
    finished = ui.finished_trials()
    if len(finished) < 2:
        missing = (
            "No load test has finished yet."
            if not finished
            else "Only one load test has finished; two make a comparison."
        )
        ui.empty(missing, "pages/load_test.py", "Run a load test")
        st.stop()

    chosen, baseline = compare_view.choose(finished)
    if len(chosen) < 2:
        st.markdown("Choose at least two load tests above.")
        st.stop()
    comparison = analysis.compare(chosen, baseline)
    compare_view.doubts(comparison)
    compare_view.table(comparison)

    colors = charts.colors(analysis.configuration_keys(finished))
    headline = frames.headline_frame(chosen)
    curves = frames.ecdf_frame(chosen, compare_view.samples(chosen))
    times, sizes = frames.server_time_frame(chosen), frames.batch_size_frame(chosen)
    compare_view.pair(charts.throughput_bars(headline, colors), charts.p99_bars(headline, colors))
    compare_view.pair(charts.tradeoff(headline, colors), charts.latency_curves(curves, headline, colors))
    compare_view.pair(charts.server_time_bars(times), charts.batch_size_histogram(sizes, colors))
