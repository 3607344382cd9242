"""Trials side by side: names by what differs, ratios to a baseline, distributions (pure).

Belongs here: what finished trials say about each other, with documented formulas (docs/measurement.md). Never: the
numbers of one trial (measurement), tables for charts (frames), files, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tritune import knobs
from tritune.doubts import MeasurementWarning, as_served
from tritune.errors import InputError
from tritune.estimators import CountedDurations, rank
from tritune.load_plan import describe_arrivals, describe_load
from tritune.plan import Configuration
from tritune.window import NS_PER_MS, Window

if TYPE_CHECKING:
    from loadgen.histogram import Tally
    from loadgen.samples import Samples
    from tritune.store import Trial

NO_VERDICT = (
    "No verdict: these trials were not interleaved in rounds, so a change of the machine between them looks like a "
    "change of the configuration. Whether their intervals overlap does not decide it either."
)
UNKNOWN_CONFIGURATION = "configuration not reported"
ECDF_POINTS = 2000
ECDF_TAIL = 500


def significant(value: float | None, digits: int = 3) -> str:
    """The number with so many significant digits, thousands separated, no unit: 3213 -> `3,210`, 0.01234 -> `0.0123`,
    1 -> `1.00`; a dash where there is no number."""
    if value is None or not math.isfinite(value):
        return "–"
    rounded = float(f"{value:.{digits}g}")
    if rounded == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    return f"{rounded:,.{decimals}f}"


# --- names ---------------------------------------------------------------------------------------------------------


def configuration_key(trial: Trial) -> str:
    """What a trial measured, in words that are equal for equal configurations (as Triton normalises them)."""
    if trial.configuration is None:
        return f"{trial.model}: {UNKNOWN_CONFIGURATION}"
    return f"{trial.model}: {as_served(trial.configuration).describe()}"


def configuration_keys(trials: Iterable[Trial]) -> tuple[str, ...]:
    """The distinct configurations, in the order in which they were first measured. Given all trials of an
    installation, a configuration's place in it, and so its colour, is the same on every page."""
    ordered = sorted(trials, key=lambda trial: (trial.created_at, _number(trial.trial_id), trial.trial_id))
    return tuple(dict.fromkeys(configuration_key(trial) for trial in ordered))


def labels(trials: Sequence[Trial]) -> dict[str, str]:
    """A name for each trial, made of what differs between them, parts joined by ` · `.

    Where all is equal, or two would get the same name, the trial's id is added.
    """
    features = {trial.trial_id: _features(trial) for trial in trials}
    further = sorted({name for found in features.values() for name in found if name not in _FEATURES})
    order = [*_FEATURES[:_LOAD], *further, *_FEATURES[_LOAD:]]
    differing = [name for name in order if len({found.get(name, "") for found in features.values()}) > 1]
    named = {
        trial_id: " · ".join(found[name] for name in differing if found.get(name))
        for trial_id, found in features.items()
    }
    twice = [name for name in named.values() if list(named.values()).count(name) > 1]
    return {
        trial_id: (f"{name} · {trial_id}" if name else trial_id) if name in twice or not name else name
        for trial_id, name in named.items()
    }


_FEATURES = [
    "model",
    "version",
    "batching",
    "preferred",
    "delay",
    "max",
    "instances",
    "load",
    "batch",
    "protocol",
    "driver",
]
"""What a label may be made of, in its order; the further knobs stand before the load."""

_LOAD = _FEATURES.index("load")


def _features(trial: Trial) -> dict[str, str]:
    """What a trial is, piece by piece, each in the few words of a label."""
    load, found = trial.load, {"model": trial.model}
    if trial.configuration is None:
        found["batching"] = UNKNOWN_CONFIGURATION
    else:
        found |= configuration_features(trial.configuration)
    if version := trial.provenance.get("model_version"):
        found["version"] = f"version {version}"
        found.pop("model_version", None)
    found["load"] = describe_arrivals(load)
    found["batch"] = f"client batch {load['batch']}"
    found["protocol"] = str(load["protocol"])
    found["driver"] = str(load["driver"])
    return found


def configuration_features(configuration: Configuration) -> dict[str, str]:
    """What a configuration is, piece by piece, each in the few words of a label."""
    served = as_served(configuration)
    found = {"max": f"max batch {served.max_batch_size}"}
    if not served.dynamic_batching:
        found["batching"] = "no batching"
    else:
        sizes = ",".join(str(size) for size in served.preferred_batch_size)
        only_max = served.preferred_batch_size == (served.max_batch_size,)
        found["preferred"] = "no preferred size" if only_max else f"preferred {sizes}"
        found["delay"] = f"delay {served.max_queue_delay_microseconds} µs"
    if served.instance_count is not None:
        found["instances"] = f"{served.instance_count} instance{'s' if served.instance_count != 1 else ''}"
    further = {pair[0]: knobs.describe(*pair) for pair in served.further if pair not in knobs.PLAIN}
    return found | further


def _number(trial_id: str) -> int:
    digits = trial_id.lstrip("t")
    return int(digits) if digits.isdigit() else 0


# --- comparison ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ratio:
    """A trial's number over the baseline's; None where one of them has no number. `at_least` where the trial's is a
    lower bound. There is no interval: one trial each says nothing about the variation between trials."""

    value: float | None
    at_least: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {"value": self.value, "ci95": None, "at_least": self.at_least}

    def describe(self) -> str:
        """`×1.23 (+23 %)`; a dash where there is no ratio."""
        if self.value is None:
            return "–"
        return f"{'≥ ' if self.at_least else ''}×{significant(self.value)} ({(self.value - 1) * 100:+.0f} %)"


@dataclass(frozen=True, slots=True)
class Row:
    """One trial against the baseline. `warnings` say what else differs than the configuration."""

    trial: Trial
    label: str
    throughput_ratio: Ratio
    p50_ratio: Ratio
    p99_ratio: Ratio
    warnings: tuple[MeasurementWarning, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "trial_id": self.trial.trial_id,
            "label": self.label,
            "configuration": self.trial.configuration.to_dict() if self.trial.configuration else None,
            "load": self.trial.load,
            "throughput_ratio": self.throughput_ratio.to_dict(),
            "p50_ratio": self.p50_ratio.to_dict(),
            "p99_ratio": self.p99_ratio.to_dict(),
            "verdict": None,
            "reason": NO_VERDICT,
            "warnings": [warning.to_dict() for warning in self.warnings],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Trials against one of them. There is no verdict, since they were not interleaved."""

    baseline: Trial
    baseline_label: str
    rows: tuple[Row, ...]

    @property
    def warnings(self) -> tuple[MeasurementWarning, ...]:
        """Every row's warnings, each once."""
        return tuple(dict.fromkeys(warning for row in self.rows for warning in row.warnings))

    def to_dict(self) -> dict[str, Any]:
        return {
            "baseline": self.baseline.trial_id,
            "comparisons": [row.to_dict() for row in self.rows],
            "warnings": [warning.to_dict() for warning in self.warnings],
        }

    def sentences(self) -> list[str]:
        """The comparison in words, one line a trial, then the warnings, then why there is no verdict."""
        lines = [f"Against {self.baseline.trial_id} ({self.baseline_label}):"]
        for row in self.rows:
            lines.append(
                f"  {row.trial.trial_id} ({row.label}): throughput {row.throughput_ratio.describe()}, "
                f"P50 {row.p50_ratio.describe()}, P99 {row.p99_ratio.describe()}"
            )
        lines += [f"  warning: {warning.message}" for warning in self.warnings]
        return [*lines, NO_VERDICT]


def compare(trials: Sequence[Trial], baseline_id: str) -> Comparison:
    """Each trial's throughput, P50 and P99 over the baseline's.

    Raises InputError where there are not two trials, one has no measurement, or the baseline is not among them.
    """
    chosen = list({trial.trial_id: trial for trial in trials}.values())
    if len(chosen) < 2:
        raise InputError("A comparison needs at least two different trials. Choose another one as well.")
    for trial in chosen:
        if trial.measurement is None:
            raise InputError(
                f"Trial {trial.trial_id} is {trial.state} and has no measurement to compare. Choose a finished one."
            )
    baseline = next((trial for trial in chosen if trial.trial_id == baseline_id), None)
    if baseline is None:
        known = ", ".join(trial.trial_id for trial in chosen)
        raise InputError(f"The baseline {baseline_id} is not among the compared trials {known}. Add it or choose one.")
    named = labels(chosen)
    rows = tuple(
        Row(
            trial=trial,
            label=named[trial.trial_id],
            throughput_ratio=_ratio(estimate(trial, "throughput_ips"), estimate(baseline, "throughput_ips")),
            p50_ratio=_ratio(estimate(trial, "p50"), estimate(baseline, "p50")),
            p99_ratio=_ratio(estimate(trial, "p99"), estimate(baseline, "p99")),
            warnings=tuple(_differences(trial, baseline)),
        )
        for trial in chosen
        if trial is not baseline
    )
    return Comparison(baseline, named[baseline.trial_id], rows)


@dataclass(frozen=True, slots=True)
class Number:
    """A stored number with its interval, if it has one; `at_least` where it is a lower bound."""

    value: float | None
    low: float | None = None
    high: float | None = None
    at_least: bool = False


def estimate(trial: Trial, name: str) -> Number:
    """One number of a stored measurement, whichever shape it has: `throughput_ips`, or a key of `latency_ms`."""
    found = trial.measurement or {}
    latency = found.get("latency_ms") or {}
    value = found.get(name) if name in found else latency.get(name)
    if not isinstance(value, Mapping):
        return Number(value, at_least=name in latency.get("lower_bounds", ()))
    low, high = value.get("ci95") or (None, None)
    return Number(value.get("value"), low, high, bool(value.get("at_least")))


def _ratio(number: Number, baseline: Number) -> Ratio:
    """number / baseline; nothing can be said where the baseline is zero, missing or only a lower bound."""
    if number.value is None or not baseline.value or baseline.at_least:
        return Ratio(None)
    return Ratio(number.value / baseline.value, number.at_least)


def _differences(trial: Trial, baseline: Trial) -> Iterable[MeasurementWarning]:
    """What differs besides the configuration, and so may be the reason for a ratio."""
    pair = f"{trial.trial_id} and {baseline.trial_id}"
    load, other = trial.load, baseline.load
    if load["driver"] != other["driver"]:
        yield MeasurementWarning(
            "driver_differs",
            f"{pair} were measured with different load generators ({load['driver']}, {other['driver']}), which send "
            "and time requests differently. Measure both with one.",
        )
    if load | {"driver": ""} != other | {"driver": ""}:
        yield MeasurementWarning(
            "load_differs",
            f"{pair} had different loads ({describe_load(load)}; {describe_load(other)}), so their ratio is about the "
            "load as well. Measure both under one load.",
        )
    yield from surroundings_differ(trial, baseline)


_SURROUNDINGS = (
    ("hardware_differs", "hardware", ("machine.cpu", "machine.cores", "machine.memory_gib")),
    ("path_differs", "server or network path", ("server_kind", "server_host")),
    ("versions_differ", "versions", ("triton_version", "generator_versions", "tritune_version")),
    ("model_differs", "model file", ("model_sha256",)),
)


def surroundings(trial: Trial) -> tuple[str, ...]:
    """What a trial was measured on and with, one text for hardware, path, versions and model file."""
    return tuple(str([_provenance(trial, name) for name in names]) for _, _, names in _SURROUNDINGS)


def surroundings_differ(trial: Trial, baseline: Trial) -> Iterable[MeasurementWarning]:
    """What differs in hardware, path, versions or model file, and so may be the reason for a ratio."""
    pair = f"{trial.trial_id} and {baseline.trial_id}"
    for code, what, names in _SURROUNDINGS:
        parts = [
            f"{name.split('.')[-1]} {_short(mine)} against {_short(theirs)}"
            for name in names
            if (mine := _provenance(trial, name)) != (theirs := _provenance(baseline, name))
        ]
        if parts:
            yield MeasurementWarning(
                code,
                f"{pair} differ in {what}: {'; '.join(parts)}. A ratio between them is not the configuration's alone.",
            )


def _provenance(trial: Trial, path: str) -> Any:
    """A value of the provenance by its dotted name; `server_host` is the address without its port, which a restart
    may change."""
    if path == "server_host":
        return str(trial.provenance.get("server_http") or "").rpartition(":")[0]
    value: Any = trial.provenance
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {version}" for name, version in value.items()) or "unknown"
    text = "unknown" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"


# --- distribution -----------------------------------------------------------------------------------------------------


def ecdf(samples: Samples | Tally, window_ns: Sequence[int]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Latencies in ms and the share of requests at or below them, both of one length of at most 2,000.

    The population is that of the percentiles: requests intended in the window, unanswered ones counted as slower than
    every answered one, so that the curve then ends below 1. Every point lies on the full curve, the slowest 500
    requests are all there, and between them and the bulk the points are spaced evenly in the logarithm of the share
    above them.
    """
    latencies = Window.cut(samples, int(window_ns[0]), int(window_ns[1])).latencies
    answered, total = latencies.successes, latencies.size
    if not answered:
        return np.empty(0), np.empty(0)
    if isinstance(latencies, CountedDurations):
        buckets = np.unique(np.linspace(0, latencies.exact_buckets - 1, ECDF_POINTS).round().astype(np.int64))
        return latencies.tops[buckets] / NS_PER_MS, latencies.ends[buckets] / total
    ranks = np.arange(1, answered + 1)
    if answered > ECDF_POINTS:
        some = (ECDF_POINTS - ECDF_TAIL) // 2 - 2
        bulk = np.linspace(1, answered, some)
        tail = answered - np.geomspace(ECDF_TAIL, answered - 1, some)
        marks = [min(rank(share, total), answered) for share in (0.5, 0.99, 0.999)]
        last = np.arange(answered - ECDF_TAIL + 1, answered + 1)
        ranks = np.unique(np.concatenate([bulk, tail, marks, last]).round().astype(np.int64))
    return latencies.exact[ranks - 1] / NS_PER_MS, ranks / total
