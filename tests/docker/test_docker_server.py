"""The Docker server against a real engine: start, tune, load-test, stop, adopt, and everything that goes wrong."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import urllib3

from tritune import servers
from tritune.errors import ServerDownError, ServerError
from tritune.servers import ServerKind, ServerState, engine, images, launch, record
from tritune.settings import Settings

Containers = Callable[[Settings], list[Any]]


@pytest.fixture(scope="module")
def started(installation: Any, cpu_image: str, port_base: Callable[[], int]) -> dict[str, Any]:
    """What `tritune server start --kind docker` printed."""
    found: dict[str, Any] = installation.tritune(
        *("server", "start", "--kind", "docker", "--image", cpu_image, "--gpus", "none"),
        "--port-base",
        str(port_base()),
    )
    return found


def start(settings: Settings, image: str, port: int, gpus: str | None = "none") -> list[str]:
    """Start a container; what was said meanwhile."""
    said: list[str] = []
    servers.start(settings, ServerKind.DOCKER, image=image, gpus=gpus, port_base=port, progress=said.append)
    return said


def test_a_container_serves_the_repository_and_one_bad_model_stops_nothing(
    installation: Any, started: dict[str, Any], cpu_image: str, containers: Containers
) -> None:
    assert (started["state"], started["kind"], started["triton_version"]) == ("ready", "docker", "2.51.0")
    assert "Loaded double." in started["messages"]
    assert "Triton refused to load broken" in started["messages"]
    (container,) = containers(installation.settings)
    assert container["State"]["Status"] == "running"
    assert container["HostConfig"]["ShmSize"] == 2**30
    (mount,) = container["Mounts"]
    assert (mount["Source"], mount["RW"]) == (str(installation.settings.model_repo), False)
    published = container["NetworkSettings"]["Ports"].values()
    assert {entry["HostIp"] for entries in published for entry in entries or []} == {"127.0.0.1"}
    with servers.connect(installation.settings) as triton:
        states = {entry["name"]: entry.get("state") for entry in triton.index()}
        assert states == {"broken": "UNAVAILABLE", "double": "READY"}
        assert triton.metrics()
        assert triton.gpu() is None
    limits = servers.onnx_limits(installation.settings)
    assert limits is not None
    assert limits.onnxruntime == images.limits_of("1.32.0").onnxruntime  # type: ignore[union-attr]
    assert "successfully loaded 'double'" in installation.tritune("server", "logs")["log"]


def test_model_control_asks_for_the_header(started: dict[str, Any]) -> None:
    url = f"http://{started['http']}/v2/repository/index"
    assert urllib3.request("POST", url, json={}).status == 403
    name, _, value = started["control_header"].partition(": ")
    assert urllib3.request("POST", url, json={}, headers={name: value}).status == 200


def test_a_model_is_tuned_and_load_tested_in_the_container(installation: Any, started: dict[str, Any]) -> None:
    tuned = installation.tritune("tune", "double", "--preferred-batch-size", "2,4", "--max-batch-size", "8")
    assert tuned["served"]["preferred_batch_size"] == [2, 4]
    measured = installation.tritune(
        *("load", "double", "--concurrency", "4", "--duration", "2", "--warmup", "0.5"), "--protocol", "grpc"
    )
    assert measured["state"] == "finished"
    assert measured["configuration"]["max_batch_size"] == 8
    assert measured["requests"]["ok"] > 100
    assert measured["requests"]["failed"] == 0
    assert measured["server"]["average_batch"] >= 1
    assert measured["provenance"]["server_kind"] == "docker"


def test_a_start_finds_the_running_container_also_without_server_json(
    installation: Any, started: dict[str, Any], cpu_image: str, containers: Containers
) -> None:
    settings = installation.settings
    assert servers.start(settings, ServerKind.DOCKER, image=cpu_image).container == started["container"]
    record.forget(settings)
    assert servers.status(settings).state is ServerState.STOPPED
    again = servers.start(settings, ServerKind.DOCKER, image=cpu_image, gpus="none")
    assert (again.container, again.endpoints) == (started["container"], servers.status(settings).endpoints)
    with servers.connect(settings) as triton:
        assert triton.model_ready("double")
        triton.load("double")  # the header was found again too
    with pytest.raises(ServerError, match=r"already has .* Stop it first"):
        servers.start(settings, ServerKind.DOCKER, image="other:1")
    with pytest.raises(ServerError, match="own Triton runs"):
        servers.attach(settings, "http://127.0.0.1:9")
    assert len(containers(settings)) == 1


def test_a_container_that_is_killed_is_failed_and_can_be_started_again(
    installation: Any, started: dict[str, Any], cpu_image: str, containers: Containers
) -> None:
    settings = installation.settings
    (container,) = containers(settings)
    os.kill(container["State"]["Pid"], 9)
    deadline = time.monotonic() + 10
    while servers.status(settings).state is ServerState.READY and time.monotonic() < deadline:
        time.sleep(0.05)
    status = servers.status(settings)
    assert status.state is ServerState.FAILED
    assert status.reason is not None
    assert "Triton's container ended" in status.reason
    with pytest.raises(ServerDownError, match="tritune server start --kind docker"):
        servers.connect(settings)
    servers.start(settings, ServerKind.DOCKER, image=cpu_image, gpus="none", port_base=int(started["http"][10:]))
    (other,) = containers(settings)
    assert other["Id"] != container["Id"]
    with servers.connect(settings) as triton:
        assert triton.model_ready("double")


def test_stop_removes_the_container_and_keeps_its_log(
    installation: Any, started: dict[str, Any], containers: Containers
) -> None:
    installation.tritune("server", "stop")
    assert containers(installation.settings) == []
    assert servers.status(installation.settings).state is ServerState.STOPPED
    assert "successfully unloaded 'double'" in servers.logs(installation.settings, 5000)
    assert servers.stop(installation.settings).state is ServerState.STOPPED


# --- what goes wrong -----------------------------------------------------------------------------------------------


def test_a_taken_port_gets_another_one(empty: Settings, cpu_image: str, port_base: Callable[[], int]) -> None:
    base = port_base()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", base + 1))
        other.listen(1)
        said = start(empty, cpu_image, base)
        assert any("taken by another program: using" in text for text in said)
        status = servers.status(empty)
        assert status.endpoints is not None
        assert status.endpoints.http == f"127.0.0.1:{base + launch.PORT_STEP}"


def test_a_port_that_is_taken_after_the_look_is_given_up_and_no_container_stays(
    empty: Settings,
    cpu_image: str,
    port_base: Callable[[], int],
    containers: Containers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    base = port_base()
    free_ports = launch.free_ports
    looks: list[int] = []

    def too_early(wanted: int) -> tuple[int, int, int]:
        looks.append(wanted)
        return (base, base + 1, base + 2) if len(looks) == 1 else free_ports(wanted)

    monkeypatch.setattr(launch, "free_ports", too_early)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", base))
        other.listen(1)
        start(empty, cpu_image, base)
    assert len(looks) >= 2
    assert [container["State"]["Status"] for container in containers(empty)] == ["running"]


def test_a_gpu_where_there_is_none_is_told_and_leaves_no_container(
    empty: Settings, cpu_image: str, port_base: Callable[[], int], containers: Containers
) -> None:
    for gpus in ("all", "0"):
        with pytest.raises(ServerError, match=r"NVIDIA's container toolkit is missing.*--gpus none"):
            start(empty, cpu_image, port_base(), gpus)
        assert containers(empty) == []
    said = start(empty, cpu_image, port_base(), None)
    assert any("gets no GPU" in text for text in said)


def test_an_image_that_is_not_there_and_cannot_be_pulled_says_why(
    empty: Settings, port_base: Callable[[], int], containers: Containers, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Port 9 of this machine has no registry: what a machine without a network says too.
    with pytest.raises(
        ServerError, match=r"The registry could not be reached to pull localhost:9/tritonserver:24\.06-py3"
    ):
        start(empty, "localhost:9/tritonserver:24.06-py3", port_base())
    monkeypatch.setattr(engine, "CPU_IMAGE", "tritune-triton-of-nobody:cpu")
    with pytest.raises(ServerError, match=r"is not built yet\. .*docker build -f docker/triton-cpu\.Dockerfile"):
        start(empty, "tritune-triton-of-nobody:cpu", port_base())
    assert containers(empty) == []


def test_a_container_that_exits_at_once_is_failed_with_its_last_words(
    empty: Settings, derived: Callable[..., str], port_base: Callable[[], int], containers: Containers
) -> None:
    image = derived(
        "tritune-test-exits:1", 'CMD x\nENTRYPOINT ["sh", "-c", "echo hello >&2; echo out of luck >&2; exit 7"]'
    )
    with pytest.raises(ServerError, match=r"Triton did not start in .*: out of luck \(exit code 7\)\. Its log is in "):
        start(empty, image, port_base())
    status = servers.status(empty)
    assert (status.state, status.kind) == (ServerState.FAILED, ServerKind.DOCKER)
    assert "out of luck" in servers.logs(empty, 10)
    assert containers(empty) == []


def test_an_image_without_a_server_is_told(
    empty: Settings, base_image: str, port_base: Callable[[], int], containers: Containers
) -> None:
    with pytest.raises(ServerError, match=r"holds no tritonserver"):
        start(empty, f"{base_image}:latest", port_base())
    assert containers(empty) == []


def test_models_that_are_too_new_for_the_image_are_told_before_it_starts(
    empty: Settings, derived: Callable[..., str], publish: Callable[..., None], port_base: Callable[[], int]
) -> None:
    image = derived("tritune-test-old:1", f'LABEL {images.ONNXRUNTIME_LABEL}="1.18.0"')
    publish(empty.model_repo, "new", opset=23, ir_version=11)
    expected = r"new has opset 23 \(at most 21\) and IR version 11 \(at most 10\): too new .* Choose the tag 25\.08-py3"
    with pytest.raises(ServerError, match=expected):
        start(empty, image, port_base())
    assert servers.status(empty).state is ServerState.STOPPED
    publish(empty.model_repo, "old")
    said = start(empty, image, port_base())
    assert any(text.startswith("new has opset 23") for text in said)
    assert "Loaded old." in said


def test_a_container_of_a_lost_server_json_is_ended_by_stop(
    empty: Settings, cpu_image: str, port_base: Callable[[], int], containers: Containers
) -> None:
    start(empty, cpu_image, port_base())
    record.forget(empty)
    servers.stop(empty)
    assert containers(empty) == []


def test_an_engine_that_is_down_is_told_and_holds_nothing_back(
    our_engine: Any, empty: Settings, cpu_image: str, port_base: Callable[[], int], containers: Containers
) -> None:
    if our_engine.process is None:
        pytest.skip("this engine is not ours to stop")
    start(empty, cpu_image, port_base())
    our_engine.stop()
    try:
        status = servers.status(empty)
        assert status.state is ServerState.FAILED
        assert status.reason is not None
        assert "Docker is not running: nothing answers at" in status.reason
        with pytest.raises(ServerError, match=r"Docker is not running.*systemctl start docker"):
            start(replace(empty, results=empty.results / "other"), cpu_image, port_base())
        assert "Docker is not running" in servers.logs(empty, 10)
        assert servers.stop(empty).state is ServerState.STOPPED  # nothing runs any more, so it is let go
    finally:
        our_engine.start()
    start(empty, cpu_image, port_base())  # and what was left of the container is in nobody's way
    assert [container["State"]["Status"] for container in containers(empty)] == ["running"]
