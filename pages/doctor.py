"""Doctor: what is wrong here or in a log, why, and the one next step."""

import streamlit as st

from tritune import ui
from tritune.ui import doctor_view

ui.frame("Doctor", "What is wrong, what it means, and the one next step; nothing without what shows it.")

with ui.guard():
    doctor_view.last_action()
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Check again", type="primary", icon=":material/stethoscope:"):
            doctor_view.forget()
        summary = st.container(width="content")
    report = doctor_view.look()
    with summary:
        doctor_view.summary(report)
    doctor_view.findings(report.findings, key="look")
    doctor_view.undoable()
    doctor_view.in_order(report)

    st.subheader("A log")
    source = st.segmented_control(
        "Where the log is",
        doctor_view.SOURCES,
        default=doctor_view.PASTED,
        required=True,
        key="log_source",
        label_visibility="collapsed",
    )
    if source == doctor_view.PASTED:
        doctor_view.pasted()
    elif source == doctor_view.UPLOADED:
        doctor_view.uploaded()
    else:
        doctor_view.own_log()
