"""Imports: recognised by content, units right, marked as imported, and a broken file is one sentence."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tritune import imports
from tritune.errors import InputError
from tritune.plan import TrialState

PERF_ANALYZER = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency
1,1299.16,83,272,27,15,1072,61,0,1106,1456,3132,5868
2,1938.17,117,557,41,16,1266,52,0,1853,3047,3738,6054
"""
MODEL_ANALYZER = """\
Model,Batch,Concurrency,Model Config Path,Instance Group,Max Batch Size,Satisfies Constraints,\
Throughput (infer/sec),p99 Latency (ms)
mnist,1,8,mnist_config_2,2:CPU,16,Yes,3721.1,4.2
mnist,1,8,mnist_config_default,1:CPU,32,Yes,3326.0,5.1
mnist,1,1,mnist_config_2,2:CPU,16,No,310.4,4.4

"""
LOCUST_STATS = """\
Type,Name,Request Count,Failure Count,Median Response Time,Average Response Time,Min Response Time,\
Max Response Time,Average Content Size,Requests/s,Failures/s,50%,66%,75%,80%,90%,95%,98%,99%,99.9%,99.99%,100%
POST,/v2/models/mnist/infer,4511,11,1,3.3,0.53,55.1,0.0,900.0,2.2,3,3,4,4,4,5,6,7,24,55,55
,Aggregated,4511,11,1,3.3,0.53,55.1,0.0,900.0,2.2,3,3,4,4,4,5,6,7,24,55,55
"""
LOCUST_HISTORY = """\
Timestamp,User Count,Type,Name,Requests/s,Failures/s,50%,66%,75%,80%,90%,95%,98%,99%,99.9%,99.99%,100%,\
Total Request Count,Total Failure Count,Total Median Response Time,Total Average Response Time,\
Total Min Response Time,Total Max Response Time,Total Average Content Size
1796025317,0,,Aggregated,0.0,0.0,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,N/A,0,0,0,0.0,0,0,0
1796025318,3,,Aggregated,0.0,0.0,1,1,2,2,4,6,7,9,55,55,55,1000,0,1,1.9,0.5,55.1,13.7
1796025319,3,,Aggregated,0.0,0.0,1,1,2,2,4,6,7,10,35,55,55,2000,0,1,1.9,0.5,55.1,13.5
1796025320,3,,Aggregated,0.0,0.0,1,1,2,2,4,6,7,8,35,55,55,3100,0,1,1.8,0.5,55.1,13.5
"""
NS = 1_000_000_000
START = 1_796_025_657 * NS


def profile_export(levels: dict[float, int], *, mode: str = "concurrency", pretty: bool = False) -> str:
    """perf_analyzer's document: `levels` are a load and how many requests of 2 ms it answered, one every 5 ms."""
    experiments = []
    for value, count in levels.items():
        times = [START + number * 5_000_000 for number in range(count)]
        requests = [
            {"timestamp": at, "request_inputs": {"x": [0.0] * 40}, "response_timestamps": [at + 2_000_000]}
            for at in times
        ]
        edges = [START + edge * NS for edge in range(count // 200 + 1)]
        experiments.append(
            {"experiment": {"mode": mode, "value": value}, "requests": requests, "window_boundaries": edges}
        )
    document = {"experiments": experiments, "version": "2.50.0", "service_kind": "triton", "endpoint": ""}
    return json.dumps(document, indent=2 if pretty else None, separators=None if pretty else (",", ":"))


def aiperf(count: int = 1000) -> str:
    rows = []
    for number in range(count):
        at = START + number * 5_000_000
        about: dict[str, Any] = {"session_num": number, "request_start_ns": at, "request_end_ns": at + 20_000_000}
        about |= {"benchmark_phase": "warmup" if number < 100 else "profiling", "was_cancelled": False}
        latency = {"request_latency": {"value": 20.0, "unit": "ms"}}
        rows.append({"metadata": about, "metrics": latency, "error": {"code": 500} if number == 500 else None})
    return "\n".join(json.dumps(row) for row in rows) + "\n"


Read = Callable[..., imports.Study]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Import a text, or bytes, that stands in a file whose name says nothing."""

    def of(content: str | bytes, **options: Any) -> imports.Study:
        path = tmp_path / "results of mine.dat"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return imports.read(path, **options)

    return of


# --- what is read ----------------------------------------------------------------------------------------------------


def test_perf_analyzers_table_is_in_microseconds(read: Read) -> None:
    study = read(PERF_ANALYZER, name="mnist")
    first, second = (trial.measurement or {} for trial in study.trials)
    assert study.format == "perf_analyzer CSV"
    assert [trial.plan.concurrency for trial in study.trials] == [1, 2]
    assert first["throughput_ips"] == {"value": 1299.16, "ci95": None}
    assert first["latency_ms"]["p50"] == pytest.approx(1.106)
    assert second["latency_ms"]["p99"]["value"] == pytest.approx(6.054)
    assert second["latency_ms"]["p99"]["ci95"] is None
    assert second["server"]["compute_infer_us"] == 1266


def test_a_table_of_rates_is_an_open_loop(read: Read) -> None:
    study = read(PERF_ANALYZER.replace("Concurrency", "Request Rate"))
    assert [trial.plan.rate_rps for trial in study.trials] == [1.0, 2.0]
    assert (study.trials[0].measurement or {})["loop"] == "open"


def test_model_analyzers_table_has_a_configuration_for_each_variant(read: Read) -> None:
    study = read(MODEL_ANALYZER)
    assert study.payload["model"] == "mnist"
    labels = [row["label"] for row in study.payload["candidates"]]
    assert labels == ["mnist_config_2 · max batch 16 · 2:CPU", "mnist_config_default · max batch 32 · 1:CPU"]
    assert [(trial.cell.candidate, trial.cell.load) for trial in study.trials if trial.cell] == [(0, 0), (1, 0), (0, 1)]


def test_locusts_table_gives_what_succeeded_and_the_mean_number_in_flight(read: Read) -> None:
    (trial,) = read(LOCUST_STATS).trials
    found = trial.measurement or {}
    assert trial.plan.concurrency == 3  # 900/s of 3.3 ms
    assert found["throughput_ips"]["value"] == pytest.approx(900 * 4500 / 4511)
    assert found["requests"]["failed"] == 11
    assert (found["latency_ms"]["p99"]["value"], found["latency_ms"]["p999"]["value"]) == (7, 24)


def test_locusts_history_is_counted_between_the_ends_of_a_level(read: Read) -> None:
    (trial,) = read(LOCUST_HISTORY).trials
    found = trial.measurement or {}
    assert (trial.plan.concurrency, found["throughput_ips"]["value"]) == (3, 1050)
    assert found["latency_ms"]["p99"]["value"] == 8
    assert trial.created_at == 1796025318


def test_percentiles_over_several_levels_are_not_taken_for_those_of_one(read: Read) -> None:
    later = LOCUST_HISTORY.splitlines()[-1].replace(",3,,", ",9,,")
    rows = [later.replace("1796025320", str(1796025321 + s)).replace("3100", str(3100 + 900 * s)) for s in range(3)]
    study = read(LOCUST_HISTORY + "\n".join(rows))
    assert [trial.plan.concurrency for trial in study.trials] == [3, 9]
    assert all((trial.measurement or {})["latency_ms"]["p99"]["value"] is None for trial in study.trials)


@pytest.mark.parametrize("pretty", [False, True])
def test_a_profile_export_has_intervals_of_our_own_for_each_level(read: Read, pretty: bool) -> None:
    study = read(profile_export({1: 2000, 4: 3000}, pretty=pretty))
    assert [trial.plan.concurrency for trial in study.trials] == [1, 4]
    found = study.trials[1].measurement or {}
    assert found["window_s"] == 3  # the last three windows, as perf_analyzer's own figures
    assert found["throughput_ips"]["value"] == pytest.approx(200, rel=0.01)
    assert found["throughput_ips"]["ci95"] is not None
    assert found["latency_ms"]["p99"]["value"] == pytest.approx(2.0)
    assert found["latency_ms"]["p99"]["ci95"] is not None
    assert study.samples[1] is not None
    assert len(study.samples[1]) == 3000


def test_a_profile_export_is_read_whatever_its_pieces_are(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = read(profile_export({1: 700, 4: 900}))
    monkeypatch.setattr("tritune.importers.requests._PIECE", 3001)
    monkeypatch.setattr("tritune.importers.requests._KEEP", 700)
    pieces = read(profile_export({1: 700, 4: 900}))
    assert [trial.measurement for trial in pieces.trials] == [trial.measurement for trial in whole.trials]


def test_aiperfs_records_are_measured_without_the_warmup(read: Read) -> None:
    (trial,) = read(aiperf()).trials
    found = trial.measurement or {}
    assert trial.plan.concurrency == 4  # one every 5 ms, 20 ms each
    assert (found["requests"]["failed"], found["latency_ms"]["p50"]) == (1, pytest.approx(20.0))
    assert found["latency_ms"]["p99"]["ci95"] is not None


@pytest.mark.parametrize(
    "content", [PERF_ANALYZER, MODEL_ANALYZER, LOCUST_STATS, LOCUST_HISTORY, profile_export({1: 600}), aiperf()]
)
def test_every_row_says_that_it_is_imported_and_what_the_file_left_open(read: Read, content: str) -> None:
    for trial in read(content).trials:
        assert trial.provenance["imported_from"]["file"] == "results of mine.dat"
        (warning,) = [each for each in (trial.measurement or {})["warnings"] if each["code"] == "imported"]
        assert "Tritune did not measure it" in warning["message"]


def test_without_a_name_the_model_is_called_as_the_file(read: Read) -> None:
    assert read(PERF_ANALYZER).payload["model"] == "results_of_mine"
    assert read(MODEL_ANALYZER, name="other").trials[0].model == "other"


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "nothing that can be imported"),
        ("a,b\n1,2\n", "nothing that can be imported. What can: a study's .json"),
        (b"\x00\x01\xff\xfe" * 100, "nothing that can be imported"),
        (PERF_ANALYZER.encode("utf-16"), "nothing that can be imported"),
        (PERF_ANALYZER.encode() + b"\xff\xff", "no UTF-8 text"),
        (PERF_ANALYZER.splitlines()[0] + "\n", "no rows"),
        (PERF_ANALYZER.replace("1299.16", "1e999"), "no number of at least 0"),
        (PERF_ANALYZER.replace("1299.16", "-3"), "no number of at least 0"),
        (PERF_ANALYZER.replace("1299.16", "=cmd|' /C calc'!A0"), "no number of at least 0"),
        (PERF_ANALYZER.replace("\n1,", "\n99999999,"), "concurrency=99999999 must be a whole number"),
        (PERF_ANALYZER.replace("\n1,", "\n0,"), "neither a concurrency nor a request rate"),
        (MODEL_ANALYZER.replace("mnist,1,8", "../../etc,1,8", 2).replace("mnist,1,1", "../../etc,1,1"), "no name here"),
        (MODEL_ANALYZER.replace("mnist,1,1", "other,1,1"), "has 2 models"),
        (profile_export({1: 0}), "no answered request"),
        ('{"experiments":[{"exper', "was cut"),
        (aiperf()[:-100], "Line 1,000 of"),
        ('{"format": "tritune-study"', "it was cut or changed"),
        ('{"format": "tritune-study", "format_version": 99, "tritune_version": "9"}', "is of a later Tritune"),
        ('{"format": "tritune-study", "format_version": 1, "a": ' + "[" * 100_000, "it was cut or changed"),
    ],
)
def test_what_cannot_be_imported_is_one_sentence(read: Read, content: str | bytes, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(content)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_that_is_none_is_refused(read: Read) -> None:
    with pytest.raises(InputError, match="no name of a model"):
        read(PERF_ANALYZER, name="../x")


@pytest.mark.parametrize(
    "content", [PERF_ANALYZER, LOCUST_HISTORY, MODEL_ANALYZER, profile_export({1: 300}), aiperf(300)]
)
def test_no_damage_is_worse_than_a_sentence(read: Read, content: str) -> None:
    chance, data = random.Random(0), content.encode()
    for _ in range(40):
        broken = bytearray(data[: chance.randrange(1, len(data))] if chance.random() < 0.5 else data)
        for _ in range(chance.randrange(3)):
            broken[chance.randrange(len(broken))] = chance.randrange(256)
        with contextlib.suppress(InputError):
            assert all(trial.state is TrialState.FINISHED for trial in read(bytes(broken)).trials)


def test_a_table_that_is_too_large_is_not_read(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tritune.importers.rows.MAX_ROWS", 1)
    with pytest.raises(InputError, match="more than 1 rows"):
        read(PERF_ANALYZER)
