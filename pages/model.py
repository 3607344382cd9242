"""Model: build MNIST or add an ONNX file, and see what Triton will find."""

import streamlit as st

from tritune import ui
from tritune.plan import JobKind
from tritune.ui import model_view, wording

ui.frame("Model", "Build the MNIST network or add an ONNX file; every build becomes the next version.")

with ui.guard():
    busy = ui.active(JobKind.MODEL_BUILD, JobKind.MODEL_ADD) is not None
    left, right = st.columns(2)
    with left.container(border=True, height="stretch"):
        st.subheader("Build MNIST")
        with st.container(horizontal=True, vertical_alignment="bottom"):
            opset = st.number_input(
                "ONNX opset",
                12,
                23,
                17,
                width=140,
                help="17 runs on every Triton since 22.10; the ONNX Runtime limits it.",
            )
            simplify = st.checkbox("Simplify the graph", help="Folds and removes nodes; the answers stay the same.")
        retrain = st.checkbox("Train again on real MNIST", help="Minutes of CPU; needs the data set once.")
        first = st.button("Build the MNIST model", type="primary", disabled=busy)
    if first:
        ui.submit(JobKind.MODEL_BUILD, {"opset": int(opset), "simplify": simplify, "retrain": retrain})
    with right.container(border=True, height="stretch"):
        st.subheader("Add an ONNX file")
        upload = st.file_uploader("ONNX file, or a .zip with its weights", type=["onnx", "zip"])
        path = st.text_input("Or a path on this machine, for larger ones", placeholder="/models/large.onnx")
        name = st.text_input(
            "Name on the server",
            model_view.suggested_name(upload.name if upload else path) if upload or path.strip() else "",
            placeholder="letters, digits, _ . -",
        )
        add = st.button("Add the model", disabled=busy or not (upload or path.strip()))
        if add:
            file = model_view.keep_upload(upload) if upload else model_view.on_this_machine(path)
            ui.submit(JobKind.MODEL_ADD, {"path": str(file), "name": name.strip() or None})
    model_view.outcome()

    st.subheader("Published models")
    entries = ui.repository().models()
    if not entries:
        st.markdown("Nothing is published yet. Build the MNIST model above: it takes a few seconds.")
        st.stop()
    model_view.table(entries)
    model_view.strays()

    st.subheader("One model in detail")
    model = model_view.choose()
    if model in {entry.name for entry in entries}:
        model_view.details(ui.repository().entry(model))
    else:
        st.markdown(f"{wording.plain(model)} is served elsewhere and is not in this repository.")
    if ui.is_ready():
        st.page_link("pages/tune.py", label="Tune this model", icon=":material/tune:")
    else:
        ui.empty("No Triton is running, so nothing can be loaded.", "pages/server.py", "Start a server")
