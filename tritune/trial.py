"""One load test from start to stored measurement: what the worker does for a `load_test` job.

The generator runs as a child; at both edges of the measurement window the server's statistics and the child's
CPU time are read, so that every number is about the same stretch of time.

Belongs here: the order of these steps and what ends a trial early. Never: formulas, statistics, widgets.
"""

from __future__ import annotations

import errno
import json
import math
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from loadgen import child as generator
from loadgen import samples as sample_files
from loadgen.payload import payloads
from tritune import deploy, measurement, model_config, servers
from tritune.errors import (
    InputError,
    LoadTestError,
    ServerDownError,
    ServerError,
    TrituneError,
    UnknownModelError,
)
from tritune.load_plan import GeneratorPlan, LoadPlan
from tritune.plan import Configuration, JobState, Signature, TrialState
from tritune.provenance import provenance_of
from tritune.repository import ModelRepository
from tritune.settings import Settings
from tritune.store import Job, Store
from tritune.triton import ModelStatistics, Triton
from tritune.triton_statistics import GpuReading, gpu_document

POLL_S = 0.1
SERVER_GONE_AFTER_S = 2.0
MIN_FREE_BYTES = 64 * 1024 * 1024
BYTES_PER_SAMPLE = 64
ASSUMED_PEAK_RPS = 20_000


class Context(Protocol):
    """What a trial needs of the job it is part of."""

    settings: Settings
    store: Store
    job: Job
    ended: threading.Event

    def progress(self, text: str, fraction: float | None = None, **extra: Any) -> None:
        """Raises Cancelled where the job should end."""


class Cancelled(Exception):
    """The job was asked to end."""


class TrialEnded(Exception):
    """A trial that was recorded and did not finish."""

    def __init__(self, state: JobState, reason: str | None, result: Mapping[str, Any]) -> None:
        super().__init__(reason)
        self.state = state
        self.reason = reason
        self.result = result


@dataclass(slots=True)
class _Edge:
    """What was read at one edge of the window."""

    statistics: ModelStatistics | None
    cpu_ns: int
    processes: int


class _EverySecond:
    """Looks at the server once a second inside the window."""

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._looked_at = -math.inf

    def look(self, window: tuple[int, int] | None) -> None:
        """Read now, where it is time."""
        now = time.monotonic()
        if window is None or now - self._looked_at < 1.0 or not window[0] <= time.monotonic_ns() <= window[1]:
            return
        self._looked_at = now
        self._read(now - window[0] / 1e9)

    def _read(self, at_s: float) -> None:
        raise NotImplementedError


class _Restarts(_EverySecond):
    """Whether the model's counters began anew inside the window: its two edges alone do not show a reload after which
    more was counted than before it."""

    def __init__(self, triton: Triton, model: str) -> None:
        super().__init__(triton)
        self._model = model
        self._count = 0
        self.happened = False

    def _read(self, at_s: float) -> None:
        try:
            count = self._triton.statistics(self._model).inference_count if self._triton.has_statistics else 0
        except ServerError:  # it is being reloaded, or has ended
            return
        self.happened |= count < self._count
        self._count = count


class _Gpus(_EverySecond):
    """What the server's metrics say of its GPUs; one without is asked once."""

    def __init__(self, triton: Triton) -> None:
        super().__init__(triton)
        self._has_none = False
        self._readings: list[tuple[float, Sequence[GpuReading] | None]] = []

    def _read(self, at_s: float) -> None:
        if self._has_none:
            return
        found = self._triton.gpu()
        self._has_none = found is None and not self._readings
        self._readings.append((at_s, found))

    def document(self) -> dict[str, Any] | None:
        """What is kept with the trial; None: not available."""
        return gpu_document(self._readings)


def check_model(settings: Settings, triton: Triton, plan: LoadPlan) -> None:
    """Raise UnknownModelError where the model is neither in the repository nor served."""
    known = {entry.name for entry in ModelRepository(settings.model_repo).models()}
    if plan.model in known or triton.model_ready(plan.model):
        return
    names = ", ".join(sorted(known)) or "none yet"
    raise UnknownModelError(
        f"There is no model {plan.model!r} in the repository or on the server. Known: {names}. "
        "Publish one with `tritune model build` or `tritune model add FILE`."
    )


class Part:
    """A job's context as one of its trials sees it: what the trial says becomes the job's progress."""

    def __init__(self, context: Context, head: str, share: Callable[[float], float], **more: Any) -> None:
        """`head` begins every text; `share` turns the trial's fraction into the job's; `more` goes with every one."""
        self.settings: Settings = context.settings
        self.store: Store = context.store
        self.job: Job = context.job
        self.ended: threading.Event = context.ended
        self._tell, self._head, self._share, self._more = context.progress, head, share, more

    def progress(self, text: str, fraction: float | None = None, **extra: Any) -> None:
        """Say what the trial does; its live figures go under `probe`."""
        live = extra.pop("live", None)
        said = f"{self._head}: {text[:1].lower()}{text[1:]}"
        self._tell(said, min(self._share(fraction or 0.0), 1.0), probe=live, **self._more, **extra)


@dataclass(frozen=True, slots=True)
class Row:
    """A trial that is recorded already and running: its id, the configuration that it is about, and the name under
    which the server serves that."""

    trial_id: str
    asked: Configuration
    served_as: str


def run(
    context: Context,
    plan: LoadPlan,
    *,
    labels: Mapping[str, str],
    note: str,
    round: int = 1,
    attempt: int = 1,
    row: Row | None = None,
) -> Mapping[str, Any]:
    """Measure once and store it as this round and attempt of the job's study (or in `row`); returns {"trial_id"}.

    Raises InputError or ServerError before anything is recorded, TrialEnded for a trial that was recorded and
    was cancelled or failed.
    """
    settings, store = context.settings, context.store
    context.progress("Looking at the server")
    triton = servers.connect(settings)
    repository = ModelRepository(settings.model_repo)
    served_as = row.served_as if row else plan.model
    if row is None:
        check_model(settings, triton, plan)
        if not triton.model_ready(plan.model):
            context.progress(f"Loading {plan.model}")
            deploy.load(triton, repository, plan.model)
    signature = triton.signature(served_as)
    payloads(signature, plan, count=1)  # what no request can be made of is refused before it is recorded
    check_disk(settings, plan)
    served_config = triton.config(served_as) if triton.has_model_config else None
    served = model_config.from_served(served_config).configuration if served_config else None
    asked = row.asked if row else _asked(repository, plan.model)
    if row is None:
        trial_id = store.start_trial(
            context.job.id, plan, configuration=served, labels=labels, note=note, round=round, attempt=attempt
        )
    else:
        trial_id = row.trial_id
    folder = settings.trials / trial_id
    provenance = provenance_of(settings, triton, repository, plan.model, served_as, served_config)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        on_wire = replace(plan, model=served_as)
        gpus = _Gpus(triton)
        measured, outcome = _measure(context, triton, on_wire, signature, folder, trial_id, asked, served, gpus)
        (folder / "served_config.json").write_text(json.dumps(served_config, indent=1))
    except Cancelled as cancelled:
        _give_up(store, trial_id, folder, TrialState.CANCELLED, provenance, None)
        raise TrialEnded(JobState.CANCELLED, None, {"trial_id": trial_id}) from cancelled
    except (TrituneError, OSError) as error:
        reason = _full_disk(error, settings) or str(error)
        _give_up(store, trial_id, folder, TrialState.FAILED, provenance, reason)
        raise TrialEnded(JobState.FAILED, reason, {"trial_id": trial_id}) from error
    except BaseException:
        _give_up(store, trial_id, folder, TrialState.FAILED, provenance, "The trial ended unexpectedly.")
        raise
    provenance["generator_versions"] = dict(outcome.versions)
    document = {**measured.to_dict(), "gpu": gpus.document()}
    store.finish_trial(trial_id, TrialState.FINISHED, measurement=document, provenance=provenance)
    return {"trial_id": trial_id}


def _measure(
    context: Context,
    triton: Triton,
    plan: LoadPlan,
    signature: Signature,
    folder: Path,
    trial_id: str,
    asked: Configuration | None,
    served: Configuration | None,
    gpus: _Gpus,
) -> tuple[measurement.Measurement, generator.Outcome]:
    running = generator.start(GeneratorPlan(plan, triton.endpoints, signature), folder)
    restarts = _Restarts(triton, plan.model)
    try:
        first, last = _watch(context, triton, plan, running, trial_id, (gpus, restarts))
    except BaseException:
        running.cancel()
        raise
    outcome = running.outcome()
    if context.ended.is_set() or outcome.cancelled:
        raise Cancelled
    context.progress("Computing percentiles and intervals", 1.0, trial_id=trial_id)
    stream = folder / "samples.arrow"
    samples = sample_files.open_stream(stream)
    server = None
    restarted = restarts.happened
    if first.statistics is not None and last.statistics is not None:
        server = None if restarted else last.statistics.since(first.statistics)
        restarted = server is None
    measured = measurement.measure(
        plan,
        samples,
        outcome,
        server,
        generator_cpu_ns=last.cpu_ns - first.cpu_ns,
        generator_processes=max(first.processes, last.processes),
        asked=asked,
        served=served,
        server_restarted=restarted,
        latency_limit_ms=plan.p99_limit_ms,
    )
    sample_files.write_parquet(samples, folder / "samples.parquet")
    stream.unlink()
    return measured, outcome


def _watch(
    context: Context,
    triton: Triton,
    plan: LoadPlan,
    running: generator.Child,
    trial_id: str,
    looks: Sequence[_EverySecond],
) -> tuple[_Edge, _Edge]:
    """Follow the generator to its end; returns what was read at the window's edges."""
    watch = _ServerWatch(triton)
    first: _Edge | None = None
    last: _Edge | None = None
    limit = time.monotonic() + plan.warmup_s + plan.duration_s + plan.timeout_s + 60.0
    while running.poll() is None:
        if context.ended.is_set():
            raise Cancelled
        if time.monotonic() > limit:
            raise LoadTestError(
                "The load generator did not end in time and was stopped. "
                f"Its log is {running.folder / 'generator.log'}."
            )
        window = running.window()
        now = time.monotonic_ns()
        if window is not None and first is None and now >= window[0]:
            first = _edge(triton, plan.model, running)
        if window is not None and last is None and now >= window[1]:
            last = _edge(triton, plan.model, running)
        _report(context, running, plan, trial_id)
        for looking in looks:
            looking.look(window)
        watch.check()
        context.ended.wait(_pause_s(window, first, last))
    running.outcome()
    if first is None or last is None:
        edge = _edge(triton, plan.model, running)
        first, last = first or edge, last or edge
    return first, last


def _pause_s(window: tuple[int, int] | None, first: _Edge | None, last: _Edge | None) -> float:
    """How long to wait until the next look: shorter where an edge of the window comes before."""
    if window is None:
        return POLL_S / 2
    edge = window[0] if first is None else window[1] if last is None else None
    if edge is None:
        return POLL_S
    return min(POLL_S, max(0.0005, (edge - time.monotonic_ns()) / 1e9))


def _edge(triton: Triton, model: str, running: generator.Child) -> _Edge:
    cpu_ns = running.cpu_ns()
    try:
        statistics = triton.statistics(model) if triton.has_statistics else None
    except ServerError:  # it has just ended
        statistics = None
    return _Edge(statistics, cpu_ns, running.processes())


def _report(context: Context, running: generator.Child, plan: LoadPlan, trial_id: str) -> None:
    live = running.live()
    if live is None:
        context.progress("Starting the load generator", 0.0, trial_id=trial_id)
        return
    total_s = plan.warmup_s + plan.duration_s
    fraction = min(1.0, max(0.0, live.elapsed_s / total_s))
    context.progress(
        {"warmup": "Warming up", "measuring": "Measuring", "draining": "Waiting for the last answers"}.get(
            live.phase, "Starting the load generator"
        ),
        fraction,
        trial_id=trial_id,
        remaining_s=max(0.0, total_s - live.elapsed_s),
        live=live.to_dict(),
    )


class _ServerWatch:
    """Ends a trial early where the server is gone, instead of recording connection errors to the end."""

    def __init__(self, triton: Triton) -> None:
        self._triton = triton
        self._looked_at = time.monotonic()
        self._gone_since: float | None = None

    def check(self) -> None:
        """Raise ServerDownError where nothing has listened at the address for a while."""
        now = time.monotonic()
        if now - self._looked_at < 0.5:
            return
        self._looked_at = now
        if self._triton.listens():
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = now
        elif now - self._gone_since >= SERVER_GONE_AFTER_S:
            raise ServerDownError(
                f"The server at {self._triton.endpoints.http} ended during the load test, so the trial failed. "
                "Start it again with `tritune server start`; `tritune server logs` shows its last words."
            )


def check_disk(settings: Settings, plan: LoadPlan) -> None:
    """Raise InputError where the samples of this plan might not fit on the disk under results/."""
    settings.results.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(settings.results).free
    rate = plan.rate_rps or ASSUMED_PEAK_RPS
    kept = min((plan.warmup_s + plan.duration_s) * rate, plan.max_raw_samples)
    needed = MIN_FREE_BYTES + int(kept * BYTES_PER_SAMPLE)
    if free < needed:
        raise InputError(
            f"The disk under {settings.results} has {free / 1e6:.0f} MB free and this load test may need "
            f"{needed / 1e6:.0f} MB. Free some space, shorten the test, or set TRITUNE_RESULTS to another disk."
        )


def _full_disk(error: BaseException, settings: Settings) -> str | None:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return (
            f"The disk under {settings.results} became full during the load test, so this trial failed; finished "
            "trials are kept. Free some space and run it again."
        )
    return None


def _give_up(
    store: Store, trial_id: str, folder: Path, state: TrialState, provenance: Mapping[str, Any], reason: str | None
) -> None:
    """Record the end of a trial that has no measurement; its samples go first, since they may fill the disk."""
    for name in ("samples.arrow", "samples.parquet"):
        (folder / name).unlink(missing_ok=True)
    store.finish_trial(trial_id, state, provenance=provenance, error=reason)


def _asked(repository: ModelRepository, model: str) -> Configuration | None:
    """The written configuration, where this installation's repository has one."""
    try:
        if repository.entry(model).has_config:
            return repository.config(model).configuration
    except InputError:
        return None
    return None
