"""A study in words for the tables of a page: verdicts, whether batching is in effect, how far it is.

Belongs here: rows of text, in the order in which they are read. Never: verdicts themselves (verdicts, study_result),
numbers for charts (study_frames), widgets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tritune.analysis import significant
from tritune.plan import Configuration
from tritune.study_frames import (
    BEST,
    EQUAL,
    Document,
    batch_sizes,
    candidates,
    configurations,
    labels,
    load_words,
    loads,
    measured,
    standings,
)

MARKS = {BEST: "★ best", EQUAL: "≈ not told from the best"}


def mark(standing: str) -> str:
    """`★ ` before the best, `≈ ` before what cannot be told from it, nothing before the rest."""
    return f"{MARKS[standing][0]} " if standing in MARKS else ""


def change_words(ratio: Document | None) -> str:
    """`+12.3 % (+9.8 to +14.9)`; a dash where there is no ratio."""
    if not ratio or ratio.get("value") is None:
        return "–"
    bound = "≥ " if ratio.get("at_least") else "≤ " if ratio.get("at_most") else ""
    words = f"{bound}{_percent(ratio['value'])} %"
    bounds = ratio.get("ci95")
    return f"{words} ({_percent(bounds[0])} to {_percent(bounds[1])})" if bounds else words


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.1f}"


def verdict_table(document: Document, *, number: int | None = None) -> list[dict[str, Any]]:
    """The comparisons in words, for reading: better first, then not told apart, then worse; of one configuration only
    where `number` is given."""
    words, named = load_words(document), labels(document)
    stands = {load: standings(document, load) for load in words}
    order = {"better": 0, "no difference shown": 1, "worse": 2}
    rows = []
    for each in sorted(document["comparisons"], key=lambda each: (order.get(each["verdict"], 3), each["candidate"])):
        candidate, at = int(each["candidate"]), int(each["load_number"])
        if number is not None and candidate != number:
            continue
        more = each["more_rounds"]
        rows.append(
            {
                "Configuration": named[candidate],
                "Load": words[at],
                "Verdict": each["verdict"],
                "To settle it": f"about {more} more round{'s' if more != 1 else ''}" if more else "–",
                "Throughput": change_words(each["throughput_ratio"]),
                "P99": change_words(each["p99_ratio"]),
                "Place": MARKS.get(stands[at][candidate], ""),
                "About": "throughput" if each["metric"] == "throughput_ips" else "P99",
                "Rounds": each["rounds"],
            }
        )
    return rows


# --- whether batching is in effect ------------------------------------------------------------------------------------


def batching_table(document: Document, load: int) -> list[dict[str, str]]:
    """Per configuration: asked, in effect at the server, and formed under load, with the reason where they disagree."""
    named = labels(document)
    plan = loads(document)[load]
    rows = []
    for number, asked in configurations(document).items():
        trials = dict(measured(document, load, [number])).get(number, [])
        served = [Configuration.from_dict(trial["configuration"]) for trial in trials if trial.get("configuration")]
        sizes = batch_sizes(trials)
        rows.append(
            {
                "Configuration": named[number],
                "Asked": batching_words(asked) if asked else "not reported",
                "In effect": batching_words(served[-1]) if served else "–" if trials else "not measured",
                "Formed": _formed(sizes, int(plan.get("batch", 1))),
                "Reason": _reason(asked, trials, sizes, plan) if asked else "",
            }
        )
    return rows


def reasons(rows: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The reasons of `batching_table` with the configurations that each is about."""
    found: dict[str, list[str]] = {}
    for row in rows:
        if row["Reason"]:
            found.setdefault(row["Reason"], []).append(row["Configuration"])
    return found


def several(names: Sequence[str], most: int = 5) -> str:
    """`a; b; c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def batching_words(configuration: Configuration) -> str:
    """`4,8 within 700 µs, at most 16`: the batching part of a configuration."""
    if configuration.max_batch_size == 0:
        return "no batch dimension"
    if not configuration.dynamic_batching:
        return f"off, at most {configuration.max_batch_size}"
    sizes = ",".join(str(size) for size in configuration.preferred_batch_size) or "any size"
    delay = configuration.max_queue_delay_microseconds
    return f"{sizes} {f'within {delay:,} µs' if delay else 'without delay'}, at most {configuration.max_batch_size}"


def _formed(sizes: Mapping[int, int], batch: int) -> str:
    if not sizes:
        return "–"
    executions, inferences = sum(sizes.values()), sum(size * count for size, count in sizes.items())
    merged = sum(size * count for size, count in sizes.items() if size > batch)
    average, share = significant(inferences / executions), 100 * merged / inferences
    return f"average {average}, largest {max(sizes)}, {share:.0f} % merged"


def _reason(asked: Configuration, trials: Sequence[Document], sizes: Mapping[int, int], plan: Document) -> str:
    """Why what was asked, what is in effect and what was formed do not agree; nothing where they do."""
    if asked.max_batch_size == 0:
        return "The model has no batch dimension (max_batch_size 0), so Triton cannot merge requests."
    said = {warning["code"]: warning["message"] for trial in trials for warning in trial.get("warnings") or ()}
    found = [said[code] for code in ("not_in_effect", "never_batched") if code in said]
    clients, batch = plan.get("concurrency"), int(plan.get("batch", 1))
    preferred = asked.preferred_batch_size if asked.dynamic_batching else ()
    if preferred and clients is not None and clients * batch < min(preferred):
        who = f"{clients} client{'s' if clients != 1 else ''} with {batch} sample{'s' if batch != 1 else ''} each"
        found.append(f"{who} can never fill the smallest preferred size, {min(preferred)}.")
    elif preferred and sizes and max(sizes) < min(preferred) and not found:
        least = min(preferred)
        found.append(f"No batch reached the smallest preferred size, {least}: too few requests waited at once.")
    if trials and not sizes:
        found.append("The server gives no batch statistics.")
    return " ".join(found)


# --- while it runs --------------------------------------------------------------------------------------------------


def progress_table(document: Document) -> list[dict[str, str]]:
    """One row a configuration, one column a load: how many rounds are measured, its figures so far, what runs now."""
    words, named, stands = load_words(document), labels(document), standings(document)
    cells = {(int(cell["candidate"]), int(cell["load"])): cell for cell in document["cells"]}
    states: dict[tuple[int, int], set[str]] = {}
    for trial in document["trials"]:
        if cell := trial.get("cell"):
            states.setdefault((int(cell["candidate"]), int(cell["load"])), set()).add(trial["state"])
    rows = []
    for number, each in candidates(document).items():
        row = {"Configuration": mark(stands[number]) + named[number]}
        for load, text in words.items():
            row[text] = _progress(cells.get((number, load)), states.get((number, load), set()), document["rounds"])
        row["State"] = _state(each, running=document["state"] in ("waiting", "running"))
        rows.append(row)
    return rows


def _progress(cell: Document | None, states: set[str], rounds: Document) -> str:
    now = "▶ measuring now" if "running" in states else ""
    if cell is None or not cell["rounds"]:
        return now or ("failed" if "failed" in states else "–")
    p99 = cell["p99_ms"]
    tail = f", P99 {'≥ ' if p99.get('at_least') else ''}{significant(p99['value'])} ms" if p99 and p99["value"] else ""
    ips = cell["throughput_ips"]
    figures = f"{significant(ips and ips['value'])} inf/s{tail} · {cell['rounds']}/{rounds['planned']}"
    return f"{now} · {figures}" if now else figures


def _state(candidate: Document, *, running: bool) -> str:
    after = f" after round {candidate['after_round']}" if candidate.get("after_round") else ""
    if candidate["state"] == "out":
        return f"left out{after}: {candidate.get('reason') or 'clearly not the best'}"
    return "measuring" if running and candidate["state"] == "measuring" else "measured"
