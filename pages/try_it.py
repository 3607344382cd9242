"""Try it: one request, its answer, and the code that sends it."""

import streamlit as st

from tritune import ui, ui_model, ui_try
from tritune.plan import JobKind

ui.frame("Try it", "Send one request to the running model, and copy the code that sends it.")

with ui.guard():
    model = ui_model.choose()
    if not ui.is_ready():
        ui.empty("No Triton is running, so nothing answers.", "pages/server.py", "Start a server")
        st.stop()
    if ui.served_configuration(model) is None and not ui.triton().model_ready(model):
        ui.empty(f"{model} is not loaded on the server.", "pages/server.py", "Load it on the server page")
        st.stop()
    if ui.active(JobKind.LOAD_TEST) is not None:
        st.info("A load test is running. Requests from here would be counted as other traffic; wait until it is done.")
        st.stop()

    signature = ui.triton().signature(model)
    if ui_try.takes_digits(signature):
        left, right = st.columns([1, 2], gap="medium")
        with left:
            pixels = ui_try.choose_picture()
            ui_try.show_pixels(pixels)
        payload = ui_try.digit_payload(signature, pixels)
        with right:
            ui_try.probabilities(ui_try.ask(model, payload))
    else:
        shapes = ui_try.choose_shapes(signature)
        payload = ui_try.example_payload(model, signature, shapes)
        ui_try.outputs(ui_try.ask(model, payload))

    st.subheader("The same request from your own program")
    ui_try.code(model, signature, payload)
