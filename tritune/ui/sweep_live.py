"""A study on the sweep page: what runs now, time left, the cells so far, the partial frontier; going on with one.

Belongs here: laying out what is stored. Never: planning (sweep_view), comparing (study_sections).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from tritune import jobs, study_charts, study_frames, study_tables, ui
from tritune.plan import JobState
from tritune.store import Job
from tritune.ui import study_view, wording

RESUMABLE = (JobState.INTERRUPTED, JobState.CANCELLED, JobState.FAILED)
RECENT = 5


def show(job: Job) -> None:
    """One study; looked at every two seconds while it runs."""
    running = not job.state.is_final

    def draw() -> None:
        now = ui.store().job(job.id)
        study = study_view.read(now)
        study_view.heading(study)
        if running:
            _now(now, study)
        else:
            _over(now, study)
        words = "★ best so far, ≈ cannot be told from it. " if study["best"] else ""
        st.dataframe(
            study_tables.progress_table(study),
            hide_index=True,
            column_config={"Configuration": st.column_config.TextColumn(pinned=True)},
            alt="How far each configuration is measured under each load",
        )
        st.caption(f"{words}Rounds measured of those planned stand behind each cell's figures.")
        cells = study_frames.cell_frame(study)
        if len(cells):
            limit_ms, least_ips = study_view.objective(study)
            with st.container(border=True):
                chart = study_charts.frontier(cells, limit_ms, least_ips)
                st.altair_chart(chart)
        _left_out(study)

    ui.live(draw, running=running, every="2s")


def _now(job: Job, study: Mapping[str, Any]) -> None:
    """What is measured at this moment, with its last second, and how long all may take."""
    told, live = job.progress.get("study") or {}, job.progress.get("probe") or job.progress.get("live") or {}
    named, loads = study_frames.labels(study), study_frames.load_words(study)
    if told.get("candidate") in named:
        what = f"{named[told['candidate']]}, {loads.get(told['load'], '')}"
        st.markdown(f":material/progress_activity: **Measuring now:** {wording.plain(what)}")
    left = wording.duration(told["left_s"]) if told.get("left_s") is not None else "–"
    done = f"{told['done']} of {told['total']}" if told.get("total") else "–"
    with st.grid(4, min_column_width=150, gap="small"):
        st.metric("Time left, at most", left, border=True)
        st.metric("Trials done", done, border=True)
        st.metric("Throughput, last second", wording.figure(live.get("throughput_rps"), "req/s"), border=True)
        st.metric("P99, last second", wording.figure(live.get("p99_ms"), "ms"), border=True)


def _over(job: Job, study: Mapping[str, Any]) -> None:
    """How it ended, and the way on."""
    study_view.best(study)
    with st.container(horizontal=True, vertical_alignment="center"):
        if job.state in RESUMABLE:
            pressed = st.button(
                "Resume",
                type="primary",
                icon=":material/resume:",
                disabled=ui.active() is not None or not ui.is_ready(),
                help="Goes on with the same plan; finished trials are kept.",
            )
            if pressed:
                jobs.resume(ui.settings(), ui.store(), f"s{job.id}")
                ui.forget()
                st.rerun()
            if not ui.is_ready():
                st.caption("Start a server to go on.", width="content")
        asked = {"study": f"s{job.id}"}
        if study["cells"]:
            st.page_link("pages/compare.py", label="Compare", icon=":material/bar_chart:", query_params=asked)
        if st.button("Plan another study", icon=":material/add:"):
            del st.query_params["study"]
            st.rerun()


def _left_out(study: Mapping[str, Any]) -> None:
    from tritune.study_space import LeftOut

    rows = [LeftOut.from_dict(row) for row in study["left_out"]]
    if rows:
        with st.expander(f"Left out before it began: {len(rows)}"):
            st.markdown("\n".join(f"- {wording.plain(f'{each.describe()}: {each.reason}')}" for each in rows))


def recent() -> None:
    """The newest studies, to look at or go on with."""
    known = list(study_view.jobs().items())[:RECENT]
    if not known:
        return
    st.subheader("Earlier studies")
    for name, job in known:
        st.page_link(
            "pages/sweep.py", label=study_view.title(job), icon=":material/history:", query_params={"study": name}
        )
