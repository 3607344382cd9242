"""The command that runs Locust for a plan: one process, or a master with workers.

Belongs here: Locust's command line. Never: importing Locust (it patches the process that does).
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from tritune.load_plan import LoadPlan, Protocol

LOCUSTFILE = Path(__file__).resolve().parent / "locustfile.py"
LOOPBACK = "127.0.0.1"
MASTER_VARIABLE = "TRITUNE_LOCUST_MASTER"
"""HOST:PORT where workers on other machines find their master. Where it is set, a load test with more than one worker
is sent by those, and no process is started here."""


def command(load: LoadPlan, folder: Path) -> list[str]:
    """The argument list for a folder that holds plan.json."""
    users = load.concurrency if load.concurrency is not None else load.workers
    arguments = [
        *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"),
        *("--users", str(users), "--spawn-rate", str(users), "--exit-code-on-error", "0"),
        *("--tritune-folder", str(folder)),
    ]
    master = os.environ.get(MASTER_VARIABLE, "").strip()
    if load.workers > 1 and master:
        host, _, port = master.rpartition(":")
        arguments += ["--master", "--master-bind-host", host, "--master-bind-port", port]
        arguments += ["--expect-workers", str(load.workers), "--expect-workers-max-wait", "60"]
    elif load.workers > 1:
        port = str(_free_port())
        arguments += ["--processes", str(load.workers)]
        arguments += ["--master-bind-host", LOOPBACK, "--master-bind-port", port]
        arguments += ["--expect-workers-max-wait", "60"]
        arguments += ["--master-host", LOOPBACK, "--master-port", port]
    arguments.append("TritonGrpcUser" if load.protocol is Protocol.GRPC else "TritonHttpUser")
    return arguments


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])
