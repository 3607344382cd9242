"""A server that somebody else runs, reached at a URL.

Belongs here: reading the URL, finding out what that server can do, remembering it in server.json. What it
cannot do is unavailable, never zero. Never: changing that server.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tritune.errors import InputError, ServerDownError, ServerError, TritonRefusedError
from tritune.plan import Endpoints
from tritune.servers import record
from tritune.servers.record import ServerKind, ServerRecord, ServerState, ServerStatus
from tritune.settings import DEFAULT_HTTP_PORT, Settings
from tritune.triton import Triton

STATUS_TIMEOUT_S = 3.0
# RFC 9110, 5.1 and 5.5: a token, and visible characters of Latin-1 with spaces between them.
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


def parse(
    url: str,
    *,
    grpc: str | None = None,
    metrics: str | None = None,
    headers: Mapping[str, str] | None = None,
    tls: Mapping[str, Any] | None = None,
) -> Endpoints:
    """Endpoints of `http(s)://host[:port]` or `host[:port]`; the port is 8000 (443 with https) where none is given.

    `grpc` and `metrics` are host:port or a URL of that. Raises InputError for anything else.
    """
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    scheme, http = _address(text, url)
    if scheme not in ("http", "https"):
        raise InputError(f"The server's URL {url!r} must begin with http:// or https://.")
    options = dict(tls) if tls is not None else None
    if scheme == "https" and options is None:
        options = {"verify": True}
    if scheme == "http" and options is not None:
        raise InputError(f"TLS options were given for {url!r}, which is not encrypted. Use https:// or leave them out.")
    for key in ("ca", "cert", "key"):
        path = (options or {}).get(key)
        if path and not Path(path).is_file():
            raise InputError(f"The TLS file {path} ({key}) does not exist. Give the path of a PEM file.")
    for name, value in (headers or {}).items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            raise InputError(
                f"The header {name!r} cannot be sent. Give it as NAME=VALUE on one line, in Western characters."
            )
    return Endpoints(
        http=http,
        grpc=_address(grpc if "://" in grpc else f"grpc://{grpc}", grpc, 8001)[1] if grpc else None,
        metrics=_address(metrics if "://" in metrics else f"http://{metrics}", metrics, 8002)[1] if metrics else None,
        headers=dict(headers or {}),
        tls=options,
    )


def _address(text: str, given: str, default_port: int | None = None) -> tuple[str, str]:
    """(scheme, host:port) of a URL without a path."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(f"The address {given!r} is not a URL ({error}). Use http://host:port.") from error
    host = parts.hostname or ""
    if not host or any(character.isspace() for character in text):
        raise InputError(f"The address {given!r} names no host. Use http://host:port.")
    if parts.username or parts.password:
        raise InputError(f"The address of {host} holds a password. Give it as a header (Authorization) instead.")
    path = parts.path.rstrip("/")
    if (path and path not in ("/v2", "/metrics")) or parts.query or parts.fragment:
        raise InputError(
            f"The address {given!r} has a path ({path or parts.query or parts.fragment}), and load generators reach a "
            "server only at its root. Give http://host:port, through a port forward or a host rule of the proxy."
        )
    if port is None:
        port = default_port or (443 if parts.scheme == "https" else DEFAULT_HTTP_PORT)
    return parts.scheme, f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def attach(settings: Settings, endpoints: Endpoints, *, progress: Callable[[str], None]) -> ServerStatus:
    """Find out what the server at `endpoints` can do and remember it. Raises ServerDownError where none answers."""
    with Triton(endpoints, timeout_s=STATUS_TIMEOUT_S) as triton:
        try:
            metadata = triton.server_metadata()
        except TritonRefusedError as error:
            raise ServerError(
                f"What answers at {endpoints.http} does not speak the KServe v2 protocol ({error.reason}). "
                "Give the address of a Triton's HTTP port."
            ) from error
        if not isinstance(metadata, dict) or "version" not in metadata:
            raise ServerError(
                f"What answers at {endpoints.http} does not speak the KServe v2 protocol. "
                "Give the address of a Triton's HTTP port."
            )
        if not triton.is_ready():
            progress(f"The server at {endpoints.http} is not ready yet.")
        control, statistics = _abilities(triton, metadata)
    known = ServerRecord(
        state=ServerState.READY,
        kind=ServerKind.REMOTE,
        endpoints=endpoints,
        started_at=time.time(),
        triton_version=str(metadata["version"]),
        control=control,
        statistics=statistics,
    )
    record.write(settings, known)
    if not control:
        progress("This server does not let models be loaded: tuning is unavailable.")
    if not statistics:
        progress("This server keeps no statistics: batch sizes and queue times are unavailable.")
    return known.status()


def _abilities(triton: Triton, metadata: Mapping[str, Any]) -> tuple[bool, bool]:
    """(model control, statistics): what the server says, control probed by unloading a model that cannot exist."""
    extensions = {str(name).partition("(")[0] for name in metadata.get("extensions") or []}
    statistics = "statistics" in extensions
    if "model_repository" not in extensions:
        return False, statistics
    probe = "tritune-probe-of-model-control"
    try:
        # Triton in explicit mode says 200 to unloading an unknown model; in the others it refuses the very call.
        triton.unload(probe, wait_s=0)
    except TritonRefusedError as error:
        return error.status == 400 and "polling is enabled" not in error.reason and probe in error.reason, statistics
    except ServerError:
        return True, statistics
    return True, statistics


def status(settings: Settings, known: ServerRecord) -> ServerStatus:
    """Whether the attached server answers now."""
    del settings
    with Triton(known.endpoints, timeout_s=STATUS_TIMEOUT_S) as triton:
        try:
            triton.server_metadata()
        except ServerDownError:
            return known.status(ServerState.FAILED, f"The attached server at {known.endpoints.http} does not answer.")
        except TritonRefusedError as error:
            return known.status(
                ServerState.FAILED, f"The attached server at {known.endpoints.http} refuses to answer: {error.reason}."
            )
    return known.status(ServerState.READY)


def stop(settings: Settings, known: ServerRecord) -> None:
    """Nothing: a remote server is let go, not stopped."""


def logs(settings: Settings, lines: int) -> str:
    """A sentence: the log is with the server."""
    return "The attached server keeps its own log; look at it there."


def connect(settings: Settings, known: ServerRecord) -> Triton:
    """A client for the attached server."""
    return Triton(known.endpoints, can_control=known.control is not False)
