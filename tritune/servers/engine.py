"""The Docker engine: reaching it, pulling an image, and what its errors mean in plain words.

Belongs here: the docker SDK's client and the sentences for its failures. Never: Triton's container (docker.py).
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tritune.errors import InputError, ServerError
from tritune.servers.images import BUILD_CPU_IMAGE, CPU_IMAGE

TIMEOUT_S = 60.0
PULL_TIMEOUT_S = 600.0
TELL_S = 1.0
_HOSTS = ("127.0.0.1", "localhost", "::1", "")


class Missing(Exception):
    """The engine has no such image, or no such container any more."""


class PortTaken(Exception):
    """Somebody took a port between the look and the engine's bind."""


class LimitRefused(Exception):
    """The engine may not raise a resource limit: it runs without root's rights, or with fewer."""


def sdk() -> Any:
    """The docker SDK, loaded where it is needed; by name, since the project's folder docker/ hides it from mypy."""
    return importlib.import_module("docker")


def address(environ: Mapping[str, str] = os.environ) -> str:
    """Where the engine listens: DOCKER_HOST, or the first socket that exists, or the usual one.

    Raises InputError for an engine on another machine: its containers could not see this one's model repository.
    """
    given = environ.get("DOCKER_HOST", "").strip()
    if given:
        parts = urlsplit(given)
        if parts.scheme not in ("unix", "tcp", "http", "npipe") or (
            parts.scheme in ("tcp", "http") and (parts.hostname or "") not in _HOSTS
        ):
            raise InputError(
                f"DOCKER_HOST={given} is another machine, whose containers cannot see this one's model repository. "
                "Unset it, or start Triton there by hand and attach: `tritune server attach URL`."
            )
        return given
    runtime = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    home = environ.get("HOME") or "/"
    sockets = [Path("/var/run/docker.sock"), Path(runtime, "docker.sock"), Path(home, ".docker/run/docker.sock")]
    found = next((path for path in sockets if path.exists()), sockets[0])
    return f"unix://{found}"


@contextlib.contextmanager
def connected(what: str, timeout_s: float = TIMEOUT_S) -> Iterator[Any]:
    """A client of the engine. Whatever fails within is raised as a ServerError that says what was being done.

    What is missing, a port that is taken and a limit that is refused have exceptions of their own.
    """
    import requests

    docker = sdk()
    where = address()
    client = None
    try:
        _knock(where)
        client = docker.DockerClient(**{**docker.utils.kwargs_from_env(), "base_url": where}, timeout=timeout_s)
        yield client
    except docker.errors.NotFound as error:
        raise Missing(_text(error)) from error
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        text = _text(error)
        if is_port_taken(text):
            raise PortTaken(text) from error
        if "setting rlimit" in text:
            raise LimitRefused(text) from error
        raise ServerError(sentence(text, what=what, where=where)) from error
    finally:
        if client is not None:
            client.close()


def _knock(where: str) -> None:
    """Raise OSError where nobody listens: the SDK would leave its socket open there."""
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.settimeout(TIMEOUT_S)
            probe.connect(where.removeprefix("unix://"))


def is_reachable() -> str | None:
    """None where an engine answers, otherwise the sentence that says why not."""
    try:
        with connected("look for Docker", timeout_s=5.0):
            return None
    except (ServerError, InputError) as error:
        return str(error)


def has_nvidia_runtime(client: Any) -> bool:
    """Whether the engine lists NVIDIA's container runtime: its toolkit is installed."""
    return "nvidia" in (client.info().get("Runtimes") or {})


def _text(error: BaseException) -> str:
    explanation = getattr(error, "explanation", None)
    if isinstance(explanation, bytes):
        explanation = explanation.decode(errors="replace")
    return str(explanation or error)


def is_port_taken(text: str) -> bool:
    """Whether an error of the engine means that a port of this machine is in use."""
    return "port is already allocated" in text or "address already in use" in text


_MEANINGS: tuple[tuple[str, str], ...] = (
    (
        r"FileNotFoundError|Connection refused|ConnectionRefused|\[Errno 2\] No such file",
        "Docker is not running: nothing answers at {where}. Start it (`sudo systemctl start docker`, or Docker "
        "Desktop), or use the embedded Triton.",
    ),
    (
        r"PermissionError|\[Errno 13\]|[Pp]ermission denied.*(?:sock|connect)",
        "You may not use Docker: permission denied at {where}. Join its group (`sudo usermod -aG docker $USER`) and "
        "log in again.",
    ),
    (
        r"could not select device driver",
        "Docker cannot give a container a GPU: NVIDIA's container toolkit is missing. Install it and restart Docker "
        "(https://docs.nvidia.com/datacenter/cloud-native/container-toolkit), or start with --gpus none.",
    ),
    (
        r"executable file not found",
        "The image holds no tritonserver, so Docker could not {what}. Choose an image of Triton (--image NAME:TAG).",
    ),
    (
        r"unsatisfied condition: (?P<need>\S[^,\n]*)",
        "This machine's NVIDIA driver is too old for this image, which needs {need}. Choose an older tag, or update "
        "the driver.",
    ),
    (
        r"unknown device|invalid device|no such device|device error",
        "Docker knows no such GPU. `nvidia-smi -L` lists them; give their indices with --gpus.",
    ),
    (
        r"libnvidia-ml\.so|nvml error|driver not loaded|nvidia-container-cli",
        "NVIDIA's toolkit is installed but its driver does not answer ({detail}). Check `nvidia-smi`, or start with "
        "--gpus none.",
    ),
    (
        r"toomanyrequests|rate limit|429 Too Many",
        "The registry refused to {what}: too many pulls from this address. Wait, or `docker login` and try again.",
    ),
    (
        r"unauthorized|authentication required|denied|forbidden|403 ",
        "The registry refused to {what} ({detail}). `docker login` to it, or check the image's name.",
    ),
    (
        r"manifest unknown|manifest for .* not found|not found: manifest|repository .* not found|404 ",
        "There is no such image, so it was not possible to {what}. Check its name and tag (--image NAME:TAG).",
    ),
    (
        r"no space left on device",
        "The disk of Docker is full, so it was not possible to {what}. Free some space (`docker system prune`).",
    ),
    (
        r"no such host|dial tcp|i/o timeout|Client\.Timeout|TLS handshake|network is unreachable|server misbehaving|"
        r"x509|proxyconnect|connection reset",
        "The registry could not be reached to {what} ({detail}). Check the network and Docker's proxy, or load the "
        "image from a file: `docker load`.",
    ),
    (
        r"Read timed out|ReadTimeout",
        "Docker did not answer in time to {what}. Look at its log (`journalctl -u docker`) and try again.",
    ),
    (
        r"Connection aborted|RemoteDisconnected|Connection broken|IncompleteRead",
        "Docker ended while it was asked to {what}. Start it again (`sudo systemctl start docker`).",
    ),
)


def sentence(text: str, *, what: str, where: str) -> str:
    """What an error of the engine or the registry means, with the next step; its own words where it is unknown."""
    detail = " ".join(text.split())[-200:].strip(" .\"')")
    for pattern, meaning in _MEANINGS:
        if found := re.search(pattern, text):
            need = found.groupdict().get("need", "")
            return meaning.format(what=what, where=where.removeprefix("unix://"), detail=detail, need=need)
    return f"Docker would not {what}: {detail}. `docker info` says how it is."


def pull(image: str, progress: Callable[[str], None]) -> None:
    """Pull an image and tell how far it is. Raises ServerError with the registry's reason in plain words."""
    if image == CPU_IMAGE:
        raise ServerError(f"The image {CPU_IMAGE} is not built yet. In the project's folder run `{BUILD_CPU_IMAGE}`.")
    name, _, digest = image.partition("@")
    repository, _, tag = (name, "", digest) if digest else name.rpartition(":")
    progress(f"Pulling {image}")
    layers: dict[str, tuple[int, int]] = {}
    told_at = time.monotonic()
    try:
        with connected(f"pull {image}", timeout_s=PULL_TIMEOUT_S) as client:
            for event in client.api.pull(repository, tag=tag, stream=True, decode=True):
                if event.get("error"):
                    raise ServerError(sentence(str(event["error"]), what=f"pull {image}", where=address()))
                _note(layers, event)
                if time.monotonic() - told_at >= TELL_S:
                    told_at = time.monotonic()
                    progress(pulled(image, layers))
    except Missing as error:
        raise ServerError(sentence(f"{error} (404 Not Found)", what=f"pull {image}", where=address())) from error


def _note(layers: dict[str, tuple[int, int]], event: Mapping[str, Any]) -> None:
    """Keep what an event says of one layer: (bytes here, bytes in all)."""
    layer, status = str(event.get("id") or ""), str(event.get("status") or "")
    detail = event.get("progressDetail") or {}
    known = layers.get(layer, (0, 0))
    if status == "Downloading" and detail.get("total"):
        layers[layer] = (int(detail.get("current") or 0), int(detail["total"]))
    elif status in ("Pulling fs layer", "Waiting"):
        layers.setdefault(layer, (0, 0))
    elif status in ("Download complete", "Verifying Checksum", "Extracting", "Pull complete"):
        layers[layer] = (known[1], known[1])


def pulled(image: str, layers: Mapping[str, tuple[int, int]]) -> str:
    """How far a pull is, such as `Pulling x: 1.2 of 6.4 GB, 12 of 31 layers sized`."""
    here, total = (sum(sizes) for sizes in zip(*layers.values(), strict=True)) if layers else (0, 0)
    sized = sum(1 for _, size in layers.values() if size)
    if not total:
        return f"Pulling {image}: {len(layers)} layers"
    if here >= total and sized == len(layers):
        return f"Pulling {image}: {total / 1e9:.2f} GB here, unpacking"
    rest = "" if sized == len(layers) else f" (sizes of {sized} of {len(layers)} layers are known)"
    return f"Pulling {image}: {here / 1e9:.2f} of {total / 1e9:.2f} GB{rest}"
