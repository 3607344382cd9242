"""The history page's parts: search, one trial in detail, its note and labels, deleting.

Belongs here: choosing and annotating. Never: changing a number.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import streamlit as st

from tritune import ui
from tritune.store import Trial
from tritune.ui import results_view, wording
from tritune.ui.load_view import parse_labels


def matching(trials: Sequence[Trial], text: str, model: str | None, state: str | None) -> list[Trial]:
    """Trials that hold every word of `text` and are of this model and state (None: of any)."""
    words = text.lower().split()
    return [
        trial
        for trial in trials
        if (model is None or trial.model == model)
        and (state is None or str(trial.state) == state)
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
