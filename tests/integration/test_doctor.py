"""The doctor against a real Triton: what it says of the server, and its catalogue against Triton's own log."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tritune import servers
from tritune.doctor import of_log, of_repository, of_server, remedies
from tritune.errors import TritonRefusedError
from tritune.repository import ModelRepository
from tritune.servers import ServerStatus
from tritune.settings import Settings
from tritune.triton import Triton

CONFIG = """platform: "onnxruntime_onnx"
max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [4] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [4] } ]
"""
Publish = Callable[..., Path]

# A change of a good configuration, and the entry of the catalogue that Triton's own words about it must be.
FAULTS = [
    ("name", '"x"', '"input.1"', "tensor_name"),
    ("field", "max_batch_size", "batching_option", "unknown_field"),
    ("syntax", "max_batch_size:", "max_batch_size: {", "config_syntax"),
    ("folder", "platform", 'name: "other" platform', "folder_name"),
    ("preferred", "max_batch_size: 8", "max_batch_size: 8 dynamic_batching { preferred_batch_size: 9 }",
     "preferred_above_maximum"),
    ("gpu", "max_batch_size: 8", "max_batch_size: 8 instance_group [ { kind: KIND_GPU } ]", "kind_gpu_without_gpu"),
    ("backend", 'platform: "onnxruntime_onnx"', 'backend: "openvino"', "backend_missing"),
]  # fmt: skip


def codes(report: Any) -> set[str]:
    return {one.finding.code for one in report.findings}


@pytest.mark.parametrize(("name", "old", "new", "code"), FAULTS, ids=[fault[0] for fault in FAULTS])
def test_what_triton_itself_logs_is_in_the_catalogue(
    installation: Settings, triton: Triton, publish: Publish, name: str, old: str, new: str, code: str
) -> None:
    folder = publish(installation.model_repo, f"doctor_{name}", config=CONFIG.replace(old, new, 1))
    start = installation.server_log.stat().st_size
    try:
        with pytest.raises(TritonRefusedError):
            triton.load(folder.name)
        said = installation.server_log.read_bytes()[start:]
        found = of_log.diagnose([said], "log")
        assert code in codes(found), said.decode()
        assert "unknown_error" not in codes(found), [one.finding.seen for one in found.findings]
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def test_a_model_that_is_refused_is_mended_loaded_and_put_back(
    installation: Settings, triton: Triton, publish: Publish
) -> None:
    folder = publish(installation.model_repo, "doctor_patient", config=CONFIG.replace('"x"', '"input.1"'))
    repository = ModelRepository(installation.model_repo)
    with pytest.raises(TritonRefusedError):
        triton.load("doctor_patient")

    refused = [one for one in of_server.diagnose(installation).findings if one.model == "doctor_patient"]
    assert [one.finding.severity for one in refused] == ["error"]
    assert "input.1" in refused[0].finding.seen
    assert refused[0].remedy is not None

    (wrong,) = (
        one
        for one in of_repository.diagnose(installation).findings
        if one.model == "doctor_patient" and one.finding.code == "tensor_name"
    )
    assert wrong.remedy is not None
    remedies.apply(installation, repository, "doctor_patient", wrong.remedy)
    triton.load("doctor_patient")
    seen = {checked.seen for checked in of_server.diagnose(installation).checked if checked.what == "doctor_patient"}
    assert "serves what is written" in seen

    (folder / "config.pbtxt").write_text((folder / "config.pbtxt").read_text().replace("8", "4"))
    differs = [one for one in of_server.diagnose(installation).findings if one.model == "doctor_patient"]
    assert [one.finding.code for one in differs] == ["not_in_effect"]
    triton.unload("doctor_patient")


def test_a_running_server_is_looked_at(installation: Settings, triton_server: ServerStatus) -> None:
    report = of_server.diagnose(installation)
    seen = {checked.what for checked in report.checked}
    assert {"Triton", "Model control", "Statistics", "Metrics"} <= seen
    broken = [one for one in report.findings if one.model == "broken"]
    assert [one.finding.severity for one in broken] == ["error"]


def test_the_log_of_a_healthy_start_holds_no_error(new_installation: Callable[[], Settings], port_base: Any) -> None:
    settings = new_installation()
    settings.model_repo.mkdir(parents=True)
    servers.start(settings, port_base=port_base())
    report = of_log.diagnose(of_log.file(settings.server_log), "log")
    assert report.errors == 0, [one.finding.seen for one in report.findings]
    # Without a GPU its absence is told as harmless.
    assert codes(report) <= {"no_nvml", "pinned_memory"}


def test_a_log_that_is_followed_is_told_while_it_grows_and_ends_with_one_document(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text("")
    environment = {**os.environ, "TRITUNE_RESULTS": str(tmp_path / "results")}
    command = [sys.executable, "-m", "tritune", "doctor", "--follow", "--log", str(log)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        with log.open("a") as out:
            out.write("inference request batch-size must be <= 8 for 'm'\n")
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert first.startswith("error (line 1): inference request batch-size")
    assert process.returncode == 3

    done = subprocess.run(
        [*command[:-3], "--log", str(log), "--json"], capture_output=True, text=True, env=environment, timeout=60
    )
    assert done.returncode == 3
    assert [found["code"] for found in json.loads(done.stdout)["findings"]] == ["request_too_large"]
