"""Reports: one HTML file that loads nothing, rows for spreadsheets, config.pbtxt that says where it came from."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from loadgen.samples import Samples
from tritune import exports, model_config, report, report_html, study_result
from tritune.errors import InputError, StoreError
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, JobKind, JobState, TrialState, TuneChange
from tritune.store import Cell, Job, Trial
from tritune.study_plan import LoadSpace, StudyPlan

DELAYS = (100, 0, 4000)
CLIENTS = (2, 16)
SECOND = 1_000_000_000


def served(number: int) -> dict[str, Any]:
    """What a server says of a candidate that it serves under a variant's name."""
    return {
        "name": f"mnist.tritune-c{number}",
        "platform": "onnxruntime_onnx",
        "runtime": "model.py",
        "max_batch_size": 16,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}],
        "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}],
        "dynamic_batching": {"max_queue_delay_microseconds": DELAYS[number]},
        "instance_group": [{"name": f"mnist.tritune-c{number}_0", "kind": "KIND_CPU", "count": 1}],
    }


def measurement(throughput: float, p99: float) -> dict[str, Any]:
    return {
        "throughput_ips": {"value": throughput, "ci95": [throughput * 0.9, throughput * 1.1]},
        "latency_ms": {
            **{"p50": 2.0, "p90": 3.0, "p95": 4.0, "mean": 2.2, "max": 9.0, "service_p50": 2.0, "service_p99": p99},
            "p99": {"value": p99, "ci95": [p99 * 0.8, p99 * 1.2], "at_least": False},
            "p999": {"value": None, "ci95": None, "at_least": False},
            "lower_bounds": [],
        },
        "requests": {"ok": 9000, "failed": 0},
        "generator": {"cpu_percent": 10.0},
        "server": {
            **{"average_batch": 4.0, "batch_sizes": {"4": 30, "1": 20}, "queue_us": 300.0},
            **{"compute_input_us": 10.0, "compute_infer_us": 900.0, "compute_output_us": 10.0},
        },
        "warnings": [{"code": "unstable", "message": "It moved."}],
        "window_s": 10.0,
        "window_ns": [0, 10 * SECOND],
    }


def study(
    label: str = "delay", rounds: int = 4, note: str = "", unserved: int | None = None
) -> tuple[Job, dict[str, Any]]:
    """A finished study of three delays under two loads; 4 ms cost most of the throughput of few clients."""
    configurations = [Configuration(16, True, (), delay, 1) for delay in DELAYS]
    loads = [LoadPlan("mnist", concurrency=count) for count in CLIENTS]
    candidates = [
        {
            "number": number,
            "change": TuneChange(max_queue_delay_microseconds=DELAYS[number]).to_dict(),
            "configuration": each.to_dict(),
            "label": f"{label} {DELAYS[number]} µs",
        }
        for number, each in enumerate(configurations)
    ]
    payload = {
        "model": "mnist",
        "plan": StudyPlan("mnist", loads=LoadSpace(concurrency=CLIENTS), rounds=rounds).to_dict(),
        "candidates": candidates,
        "loads": [load.to_dict() for load in loads],
        "left_out": [{"configuration": {"max_batch_size": 0}, "reason": "It cannot batch."}],
        "baseline": 0,
        "note": note,
    }
    job = Job(7, JobKind.SWEEP, payload, JobState.FINISHED, {}, None, None, False, 1000.0, 1001.0, 2000.0)
    chance = np.random.default_rng(1)
    trials = []
    for round in range(1, rounds + 1):
        cells = [Cell(number, load) for number in range(3) for load in range(2)]
        for cell in [*cells, Cell(0, 0, "drift")]:
            factor = 0.2 if cell.candidate == 2 and cell.load == 0 else 1.0
            ips = 1000.0 * CLIENTS[cell.load] * factor * chance.lognormal(0, 0.02)
            known = {} if cell.candidate == unserved else {"served_config": served(cell.candidate)}
            trials.append(
                Trial(
                    trial_id=f"t{len(trials) + 1}",
                    study_id="s7",
                    state=TrialState.FINISHED,
                    model="mnist",
                    configuration=configurations[cell.candidate],
                    plan=loads[cell.load],
                    labels={},
                    note="=1+1",
                    measurement=measurement(ips, 1e3 * CLIENTS[cell.load] / ips),
                    provenance={"triton_version": "2.51.0", "machine": {"cores": 2}, "model_version": 1, **known},
                    error=None,
                    created_at=1000.0,
                    finished_at=1000.0 + 15 * len(trials),
                    round=round,
                    attempt=1,
                    cell=cell,
                )
            )
    return job, study_result.document(job, trials)


def html(job: Job, document: dict[str, Any]) -> str:
    return report_html.page(document, report.json_text(job, document))


# --- HTML ------------------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_and_forbids_itself_to() -> None:
    page = html(*study())
    assert not re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//""", page)
    assert "<link" not in page
    assert "default-src 'none'" in page
    assert len(re.findall(r"window\.vegaEmbed ?= ?", page)) == 1


def test_the_page_holds_verdicts_in_words_charts_the_data_and_every_configuration() -> None:
    job, document = study()
    page = html(job, document)
    assert "★ " + document["best"]["label"] in page
    assert "no difference shown" in page
    assert "class='said worse'" in page
    specs = json.loads(re.search(r'id="specs">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    descriptions = " ".join(str(spec["description"]) for spec in specs.values())
    for part in (
        "Scatter plot of throughput",
        "at each load",
        "as a change of the baseline's",
        "Stacked bar",
        "repeated",
    ):
        assert part in descriptions
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    assert data["study"]["trials"] == document["trials"]
    assert sorted(data["config_pbtxt"]) == ["0", "1", "2"]


def test_what_people_wrote_is_text_and_no_markup() -> None:
    hostile = "</script><script>alert(1)</script><img src=http://x onerror=y>"
    page = html(*study(label=hostile, note=hostile))
    assert "<script>alert" not in page
    assert "<img" not in page.partition("<body>")[2].partition("<script>")[0]


def test_a_study_without_a_finished_trial_has_a_page_too() -> None:
    job, _ = study()
    page = html(job, study_result.document(job, []))
    assert "No best configuration" in page


# --- rows ------------------------------------------------------------------------------------------------------------


def test_a_trial_is_one_row_with_flat_configuration_load_and_intervals() -> None:
    _, document = study()
    rows = report.trial_rows(document)
    assert len(rows) == len(document["trials"])
    row = rows.iloc[0]
    assert (row["trial_id"], row["round"], row["role"], row["max_queue_delay_microseconds"]) == (
        "t1",
        1,
        "measure",
        100,
    )
    assert (row["concurrency"], row["driver"], row["warnings"]) == (2, "locust", "unstable")
    assert row["p99_ms_low"] < row["p99_ms"] < row["p99_ms_high"]
    assert row["server_batch_sizes"] == "4:30 1:20"


def test_parquet_and_csv_hold_the_same_rows(tmp_path: Path) -> None:
    job, document = study()
    for ending in (".csv", ".parquet"):
        exports.export(job, document, tmp_path / f"study{ending}")
    csv, parquet = pd.read_csv(tmp_path / "study.csv"), pd.read_parquet(tmp_path / "study.parquet")
    assert list(csv.columns) == list(parquet.columns)
    assert csv["throughput_ips"].to_numpy() == pytest.approx(parquet["throughput_ips"].to_numpy())


def test_a_spreadsheet_is_given_no_formula() -> None:
    _, document = study()
    assert set(pd.read_csv(io.StringIO(report.csv_text(report.trial_rows(document))))["note"]) == {"'=1+1"}


def test_windows_are_one_row_a_second_of_the_samples_that_are_kept() -> None:
    _, document = study()
    intended = np.arange(0, 10 * SECOND, SECOND // 200)
    done = intended + 2_000_000
    zeros = np.zeros(len(intended), np.int8)
    samples = Samples(intended, intended, done, zeros, zeros.astype(np.int16))
    rows = report.window_rows(document, lambda trial_id: samples if trial_id == "t2" else None)
    assert set(rows["trial_id"]) == {"t2"}
    assert list(rows["elapsed_s"]) == [second + 0.5 for second in range(10)]
    assert rows["p50_ms"].to_numpy() == pytest.approx(2.0)
    assert rows["p99_ms"].to_numpy() == pytest.approx(2.0)
    assert rows["throughput_ips"].iloc[5] == 200
    with pytest.raises(InputError, match="No samples of s7 are kept"):
        report.window_rows(document, lambda _: None)


# --- config.pbtxt ----------------------------------------------------------------------------------------------------


def test_the_winning_configuration_says_where_it_came_from_and_can_be_read() -> None:
    _, document = study()
    text = report.winning_config(document)
    comment = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    for words in ("s7 of mnist.", "1970-01-01", "Triton 2.51.0", "highest throughput", "The best of 3"):
        assert words in comment
    config = model_config.parse(text)
    assert config.message.name == "mnist"
    best = Configuration.from_dict(document["best"]["configuration"])
    assert config.configuration.max_queue_delay_microseconds == best.max_queue_delay_microseconds


def test_no_name_of_a_variant_and_nothing_of_the_embedded_server_is_left_in_it() -> None:
    text = report.config_text(study()[1], 1)
    assert text is not None
    assert ".tritune-c" not in text
    assert "model.py" not in text


def test_a_configuration_says_how_it_stands_against_the_baseline() -> None:
    assert "2 clients, against the baseline: throughput -8" in str(report.config_text(study()[1], 2))


def test_a_configuration_that_no_server_told_is_the_baselines_with_the_change() -> None:
    text = report.config_text(study(unserved=2)[1], 2)
    assert text is not None
    assert model_config.parse(text).configuration.max_queue_delay_microseconds == 4000


def test_a_label_with_a_line_break_stays_inside_the_comment() -> None:
    text = report.config_text(study(label="delay\nname: 'evil'")[1], 0)
    assert text is not None
    assert model_config.parse(text).message.name == "mnist"


def test_without_a_best_configuration_there_is_no_winning_one() -> None:
    job, _ = study()
    with pytest.raises(InputError, match="names no best configuration"):
        report.winning_config(study_result.document(job, []))


# --- files -----------------------------------------------------------------------------------------------------------


def test_an_ending_says_what_is_written(tmp_path: Path) -> None:
    job, document = study()
    with pytest.raises(InputError, match=r"no ending that says what to write"):
        exports.export(job, document, tmp_path / "study.txt")
    with pytest.raises(InputError, match=r"Windows are rows"):
        exports.export(job, document, tmp_path / "study.json", windows=pd.DataFrame())
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_is_one_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    job, document = study()
    with pytest.raises(StoreError, match="could not be written"):
        exports.export(job, document, tmp_path / "missing" / "study.json")
    assert not list(tmp_path.iterdir())


def test_json_has_no_nan(tmp_path: Path) -> None:
    job, document = study()
    document["trials"][0]["latency_ms"]["mean"] = float("nan")
    exports.export(job, document, tmp_path / "study.json")
    assert json.loads((tmp_path / "study.json").read_text())["study"]["trials"][0]["latency_ms"]["mean"] is None
