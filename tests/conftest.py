"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def free_port() -> int:
    """A port that nobody listens on right now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def _postgresql_server() -> Iterator[int]:
    """The port of a throw-away PostgreSQL; skipped where none is installed."""
    binaries = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    initdb = next((folder / "initdb" for folder in binaries if (folder / "initdb").exists()), None)
    if initdb is None:
        found = shutil.which("initdb")
        if found is None:
            pytest.skip("no PostgreSQL server is installed (apt-get install postgresql)")
        initdb = Path(found)
    # PostgreSQL refuses to run as root.
    user = "postgres" if os.geteuid() == 0 else None
    if user and user not in {entry.pw_name for entry in pwd.getpwall()}:
        pytest.skip("PostgreSQL does not run as root and there is no user postgres")
    folder = tempfile.mkdtemp(prefix="tritune-pg-")
    port = free_port()
    if user:
        shutil.chown(folder, user)

    def run(*command: str) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=folder, user=user, timeout=60)

    run(str(initdb), "-D", f"{folder}/data", "-U", "tritune", "--auth=trust", "--no-sync")
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} -c fsync=off"
    control = str(initdb.parent / "pg_ctl")
    run(control, "-D", f"{folder}/data", "-l", f"{folder}/log", "-w", "-o", options, "start")
    yield port
    run(control, "-D", f"{folder}/data", "-m", "immediate", "-w", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def postgresql_url(_postgresql_server: int) -> str:
    """An empty database on the throw-away PostgreSQL."""
    import psycopg

    name = f"t{os.urandom(6).hex()}"
    address = f"host=127.0.0.1 port={_postgresql_server} user=tritune dbname=postgres"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    return f"postgresql://tritune@127.0.0.1:{_postgresql_server}/{name}"
