"""Trials as people read them: the result of one load test, and tables of many.

Belongs here: laying out what is stored. Never: computing a statistic (measurement and analysis do).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import pandas as pd
import streamlit as st

from tritune import frames, gpu_chart, p99_limit, ui
from tritune.load_plan import describe_load
from tritune.store import Trial
from tritune.ui import wording


def configuration_label(trial: Trial) -> str:
    """A trial's configuration in words."""
    return trial.configuration.describe() if trial.configuration else "not reported by the server"


def trial_label(trial: Trial) -> str:
    """`t12 · batch ≤ 16, … · locust http, 8 clients`: a trial in a list."""
    return f"{trial.trial_id} · {configuration_label(trial)} · {describe_load(trial.load)}"


def percentile(value: Any) -> tuple[float | None, str, str]:
    """A percentile of a measurement as (number, prefix `≥ ` where censored, interval in words)."""
    if isinstance(value, Mapping):
        prefix = "≥ " if value.get("at_least") else ""
        return value.get("value"), prefix, wording.interval(value.get("ci95"), "ms")
    return value, "", ""


def result(trial: Trial) -> None:
    """The headline numbers of a finished trial, each warning beside them."""
    found: Mapping[str, Any] = trial.measurement or {}
    loop = "open loop" if found.get("loop") == "open" else "closed loop: the clients wait for each answer"
    if found.get("latency_from") == "sent":
        loop += "; latency from sending, since perf_analyzer does not tell when a request was due"
    st.markdown(
        f"**{trial.trial_id}** · {wording.plain(configuration_label(trial))} · {describe_load(trial.load)} ({loop})"
    )
    latency = found["latency_ms"]
    server = found.get("server")
    side = p99_limit.trial_side(trial)
    with st.grid(4 if side is None else 5, min_column_width=150, gap="small"):
        ips = found["throughput_ips"]
        _metric("Throughput", wording.figure(ips["value"], "inf/s"), wording.interval(ips.get("ci95"), "inf/s"))
        for name, key in (("P50 latency", "p50"), ("P99 latency", "p99")):
            value, prefix, bounds = percentile(latency.get(key))
            _metric(name, f"{prefix}{wording.figure(value, 'ms')}", bounds or _reason(latency.get(key)))
        if side is not None:
            below = f"answers within {trial.plan.p99_limit_ms:g} ms: {p99_limit.LIMIT_WORDS[side]}"
            _metric("Goodput", wording.figure(found.get("goodput_rps"), "req/s"), below)
        average = wording.figure(server["average_batch"]) if server and server.get("average_batch") else "–"
        _metric("Average batch", average, "" if server else "the server gives no statistics")
    for warning in found.get("warnings", ()):
        st.warning(wording.plain(warning["message"]), title=words(warning["code"]), icon=":material/warning:")
    if gpu := found.get("gpu"):
        series = pd.DataFrame(gpu["series"])
        left, right = st.columns(2, gap="medium")
        left.altair_chart(gpu_chart.gpu_utilization(series))
        right.altair_chart(gpu_chart.gpu_memory(series))
    with st.expander("All numbers"):
        st.table(_details(found), border="horizontal", width="content", alt="All numbers of this load test")


def _metric(label: str, value: str, below: str) -> None:
    with st.container(border=True, height="stretch", gap=None):
        st.metric(label, value)
        st.caption(below or "\u00a0")


def _reason(value: Any) -> str:
    return str(value.get("reason") or "") if isinstance(value, Mapping) else ""


def warnings(trial: Trial) -> Sequence[Mapping[str, str]]:
    """A trial's own warnings, {code, message} each."""
    own: Sequence[Mapping[str, str]] = (trial.measurement or {}).get("warnings", ())
    return own


def words(code: str) -> str:
    """A warning's code as a person reads it."""
    return code.replace("_", " ").capitalize()


def _details(found: Mapping[str, Any]) -> dict[str, str]:
    latency, requests, generator = found["latency_ms"], found["requests"], found["generator"]
    rows = {}
    for name, key in (("P90", "p90"), ("P95", "p95"), ("P99.9", "p999"), ("Mean", "mean"), ("Max", "max")):
        value, prefix, bounds = percentile(latency.get(key))
        rows[f"Latency {name}"] = f"{prefix}{wording.figure(value, 'ms')}{f' ({bounds})' if bounds else ''}"
    rows["Requests"] = ", ".join(
        f"{count:,} {kind}" for kind, count in requests.items() if count or kind in ("ok", "failed")
    )
    cost = wording.figure(generator["cpu_us_per_request"], "µs")
    rows["Generator CPU"] = f"{cost} a request, {wording.figure(generator['cpu_percent'])} % of one core"
    rows["Lag behind the schedule, P99"] = wording.figure(generator.get("lag_p99_ms"), "ms")
    if server := found.get("server"):
        parts = [f"{name.lower()} {wording.figure(server.get(key), 'µs')}" for name, key in frames.SERVER_PARTS]
        rows["Server time a request"] = ", ".join(parts)
        sizes = sorted(server.get("batch_sizes", {}).items(), key=lambda item: int(item[0]))
        rows["Batches executed"] = ", ".join(f"{count:,} of {size}" for size, count in sizes) or "–"
    if not found.get("gpu"):
        rows["GPU"] = "not available"
    rows["Window"] = wording.figure(found.get("window_s"), "s")
    return {name: wording.plain(text) for name, text in rows.items()}


def trial_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row a trial, newest first, numbers as numbers; goodput and limit only where one of them has a limit."""
    rows = []
    for trial in trials:
        found = trial.measurement or {}
        latency = found.get("latency_ms", {})
        doubts = [words(warning["code"]) for warning in warnings(trial)]
        p99, at_least, _ = percentile(latency.get("p99"))
        if at_least:
            doubts.append("P99 is a lower bound")
        rows.append(
            {
                "Trial": trial.trial_id,
                "State": str(trial.state),
                "Configuration": configuration_label(trial),
                "Load": describe_load(trial.load),
                "Throughput": wording.rounded((found.get("throughput_ips") or {}).get("value")),
                "Goodput": wording.rounded(found.get("goodput_rps")),
                "P50": wording.rounded(latency.get("p50")),
                "P99": wording.rounded(p99),
                "P99 limit": trial.plan.p99_limit_ms,
                "Warnings": ", ".join(doubts),
                "Reason": trial.error or "",
                "Labels": ", ".join(f"{key}={value}" for key, value in trial.labels.items()),
                "Note": trial.note,
                "Model": trial.model,
                "When": datetime.fromtimestamp(trial.created_at),
            }
        )
    table = pd.DataFrame(rows)
    limited = any(trial.plan.p99_limit_ms is not None for trial in trials)
    return table if limited else table.drop(columns=["Goodput", "P99 limit"], errors="ignore")


COLUMNS = {
    "Trial": st.column_config.TextColumn(pinned=True, width=60),
    "State": st.column_config.TextColumn(width=75),
    "When": st.column_config.DatetimeColumn(format="MMM D, HH:mm", width=110),
    "Configuration": st.column_config.TextColumn(width=310),
    "Load": st.column_config.TextColumn(width=180),
    "Reason": st.column_config.TextColumn("Why it failed", width="medium"),
    "Throughput": st.column_config.NumberColumn("Throughput, inf/s", format="localized"),
    "Goodput": st.column_config.NumberColumn(
        "Goodput, req/s", format="localized", help="Requests answered within the P99 limit, per second"
    ),
    "P99 limit": st.column_config.NumberColumn("P99 limit, ms", format="localized"),
    "P50": st.column_config.NumberColumn("P50, ms", format="localized"),
    "P99": st.column_config.NumberColumn("P99, ms", format="localized"),
}


def trial_table(trials: Sequence[Trial]) -> None:
    """A short table of trials, to be looked at."""
    shown = trial_frame(trials)[["Trial", "Configuration", "Load", "Throughput", "P99", "Warnings", "When"]]
    st.dataframe(shown, hide_index=True, column_config=COLUMNS, placeholder="–", alt="Latest load tests")


def latest(model: str) -> None:
    """The newest finished trial of a model, and the way to the comparison."""
    trials = [trial for trial in ui.finished_trials() if trial.model == model]
    if not trials:
        st.markdown("No result yet: the first load test's numbers appear here.")
        return
    st.subheader("Latest result")
    result(trials[0])
    with st.container(horizontal=True):
        if len({trial.configuration for trial in trials}) > 1:
            st.page_link("pages/compare.py", label="Compare the configurations", icon=":material/bar_chart:")
        else:
            st.page_link("pages/tune.py", label="Try a second configuration", icon=":material/tune:")
