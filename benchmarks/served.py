"""The servers that are sent to, each as a context manager that ends it: Triton with MNIST, a canned answer, a law.

Belongs here: starting and counting. Never: clients.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.law_server import ANSWER_BODY, CONFIG, DOCUMENTS, INPUT, JSON_HEAD, MODEL, OUTPUT, SIZE
from benchmarks.laws import ServerLog
from benchmarks.processes import BenchmarkError, Group, wait_until
from tritune import publish, servers
from tritune.plan import Endpoints, Signature, TensorSpec
from tritune.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
SIGNATURE = Signature((TensorSpec(INPUT, "FP32", (SIZE,)),), (TensorSpec(OUTPUT, "FP32", (10,)),), 8)
MNIST_SIGNATURE = Signature((TensorSpec(INPUT, "FP32", (1, 28, 28)),), (TensorSpec(OUTPUT, "FP32", (10,)),), 8)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Served:
    """A running server. `count` asks it how many requests it has answered: one instrument for every client."""

    name: str
    model: str
    endpoints: Endpoints
    signature: Signature
    count: Callable[[], int]


def settings_in(folder: Path) -> Settings:
    """An installation of its own, with the project's embedded environment."""
    return Settings.from_env(
        {
            **{name: value for name, value in os.environ.items() if not name.startswith("TRITUNE_")},
            "TRITUNE_MODEL_REPO": str(folder / "models"),
            "TRITUNE_RESULTS": str(folder / "results"),
            "TRITUNE_EMBEDDED_ENV": str(Settings.from_env().embedded_env),
        }
    )


@contextlib.contextmanager
def triton_with_mnist(folder: Path, say: Say) -> Iterator[Served]:
    """The embedded Triton with the built-in MNIST, as `tritune model build` publishes it. Raises TrituneError."""
    settings = settings_in(folder)
    publish.build_mnist(settings, progress=say)
    try:
        servers.start(settings, port_base=random.randrange(20000, 29000, 10), progress=say)
        with servers.connect(settings) as triton:

            def count() -> int:
                return triton.statistics("mnist").inference_count

            version = triton.server_metadata()["version"]
            yield Served(f"Triton {version}", "mnist", triton.endpoints, triton.signature("mnist"), count)
    finally:
        servers.stop(settings)


def find_nginx() -> Path | None:
    found = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    return None if found is None else Path(found)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _get(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
        return bytes(answer.read())


def _answers(address: str, path: str) -> bool:
    try:
        return bool(_get(address, path))
    except OSError:
        return False


def nginx_configuration(folder: Path, port: int) -> str:
    """One process, a canned KServe answer to every POST, and what Tritune asks a server for when it attaches to it."""

    def quoted(text: str) -> str:
        assert "'" not in text
        assert "$" not in text
        return f"'{text}'"

    gets = "\n".join(
        f"location = {path} {{ default_type application/json; return 200 {quoted(json.dumps(document))}; }}"
        for path, document in {**DOCUMENTS, f"/v2/models/{MODEL}/config": CONFIG_OF_MNIST}.items()
    )
    return f"""
daemon off; master_process off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.error.log;
events {{ worker_connections 2048; }}
http {{
    access_log off; keepalive_requests 1000000000; keepalive_timeout 1h; tcp_nodelay on; client_max_body_size 64m;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} backlog=2048;
        location = /status {{ stub_status; }}
        {gets}
        location / {{
            default_type application/octet-stream;
            add_header Inference-Header-Content-Length {len(JSON_HEAD)};
            return 200 {quoted(ANSWER_BODY.decode())};
        }}
    }}
}}
"""


CONFIG_OF_MNIST = {**CONFIG, "input": [{"name": INPUT, "data_type": "TYPE_FP32", "dims": [1, 28, 28]}]}


@contextlib.contextmanager
def canned(folder: Path) -> Iterator[Served]:
    """nginx with one canned KServe answer; where nginx is missing, this package's own (slower) server."""
    program = find_nginx()
    if program is None:
        with law_server(folder, "none") as (served, _):
            yield Served("our Python server", MODEL, served.endpoints, MNIST_SIGNATURE, served.count)
        return
    port = _free_port()
    address = f"127.0.0.1:{port}"
    (folder / "nginx.conf").write_text(nginx_configuration(folder, port))
    asked = 0

    def count() -> int:
        nonlocal asked
        asked += 1
        return int(_get(address, "/status").split()[9]) - asked  # its own questions are requests too

    with Group([program, "-p", folder, "-c", folder / "nginx.conf"], folder) as group:

        def is_up() -> bool:
            nonlocal asked
            group.check()
            up = _answers(address, "/status")
            asked += up
            return up

        wait_until(is_up, "answer from nginx", 10)
        yield Served("nginx", MODEL, Endpoints(address), MNIST_SIGNATURE, count)


@contextlib.contextmanager
def law_server(
    folder: Path, law: str, *, core: int | None = None, seed: int = 0
) -> Iterator[tuple[Served, Callable[[], ServerLog]]]:
    """law_server.py in a process of its own; the second value ends it and gives its log."""
    path = folder / "law.log"
    command = [sys.executable, "-m", "benchmarks.law_server", "--law", law, "--seed", str(seed), "--log", str(path)]
    command += [] if core is None else ["--core", str(core)]
    environment = {"PYTHONPATH": str(ROOT)}
    with Group(command, folder, environment=environment, stdin=-1, stdout=-1) as group:
        assert group.process.stdin is not None
        assert group.process.stdout is not None
        line = group.process.stdout.readline()
        if not line:
            raise BenchmarkError(f"The server with the law {law} did not start: {group.words()}")
        address = f"127.0.0.1:{int(line)}"

        def log() -> ServerLog:
            assert group.process.stdin is not None
            group.process.stdin.close()
            group.process.wait(30)
            return ServerLog.from_bytes(path.read_bytes())

        def count() -> int:
            return int(json.loads(_get(address, "/count"))["count"])

        yield Served(f"law {law}", MODEL, Endpoints(address), SIGNATURE, count), log
