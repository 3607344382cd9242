"""Compare: configurations side by side."""

import streamlit as st

from tritune import ui

ui.frame("Compare", "Configurations side by side: throughput, latency, and where the server's time goes.")

with ui.guard():
    st.markdown("…")
