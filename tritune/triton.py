"""One running Triton over HTTP: health, models, served configuration, statistics, metrics.

Belongs here: calls on a server that runs (any that speaks KServe v2, as far as it can). Never: starting or
stopping one, load generation, the model repository's files.
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote

import urllib3

from tritune.errors import InputError, ServerDownError, ServerError, TritonRefusedError
from tritune.plan import MODEL_NAME_PATTERN, Endpoints, Signature, TensorSpec
from tritune.triton_statistics import (
    GpuReading,
    ModelStatistics,
    StatisticsDifference,
    gpu_readings,
    parse_metrics,
    parse_statistics,
)

__all__ = [
    "GpuReading",
    "ModelStatistics",
    "StatisticsDifference",
    "Triton",
    "check_model_name",
    "plain_reason",
    "signature_of_config",
]

TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 3.0
UNLOAD_POLL_S = 0.05
LOOK_S = 1.0
GONE_AFTER_LOOKS = 3

# How a Python-based backend's exception arrives: "Internal: InvalidArgument: <words>\n\nAt:\n  <file>(<line>): ..."
_TRACE = re.compile(r"\s*At:\n(\s+\S+\(\d+\): \S+\n?)+")
_CODE = re.compile(r"(?:Internal|Invalid argument|Unavailable|Not found|Unsupported): (?:InvalidArgument: )?")


@dataclass(slots=True)
class Triton:
    """A client for one server; keeps its connections alive and may be used from several threads.

    `before_load` is called with a model's name and given configuration before every load and raises where it must not
    be loaded;
    `reason_of` is called after a refused load with the name and gives the server log's words, if it has any;
    `path_shown` is (the path that the server knows the repository by, the path that people know).
    `can_control` False: it is known not to let models be loaded, whatever its metadata say.
    """

    endpoints: Endpoints
    timeout_s: float = TIMEOUT_S
    before_load: Callable[[str, str | None], None] | None = None
    reason_of: Callable[[str], str | None] | None = None
    path_shown: tuple[str, str] | None = None
    can_control: bool = True
    _pool: urllib3.HTTPConnectionPool = field(init=False, repr=False)
    _extensions: frozenset[str] | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._pool = _pool(self.endpoints.http, self.endpoints.tls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the kept connections; a later call opens new ones."""
        self._pool.close()

    # --- the server ---

    def is_live(self) -> bool:
        """Whether something answers there and says that it lives."""
        return self._health("/v2/health/live")

    def is_ready(self) -> bool:
        """Whether the server takes requests."""
        return self._health("/v2/health/ready")

    def listens(self) -> bool:
        """Whether anything listens at the address; says nothing about what it is, and costs the server nothing."""
        try:
            socket.create_connection((self._pool.host, self._pool.port or 80), timeout=CONNECT_TIMEOUT_S).close()
        except OSError:
            return False
        return True

    @property
    def has_model_control(self) -> bool:
        """Whether models can be loaded and unloaded there."""
        return self.can_control and "model_repository" in self._known_extensions()

    @property
    def has_statistics(self) -> bool:
        """Whether the server keeps statistics."""
        return "statistics" in self._known_extensions()

    @property
    def has_model_config(self) -> bool:
        """Whether the server shows the configuration that it serves."""
        return "model_configuration" in self._known_extensions()

    def _known_extensions(self) -> frozenset[str]:
        if self._extensions is None:
            names = self.server_metadata().get("extensions") or []
            self._extensions = frozenset(str(name).partition("(")[0] for name in names)
        return self._extensions

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and extensions, as the server gives them."""
        return self._object("/v2", "describe itself")

    def index(self) -> list[dict[str, Any]]:
        """Every model the server knows: name, and once it was loaded version, state and reason."""
        answer = self._json("POST", "/v2/repository/index", {}, what="list the models")
        rows = answer if isinstance(answer, list) else []
        return [{**row, "reason": self._shown(row["reason"])} if row.get("reason") else row for row in rows]

    def metrics(self) -> dict[str, float] | None:
        """Prometheus samples by full name with labels; None where there is no metrics endpoint."""
        address = self.endpoints.metrics
        if not address:
            return None
        try:
            with _pool(address, None) as pool:
                answer = pool.request("GET", "/metrics", timeout=self._timeout(), retries=False)
        except (urllib3.exceptions.HTTPError, OSError):
            return None
        return parse_metrics(answer.data.decode(errors="replace")) if answer.status == 200 else None

    def has_gpu(self) -> bool | None:
        """Whether the server has a GPU, by its metrics; None where there are none to see it by. With MIG there are no
        metrics of GPUs, so a model that is served on one counts as well."""
        samples = self.metrics()
        if samples is not None and any(name.startswith("nv_gpu_") for name in samples):
            return True
        try:
            served = [str(model["name"]) for model in self.index() if model.get("state") == "READY"]
            groups = [group for name in served for group in self.config(name).get("instance_group") or []]
        except ServerError:
            groups = []
        if any(group.get("kind") == "KIND_GPU" for group in groups):
            return True
        return None if samples is None else False

    def lets_control(self) -> bool:
        """Whether the model-repository API answers this client: a restricted one wants its header."""
        try:
            self.index()
        except ServerError:
            return False
        return True

    def gpu(self) -> tuple[GpuReading, ...] | None:
        """What the metrics say of the server's GPUs now; None where they say nothing of any."""
        return gpu_readings(self.metrics() or {})

    # --- one model ---

    def model_ready(self, name: str) -> bool:
        """Whether a model can be asked now."""
        return self._health(f"/v2/models/{quote(name)}/ready")

    def metadata(self, name: str) -> dict[str, Any]:
        """Inputs and outputs with their full shapes, as the KServe protocol gives them."""
        return self._object(f"/v2/models/{quote(name)}", f"describe {name}")

    def versions(self, name: str) -> tuple[int, ...]:
        """The versions of a model that are loaded, ascending; empty where the server does not say."""
        named = [str(version) for version in self.metadata(name).get("versions") or []]
        return tuple(sorted(int(version) for version in named if version.isdecimal()))

    def config(self, name: str) -> dict[str, Any]:
        """The configuration that is served (not the file's), as JSON."""
        return self._object(f"/v2/models/{quote(name)}/config", f"show the configuration of {name}")

    def signature(self, name: str) -> Signature:
        """What a request looks like; of a server that is no Triton, from the metadata: full shapes, no batching."""
        try:
            return signature_of_config(self.config(name))
        except TritonRefusedError as error:
            if error.status not in (404, 405, 501) or "unknown model" in error.reason:
                raise
        document = self.metadata(name)

        def specs(key: str) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec.from_dict(tensor) for tensor in document.get(key) or [])

        return Signature(specs("inputs"), specs("outputs"), 0)

    def load(self, name: str, timeout_s: float = LOAD_TIMEOUT_S, *, config: str | None = None) -> None:
        """Load or reload a model and wait until it is ready; `config` (JSON) instead of its config.pbtxt, which stays
        as it is. Triton keeps such a configuration until the file changes or another one is given.

        Raises InputError for a name or a configuration that must not reach Triton's shell, TritonRefusedError with
        Triton's reason.
        """
        check_model_name(name)
        if self.before_load:
            self.before_load(name, config)
        body = {} if config is None else {"parameters": {"config": config}}
        try:
            self._watched(
                lambda: self._json(
                    "POST", f"/v2/repository/models/{quote(name)}/load", body, what=f"load {name}", timeout_s=timeout_s
                )
            )
        except TritonRefusedError as error:
            if "polling is enabled" in error.reason:
                raise TritonRefusedError(
                    f"This server does not let models be loaded: it runs without --model-control-mode=explicit. "
                    f"Restart it with that option to load {name}.",
                    status=error.status,
                    reason=error.reason,
                ) from error
            reason = self._why_not_loaded(name, error.reason)
            raise TritonRefusedError(
                f"Triton refused to load {name}: {reason}", status=error.status, reason=reason
            ) from error
        # A second load after a failed one may say 200 and have done nothing.
        if not self.model_ready(name):
            reason = self._why_not_loaded(name, "it is not ready although Triton said that it was loaded")
            raise TritonRefusedError(f"Triton refused to load {name}: {reason}", reason=reason)

    def unload(self, name: str, wait_s: float = 60.0) -> None:
        """Unload a model and wait until no version of it is served; requests in flight are answered first."""
        check_model_name(name)
        self._json("POST", f"/v2/repository/models/{quote(name)}/unload", {}, what=f"unload {name}")
        deadline = time.monotonic() + wait_s
        while any(
            entry.get("name") == name and entry.get("state") not in (None, "", "UNAVAILABLE") for entry in self.index()
        ):
            if time.monotonic() > deadline:
                raise ServerError(
                    f"{name} is still being served {wait_s:.0f} s after Triton was told to unload it: requests are in "
                    "flight. Stop their source and try again."
                )
            time.sleep(UNLOAD_POLL_S)

    def statistics(self, name: str) -> ModelStatistics:
        """The model's counters now. Raises TritonRefusedError where the server keeps none."""
        answer = self._object(f"/v2/models/{quote(name)}/stats", f"show the statistics of {name}")
        return parse_statistics(answer, time.monotonic_ns())

    def register_system_memory(self, name: str, key: str, size: int) -> None:
        """Let the server map the first `size` bytes of the shared memory `key` as region `name`. Raises ServerError."""
        path = f"/v2/systemsharedmemory/region/{quote(name)}/register"
        body = {"key": key, "offset": 0, "byte_size": size}
        self._json("POST", path, body, what=f"map the shared memory {key}")

    def unregister_system_memory(self, name: str) -> None:
        """Let the server forget a region; one that it does not know is forgotten. Raises ServerError."""
        path = f"/v2/systemsharedmemory/region/{quote(name)}/unregister"
        self._json("POST", path, {}, what=f"forget the shared memory {name}")

    def infer(
        self, name: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], bytes]:
        """Send one prepared request; (HTTP status, headers, body) of the answer, whatever it says."""
        answer = self._request("POST", f"/v2/models/{quote(name)}/infer", body, headers or {})
        return answer.status, dict(answer.headers), answer.data

    # --- how a request goes out ---

    def _timeout(self, read_s: float | None = None) -> urllib3.Timeout:
        return urllib3.Timeout(connect=min(CONNECT_TIMEOUT_S, self.timeout_s), read=read_s or self.timeout_s)

    def _request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> urllib3.BaseHTTPResponse:
        sent = {**self.endpoints.headers, **(headers or {})}
        # Only where it is asked for: the secret need not travel with every inference.
        if self.endpoints.control and path.startswith("/v2/repository/"):
            sent[self.endpoints.control[0]] = self.endpoints.control[1]
        try:
            return self._pool.urlopen(
                method, path, body=body, headers=sent, timeout=self._timeout(timeout_s), retries=False, redirect=False
            )
        except urllib3.exceptions.ReadTimeoutError as error:
            raise ServerDownError(
                f"The server at {self.endpoints.http} did not answer within {timeout_s or self.timeout_s:g} s. "
                "Look at `tritune server logs`."
            ) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ServerDownError(
                f"No server answers at {self.endpoints.http} ({_cause(error)}). Start one with `tritune server start`."
            ) from error

    def _watched(self, ask: Callable[[], Any]) -> Any:
        """What `ask` returns, or ServerDownError where the server is gone meanwhile: a stub that outlives it may hold
        the connection open, and then no answer and no end of it comes."""
        answer: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        threading.Thread(target=run, name="asks-triton", daemon=True).start()
        missed = 0
        while missed < GONE_AFTER_LOOKS:
            try:
                return answer.result(LOOK_S)
            except futures.TimeoutError:
                missed = 0 if self.listens() else missed + 1
        raise ServerDownError(
            f"The server at {self.endpoints.http} ended before it had answered. `tritune server logs` shows its last "
            "words; start it again with `tritune server start`."
        )

    def _health(self, path: str) -> bool:
        try:
            return self._request("GET", path).status == 200
        except ServerDownError:
            return False

    def _object(self, path: str, what: str) -> dict[str, Any]:
        answer = self._json("GET", path, what=what)
        if not isinstance(answer, dict):
            raise TritonRefusedError(f"The server would not {what}: its answer is no JSON object.", status=200)
        return answer

    def _json(
        self, method: str, path: str, document: Any = None, *, what: str = "answer", timeout_s: float | None = None
    ) -> Any:
        body = None if document is None else json.dumps(document).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        answer = self._request(method, path, body, headers, timeout_s)
        try:
            content = json.loads(answer.data) if answer.data else {}
        except ValueError:
            content = None
        if answer.status == 200 and content is not None:
            return content
        reason = self._shown(_reason(answer.status, content, answer.data))
        raise TritonRefusedError(f"The server would not {what}: {reason}", status=answer.status, reason=reason)

    def _shown(self, text: str) -> str:
        """Triton's words without a Python trace and with paths that mean something outside it."""
        text = _TRACE.sub("", text)
        return text.replace(*self.path_shown) if self.path_shown else text

    def _why_not_loaded(self, name: str, said: str) -> str:
        """Triton's own reason: its answer, unless that hides it; then the server's log, then the index."""
        if "failed to poll from model repository" in said or "not ready" in said:
            found = self.reason_of(name) if self.reason_of else None
            found = self._shown(found) if found else None
            for entry in [] if found else self.index():
                if entry.get("name") == name and entry.get("reason"):
                    found = str(entry["reason"])
            said = found or said
        return plain_reason(name, said)


def check_model_name(name: str) -> None:
    """Raise InputError for a name that Triton must not see: its Python stubs are started through a shell."""
    if not re.fullmatch(MODEL_NAME_PATTERN, name):
        raise InputError(
            f"The model name {name!r} is not allowed: use letters, digits, '_', '-' and '.', at most 64, beginning "
            "with a letter, a digit or '_'. Rename the model's folder."
        )


def plain_reason(name: str, said: str) -> str:
    """Triton's answer to a load without its wrapping: `load failed for model 'm': version 1 is at UNAVAILABLE
    state: Internal: InvalidArgument: <words> At: ...;` becomes `<words>`.
    """
    text = re.sub(
        rf"^(?:load failed for model|failed to load) '{re.escape(name)}'[:,] ", "", _TRACE.sub("", said).strip()
    )
    reasons = [part.strip() for part in re.split(r"version \d+ is at UNAVAILABLE state: ", text) if part.strip()]
    text = "; ".join(dict.fromkeys(_CODE.sub("", reason, count=1).rstrip(" ;\n") for reason in reasons))
    return " ".join(text.split()) or said


def signature_of_config(document: Mapping[str, Any]) -> Signature:
    """The Signature in a served configuration (the JSON of GET /v2/models/M/config)."""

    def specs(key: str) -> tuple[TensorSpec, ...]:
        return tuple(
            TensorSpec(
                name=str(tensor["name"]),
                datatype=str(tensor["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES"),
                shape=tuple(int(dim) for dim in tensor.get("dims") or ()),
            )
            for tensor in document.get(key) or []
        )

    return Signature(specs("input"), specs("output"), int(document.get("max_batch_size") or 0))


def _pool(address: str, tls: Mapping[str, Any] | None) -> urllib3.HTTPConnectionPool:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"The address {address!r} must be host:port, such as 127.0.0.1:8000.")
    host = host.strip("[]")
    try:
        return _pool_of(host, int(port), tls)
    except urllib3.exceptions.HTTPError as error:
        raise InputError(f"The host in {address!r} is no name that can be looked up ({error}). Correct it.") from error


def _pool_of(host: str, port: int, tls: Mapping[str, Any] | None) -> urllib3.HTTPConnectionPool:
    if tls is None:
        return urllib3.HTTPConnectionPool(host, port, maxsize=8)
    verify = tls.get("verify", True)
    if not verify:
        # The user was asked and said so; a warning with every request would drown everything else.
        urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    return urllib3.HTTPSConnectionPool(
        host,
        port,
        maxsize=8,
        ca_certs=tls.get("ca"),
        cert_file=tls.get("cert"),
        key_file=tls.get("key"),
        cert_reqs="CERT_REQUIRED" if verify else "CERT_NONE",
        assert_hostname=None if verify else False,
    )


def _reason(status: int, content: Any, data: bytes) -> str:
    """The server's own words in an answer that is no success."""
    if isinstance(content, dict) and content.get("error"):
        return str(content["error"])
    text = " ".join(data.decode(errors="replace").split())[:300]
    if status == 403:
        return "it wants a header that was not given or is wrong (HTTP 403)"
    return f"HTTP {status}{': ' + text if text else ''}"


def _cause(error: BaseException) -> str:
    """The few words that matter of a connection error."""
    reason = getattr(error, "reason", None) or error
    text = str(reason)
    if "Connection refused" in text:
        return "connection refused"
    if "Name or service not known" in text or "Temporary failure in name resolution" in text:
        return "no such host"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its TLS certificate is not trusted; name the CA"
    return text.rsplit(": ", 1)[-1] if ": " in text else type(reason).__name__
