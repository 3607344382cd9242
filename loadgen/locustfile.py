"""The locustfile: what `locust -f loadgen/locustfile.py` runs, started by Tritune or by hand.

    locust -f loadgen/locustfile.py --host http://127.0.0.1:8000 --tritune-model mnist

opens Locust's own page, where users are the clients of a closed loop; --tritune-rate makes it an open loop. Locust's
--csv, --processes, --master and --worker work as everywhere. Tritune itself gives --tritune-folder with a plan.json.

For one conducted run over several machines, put a plan.json whose `workers` is their number into a folder, and start

    locust -f loadgen/locustfile.py --headless --master --expect-workers 2 --users 8 --tritune-folder FOLDER
    locust -f loadgen/locustfile.py --worker --master-host MASTER                (on each of the others)

The workers' samples come to the master's folder; their clocks are mapped to the master's (leader.py).

Belongs here: the options, and joining Locust's events to the conductor. Never: sending.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from locust import events

if (_root := str(Path(__file__).resolve().parent.parent)) not in sys.path:
    sys.path.insert(0, _root)  # `locust -f` puts this folder there, not the project's root

from loadgen.users.conductor import attach
from loadgen.users.triton_users import TritonGrpcUser, TritonHttpUser

__all__ = ["TritonGrpcUser", "TritonHttpUser"]


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _add_options(parser: Any) -> None:
    add = parser.add_argument
    add("--tritune-folder", default="", include_in_web_ui=False, help="a folder with a plan.json")
    add("--tritune-plan", default="", include_in_web_ui=False, help="the plan itself (set by a master)")
    add("--tritune-model", default="mnist", help="the model to send requests to")
    add("--tritune-protocol", default="http", choices=["http", "grpc"], help="how requests travel")
    add("--tritune-grpc", default="", help="host:port of gRPC (default: the host's port 8001)")
    add("--tritune-rate", type=float, default=0.0, help="requests/s of an open loop; 0: closed loop")
    add("--tritune-arrivals", default="constant", choices=["constant", "poisson"], help="arrivals of an open loop")
    add("--tritune-batch", type=int, default=1, help="samples in one request")
    add("--tritune-seed", type=int, default=0, help="seed of payloads and arrivals")
    add("--tritune-timeout", type=float, default=10.0, help="seconds until a request is given up")


@events.init.add_listener  # type: ignore[untyped-decorator]
def _attach(environment: Any, **_: Any) -> None:
    attach(environment, {"http": TritonHttpUser, "grpc": TritonGrpcUser})
