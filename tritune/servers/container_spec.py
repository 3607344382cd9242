"""What Triton's container is made of: its command line, mounts, ports, GPUs and labels; and why one ended.

Belongs here: pure functions on what is given to the docker SDK and what it reports. Never: asking the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tritune.plan import Endpoints
from tritune.servers import embedded, engine, launch
from tritune.settings import Settings

EXIT_TIMEOUT_S = 5  # how long Triton waits for open connections when it is told to stop
LIMITS = {"memlock": -1, "stack": 67108864}
MODELS = "/tritune/models"
PORTS = ("8000/tcp", "8001/tcp", "8002/tcp")
INSTALLATION_LABEL = "io.tritune.installation"
CONTROL_LABEL = "io.tritune.control"
GPUS_LABEL = "io.tritune.gpus"
MODELS_LABEL = "io.tritune.models"
IMAGE_LABEL = "io.tritune.image"


def creation(
    settings: Settings, image: str, gpus: str, endpoints: Endpoints, *, raises_limits: bool = True
) -> dict[str, Any]:
    """The arguments of the container: what it may see, use and publish; `raises_limits`: NVIDIA's memlock and stack."""
    types = engine.sdk().types
    requests = []
    if gpus != "none":
        which = {"count": -1} if gpus == "all" else {"device_ids": gpus.split(",")}
        requests = [types.DeviceRequest(capabilities=[["gpu"]], **which)]
    hosts = (str(address).rpartition(":") for address in (endpoints.http, endpoints.grpc, endpoints.metrics))
    return {
        "command": command_line(endpoints),
        "name": f"tritune-{settings.home}",
        "detach": True,
        "labels": {
            INSTALLATION_LABEL: settings.home,
            CONTROL_LABEL: "=".join(endpoints.control or ()),
            GPUS_LABEL: gpus,
            IMAGE_LABEL: image,
            MODELS_LABEL: str(settings.model_repo.absolute()),
        },
        "mounts": [types.Mount(MODELS, str(settings.model_repo.absolute()), type="bind", read_only=True)],
        "ports": {port: (host, int(number)) for port, (host, _, number) in zip(PORTS, hosts, strict=True)},
        "device_requests": requests,
        "shm_size": "1g",
        "ulimits": [types.Ulimit(name=name, soft=most, hard=most) for name, most in LIMITS.items()]
        if raises_limits
        else [],
        "security_opt": ["no-new-privileges"],
    }


def command_line(endpoints: Endpoints) -> list[str]:
    """tritonserver with its arguments, as they are inside the container."""
    secret = "=".join(endpoints.control or ())
    return [
        "tritonserver",
        f"--model-repository={MODELS}",
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--strict-readiness=false",  # one bad model does not make the server unready
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        # Any web page can send a POST to this machine: what changes the server asks for a header it cannot know.
        f"--http-restricted-api={launch.RESTRICTED}:{secret}",
        f"--grpc-restricted-protocol={launch.RESTRICTED}:{secret}",
    ]


def why_exited(state: Mapping[str, Any], log: str) -> str:
    """Why a container ended: the engine's word for it, the log's last fatal line, or its last line."""
    if state.get("OOMKilled"):
        return "it was ended for want of memory. Give Docker more, or load fewer or smaller models"
    if "unrecognized option" in log and "restricted" in log:
        return "this release is too old to close its control API. Choose a newer tag"
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    words = embedded.reason_in_log(log) or str(state.get("Error") or "") or (lines or ["it left no words"])[-1]
    return f"{words[-300:].rstrip('. ')} (exit code {state.get('ExitCode')})"
