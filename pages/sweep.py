"""Sweep: many configurations compared in interleaved rounds."""

import streamlit as st

from tritune import ui
from tritune.plan import JobKind
from tritune.ui import model_view, study_view, sweep_live, sweep_view

ui.frame("Sweep", "Many configurations, measured in interleaved rounds, so that equal ones come out equal.")

with ui.guard():
    job = study_view.asked(study_view.jobs())
    if job is None and (job := ui.active(JobKind.SWEEP)) is not None:
        st.query_params["study"] = f"s{job.id}"
    if job is not None:
        sweep_live.show(job)
        st.stop()

    model = model_view.choose()
    rest = sweep_view.begin(model)
    ready = ui.is_ready()
    if not ready:
        ui.empty("No Triton is running, so there is nothing to measure.", "pages/server.py", "Start a server")
    sweep_view.sources(model)
    plan = sweep_view.plan(sweep_view.form(), rest)
    payload = sweep_view.preview(plan) if plan is not None and ready else None
    sweep_view.start(plan, payload)
    sweep_live.recent()
