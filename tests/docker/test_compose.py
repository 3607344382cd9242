"""docker-compose.yml: valid, closed to the network, and its cpu profile brought up with a load test through it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from tritune.settings import ROOT

APP_WITHOUT = "torch|vl-convert-python|onnxslim|optuna"  # as in conftest: what the wheels in the base image leave out
UP_S = 60.0


@pytest.fixture(scope="module")
def compose() -> Callable[..., str]:
    """Run docker-compose (Debian's 1.29.2) or Compose v2 on the project's file; its output."""
    command = ["docker-compose"] if shutil.which("docker-compose") else ["docker", "compose"]
    if shutil.which(command[0]) is None:
        if os.environ.get("TRITUNE_DOCKER_TESTS") == "required":
            pytest.fail("docker-compose is not installed.")
        pytest.skip("docker-compose is not installed (apt-get install docker-compose)")

    def run(*arguments: str, **environment: str) -> str:
        answer = subprocess.run(
            [*command, "--project-name", f"tritune-test-{os.getpid()}", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
        return answer.stdout

    return run


def services(compose: Callable[..., str], *profiles: str, **environment: str) -> dict[str, Any]:
    """The services of the file as compose understands it."""
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    found: dict[str, Any] = yaml.safe_load(compose(*chosen, "config", **environment))["services"]
    return found


def test_the_file_is_valid_with_both_profiles(compose: Callable[..., str]) -> None:
    both = services(compose, "cpu", "gpu")
    assert set(both) == {"app", "worker", "locust", "triton-cpu", "triton-gpu"}
    assert both["triton-gpu"]["image"] == "nvcr.io/nvidia/tritonserver:24.06-py3"
    (device,) = both["triton-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    shared = {name: {volume_source(volume) for volume in both[name]["volumes"]} for name in both}
    assert shared["app"] == shared["worker"] == shared["locust"]
    assert shared["triton-cpu"] == shared["triton-gpu"] < shared["app"]


def volume_source(volume: Any) -> str:
    """Where a volume comes from, in compose's short or long form."""
    return str(volume["source"]) if isinstance(volume, dict) else str(volume).split(":")[0]


def published(document: dict[str, Any]) -> list[str]:
    """host address of every published port, in compose's short or long form."""
    ports = [port for service in document.values() for port in service.get("ports") or []]
    return [port["host_ip"] if isinstance(port, dict) else str(port).split(":")[0] for port in ports]


def test_only_the_app_is_published_and_only_to_this_machine_unless_asked_for(compose: Callable[..., str]) -> None:
    assert published(services(compose, "cpu", "gpu")) == ["127.0.0.1"]
    assert published(services(compose, "cpu", "gpu", TRITUNE_PUBLISH="0.0.0.0")) == ["0.0.0.0"]


def test_the_file_says_so_to_a_reader_too() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert len(re.findall(r"^ {4}ports:", text, re.M)) == 1
    assert "0.0.0.0:" not in text.replace("TRITUNE_LOCUST_MASTER: 0.0.0.0:5557", "")


# --- the cpu profile -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def up(
    compose: Callable[..., str],
    base_image: str,
    cpu_image: str,
    publish: Callable[..., None],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, str]]:
    """The cpu profile with two Locust workers; the environment that its compose commands need."""
    folder: Path = tmp_path_factory.mktemp("compose")
    publish(folder / "models", "double")
    (folder / "results").mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        "TRITUNE_BASE_IMAGE": base_image,
        "TRITUNE_WITHOUT": APP_WITHOUT,
        "TRITUNE_APP_IMAGE": "tritune-test-app",
        "TRITUNE_CPU_IMAGE": cpu_image,
        "TRITUNE_MODEL_REPO": str(folder / "models"),
        "TRITUNE_RESULTS": str(folder / "results"),
        "TRITUNE_APP_PORT": str(port),
    }
    compose("--profile", "cpu", "build", **environment)
    try:
        compose("--profile", "cpu", "up", "--detach", "--scale", "locust=2", **environment)
        yield environment
    finally:
        compose("--profile", "cpu", "down", "--timeout", "3", "--volumes", **environment)


def tritune(compose: Callable[..., str], environment: dict[str, str], *arguments: str) -> dict[str, Any]:
    """Run `tritune … --json` beside the worker and give its document."""
    text = compose("--profile", "cpu", "exec", "-T", "worker", "tritune", *arguments, "--json", **environment)
    document: dict[str, Any] = json.loads(text)
    return document


def test_the_app_answers_on_this_machine(up: dict[str, str]) -> None:
    url = f"http://127.0.0.1:{up['TRITUNE_APP_PORT']}/_stcore/health"
    deadline = time.monotonic() + UP_S
    with urllib3.PoolManager(retries=False, timeout=5) as pool:
        while True:
            try:
                answer = pool.request("GET", url)
                break
            except urllib3.exceptions.HTTPError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
    assert answer.data == b"ok"


def test_a_load_test_runs_through_locust_workers_of_their_own(compose: Callable[..., str], up: dict[str, str]) -> None:
    deadline = time.monotonic() + UP_S
    while tritune(compose, up, "server", "status")["state"] != "ready":
        assert time.monotonic() < deadline
        time.sleep(0.1)
    tuned = tritune(compose, up, "tune", "double", "--max-batch-size", "8")
    assert tuned["served"]["max_batch_size"] == 8
    measured = tritune(
        compose, up, *("load", "double", "--workers", "2", "--rate", "200", "--duration", "2", "--warmup", "0.5")
    )
    assert measured["state"] == "finished"
    assert measured["requests"]["failed"] == 0
    assert measured["requests"]["ok"] == pytest.approx(400, abs=8)  # all of the schedule, by the two together
    assert "clock_mapping" in {note["code"] for note in [*measured.get("notes", []), *measured["warnings"]]}
    log = Path(up["TRITUNE_RESULTS"], "trials", measured["trial_id"], "generator.log").read_text()
    assert "to 2 ready workers" in log


def test_more_locust_workers_than_are_asked_for_are_told_and_not_measured(
    compose: Callable[..., str], up: dict[str, str]
) -> None:
    compose("--profile", "cpu", "up", "--detach", "--scale", "locust=3", **up)
    arguments = ("load", "double", "--workers", "2", "--concurrency", "2", "--duration", "30", "--warmup", "0.5")
    with pytest.raises(AssertionError, match=r"A Locust worker too many .* asks for 2\. Ask for as many"):
        tritune(compose, up, *arguments)
