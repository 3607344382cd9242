"""A study as files that others can open: CSV, Parquet, JSON, config.pbtxt; HTML is report_html's.

Belongs here: rows, the JSON from which `study import` restores a study, configurations with where they come from.
Never: files (exports), what the study found (study_result), marks (study_charts), the store.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tritune import __version__, model_config, spectrum, study_frames, study_tables
from tritune.errors import InputError, LoadTestError
from tritune.plan import TuneChange
from tritune.settings import Settings
from tritune.store import Job
from tritune.study_frames import Document

if TYPE_CHECKING:
    import pandas as pd

    from loadgen.histogram import Tally
    from loadgen.samples import Samples

    Read = Callable[[str], Samples | Tally | None]
    """The kept samples of a trial by its id; None where none are kept."""

FORMAT = "tritune-study"
FORMAT_VERSION = 1
_EMBEDDED_RUNTIME = "model.py"
"""What the embedded server fills in for its own backend; no other server could load it."""
_HEADLINE = ("p99", "p999")
_PLAIN = ("p50", "p90", "p95", "mean", "max", "service_p50", "service_p99")


# --- rows ------------------------------------------------------------------------------------------------------------


def trial_rows(document: Document) -> pd.DataFrame:
    """One row a trial, oldest first: where it stands, its configuration and load, its numbers with their 95 %
    intervals, the codes of its warnings. What was not measured is empty."""
    import pandas as pd

    named = study_frames.labels(document)
    return pd.DataFrame([_trial_row(document, trial, named) for trial in document["trials"]])


def _trial_row(document: Document, trial: Document, named: Mapping[int, str]) -> dict[str, Any]:
    cell, provenance = trial.get("cell") or {}, trial.get("provenance") or {}
    row: dict[str, Any] = {
        "study_id": document["study_id"],
        "trial_id": trial["trial_id"],
        "state": trial["state"],
        "round": trial["round"],
        "attempt": trial["attempt"],
        "role": cell.get("role"),
        "candidate": cell.get("candidate"),
        "configuration": named.get(cell.get("candidate", -1)),
        "model": trial["model"],
        "started_at": _when(trial["created_at"]),
        "finished_at": _when(trial["finished_at"]),
    }
    row |= {name: _flat(value) for name, value in (trial.get("configuration") or {}).items()}
    row |= {name: _flat(value) for name, value in trial["load"].items()}
    row |= {"duration_s": trial["plan"]["duration_s"], "warmup_s": trial["plan"]["warmup_s"]}
    row |= _numbers("throughput_ips", trial.get("throughput_ips"))
    latency = trial.get("latency_ms") or {}
    row |= {f"{name}_ms": latency.get(name) for name in _PLAIN}
    for name in _HEADLINE:
        found = latency.get(name) or {}
        row |= _numbers(f"{name}_ms", found) | {f"{name}_at_least": found.get("at_least")}
    row["lower_bounds"] = " ".join(latency.get("lower_bounds") or ())
    row["goodput_rps"] = trial.get("goodput_rps")
    row |= {f"requests_{kind}": count for kind, count in (trial.get("requests") or {}).items()}
    row |= {f"generator_{name}": value for name, value in (trial.get("generator") or {}).items()}
    row |= {f"server_{name}": _flat(value) for name, value in (trial.get("server") or {}).items()}
    row |= {name: trial.get(name) for name in ("window_s", "loop", "latency_from")}
    row["warnings"] = " ".join(warning["code"] for warning in trial.get("warnings") or ())
    row |= {"error": trial.get("error"), "labels": _flat(trial.get("labels") or {}), "note": trial.get("note")}
    row |= {name: provenance.get(name) for name in ("model_version", "triton_version", "server_kind", "git_commit")}
    return row | {"imported": bool(provenance.get("imported_from"))}


def _numbers(name: str, found: Mapping[str, Any] | None) -> dict[str, float | None]:
    low, high = (found and found.get("ci95")) or (None, None)
    return {name: found.get("value") if found else None, f"{name}_low": low, f"{name}_high": high}


def _flat(value: Any) -> Any:
    """A list as `4,8`, a mapping as `1:20 4:30`, anything else as it is."""
    if isinstance(value, list | tuple):
        return ",".join(str(each) for each in value)
    if isinstance(value, Mapping):
        return " ".join(f"{name}:{each}" for name, each in value.items())
    return value


def _when(unix_s: float | None) -> str | None:
    return None if unix_s is None else datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="milliseconds")


def window_rows(document: Document, read: Read) -> pd.DataFrame:
    """One row a second of every finished trial whose samples are kept: where it stands, elapsed_s (its middle),
    throughput_ips, p50_ms, p99_ms (NaN in a second with fewer than 100 requests). Raises InputError where none are."""
    import pandas as pd

    columns = ["study_id", "trial_id", "candidate", "load", "round", "role"]
    parts = []
    for trial in document["trials"]:
        if trial["state"] != "finished" or (samples := read(trial["trial_id"])) is None:
            continue
        cell, batch = trial.get("cell") or {}, int(trial["load"]["batch"])
        elapsed_s, ips, p99_ms = spectrum.timeline(samples, trial["window_ns"], batch)
        p50_ms = spectrum.timeline(samples, trial["window_ns"], batch, 0.5)[2]
        part = pd.DataFrame({"elapsed_s": elapsed_s, "throughput_ips": ips, "p50_ms": p50_ms, "p99_ms": p99_ms})
        names = (document["study_id"], trial["trial_id"], cell.get("candidate"), cell.get("load"), trial["round"])
        part = part.assign(**dict(zip(columns, (*names, cell.get("role")), strict=True)))
        parts.append(part[[*columns, "elapsed_s", "throughput_ips", "p50_ms", "p99_ms"]])
    if not parts:
        raise InputError(
            f"No samples of {document['study_id']} are kept here, so there are no windows to write. Leave --windows "
            "out for one row a trial."
        )
    return pd.concat(parts, ignore_index=True)


def kept(settings: Settings, trial_id: str) -> Samples | Tally | None:
    """The samples that an installation keeps of a trial; None where there are none that can be read."""
    from loadgen.samples import read_parquet

    path = settings.trials / trial_id / "samples.parquet"
    try:
        return read_parquet(path) if path.is_file() else None
    except LoadTestError:
        return None


def csv_text(table: pd.DataFrame) -> str:
    """Comma-separated with a header. Text that a spreadsheet would run as a formula gets an apostrophe before it."""
    guarded = table.copy()
    for name in guarded.columns:
        if not (guarded[name].map(lambda value: isinstance(value, str))).any():
            continue
        guarded[name] = guarded[name].map(
            lambda value: f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t") else value
        )
    return str(guarded.to_csv(index=False, lineterminator="\n"))


def parquet_bytes(table: pd.DataFrame) -> bytes:
    import io

    data = io.BytesIO()
    table.to_parquet(data, index=False)
    return data.getvalue()


# --- all of it -------------------------------------------------------------------------------------------------------


def json_text(job: Job, document: Document) -> str:
    """All that is known: what was asked, what came of it with every trial, each configuration's config.pbtxt."""
    whole = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "tritune_version": __version__,
        "job": {
            "kind": str(job.kind),
            "state": str(job.state),
            "payload": dict(job.payload),
            "result": job.result,
            "error": job.error,
            "created_at": job.created_at,
            "started_at": job.started_at,
            "finished_at": job.finished_at,
            "notes": [dict(note) for note in job.notes],
        },
        "study": dict(document),
        "config_pbtxt": {str(number): text for number, text in config_texts(document).items()},
    }
    return json.dumps(_finite(whole), allow_nan=False, ensure_ascii=False, indent=1)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null stands for them."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, list | tuple) else value


# --- configurations --------------------------------------------------------------------------------------------------


def winning_config(document: Document) -> str:
    """config.pbtxt of the best configuration. Raises InputError where the study named none."""
    if (best := document.get("best")) is None:
        raise InputError(
            f"{document['study_id']} names no best configuration, so there is no config.pbtxt to write: "
            f"{document.get('reason') or 'nothing was measured'}"
        )
    text = config_text(document, int(best["candidate"]))
    if text is None:
        raise InputError(
            f"The server never told the configuration of {best['label']}, so its config.pbtxt cannot be written. Write "
            "it on the tune page."
        )
    return text


def config_texts(document: Document) -> dict[int, str]:
    """config.pbtxt of every configuration that is known in full, by its number."""
    found = {number: config_text(document, number) for number in study_frames.candidates(document)}
    return {number: text for number, text in found.items() if text is not None}


def config_text(document: Document, number: int) -> str | None:
    """config.pbtxt of one configuration with a comment that says where it comes from: as the server served it while it
    was measured, else the baseline's with the change; None where no server told its configuration."""
    found = _measured_as(document, number)
    if found is None:
        return None
    config, trial = found
    named, ended = study_frames.labels(document)[number], document.get("finished_at") or document["created_at"]
    best = document.get("best") or {}
    lines = [
        f"{document['model']}: {named}",
        f"From Tritune's study {document['study_id']} of {document['model']}. It "
        f"{'was imported and ' if document.get('imported') else ''}ended {_when(ended)}, measured on Triton "
        f"{(trial.get('provenance') or {}).get('triton_version') or 'of unknown version'}.",
        f"Objective: {objective_words(document)}.",
    ]
    if best.get("candidate") == number:
        others = len(best.get("indistinguishable") or ())
        same = f"; {others} more cannot be told from it" if others else ""
        lines.append(f"The best of {len(document['candidates'])} configurations{same}.")
    lines += [
        f"{row['Load']}, against the baseline: throughput {row['Throughput']}, P99 {row['P99']}: {row['Verdict']}."
        for row in study_tables.verdict_table(document, number=number)
    ]
    return "".join(f"# {' '.join(line.split())}\n" for line in lines) + config.text


def objective_words(document: Document) -> str:
    """What the best configuration is, as it was asked for."""
    asked = (document.get("plan") or {}).get("objective") or {}
    limit_ms, least_ips = asked.get("p99_ms"), asked.get("min_throughput_ips")
    least = f"at least {least_ips:,g} inferences/s" if least_ips is not None else ""
    if limit_ms is not None:
        return f"highest throughput with a P99 of at most {limit_ms:g} ms{f' and {least}' if least else ''}"
    if least:
        return f"lowest P99 with {least}"
    is_open = {each.get("concurrency") is None for each in study_frames.loads(document).values()}
    kinds = {False: "highest throughput", True: "lowest P99 latency"}
    if len(is_open) == 1:
        return f"{kinds[is_open.pop()]}, no limits"
    return "highest throughput in a closed loop, lowest P99 latency in an open one, no limits"


def _measured_as(document: Document, number: int) -> tuple[model_config.ModelConfig, Document] | None:
    served = {
        int(trial["cell"]["candidate"]): trial
        for trial in document["trials"]
        if trial.get("served_config") and trial.get("cell")
    }
    if number in served:
        return _own(served[number]["served_config"], document["model"]), served[number]
    baseline = document.get("baseline") or {}
    change = study_frames.candidates(document)[number].get("change")
    if baseline.get("candidate") not in served or change is None:
        return None
    base = served[baseline["candidate"]]
    config = _own(base["served_config"], document["model"])
    return model_config.change(config, TuneChange.from_dict(change)), base


def _own(served: Mapping[str, Any], model: str) -> model_config.ModelConfig:
    """The served configuration under the model's own name: a study may have served it under a variant's."""
    groups = [
        {name: value for name, value in group.items() if name != "name"} for group in served.get("instance_group") or ()
    ]
    own = {**served, "name": model, "instance_group": groups}
    if own.get("runtime") == _EMBEDDED_RUNTIME:
        del own["runtime"]
    return model_config.from_served(own)
