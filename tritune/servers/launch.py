"""How the embedded Triton's process is started: ports, private folder, environment variables, command line.

Belongs here: what Triton sees of this machine. Never: whether one should be started, waiting for it, server.json.

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
from collections.abc import Mapping
from pathlib import Path

from tritune.errors import InputError, ServerError
from tritune.plan import Endpoints
from tritune.servers.environment import find_libpython, site_packages, tritonserver
from tritune.settings import Settings

HOST = "127.0.0.1"
CONTROL_HEADER = "tritune-control"
GRPC_CONTROL_PREFIX = "triton-grpc-protocol-"  # gRPC asks for the same header under this longer name
RESTRICTED = "model-repository,logging,trace"
EXIT_TIMEOUT_S = 3
PORT_STEP = 10
PORT_TRIES = 50
LAUNCH_TIMEOUT_S = 30
BACKEND = Path(__file__).parent / "backends" / "onnxruntime"
SAFE_PATH = re.compile(r"[A-Za-z0-9_/.-]+")
SHARED_MEMORY = Path("/dev/shm")
KILL_LIMIT_S = 10.0

# Runs in a Python that ends at once: the server is then nobody's child and holds nobody's pipes.
_LAUNCHER = (
    "import subprocess, sys\n"
    "log = open(sys.argv[1], 'ab', 0)\n"
    "server = subprocess.Popen(sys.argv[3:], cwd=sys.argv[2], stdin=subprocess.DEVNULL, stdout=log, stderr=log,\n"
    "                          start_new_session=True)\n"
    "print(server.pid)\n"
)

# Variables that steer a shell or another Python, or are Tritune's own business.
_DROPPED = re.compile(r"TRITUNE_|PYTHON|TRITON|AIP_|BASH_ENV$|ENV$|BASH_FUNC_|VIRTUAL_ENV$|SHELLOPTS$|BASHOPTS$")


def free_ports(base: int) -> tuple[int, int, int]:
    """The first three free ports in a row from `base`, base + 10, base + 20, ...

    Raises InputError for a base that no ordinary user may take, ServerError where none is free.
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
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Triton: connections in TIME_WAIT do not count
        try:
            probe.bind((HOST, port))
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EACCES:
                raise InputError(f"Port {port} needs root's rights. Name one above 1023 with --port-base.") from error
            return False
    return True


def new_endpoints(ports: tuple[int, int, int]) -> Endpoints:
    """Endpoints on this machine only, with a new random control header."""
    http, grpc, metrics = (f"{HOST}:{port}" for port in ports)
    return Endpoints(http, grpc, metrics, control=(CONTROL_HEADER, secrets.token_hex(16)))


def launch(settings: Settings, folder: Path, endpoints: Endpoints) -> int:
    """Start the server in a session of its own, its output in results/server.log; its pid.

    Raises ServerError where not even the process could be made.
    """
    launcher = [str(folder / "env/bin/python"), "-I", "-S", "-c", _LAUNCHER]
    try:
        answer = subprocess.run(
            [*launcher, str(settings.server_log.absolute()), str(folder), *command_line(folder, endpoints)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LAUNCH_TIMEOUT_S,
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


def command_line(folder: Path, endpoints: Endpoints) -> list[str]:
    """tritonserver with its arguments; every path lies in the private folder."""
    http, grpc, metrics = (
        str(address).rpartition(":")[2] for address in (endpoints.http, endpoints.grpc, endpoints.metrics)
    )
    secret = "=".join(endpoints.control or ())
    return [
        str(tritonserver(folder / "env")),
        f"--model-repository={folder / 'models'}",
        f"--model-repository={folder / 'variants'}",
        f"--backend-directory={folder / 'backends'}",
        # The regions in /dev/shm bear the folder's name, so that a killed server's can be found and removed.
        f"--backend-config=python,shm-region-prefix-name={folder.name}-",
        "--model-control-mode=explicit",
        "--exit-on-error=false",
        "--strict-readiness=false",  # one bad model does not make the server unready
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--http-address={HOST}",
        f"--http-port={http}",
        f"--grpc-address={HOST}",
        f"--grpc-port={grpc}",
        f"--metrics-address={HOST}",
        f"--metrics-port={metrics}",
        "--allow-gpu-metrics=false",
        # Any web page can send a POST to this machine: what changes the server asks for a header it cannot know.
        f"--http-restricted-api={RESTRICTED}:{secret}",
        f"--grpc-restricted-protocol={RESTRICTED}:{secret}",
    ]


def server_environment(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment variables of Triton and its stubs: the link to .triton comes first, and GPUs are hidden
    because pip's ONNX Runtime could not use one (Triton would promise KIND_GPU instances).
    """
    kept = {name: value for name, value in environ.items() if not _DROPPED.match(name)}
    libraries = [str(site_packages(folder / "env") / "nvidia_pytriton.libs"), str(folder / "lib")]
    kept["PATH"] = os.pathsep.join([str(folder / "env/bin"), environ.get("PATH") or os.defpath])
    kept["LD_LIBRARY_PATH"] = ":".join([*libraries, *filter(None, [environ.get("LD_LIBRARY_PATH")])])
    kept["CUDA_VISIBLE_DEVICES"] = ""
    return kept


# --- the private folder --------------------------------------------------------------------------------------------


def private_folder(settings: Settings) -> Path:
    """A new folder (mode 0700) with the backends and links to everything else that Triton reads. Raises OSError."""
    root = next((root for root in _temporary_roots() if os.access(root, os.W_OK)), None)
    library = find_libpython()
    if root is None or library is None:
        raise OSError(errno.ENOENT, "no folder for temporary files can be written (TMPDIR, /tmp, /var/tmp)")
    settings.model_repo.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=_prefix(settings), dir=root))
    (folder / "env").symlink_to(settings.embedded_env.absolute())
    (folder / "models").symlink_to(settings.model_repo.absolute())
    settings.variants.mkdir(parents=True, exist_ok=True)
    (folder / "variants").symlink_to(settings.variants.absolute())
    # The library alone, not its folder: a distribution's folder would put all its libraries before Triton's.
    (folder / "lib").mkdir()
    (folder / "lib" / library.name).symlink_to(library.resolve())
    wheel = site_packages(settings.embedded_env) / "pytriton" / "tritonserver"
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    stub = wheel / "python_backend_stubs" / version / "triton_python_backend_stub"
    python = shutil.copytree(
        wheel / "backends" / "python", folder / "backends" / "python", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy2(stub, python / stub.name)
    (python / stub.name).chmod(0o700)
    # Copied, not linked: a running server keeps its backend while the project's files change.
    shutil.copytree(BACKEND, folder / "backends" / "onnxruntime", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def _prefix(settings: Settings) -> str:
    """How this installation's private folders begin, so that a later start finds one that was left behind."""
    mark = hashlib.sha256(os.fsencode(settings.results.absolute())).hexdigest()[:8]
    return f"tritune-{os.getuid()}-{mark}-"


_PRIVATE = re.compile(rf"tritune-{os.getuid()}-[0-9a-f]{{8}}-.+")


def _temporary_roots() -> list[Path]:
    """Folders for private folders, of those whose paths a shell leaves alone."""
    roots = [Path(tempfile.gettempdir()).absolute(), Path("/tmp"), Path("/var/tmp"), SHARED_MEMORY]
    return [root for root in dict.fromkeys(roots) if SAFE_PATH.fullmatch(str(root)) and root.is_dir()]


def clear(settings: Settings) -> None:
    """End what still runs out of this installation's private folders, and remove them with their shared memory.

    Only to be called where no server should run: that of a lost or damaged server.json is ended too. Raises
    ServerError where a process survives.
    """
    end_processes(f"/{_prefix(settings)}")
    for root in dict.fromkeys([*_temporary_roots(), SHARED_MEMORY]):
        for path in root.glob(f"{_prefix(settings)}*"):
            remove(path)


def end_processes(within: str) -> None:
    """Kill this user's processes whose program's path holds `within`. Raises ServerError where one survives."""
    deadline = time.monotonic() + KILL_LIMIT_S
    while found := processes(within):
        if time.monotonic() > deadline:
            raise ServerError(f"Triton (pid {found[0]}) could not be ended. End it by hand and try again.")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def processes(within: str) -> list[int]:
    """This user's processes whose program (the first word of the command line) has a path that holds `within`."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            program = (entry / "cmdline").read_bytes().partition(b"\0")[0]
            if os.fsencode(within) in program and entry.stat().st_uid == os.getuid():
                found.append(int(entry.name))
    return found


def remove(path: Path) -> None:
    """Remove a private folder of this user and its shared memory; never what a link in it leads to.

    Nothing else is ever removed, whatever a damaged server.json calls the server's folder.
    """
    if not _PRIVATE.fullmatch(path.name):
        return
    for region in [*SHARED_MEMORY.glob(f"{path.name}*"), path]:
        try:
            is_ours = region.lstat().st_uid == os.getuid() and not region.is_symlink()
        except OSError:
            continue
        if is_ours and region.is_dir():
            shutil.rmtree(region, ignore_errors=True)
        elif is_ours:
            region.unlink(missing_ok=True)
