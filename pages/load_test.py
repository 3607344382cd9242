"""Load test: measure the configuration that is served now."""

import streamlit as st

from tritune import ui
from tritune.plan import Arrivals, Driver, JobKind, Protocol
from tritune.ui import load_view, model_view, results_view

ui.frame("Load test", "Send requests to the configuration that is served now, and measure what comes back.")

with ui.guard():
    model = model_view.choose()
    running = ui.active(JobKind.LOAD_TEST)
    if running is not None:
        load_view.live(running)
        st.stop()
    ready = ui.is_ready()
    if not ready:
        ui.empty("No Triton is running, so there is nothing to measure.", "pages/server.py", "Start a server")
    load_view.measured_now(model)
    load_view.ended_badly()

    with st.container(border=True):
        kept = {"persist_state": "session"}
        with st.container(horizontal=True, gap="medium"):
            loop = st.segmented_control(
                "Load",
                [load_view.CLOSED, load_view.OPEN],
                default=load_view.CLOSED,
                required=True,
                key="load_loop",
                help="Closed: each client waits for its answer. Open: requests come whether or not answers do.",
                **kept,
            )
            driver = st.segmented_control(
                "Generator",
                list(Driver),
                default=Driver.LOCUST,
                required=True,
                key="load_driver",
                format_func={Driver.LOCUST: "Locust", Driver.PERF_ANALYZER: "perf_analyzer"}.get,
                **kept,
            )
            protocol = st.segmented_control(
                "Protocol",
                list(Protocol),
                default=Protocol.HTTP,
                required=True,
                key="load_protocol",
                format_func={Protocol.HTTP: "HTTP", Protocol.GRPC: "gRPC"}.get,
                **kept,
            )
        first, *second, third, fourth = st.columns(3 if loop == load_view.CLOSED else 4)
        concurrency, rate, arrivals = None, None, Arrivals.CONSTANT
        if loop == load_view.CLOSED:
            concurrency = first.number_input("Clients", value=8, key="load_clients", **kept)
        else:
            rate = first.number_input("Requests per second", value=100.0, format="%g", key="load_rate", **kept)
            arrivals = second[0].selectbox(
                "Arrivals", [Arrivals.CONSTANT, Arrivals.POISSON], key="load_arrivals", **kept
            )
        duration = third.number_input("Measure for, s", value=10.0, step=1.0, format="%g", key="load_duration", **kept)
        warmup = fourth.number_input("Warm up for, s", value=2.0, step=1.0, format="%g", key="load_warmup", **kept)
        with st.expander("Batch, timeout, seed, input shapes"):
            left, middle, right, last = st.columns(4)
            batch = left.number_input("Samples in a request", value=1, key="load_batch", **kept)
            timeout = middle.number_input("Timeout, s", value=10.0, format="%g", key="load_timeout", **kept)
            seed = right.number_input("Seed", value=0, key="load_seed", **kept)
            workers = last.number_input("Generator processes", value=1, key="load_workers", **kept)
            shapes = st.text_input("Shapes of free dimensions", placeholder="INPUT:12,8", key="load_shapes", **kept)
            ranges = st.text_input("Ranges of whole numbers", placeholder="INPUT:0:99", key="load_ranges", **kept)
        left, right = st.columns(2)
        labels = left.text_input("Labels", placeholder="machine=laptop, run=1", key="load_labels", **kept)
        note = right.text_input("Note", key="load_note")
        plan = load_view.plan(
            model=model,
            driver=driver,
            protocol=protocol,
            concurrency=concurrency,
            rate_rps=rate,
            arrivals=arrivals,
            batch=batch,
            duration_s=duration,
            warmup_s=warmup,
            workers=workers,
            seed=seed,
            timeout_s=timeout,
            shapes=shapes,
            int_ranges=ranges,
        )
        if load_view.start_button(plan, labels, ready=ready and ui.active() is None):
            load_view.submit(plan, labels, note)

    results_view.latest(model)
