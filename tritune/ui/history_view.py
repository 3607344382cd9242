"""The history page's parts: studies, search, one trial in detail, its note and labels, deleting.

Belongs here: choosing and annotating. Never: changing a number.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import streamlit as st

from tritune import ui
from tritune.store import Job, Trial
from tritune.ui import results_view, study_actions, study_view, wording
from tritune.ui.load_view import parse_labels

ALONE = "none: single load tests"


def wants_studies() -> bool:
    """Whether studies are asked for rather than load tests; nothing is asked where there is no study."""
    if not study_view.jobs():
        return False
    kinds = {"load_tests": "Load tests", "studies": "Studies"}
    asked = st.query_params.get("kind")
    chosen = st.segmented_control(
        "Show",
        list(kinds),
        default=asked if asked in kinds else "load_tests",
        required=True,
        format_func=kinds.__getitem__,
        key="history_kind",
        label_visibility="collapsed",
    )
    st.query_params["kind"] = str(chosen)
    return chosen == "studies"


def studies() -> None:
    """Every study, newest first; a ticked one can be opened, compared or deleted."""
    known = study_view.jobs()
    rows = [_study(name, job) for name, job in known.items()]
    event = st.dataframe(
        rows,
        hide_index=True,
        column_config={"Study": st.column_config.TextColumn(pinned=True, width=60)},
        on_select="rerun",
        selection_mode="single-row",
        key="studies_" + "_".join(known),
        alt="All studies, newest first",
    )
    ticked = [name for place, name in enumerate(known) if place in event.selection.rows]
    with st.container(horizontal=True, vertical_alignment="center"):
        if st.button("Compare", type="primary", icon=":material/bar_chart:", disabled=not ticked):
            st.switch_page("pages/compare.py", query_params={"study": ticked[0]})
        if st.button("Open", icon=":material/grid_view:", disabled=not ticked):
            st.switch_page("pages/sweep.py", query_params={"study": ticked[0]})
        over = bool(ticked) and known[ticked[0]].state.is_final
        if st.button("Delete", icon=":material/delete:", disabled=not over):
            confirm_delete_study(known[ticked[0]])
        st.caption("Tick a study to open or compare it.", width="content")


def _study(name: str, job: Job) -> dict[str, Any]:
    plan = job.payload.get("plan") or {}
    sizes = [len(job.payload.get(part) or ()) for part in ("candidates", "loads")]
    return {
        "Study": name,
        "State": str(job.state),
        "Title": plan.get("title") or job.payload.get("title") or "",
        "Model": job.payload.get("model") or "",
        "Configurations": sizes[0],
        "Loads": sizes[1],
        "Rounds planned": plan.get("rounds"),
        "Why it ended": job.error or (job.result or {}).get("stopped") or "",
        "When": datetime.fromtimestamp(job.created_at),
    }


def one_study(trials: Sequence[Trial]) -> str | None:
    """The study whose trials are wanted, ALONE for load tests of no study, or None for all."""
    names = list(dict.fromkeys(trial.study_id for trial in trials if trial.cell is not None))
    if not names:
        return None
    found: str | None = st.selectbox(
        "Study", [ALONE, *names], index=None, placeholder="all", key="in", bind="query-params"
    )
    return found


def table(shown: Sequence[Trial]) -> pd.DataFrame:
    """The load tests, each with the study and the round that it belongs to, where there is any."""
    found = results_view.trial_frame(shown)
    if any(trial.cell is not None for trial in shown):
        words = [f"{trial.study_id}, round {trial.round}" if trial.cell is not None else "" for trial in shown]
        found.insert(2, "Study", words)
    return found


def matching(
    trials: Sequence[Trial], text: str, model: str | None, state: str | None, study: str | None = None
) -> list[Trial]:
    """Trials that hold every word of `text` and are of this model, state and study (None: of any)."""
    words = text.lower().split()
    return [
        trial
        for trial in trials
        if (model is None or trial.model == model)
        and (state is None or str(trial.state) == state)
        and (study is None or (trial.cell is None if study == ALONE else trial.study_id == study))
        and all(word in _searched(trial) for word in words)
    ]


def rows_key(shown: Sequence[Trial]) -> str:
    """The table's key, which changes with its rows: a tick belongs to a place, and must not pass to another trial."""
    return "history_" + "_".join(trial.trial_id for trial in shown)


def _searched(trial: Trial) -> str:
    labels = " ".join(f"{key}={value}" for key, value in trial.labels.items())
    parts = [results_view.trial_label(trial), trial.model, str(trial.state), labels, trial.note, trial.error or ""]
    return " ".join(parts).lower()


def one(trial: Trial) -> None:
    """One trial: its result or the reason why there is none, its note and labels, where it came from."""
    st.subheader(f"Load test {trial.trial_id}")
    if trial.measurement:
        results_view.result(trial)
        study_actions.pin_button(trial.trial_id, key="pin_history")
    else:
        reason = trial.error or f"It is {trial.state} and has no numbers."
        st.error(wording.plain(reason), title=f"No result: {trial.state}", icon=":material/error:")
    with st.form(f"annotate_{trial.trial_id}"):
        labels = ", ".join(f"{key}={value}" for key, value in trial.labels.items())
        left, right = st.columns(2)
        new_labels = left.text_input("Labels", labels, placeholder="machine=laptop, run=1")
        new_note = right.text_input("Note", trial.note)
        if st.form_submit_button("Save note and labels"):
            ui.store().annotate(trial.trial_id, labels=parse_labels(new_labels), note=new_note.strip())
            st.rerun()
    with st.expander("Where the numbers come from"):
        st.json(trial.provenance, expanded=1)
    st.download_button(
        "Download as JSON",
        json.dumps(trial.to_dict(), indent=1),
        f"tritune-{trial.trial_id}.json",
        "application/json",
        icon=":material/download:",
        on_click="ignore",
    )


@st.dialog("Delete load tests")
def confirm_delete(trials: Sequence[Trial]) -> None:
    """Ask once more, then forget the trials."""
    with ui.guard():
        names = ", ".join(trial.trial_id for trial in trials)
        st.markdown(f"Delete {names}? The numbers cannot be brought back.")
        if st.button("Delete for good", type="primary", icon=":material/delete:"):
            for trial in trials:
                ui.store().delete_trial(trial.trial_id)
            st.rerun()


@st.dialog("Delete a study")
def confirm_delete_study(job: Job) -> None:
    """Ask once more, then forget the study, its trials and their samples."""
    with ui.guard():
        st.markdown(f"Delete s{job.id} with all of its load tests? The numbers cannot be brought back.")
        if st.button("Delete for good", type="primary", icon=":material/delete:", key="delete_study"):
            for trial_id in ui.store().delete_job(job.id):
                shutil.rmtree(ui.settings().trials / trial_id, ignore_errors=True)
            st.rerun()
