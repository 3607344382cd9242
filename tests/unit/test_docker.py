"""What is known of images by their names, what Docker's errors mean, what a container is made of, GPUs in metrics."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tritune.errors import InputError
from tritune.plan import Endpoints
from tritune.servers import container_spec, engine, images
from tritune.servers.images import CPU_IMAGE, DEFAULT_IMAGE
from tritune.settings import ROOT, Settings
from tritune.triton_statistics import GpuReading, gpu_document, gpu_readings, parse_metrics

NVIDIA = "nvcr.io/nvidia/tritonserver"

# --- images --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tag", "runtime", "opset", "ir_version"),
    [
        ("24.04-py3", "1.17.3", 20, 9),
        ("24.06-py3", "1.18.0", 21, 10),
        ("24.10-py3", "1.19.2", 21, 10),
        ("25.03-py3", "1.21.0", 22, 10),
        ("25.11-py3", "1.23.2", 23, 11),
        ("26.07-py3", "1.27.0", 26, 13),
    ],
)
def test_a_tag_says_which_opset_and_ir_version_its_onnx_runtime_takes(
    tag: str, runtime: str, opset: int, ir_version: int
) -> None:
    assert images.onnx_limits(f"{NVIDIA}:{tag}") == images.OnnxLimits(runtime, opset, ir_version)


def test_every_release_in_the_table_has_limits_and_so_has_the_embedded_onnx_runtime() -> None:
    for (year, month), version in images._RELEASES.items():
        assert images.limits_of(version) is not None, (year, month)
    pins = (ROOT / "requirements-triton.txt").read_text()
    version = re.search(r"^onnxruntime==(\S+)", pins, re.M)
    assert version
    assert images.limits_of(version[1]) is not None


def test_the_label_of_the_cpu_image_is_the_pin() -> None:
    label = re.search(
        rf'^LABEL {images.ONNXRUNTIME_LABEL}="(.+)"', (ROOT / "docker/triton-cpu.Dockerfile").read_text(), re.M
    )
    assert label
    assert f"onnxruntime=={label[1]}\n" in (ROOT / "requirements-triton.txt").read_text()


def test_an_image_whose_onnx_runtime_nobody_knows_says_so_by_having_no_limits() -> None:
    assert images.onnx_limits(f"{NVIDIA}:23.01-py3") is None
    assert images.onnx_limits(CPU_IMAGE) is None
    assert images.onnx_limits(CPU_IMAGE, {images.ONNXRUNTIME_LABEL: "1.18.1"}) == images.OnnxLimits("1.18.1", 21, 10)


def test_a_model_that_is_too_new_names_the_tag_that_takes_it() -> None:
    limits = images.onnx_limits(DEFAULT_IMAGE)
    assert limits is not None
    assert images.misfit_sentence("m", DEFAULT_IMAGE, limits, 21, 10) is None
    assert images.misfit_sentence("m", DEFAULT_IMAGE, limits, 22, 11) == (
        "m has opset 22 (at most 21) and IR version 11 (at most 10): too new for ONNX Runtime 1.18.0 in "
        f"{DEFAULT_IMAGE}. Choose the tag 25.08-py3 or a newer one, or export the model again with opset 21 or lower."
    )
    assert "No image that is known here takes it" in str(images.misfit_sentence("m", "x:1", limits, 99, 8))


@pytest.mark.parametrize(
    ("image", "word"),
    [
        (f"{NVIDIA}:24.06-py3-sdk", "no server"),
        (f"{NVIDIA}:24.06-py3-min", "no server"),
        (f"{NVIDIA}:24.06-pyt-python-py3", "no ONNX Runtime backend"),
        (f"{NVIDIA}:24.06-trtllm-python-py3", "no ONNX Runtime backend"),
        (f"{NVIDIA}:24.02-py3", "without the ONNX Runtime backend"),
        (NVIDIA, "has no tag"),
        ("a b:1", "no name of an image"),
        ("--privileged", "no name of an image"),
    ],
)
def test_an_image_that_cannot_serve_onnx_is_refused_before_it_is_pulled(image: str, word: str) -> None:
    with pytest.raises(InputError, match=word):
        images.check_image(image)


@pytest.mark.parametrize("image", [DEFAULT_IMAGE, CPU_IMAGE, "localhost:5000/a/b_c:x", f"x@sha256:{'0' * 64}"])
def test_other_images_are_taken(image: str) -> None:
    assert images.check_image(f" {image} ") == image


def test_a_tag_alone_is_one_of_nvidias_image() -> None:
    assert images.check_image("24.10-py3") == images.check_image("24.10") == f"{NVIDIA}:24.10-py3"
    with pytest.raises(InputError, match="no server"):
        images.check_image("24.10-py3-sdk")


def test_gpus_are_all_none_or_named() -> None:
    assert [images.parse_gpus(text) for text in ("ALL", "none", "0, 1", "GPU-0f-1a")] == [
        "all",
        "none",
        "0,1",
        "GPU-0f-1a",
    ]
    for wrong in ("", "0,,1", "-1", "zero", "0,0"):
        with pytest.raises(InputError, match="--gpus"):
            images.parse_gpus(wrong)


# --- the engine's words --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("[Errno 2] No such file or directory", "Docker is not running: nothing answers at /run/docker.sock. Start it"),
        ("('Connection aborted.', FileNotFoundError(2, 'No such file or directory'))", "Docker is not running"),
        ("[Errno 111] Connection refused", "Docker is not running"),
        ("[Errno 13] Permission denied", "You may not use Docker: permission denied at /run/docker.sock. Join"),
        ('could not select device driver "" with capabilities: [[gpu]]', "NVIDIA's container toolkit is missing"),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.5, please update your driver",
            "driver is too old for this image, which needs cuda>=12.5. Choose an older tag",
        ),
        ("nvidia-container-cli: device error: 7: unknown device: unknown", "Docker knows no such GPU"),
        (
            "nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open",
            "its driver does not answer",
        ),
        ("toomanyrequests: You have reached your pull rate limit", "too many pulls"),
        ("pull access denied for x, repository does not exist or may require 'docker login'", "`docker login` to it"),
        ("manifest for x:9 not found: manifest unknown: manifest unknown", "There is no such image"),
        ("write /layer: no space left on device", "The disk of Docker is full"),
        ('Get "https://r/v2/": dial tcp: lookup r: no such host', "The registry could not be reached to pull x:9"),
        ("Read timed out. (read timeout=60)", "did not answer in time to pull x:9"),
        ("('Connection aborted.', RemoteDisconnected('…'))", "Docker ended while it was asked to pull x:9"),
        ("something new", "Docker would not pull x:9: something new. `docker info`"),
    ],
)
def test_what_docker_says_becomes_one_sentence_with_a_next_step(said: str, meant: str) -> None:
    told = engine.sentence(said, what="pull x:9", where="unix:///run/docker.sock")
    assert meant in told
    assert "\n" not in told


def test_the_engine_is_sought_where_docker_host_says_or_at_the_known_sockets(tmp_path: Path) -> None:
    assert engine.address({"DOCKER_HOST": "unix:///x.sock"}) == "unix:///x.sock"
    assert engine.address({"DOCKER_HOST": "tcp://127.0.0.1:2375"}) == "tcp://127.0.0.1:2375"
    for other in ("tcp://gpu-box:2375", "ssh://me@gpu-box"):
        with pytest.raises(InputError, match="another machine"):
            engine.address({"DOCKER_HOST": other})
    if not Path("/var/run/docker.sock").exists():
        (tmp_path / "docker.sock").touch()
        assert engine.address({"XDG_RUNTIME_DIR": str(tmp_path)}) == f"unix://{tmp_path}/docker.sock"


def test_a_pull_says_how_far_it_is() -> None:
    layers: dict[str, tuple[int, int]] = {}
    for layer in ("a", "b"):
        engine._note(layers, {"id": layer, "status": "Pulling fs layer"})
    assert engine.pulled("x", layers) == "Pulling x: 2 layers"
    engine._note(layers, {"id": "a", "status": "Downloading", "progressDetail": {"current": 5e8, "total": 2e9}})
    assert engine.pulled("x", layers) == "Pulling x: 0.50 of 2.00 GB (sizes of 1 of 2 layers are known)"
    engine._note(layers, {"id": "b", "status": "Downloading", "progressDetail": {"current": 1e9, "total": 1e9}})
    engine._note(layers, {"id": "a", "status": "Download complete"})
    assert engine.pulled("x", layers) == "Pulling x: 3.00 GB here, unpacking"


# --- the container -------------------------------------------------------------------------------------------------


def made(settings: Settings, gpus: str) -> dict[str, object]:
    ends = Endpoints("127.0.0.1:18000", "127.0.0.1:18001", "127.0.0.1:18002", control=("tritune-control", "s3cret"))
    return container_spec.creation(settings, DEFAULT_IMAGE, gpus, ends)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRITUNE_RESULTS": f"{tmp_path}/r", "TRITUNE_MODEL_REPO": f"{tmp_path}/a b:c"})


def test_a_container_publishes_to_this_machine_only_and_cannot_write_the_models(settings: Settings) -> None:
    wanted = made(settings, "none")
    assert wanted["ports"] == {f"800{n}/tcp": ("127.0.0.1", 18000 + n) for n in range(3)}
    (mount,) = wanted["mounts"]  # type: ignore[misc]
    assert mount["ReadOnly"] is True
    assert mount["Source"] == str(settings.model_repo)
    assert wanted["shm_size"] == "1g"
    assert wanted["device_requests"] == []
    limits = {(limit["Name"], limit["Soft"], limit["Hard"]) for limit in wanted["ulimits"]}  # type: ignore[attr-defined]
    assert limits == {("memlock", -1, -1), ("stack", 67108864, 67108864)}
    command = wanted["command"]
    assert {"--model-control-mode=explicit", "--exit-on-error=false"} <= set(command)  # type: ignore[call-overload]
    assert "--http-restricted-api=model-repository,logging,trace:tritune-control=s3cret" in command  # type: ignore[operator]


def test_gpus_become_device_requests(settings: Settings) -> None:
    (every,) = made(settings, "all")["device_requests"]  # type: ignore[misc]
    assert (every["Count"], every["Capabilities"]) == (-1, [["gpu"]])
    (some,) = made(settings, "0,1")["device_requests"]  # type: ignore[misc]
    assert (some["Count"], some["DeviceIDs"]) == (0, ["0", "1"])


def test_why_a_container_ended_is_told_in_its_own_words() -> None:
    assert "want of memory" in container_spec.why_exited({"OOMKilled": True, "ExitCode": 137}, "")
    old = "tritonserver: unrecognized option '--http-restricted-api=x'"
    assert "too old" in container_spec.why_exited({"ExitCode": 1}, old)
    fatal = "banner\nerror: creating server: Internal - failed\n"
    assert container_spec.why_exited({"ExitCode": 1}, fatal) == "Internal - failed (exit code 1)"
    assert container_spec.why_exited({"ExitCode": 3}, "\nbye\n\n") == "bye (exit code 3)"
    assert container_spec.why_exited({"ExitCode": 4}, "") == "it left no words (exit code 4)"


# --- GPUs in the metrics -------------------------------------------------------------------------------------------

METRICS = """
# HELP nv_gpu_utilization GPU utilization rate [0.0 - 1.0)
nv_gpu_utilization{gpu_uuid="GPU-b"} 0.25
nv_gpu_utilization{gpu_uuid="GPU-a"} 0.5
nv_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1000000
nv_gpu_memory_total_bytes{gpu_uuid="GPU-a"} 8000000
nv_gpu_power_usage{gpu_uuid="GPU-a"} 61.5
nv_cpu_utilization 0.3
"""


def test_gpu_readings_come_from_the_metrics_and_what_is_absent_is_none() -> None:
    assert gpu_readings(parse_metrics(METRICS)) == (
        GpuReading("GPU-a", 0.5, 1e6, 8e6, 61.5),
        GpuReading("GPU-b", 0.25),
    )
    assert gpu_readings(parse_metrics("nv_cpu_utilization 0.3")) is None


def test_a_trial_keeps_mean_and_greatest_of_its_gpu_readings_or_nothing() -> None:
    first, second = GpuReading("GPU-a", 0.2, 100.0, 800.0), GpuReading("GPU-a", 0.6, 300.0, 800.0)
    document = gpu_document([(0.0, (first,)), (1.0, None), (2.0, (second,))])
    assert document is not None
    (gpu,) = document["gpus"]
    assert gpu["utilization"] == {"mean": pytest.approx(0.4), "max": 0.6}
    assert gpu["memory_used_bytes"] == {"mean": 200.0, "max": 300.0}
    assert (gpu["memory_total_bytes"], gpu["power_w"]) == (800.0, None)
    assert [point["at_s"] for point in document["series"]] == [0.0, 2.0]
    assert gpu_document([(0.0, None), (1.0, None)]) is None
    assert gpu_document([]) is None


def test_the_charts_of_a_trials_gpus_show_what_was_read_and_say_so_in_words() -> None:
    import pandas as pd

    from tritune import gpu_chart

    first, second = GpuReading("GPU-a", 0.2, 2e9), GpuReading("GPU-a", 0.6)
    document = gpu_document([(0.0, (first,)), (1.0, (second,))])
    assert document is not None
    series = pd.DataFrame(document["series"])
    used = gpu_chart.gpu_utilization(series).to_dict()
    assert "GPU-a 40.0 % on average" in used["description"]
    memory = gpu_chart.gpu_memory(series).to_dict()
    assert "GPU-a 2.00 GB on average" in memory["description"]
