"""A study as people read it: choosing one, its result in words, its filters, its parts on the compare page.

Belongs here: selection, layout, what is asked of the worker. Never: verdicts (study_result), rows (study_frames,
study_tables), its parts on the compare page (study_sections).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from tritune import (
    analysis,
    charts,
    report,
    study_charts,
    study_frames,
    study_result,
    study_tables,
    ui,
)
from tritune.errors import InputError
from tritune.load_plan import describe_load
from tritune.plan import JobKind
from tritune.store import Job, Trial, study_number
from tritune.study_frames import Document
from tritune.ui import wording

ALL_TRIALS = 1_000_000
LOAD_TESTS = "Load tests"
MINE = ("study", "load", "show", "x", "y", "of", "frontier", "trial")
"""What a study writes into the URL."""
MOST_SHOWN = 8


# --- which study -----------------------------------------------------------------------------------------------------


def jobs() -> dict[str, Job]:
    """Studies and imports by their ids, newest first."""
    return {f"s{job.id}": job for job in ui.store().jobs([JobKind.SWEEP, JobKind.IMPORT])}


def asked(known: Mapping[str, Job]) -> Job | None:
    """The study of the URL; says so where there is none of that name."""
    name = st.query_params.get("study")
    if name is None:
        return None
    try:
        number = study_number(name)
        return known.get(f"s{number}") or ui.store().job(number)
    except InputError as error:
        st.warning(wording.plain(str(error)), icon=":material/warning:")
        return None


def choose(newest_load_test: Trial | None) -> Job | None:
    """The study to compare within, or None for load tests side by side; it is in the URL."""
    known = jobs()
    found = asked(known)
    if found is not None:
        known.setdefault(f"s{found.id}", found)
    if not known:
        return None
    newest = next(iter(known.values()))
    if found is None and "trials" not in st.query_params:
        is_newer = newest_load_test is None or newest_load_test.created_at < newest.created_at
        found = newest if is_newer else None
    names = [LOAD_TESTS, *known]
    chosen = st.selectbox(
        "What to compare",
        names,
        index=names.index(f"s{found.id}") if found else 0,
        format_func=lambda name: name if name == LOAD_TESTS else title(known[name]),
        key="compare_what",
    )
    for name in ("trials", "baseline") if chosen != LOAD_TESTS else MINE:
        st.query_params.pop(name, None)
    if chosen == LOAD_TESTS:
        return None
    st.query_params["study"] = chosen
    return known[chosen]


def title(job: Job) -> str:
    """`s7 · mnist · 12 configurations, 3 loads · finished`: a study in a list."""
    payload = job.payload
    named = str((payload.get("plan") or {}).get("title") or payload.get("title") or "")
    counts = {word: len(payload.get(name) or ()) for word, name in (("configuration", "candidates"), ("load", "loads"))}
    size = [f"{count} {word}{'s' if count != 1 else ''}" for word, count in counts.items() if count]
    words = [f"s{job.id}", named, str(payload.get("model") or ""), ", ".join(size), str(job.state)]
    return " · ".join(filter(None, words))


def read(job: Job) -> Document:
    """The study's document; computed again whenever one of its trials has changed."""
    trials = ui.store().trials(study_id=f"s{job.id}", limit=ALL_TRIALS)
    states = " ".join(f"{trial.trial_id}{trial.state}" for trial in trials)
    revision = f"{job.state} {len(job.notes)} {job.payload.get('note')} {states}"
    return _document(ui.settings().database_url, job.id, revision, job, trials)


@st.cache_data(max_entries=8, show_spinner=False)
def _document(url: str, number: int, revision: str, _job: Job, _trials: Sequence[Trial]) -> Document:
    return study_result.document(_job, _trials)


# --- the result in words ---------------------------------------------------------------------------------------------


def heading(study: Document) -> None:
    """What the study is and how far it is; what differs in hardware, versions or the network path; what happened."""
    rounds = study["rounds"]
    count = len(study["candidates"])
    loads = len(study["loads"])
    size = f"{count} configuration{'s' if count != 1 else ''} under {loads} load{'s' if loads != 1 else ''}"
    how_far = f"round {rounds['done']} of {rounds['planned']}" if rounds["planned"] else ""
    named = [f"**{study['study_id']}**", wording.plain(study.get("title") or ""), wording.plain(study["model"])]
    st.markdown(" · ".join(filter(None, [*named, size, how_far, study["state"], wording.ago(study["finished_at"])])))
    if study.get("note"):
        st.caption(wording.plain(study["note"]))
    if study.get("error"):
        st.error(wording.plain(study["error"]), title=f"The study was {study['state']}", icon=":material/error:")
    if study["warnings"]:
        lines = "\n".join(f"- {wording.plain(warning['message'])}" for warning in study["warnings"])
        st.warning(lines, title="More may differ than the configuration", icon=":material/warning:")
    if study["notes"]:
        with st.expander(f"What happened on the way ({len(study['notes'])})", icon=":material/info:"):
            for note in study["notes"]:
                st.markdown(f"- {wording.ago(note.get('at'))}: {wording.plain(note['message'])}")


def best(study: Document) -> None:
    """The best configuration under the objective, and those that cannot be told from it; or why there is none."""
    found = study["best"]
    if found is None:
        st.info(wording.plain(study.get("reason") or "Nothing is decided yet."), title="No best configuration")
        return
    cell = next(
        (c for c in study["cells"] if (c["candidate"], c["load"]) == (found["candidate"], found["load_number"])), None
    )
    figures = ""
    if cell is not None:
        p99 = cell["p99_ms"] or {}
        bound = "≥ " if p99.get("at_least") else ""
        ips = wording.figure((cell["throughput_ips"] or {}).get("value"), "inf/s")
        figures = f": {ips} at a P99 of {bound}{wording.figure(p99.get('value'), 'ms')}, {describe_load(found['load'])}"
    words = report.objective_words(study)
    lines = [wording.plain(f"{words[:1].upper()}{words[1:]}{figures}.")]
    if others := found["indistinguishable"]:
        loads = study_frames.load_words(study)
        where = {number: f" ({text})" if len(loads) > 1 else "" for number, text in loads.items()}
        named = [each["label"] + where[each["load_number"]] for each in others]
        lines.append(wording.plain(f"Cannot be told from it: {study_tables.several(named)}."))
    if found.get("doubt"):
        lines.append(wording.plain(found["doubt"]))
    if study.get("stopped"):
        lines.append(wording.plain(study["stopped"]))
    st.success("\n\n".join(lines), title=f"Best: {wording.plain(found['label'])}", icon=":material/star:")


def objective(study: Document) -> tuple[float | None, float | None]:
    """The P99 limit in ms and the least throughput in inferences/s, None where there is none."""
    found = (study.get("plan") or {}).get("objective") or {}
    return found.get("p99_ms"), found.get("min_throughput_ips")


# --- filters ---------------------------------------------------------------------------------------------------------


def filters(study: Document) -> tuple[int, list[int]]:
    """The load that single-load charts show, and the configurations that detailed charts show; both are in the URL."""
    words, named, stands = study_frames.load_words(study), study_frames.labels(study), study_frames.standings(study)
    first = study["best"]["load_number"] if study["best"] else list(words)[len(words) // 2]
    load = int(first)
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if len(words) > 1:
            load = int(one_of("Load", "load", {str(number): text for number, text in words.items()}, str(first)))
        wanted = [int(name) for name in st.query_params.get_all("show") if name.isdigit() and int(name) in named]
        shown = st.multiselect(
            "Configurations in detail",
            list(named),
            default=(wanted or study_frames.shown_first(study))[:MOST_SHOWN],
            format_func=lambda number: f"{study_tables.mark(stands[number])}{named[number]}",
            max_selections=MOST_SHOWN,
            key=f"show_{study['study_id']}",
        )
    st.query_params["show"] = [str(number) for number in shown]
    return load, list(shown)


def one_of(label: str, name: str, options: Mapping[str, str], first: str, *, where: Any = st) -> str:
    """One of a few options (value → words), kept in the URL under `name`."""
    kept = st.query_params.get(name)
    default = kept if kept is not None and kept in options else first
    key = f"study_{name}_{'_'.join(options)}"
    if len(options) <= 6:
        chosen = where.segmented_control(
            label, list(options), default=default, required=True, format_func=options.__getitem__, key=key
        )
    else:
        chosen = where.selectbox(
            label, list(options), list(options).index(default), format_func=options.__getitem__, key=key
        )
    st.query_params[name] = str(chosen)
    return str(chosen)


def colors(study: Document, shown: Sequence[int]) -> dict[str, str]:
    """The colour of each configuration shown: its own on every page, as far as two do not clash."""
    everywhere = charts.colors(analysis.configuration_keys(ui.finished_trials()))
    return study_charts.colors(study, shown, everywhere)
