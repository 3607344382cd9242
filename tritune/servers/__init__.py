"""Where a Triton comes from: the embedded one, a container, a remote one. One installation has one server.

Belongs here: the one protocol of the three kinds and the choice between them. Never: what is measured on a server.
"""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

from tritune.errors import InputError, ServerDownError, ServerError
from tritune.servers import docker, embedded, images, launch, record, remote
from tritune.servers.images import OnnxLimits
from tritune.servers.record import ServerKind, ServerRecord, ServerState, ServerStatus
from tritune.settings import Settings
from tritune.triton import Triton

__all__ = [
    "Server",
    "ServerKind",
    "ServerState",
    "ServerStatus",
    "attach",
    "connect",
    "docker",
    "embedded",
    "ensure",
    "images",
    "logs",
    "onnx_limits",
    "remote",
    "restart",
    "settled",
    "start",
    "status",
    "stop",
]

LOCK_WAIT_S = 180.0
Progress = Callable[[str], None]


class Server(Protocol):
    """One kind of server: embedded, docker and remote are the three. `known` is what server.json says of it."""

    def status(self, settings: Settings, known: ServerRecord) -> ServerStatus: ...

    def stop(self, settings: Settings, known: ServerRecord) -> None: ...

    def logs(self, settings: Settings, lines: int) -> str: ...

    def connect(self, settings: Settings, known: ServerRecord) -> Triton: ...


def _server(kind: ServerKind) -> Server:
    kinds: Mapping[ServerKind, Server] = {
        ServerKind.EMBEDDED: embedded,
        ServerKind.DOCKER: docker,
        ServerKind.REMOTE: remote,
    }
    return kinds[kind]


def _silent(_: str) -> None:
    """Progress that nobody wants."""


def start(
    settings: Settings,
    kind: ServerKind = ServerKind.EMBEDDED,
    *,
    image: str | None = None,
    gpus: str | None = None,
    port_base: int | None = None,
    progress: Progress | None = None,
) -> ServerStatus:
    """Start this installation's Triton and load the repository's models, or return the one that runs already.

    As `ensure`, without whether this call started it.
    """
    return ensure(settings, kind, image=image, gpus=gpus, port_base=port_base, progress=progress)[0]


def ensure(
    settings: Settings,
    kind: ServerKind = ServerKind.EMBEDDED,
    *,
    image: str | None = None,
    gpus: str | None = None,
    port_base: int | None = None,
    progress: Progress | None = None,
) -> tuple[ServerStatus, bool]:
    """See to it that a server is there: (its status, whether this call started it).

    `port_base` P asks for the ports P (HTTP), P+1 (gRPC) and P+2 (metrics); where one is taken the next free
    three are used and said. `image` and `gpus` (all, none, or indices) are for a Docker server; by default NVIDIA's
    image, with all GPUs that Docker can give. Raises ServerError where it cannot start, InputError for an impossible
    port, image or GPU.
    """
    say = progress or _silent
    if kind is ServerKind.REMOTE:
        raise ServerError("A remote server is attached to, not started. Use `tritune server attach URL`.")
    if kind is ServerKind.EMBEDDED and (image or gpus):
        raise InputError("An image and GPUs are for Docker. Add --kind docker, or leave --image and --gpus out.")
    image = images.check_image(image or images.DEFAULT_IMAGE)
    gpus = images.parse_gpus(gpus) if gpus is not None else None
    with _one_at_a_time(settings):
        now = status(settings)
        # One that is starting while this holds the lock was left by a start that was ended: it is started anew.
        if now.state is ServerState.READY and now.endpoints:
            _check_same(now, kind, image, gpus)
            if now.kind is ServerKind.REMOTE:
                say(f"The server at {now.endpoints.http} is attached; `tritune server stop` lets it go.")
            else:
                say(f"A Triton is running already at {now.endpoints.http}.")
            return now, False
        if now.kind is not None and now.kind is not kind:
            _end(settings)
        if kind is ServerKind.DOCKER:
            return docker.start(settings, image=image, gpus=gpus, port_base=port_base, progress=say), True
        return embedded.start(settings, port_base=port_base, progress=say), True


def _check_same(now: ServerStatus, kind: ServerKind, image: str, gpus: str | None) -> None:
    """Raise ServerError where another container is asked for than the server that runs."""
    if kind is not ServerKind.DOCKER:
        return
    is_same = now.kind is kind and now.image == image and (gpus is None or now.gpus == gpus)
    if not is_same:
        what = f"{now.image} with GPUs {now.gpus}" if now.kind is kind else f"another server ({now.kind})"
        http = now.endpoints.http if now.endpoints else ""
        raise ServerError(f"This installation already has {what} at {http}. Stop it first: `tritune server stop`.")


def restart(settings: Settings, *, progress: Progress | None = None) -> ServerStatus:
    """Start this installation's server anew where it has ended: the same kind, at the same ports if they are free.

    Raises ServerError where it does not come up, and for one that is only attached to.
    """
    known = record.read(settings)
    if known is None:
        return start(settings, progress=progress)
    port_base = int(known.endpoints.http.rpartition(":")[2])
    return start(settings, known.kind, image=known.image, gpus=known.gpus, port_base=port_base, progress=progress)


def attach(
    settings: Settings,
    url: str,
    *,
    grpc: str | None = None,
    metrics: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> ServerStatus:
    """Use a server that somebody else runs. Raises ServerError while an embedded one runs, InputError for a bad URL."""
    say = progress or _silent
    endpoints = remote.parse(url, grpc=grpc, metrics=metrics, headers=headers or {}, tls=tls)
    with _one_at_a_time(settings):
        now = status(settings)
        is_up = now.state in (ServerState.READY, ServerState.STARTING) or now.pid or now.container
        if is_up and now.endpoints and now.kind is not ServerKind.REMOTE:
            raise ServerError(
                f"This installation's own Triton runs at {now.endpoints.http}. Stop it first: `tritune server stop`."
            )
        return remote.attach(settings, endpoints, progress=say)


def status(settings: Settings) -> ServerStatus:
    """How this installation's server is now; a start of the app finds a running one by server.json."""
    known = record.read(settings)
    if known is None:
        return ServerStatus(ServerState.STOPPED)
    return _server(known.kind).status(settings, known)


def settled(settings: Settings) -> ServerStatus:
    """Its status once no start, attach or stop of it is under way. Raises ServerError where one does not end."""
    with _one_at_a_time(settings):
        return status(settings)


def stop(settings: Settings) -> ServerStatus:
    """End this installation's server (a remote one is only let go). Nothing to stop is no error."""
    with _one_at_a_time(settings):
        _end(settings)
    return ServerStatus(ServerState.STOPPED)


def _end(settings: Settings) -> None:
    known = record.read(settings)
    if known is not None:
        _server(known.kind).stop(settings, known)
    else:
        docker.remove_leftovers(settings)
    record.forget(settings)
    launch.clear(settings)


def logs(settings: Settings, lines: int = 200) -> str:
    """The last lines of the server's log; a sentence where there is none."""
    known = record.read(settings)
    return _server(known.kind if known else ServerKind.EMBEDDED).logs(settings, lines)


def connect(settings: Settings) -> Triton:
    """A client for the running server. Raises ServerDownError when none is up."""
    known = record.read(settings)
    now = _server(known.kind).status(settings, known) if known else ServerStatus(ServerState.STOPPED)
    if known is None or now.state is ServerState.STOPPED:
        raise ServerDownError("No Triton is running. Start one with `tritune server start` or on the Server page.")
    if now.state is ServerState.STARTING:
        raise ServerDownError("Triton is still starting. Wait for `tritune server status` to say ready.")
    if now.state is ServerState.FAILED:
        raise ServerDownError(
            f"No Triton is running: {(now.reason or 'it failed').rstrip('.')}. Start it again with "
            f"`tritune server start{' --kind docker' if known.kind is ServerKind.DOCKER else ''}`."
            if known.kind is not ServerKind.REMOTE
            else f"{now.reason} Attach again with `tritune server attach URL` when it is back."
        )
    return _server(known.kind).connect(settings, known)


def onnx_limits(settings: Settings) -> OnnxLimits | None:
    """Which opset and IR version this installation's server takes: of the embedded one where none is known yet; None
    where nobody can tell (a remote server, an image that is not known).
    """
    known = record.read(settings)
    if known is None or known.kind is ServerKind.EMBEDDED:
        return embedded.onnx_limits(settings)
    return docker.onnx_limits(known) if known.kind is ServerKind.DOCKER else None


@contextlib.contextmanager
def _one_at_a_time(settings: Settings) -> Iterator[None]:
    """Start, attach and stop of one installation wait for each other, across processes."""
    try:
        settings.results.mkdir(parents=True, exist_ok=True)
        file = (settings.results / "server.lock").open("a")
    except OSError as error:
        raise ServerError(
            f"{settings.results} cannot be written ({error.strerror}). Make room there or set TRITUNE_RESULTS."
        ) from error
    with file:
        deadline = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ServerError(
                        f"Another start or stop of this server has been going on for {LOCK_WAIT_S:.0f} s. "
                        "Look at `tritune server logs`."
                    ) from error
                time.sleep(0.1)
        yield
