"""`tritune app`: the Streamlit process and, with `everything`, what it needs; ends all that it started.

Belongs here: starting and ending processes in the foreground. Never: what they do.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable

from tritune import servers, worker
from tritune.errors import InputError, TrituneError
from tritune.repository import ModelRepository
from tritune.servers import record
from tritune.settings import DEFAULT_APP_PORT, Settings

PORTS_TRIED = 50
START_LIMIT_S = 60.0

Say = Callable[[str], None]


def free_port(wanted: int) -> int:
    """`wanted`, or the next port of 127.0.0.1 that nobody listens on. Raises InputError where none is free."""
    for port in range(wanted, min(wanted + PORTS_TRIED, 65536)):
        if _is_free(port):
            return port
    raise InputError(f"No port from {wanted} to {wanted + PORTS_TRIED - 1} is free. Name another with --port.")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            return False
    return True


def run(settings: Settings, *, port: int | None, everything: bool, say: Say) -> int:
    """Run the app until it ends or a signal comes; returns its exit code."""
    if port is not None and not 1 <= port <= 65535:
        raise InputError(f"--port {port} must be from 1 to 65535.")
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda _number, _frame: stop.set())
    started: list[subprocess.Popen[bytes]] = []
    stop_server = False
    try:
        if everything:
            stop_server = _prepare(settings, stop, say)
            if not stop.is_set():
                started.append(worker.start(settings, service=True))
        streamlit = _open(settings, port or DEFAULT_APP_PORT, started, stop, say)
        while streamlit is not None and streamlit.poll() is None and not stop.wait(0.2):
            pass
        return 0 if streamlit is None or streamlit.returncode is None else streamlit.returncode
    finally:
        for process in reversed(started):
            _end(process)
        if stop_server and servers.status(settings).kind is not servers.ServerKind.REMOTE:
            say("Stopping the Triton that this started.")
            servers.stop(settings)


def _open(
    settings: Settings, wanted: int, started: list[subprocess.Popen[bytes]], stop: threading.Event, say: Say
) -> subprocess.Popen[bytes] | None:
    """Start the app on `wanted` or the next free port and wait until it answers; None where a signal came.

    Another program may take a port between the look and the app's bind: then the next one is tried.
    """
    port = wanted
    while not stop.is_set():
        port = free_port(port)
        if port != wanted:
            say(f"Port {wanted} is taken; using {port}.")
        streamlit = _start_streamlit(settings, port)
        started.append(streamlit)
        if _answers(streamlit, port, stop):
            say(f"Tritune is open at http://127.0.0.1:{port} (Ctrl-C ends it).")
            if os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
                webbrowser.open(f"http://127.0.0.1:{port}")
            return streamlit
        if streamlit.poll() is None or _is_free(port):
            return streamlit
        started.remove(streamlit)
    return None


def _prepare(settings: Settings, stop: threading.Event, say: Say) -> bool:
    """Publish MNIST where the repository is empty and start Triton; returns whether this started one.

    What fails is said and left to the app: its pages name the next step.
    """
    try:
        if not ModelRepository(settings.model_repo).models():
            from tritune import publish

            publish.build_mnist(settings, progress=say)
    except TrituneError as error:
        say(f"MNIST was not built: {error}")
    if stop.is_set():
        return False
    if servers.status(settings).state is servers.ServerState.READY:
        say("A Triton is running already; it is used and stays when this ends.")
        return False
    try:
        status, is_ours = servers.ensure(settings, progress=say)
    except TrituneError as error:
        say(f"No Triton was started: {error}")
        return False
    if status.endpoints is not None:
        say(f"Triton {status.triton_version} answers at http://{status.endpoints.http}.")
    return is_ours


def _start_streamlit(settings: Settings, port: int) -> subprocess.Popen[bytes]:
    options = ["--server.port", str(port), "--server.address", "127.0.0.1", "--server.headless", "true"]
    options += ["--logger.level", "warning"]
    return subprocess.Popen(
        [sys.executable, "-m", "streamlit", "run", "app.py", *options],
        cwd=settings.root,
        env=worker.child_environment(settings),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def _answers(streamlit: subprocess.Popen[bytes], port: int, stop: threading.Event) -> bool:
    """Wait until this very app answers at its port, and not another one that was quicker; False where it does not."""
    limit = time.monotonic() + START_LIMIT_S
    has_proc = record.process_start(os.getpid()) is not None
    while streamlit.poll() is None and time.monotonic() < limit and not stop.wait(0.1):
        # A system without /proc does not say whose port it is.
        if port in record.listening_ports(streamlit.pid) if has_proc else not _is_free(port):
            return True
    return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process that this started: politely first, then for good."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5.0)
