"""Reload a model without a stall: the new instances start and warm up beside the old ones, then Triton switches.

Belongs here: the order of these steps, and what they cost in memory. Never: the plain reload (deploy), widgets.

What was measured (docs/decisions, "reload without a stall"): Triton replaces a model that is served only when its
successor is ready, and unloads the old one when its last request is answered. What stalls everybody is the load call
over HTTP, which keeps HTTP from answering until the load is done; over gRPC it does not. What is late after that are
the first requests to cold instances, hence Triton's own warm-up, given with the load and not written into config.pbtxt.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tritune import deploy
from tritune.deploy import Applied, MemoryCost, Preview, Progress
from tritune.errors import InputError, ServerDownError, ServerError, TritonRefusedError
from tritune.knob_places import Warmup
from tritune.model_config import ModelConfig
from tritune.repository import ModelRepository
from tritune.servers.launch import GRPC_CONTROL_PREFIX
from tritune.triton import LOAD_TIMEOUT_S, Triton, check_model_name, plain_reason

METHOD = "/inference.GRPCInferenceService/RepositoryModelLoad"
WARM_BATCHES = 16
PROBE_PAUSE_S = 0.02  # the probe must not itself make others wait
MEMORY_POLL_S = 0.1
OLD_GONE_S = 15.0


def apply(
    triton: Triton,
    repository: ModelRepository,
    wanted: Preview,
    progress: Progress = lambda text: None,
    *,
    server_pid: int | None = None,
) -> Applied:
    """Write, load beside what is served, warm up, switch, verify; a model that is not served is loaded as by `deploy`.

    On a refusal what was served never stopped, and its config.pbtxt is put back. `server_pid`: the server's process on
    this machine, whose memory is then looked at. Raises InputError where the server has no gRPC address or does not let
    models be loaded, TritonRefusedError with Triton's reason, ServerDownError.
    """
    model = wanted.model
    if triton.endpoints.grpc is None:
        raise InputError(
            f"The server at {triton.endpoints.http} has no gRPC address, and over HTTP every load stalls all requests. "
            "Attach it with --grpc HOST:PORT, or reload with the stall."
        )
    if not triton.has_model_control or not triton.model_ready(model):
        return deploy.apply(triton, repository, wanted, progress)
    given = _warmed(triton, wanted.after, model)
    progress(f"Loading the new {model} beside the old one, which answers until the new one is warm")
    probe = deploy.ReloadProbe(triton, model, PROBE_PAUSE_S)
    with _memory(server_pid, model) as memory:
        probe.start()
        try:
            if not wanted.changes_nothing:
                repository.write_config(model, wanted.after.text)
            began = time.monotonic_ns()
            try:
                _load(triton, model, given)
            except (ServerError, InputError) as error:
                _put_back(repository, wanted)
                raise _said(error, model) from error
            reload_ms = (time.monotonic_ns() - began) / 1e6
            probe.wait_for_reply()
        finally:
            probe.stop()
    return deploy.applied(triton, wanted, given, reload_ms, probe, memory())


def _warmed(triton: Triton, config: ModelConfig, model: str) -> ModelConfig:
    """`config` with Triton's warm-up: a batch of zeros of each power of two that it can form.

    Left as it is where it warms up already, and where the model that is served refuses such a request: with a warm-up
    that fails Triton does not load a model.
    """
    if config.message.model_warmup:
        return config
    message = config.copy()
    top = min(message.max_batch_size, WARM_BATCHES)
    sizes = [1, *(2**power for power in range(1, 5) if 2**power <= top)]
    Warmup().write(message, ",".join(str(size) for size in sizes))
    try:
        body, headers = deploy.probe_request(triton.signature(model), model)
        status, _, _ = triton.infer(model, body, headers)
    except (InputError, ServerError):
        return config
    return ModelConfig(message) if status == 200 else config


def _load(triton: Triton, model: str, config: ModelConfig) -> None:
    """The load call over gRPC, with the configuration. Raises TritonRefusedError, ServerDownError, InputError."""
    import grpc
    from tritonclient.grpc import service_pb2

    check_model_name(model)
    if triton.before_load:
        triton.before_load(model, config.json)
    request = service_pb2.RepositoryModelLoadRequest(model_name=model)
    request.parameters["config"].string_param = config.json
    ends = triton.endpoints
    metadata = [(name.lower(), value) for name, value in ends.headers.items()]
    metadata += [(GRPC_CONTROL_PREFIX + ends.control[0], ends.control[1])] if ends.control else []
    with _channel(str(ends.grpc), ends.tls) as channel:
        call = channel.unary_unary(METHOD)
        try:
            call(request.SerializeToString(), timeout=LOAD_TIMEOUT_S, metadata=metadata)
        except grpc.RpcError as error:
            code, words = error.code(), str(error.details())
            if code is grpc.StatusCode.UNAVAILABLE and "polling" not in words:
                raise ServerDownError(
                    f"No server answers gRPC at {ends.grpc} ({words}). Look at `tritune server logs`."
                ) from error
            reason = plain_reason(model, words)
            raise TritonRefusedError(f"Triton refused to load {model}: {reason}", reason=reason) from error
    if not triton.model_ready(model):
        raise TritonRefusedError(f"Triton answered the load of {model} and does not serve it.")


def _channel(address: str, tls: Mapping[str, Any] | None) -> Any:
    import grpc

    options = [("grpc.use_local_subchannel_pool", 1)]
    if tls is None:
        return grpc.insecure_channel(address, options)
    files: dict[str, bytes | None] = {}
    for name in ("ca", "key", "cert"):
        try:
            files[name] = Path(tls[name]).read_bytes() if tls.get(name) else None
        except OSError as error:
            raise InputError(f"The TLS file {tls[name]} cannot be read ({error.strerror}). Check the path.") from error
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(files["ca"], files["key"], files["cert"]), options)


def _put_back(repository: ModelRepository, wanted: Preview) -> None:
    if wanted.changes_nothing:
        return
    if wanted.before is None:
        repository.remove_config(wanted.model)
    else:
        repository.write_config(wanted.model, wanted.before)


def _said(error: ServerError | InputError, model: str) -> ServerError | InputError:
    if isinstance(error, TritonRefusedError):
        reason = error.reason or str(error)
        after = "What was served before is served on, and its config.pbtxt is in place again."
        return TritonRefusedError(f"Triton refused the new configuration of {model}: {reason} {after}", reason=reason)
    return type(error)(f"{error} The previous config.pbtxt of {model} is in place again.")


# --- memory --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _memory(pid: int | None, model: str) -> Iterator[Callable[[], MemoryCost | None]]:
    """Watch the resident memory of a process and its descendants; the function says what was seen, once the
    instances that were there at the beginning are gone."""
    tree = _tree(pid) if pid is not None else ()
    if not tree:
        yield lambda: None
        return
    old = [child for child in tree[1:] if _serves(child, model)]
    before = _resident_mib(tree)
    peak, ended = before, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not ended.wait(MEMORY_POLL_S):
            peak = max(peak, _resident_mib(_tree(tree[0])))

    def seen() -> MemoryCost:
        limit = time.monotonic() + OLD_GONE_S
        while any(Path(f"/proc/{child}").exists() for child in old) and time.monotonic() < limit:
            ended.wait(MEMORY_POLL_S)
        ended.set()
        watcher.join()
        return MemoryCost(round(before, 1), round(peak, 1), round(_resident_mib(_tree(tree[0])), 1))

    watcher = threading.Thread(target=watch, name="memory-of-the-server", daemon=True)
    watcher.start()
    try:
        yield seen
    except BaseException:
        ended.set()
        raise


def _tree(pid: int) -> tuple[int, ...]:
    """The process and its descendants; empty where it is none of this machine."""
    found, waiting = [], [pid]
    while waiting:
        process = waiting.pop()
        try:
            tasks = list(Path(f"/proc/{process}/task").iterdir())
        except OSError:
            continue
        found.append(process)
        for task in tasks:
            with contextlib.suppress(OSError):
                waiting.extend(int(child) for child in (task / "children").read_text().split())
    return tuple(found)


def _resident_mib(processes: tuple[int, ...]) -> float:
    """Their resident memory (the second number of /proc/<pid>/statm, in pages)."""
    import resource

    pages = 0
    for process in processes:
        with contextlib.suppress(OSError, IndexError, ValueError):
            pages += int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def _serves(process: int, model: str) -> bool:
    """Whether it is a stub of the Python backend with an instance of the model."""
    try:
        return f"/{model}/".encode() in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False
