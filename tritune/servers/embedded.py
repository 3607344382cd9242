"""The embedded Triton: the binary of the wheel nvidia-pytriton with Tritune's onnxruntime backend, on this machine.

Belongs here: starting it so that it outlives every terminal, finding it again, stopping it, its log. Never: its
environment's set-up (environment.py), what is asked of a running server (triton.py).

Triton starts its Python stubs through a shell and hands on every path, so it only ever sees one private
folder whose name has no space or shell character; links in there lead to the repository and the environment.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from tritune.errors import InputError, ServerError, TrituneError
from tritune.plan import MODEL_NAME_PATTERN, Endpoints
from tritune.servers import record
from tritune.servers.environment import (
    find_libpython,
    is_set_up,
    set_up,
    site_packages,
    tritonserver,
    unsupported_reason,
)
from tritune.servers.record import ServerKind, ServerRecord, ServerState, ServerStatus
from tritune.settings import DEFAULT_HTTP_PORT, Settings
from tritune.triton import Triton, check_model_name

__all__ = ["clean_up", "connect", "is_set_up", "logs", "set_up", "start", "status", "stop", "unsupported_reason"]

HOST = "127.0.0.1"
CONTROL_HEADER = "tritune-control"
RESTRICTED = "model-repository,logging,trace"
PORT_STEP = 10
PORT_TRIES = 50
START_TRIES = 5
START_TIMEOUT_S = 60.0
EXIT_TIMEOUT_S = 5
KILL_AFTER_S = EXIT_TIMEOUT_S + 15.0
BACKEND = Path(__file__).parent / "backends" / "onnxruntime" / "model.py"

# Runs in a Python that ends at once: the server is then nobody's child and holds nobody's pipes.
_LAUNCH = (
    "import subprocess, sys\n"
    "log = open(sys.argv[1], 'ab', 0)\n"
    "server = subprocess.Popen(sys.argv[3:], cwd=sys.argv[2], stdin=subprocess.DEVNULL, stdout=log, stderr=log,\n"
    "                          start_new_session=True)\n"
    "print(server.pid)\n"
)


class _PortLost(Exception):
    """Somebody took one of the ports between our look and Triton's bind."""


def start(settings: Settings, *, port_base: int | None, progress: Callable[[str], None]) -> ServerStatus:
    """Start a server and load the repository's models one by one; the caller holds the installation's lock.

    Raises ServerError where it does not come up (also remembered as the state FAILED), InputError for a bad port.
    """
    reason = unsupported_reason()
    if reason:
        raise ServerError(reason)
    if not is_set_up(settings):
        raise ServerError("The embedded Triton is not set up yet. Run `make setup`, or set it up on the Server page.")
    base = DEFAULT_HTTP_PORT if port_base is None else port_base
    known = record.read(settings)
    if known and known.kind is ServerKind.EMBEDDED:
        stop(settings, known)
    clean_up(settings)
    for attempt in range(START_TRIES):
        ports = free_ports(base)
        if ports[0] != (DEFAULT_HTTP_PORT if port_base is None else port_base):
            progress(f"Port {base} or one of the next two is taken: using {ports[0]}, {ports[1]} and {ports[2]}.")
        try:
            known = _start_once(settings, ports)
        except _PortLost:
            base = ports[0] + PORT_STEP
            progress(f"Another program took one of the ports {ports[0]} to {ports[2]} meanwhile (try {attempt + 1}).")
            continue
        progress(f"Triton {known.triton_version} is ready at {known.endpoints.http}.")
        _load_all(settings, known, progress)
        return known.status()
    raise ServerError(f"No three free ports could be kept from {base} on. Name others with --port-base.")


def _start_once(settings: Settings, ports: tuple[int, int, int]) -> ServerRecord:
    http, grpc, metrics = (f"{HOST}:{port}" for port in ports)
    endpoints = Endpoints(http, grpc, metrics, control=(CONTROL_HEADER, secrets.token_hex(16)))
    try:
        folder = _private_folder(settings)
        if settings.server_log.exists():
            settings.server_log.replace(settings.server_log.with_name("server.log.1"))
        settings.server_log.touch(mode=0o600)
    except OSError as error:
        raise ServerError(f"The server's folder cannot be prepared: {error}. Make room or rights there.") from error
    pid = _launch(settings, folder, endpoints)
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
    record.write(settings, known)
    try:
        version = _wait_until_live(known)
    except ServerError as error:
        words = reason_in_log(_read_log(settings))
        stop(settings, known)
        if "already in use" in words.lower():
            raise _PortLost from error
        reason = f"Triton did not start: {words or error}".rstrip(". ") + "."
        record.write(settings, replace(known, state=ServerState.FAILED, pid=None, folder=None, reason=reason))
        raise ServerError(f"{reason} The log is {settings.server_log}.") from error
    known = replace(known, state=ServerState.READY, triton_version=version)
    record.write(settings, known)
    return known


def _launch(settings: Settings, folder: Path, endpoints: Endpoints) -> int:
    assert endpoints.control is not None
    secret = "=".join(endpoints.control)
    python, http, grpc, metrics = (
        str(folder / "env/bin/python"),
        *(str(address).rpartition(":")[2] for address in (endpoints.http, endpoints.grpc, endpoints.metrics)),
    )
    command = [
        str(tritonserver(folder / "env")),
        f"--model-repository={folder / 'models'}",
        f"--backend-directory={folder / 'backends'}",
        f"--backend-config=onnxruntime,shm-region-prefix-name={folder.name}-",
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--strict-readiness=false",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--http-address={HOST}",
        f"--http-port={http}",
        f"--grpc-address={HOST}",
        f"--grpc-port={grpc}",
        f"--metrics-address={HOST}",
        f"--metrics-port={metrics}",
        "--allow-gpu-metrics=false",
        f"--http-restricted-api={RESTRICTED}:{secret}",
        f"--grpc-restricted-protocol={RESTRICTED}:{secret}",
    ]
    launcher = [python, "-I", "-S", "-c", _LAUNCH, str(settings.server_log.absolute()), str(folder), *command]
    try:
        answer = subprocess.run(
            launcher,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            start_new_session=True,
            env=server_environment(folder, os.environ),
        )
        return int(answer.stdout)
    except subprocess.CalledProcessError as error:
        words = error.stderr.strip().splitlines()[-1:] or ["no words"]
        raise ServerError(f"The server's process could not be started: {words[0]}. Run `make setup` again.") from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise ServerError(f"The server's process could not be started: {error}. Run `make setup` again.") from error


def server_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of Triton and its stubs: the link to .triton first, nothing that steers a shell,
    another Python, a GPU that this server's ONNX Runtime could not use, or holds Tritune's secrets.
    """
    dropped = re.compile(r"TRITUNE_|PYTHON|TRITON|AIP_|BASH_ENV$|ENV$|BASH_FUNC_|VIRTUAL_ENV$|SHELLOPTS$|BASHOPTS$")
    kept = {name: value for name, value in environ.items() if not dropped.match(name)}
    libraries = [str(site_packages(folder / "env") / "nvidia_pytriton.libs"), str(folder / "lib")]
    kept["PATH"] = os.pathsep.join([str(folder / "env/bin"), environ.get("PATH") or os.defpath])
    kept["LD_LIBRARY_PATH"] = ":".join([*libraries, *filter(None, [environ.get("LD_LIBRARY_PATH")])])
    kept["CUDA_VISIBLE_DEVICES"] = ""
    return kept


def _wait_until_live(known: ServerRecord) -> str:
    """Triton's version once it answers, is ours and has its control API closed. ServerError where it does not."""
    deadline = time.monotonic() + START_TIMEOUT_S
    stranger = Triton(replace(known.endpoints, control=None), timeout_s=5)
    with Triton(known.endpoints, timeout_s=5) as triton, stranger:
        while time.monotonic() < deadline:
            if not known.is_running:
                raise ServerError("its process ended")
            # Another installation's server may answer at a port that we are about to lose: only ours knows the secret.
            if triton.is_live() and _answers(triton) and not _answers(stranger) and known.is_running:
                return str(triton.server_metadata().get("version", ""))
            time.sleep(0.05)
    raise ServerError(f"it did not answer within {START_TIMEOUT_S:.0f} s")


def _answers(triton: Triton) -> bool:
    try:
        triton.index()
    except ServerError:
        return False
    return True


def _load_all(settings: Settings, known: ServerRecord, progress: Callable[[str], None]) -> None:
    """Load every model of the repository, one by one; a bad one is told and does not stop the others."""
    with connect(settings, known) as triton:
        for name in model_folders(settings.model_repo):
            try:
                triton.load(name)
            except TrituneError as error:
                progress(str(error))
                if not known.is_running:
                    reason = f"Triton ended while it loaded {name}: {reason_in_log(_read_log(settings)) or 'no words'}."
                    record.write(settings, replace(known, state=ServerState.FAILED, reason=reason))
                    raise ServerError(f"{reason} The log is {settings.server_log}.") from error
            else:
                progress(f"Loaded {name}.")


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
            if triton.is_live():
                return known.status(ServerState.READY if known.state is ServerState.READY else ServerState.STARTING)
        if time.time() - known.started_at < START_TIMEOUT_S and known.state is ServerState.STARTING:
            return known.status(ServerState.STARTING)
        return known.status(
            ServerState.FAILED, f"Triton (pid {known.pid}) runs but does not answer. Stop and start it."
        )
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
        _remove(Path(known.folder))


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
        with contextlib.suppress(OSError, ValueError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if fields[0] not in "ZX" and int(fields[3]) == session:
                command = (entry / "cmdline").read_bytes()
                if folder is None or os.fsencode(folder) in command:
                    found.append(int(entry.name))
    return found


def logs(settings: Settings, lines: int) -> str:
    """The last lines of the server's log, a sentence where there is none."""
    text = _read_log(settings)
    return "\n".join(text.splitlines()[-lines:]) if text else "The embedded Triton has not been started yet."


def _read_log(settings: Settings, start: int = 0) -> str:
    try:
        return settings.server_log.read_bytes()[start:].decode(errors="replace")
    except OSError:
        return ""


def reason_in_log(text: str) -> str:
    """Why a server ended, in the words of its log's last error; empty where it says nothing."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for pattern in (
        r"error: (?:creating server: )?(.+)",
        r"(.*error while loading shared libraries: .+)",
        r"E\d{4} [\d:.]+ \d+ [\w.]+:\d+\] \"?(.+?)\"?",
        r".*(Signal \(\d+\) received)\.?",
        r"(terminate called .+|.*[Ss]egmentation fault.*)",
    ):
        for line in reversed(lines):
            match = re.fullmatch(pattern, line)
            if match:
                return match[1].rstrip(". ")
    return ""


def connect(settings: Settings, known: ServerRecord) -> Triton:
    """A client that checks a model's folder before every load and knows the log's reasons."""
    start_of_load = 0

    def before(name: str) -> None:
        nonlocal start_of_load
        with contextlib.suppress(OSError):
            start_of_load = settings.server_log.stat().st_size
        check_loadable(settings.model_repo, name)

    def reason(name: str) -> str | None:
        for line in reversed(_read_log(settings, start_of_load).splitlines()):
            match = re.search(rf"Poll failed for model directory '{re.escape(name)}': (.*?)\"?$", line)
            if match:
                return match[1]
        return None

    return Triton(known.endpoints, before_load=before, reason_of=reason)


def check_loadable(repository: Path, name: str) -> None:
    """Raise InputError where a model's configuration would put something into the command line of Triton's stub.

    Besides the folder's name these are default_model_filename, the names of instance groups and
    EXECUTION_ENV_PATH (which also brings a Python of its own).
    """
    check_model_name(name)
    path = repository / name / "config.pbtxt"
    if not path.is_file():
        return
    from google.protobuf import text_format
    from tritonclient.grpc import model_config_pb2

    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(path.read_text(), config)
    except (OSError, ValueError, text_format.ParseError):
        return  # Triton reads it likewise, refuses it and starts nothing.
    names = [("default_model_filename", config.default_model_filename), ("runtime", config.runtime)]
    names += [("instance_group.name", group.name) for group in config.instance_group]
    for field, value in names:
        if value and not re.fullmatch(MODEL_NAME_PATTERN, value):
            raise InputError(
                f"{field} {value!r} in {path} is not allowed: Triton would hand it to a shell. Use letters, digits, "
                "'_', '-' and '.'."
            )
    if "EXECUTION_ENV_PATH" in config.parameters:
        raise InputError(
            f"The parameter EXECUTION_ENV_PATH in {path} is not allowed: the embedded Triton runs the Python of "
            ".triton/ only. Remove it."
        )


# --- ports and the private folder ----------------------------------------------------------------------------------


def free_ports(base: int) -> tuple[int, int, int]:
    """The first three free ports in a row from `base`, base + 10, base + 20, ...

    Raises InputError for a base that is no port of an ordinary user, ServerError where none is free.
    """
    if not 1 <= base <= 65533:
        raise InputError(f"port_base={base} must be from 1 to 65533: HTTP, gRPC and metrics take three in a row.")
    for first in range(base, min(base + PORT_STEP * PORT_TRIES, 65534), PORT_STEP):
        ports = (first, first + 1, first + 2)
        if all(_is_free(port) for port in ports):
            return ports
    raise ServerError(f"No three free ports in a row were found from {base} on. Name others with --port-base.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Triton: old connections do not count
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EACCES:
                raise InputError(f"Port {port} needs root's rights. Name one above 1023 with --port-base.") from error
            return False
    return True


def _prefix(settings: Settings) -> str:
    """How this installation's private folders begin, so that a later start finds one that was left behind."""
    mark = hashlib.sha256(os.fsencode(settings.results.absolute())).hexdigest()[:8]
    return f"tritune-{os.getuid()}-{mark}-"


def _temporary_roots() -> list[Path]:
    """Folders for private folders whose paths a shell leaves alone."""
    roots = [Path(tempfile.gettempdir()).absolute(), Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")]
    return [root for root in dict.fromkeys(roots) if re.fullmatch(r"[A-Za-z0-9_/.-]+", str(root)) and root.is_dir()]


def _private_folder(settings: Settings) -> Path:
    """A new folder (mode 0700) with the backends and links to everything else that Triton reads."""
    root = next((root for root in _temporary_roots() if os.access(root, os.W_OK)), None)
    library = find_libpython()
    if root is None or library is None:
        raise OSError(errno.ENOENT, "no folder for temporary files can be written (/tmp, /var/tmp)")
    settings.model_repo.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(settings), dir=root))
    (folder / "env").symlink_to(settings.embedded_env.absolute())
    (folder / "models").symlink_to(settings.model_repo.absolute())
    (folder / "lib").mkdir()
    (folder / "lib" / library.name).symlink_to(library.resolve())
    wheel = site_packages(settings.embedded_env) / "pytriton" / "tritonserver"
    stub = (
        wheel / "python_backend_stubs" / f"{sys.version_info[0]}.{sys.version_info[1]}" / "triton_python_backend_stub"
    )
    python = shutil.copytree(
        wheel / "backends" / "python", folder / "backends" / "python", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy2(stub, python / stub.name)
    (python / stub.name).chmod(0o700)
    (folder / "backends" / "onnxruntime").mkdir()
    shutil.copy2(BACKEND, folder / "backends" / "onnxruntime" / "model.py")
    return folder


def clean_up(settings: Settings) -> None:
    """Remove private folders and shared memory that a killed server of this installation left behind."""
    known = record.read(settings)
    keep = Path(known.folder).name if known and known.folder and known.is_running else None
    for root in [*_temporary_roots(), Path("/dev/shm")]:
        for path in root.glob(f"{_prefix(settings)}*"):
            if not (keep and path.name.startswith(keep)):
                _remove(path)


def _remove(path: Path) -> None:
    """Remove a private folder of ours, and its shared memory; never what a link in it leads to."""
    for region in Path("/dev/shm").glob(f"{path.name}*"):
        if region.is_file() and region.stat().st_uid == os.getuid():
            region.unlink(missing_ok=True)
    if path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid():
        shutil.rmtree(path, ignore_errors=True)
