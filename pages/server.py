"""Server: start, stop or attach to a Triton; its endpoints, models and log."""

import streamlit as st

from tritune import ui, ui_server, ui_words
from tritune.plan import JobKind
from tritune.servers import ServerKind, ServerState

ui.frame("Server", "Where Triton runs, what it serves and what it says.")

with ui.guard():
    status = ui.server_status()
    busy = ui.active(JobKind.SETUP, JobKind.SERVER_START) is not None
    stopped = status.state in (ServerState.STOPPED, ServerState.FAILED)
    if status.state is ServerState.FAILED and status.reason:
        st.error(ui_words.plain(status.reason), title="The server is not running", icon=":material/error:")
    for kind in (JobKind.SETUP, JobKind.SERVER_START):
        if stopped:
            ui.outcome(ui.last(kind))

    if stopped:
        left, right = st.columns(2)
        with left.container(border=True, height="stretch"):
            ui_server.start_form(busy=busy)
        with right.container(border=True, height="stretch"):
            ui_server.attach_form(busy=busy)
    else:
        ui_server.endpoints(status)
        word = "Let go of the server" if status.kind is ServerKind.REMOTE else "Stop Triton"
        if st.button(word, icon=":material/stop_circle:", disabled=busy or ui.active() is not None):
            ui_server.stop()

    if ui.is_ready():
        st.subheader("Models on the server")
        ui_server.models(control=status.control is not False)
        st.page_link("pages/load_test.py", label="Run a load test", icon=":material/speed:")

    st.subheader("Log")
    ui_server.log(follow=status.state is not ServerState.STOPPED)
