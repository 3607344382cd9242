"""Fixtures of the unit tests: the fake server of tests/fake_server.py, as a process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FAKE_SERVER = Path(__file__).resolve().parent.parent / "fake_server.py"


class FakeServer:
    """A running fake server; `address` is its host:port."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(FAKE_SERVER), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.address = f"127.0.0.1:{int(self.process.stdout.readline())}"

    def stop(self) -> None:
        """End it and let it write its log."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(20)


@pytest.fixture
def fake_server() -> Iterator[Callable[..., FakeServer]]:
    """Start fake servers with the given arguments; they end with the test."""
    servers: list[FakeServer] = []

    def start(*arguments: str) -> FakeServer:
        servers.append(FakeServer(*arguments))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
