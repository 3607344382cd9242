"""Tidy tables of finished trials, one for each chart: what charts.py draws and nothing else.

Belongs here: one row a mark, units in column names. Never: formulas (measurement, analysis), colours, widgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from tritune.analysis import configuration_key, ecdf, estimate, labels
from tritune.load_plan import describe_load

if TYPE_CHECKING:
    from loadgen.histogram import Tally
    from loadgen.samples import Samples
    from tritune.store import Trial

SERVER_PARTS = (
    ("Queue", "queue_us"),
    ("Compute input", "compute_input_us"),
    ("Inference", "compute_infer_us"),
    ("Compute output", "compute_output_us"),
)

_NAMES = ("trial_id", "label", "key")
_NUMBERS = ("throughput_ips", "throughput_low", "throughput_high", "p50_ms", "p99_ms", "p99_low", "p99_high")
_ECDF_TYPES = {"trial_id": "str", "label": "str", "key": "str", "latency_ms": float, "share": float}


def headline_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """One row a trial: trial_id, label, key, load, warnings (count), and value, low, high of throughput (inferences/s),
    P50 and P99 (ms); NaN where there is no number. `p99_at_least` marks lower bounds."""
    named = labels(trials)
    rows = []
    for trial in trials:
        throughput, p50, p99 = (estimate(trial, name) for name in ("throughput_ips", "p50", "p99"))
        rows.append(
            {
                "trial_id": trial.trial_id,
                "label": named[trial.trial_id],
                "key": configuration_key(trial),
                "load": describe_load(trial.load),
                "warnings": len((trial.measurement or {}).get("warnings", ())),
                "throughput_ips": throughput.value,
                "throughput_low": throughput.low,
                "throughput_high": throughput.high,
                "p50_ms": p50.value,
                "p99_ms": p99.value,
                "p99_low": p99.low,
                "p99_high": p99.high,
                "p99_at_least": p99.at_least,
            }
        )
    columns = [*_NAMES, "load", "warnings", *_NUMBERS, "p99_at_least"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(_NUMBERS, float))


def ecdf_frame(trials: Sequence[Trial], samples: Mapping[str, Samples | Tally]) -> pd.DataFrame:
    """Rows of every trial's ECDF: trial_id, label, key, latency_ms, share. `samples` by trial id; a trial without kept
    samples is left out."""
    named = labels(trials)
    parts = [pd.DataFrame({"trial_id": [], "label": [], "key": [], "latency_ms": [], "share": []}).astype(_ECDF_TYPES)]
    for trial in trials:
        if trial.trial_id in samples and trial.measurement:
            latency_ms, share = ecdf(samples[trial.trial_id], trial.measurement["window_ns"])
            part = pd.DataFrame({"latency_ms": latency_ms, "share": share})
            part.insert(0, "key", configuration_key(trial))
            part.insert(0, "label", named[trial.trial_id])
            part.insert(0, "trial_id", trial.trial_id)
            parts.append(part.astype(_ECDF_TYPES))
    return pd.concat(parts, ignore_index=True)


def server_time_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """Rows of (trial, part): label, key, part, order, time_ms: Triton's time per request. Trials without server
    statistics are left out."""
    named = labels(trials)
    rows = [
        {
            "trial_id": trial.trial_id,
            "label": named[trial.trial_id],
            "key": configuration_key(trial),
            "part": part,
            "order": order,
            "time_ms": server[name] / 1e3,
        }
        for trial in trials
        if (server := (trial.measurement or {}).get("server"))
        for order, (part, name) in enumerate(SERVER_PARTS)
        if server.get(name) is not None
    ]
    return pd.DataFrame(rows, columns=[*_NAMES, "part", "order", "time_ms"])


def batch_size_frame(trials: Sequence[Trial]) -> pd.DataFrame:
    """Rows of (trial, batch size): label, key, batch_size, executions, share (of all inferences of the trial: how many
    samples travelled in a batch of that size). Trials without server statistics are left out."""
    named = labels(trials)
    rows = []
    for trial in trials:
        sizes = ((trial.measurement or {}).get("server") or {}).get("batch_sizes") or {}
        total = sum(int(size) * count for size, count in sizes.items())
        for size, count in sorted(((int(size), count) for size, count in sizes.items() if count)):
            rows.append(
                {
                    "trial_id": trial.trial_id,
                    "label": named[trial.trial_id],
                    "key": configuration_key(trial),
                    "batch_size": size,
                    "executions": count,
                    "share": size * count / total,
                }
            )
    return pd.DataFrame(rows, columns=[*_NAMES, "batch_size", "executions", "share"])


def live_frame(points: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """What a running generator reported, second by second: elapsed_s, throughput_rps, p99_ms (NaN without answers),
    phase. A second that was reported twice counts once."""
    columns = ["elapsed_s", "throughput_rps", "p99_ms", "phase"]
    frame = pd.DataFrame([{name: point.get(name) for name in columns} for point in points], columns=columns)
    frame = frame.astype({"elapsed_s": float, "throughput_rps": float, "p99_ms": float})
    return frame.drop_duplicates("elapsed_s", keep="last").sort_values("elapsed_s", ignore_index=True)


def probe_frame(probes: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """The rates that a search tried, one row a probe of `rate_report.document`: trial_id, rate_rps, p99_ms with p99_low
    and p99_high (NaN where there is none), p99_at_least, judgement. The closed loop that it began with is left out."""
    rows = []
    for probe in probes:
        if probe["rate_rps"] is None:
            continue
        low, high = probe["p99_ms"]["ci95"] or (None, None)
        rows.append(
            {
                "trial_id": probe["trial_id"],
                "rate_rps": probe["rate_rps"],
                "p99_ms": probe["p99_ms"]["value"],
                "p99_low": low,
                "p99_high": high,
                "p99_at_least": probe["p99_ms"]["at_least"],
                "judgement": probe["judgement"],
            }
        )
    numbers = ("rate_rps", "p99_ms", "p99_low", "p99_high")
    columns = ["trial_id", *numbers, "p99_at_least", "judgement"]
    return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, float))
