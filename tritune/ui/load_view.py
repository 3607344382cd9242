"""The load test page's parts: from widgets to a LoadPlan, and a running test live.

Belongs here: reading widgets and drawing live figures. Never: sending a request or computing a percentile.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import streamlit as st

from tritune import charts, frames, jobs, ui
from tritune.arrival_plan import parse_intervals, parse_stages
from tritune.errors import InputError
from tritune.load_plan import Arrivals, Compression, LoadPlan, SharedMemory, Wire, describe_load
from tritune.plan import JobKind, JobState
from tritune.shape_mix import parse_ranges, parse_shapes
from tritune.store import Job
from tritune.ui import model_view, wording

CLOSED = "Clients"
OPEN = "Rate"
LOOP_HELP = (
    "Clients: a closed loop, in which each one waits for its answer. Rate: an open loop, in which requests come "
    "whether or not answers do. The search tries rates until it has the highest one whose P99 stays under the limit."
)
INPUT_FILES = ("json", "npy", "npz", "png", "jpg", "jpeg", "webp", "bmp")
HISTORY_S = 600


def measured_now(model: str) -> None:
    """Say which configuration a load test would measure."""
    served = ui.served_configuration(model)
    if served is not None:
        st.markdown(f"Measures **{wording.plain(model)}** as it is served now: {wording.plain(served.describe())}.")
    elif ui.is_ready():
        st.markdown(f"**{wording.plain(model)}** is not loaded; the load test loads it first.")


def details(*, is_open: bool, **kept: Any) -> dict[str, Any]:
    """What few load tests change, folded away: values for `plan`."""
    with st.expander("Advanced: batch, input data, wire, stages, replay"):
        left, middle, right, last = st.columns(4)
        values = {
            "batch": left.number_input("Samples in a request", value=1, key="load_batch", **kept),
            "timeout_s": middle.number_input("Timeout, s", value=10.0, format="%g", key="load_timeout", **kept),
            "seed": right.number_input("Seed", value=0, key="load_seed", **kept),
            "workers": last.number_input("Generator processes", value=1, key="load_workers", **kept),
        }
        return values | _inputs(**kept) | _wire(**kept) | (_times(**kept) if is_open else {})


def _inputs(**kept: Any) -> dict[str, Any]:
    """What the requests hold."""
    left, right = st.columns(2)
    shapes = left.text_input(
        "Shapes of free dimensions",
        placeholder="INPUT:12,8",
        key="load_shapes",
        help="Without the batch. Several for one input are mixed: `IDS:12@3 IDS:128` sends 12 in three of four "
        "requests; of two inputs the first ones go together, the second ones, and so on.",
        **kept,
    )
    ranges = right.text_input("Ranges of whole numbers", placeholder="INPUT:0:99", key="load_ranges", **kept)
    upload = left.file_uploader(
        "Input data",
        type=[*INPUT_FILES],
        key="load_data",
        help="perf_analyzer's JSON, an array (.npy), one array an input (.npz), or a picture. The values of requests "
        "are made up where there is none.",
    )
    path = right.text_input(
        "Or a file or folder on this machine", placeholder="/data/pictures", key="load_data_path", **kept
    )
    return {"shapes": shapes, "int_ranges": ranges, "input_data": model_view.keep_file(upload) if upload else path}


def _wire(**kept: Any) -> dict[str, Any]:
    """How a request travels, beyond its protocol."""
    places = st.columns(4)
    return {
        "wire": places[0].selectbox("Tensors as", list(Wire), key="load_wire", **kept),
        "shared_memory": places[1].selectbox("Shared memory", list(SharedMemory), key="load_shared_memory", **kept),
        "compression": places[2].selectbox("Compression (HTTP)", list(Compression), key="load_compression", **kept),
        "max_connections": places[3].number_input("Connections at most", value=512, key="load_connections", **kept),
        "check_share": places[0].number_input(
            "Share of answers to check",
            value=0.0,
            step=0.01,
            format="%g",
            key="load_check",
            help="Names, types, shapes and finite values of what comes back; 0.01 is one in a hundred.",
            **kept,
        ),
        "grpc_stream": places[1].checkbox("Stream (gRPC)", key="load_stream", **kept),
        "raw": places[2].checkbox("Keep every request", value=True, key="load_raw", **kept),
    }


def _times(**kept: Any) -> dict[str, Any]:
    """When the requests of an open loop come, where it is not at one rate."""
    left, right = st.columns(2)
    stages = left.text_input(
        "Stages instead of one rate",
        placeholder="10s:100,5s:100-400",
        key="load_stages",
        help="Length and rate, or a rate that rises or falls; the stages are then what is measured.",
        **kept,
    )
    upload = right.file_uploader(
        "Intervals to replay",
        type=["txt", "csv"],
        key="load_intervals",
        help="One whole number of microseconds a line, as perf_analyzer's --request-intervals; repeated to the end.",
    )
    return {"stages": stages, "intervals": upload}


def plan(
    *,
    shapes: str,
    int_ranges: str,
    input_data: str = "",
    raw: bool = True,
    stages: str = "",
    intervals: Any = None,
    **values: Any,
) -> LoadPlan | None:
    """The plan that the widgets describe, or None with the reason on the page."""
    whole = ("concurrency", "batch", "workers", "seed", "max_connections")
    try:
        for name in whole:
            if values.get(name) is not None:
                values[name] = int(values[name])
        values["shapes"], values["shape_mix"] = parse_shapes(shapes.split())
        if input_data.strip():
            values["input_data"] = str(Path(input_data.strip()).absolute())
        if not raw:
            values["max_raw_samples"] = 0
        if stages.strip():
            steps = parse_stages(stages)
            values |= {"stages": steps, "rate_rps": None, "duration_s": sum(stage.duration_s for stage in steps)}
        if intervals is not None:
            text = intervals.getvalue().decode(errors="replace")
            replay = {"intervals_us": parse_intervals(text, intervals.name), "arrivals": Arrivals.REPLAY}
            values |= replay if stages.strip() else {**replay, "rate_rps": None}
        return LoadPlan(int_ranges=parse_ranges(int_ranges.split()), **values)
    except InputError as error:
        st.error(wording.plain(str(error)), icon=":material/error:")
        return None


def parse_labels(text: str) -> dict[str, str]:
    """`machine=laptop, run=1` → mapping. Raises InputError for a part without `=`."""
    labels = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, equals, value = part.partition("=")
        if not equals or not name.strip():
            raise InputError(f"The label {part!r} must be NAME=VALUE, such as machine=laptop.")
        labels[name.strip()] = value.strip()
    return labels


def start_button(
    asked: LoadPlan | None, labels: str, *, ready: bool, label: str = "Start the load test", takes: str | None = None
) -> bool:
    """The page's primary button with how long it will take (`takes`, or what the plan says); True when pressed."""
    fault = asked is None
    try:
        parse_labels(labels)
    except InputError as error:
        st.error(wording.plain(str(error)), icon=":material/error:")
        fault = True
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button(label, type="primary", icon=":material/play_arrow:", disabled=fault or not ready)
        if asked is not None:
            alone = f"{describe_load(asked.load())}: takes about {wording.duration(asked.warmup_s + asked.duration_s)}."
            st.caption(takes or alone, width="content")
    return pressed


def submit(asked: LoadPlan | None, labels: str, note: str) -> None:
    """Check the plan against the server and ask the worker to run it."""
    if asked is not None:
        jobs.check_load(ui.settings(), asked)
        payload = {"plan": asked.to_dict(), "labels": parse_labels(labels), "note": note.strip()}
        ui.submit(JobKind.LOAD_TEST, payload)


def ended_badly() -> None:
    """Why the newest load test has no result, where it has none."""
    job = ui.last(JobKind.LOAD_TEST)
    if job is not None and job.state is not JobState.FINISHED:
        ui.outcome(job)


def live(job: Job) -> None:
    """Throughput and P99 of the last second, while the test runs; its progress and cancel are in the status line."""
    asked = LoadPlan.from_dict(job.payload["plan"])
    st.subheader(f"Running: {describe_load(asked.load())}")

    def draw() -> None:
        progress = ui.store().job(job.id).progress
        now = progress.get("live")
        seen: list[dict[str, Any]] = st.session_state.setdefault(f"live_{job.id}", [])
        if now and (not seen or now["elapsed_s"] > seen[-1]["elapsed_s"]):
            seen.append(dict(now))
            del seen[:-HISTORY_S]
        with st.grid(4, min_column_width=150, gap="small"):
            st.metric("Throughput, last second", wording.figure(now and now["throughput_rps"], "req/s"), border=True)
            st.metric("P99, last second", wording.figure(now and now["p99_ms"], "ms"), border=True)
            st.metric("Answered", f"{now['ok']:,}" if now else "–", border=True)
            st.metric("Failed", f"{now['failed']:,}" if now else "–", border=True)
        if len(seen) < 2:
            st.caption("The first figures come within a few seconds.")
            return
        frame = frames.live_frame(seen)
        for column, chart in zip(st.columns(2), (charts.live_throughput(frame), charts.live_p99(frame)), strict=True):
            column.altair_chart(chart, alt=str(chart.description))

    ui.live(draw, running=True)
