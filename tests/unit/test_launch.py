"""The app's process in the foreground: its port, and who ends the Triton."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tritune import launch, servers
from tritune.servers import ServerKind, ServerState, ServerStatus
from tritune.settings import Settings

# An app that answers at its port, or ends at once where another one has it: what Streamlit does.
APP = """
import signal, socket, sys
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
try:
    listener.bind(("127.0.0.1", int(sys.argv[1])))
except OSError:
    sys.exit(1)
listener.listen()
signal.pause()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRITUNE_RESULTS": str(tmp_path / "results"), "TRITUNE_MODEL_REPO": str(tmp_path / "m")})


@pytest.fixture
def apps(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[socket.socket]]:
    """Every app that is started loses its port to one of these listeners, as long as there are any."""
    quicker: list[socket.socket] = []
    lost: list[socket.socket] = []

    def start(settings: Settings, port: int) -> subprocess.Popen[bytes]:
        if quicker:
            listener = quicker.pop()
            listener.bind(("127.0.0.1", port))
            listener.listen()
            lost.append(listener)
        return subprocess.Popen([sys.executable, "-c", APP, str(port)])

    monkeypatch.setattr(launch, "_start_streamlit", start)
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    yield quicker
    for listener in (*quicker, *lost):
        listener.close()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_an_app_that_loses_its_port_to_another_takes_the_next_and_says_its_own(
    settings: Settings, apps: list[socket.socket], lost: int
) -> None:
    apps.extend(socket.socket() for _ in range(lost))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        wanted = int(probe.getsockname()[1])
    said: list[str] = []
    started: list[subprocess.Popen[bytes]] = []
    app = launch._open(settings, wanted, started, threading.Event(), said.append)
    try:
        assert app is not None
        assert app.poll() is None
        assert started == [app]
        (address,) = [line for line in said if "is open at" in line]
        port = int(address.partition("127.0.0.1:")[2].split()[0])
        assert port >= wanted + lost
        assert port in launch.record.listening_ports(app.pid)
    finally:
        for process in started:
            launch._end(process)


@pytest.mark.parametrize("is_ours", [True, False])
def test_only_the_triton_that_this_started_is_stopped(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, is_ours: bool
) -> None:
    ready = ServerStatus(ServerState.READY, ServerKind.EMBEDDED)
    (settings.model_repo / "mnist" / "1").mkdir(parents=True)
    stopped: list[Settings] = []
    opened: Any = lambda *_: None  # noqa: E731
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    monkeypatch.setattr(servers, "ensure", lambda settings, progress: (ready, is_ours))
    monkeypatch.setattr(servers, "stop", stopped.append)
    monkeypatch.setattr(launch.worker, "start", lambda settings, service: subprocess.Popen(["true"]))
    monkeypatch.setattr(launch, "_open", opened)
    assert launch.run(settings, port=None, everything=True, say=lambda _: None) == 0
    assert stopped == [settings] * is_ours
