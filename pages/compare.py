"""Compare: configurations side by side, within a study or of single load tests."""

import streamlit as st

from tritune import analysis, charts, frames, ui
from tritune.ui import compare_view, study_actions, study_sections, study_view

ui.frame("Compare", "Configurations side by side: throughput, latency, and where the server's time goes.")

with ui.guard():
    finished = ui.finished_trials()
    alone = compare_view.offered(finished)
    job = study_view.choose(alone[0] if alone else None)
    if job is not None:
        study = study_view.read(job)
        study_view.heading(study)
        if not job.state.is_final:
            st.page_link(
                "pages/sweep.py",
                label="Watch it run",
                icon=":material/play_circle:",
                query_params={"study": f"s{job.id}"},
            )
        if not study["cells"]:
            ui.empty("No load test of this study has finished yet.", "pages/sweep.py", "See the study")
            st.stop()
        study_view.best(study)
        load, shown = study_view.filters(study)
        study_actions.configurations(study, load)
        study_sections.verdicts(study, load)
        study_sections.overview(study, load, shown)
        study_sections.knobs(study, load)
        study_sections.time_and_batches(study, load, shown)
        study_sections.batching(study, load)
        study_sections.distribution(study, load, shown)
        study_sections.drift(study)
        st.stop()

    if len(alone) < 2:
        missing = (
            "No load test has finished yet." if not alone else "Only one load test has finished; two make a comparison."
        )
        ui.empty(missing, "pages/load_test.py", "Run a load test")
        st.stop()

    chosen, baseline = compare_view.choose(alone)
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
