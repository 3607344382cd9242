"""Home: what is running, and what to do next."""

import streamlit as st

from tritune import ui, ui_home, ui_results
from tritune.plan import JobKind

ui.frame("Home", "From an ONNX model to a tuned, measured, compared configuration on Triton.")

with ui.guard():
    steps = ui_home.steps()
    following = ui_home.following(steps)
    busy = ui.active() is not None
    for kind in (JobKind.SETUP, JobKind.MODEL_BUILD, JobKind.SERVER_START):
        if following.kind is kind:
            ui.outcome(ui.last(kind))
    for number, step in enumerate(steps, start=1):
        ui_home.draw(number, step, following, busy=busy)
    if busy:
        st.caption("One job is running; the next step opens when it is done.")
    trials = ui.finished_trials()
    if trials:
        st.subheader("Latest load tests")
        ui_results.trial_table(trials[:5])
        st.page_link("pages/history.py", label="All load tests", icon=":material/history:")
