"""Triton in a Docker container: NVIDIA's image with GPUs, or the project's own CPU image.

Belongs here: starting the container so that it outlives every terminal, finding it again by its labels, stopping it,
its log. Never: the engine's own errors and pulls (engine.py), what an image's tag means (images.py), what is asked of
a Triton (triton.py).
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from tritune import onnx_model
from tritune.errors import OnnxError, ServerError, TrituneError
from tritune.plan import Endpoints
from tritune.repository import ModelRepository
from tritune.servers import embedded, engine, images, launch, record
from tritune.servers.container_spec import (
    CONTROL_LABEL,
    EXIT_TIMEOUT_S,
    GPUS_LABEL,
    IMAGE_LABEL,
    INSTALLATION_LABEL,
    MODELS,
    MODELS_LABEL,
    PORTS,
    creation,
    why_exited,
)
from tritune.servers.record import ServerKind, ServerRecord, ServerState, ServerStatus
from tritune.settings import DEFAULT_HTTP_PORT, Settings
from tritune.triton import Triton, check_model_name

__all__ = ["connect", "logs", "onnx_limits", "remove_leftovers", "start", "status", "stop"]

START_TRIES = 5
START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = EXIT_TIMEOUT_S + 10
KEPT_LINES = 5000


# --- starting ------------------------------------------------------------------------------------------------------


def start(
    settings: Settings, *, image: str, gpus: str | None, port_base: int | None, progress: Callable[[str], None]
) -> ServerStatus:
    """Start a container and load the repository's models one by one; the caller holds the installation's lock.

    `gpus` None: all of them where the engine can give any. A container of this installation that runs with the same
    image, GPUs and models is taken up again. Raises ServerError where it does not come up (also remembered as the
    state FAILED), InputError for a bad image, port or GPU.
    """
    image = images.check_image(image)
    with engine.connected(f"start {image}") as client:
        if gpus is None:
            gpus = "all" if engine.has_nvidia_runtime(client) else "none"
            if gpus == "none":
                progress("Docker has no NVIDIA runtime, so the container gets no GPU (--gpus all asks for them).")
        gpus = images.parse_gpus(gpus)
        adopted = _adopt(settings, client, image, gpus)
    if adopted is not None:
        progress(f"A container of this installation runs already at {adopted.endpoints.http}.")
        return adopted.status()
    _check_models(settings, image, {}, progress)
    try:
        with engine.connected(f"look for {image}") as client:
            labels = client.images.get(image).labels
    except engine.Missing:
        engine.pull(image, progress)
        with engine.connected(f"look for {image}") as client:
            labels = client.images.get(image).labels
    if images.release(image) is None:
        _check_models(settings, image, labels or {}, progress)
    known = _start(settings, image, gpus, port_base, progress)
    try:
        progress(f"Triton {known.triton_version} is ready at {known.endpoints.http}.")
        with connect(settings, known) as triton:
            embedded.load_all(triton, settings.model_repo, progress, partial(_ended_over, settings, known))
    except TrituneError:
        raise
    except BaseException:  # cancelled, or Ctrl-C: a start that was called off leaves no server
        stop(settings, known)
        record.forget(settings)
        raise
    return known.status()


def _check_models(settings: Settings, image: str, labels: Mapping[str, str], progress: Callable[[str], None]) -> None:
    """Tell which models are too new for the image's ONNX Runtime. Raises ServerError where all of them are."""
    limits = images.onnx_limits(image, labels)
    if limits is None:
        if images.release(image) is not None or labels:
            progress(
                f"Which ONNX Runtime {image} has is not known, so the models' opset and IR version are not checked."
            )
        return
    models = [entry for entry in ModelRepository(settings.model_repo).models() if entry.onnx_path is not None]
    told = []
    for entry in models:
        with contextlib.suppress(OnnxError):  # a damaged file; its load says more
            model = onnx_model.inspect(entry.onnx_path)  # type: ignore[arg-type]
            told.append(images.misfit_sentence(entry.name, image, limits, model.opset, model.ir_version))
    misfits = [text for text in told if text]
    if misfits and len(misfits) == len(models):
        raise ServerError(misfits[0])
    for text in misfits:
        progress(text)


def _start(
    settings: Settings, image: str, gpus: str, port_base: int | None, progress: Callable[[str], None]
) -> ServerRecord:
    wanted = DEFAULT_HTTP_PORT if port_base is None else port_base
    base = wanted
    raises_limits = True
    for _ in range(START_TRIES):
        ports = launch.free_ports(base)
        if ports[0] != wanted:
            progress(
                f"Port {wanted}, {wanted + 1} or {wanted + 2} is taken by another program: "
                f"using {ports[0]}, {ports[1]} and {ports[2]}."
            )
        try:
            return _start_once(settings, image, gpus, ports, raises_limits)
        except engine.PortTaken:
            base = ports[0] + launch.PORT_STEP
        except engine.LimitRefused:
            raises_limits = False
            progress("Docker may not raise memlock and stack here: the container starts with its usual limits.")
    raise ServerError(f"No three free ports could be kept from {wanted} on. Name others with --port-base.")


def _start_once(
    settings: Settings, image: str, gpus: str, ports: tuple[int, int, int], raises_limits: bool
) -> ServerRecord:
    endpoints = launch.new_endpoints(ports)
    try:
        settings.model_repo.mkdir(parents=True, exist_ok=True)
        settings.results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServerError(f"{error.filename} cannot be made ({error.strerror}). Make room or rights there.") from error
    made = None
    try:
        with engine.connected(f"start {image}") as client:
            _remove_all(settings, client)
            made = client.containers.create(
                image, **creation(settings, image, gpus, endpoints, raises_limits=raises_limits)
            ).id
            client.containers.get(made).start()
        known = ServerRecord(
            state=ServerState.STARTING,
            kind=ServerKind.DOCKER,
            endpoints=endpoints,
            started_at=time.time(),
            boot_id=record.boot_id(),
            control=True,
            statistics=True,
            container=made,
            image=image,
            gpus=gpus,
        )
        record.write(settings, known)
        return _wait_until_live(settings, known)
    except engine.Missing as error:
        raise ServerError(f"The image {image} was removed meanwhile. Start again: it is pulled then.") from error
    except BaseException:
        # Also one that stays in the state Created, since Docker could not give it its port or GPU.
        with contextlib.suppress(TrituneError, engine.Missing):
            _remove(settings, made)
        raise


def _wait_until_live(settings: Settings, known: ServerRecord) -> ServerRecord:
    """The record with Triton's version once it answers and its control API is closed to others. Raises ServerError."""
    deadline = time.monotonic() + START_TIMEOUT_S
    stranger = Triton(replace(known.endpoints, control=None), timeout_s=5)
    with Triton(known.endpoints, timeout_s=5) as triton, stranger:
        while True:
            ended = _why_ended(known)
            if ended is None and triton.is_live():
                break
            if ended is None and time.monotonic() > deadline:
                ended = f"it did not answer within {START_TIMEOUT_S:.0f} s"
            if ended is not None:
                raise _failed(settings, known, f"Triton did not start in {known.image}: {ended}")
            time.sleep(0.2)
        if stranger.lets_control() or not triton.lets_control():
            raise _failed(settings, known, "Triton's control API does not ask for the header it was given")
        version = str(triton.server_metadata().get("version", ""))
    ready = replace(known, state=ServerState.READY, triton_version=version)
    record.write(settings, ready)
    return ready


def _failed(settings: Settings, known: ServerRecord, reason: str) -> ServerError:
    """Keep the log and the reason of a start that failed, remove the container; the error to raise."""
    text = reason.rstrip(". ") + "."
    _remove(settings, known.container)
    with contextlib.suppress(ServerError):
        record.write(settings, replace(known, state=ServerState.FAILED, container=None, reason=text))
    return ServerError(f"{text} Its log is in {settings.server_log}.")


def _ended_over(settings: Settings, known: ServerRecord, name: str) -> ServerError | None:
    """The error where the container ended while it loaded this model."""
    ended = _why_ended(known)
    return _failed(settings, known, f"Triton ended while it loaded {name}: {ended}") if ended else None


# --- finding it again, stopping it ---------------------------------------------------------------------------------


def _ours(settings: Settings, client: Any) -> list[Any]:
    return list(
        client.containers.list(
            all=True, filters={"label": f"{INSTALLATION_LABEL}={settings.home}"}, ignore_removed=True
        )
    )


def _adopt(settings: Settings, client: Any, image: str, gpus: str) -> ServerRecord | None:
    """Take up this installation's running container where it is what is asked for."""
    for container in _ours(settings, client):
        labels = container.labels
        name, _, value = labels.get(CONTROL_LABEL, "").partition("=")
        bound = [(container.ports.get(port) or [{}])[0] for port in PORTS]
        asked = (labels.get(IMAGE_LABEL), labels.get(GPUS_LABEL), labels.get(MODELS_LABEL))
        is_same = asked == (image, gpus, str(settings.model_repo.absolute()))
        if container.status != "running" or not is_same or not value or not all(bound):
            continue
        http, grpc, metrics = (f"{end['HostIp']}:{end['HostPort']}" for end in bound)
        endpoints = Endpoints(http, grpc, metrics, control=(name, value))
        with Triton(endpoints, timeout_s=3) as triton:
            if not triton.is_live() or not triton.lets_control():
                continue
            version = str(triton.server_metadata().get("version", ""))
        known = ServerRecord(
            state=ServerState.READY,
            kind=ServerKind.DOCKER,
            endpoints=endpoints,
            started_at=_started_at(container),
            boot_id=record.boot_id(),
            triton_version=version,
            control=True,
            statistics=True,
            container=container.id,
            image=image,
            gpus=gpus,
        )
        record.write(settings, known)
        return known
    return None


def _started_at(container: Any) -> float:
    from datetime import datetime

    try:
        text = str(container.attrs["State"]["StartedAt"])[:19]
        return datetime.fromisoformat(f"{text}+00:00").timestamp()
    except (KeyError, ValueError):
        return time.time()


def _why_ended(known: ServerRecord) -> str | None:
    """Why the container does not run any more, in its log's words; None while it runs. Raises ServerError."""
    try:
        with engine.connected("look at the container") as client:
            container = client.containers.get(known.container)
            state = container.attrs["State"]
            if state.get("Running"):
                return None
            return why_exited(state, container.logs(tail=KEPT_LINES).decode(errors="replace"))
    except engine.Missing:
        return "it was removed"


def status(settings: Settings, known: ServerRecord) -> ServerStatus:
    """How the container in server.json is now."""
    del settings
    if known.container is None:
        reason = known.reason or "The container is gone."
        return _ended(known, reason)
    try:
        ended = _why_ended(known)
    except ServerError as error:
        return known.status(ServerState.FAILED, str(error))
    if ended is not None:
        return _ended(known, f"Triton's container ended: {ended}.")
    if known.state is ServerState.STARTING and time.time() - known.started_at < START_TIMEOUT_S:
        return known.status(ServerState.STARTING)
    with Triton(known.endpoints, timeout_s=3) as triton:
        if triton.is_live():
            return known.status(ServerState.READY)
    silent = f"The container {known.container[:12]} runs but its Triton does not answer. Stop it and start it again."
    return known.status(ServerState.FAILED, silent)


def _ended(known: ServerRecord, reason: str) -> ServerStatus:
    return ServerStatus(ServerState.FAILED, known.kind, reason=reason, image=known.image, gpus=known.gpus)


def stop(settings: Settings, known: ServerRecord) -> None:
    """End this installation's containers, gently first, and remove them; the log stays in results/server.log.

    Raises ServerError where the engine does not answer and Triton still does: without both, nothing runs, and what
    is left of the container is removed by the next start.
    """
    if known.container is None:
        return
    try:
        with engine.connected("stop the container", timeout_s=STOP_TIMEOUT_S + engine.TIMEOUT_S) as client:
            _remove_all(settings, client)
    except ServerError:
        with Triton(known.endpoints, timeout_s=3) as triton:
            if triton.is_live():
                raise


def remove_leftovers(settings: Settings) -> None:
    """End this installation's containers of a lost server.json, where an engine answers."""
    with contextlib.suppress(TrituneError), engine.connected("look for containers", timeout_s=5.0) as client:
        _remove_all(settings, client)


def _remove(settings: Settings, container_id: str | None) -> None:
    if container_id is None:
        return
    with contextlib.suppress(engine.Missing), engine.connected("remove the container") as client:
        _end(settings, client.containers.get(container_id), 1)


def _remove_all(settings: Settings, client: Any) -> None:
    for container in _ours(settings, client):
        _end(settings, container, STOP_TIMEOUT_S)


def _end(settings: Settings, container: Any, timeout_s: int) -> None:
    """Stop one container, keep its log and remove it; one that is gone meanwhile is no fault."""
    with contextlib.suppress(engine.sdk().errors.NotFound):
        if container.status == "running":
            container.stop(timeout=timeout_s)
        if container.status != "created":
            _keep_log(settings, container.logs(tail=KEPT_LINES, timestamps=False))
        container.remove(force=True, v=True)


def _keep_log(settings: Settings, log: bytes) -> None:
    with contextlib.suppress(OSError):
        settings.server_log.unlink(missing_ok=True)
        settings.server_log.touch(mode=0o600)
        settings.server_log.write_bytes(log)


def onnx_limits(known: ServerRecord) -> images.OnnxLimits | None:
    """What the ONNX Runtime in the container takes; None where neither the tag nor a label of the image tells."""
    image = known.image or ""
    if images.release(image) is not None:
        return images.onnx_limits(image)
    with contextlib.suppress(TrituneError, engine.Missing), engine.connected(f"look for {image}") as client:
        return images.onnx_limits(image, client.images.get(image).labels)
    return None


def logs(settings: Settings, lines: int) -> str:
    """The last lines of the container's log, live; those of the last one where none runs."""
    known = record.read(settings)
    if known is None or known.container is None:
        return embedded.logs(settings, lines)
    return "\n".join(_log(known, tail=lines).splitlines())


def _log(known: ServerRecord, **which: Any) -> str:
    try:
        with engine.connected("read the container's log") as client:
            return str(client.containers.get(known.container).logs(**which).decode(errors="replace"))
    except engine.Missing:
        return ""
    except ServerError as error:
        return str(error)


# --- a client that knows the repository and the log ----------------------------------------------------------------


def connect(settings: Settings, known: ServerRecord) -> Triton:
    """A client that checks a model before every load and knows the log's reasons."""
    load_began_at = 0.0

    def before(name: str, config: str | None) -> None:
        nonlocal load_began_at
        load_began_at = time.time()
        check_model_name(name)
        # The CPU image starts its stubs through a shell too, and NVIDIA's its Python backend.
        if config is None:
            embedded.check_loadable(settings.model_repo, name)
        else:
            embedded.check_given(config, name)

    def reason(name: str) -> str | None:
        for line in reversed(_log(known, since=int(load_began_at)).splitlines()):
            match = re.search(rf"Poll failed for model directory '{re.escape(name)}': (.*?)\"?$", line)
            if match:
                return match[1]
        return None

    shown = (MODELS, str(settings.model_repo))
    return Triton(known.endpoints, before_load=before, reason_of=reason, path_shown=shown)
