"""Try it: one request, its answer, and the code that sends it."""

import streamlit as st

from tritune import ui
from tritune.plan import JobKind
from tritune.ui import model_view, try_view

ui.frame("Try it", "Send one request to the running model, and copy the code that sends it.")

with ui.guard():
    model = model_view.choose()
    if not ui.is_ready():
        ui.empty("No Triton is running, so nothing answers.", "pages/server.py", "Start a server")
        st.stop()
    if ui.served_configuration(model) is None and not ui.triton().model_ready(model):
        ui.empty(f"{model} is not loaded on the server.", "pages/server.py", "Load it on the server page")
        st.stop()
    if ui.active(JobKind.LOAD_TEST, JobKind.FIND_RATE) is not None:
        st.info("A load test is running. Requests from here would be counted as other traffic; wait until it is done.")
        st.stop()

    signature = ui.triton().signature(model)
    if try_view.takes_digits(signature):
        left, right = st.columns([1, 2], gap="medium")
        with left:
            pixels = try_view.choose_picture()
            try_view.show_pixels(pixels)
        payload = try_view.digit_payload(signature, pixels)
        with right:
            try_view.probabilities(try_view.ask(model, payload))
    else:
        shapes = try_view.choose_shapes(signature)
        payload = try_view.example_payload(model, signature, shapes)
        try_view.outputs(try_view.ask(model, payload))

    st.subheader("The same request from your own program")
    try_view.code(model, signature, payload)
