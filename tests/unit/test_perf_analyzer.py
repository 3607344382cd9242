"""perf_analyzer is found or missed in one sentence; its export is read from any pieces."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path
from typing import Any

import pytest

from loadgen import perf_analyzer
from loadgen.profile_export import ProfileReader
from tritune.errors import LoadTestError
from tritune.load_plan import Arrivals, Driver, GeneratorPlan, LoadPlan, Protocol
from tritune.plan import Endpoints, Signature, TensorSpec
from tritune.settings import Settings

SIGNATURE = Signature((TensorSpec("x", "FP32", (-1, 4)),), (TensorSpec("y", "FP32", (4,)),), 8)


def export(rows: list[tuple[int, list[int]]]) -> bytes:
    requests = [
        {
            "timestamp": sent,
            "request_inputs": {"x": [0.0625, 1.0]},
            "response_timestamps": answered,
            "response_outputs": [{"y": [-8.9]}],
        }
        for sent, answered in rows
    ]
    experiment = {"experiment": {"mode": "concurrency", "value": 1}, "requests": requests, "window_boundaries": [1, 2]}
    return json.dumps({"experiments": [experiment], "version": ""}, separators=(",", ":")).encode()


def test_the_export_is_read_whatever_its_pieces_are() -> None:
    rows = [(1796006729665754204 + number, [1796006729726263873 + number]) for number in range(200)]
    data = export(rows[::-1])
    chance = random.Random(0)
    for _ in range(20):
        reader, position = ProfileReader(), 0
        while position < len(data):
            size = chance.choice([1, 7, 64, 5000])
            reader.feed(data[position : position + size])
            position += size
        assert reader.times().tolist() == [[sent, answered[0]] for sent, answered in rows]


def test_a_request_in_flight_at_the_end_has_no_time() -> None:
    reader = ProfileReader()
    reader.feed(export([(5, [9]), (6, []), (7, [10, 12])]))
    assert reader.times().tolist() == [[5, 9], [7, 12]]


def test_an_empty_export_has_no_requests() -> None:
    assert ProfileReader().times().shape == (0, 2)


def settings(folder: Path) -> Settings:
    return dataclasses.replace(Settings.from_env({}), embedded_env=folder)


def script(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "perf_analyzer").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "perf_analyzer").chmod(0o755)


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH of one empty folder, and no Python environment with a perf_analyzer."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr("sys.executable", str(tmp_path / "venv" / "bin" / "python"))
    return tmp_path


def test_the_first_one_that_starts_is_used(empty_path: Path) -> None:
    script(empty_path / "bin", "echo 'libb64.so.0d: cannot open shared object file' >&2; exit 127")
    script(empty_path / "env" / "bin", "echo 'Perf Analyzer Version 2.50'")
    tool = perf_analyzer.find(settings(empty_path / "env"))
    assert tool.path == empty_path / "env" / "bin" / "perf_analyzer"


def test_none_found_is_one_sentence_with_the_next_step(empty_path: Path) -> None:
    with pytest.raises(LoadTestError, match=r"none on PATH.*tritune setup.*--driver locust"):
        perf_analyzer.find(settings(empty_path / "env"))


def test_one_that_does_not_start_is_named_with_its_reason(empty_path: Path) -> None:
    script(empty_path / "bin", "echo 'version GLIBC_2.38 not found' >&2; exit 1")
    with pytest.raises(LoadTestError, match=r"does not start .version GLIBC_2\.38 not found"):
        perf_analyzer.find(settings(empty_path / "env"))


def command(load: dict[str, Any], **endpoints: Any) -> str:
    plan = GeneratorPlan(
        LoadPlan("m", driver=Driver.PERF_ANALYZER, duration_s=10, **load),
        Endpoints(**{"http": "h:1", "grpc": "g:2", **endpoints}),
        SIGNATURE,
    )
    tool = perf_analyzer.Tool(Path("perf_analyzer"), {})
    return " ".join(perf_analyzer.command(tool, plan, Path("in.json"), Path("out.json")))


def test_a_closed_loop_asks_for_one_concurrency() -> None:
    line = command({"concurrency": 16, "batch": 4, "shapes": {"x": (3, 4)}})
    assert "-m m -b 4" in line
    assert "--concurrency-range 16" in line
    assert "-i http -u h:1" in line
    assert "--shape x:3,4" in line


def test_an_open_loop_asks_for_rate_and_distribution() -> None:
    line = command({"rate_rps": 250.5, "arrivals": Arrivals.POISSON, "protocol": Protocol.GRPC})
    assert "--request-rate-range 250.5 --request-distribution poisson" in line
    assert "-i grpc -u g:2" in line


def test_headers_and_tls_are_passed_on() -> None:
    line = command({"concurrency": 1}, headers={"Key": "Value"}, tls={"ca": "ca.pem", "verify": False})
    assert "-u https://h:1 -H Key:Value" in line
    assert "--ssl-https-verify-peer 0 --ssl-https-verify-host 0 --ssl-https-ca-certificates-file ca.pem" in line


def test_grpc_without_an_address_is_one_sentence() -> None:
    with pytest.raises(LoadTestError, match="has no gRPC address"):
        command({"concurrency": 1, "protocol": Protocol.GRPC}, grpc=None)


@pytest.mark.parametrize("duration_s", [1.0, 600.0])
def test_it_is_asked_for_few_more_windows_than_it_needs(tmp_path: Path, duration_s: float) -> None:
    """It makes its whole schedule of a rate beforehand: a million windows at 500/s cost minutes and gigabytes."""
    load = LoadPlan(
        model="m", driver=Driver.PERF_ANALYZER, rate_rps=500.0, arrivals=Arrivals.POISSON, duration_s=duration_s
    )
    plan = GeneratorPlan(load, Endpoints("127.0.0.1:1"), SIGNATURE)
    tool = perf_analyzer.Tool(tmp_path / "perf_analyzer", {})
    arguments = perf_analyzer.command(tool, plan, tmp_path / "inputs", tmp_path / "export")
    windows = int(arguments[arguments.index("--max-trials") + 1])
    needed = (load.warmup_s + duration_s) * 1000 / perf_analyzer.WINDOW_MS
    assert needed + 5 < windows <= needed + 30
