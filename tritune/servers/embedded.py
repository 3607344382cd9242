"""The embedded Triton: the binary of the wheel nvidia-pytriton with Tritune's onnxruntime backend, on this machine.

Belongs here: starting it so that it outlives every terminal, finding it again, stopping it, its log. Never: its
environment's set-up (environment.py), its command line and folder (launch.py), what is asked of it (triton.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tritune import model_syntax
from tritune.errors import InputError, ServerError, TrituneError
from tritune.plan import MODEL_NAME_PATTERN, Endpoints
from tritune.servers import images, launch, record
from tritune.servers.environment import is_set_up, requirements_file, set_up, unsupported_reason
from tritune.servers.record import ServerKind, ServerRecord, ServerState, ServerStatus
from tritune.settings import DEFAULT_HTTP_PORT, Settings
from tritune.triton import Triton, check_model_name

__all__ = ["connect", "is_set_up", "logs", "set_up", "start", "status", "stop", "unsupported_reason"]

START_TRIES = 5
START_TIMEOUT_S = 60.0
PORT_TAKEN = "already in use"
KILL_AFTER_S = launch.EXIT_TIMEOUT_S + 15.0

WhyEnded = Callable[[str], ServerError | None]


class _PortLost(Exception):
    """Somebody took one of the ports between our look and Triton's bind."""


# --- starting ------------------------------------------------------------------------------------------------------


def start(settings: Settings, *, port_base: int | None, progress: Callable[[str], None]) -> ServerStatus:
    """Start a server and load the repository's models one by one; the caller holds the installation's lock.

    Raises ServerError where it does not come up (also remembered as the state FAILED), InputError for a bad port.
    """
    reason = unsupported_reason()
    if reason:
        raise ServerError(reason)
    if not is_set_up(settings):
        raise ServerError("The embedded Triton is not set up yet. Run `make setup`, or set it up on the Server page.")
    known = record.read(settings)
    if known and known.kind is ServerKind.EMBEDDED:
        stop(settings, known)
    launch.clear(settings)
    wanted = DEFAULT_HTTP_PORT if port_base is None else port_base
    base = wanted
    for _ in range(START_TRIES):
        ports = launch.free_ports(base)
        if ports[0] != wanted:
            progress(
                f"Port {wanted}, {wanted + 1} or {wanted + 2} is taken by another program: "
                f"using {ports[0]}, {ports[1]} and {ports[2]}."
            )
        try:
            known = _start_once(settings, ports)
        except _PortLost:
            base = ports[0] + launch.PORT_STEP
            continue
        try:
            progress(f"Triton {known.triton_version} is ready at {known.endpoints.http}.")
            with connect(settings, known) as triton:
                load_all(triton, settings.model_repo, progress, partial(_ended_over, settings, known))
        except TrituneError:
            raise
        except BaseException:  # cancelled, or Ctrl-C: a start that was called off leaves no server
            stop(settings, known)
            record.forget(settings)
            raise
        return known.status()
    raise ServerError(f"No three free ports could be kept from {wanted} on. Name others with --port-base.")


def _start_once(settings: Settings, ports: tuple[int, int, int]) -> ServerRecord:
    endpoints = launch.new_endpoints(ports)
    try:
        settings.results.mkdir(parents=True, exist_ok=True)
        folder = launch.private_folder(settings)
        if settings.server_log.exists():
            settings.server_log.replace(settings.server_log.with_name("server.log.1"))
        settings.server_log.touch(mode=0o600)
    except OSError as error:
        raise ServerError(f"The server's folder cannot be prepared ({error}). Make room or rights there.") from error
    try:
        return _launched(settings, folder, endpoints)
    except BaseException:
        # Also where Ctrl-C comes before server.json knows of the process: nothing of a half start stays.
        launch.end_processes(str(folder))
        launch.remove(folder)
        raise


def _launched(settings: Settings, folder: Path, endpoints: Endpoints) -> ServerRecord:
    pid = launch.launch(settings, folder, endpoints)
    known = ServerRecord(
        state=ServerState.STARTING,
        kind=ServerKind.EMBEDDED,
        endpoints=endpoints,
        started_at=time.time(),
        pid=pid,
        process_start=record.process_start(pid),
        boot_id=record.boot_id(),
        folder=str(folder),
        control=True,
        statistics=True,
    )
    try:
        record.write(settings, known)
        version = _wait_until_live(settings, known)
    except ServerError as error:
        log = _read_log(settings)
        stop(settings, known)
        if PORT_TAKEN in log:
            raise _PortLost from error
        words = reason_in_log(log)
        reason = f"Triton did not start: {words or error}".rstrip(". ") + "."
        with contextlib.suppress(ServerError):
            record.write(settings, replace(known, state=ServerState.FAILED, pid=None, folder=None, reason=reason))
        raise ServerError(f"{reason} The log is {settings.server_log}.") from error
    except BaseException:
        record.forget(settings)
        raise
    known = replace(known, state=ServerState.READY, triton_version=version)
    record.write(settings, known)
    return known


def _wait_until_live(settings: Settings, known: ServerRecord) -> str:
    """Triton's version once all its ports are its own, it answers and its control API is closed to others.

    Raises ServerError where that does not come: Triton goes on without metrics where that port is taken.
    """
    ends = known.endpoints
    ports = {int(str(address).rpartition(":")[2]) for address in (ends.http, ends.grpc, ends.metrics)}
    deadline = time.monotonic() + START_TIMEOUT_S
    stranger = Triton(replace(ends, control=None), timeout_s=5)
    with Triton(ends, timeout_s=5) as triton, stranger:
        while time.monotonic() < deadline:
            if not known.is_running:
                raise ServerError("its process ended")
            if PORT_TAKEN in _read_log(settings):
                raise ServerError(PORT_TAKEN)
            if ports <= record.listening_ports(known.pid or 0) and triton.is_live():
                if stranger.lets_control() or not triton.lets_control():
                    raise ServerError("its control API does not ask for the header it was given")
                return str(triton.server_metadata().get("version", ""))
            time.sleep(0.05)
    raise ServerError(f"it did not answer within {START_TIMEOUT_S:.0f} s")


def load_all(triton: Triton, repository: Path, progress: Callable[[str], None], why_ended: WhyEnded) -> None:
    """Load every model of the repository, one by one; a bad one is told and does not stop the others.

    Raises what `why_ended` (a model's name) gives: the server ended over that model.
    """
    for name in model_folders(repository):
        try:
            triton.load(name)
        except TrituneError as error:
            progress(str(error))
            if (ended := why_ended(name)) is not None:
                raise ended from error
        else:
            progress(f"Loaded {name}.")


def _ended_over(settings: Settings, known: ServerRecord, name: str) -> ServerError | None:
    """The error where the server ended while it loaded this model, remembered as its state."""
    if known.is_running:
        return None
    words = reason_in_log(_read_log(settings)) or "it left no words"
    reason = f"Triton ended while it loaded {name}: {words}."
    record.write(settings, replace(known, state=ServerState.FAILED, reason=reason))
    return ServerError(f"{reason} Move that model away; the log is {settings.server_log}.")


def onnx_limits(settings: Settings) -> images.OnnxLimits | None:
    """What the ONNX Runtime of the environment's pins takes."""
    with contextlib.suppress(OSError):
        for line in requirements_file(settings).read_text().splitlines():
            if line.startswith("onnxruntime=="):
                return images.limits_of(line.partition("==")[2].strip())
    return None


def model_folders(repository: Path) -> list[str]:
    """Names of the repository's folders that hold a version; hidden ones are half-written and left out."""
    try:
        folders = sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))
        return [
            folder.name for folder in folders if any(path.is_dir() and path.name.isdigit() for path in folder.iterdir())
        ]
    except OSError:
        return []


# --- finding it again, stopping it ---------------------------------------------------------------------------------


def status(settings: Settings, known: ServerRecord) -> ServerStatus:
    """How the server in server.json is now."""
    if known.is_running:
        with Triton(known.endpoints, timeout_s=3) as triton:
            is_starting = known.state is ServerState.STARTING and time.time() - known.started_at < START_TIMEOUT_S
            if is_starting:
                return known.status(ServerState.STARTING)
            if triton.is_live():
                # Also where the record says starting for too long: whoever started it was ended meanwhile.
                return known.status(ServerState.READY)
        silent = f"Triton (pid {known.pid}) runs but does not answer. Stop it and start it again."
        return known.status(ServerState.FAILED, silent)
    if known.state is ServerState.FAILED and known.reason:
        return ServerStatus(ServerState.FAILED, known.kind, reason=known.reason)
    if not known.is_of_this_boot:
        return ServerStatus(ServerState.STOPPED)
    words = reason_in_log(_read_log(settings))
    ended = f"Triton (pid {known.pid}) ended although nobody stopped it"
    return ServerStatus(ServerState.FAILED, known.kind, reason=f"{ended}: {words}." if words else f"{ended}.")


def stop(settings: Settings, known: ServerRecord) -> None:
    """End the server's processes, gently first, and remove its private folder. Raises ServerError if it survives."""
    if known.is_running and known.pid:
        with contextlib.suppress(ProcessLookupError):
            os.kill(known.pid, signal.SIGTERM)
        _wait(lambda: not known.is_running, KILL_AFTER_S)
    # The pid names the session too, and no new process gets it while a stub of the session lives.
    if known.pid and known.is_of_this_boot and _session(known.pid, known.folder):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(known.pid, signal.SIGKILL)
        if not _wait(lambda: not _session(known.pid or 0, known.folder), 10):
            raise ServerError(f"Triton (pid {known.pid}) could not be ended. End it by hand and try again.")
    if known.folder:
        launch.remove(Path(known.folder))


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _session(session: int, folder: str | None) -> list[int]:
    """The processes of the server's session that were started from its private folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] in "ZX" or int(fields[3]) != session:
                continue
            if folder and os.fsencode(folder) in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def logs(settings: Settings, lines: int) -> str:
    """The last lines of the server's log; empty where none was started yet."""
    return "\n".join(_read_log(settings).splitlines()[-lines:])


def _read_log(settings: Settings, start: int = 0) -> str:
    try:
        with settings.server_log.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def reason_in_log(text: str) -> str:
    """Why a server ended, in the words of its log's last fatal line; empty where it says nothing of that.

    Errors of models and of hardware that is not there are no reason: Triton logs them and goes on.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (
        r"error: (?:creating server: )?(.+)",
        r"(.*error while loading shared libraries: .+)",
        r"E\d{4} [\d:.]+ +\d+ (?:main|tritonserver|command_line_parser)\.cc:\d+\] \"?(.+?)\"?",
        r"(terminate called .+|.*[Ss]egmentation fault.*)",
        r"(Signal \((?!15\))\d+\) received)\.?",
    ):
        for line in reversed(lines):
            match = re.fullmatch(pattern, line)
            if match:
                return match[1].rstrip(". ")
    return ""


# --- a client that knows the repository and the log ----------------------------------------------------------------


def connect(settings: Settings, known: ServerRecord) -> Triton:
    """A client that checks a model's folder before every load and knows the log's reasons."""
    load_began_at = 0

    def before(name: str, config: str | None) -> None:
        nonlocal load_began_at
        with contextlib.suppress(OSError):
            load_began_at = settings.server_log.stat().st_size
        check_model_name(name)
        if config is None:
            for repository in (settings.model_repo, settings.variants):
                check_loadable(repository, name)
        else:
            check_given(config, name)

    def reason(name: str) -> str | None:
        for line in reversed(_read_log(settings, load_began_at).splitlines()):
            match = re.search(rf"Poll failed for model directory '{re.escape(name)}': (.*?)\"?$", line)
            if match:
                return match[1]
        return None

    shown = (f"{known.folder}/models", str(settings.model_repo)) if known.folder else None
    return Triton(known.endpoints, before_load=before, reason_of=reason, path_shown=shown)


def check_loadable(repository: Path, name: str) -> None:
    """Raise InputError where a model's configuration would put something into the command line of Triton's stub.

    Besides the folder's name these are default_model_filename, the names of instance groups and
    EXECUTION_ENV_PATH (which also brings a Python of its own).
    """
    check_model_name(name)
    path = repository / name / "config.pbtxt"
    if not path.exists():
        return
    if not path.is_file():
        raise InputError(f"{path} is no regular file, and Triton would hang on it. Write a text file there.")
    from google.protobuf import text_format

    config = model_syntax.protobuf().ModelConfig()
    try:
        data = path.read_bytes()
        text_format.Parse(data.decode(), config)
    except OSError:
        return
    except (ValueError, text_format.ParseError) as error:
        # Triton reads it likewise, says why it cannot and starts nothing; where the two might differ, rather not.
        if re.search(rb"[$`;&|<>\\]", data):
            raise InputError(
                f"{path} cannot be read and holds characters that a shell would run. `tritune model check {name}` "
                "says where it is wrong."
            ) from error
        return
    _check_words(config, str(path))


def check_given(text: str, name: str) -> None:
    """As `check_loadable`, for a configuration (JSON) that is given with the load instead of the file."""
    from google.protobuf import json_format

    try:
        config = json_format.Parse(text, model_syntax.protobuf().ModelConfig())
    except json_format.ParseError as error:
        raise InputError(f"The configuration for {name} is not one that Triton reads: {error}.") from error
    _check_words(config, f"the configuration given for {name}")


def _check_words(config: Any, where: str) -> None:
    names = [("default_model_filename", config.default_model_filename), ("runtime", config.runtime)]
    names += [("instance_group.name", group.name) for group in config.instance_group]
    for field, value in names:
        if value and not re.fullmatch(MODEL_NAME_PATTERN, value):
            raise InputError(
                f"{field} {value!r} in {where} is not allowed: Triton would hand it to a shell. Use letters, digits, "
                "'_', '-' and '.'."
            )
    if "EXECUTION_ENV_PATH" in config.parameters:
        raise InputError(
            f"The parameter EXECUTION_ENV_PATH in {where} is not allowed: the embedded Triton runs the Python of "
            ".triton/ only. Remove it."
        )
