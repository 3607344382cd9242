"""The compare page's parts: choosing trials and baseline, the table of differences, pairs of charts.

Belongs here: selection and layout. Never: ratios (analysis), tables for charts (frames), marks (charts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import streamlit as st

from loadgen import samples as sample_files
from tritune import analysis, ui
from tritune.analysis import Comparison
from tritune.errors import TrituneError
from tritune.load_plan import describe_load
from tritune.store import Trial
from tritune.ui import results_view, study_actions, wording

if TYPE_CHECKING:
    import altair as alt

    from loadgen.histogram import Tally
    from loadgen.samples import Samples

FEW = 3


def defaults(finished: Sequence[Trial]) -> list[str]:
    """The newest two or three trials of different configurations, of one load where there are any; oldest first.

    `finished` is newest first.
    """
    by_load: dict[str, list[Trial]] = {}
    for trial in finished:
        by_load.setdefault(describe_load(trial.load), []).append(trial)
    for among in (*by_load.values(), finished):
        found: dict[str, str] = {}
        for trial in among:
            found.setdefault(analysis.configuration_key(trial), trial.trial_id)
        if len(found) > 1:
            return list(found.values())[:FEW][::-1]
    return [trial.trial_id for trial in finished[:2]][::-1]


def offered(finished: Sequence[Trial]) -> list[Trial]:
    """What can be chosen: load tests of their own, those that the URL names, and the pinned baseline.

    A study's trials are compared within the study; the URL may name some of them all the same.
    """
    pinned = study_actions.pinned()
    wanted = {*st.query_params.get_all("trials"), pinned.trial_id if pinned else ""}
    return [trial for trial in finished if trial.cell is None or trial.trial_id in wanted]


def choose(finished: Sequence[Trial]) -> tuple[list[Trial], str]:
    """The chosen trials, in the order chosen, and the baseline's id; both live in the URL. A pinned baseline is among
    them at first."""
    known = {trial.trial_id: trial for trial in finished}

    def label(name: str) -> str:
        return results_view.trial_label(known[name])

    # By hand, since a bound widget would write the whole label of each trial into the URL.
    asked = [name for name in dict.fromkeys(st.query_params.get_all("trials")) if name in known]
    pinned = [trial.trial_id] if (trial := study_actions.pinned()) is not None else []
    first = asked or list(dict.fromkeys([*pinned, *defaults(finished)]))
    chosen = st.multiselect("Load tests", list(known), default=first, format_func=label, key="trials")
    st.query_params["trials"] = chosen
    if not chosen:
        return [], ""
    wanted = next((name for name in (st.query_params.get("baseline"), *pinned) if name in chosen), chosen[0])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        baseline = st.selectbox(
            "Baseline",
            chosen,
            index=chosen.index(wanted),
            format_func=label,
            help="The others are given as ratios to this one.",
        )
        study_actions.pin_button(baseline, key="pin_trial")
    st.query_params["baseline"] = baseline
    return [known[name] for name in chosen], baseline


def doubts(comparison: Comparison) -> None:
    """What else differs between the trials; each trial's own warnings, named in a line and told in full on a click."""
    differences = [wording.plain(warning.message) for warning in comparison.warnings]
    if differences:
        lines = "\n".join(f"- {line}" for line in differences)
        st.warning(lines, title="More differs than the configuration", icon=":material/warning:")
    trials = (comparison.baseline, *(row.trial for row in comparison.rows))
    spoiled: dict[str, list[str]] = {}
    for trial in trials:
        for warning in results_view.warnings(trial):
            spoiled.setdefault(warning["code"], []).append(trial.trial_id)
    if not spoiled:
        return
    short = "; ".join(f"{results_view.words(code)}: {', '.join(names)}" for code, names in spoiled.items())
    with st.expander(f"What may spoil these numbers: {short}", icon=":material/warning:"):
        for trial in trials:
            for warning in results_view.warnings(trial):
                st.markdown(f"- **{trial.trial_id}**: {wording.plain(warning['message'])}")


def table(comparison: Comparison) -> None:
    """Every trial's numbers, and its ratios to the baseline."""
    ratios = {row.trial.trial_id: row for row in comparison.rows}
    labels = {comparison.baseline.trial_id: comparison.baseline_label} | {
        name: row.label for name, row in ratios.items()
    }
    rows = []
    for name, label in labels.items():
        row = ratios.get(name)
        trial = row.trial if row else comparison.baseline
        throughput, p99 = analysis.estimate(trial, "throughput_ips"), analysis.estimate(trial, "p99")
        server = (trial.measurement or {}).get("server") or {}
        rows.append(
            {
                "Load test": f"{name}{'' if row else ' (baseline)'}",
                "What differs": label,
                "Throughput, inf/s": _number(throughput),
                "Throughput ratio": row.throughput_ratio.describe() if row else "1",
                "Goodput, req/s": _goodput(trial),
                "P99, ms": _number(p99),
                "P99 ratio": row.p99_ratio.describe() if row else "1",
                "P50, ms": _number(analysis.estimate(trial, "p50")),
                "Average batch": wording.figure(server.get("average_batch")),
                "Warnings": ", ".join(results_view.words(warning["code"]) for warning in results_view.warnings(trial)),
            }
        )
    if not any(row["Goodput, req/s"] for row in rows):
        rows = [{name: words for name, words in row.items() if name != "Goodput, req/s"} for row in rows]
    columns = {"Load test": st.column_config.TextColumn(pinned=True)}
    st.dataframe(
        rows, hide_index=True, column_config=columns, alt="Each load test with its differences to the baseline"
    )
    st.caption(f"{analysis.NO_VERDICT} Numbers in brackets are 95 % intervals.")


def _goodput(trial: Trial) -> str:
    """`980 (within 20 ms)`, or nothing where the trial had no limit."""
    limit_ms = trial.plan.p99_limit_ms
    if limit_ms is None:
        return ""
    return f"{wording.figure((trial.measurement or {}).get('goodput_rps'))} (within {limit_ms:g} ms)"


def _number(number: analysis.Number) -> str:
    words = f"{'≥ ' if number.at_least else ''}{wording.figure(number.value)}"
    if number.low is not None and number.high is not None:
        words += f" ({wording.figure(number.low)} to {wording.figure(number.high)})"
    return words


def pair(left: alt.Chart | alt.LayerChart, right: alt.Chart | alt.LayerChart) -> None:
    """Two charts side by side, one below the other on a narrow screen."""
    for column, chart in zip(st.columns(2, gap="medium"), (left, right), strict=True):
        with column.container(border=True):
            st.altair_chart(chart, alt=str(chart.description))


@st.cache_data(max_entries=32, show_spinner=False)
def _samples(path: str, changed_ns: int) -> Samples | Tally:
    from pathlib import Path

    return sample_files.read_parquet(Path(path))


def samples(trials: Sequence[Trial]) -> Mapping[str, Samples | Tally]:
    """The kept samples of each trial, by its id; a trial without any is left out."""
    found = {}
    for trial in trials:
        path = ui.settings().trials / trial.trial_id / "samples.parquet"
        try:
            found[trial.trial_id] = _samples(str(path), path.stat().st_mtime_ns)
        except (OSError, TrituneError):
            continue
    return found
