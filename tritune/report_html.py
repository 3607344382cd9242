"""A study as one HTML file that opens anywhere and loads nothing: text, charts, their library, and all data in it.

Belongs here: the page's order and markup. Its looks are assets/report.css, what it does in a browser is
assets/report.js. Never: rows (study_frames, study_tables), marks (study_charts, detail_charts, charts).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import altair as alt

from tritune import __version__, charts, detail_charts, report, study_charts, study_frames, study_tables
from tritune.analysis import significant
from tritune.load_plan import describe_load
from tritune.study_frames import Document

if TYPE_CHECKING:
    from tritune.chart_style import Chart

ASSETS = Path(__file__).resolve().parent / "assets"
IN_DETAIL = 6
_POLICY = "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:"
"""What a browser is told: nothing from outside. Vega compiles its expressions, hence eval."""


def page(document: Document, data: str) -> str:
    """The whole file. `data` is report.json_text of the same study; it can be saved from the page and imported."""
    specs: dict[str, Any] = {}
    with alt.data_transformers.enable("default", max_rows=None):
        body = "\n".join(_body(document, specs))
    title = escape(f"{document['study_id']} · {document['title'] or document['model']}")
    return (
        "<!DOCTYPE html>\n"
        f'<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<style>{_asset('report.css')}</style></head>\n<body>{body}\n"
        f"{_json('specs', json.dumps(specs, allow_nan=False))}\n"
        f"{_json('data', data)}\n"
        f"<script>{_library()}</script>\n<script>{_asset('report.js')}</script>\n</body></html>\n"
    )


@cache
def _library() -> str:
    """Vega, Vega-Lite and vega-embed in one script, once for all charts."""
    import vl_convert

    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", version)
    return bundle.replace("</script", "<\\/script")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _json(name: str, text: str) -> str:
    """JSON inside HTML: a `<` could end the script it stands in."""
    safe = text.replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{safe}</script>'


# --- the page's parts -------------------------------------------------------------------------------------------------


def _body(document: Document, specs: dict[str, Any]) -> Iterator[str]:
    draw = _Drawing(specs)
    yield _heading(document)
    yield "<main>"
    yield _result(document)
    if document["cells"]:
        yield _overview(document, draw)
        yield _by_load(document, draw)
        yield _verdicts(document)
    if document["drift"]:
        yield "<section><h2>Drift</h2>"
        yield draw(study_charts.drift(study_frames.drift_frame(document)))
        yield "<p class=note>Each round's first measurement, made again at its end. Steady is near 0 %.</p></section>"
    yield _trials(document)
    yield _configurations(document)
    yield _how(document)
    yield "</main>"
    yield f"<footer>Made by Tritune {escape(__version__)}. This file holds all its data and loads nothing.</footer>"


class _Drawing:
    """Takes charts in and gives the places where the page draws them."""

    def __init__(self, specs: dict[str, Any]) -> None:
        self._specs = specs

    def __call__(self, chart: Chart) -> str:
        name = f"chart{len(self._specs)}"
        spec = chart.to_dict()
        del spec["$schema"]
        title = spec.pop("title")["text"]  # as text of the page it wraps
        self._specs[name] = spec
        told = escape(str(spec.get("description", "")))
        caption = f"<figcaption>{escape(title)}</figcaption>"
        return f'<figure class=chart>{caption}<div id="{name}" role=img aria-label="{told}"></div></figure>'


def _heading(document: Document) -> str:
    rounds = document["rounds"]
    facts = [
        f"{len(document['candidates'])} configurations",
        f"{len(document['loads'])} load{'s' if len(document['loads']) != 1 else ''}",
        f"{rounds['done']} of {rounds['planned']} rounds" if rounds["done"] else "",
        str(document["state"]),
        f"imported from {_source(document)}" if document["imported"] else "",
        _day(document["finished_at"] or document["created_at"]),
    ]
    title = document["title"] or f"Study of {document['model']}"
    note = f"<p>{escape(document['note'])}</p>" if document.get("note") else ""
    return (
        f"<header><p class=eyebrow>{escape(document['study_id'])} · {escape(document['model'])}</p>"
        f"<h1>{escape(title)}</h1><p class=facts>{escape(' · '.join(filter(None, facts)))}</p>{note}"
        "<p class=actions><button type=button id=save>Save the data as JSON</button></p></header>"
    )


def _source(document: Document) -> str:
    for trial in document["trials"]:
        if found := (trial.get("provenance") or {}).get("imported_from"):
            return str(found.get("format") or "a file")
    return "a file"


def _day(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%-d %B %Y, %H:%M UTC")


def _result(document: Document) -> str:
    """The best configuration and what cannot be told from it, or why there is none; then what is doubtful."""
    best = document["best"]
    if best is None:
        reason = document["reason"] or "Nothing is decided yet."
        said = f"<div class=card><h2>No best configuration</h2><p>{escape(reason)}</p></div>"
    else:
        cell = next(
            c for c in document["cells"] if (c["candidate"], c["load"]) == (best["candidate"], best["load_number"])
        )
        p99 = cell["p99_ms"] or {}
        tiles = [
            ("Throughput", *_figure(cell["throughput_ips"], "inferences/s")),
            ("P99 latency", *_figure(p99, "ms")),
            ("Average batch", significant(cell["average_batch"]), "formed at the server"),
        ]
        elsewhere = {each["load_number"] for each in best["indistinguishable"]} - {best["load_number"]}
        others = [
            each["label"] + (f" ({describe_load(each['load'])})" if elsewhere else "")
            for each in best["indistinguishable"]
        ]
        lines = [f"Objective: {report.objective_words(document)}. Measured with {describe_load(best['load'])}."]
        lines += [f"Cannot be told from it: {'; '.join(others)}."] if others else []
        lines += [text for text in (best.get("doubt"), document.get("stopped")) if text]
        said = (
            f"<div class='card best'><p class=eyebrow>Best</p><h2>★ {escape(best['label'])}</h2><dl class=tiles>"
            + "".join(f"<div><dt>{t}</dt><dd>{escape(v)}<small>{escape(b)}</small></dd></div>" for t, v, b in tiles)
            + "</dl>"
            + "".join(f"<p>{escape(line)}</p>" for line in lines)
            + "</div>"
        )
    told = [str(each["message"]) for each in document["warnings"] if each["message"] != document["reason"]]
    told += _left_open(document)
    if document.get("error"):
        told.insert(0, f"The study was {document['state']}: {document['error']}")
    doubts = f"<div class='card doubt'><h2>To be read with care</h2>{_list(told)}</div>" if told else ""
    return said + doubts


def _left_open(document: Document) -> list[str]:
    """What imported trials say about themselves, each sentence once."""
    every = (each for trial in document["trials"] for each in trial.get("warnings") or ())
    return list(dict.fromkeys(str(each["message"]) for each in every if each["code"] == "imported"))


def _figure(found: Mapping[str, Any] | None, unit: str) -> tuple[str, str]:
    """`≥ 1,230 ms` and its interval in words."""
    found = found or {}
    bounds = found.get("ci95")
    value = f"{'≥ ' if found.get('at_least') else ''}{significant(found.get('value'))} {unit}"
    return value, f"95 % {significant(bounds[0])} to {significant(bounds[1])}" if bounds else "no interval"


def _list(lines: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _overview(document: Document, draw: _Drawing) -> str:
    """Throughput against P99 for all, and P99 at each offered load, one chart for loads that differ in nothing else."""
    cells, shown = study_frames.cell_frame(document), study_frames.shown_first(document, IN_DETAIL)
    asked = (document.get("plan") or {}).get("objective") or {}
    limit_ms, least_ips = asked.get("p99_ms"), asked.get("min_throughput_ips")
    few, color = [study_frames.name_of(number) for number in shown], study_charts.colors(document, shown, {})
    found = ["<section><h2>Throughput and latency</h2><div class=pair>"]
    found.append(draw(study_charts.frontier(cells, limit_ms, least_ips)))
    for same, numbers in study_frames.series(document).items():
        part = cells[cells["load"].isin(numbers) & cells["level"].notna() & cells["p99_ms"].notna()]
        if part["level"].nunique() > 1:
            unit = "clients" if ", clients" in same else "requests/s"
            found.append(draw(study_charts.p99_by_load(part, few, color, unit=unit, limit_ms=limit_ms)))
    return "".join([*found, "</div></section>"])


def _by_load(document: Document, draw: _Drawing) -> str:
    """What is about one load; a choice at the top shows one at a time."""
    words = study_frames.load_words(document)
    measured = [load for load in words if any(cell["load"] == load for cell in document["cells"])]
    counts = {load: sum(cell["load"] == load for cell in document["cells"]) for load in measured}
    first = document["best"]["load_number"] if document["best"] else max(measured, key=lambda load: counts[load])
    found = ["<section><h2>Load by load</h2>"]
    if len(measured) > 1:
        options = "".join(
            f"<option value={load}{' selected' if load == first else ''}>{escape(words[load])}</option>"
            for load in measured
        )
        found.append(f"<p><label>Load <select id=loads>{options}</select></label></p>")
    for load in measured:
        found.append(f"<div class=load data-load={load}{'' if load == first else ' hidden'}>")
        found += _one_load(document, load, words[load], draw)
        found.append("</div>")
    return "".join([*found, "</section>"])


def _one_load(document: Document, load: int, words: str, draw: _Drawing) -> Iterator[str]:
    shown = study_frames.shown_first(document, IN_DETAIL)
    table = study_frames.verdict_frame(document, load)
    if len(table):
        yield draw(study_charts.ratios(table, words))
    varied = study_frames.varied(document)
    if len(varied) > 1:
        (down, across), pair = list(varied)[:2], []
        for value in ("throughput_ips", "p99_ms"):
            cells = study_frames.knob_frame(document, load, across, down, value)
            if len(cells):
                axes = [(varied[name], study_frames.knob_order(document, name)) for name in (across, down)]
                pair.append(draw(study_charts.heat_map(cells, axes[0], axes[1], value, words)))
        more = " Where further knobs vary, a place shows the best of its configurations." if len(varied) > 2 else ""
        yield f"<div class=pair>{''.join(pair)}</div>"
        yield f"<p class=note>Darker is better. ★ best, ≈ cannot be told from it, ▪ baseline.{more}</p>"
    times = study_frames.server_time_frame(document, load, shown)
    sizes = study_frames.batch_size_frame(document, load, shown)
    pair = [draw(detail_charts.server_time(times, words))] if len(times) else []
    pair += [draw(charts.batch_size_histogram(sizes, study_charts.colors(document, shown, {})))] if len(sizes) else []
    yield f"<div class=pair>{''.join(pair)}</div>"
    yield f"<h3>Is batching in effect?</h3>{_table(study_tables.batching_table(document, load))}"


def _verdicts(document: Document) -> str:
    rows = study_tables.verdict_table(document)
    if not rows:
        return ""
    for row in rows:
        if row["Verdict"] == "not measured" and row["Throughput"] != "–":
            row["Verdict"] = "no verdict"
    words = study_frames.load_words(document)
    lines = [f"{each['label']} ({words[each['load_number']]}): {each['sentence']}" for each in document["comparisons"]]
    what = (
        "Rounds are interleaved, so a verdict counts; its error is at most 5 % over all comparisons of the study. "
        if any(each["verdict"] != "not measured" for each in document["comparisons"])
        else ""
    )
    baseline = document["baseline"]["label"] if document["baseline"] else ""
    return (
        f"<section><h2>Verdicts against the baseline</h2><p>Baseline: {escape(baseline)}.</p>{_table(rows, 'Verdict')}"
        f"<p class=note>{what}Numbers in brackets are 95 % intervals. “No difference shown” does not mean that there "
        f"is none.</p><details><summary>In sentences</summary>{_list(lines)}</details></section>"
    )


def _table(rows: Sequence[Mapping[str, Any]], marked: str | None = None) -> str:
    """Rows of equal keys; the words in column `marked` get their look."""
    if not rows:
        return ""
    names = [name for name in rows[0] if any(row[name] not in ("", None) for row in rows)]
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in names)
    body = []
    for row in rows:
        cells = []
        for name in names:
            text = escape("" if row[name] is None else str(row[name]))
            look = f" class='said {text.split(' ')[0]}'" if name == marked else ""
            cells.append(f"<td data-name='{escape(name, True)}'{look}>{text}</td>")
        body.append(f"<tr>{''.join(cells)}</tr>")
    return f"<div class=scroll><table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"


def _trials(document: Document) -> str:
    named, words = study_frames.labels(document), study_frames.load_words(document)
    rows = []
    for trial in document["trials"]:
        cell = trial.get("cell") or {}
        latency = trial.get("latency_ms") or {}
        rows.append(
            {
                "Trial": trial["trial_id"],
                "Round": trial["round"],
                "Configuration": named.get(cell.get("candidate", -1), ""),
                "Load": words.get(cell.get("load", -1), describe_load(trial["load"])),
                "State": trial["state"]
                if cell.get("role", "measure") == "measure"
                else f"{trial['state']} ({cell['role']})",
                "Throughput, inferences/s": _with_interval(trial.get("throughput_ips")),
                "P50, ms": significant(latency.get("p50")),
                "P99, ms": _with_interval(latency.get("p99")),
                "Warnings": ", ".join(each["code"].replace("_", " ") for each in trial.get("warnings") or ()),
                "Reason": trial.get("error") or "",
            }
        )
    count = len(rows)
    return f"<section><h2>Trials</h2><details><summary>All {count:,} trials</summary>{_table(rows)}</details></section>"


def _with_interval(found: Mapping[str, Any] | None) -> str:
    found = found or {}
    bounds = found.get("ci95")
    text = f"{'≥ ' if found.get('at_least') else ''}{significant(found.get('value'))}"
    return f"{text} ({significant(bounds[0])} to {significant(bounds[1])})" if bounds else text


def _configurations(document: Document) -> str:
    texts, named = report.config_texts(document), study_frames.labels(document)
    if not texts:
        return ""
    best = (document["best"] or {}).get("candidate")
    parts = [
        f"<details{' open' if number == best else ''}><summary>{'★ ' if number == best else ''}{escape(named[number])}"
        f"</summary><button type=button class=config data-number={number}>Save config.pbtxt</button>"
        f"<pre>{escape(text)}</pre></details>"
        for number, text in sorted(texts.items(), key=lambda pair: (pair[0] != best, pair[0]))
    ]
    return f"<section><h2>config.pbtxt of every configuration</h2>{''.join(parts)}</section>"


def _how(document: Document) -> str:
    """Where, with what and how it was measured: the first trial's provenance, the plan, what was left out, notes."""
    provenance: Mapping[str, Any] = next(
        (trial["provenance"] for trial in document["trials"] if trial.get("provenance")), {}
    )
    machine = provenance.get("machine") or {}
    plan = document.get("plan") or {}
    versions = ", ".join(f"{name} {text}" for name, text in (provenance.get("generator_versions") or {}).items())
    server = " ".join(filter(None, [provenance.get("triton_version"), provenance.get("server_kind")]))
    rows = {
        "Model": f"{document['model']}, version {provenance.get('model_version', 'unknown')}",
        "Model file, SHA-256": provenance.get("model_sha256"),
        "Triton": server,
        "Machine": ", ".join(
            f"{name.replace('_', ' ')} {value}" for name, value in machine.items() if value is not None
        ),
        "Generator": versions,
        "Tritune": " ".join(
            filter(None, [provenance.get("tritune_version"), (provenance.get("git_commit") or "")[:12]])
        ),
        "Loads": "; ".join(each["describe"] for each in document["loads"]),
        "Each trial": f"{plan['duration_s']:g} s after {plan['warmup_s']:g} s of warm-up" if plan else None,
        "Order": f"random within each round, seed {plan['seed']}" if plan else None,
        "Search": plan.get("search"),
    }
    facts = "".join(f"<dt>{escape(n)}</dt><dd>{escape(str(v))}</dd>" for n, v in rows.items() if v)
    left_out = [f"{_knobs(row.get('configuration') or {})}: {row.get('reason')}" for row in document["left_out"]]
    more = f"<h3>Left out</h3>{_list(left_out)}" if left_out else ""
    more += (
        f"<h3>What happened on the way</h3>{_list(n['message'] for n in document['notes'])}"
        if document["notes"]
        else ""
    )
    return f"<section><h2>How it was measured</h2><dl class=facts>{facts}</dl>{more}</section>"


def _knobs(configuration: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in configuration.items())
