"""Tidy tables of a study, one for each chart, from the document of study_result: what study_charts draws.

Belongs here: one row a mark, units in column names, which configurations stand on the frontier of one load. Never:
verdicts and intervals (verdicts, study_result), colours, widgets, words for tables (study_tables). A configuration
goes by `c3`, its number in the study.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from tritune import knobs
from tritune.doubts import as_served
from tritune.frames import SERVER_PARTS
from tritune.load_plan import describe_arrivals
from tritune.plan import Configuration

Document = Mapping[str, Any]

BEST, EQUAL, BASELINE, OTHER, OUT = "best", "not told from the best", "baseline", "other", "left out"
OUTSIDE = "Network and client"
KNOBS: Mapping[str, str] = {
    "preferred_batch_size": "Preferred batch sizes",
    "max_queue_delay_microseconds": "Max queue delay, µs",
    "max_batch_size": "Max batch size",
    "instance_count": "Instances",
    "dynamic_batching": "Dynamic batching",
}
"""The five knobs in words; the others have theirs in knobs.KNOBS."""


# --- names and order -----------------------------------------------------------------------------------------------


def name_of(number: int) -> str:
    """`c3`: how a configuration is called in a table's `trial_id`."""
    return f"c{number}"


def candidates(document: Document) -> dict[int, Document]:
    """The study's configurations by number, the baseline (0) first."""
    return {int(each["candidate"]): each for each in document["candidates"]}


def labels(document: Document) -> dict[int, str]:
    """What differs between the configurations, by number; the baseline says so."""
    baseline = _baseline(document)
    return {
        number: f"{each['label']}{' (baseline)' if number == baseline and 'baseline' not in each['label'] else ''}"
        for number, each in candidates(document).items()
    }


def loads(document: Document) -> dict[int, Document]:
    """The study's loads by number: documents of LoadPlan.load()."""
    return {int(each["load"]): each["plan"] for each in document["loads"]}


def load_words(document: Document) -> dict[int, str]:
    """Each load in the few words that tell it from the others: `8 clients`, or all of it where that is not enough."""
    short = {int(each["load"]): describe_arrivals(each["plan"]) for each in document["loads"]}
    whole = {int(each["load"]): str(each["describe"]) for each in document["loads"]}
    return short if len(set(short.values())) == len(short) else whole


def keys(document: Document) -> dict[int, str]:
    """Each configuration in the words by which it has its colour on every page (analysis.configuration_key); one that
    an import does not tell goes by its label."""
    named = labels(document)
    return {
        number: f"{document['model']}: {as_served(found).describe() if found else named[number]}"
        for number, found in configurations(document).items()
    }


def configurations(document: Document) -> dict[int, Configuration | None]:
    """Each configuration by its number; None where an import does not tell it."""
    return {
        number: Configuration.from_dict(each["configuration"]) if each.get("configuration") else None
        for number, each in candidates(document).items()
    }


def _baseline(document: Document) -> int | None:
    return int(document["baseline"]["candidate"]) if document.get("baseline") else None


def standings(document: Document, load: int | None = None) -> dict[int, str]:
    """What each configuration is in the study's result: under one load, or (None) under any."""
    found = {number: OUT if each["state"] == "out" else OTHER for number, each in candidates(document).items()}
    for cell in document["cells"]:
        if cell["load"] == load and cell.get("state") == "out":
            found[int(cell["candidate"])] = OUT
    if (baseline := _baseline(document)) is not None:
        found[baseline] = BASELINE
    if best := document.get("best"):
        for each in best["indistinguishable"]:
            if load is None or each["load_number"] == load:
                found[int(each["candidate"])] = EQUAL
        if load is None or best["load_number"] == load:
            found[int(best["candidate"])] = BEST
    return found


def shown_first(document: Document, most: int = 6) -> list[int]:
    """The configurations that detailed charts begin with: the best, the baseline, those that cannot be told from the
    best, then the rest in their order."""
    stands = standings(document)
    order = {name: place for place, name in enumerate((BEST, BASELINE, EQUAL, OTHER, OUT))}
    return sorted(stands, key=lambda number: (order[stands[number]], number))[:most]


# --- cells -----------------------------------------------------------------------------------------------------------


def cell_frame(document: Document) -> pd.DataFrame:
    """One row a measured cell: trial_id (`c3`), candidate, load, label, key, load_words, level, rounds, standing,
    throughput_ips and p99_ms with low and high, p99_at_least, p50_ms, average_batch, queue_ms, on_frontier."""
    named, words, plans, key = labels(document), load_words(document), loads(document), keys(document)
    by_load = {load: standings(document, load) for load in plans}
    rows = []
    for cell in document["cells"]:
        number, load = int(cell["candidate"]), int(cell["load"])
        throughput, p99 = cell["throughput_ips"], cell["p99_ms"]
        rows.append(
            {
                "trial_id": name_of(number),
                "candidate": number,
                "load": load,
                "label": named[number],
                "key": key[number],
                "load_words": words[load],
                "level": _level(plans[load]),
                "rounds": cell["rounds"],
                "standing": by_load[load][number],
                **_estimate("throughput", "ips", throughput),
                **_estimate("p99", "ms", p99),
                "p99_at_least": bool(p99 and p99.get("at_least")),
                "p50_ms": cell.get("p50_ms"),
                "average_batch": cell.get("average_batch"),
                "queue_ms": cell.get("queue_ms"),
            }
        )
    names = ["trial_id", "candidate", "load", "label", "key", "load_words", "level", "rounds", "standing"]
    numbers = [
        f"{name}_{part}" for name, unit in (("throughput", "ips"), ("p99", "ms")) for part in (unit, "low", "high")
    ]
    numbers += ["p50_ms", "average_batch", "queue_ms"]
    table = pd.DataFrame(rows, columns=[*names, *numbers, "p99_at_least"]).astype(dict.fromkeys(numbers, float))
    return table.assign(on_frontier=_on_frontier(table))


def _estimate(name: str, unit: str, found: Document | None) -> dict[str, float | None]:
    value, bounds = (found["value"], found.get("ci95")) if found else (None, None)
    low, high = bounds or (None, None)
    return {f"{name}_{unit}": value, f"{name}_low": low, f"{name}_high": high}


def _level(plan: Document) -> float:
    """How much is offered: clients of a closed loop, requests per second of an open one; NaN for stages and replays."""
    if plan.get("concurrency") is not None:
        return float(plan["concurrency"])
    return float(plan["rate_rps"]) if plan.get("rate_rps") else float("nan")


def _on_frontier(cells: pd.DataFrame) -> pd.Series:
    """Whether no other configuration has, under the same load, at least the throughput at no higher P99."""
    good = pd.Series(False, index=cells.index)
    known = cells[cells["p99_ms"].notna() & cells["throughput_ips"].notna()]
    for _, part in known.groupby("load"):
        lowest = float("inf")
        for row in part.sort_values(["throughput_ips", "p99_ms"], ascending=[False, True]).itertuples():
            if row.p99_ms < lowest:
                lowest = row.p99_ms
                good[row.Index] = True
    return good


def series(document: Document) -> dict[str, list[int]]:
    """Loads that differ in nothing but how much is offered, by what they have in common, each from low to high."""
    found: dict[str, list[int]] = {}
    plans = loads(document)
    for number, plan in plans.items():
        kind = "clients" if plan.get("concurrency") is not None else f"requests/s, {plan.get('arrivals')}"
        batch = f", {plan['batch']} samples a request" if plan.get("batch", 1) != 1 else ""
        further = [str(plan[name]) for name in ("wire", "compression", "shared_memory") if plan.get(name)]
        same = " ".join([str(plan["driver"]), str(plan["protocol"]), *further])
        found.setdefault(f"{same}, {kind}{batch}", []).append(number)
    return {same: sorted(numbers, key=lambda number: _level(plans[number])) for same, numbers in found.items()}


# --- knobs -----------------------------------------------------------------------------------------------------------


def varied(document: Document) -> dict[str, str]:
    """The knobs that differ between the study's configurations, with their names in words."""
    every = [each.get("configuration") or {} for each in candidates(document).values()]
    names = dict.fromkeys([*KNOBS, *(name for each in every for name in each)])
    return {
        name: KNOBS.get(name) or (knobs.KNOBS[name].label if name in knobs.KNOBS else name)
        for name in names
        if len({knob_words(each, name) for each in every}) > 1
    }


def knob_words(configuration: Document, name: str) -> str:
    """A knob's value in a word; `–` where it means nothing without dynamic batching."""
    batching = bool(configuration.get("dynamic_batching"))
    value = configuration.get(name)
    if name == "dynamic_batching":
        return "on" if batching else "off"
    if name in ("preferred_batch_size", "max_queue_delay_microseconds") and not batching:
        return "no batching"
    if name == "preferred_batch_size":
        return ", ".join(str(size) for size in value or ()) or "none"
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def knob_frame(document: Document, load: int, across: str, down: str, value: str) -> pd.DataFrame:
    """Rows of the heat map of two knobs under one load: across, down, value, at_least, label, standing, others.

    Where further knobs vary, a place shows the best of its configurations (highest throughput, lowest P99); `others` is
    how many more there were.
    """
    cells = cell_frame(document)
    cells = cells[(cells["load"] == load) & cells[value].notna()]
    found = {number: each.get("configuration") or {} for number, each in candidates(document).items()}
    cells = cells.assign(
        across=[knob_words(found[number], across) for number in cells["candidate"]],
        down=[knob_words(found[number], down) for number in cells["candidate"]],
        others=0,
    )
    cells["others"] = cells.groupby(["across", "down"])["candidate"].transform("size") - 1
    ordered = cells.sort_values(value, ascending=value != "throughput_ips", kind="stable")
    kept = ordered.drop_duplicates(["across", "down"])
    kept = kept.assign(value=kept[value], at_least=kept["p99_at_least"] if value == "p99_ms" else False)
    columns = ["across", "down", "value", "at_least", "label", "standing", "others"]
    return kept[columns].reset_index(drop=True)


def knob_order(document: Document, name: str) -> list[str]:
    """A knob's values in words, in their natural order, what is off or default first."""
    found: dict[str, tuple[Any, ...]] = {}
    for each in candidates(document).values():
        configuration = each.get("configuration") or {}
        value = configuration.get(name)
        words = knob_words(configuration, name)
        if words in ("no batching", "none", "default"):
            found[words] = (0, {"no batching": 0, "default": 1, "none": 2}[words])
        elif isinstance(value, list | tuple):
            found[words] = (1, *value)
        elif isinstance(value, bool | int | float):
            found[words] = (1, float(value))
        else:
            found[words] = (2, str(value))
    return sorted(found, key=lambda words: found[words])


# --- trials of the cells ----------------------------------------------------------------------------------------------


def measured(document: Document, load: int, numbers: Iterable[int]) -> list[tuple[int, list[Document]]]:
    """The finished trials of each configuration under one load, drift checks left out; those without any are not in."""
    found: dict[int, list[Document]] = {number: [] for number in numbers}
    for trial in document["trials"]:
        cell = trial.get("cell") or {}
        is_of_load = cell.get("role") == "measure" and cell.get("load") == load
        if trial["state"] == "finished" and is_of_load and (number := int(cell["candidate"])) in found:
            found[number].append(trial)
    return [(number, trials) for number, trials in found.items() if trials]


def server_time_frame(document: Document, load: int, numbers: Iterable[int]) -> pd.DataFrame:
    """Rows of (configuration, part): trial_id, label, key, part, order, time_ms: where the mean request's time goes,
    over all rounds, each round counted by its requests. Network and client is what the server does not account for."""
    named, key = labels(document), keys(document)
    rows = []
    for number, trials in measured(document, load, numbers):
        known = [
            trial
            for trial in trials
            if trial.get("server") and all(trial["server"].get(part) is not None for _, part in SERVER_PARTS)
        ]
        times = {part: _weighted(known, [trial["server"][part] / 1e3 for trial in known]) for _, part in SERVER_PARTS}
        means = [trial["latency_ms"].get("mean") for trial in known]
        outside = None
        if known and all(mean is not None for mean in means):
            outside = max(0.0, _weighted(known, means) - sum(times.values()))
        parts = [(OUTSIDE, outside), *((part, times[name]) for part, name in SERVER_PARTS if known)]
        same = {"trial_id": name_of(number), "label": named[number], "key": key[number]}
        rows += [
            same | {"part": part, "order": order, "time_ms": time_ms}
            for order, (part, time_ms) in enumerate(parts)
            if time_ms is not None
        ]
    return pd.DataFrame(rows, columns=["trial_id", "label", "key", "part", "order", "time_ms"])


def _weighted(trials: Sequence[Document], values: Sequence[float]) -> float:
    weights = [max(1.0, float(trial["requests"].get("ok", 1))) for trial in trials]
    return sum(weight * value for weight, value in zip(weights, values, strict=True)) / max(1.0, sum(weights))


def batch_size_frame(document: Document, load: int, numbers: Iterable[int]) -> pd.DataFrame:
    """Rows of (configuration, batch size): trial_id, label, key, batch_size, executions, share of all inferences, all
    rounds together."""
    named, key = labels(document), keys(document)
    rows = []
    for number, trials in measured(document, load, numbers):
        sizes = batch_sizes(trials)
        total = sum(size * count for size, count in sizes.items())
        same = {"trial_id": name_of(number), "label": named[number], "key": key[number]}
        rows += [
            same | {"batch_size": size, "executions": count, "share": size * count / total}
            for size, count in sorted(sizes.items())
        ]
    return pd.DataFrame(rows, columns=["trial_id", "label", "key", "batch_size", "executions", "share"])


def batch_sizes(trials: Iterable[Document]) -> dict[int, int]:
    """Executions by batch size over several trials."""
    found: dict[int, int] = {}
    for trial in trials:
        for size, count in ((trial.get("server") or {}).get("batch_sizes") or {}).items():
            if count:
                found[int(size)] = found.get(int(size), 0) + count
    return found


def spectrum_frame(document: Document, curves: Mapping[int, tuple[Any, Any]]) -> pd.DataFrame:
    """Rows of each configuration's percentiles (`curves`: spectrum.spectrum of its trials' samples): trial_id, label,
    key, share, latency_ms."""
    named, key = labels(document), keys(document)
    parts = [
        pd.DataFrame({"share": shares, "latency_ms": latency_ms}).assign(
            trial_id=name_of(number), label=named[number], key=key[number]
        )
        for number, (shares, latency_ms) in curves.items()
        if len(shares)
    ]
    columns = ["trial_id", "label", "key", "share", "latency_ms"]
    return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def timeline_frame(steps: tuple[Any, Any, Any]) -> pd.DataFrame:
    """spectrum.timeline of one trial: elapsed_s, throughput_ips, p99_ms."""
    return pd.DataFrame(dict(zip(("elapsed_s", "throughput_ips", "p99_ms"), steps, strict=True)), dtype=float)


def drift_frame(document: Document) -> pd.DataFrame:
    """Rows of (round, metric): the round's first cell measured again at its end, as a ratio to the first time."""
    words = load_words(document)
    rows = [
        {"round": each["round"], "metric": metric, "ratio": each[name], "load_words": words.get(each["load"], "")}
        for each in document["drift"]
        for metric, name in (("Throughput", "throughput_ratio"), ("P99 latency", "p99_ratio"))
        if each.get(name) is not None
    ]
    return pd.DataFrame(rows, columns=["round", "metric", "ratio", "load_words"]).astype({"ratio": float})


# --- verdicts ------------------------------------------------------------------------------------------------------


def verdict_frame(document: Document, load: int) -> pd.DataFrame:
    """Rows of the comparisons under one load, in the study's order: trial_id, label, key, metric, ratio, low, high (of
    the metric that decides), verdict, rounds, more_rounds, sentence, standing."""
    key, stands, named = keys(document), standings(document, load), labels(document)
    rows = []
    for each in document["comparisons"]:
        if int(each["load_number"]) != load:
            continue
        number = int(each["candidate"])
        ratio = each["throughput_ratio" if each["metric"] == "throughput_ips" else "p99_ratio"] or {}
        low, high = ratio.get("ci95") or (None, None)
        rows.append(
            {
                "trial_id": name_of(number),
                "label": named[number],
                "key": key[number],
                "metric": each["metric"],
                "ratio": ratio.get("value"),
                "low": low,
                "high": high,
                "verdict": each["verdict"],
                "rounds": each["rounds"],
                "more_rounds": each["more_rounds"],
                "sentence": each["sentence"],
                "standing": stands[number],
            }
        )
    names = ["trial_id", "label", "key", "metric", "ratio", "low", "high", "verdict", "rounds", "more_rounds"]
    table = pd.DataFrame(rows, columns=[*names, "sentence", "standing"])
    return table.astype({"ratio": float, "low": float, "high": float})
