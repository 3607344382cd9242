"""What can be done with a study's configurations: apply one, pin one as the baseline, download one and the study.

Belongs here: what is asked of the worker, and downloads. Never: what the study found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from tritune import report, report_html, study_frames, study_tables, ui
from tritune.knobs import Scalar
from tritune.plan import Configuration, JobKind, TuneChange
from tritune.report import config_text
from tritune.store import Trial, study_number
from tritune.study_frames import Document
from tritune.ui import results_view, wording

PINNED = "pinned_baseline"
"""The session's pinned baseline: the id of a load test, the same on every page."""


def pinned() -> Trial | None:
    """The load test that is pinned as the baseline, while it exists."""
    name = st.session_state.get(PINNED)
    return next((trial for trial in ui.finished_trials() if trial.trial_id == name), None) if name else None


def pin_button(trial_id: str, *, key: str) -> None:
    """Pin a load test as the baseline of every page, or let go of it."""
    is_pinned = st.session_state.get(PINNED) == trial_id

    def turn() -> None:
        st.session_state[PINNED] = None if is_pinned else trial_id

    st.button(
        "Unpin the baseline" if is_pinned else "Pin as baseline",
        icon=":material/keep_off:" if is_pinned else ":material/keep:",
        on_click=turn,
        key=key,
        help="A pinned baseline is the first choice on every page until you close this browser tab.",
    )


def say_pinned() -> None:
    """A line that says what is pinned."""
    if (trial := pinned()) is not None:
        st.caption(f":material/keep: Pinned baseline: {wording.plain(results_view.trial_label(trial))}")


def configurations(study: Document, load: int) -> None:
    """One configuration, the best at first: apply it, download its config.pbtxt, pin it; download the study."""
    named, stands = study_frames.labels(study), study_frames.standings(study)
    if not named:
        return
    best = study["best"]["candidate"] if study["best"] else study_frames.shown_first(study, 1)[0]
    number = st.selectbox(
        "Configuration",
        list(named),
        index=list(named).index(best),
        format_func=lambda each: f"{study_tables.mark(stands[each])}{named[each]}",
        key=f"act_on_{study['study_id']}",
    )
    wanted = study_frames.configurations(study)[number]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if (
            st.button(
                "Apply this configuration",
                type="primary",
                icon=":material/published_with_changes:",
                disabled=wanted is None or _hindrance(study["model"]) is not None,
                help="Writes config.pbtxt, reloads the model and verifies what the server serves then.",
            )
            and wanted is not None
        ):
            change = full_change(wanted, _written(study["model"]))
            ui.submit(
                JobKind.TUNE, {"model": study["model"], "change": change.to_dict(), "undo": False}, to="pages/tune.py"
            )
        text = config_text(study, number)
        st.download_button(
            "Download config.pbtxt",
            text or "",
            "config.pbtxt",
            "text/plain",
            icon=":material/download:",
            disabled=text is None,
            on_click="ignore",
        )
        trials = dict(study_frames.measured(study, load, [number])).get(number)
        if trials:
            pin_button(trials[-1]["trial_id"], key="pin_study")
        downloads(study)
    if (reason := _hindrance(study["model"])) is not None:
        st.caption(wording.plain(reason))
    say_pinned()


def downloads(study: Document) -> None:
    """The whole study as files, made when they are asked for."""
    job = ui.store().job(study_number(study["study_id"]))
    files: Mapping[str, tuple[str, str, Callable[[], str | bytes]]] = {
        "Report (.html)": ("html", "text/html", lambda: report_html.page(study, report.json_text(job, study))),
        "Trials (.csv)": ("csv", "text/csv", lambda: report.csv_text(report.trial_rows(study))),
        "Trials (.parquet)": (
            "parquet",
            "application/vnd.apache.parquet",
            lambda: report.parquet_bytes(report.trial_rows(study)),
        ),
        "All of it (.json)": ("json", "application/json", lambda: report.json_text(job, study)),
    }
    with st.popover("Download", icon=":material/download:"):
        for label, (ending, kind, made) in files.items():
            name = f"tritune-{study['study_id']}.{ending}"
            st.download_button(label, made, name, kind, on_click="ignore", width="stretch", key=f"download_{ending}")
        st.caption("The report opens without a network. JSON can be imported on the history page of any Tritune.")


def _hindrance(model: str) -> str | None:
    """Why no configuration can be applied now."""
    if ui.is_elsewhere() or model not in {entry.name for entry in ui.repository().models()}:
        return f"{model} is not in this installation's repository, so its config.pbtxt cannot be written here."
    if not ui.is_ready():
        return "No Triton is running, so nothing can be applied. Start one on the server page."
    return "Something is running; a configuration can be applied when it is over." if ui.active() else None


def _written(model: str) -> Configuration:
    return ui.repository().config(model).configuration


def full_change(wanted: Configuration, written: Configuration) -> TuneChange:
    """What makes `wanted` out of whatever is written now: every knob, not only what a study varied."""
    further: dict[str, Scalar | None] = {name: None for name, _ in written.further}
    further |= dict(wanted.further)
    same: Mapping[str, Any] = {
        "max_batch_size": wanted.max_batch_size,
        "instance_count": wanted.instance_count,
        "dynamic_batching": wanted.dynamic_batching,
        "further": further,
    }
    if not wanted.dynamic_batching:
        return TuneChange(**same)
    return TuneChange(
        preferred_batch_size=wanted.preferred_batch_size,
        max_queue_delay_microseconds=wanted.max_queue_delay_microseconds,
        **same,
    )
