"""Home: what is running, and what to do next."""

import streamlit as st

from tritune import ui
from tritune.plan import JobKind
from tritune.ui import home_view, results_view

ui.frame("Home", "From an ONNX model to a tuned, measured, compared configuration on Triton.")

with ui.guard():
    steps = home_view.steps()
    following = home_view.following(steps)
    busy = ui.active() is not None
    for kind in (JobKind.SETUP, JobKind.MODEL_BUILD, JobKind.SERVER_START):
        if following.kind is kind:
            ui.outcome(ui.last(kind))
    for number, step in enumerate(steps, start=1):
        home_view.draw(number, step, following, busy=busy)
    if busy:
        st.caption("One job is running; the next step opens when it is done.")
    trials = ui.finished_trials()
    if trials:
        st.subheader("Latest load tests")
        results_view.trial_table(trials[:5])
        st.page_link("pages/history.py", label="All load tests", icon=":material/history:")
