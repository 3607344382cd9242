"""The doctor's findings as cards, their buttons with undo, and the three ways to hand in a log.

Belongs here: drawing and the buttons. Never: what is looked for, how a file is changed (tritune.doctor).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import streamlit as st

from tritune import doctor, jobs, servers, ui
from tritune.doctor import Area, Diagnosis, Report, of_log, remedies
from tritune.plan import JobState
from tritune.servers import ServerKind, ServerState
from tritune.ui import wording

PASTED, UPLOADED, OWN = "Paste it", "A file", "This server's log"
SOURCES = (PASTED, UPLOADED, OWN)
PASTE_LIMIT = 200_000
CHECK_S = 60.0
_BADGES = {
    "error": ":red-badge[:material/error: error]",
    "warning": ":orange-badge[:material/warning: warning]",
    "info": ":gray-badge[:material/info: for your information]",
}
_AREAS = {
    Area.MACHINE: "Environment",
    Area.REPOSITORY: "Model repository",
    Area.SERVER: "Running server",
    Area.LOG: "Log",
}


# --- the look ----------------------------------------------------------------------------------------------------


@st.cache_data(ttl=CHECK_S, max_entries=4, show_spinner="Looking at the machine, the repository and the server…")
def _look(results: str, model_repo: str, revision: str) -> Report:
    return doctor.look(ui.settings())


def look() -> Report:
    """Everything that can be looked at here, as it was within the last minute."""
    settings = ui.settings()
    server = ui.server_status()
    revision = " ".join(f"{job.id}{job.state}" for job in ui.store().jobs(limit=8)) + f" {server.state} {server.pid}"
    return _look(str(settings.results), str(settings.model_repo), revision)


def forget() -> None:
    """Look again."""
    _look.clear()
    ui.forget()
    st.rerun()


def summary(report: Report) -> None:
    """How many of what, in one line."""
    errors, warnings = report.count("error"), report.count("warning")
    counts = ((errors, "error"), (warnings, "warning"))
    words = [f"{count} {word}{'s' if count != 1 else ''}" for count, word in counts if count]
    if words:
        st.markdown(f":{'red' if errors else 'orange'}[{' and '.join(words)}]")
    else:
        st.markdown(":green[:material/check_circle: Nothing is wrong.]")


def in_order(report: Report) -> None:
    """What was looked at and is fine."""
    if not report.checked:
        return
    with st.expander(f"{len(report.checked)} things are in order"):
        for area in Area:
            rows = [checked for checked in report.checked if checked.area is area]
            if rows:
                st.caption(_AREAS[area])
            for row in rows:
                st.markdown(f":green[:material/check:] **{wording.plain(row.what)}** {wording.plain(row.seen)}")


# --- findings ----------------------------------------------------------------------------------------------------


def findings(found: Sequence[Diagnosis], *, key: str) -> None:
    """One card a finding, area by area."""
    for area in Area:
        here = [one for one in found if one.area is area]
        if here and area is not Area.LOG:
            st.subheader(_AREAS[area])
        for number, one in enumerate(here):
            _card(one, f"{key}_{area}_{number}")


def _card(one: Diagnosis, key: str) -> None:
    finding = one.finding
    with st.container(border=True, gap="xsmall"):
        place = [wording.plain(one.model)] if one.model else []
        place += [f"line {one.line:,}"] if one.line is not None else []
        place += [f"{one.count:,} times"] if one.count > 1 else []
        st.markdown(f"{_BADGES[finding.severity]} {' · '.join(place)}")
        st.code(finding.seen, language=None, wrap_lines=True)
        st.markdown(wording.plain(finding.cause))
        st.markdown(f":material/arrow_forward: **{wording.plain(finding.fix)}**")
        if one.remedy is None:
            return
        if one.remedy.preview:
            with st.expander("What would be written"):
                st.code(one.remedy.preview, language="diff", wrap_lines=True)
        if st.button(one.remedy.label, key=f"do_{key}", icon=":material/build:", disabled=ui.active() is not None):
            _do(one)


def _do(one: Diagnosis) -> None:
    """Do what the button says; what is left to see afterwards is kept for the next run of the page."""
    assert one.remedy is not None
    settings = ui.settings()
    if one.remedy.job is None:
        done = remedies.apply(settings, ui.repository(), one.model, one.remedy)
        st.session_state["doctor_said"] = f"Done: {done.label}. It can be undone below."
        st.session_state.pop("doctor_job", None)
        forget()
    job = one.remedy.job
    assert job is not None
    number = jobs.submit(settings, ui.store(), job.kind, job.payload)
    st.session_state["doctor_job"] = (number, one.remedy.label, job)
    forget()


def last_action() -> None:
    """What the last button did: its sentence, or how its job ended and the way back."""
    if said := st.session_state.pop("doctor_said", None):
        st.success(wording.plain(said), icon=":material/check_circle:")
    if (last := st.session_state.get("doctor_job")) is None:
        return
    number, label, asked = last
    job = ui.store().job(number)
    if not job.state.is_final:
        return
    ui.outcome(job, f"Done: {wording.plain(label)}.")
    with st.container(horizontal=True):
        if job.state is JobState.FINISHED and asked.undo_kind is not None and st.button("Undo", icon=":material/undo:"):
            st.session_state.pop("doctor_job")
            ui.submit(asked.undo_kind, asked.undo_payload)
        if st.button("Close", icon=":material/close:"):
            st.session_state.pop("doctor_job")
            st.rerun()


def undoable() -> None:
    """Changes of files that were made from here, newest first, each with its undo."""
    entries = remedies.done(ui.settings())
    if not entries:
        return
    with st.expander(f"Changed from here: {len(entries)}", expanded=True):
        for entry in entries:
            with st.container(horizontal=True, vertical_alignment="center"):
                where = f"**{wording.plain(entry.model)}** " if entry.model else ""
                st.markdown(f"{where}{wording.plain(entry.label)} :gray[({wording.ago(entry.at)})]", width="stretch")
                if st.button("Undo", key=f"undo_{entry.record.stem}", icon=":material/undo:"):
                    remedies.undo(ui.repository(), entry)
                    st.session_state["doctor_said"] = f"Undone: {entry.label}."
                    forget()


# --- a log ---------------------------------------------------------------------------------------------------------


def pasted() -> None:
    """A text field, and what its text means."""
    text = st.text_area(
        "The log, or the error message",
        height=160,
        max_chars=PASTE_LIMIT,
        placeholder='docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].',
        help="Colours, times and the prefixes of docker compose do not matter.",
    )
    if text.strip():
        _told(of_log.text(text), key="pasted")


def uploaded() -> None:
    """A log file of any size that the app accepts."""
    file = st.file_uploader("Log file", help="Any text; binary parts do no harm.")
    if file is not None:
        with st.spinner("Reading the log…"):
            report = of_log.diagnose(iter(lambda: file.read(of_log.PIECE), b""), file.name)
        file.seek(0)
        _told(report, key="uploaded")


def own_log() -> None:
    """The end of this installation's server log, again every second while somebody follows it."""
    status = ui.server_status()
    if status.kind is ServerKind.REMOTE:
        st.markdown("The attached server keeps its own log. Paste it here, or choose its file.")
        return
    if status.kind is None and not ui.settings().server_log.exists():
        ui.empty("No server has been started here yet, so there is no log.", "pages/server.py", "Start a server")
        return
    follow = st.toggle("Follow the log", value=False, disabled=status.state is ServerState.STOPPED)

    def draw() -> None:
        text = servers.logs(ui.settings(), of_log.TAIL_LINES)
        _told(of_log.text(text, "the server's log"), key="own")
        st.caption(f"The last {len(text.splitlines()):,} lines were looked through.")

    ui.live(draw, running=follow)


def _told(report: Report, *, key: str) -> None:
    """The findings of a log, or that there are none. Buttons do not belong to lines of a log."""
    if not report.findings:
        st.success(
            "No line looks like an error, and none is in the catalogue.", icon=":material/check_circle:"
        )  # nothing found is an answer too
        return
    digest = hashlib.sha256("".join(one.finding.seen for one in report.findings).encode()).hexdigest()[:8]
    findings([dataclasses.replace(one, remedy=None) for one in report.findings], key=f"{key}_{digest}")
