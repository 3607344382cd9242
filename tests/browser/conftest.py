"""A real app with its own worker and embedded Triton, in a temporary installation, and Chromium to click in it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tritune import servers
from tritune.servers import embedded
from tritune.settings import ROOT, Settings

CHROMIUM = "/usr/bin/chromium"
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]


@dataclass(frozen=True)
class App:
    """A running app and where it lives."""

    url: str
    settings: Settings


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _ours(results: Path) -> list[int]:
    """Processes that were started with this installation's results folder in their environment."""
    mark = f"TRITUNE_RESULTS={results}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in environment and int(folder.name) != os.getpid():
            found.append(int(folder.name))
    return found


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The app on a free port; it starts its worker and Triton when it is asked to by clicking."""
    if not Path(CHROMIUM).exists():
        pytest.skip("Chromium is not installed (apt-get install chromium)")
    monkeypatch.setenv("TRITUNE_RESULTS", str(tmp_path / "results"))
    monkeypatch.setenv("TRITUNE_MODEL_REPO", str(tmp_path / "models"))
    monkeypatch.delenv("TRITUNE_DATABASE_URL", raising=False)
    settings = Settings.from_env()
    if not embedded.is_set_up(settings):
        pytest.skip("the embedded Triton is not set up (make setup)")
    settings.model_repo.mkdir()
    port = _free_port()
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        "app.py",
        "--server.port",
        str(port),
        "--server.headless",
        "true",
    ]
    log = (tmp_path / "app.log").open("w")
    process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        for _ in range(300):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield App(f"http://127.0.0.1:{port}", settings)
    finally:
        process.terminate()
        process.wait(20)
        log.close()
        servers.stop(settings)
        for pid in _ours(settings.results):
            os.kill(pid, signal.SIGTERM)


@pytest.fixture
def browser() -> Iterator[Any]:
    """Chromium from Debian's packages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield chromium
        chromium.close()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Where the screenshots go: TRITUNE_SCREENSHOTS, or the test's own folder."""
    folder = Path(os.environ.get("TRITUNE_SCREENSHOTS") or tmp_path / "pictures").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
