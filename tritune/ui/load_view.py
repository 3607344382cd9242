"""The load test page's parts: from widgets to a LoadPlan, and a running test live.

Belongs here: reading widgets and drawing live figures. Never: sending a request or computing a percentile.
"""

from __future__ import annotations

from typing import Any

import streamlit as st

from tritune import charts, frames, jobs, ui
from tritune.errors import InputError
from tritune.load_plan import LoadPlan, describe_load
from tritune.plan import JobKind, JobState
from tritune.store import Job
from tritune.ui import wording

CLOSED = "Clients"
OPEN = "Rate"
LOOP_HELP = (
    "Clients: a closed loop, in which each one waits for its answer. Rate: an open loop, in which requests come "
    "whether or not answers do. The search tries rates until it has the highest one whose P99 stays under the limit."
)
HISTORY_S = 600


def measured_now(model: str) -> None:
    """Say which configuration a load test would measure."""
    served = ui.served_configuration(model)
    if served is not None:
        st.markdown(f"Measures **{wording.plain(model)}** as it is served now: {wording.plain(served.describe())}.")
    elif ui.is_ready():
        st.markdown(f"**{wording.plain(model)}** is not loaded; the load test loads it first.")


def details(**kept: Any) -> dict[str, Any]:
    """What few load tests change, folded away: values for `plan`."""
    with st.expander("Batch, timeout, seed, input shapes"):
        left, middle, right, last = st.columns(4)
        return {
            "batch": left.number_input("Samples in a request", value=1, key="load_batch", **kept),
            "timeout_s": middle.number_input("Timeout, s", value=10.0, format="%g", key="load_timeout", **kept),
            "seed": right.number_input("Seed", value=0, key="load_seed", **kept),
            "workers": last.number_input("Generator processes", value=1, key="load_workers", **kept),
            "shapes": st.text_input("Shapes of free dimensions", placeholder="INPUT:12,8", key="load_shapes", **kept),
            "int_ranges": st.text_input("Ranges of whole numbers", placeholder="INPUT:0:99", key="load_ranges", **kept),
        }


def plan(*, shapes: str, int_ranges: str, **values: Any) -> LoadPlan | None:
    """The plan that the widgets describe, or None with the reason on the page."""
    whole = ("concurrency", "batch", "workers", "seed")
    try:
        for name in whole:
            if values[name] is not None:
                values[name] = int(values[name])
        return LoadPlan(shapes=parse_shapes(shapes), int_ranges=parse_ranges(int_ranges), **values)
    except InputError as error:
        st.error(wording.plain(str(error)), icon=":material/error:")
        return None


def parse_shapes(text: str) -> dict[str, tuple[int, ...]]:
    """`IDS:12,8 MASK:12,8` → {"IDS": (12, 8), …}. Raises InputError."""
    shapes = {}
    for part in text.split():
        name, _, sizes = part.rpartition(":")
        numbers = sizes.split(",")
        if not name or not all(number.isascii() and number.isdigit() for number in numbers):
            raise InputError(f"The shape {part!r} must be NAME:sizes, such as INPUT:12,8, with spaces between several.")
        shapes[name] = tuple(int(number) for number in numbers)
    return shapes


def parse_ranges(text: str) -> dict[str, tuple[int, int]]:
    """`IDS:0:99` → {"IDS": (0, 99)}. Raises InputError."""
    ranges = {}
    for part in text.split():
        name, low, high = [*part.rsplit(":", 2), "", ""][:3]
        try:
            ranges[name] = (int(low), int(high))
        except ValueError:
            raise InputError(f"The range {part!r} must be NAME:lowest:highest, such as INPUT:0:99.") from None
    return ranges


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
