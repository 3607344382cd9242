"""What is known about this installation's Triton, and the file that remembers it (results/server.json).

Belongs here: the kinds and states of a server, the status that everyone sees, the record on disk and whether
the process in it still runs. Never: starting, stopping or asking a server.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from tritune.errors import ServerError
from tritune.plan import Endpoints
from tritune.settings import Settings


class ServerState(StrEnum):
    """Where a server stands."""

    READY = "ready"
    STARTING = "starting"
    STOPPED = "stopped"
    FAILED = "failed"


class ServerKind(StrEnum):
    """Where a Triton comes from."""

    EMBEDDED = "embedded"
    DOCKER = "docker"
    REMOTE = "remote"


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """This installation's server as it is now.

    `control` and `statistics` say whether models can be loaded and counters read there (None: not known);
    `reason` is one sentence where the state is FAILED; `started_at` is in unix seconds. Of a Docker server:
    `container` is its id, `image` its name and tag, `gpus` what it was given (all, none or indices).
    """

    state: ServerState
    kind: ServerKind | None = None
    endpoints: Endpoints | None = None
    triton_version: str | None = None
    reason: str | None = None
    pid: int | None = None
    control: bool | None = None
    statistics: bool | None = None
    started_at: float | None = None
    container: str | None = None
    image: str | None = None
    gpus: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The document that `tritune server status --json` prints; `control_header` is `name: value`."""
        ends = self.endpoints
        return {
            "state": str(self.state),
            "kind": str(self.kind) if self.kind else None,
            "http": ends.http if ends else None,
            "grpc": ends.grpc if ends else None,
            "metrics": ends.metrics if ends else None,
            "triton_version": self.triton_version,
            "reason": self.reason,
            "pid": self.pid,
            "control_header": ": ".join(ends.control) if ends and ends.control else None,
            "control": self.control,
            "statistics": self.statistics,
            "started_at": self.started_at,
            "container": self.container,
            "image": self.image,
            "gpus": self.gpus,
        }


@dataclass(frozen=True, slots=True)
class ServerRecord:
    """The content of server.json.

    A process is named by pid, start time (clock ticks since boot, /proc/<pid>/stat) and boot: a pid alone is
    reused. `folder` is the private temporary folder of an embedded server; a Docker server has its container's
    id instead of a process.
    """

    state: ServerState
    kind: ServerKind
    endpoints: Endpoints
    started_at: float
    pid: int | None = None
    process_start: int | None = None
    boot_id: str | None = None
    folder: str | None = None
    triton_version: str | None = None
    control: bool | None = None
    statistics: bool | None = None
    reason: str | None = None
    container: str | None = None
    image: str | None = None
    gpus: str | None = None

    def to_dict(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in self.__slots__}
        document.update(state=str(self.state), kind=str(self.kind), endpoints=self.endpoints.to_dict())
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> ServerRecord:
        values: dict[str, Any] = {name: document.get(name) for name in cls.__slots__}
        values["state"] = ServerState(document["state"])
        values["kind"] = ServerKind(document["kind"])
        values["endpoints"] = Endpoints.from_dict(document["endpoints"])
        values["started_at"] = float(document["started_at"])
        for name, kinds in _TYPES.items():
            if type(values[name]) not in (*kinds, type(None)):
                raise TypeError(f"{name}={values[name]!r}")
        ends = values["endpoints"]
        if not all(address is None or _ADDRESS.fullmatch(address) for address in (ends.http, ends.grpc, ends.metrics)):
            raise ValueError(f"endpoints={ends}")
        return cls(**values)

    def status(self, state: ServerState | None = None, reason: str | None = None) -> ServerStatus:
        """The record as a status, with what is known better now."""
        return ServerStatus(
            state=state or self.state,
            kind=self.kind,
            endpoints=self.endpoints,
            triton_version=self.triton_version,
            reason=reason or self.reason,
            pid=self.pid,
            control=self.control,
            statistics=self.statistics,
            started_at=self.started_at,
            container=self.container,
            image=self.image,
            gpus=self.gpus,
        )

    @property
    def is_of_this_boot(self) -> bool:
        return self.boot_id == boot_id()

    @property
    def is_running(self) -> bool:
        """Whether the very process that was started still runs (not another one that got its pid)."""
        if self.pid is None or not self.is_of_this_boot:
            return False
        return self.process_start is not None and process_start(self.pid) == self.process_start


_ADDRESS = re.compile(r"[^\s/]+:\d{1,5}")
_TYPES: Mapping[str, tuple[type, ...]] = {
    "pid": (int,),
    "process_start": (int,),
    "boot_id": (str,),
    "folder": (str,),
    "triton_version": (str,),
    "control": (bool,),
    "statistics": (bool,),
    "reason": (str,),
    "container": (str,),
    "image": (str,),
    "gpus": (str,),
}


def boot_id() -> str:
    """The kernel's name of this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def process_start(pid: int, proc: Path = Path("/proc")) -> int | None:
    """When a process started, in clock ticks since boot; None where none runs (a zombie does not)."""
    try:
        text = (proc / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command in brackets may hold anything, brackets too: count from the last one. Fields: man 5 proc.
    fields = text[text.rindex(")") + 1 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def listening_ports(pid: int, proc: Path = Path("/proc")) -> set[int]:
    """The TCP ports that a process of this user listens on."""
    sockets = set()
    with contextlib.suppress(OSError):
        for descriptor in (proc / str(pid) / "fd").iterdir():
            with contextlib.suppress(OSError):
                sockets.add(str(descriptor.readlink()))
    ports = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / "net" / name).read_text().splitlines()[1:]:
                fields = line.split()  # local address 1, state 3 (0A: LISTEN), inode 9
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def read(settings: Settings) -> ServerRecord | None:
    """What server.json says; None where there is none or it cannot be understood."""
    try:
        return ServerRecord.from_dict(json.loads(settings.server_file.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        return None


def write(settings: Settings, record: ServerRecord) -> None:
    """Write server.json at once and for this user only: it holds the control header."""
    path = settings.server_file
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        settings.results.mkdir(parents=True, exist_ok=True)
        temporary.unlink(missing_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(record.to_dict(), file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ServerError(
            f"{path} could not be written ({error.strerror}). Make room or rights in {settings.results}."
        ) from error


def forget(settings: Settings) -> None:
    """Remove server.json. Raises ServerError where that is not allowed."""
    try:
        settings.server_file.unlink(missing_ok=True)
    except OSError as error:
        raise ServerError(
            f"{settings.server_file} could not be removed ({error.strerror}). Remove it by hand and try again."
        ) from error
