"""The parts of a study on the compare page: verdicts, charts, whether batching is in effect, drift.

Belongs here: layout, and which samples are read. Never: rows (study_frames, study_tables), marks (study_charts,
detail_charts), choosing and filters (study_view).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import streamlit as st

from loadgen import samples as sample_files
from tritune import charts, detail_charts, spectrum, study_charts, study_frames, study_tables, ui
from tritune.errors import TrituneError
from tritune.study_frames import Document
from tritune.ui import wording
from tritune.ui.study_view import colors, objective, one_of

if TYPE_CHECKING:
    import altair as alt

SCROLL_ROWS = 14
METRICS = {"throughput_ips": "Throughput", "p99_ms": "P99 latency"}


def draw(chart: alt.Chart | alt.LayerChart, *, rows: int = 0) -> None:
    """One chart in its frame; one of many rows scrolls inside."""
    height: Any = 760 if rows > SCROLL_ROWS else "content"
    with st.container(border=True, height=height):
        st.altair_chart(chart)


def pair(*parts: Callable[[], None]) -> None:
    """Parts side by side, one below the other on a narrow screen."""
    for column, part in zip(st.columns(len(parts), gap="medium"), parts, strict=True):
        with column:
            part()


def verdicts(study: Document, load: int) -> None:
    """Each configuration against the baseline: the verdict in words, by how much, how many rounds would settle it."""
    st.subheader("Verdicts against the baseline")
    rows = study_tables.verdict_table(study)
    if not rows:
        st.caption("There is nothing to compare with the baseline yet.")
        return
    words = study_frames.load_words(study)[load]
    table = study_frames.verdict_frame(study, load)
    draw(study_charts.ratios(table, words), rows=len(table))
    columns = {"Configuration": st.column_config.TextColumn(pinned=True)}
    st.dataframe(rows, hide_index=True, column_config=columns, alt="Each configuration against the baseline in words")
    st.caption(
        "Rounds are interleaved, so a verdict counts; its error is at most 5 % over all comparisons of the study. "
        "Numbers in brackets are 95 % intervals in %. “No difference shown” does not mean that there is none."
    )
    with st.expander("The comparisons in sentences"):
        named = study_frames.load_words(study)
        for each in study["comparisons"]:
            line = f"{each['label']} ({named[each['load_number']]}): {each['sentence']}"
            st.markdown(f"- {wording.plain(line)}")


def overview(study: Document, load: int, shown: Sequence[int]) -> None:
    """Throughput against P99 for all, under every load or one; and P99 at each offered load."""
    cells = study_frames.cell_frame(study)
    limit_ms, least_ips = objective(study)

    st.subheader("Throughput and latency")
    words = study_frames.load_words(study)
    if len(words) > 1:
        which = one_of("Frontier of", "frontier", {"all": "all loads", "one": words[load]}, "all")
        part = cells if which == "all" else cells[cells["load"] == load]
    else:
        part = cells
    draw(study_charts.frontier(part, limit_ms, least_ips))
    found = study_frames.series(study)
    same = max(found, key=lambda each: len(found[each]))
    if len(found) > 1:
        same = st.selectbox("Loads", list(found), index=list(found).index(same), key="study_series")
    if len(found[same]) > 1:
        few = [study_frames.name_of(number) for number in shown]
        unit = "clients" if ", clients" in same else "requests/s"
        part = cells[cells["load"].isin(found[same])]
        draw(study_charts.p99_by_load(part, few, colors(study, shown), unit=unit, limit_ms=limit_ms))


def knobs(study: Document, load: int) -> None:
    """The heat map of two knobs under one load."""
    varied = study_frames.varied(study)
    if len(varied) < 2:
        return
    st.subheader("Two knobs")
    with st.container(horizontal=True, vertical_alignment="bottom"):
        across = one_of("Across", "x", varied, list(varied)[1])
        others = {name: text for name, text in varied.items() if name != across}
        down = one_of("Down", "y", others, next(iter(others)))
        value = one_of("Shown", "of", METRICS, "throughput_ips")
    cells = study_frames.knob_frame(study, load, across, down, value)
    axes = [(varied[name], study_frames.knob_order(study, name)) for name in (across, down)]
    draw(study_charts.heat_map(cells, axes[0], axes[1], value, study_frames.load_words(study)[load]))
    more = " Where further knobs vary, a place shows the best of its configurations." if len(varied) > 2 else ""
    st.caption(f"Darker is better. ★ best, ≈ cannot be told from it, ▪ baseline.{more}")


def time_and_batches(study: Document, load: int, shown: Sequence[int]) -> None:
    """Where a request's time goes, and the batches that were formed."""
    words = study_frames.load_words(study)[load]
    times = study_frames.server_time_frame(study, load, shown)
    sizes = study_frames.batch_size_frame(study, load, shown)
    st.subheader("Where the time goes, and the batches that were formed")
    if times.empty and sizes.empty:
        st.caption("The server gave no statistics for these configurations under this load.")
        return
    pair(
        lambda: draw(detail_charts.server_time(times, words)),
        lambda: draw(charts.batch_size_histogram(sizes, colors(study, shown))),
    )


def batching(study: Document, load: int) -> None:
    """Asked, in effect, formed: side by side, with the reason where they disagree."""
    st.subheader("Is batching in effect?")
    st.caption(f"Under {study_frames.load_words(study)[load]}.")
    columns = {
        "Configuration": st.column_config.TextColumn(pinned=True),
        "In effect": st.column_config.TextColumn(help="What the server said that it serves, while it was measured"),
        "Formed": st.column_config.TextColumn(help="Merged: the share of inferences in batches of several requests"),
    }
    rows = study_tables.batching_table(study, load)
    facts = [{name: text for name, text in row.items() if name != "Reason"} for row in rows]
    st.dataframe(facts, hide_index=True, column_config=columns, alt="Batching as asked, in effect and formed")
    for reason, names in study_tables.reasons(rows).items():
        st.markdown(f"- {wording.plain(reason)} :gray[({wording.plain(study_tables.several(names, 3))})]")


def distribution(study: Document, load: int, shown: Sequence[int]) -> None:
    """Percentiles of all rounds' samples, and one trial second by second."""
    measured = dict(study_frames.measured(study, load, shown))
    words = study_frames.load_words(study)[load]
    st.subheader("Latency in full")
    curves = {number: _spectrum(found) for number, parts in measured.items() if (found := _kept(parts))}
    table = study_frames.spectrum_frame(study, curves)
    if table.empty:
        st.caption("No samples of these load tests are kept on this machine, so there is no curve to draw.")
        return
    draw(detail_charts.spectra(table, colors(study, shown), words))
    trials = {trial["trial_id"]: trial for parts in measured.values() for trial in parts if _kept([trial])}
    named = study_frames.labels(study)
    texts = {
        name: f"{name} · {named[trial['cell']['candidate']]} · round {trial['round']}" for name, trial in trials.items()
    }
    asked = st.query_params.get("trial")
    names = list(trials)
    chosen = st.selectbox(
        "Second by second",
        names,
        index=names.index(asked) if asked in names else 0,
        format_func=texts.__getitem__,
        key=f"study_trial_{'_'.join(names)}",
    )
    st.query_params["trial"] = chosen
    (part,) = _kept([trials[chosen]])
    steps = study_frames.timeline_frame(_timeline(part, int(trials[chosen]["load"]["batch"])))
    pair(
        lambda: draw(detail_charts.throughput_over_time(steps, chosen)),
        lambda: draw(detail_charts.p99_over_time(steps, chosen)),
    )


def drift(study: Document) -> None:
    """What the machine did within each round."""
    if study["drift"]:
        st.subheader("Drift")
        draw(study_charts.drift(study_frames.drift_frame(study)))
        st.caption("Each round's first measurement, made again at its end. Steady is near 0 %.")


Part = tuple[str, int, int, int]
"""A file of samples: its path, when it was changed, and the window in ns."""


def _kept(trials: Sequence[Document]) -> tuple[Part, ...]:
    """The files of kept samples of these trials."""
    found = []
    for trial in trials:
        path = ui.settings().trials / trial["trial_id"] / "samples.parquet"
        if path.is_file():
            window = trial["window_ns"]
            found.append((str(path), path.stat().st_mtime_ns, int(window[0]), int(window[1])))
    return tuple(found)


@st.cache_data(max_entries=64, show_spinner="Reading samples")
def _spectrum(parts: tuple[Part, ...]) -> Any:
    read = []
    for path, _, start, end in parts:
        try:
            read.append((sample_files.read_parquet(Path(path)), (start, end)))
        except TrituneError:
            continue
    return spectrum.spectrum(read)


@st.cache_data(max_entries=16, show_spinner=False)
def _timeline(part: Part, batch: int) -> Any:
    path, _, start, end = part
    return spectrum.timeline(sample_files.read_parquet(Path(path)), (start, end), batch)
