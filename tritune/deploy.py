"""Apply a configuration: write, reload, verify against what the server reports, measure the stall, roll back, undo.

Belongs here: the order of these steps for one model on one Triton. Never: load tests, the store, widgets.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from loadgen import payload
from tritune import model_config, onnx_model
from tritune.errors import ConfigError, InputError, ServerDownError, ServerError, TritonRefusedError, TrituneError
from tritune.load_plan import LoadPlan
from tritune.model_config import ModelConfig
from tritune.plan import Configuration, Signature, TuneChange
from tritune.repository import ModelRepository
from tritune.triton import Triton

PROBE_LEAD_S = 0.3
PROBE_PAUSE_S = 0.05
MAX_WARM = 64

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Preview:
    """What a change would write. `before` None: the model has no config.pbtxt yet."""

    model: str
    before: str | None
    after: ModelConfig
    diff: str

    @property
    def changes_nothing(self) -> bool:
        return self.before is not None and not self.diff


@dataclass(frozen=True, slots=True)
class MemoryCost:
    """Resident memory of all the server's processes around a reload, in MiB; pages that they share count in each."""

    before_mib: float
    peak_mib: float
    after_mib: float

    def to_dict(self) -> dict[str, float]:
        return {"before_mib": self.before_mib, "peak_mib": self.peak_mib, "after_mib": self.after_mib}


@dataclass(frozen=True, slots=True)
class Applied:
    """A configuration that the server serves now.

    `reload_ms`: how long Triton's load call took. `stall_ms`: the longest gap between two replies that one
    back-to-back probe saw around the reload; None with `stall_reason` where nothing was served before.
    `differences`: what the server reports otherwise than asked; empty when verified. `memory`: what a reload without a
    stall (switch.py) needed, where it was one and the server runs on this machine.
    """

    model: str
    before: str | None
    after: str
    diff: str
    reload_ms: float
    stall_ms: float | None
    stall_reason: str | None
    served: Configuration
    differences: tuple[str, ...]
    memory: MemoryCost | None = None

    @property
    def verified(self) -> bool:
        return not self.differences

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "before": self.before,
            "after": self.after,
            "diff": self.diff,
            "reload_ms": self.reload_ms,
            "stall_ms": self.stall_ms,
            "stall_reason": self.stall_reason,
            "served": self.served.to_dict(),
            "verified": self.verified,
            "differences": list(self.differences),
            "memory": self.memory.to_dict() if self.memory is not None else None,
        }


def preview(repository: ModelRepository, model: str, change: TuneChange) -> Preview:
    """What `change` would write, checked by Triton's rules; writes nothing.

    Raises InputError (or ConfigError) with the value, the limit and the next step where Triton would refuse it.
    """
    asked = model_config.change(repository.config(model), change)
    return _preview(repository, model, asked)


def _preview(repository: ModelRepository, model: str, asked: ModelConfig) -> Preview:
    served_version = dict(asked.configuration.further).get("model_version")
    path = repository.onnx_path(model, served_version if isinstance(served_version, int) else None)
    onnx = onnx_model.inspect(path) if path is not None else None
    for finding in model_config.findings(asked, onnx, model):
        if finding.severity == "error":
            raise ConfigError(f"{finding.seen}: {finding.cause} {finding.fix}")
    before = repository.config_text(model)
    return Preview(model, before, asked, model_config.diff(before or "", asked.text))


def earlier(repository: ModelRepository, model: str, text: str | None) -> Preview:
    """What it takes to serve an earlier config.pbtxt again: what undo does. `text` None: there was none, so what Triton
    made of that is written out."""
    asked = model_config.parse(text) if text is not None else repository.completed(model, None)
    return _preview(repository, model, asked)


def apply(
    triton: Triton, repository: ModelRepository, wanted: Preview, progress: Progress = lambda text: None
) -> Applied:
    """Write, reload the model and verify it. On a refusal the last good configuration is served again.

    Raises TritonRefusedError with Triton's reason after the roll-back, ServerDownError.
    """
    model = wanted.model
    if not triton.has_model_control:
        raise InputError(
            f"The server at {triton.endpoints.http} does not let models be loaded, so no configuration can be changed "
            "there. Start it with --model-control-mode=explicit, or use `tritune server start`."
        )
    was_served = triton.model_ready(model)
    # The last word before anything changes: whoever cancels does so by raising in here, and from now on it is done
    # to its end, since a file that is written and not loaded, or loaded and not recorded, could not be undone.
    progress(f"Writing config.pbtxt of {model}, reloading it, and comparing with what the server reports")
    probe = ReloadProbe(triton, model) if was_served else None
    if probe is not None:
        probe.start()
    try:
        if not wanted.changes_nothing:
            repository.write_config(model, wanted.after.text)
        began = time.monotonic_ns()
        try:
            triton.load(model)
            if not triton.model_ready(model):
                raise TritonRefusedError(f"Triton answered the load of {model} and does not serve it.")
            reload_ms = (time.monotonic_ns() - began) / 1e6
        except (ServerError, InputError) as error:  # InputError: what Triton must never be shown
            raise _rolled_back(triton, repository, wanted, error) from error
        if probe is not None:
            probe.wait_for_reply()
    finally:
        if probe is not None:
            probe.stop()
    return applied(triton, wanted, wanted.after, reload_ms, probe)


def applied(
    triton: Triton,
    wanted: Preview,
    asked: ModelConfig,
    reload_ms: float,
    probe: ReloadProbe | None,
    memory: MemoryCost | None = None,
) -> Applied:
    """What a reload came to: `asked` is what the server was given, `probe` None where nothing was served before."""
    served = model_config.from_served(triton.config(wanted.model))
    return Applied(
        model=wanted.model,
        before=wanted.before,
        after=wanted.after.text,
        diff=wanted.diff,
        reload_ms=reload_ms,
        stall_ms=probe.longest_gap_ms() if probe is not None else None,
        stall_reason=probe.reason if probe is not None else "The model was not served before.",
        served=served.configuration,
        differences=differences(triton, wanted.model, asked, served),
        memory=memory,
    )


def _rolled_back(triton: Triton, repository: ModelRepository, wanted: Preview, error: TrituneError) -> TrituneError:
    """Serve the last good configuration again, and say how that went together with Triton's reason."""
    if not wanted.changes_nothing:
        if wanted.before is None:
            repository.remove_config(wanted.model)
        else:
            repository.write_config(wanted.model, wanted.before)
    if isinstance(error, ServerDownError):
        return ServerDownError(f"{error} The previous config.pbtxt of {wanted.model} is in place again.")
    reason = error.reason if isinstance(error, TritonRefusedError) else str(error)
    try:
        triton.load(wanted.model)
        after = "The last good configuration is served again."
    except ServerError as second:
        after = f"The last good configuration could not be served either: {second}"
    if isinstance(error, InputError):
        return InputError(f"{reason} {after}")
    return TritonRefusedError(
        f"Triton refused the new configuration of {wanted.model}: {reason} {after}", reason=reason
    )


def load(triton: Triton, repository: ModelRepository, model: str) -> Configuration:
    """Load a model of the repository (or load it again) and return what is served.

    Raises UnknownModelError, TritonRefusedError with Triton's reason, ServerDownError.
    """
    repository.entry(model)
    triton.load(model)
    if not triton.model_ready(model):
        raise TritonRefusedError(f"Triton answered the load of {model} and does not serve it.")
    return model_config.from_served(triton.config(model)).configuration


def differences(triton: Triton, model: str, asked: ModelConfig, served: ModelConfig) -> tuple[str, ...]:
    """What is served otherwise than asked, one sentence each. Raises ServerError.

    A change of the version policy alone reloads nothing where it picks the version that is loaded already, and Triton
    then reports the old policy: there the loaded versions decide.
    """
    found = model_config.differences(asked, served)
    if not any(sentence.startswith("version_policy:") for sentence in found):
        return found
    return model_config.differences(asked, served, triton.versions(model))


def warm(triton: Triton, model: str, plan: LoadPlan, progress: Progress = lambda text: None) -> None:
    """Send batches of every size that a load can form, to each instance, so that none is seen first while measured.

    Raises ServerDownError; a request that the server refuses is left to the load test, which counts it.
    """
    signature = triton.signature(model)
    in_flight = plan.batch * (plan.concurrency or plan.max_connections)
    largest = max(min(signature.max_batch_size, in_flight, MAX_WARM), 1)
    groups = triton.config(model).get("instance_group") or () if triton.has_model_config else ()
    instances = min(max(sum(int(group.get("count") or 1) for group in groups), 1), MAX_WARM)
    for size in range(1, largest + 1):
        progress(f"Warming {model} up: batch {size} of {largest}")
        (first,) = payload.payloads(signature, replace(plan, model=model, batch=size), count=1)
        body = payload.http_body(first)
        headers = {"Inference-Header-Content-Length": str(body.json_length)}
        with ThreadPoolExecutor(instances) as pool:
            for answered in [pool.submit(triton.infer, model, body.body, headers) for _ in range(instances)]:
                answered.result()


class ReloadProbe(threading.Thread):
    """One request at a time, back to back or after a pause, while a model reloads; remembers when each reply came."""

    def __init__(self, triton: Triton, model: str, pause_s: float = 0.0) -> None:
        super().__init__(name="reload-probe", daemon=True)
        self._pause_s = pause_s
        # A connection of its own: the caller's is busy with the load.
        self._triton = Triton(triton.endpoints)
        self._model = model
        self._ended = threading.Event()
        self._answered = threading.Event()
        self._replies_ns: list[int] = []
        self.reason: str | None = None

    def start(self) -> None:
        super().start()
        self._answered.wait(5.0)
        self._ended.wait(PROBE_LEAD_S)

    def run(self) -> None:
        try:
            body, headers = probe_request(self._triton.signature(self._model), self._model)
        except (InputError, ServerError) as error:
            self.reason = f"No probe request could be made: {error}"
            self._answered.set()
            return
        while not self._ended.is_set():
            try:
                status, _, answer = self._triton.infer(self._model, body, headers)
            except ServerError:
                status, answer = 0, b""
            if status == 200:
                self._replies_ns.append(time.monotonic_ns())
                self._answered.set()
                if self._pause_s:
                    self._ended.wait(self._pause_s)
            elif not self._replies_ns:
                self.reason = f"The probe's request was refused: {answer[:200].decode(errors='replace')}"
                self._answered.set()
                return
            else:
                self._ended.wait(0.001)

    def wait_for_reply(self, timeout_s: float = 30.0) -> None:
        """Return when a reply has come after now, so that the gap is closed by a reply and not by us."""
        have = len(self._replies_ns)
        limit = time.monotonic() + timeout_s
        while self.is_alive() and len(self._replies_ns) <= have and time.monotonic() < limit:
            self._ended.wait(PROBE_PAUSE_S / 10)
        self._ended.wait(PROBE_PAUSE_S)

    def stop(self) -> None:
        self._ended.set()
        self.join(15.0)

    def longest_gap_ms(self) -> float | None:
        """The longest time between two replies, without the pause; None below two replies."""
        replies = self._replies_ns
        if len(replies) < 2:
            return None
        return max(after - before for before, after in pairwise(replies)) / 1e6 - self._pause_s * 1e3


def probe_request(signature: Signature, model: str) -> tuple[bytes, dict[str, str]]:
    """The smallest valid request: one sample, every free dimension 1. Returns (body, headers)."""
    shapes = {
        tensor.name: tuple(1 if size < 0 else size for size in tensor.shape)
        for tensor in signature.inputs
        if any(size < 0 for size in tensor.shape)
    }
    (first,) = payload.payloads(signature, LoadPlan(model=model, concurrency=1, shapes=shapes), count=1)
    body = payload.http_body(first)
    return body.body, {"Inference-Header-Content-Length": str(body.json_length)}
