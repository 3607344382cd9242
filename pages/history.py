"""History: every study and load test, with notes and labels."""

import streamlit as st

from tritune import ui
from tritune.ui import history_view, import_view, results_view

ui.frame(
    "History", "Every study and load test, also those that failed; notes and labels can be changed, numbers cannot."
)

with ui.guard():
    import_view.button()
    if history_view.wants_studies():
        history_view.studies()
        st.stop()
    trials = ui.store().trials()
    if not trials:
        ui.empty("No load test has been run yet.", "pages/load_test.py", "Run the first load test")
        st.stop()

    with st.container(horizontal=True, vertical_alignment="bottom"):
        text = st.text_input(
            "Search",
            type="search",
            live=True,
            key="q",
            bind="query-params",
            placeholder="trial, configuration, label, note",
        )
        models = sorted({trial.model for trial in trials})
        model = st.selectbox("Model", models, index=None, placeholder="all", key="of", bind="query-params")
        study = history_view.one_study(trials)
        states = sorted({str(trial.state) for trial in trials})
        state = st.selectbox("State", states, index=None, placeholder="all", key="state", bind="query-params")
    shown = history_view.matching(trials, text, model, state, study)
    if not shown:
        st.markdown(f"None of the {len(trials)} load tests matches. Clear the search to see them all.")
        st.stop()

    event = st.dataframe(
        history_view.table(shown),
        hide_index=True,
        column_config=results_view.COLUMNS,
        placeholder="–",
        on_select="rerun",
        selection_mode="multi-row",
        key=history_view.rows_key(shown),
        alt="All load tests, newest first",
    )
    chosen = [shown[row] for row in event.selection.rows if row < len(shown)]
    with st.container(horizontal=True, vertical_alignment="center"):
        measured = [trial.trial_id for trial in chosen if trial.measurement]
        if st.button("Compare", type="primary", icon=":material/bar_chart:", disabled=not measured):
            st.switch_page("pages/compare.py", query_params={"trials": measured})
        if st.button("Delete", icon=":material/delete:", disabled=not chosen):
            history_view.confirm_delete(chosen)
        words = (
            f"{len(shown)} of {len(trials)} load tests" if len(shown) != len(trials) else f"{len(trials)} load tests"
        )
        st.caption(f"{words}. Tick rows to compare, change or delete them.", width="content")
    if len(chosen) == 1:
        history_view.one(chosen[0])
