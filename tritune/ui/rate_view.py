"""The load test page's search for the highest rate: its widgets, its probes as they come, its result in words.

Belongs here: reading widgets and laying out what is stored. Never: which rate is tried, or what it shows (search).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tritune import charts, frames, jobs, rate_report, ui
from tritune.errors import InputError
from tritune.load_plan import LoadPlan
from tritune.p99_limit import OPENING_CLIENTS as OPENING_CLIENTS
from tritune.plan import JobKind, JobState
from tritune.search import Outcome, RateGoal
from tritune.store import Job
from tritune.ui import load_view, wording

FIND = "Find the highest rate"
LIMIT_MS = 20.0


def limit_input(column: Any, *, needed: bool, **kept: Any) -> float | None:
    """The P99 limit: a search needs one; a single load test gives goodput where there is one."""
    if needed:
        value = column.number_input("P99 limit, ms", value=LIMIT_MS, format="%g", key="load_find_limit", **kept)
    else:
        value = column.number_input(
            "P99 limit, ms",
            value=None,
            format="%g",
            placeholder="none",
            key="load_limit",
            help="Optional. The result then gives goodput: answers within the limit per second.",
            **kept,
        )
    return None if value is None else float(value)


def start(plan: LoadPlan | None, budget_min: float, labels: str, note: str, *, ready: bool) -> None:
    """The page's primary button for a search; asks the worker when it is pressed."""
    goal = None
    if plan is not None:
        try:
            goal = RateGoal.of(plan, budget_s=60 * budget_min)
        except InputError as error:
            st.error(wording.plain(str(error)), icon=":material/error:")
    takes = ""
    if goal is not None:
        takes = (
            f"About ten probes of {wording.duration(goal.warmup_s + goal.duration_s)} each, at most "
            f"{goal.budget_s / 60:g} min in all."
        )
    pressed = load_view.start_button(plan if goal else None, labels, ready=ready, label=FIND, takes=takes)
    if pressed and plan is not None and goal is not None:
        jobs.check_load(ui.settings(), plan)
        kept = {"labels": load_view.parse_labels(labels), "note": note.strip()}
        ui.submit(JobKind.FIND_RATE, {"plan": plan.to_dict(), "goal": goal.to_dict(), **kept})


def live(job: Job) -> None:
    """The probes so far, while the search runs; its progress and cancel are in the status line."""
    st.subheader(f"Searching for the highest rate with a P99 under {job.payload['goal']['limit_ms']:g} ms")

    def draw() -> None:
        now = ui.store().job(job.id)
        found = rate_report.document(now, ui.store().trials(study_id=f"s{job.id}"))
        rate, probe = found["rate_rps"], now.progress.get("probe") or {}
        with st.grid(4, min_column_width=150, gap="small"):
            st.metric("Highest that holds", wording.figure(rate["low"], "req/s"), border=True)
            st.metric("Lowest that fails", wording.figure(rate["high"], "req/s"), border=True)
            st.metric("Throughput, last second", wording.figure(probe.get("throughput_rps"), "req/s"), border=True)
            st.metric("P99, last second", wording.figure(probe.get("p99_ms"), "ms"), border=True)
        _probes(found, "The first probe, a short closed loop, says what the server can do at most.")

    ui.live(draw, running=True)


def latest(model: str) -> bool:
    """The newest search of this model; whether it is newer than every other load test, and so the page's result."""
    done = ui.store().jobs([JobKind.FIND_RATE, JobKind.LOAD_TEST], limit=50)
    done = tuple(job for job in done if job.payload["plan"]["model"] == model and job.state.is_final)
    job = next((job for job in done if job.kind is JobKind.FIND_RATE), None)
    if job is None:
        return False
    found = rate_report.document(job, ui.store().trials(study_id=f"s{job.id}"))
    if job is done[0] and (found["probes"] or job.error):
        st.subheader("Highest rate")
        _result(job, found)
        return True
    with st.expander(f"Search of {wording.ago(job.finished_at)}: {wording.plain(rate_report.headline(found))}"):
        _result(job, found)
    return False


def _result(job: Job, found: Mapping[str, Any]) -> None:
    """What a search found, in words, then its probes."""
    good = found["outcome"] in (Outcome.FOUND, Outcome.LIMIT_NOT_REACHED)
    box, icon = (st.success, "check_circle") if good else (st.warning, "warning")
    if job.state is JobState.FAILED:
        box, icon = st.error, "error"
    reason = found["reason"] or job.error or ""
    title = rate_report.headline(found)
    if job.state is not JobState.FINISHED:
        title = f"The search was not finished. So far: {title}"
    box(wording.plain(reason), title=wording.plain(title), icon=f":material/{icon}:")
    for warning in found["warnings"]:
        if warning["message"] in reason:
            continue
        words = warning["code"].replace("_", " ").capitalize()
        st.warning(wording.plain(warning["message"]), title=words, icon=":material/warning:")
    _probes(found, "No probe was finished.")


def _probes(found: Mapping[str, Any], empty: str) -> None:
    """Chart and table of the probes."""
    if not found["probes"]:
        st.caption(empty)
        return
    frame = frames.probe_frame(found["probes"])
    if frame["p99_ms"].notna().any():
        with st.container(border=True):
            chart = charts.rate_probes(frame, found["limit_ms"])
            st.altair_chart(chart, alt=str(chart.description))
    rows = [
        {
            "Trial": probe["trial_id"],
            "Load": f"{probe['rate_rps']:,g}/s" if probe["rate_rps"] else f"{probe['concurrency']} clients",
            "Answers/s": wording.figure(probe["answered_rps"]),
            "Goodput/s": wording.figure(probe["goodput_rps"]),
            "P99, ms": rate_report.p99_words(probe),
            "Judged": rate_report.words(probe),
            "Why": probe["reason"],
        }
        for probe in reversed(found["probes"])
    ]
    columns = {"Trial": st.column_config.TextColumn(width=60), "Why": st.column_config.TextColumn(width="large")}
    st.dataframe(rows, hide_index=True, column_config=columns, alt="The probes of the search, newest first")
