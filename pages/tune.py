"""Tune: change the configuration, reload, verify."""

import streamlit as st

from tritune import ui
from tritune.plan import JobKind
from tritune.ui import knobs_view, model_view, tune_view

ui.frame("Tune", "Change the configuration, reload the model, and see what Triton really serves.")

with ui.guard():
    model = model_view.choose()
    tune_view.need_local(model)
    written = tune_view.written(model)
    served = ui.served_configuration(model)
    busy = ui.active() is not None

    left, right = st.columns(2, gap="medium")
    with left.container(border=True, height="stretch"):
        st.subheader("Configuration")
        key = tune_view.key(model)
        batching = st.toggle("Dynamic batching", written.dynamic_batching, key=f"batching_{key}")
        sizes = st.text_input(
            "Preferred batch sizes",
            tune_view.sizes_text(written),
            key=f"sizes_{key}",
            live=True,
            disabled=not batching,
            placeholder="none",
            help="Such as 4, 8. Most ONNX models do best with none: without a delay Triton stops at a preferred size.",
        )
        delay_us = st.number_input(
            "Max queue delay, µs",
            value=written.max_queue_delay_microseconds,
            step=100,
            key=f"delay_{key}",
            disabled=not batching,
            help="How long the batcher may wait for company. Every lone request waits this long.",
        )
        max_batch = st.number_input(
            "Max batch size",
            value=written.max_batch_size,
            key=f"max_{key}",
            help="0: the model has no batch dimension.",
        )
        instances = st.number_input(
            "Instances",
            value=written.instance_count,
            step=1,
            key=f"instances_{key}",
            placeholder="Triton's default",
            help="How many copies of the model run side by side. Empty keeps Triton's default.",
        )
    further = knobs_view.further(model, written, key, batching=batching)
    with right.container(border=True, height="stretch"):
        st.subheader("Written and served")
        tune_view.compare(written, served)
        asked = tune_view.preview(
            model,
            batching=batching,
            sizes=sizes,
            delay_us=delay_us,
            max_batch=max_batch,
            instances=instances,
            further=further,
        )

    ready = ui.is_ready()
    gently = st.toggle(
        "Without a stall",
        key="without_stall",
        help="The new configuration is loaded and warmed up beside the old one, which answers until then. It takes the "
        "memory of both meanwhile.",
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button(
            "Apply and reload",
            type="primary",
            icon=":material/published_with_changes:",
            disabled=busy or not ready or asked is None or (asked.is_empty and not tune_view.needs_reload(model)),
        ):
            ui.submit(JobKind.TUNE, {"model": model, "change": asked.to_dict(), "without_stall": gently})
        if st.button(
            "Undo the last tune", icon=":material/undo:", disabled=busy or not ready or not tune_view.can_undo(model)
        ):
            ui.submit(JobKind.TUNE, {"model": model, "change": {}, "undo": True, "without_stall": gently})
        if asked is not None and asked.is_empty:
            st.caption("Change a value to see what would be written.", width="content")
    if not ready:
        ui.empty("No Triton is running, so nothing can be reloaded.", "pages/server.py", "Start a server")

    tune_view.last_result(model)
    st.page_link("pages/load_test.py", label="Measure this configuration", icon=":material/speed:")
