"""Server: start, stop or attach to a Triton; its endpoints, models and log."""

import streamlit as st

from tritune import ui
from tritune.plan import JobKind
from tritune.servers import ServerKind, ServerState
from tritune.ui import server_view, wording

ui.frame("Server", "Where Triton runs, what it serves and what it says.")

with ui.guard():
    status = ui.server_status()
    busy = ui.active(JobKind.SETUP, JobKind.SERVER_START) is not None
    stopped = status.state in (ServerState.STOPPED, ServerState.FAILED)
    if status.state is ServerState.FAILED and status.reason:
        st.error(wording.plain(status.reason), title="The server is not running", icon=":material/error:")
    for kind in (JobKind.SETUP, JobKind.SERVER_START):
        if stopped:
            ui.outcome(ui.last(kind))

    if stopped:
        left, right = st.columns(2)
        with left.container(border=True, height="stretch"):
            server_view.start_form(busy=busy)
        with right.container(border=True, height="stretch"):
            server_view.attach_form(busy=busy)
    else:
        server_view.endpoints(status)
        word = "Let go of the server" if status.kind is ServerKind.REMOTE else "Stop Triton"
        if st.button(word, icon=":material/stop_circle:", disabled=busy or ui.active() is not None):
            server_view.stop()

    if ui.is_ready():
        st.subheader("Models on the server")
        server_view.models(control=status.control is not False)
        st.page_link("pages/load_test.py", label="Run a load test", icon=":material/speed:")

    st.subheader("Log")
    server_view.log(follow=status.state is not ServerState.STOPPED)
