"""Load test: measure the configuration that is served now."""

import streamlit as st

from tritune import ui
from tritune.load_plan import Arrivals, Driver, Protocol
from tritune.plan import JobKind
from tritune.ui import load_view, model_view, rate_view, results_view

ui.frame("Load test", "Send requests to the configuration that is served now, and measure what comes back.")

with ui.guard():
    model = model_view.choose()
    running = ui.active(JobKind.LOAD_TEST)
    if running is not None:
        load_view.live(running)
        st.stop()
    if (searching := ui.active(JobKind.FIND_RATE)) is not None:
        rate_view.live(searching)
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
                [load_view.CLOSED, load_view.OPEN, rate_view.FIND],
                default=load_view.CLOSED,
                required=True,
                key="load_loop",
                help=load_view.LOOP_HELP,
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
        first, *second, third, fourth, fifth = st.columns(4 if loop == load_view.CLOSED else 5)
        concurrency, rate, arrivals, budget_min = None, None, Arrivals.CONSTANT, 0.0
        if loop == load_view.CLOSED:
            concurrency = first.number_input("Clients", value=8, key="load_clients", **kept)
        elif loop == load_view.OPEN:
            rate = first.number_input("Requests per second", value=100.0, format="%g", key="load_rate", **kept)
        else:
            concurrency = rate_view.OPENING_CLIENTS
            budget_min = fifth.number_input("At most, min", value=10.0, format="%g", key="load_budget", **kept)
        if second:
            arrivals = second[0].selectbox(
                "Arrivals", [Arrivals.CONSTANT, Arrivals.POISSON], key="load_arrivals", **kept
            )
        duration = third.number_input("Measure for, s", value=10.0, step=1.0, format="%g", key="load_duration", **kept)
        warmup = fourth.number_input("Warm up for, s", value=2.0, step=1.0, format="%g", key="load_warmup", **kept)
        searched = loop == rate_view.FIND
        limit = rate_view.limit_input(first if searched else fifth, needed=searched, **kept)
        details = load_view.details(is_open=loop == load_view.OPEN, **kept)
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
            duration_s=duration,
            warmup_s=warmup,
            p99_limit_ms=limit,
            **details,
        )
        ready = ready and ui.active() is None
        if searched:
            rate_view.start(plan, budget_min, labels, note, ready=ready)
        elif load_view.start_button(plan, labels, ready=ready):
            load_view.submit(plan, labels, note)

    if not rate_view.latest(model):
        results_view.latest(model)
