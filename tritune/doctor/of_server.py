"""The running server: what it lets us do, what it serves against what is written, whether its numbers can be read.

Belongs here: questions to this installation's Triton and the findings from the answers. Never: changing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tritune import model_config, servers
from tritune.doctor import matcher, of_log
from tritune.doctor.diagnosis import Area, Checked, Diagnosis, Job, Remedy, Report
from tritune.errors import ServerError, TrituneError
from tritune.model_rules import Finding
from tritune.plan import JobKind
from tritune.repository import ModelEntry, ModelRepository
from tritune.servers import ServerKind, ServerState, ServerStatus
from tritune.settings import Settings
from tritune.triton import Triton

LOG_LINES = 4000
ENOUGH_EXECUTIONS = 200
"""So many executions of one sample each, with the batcher on, are no accident."""

Item = Diagnosis | Checked


def diagnose(settings: Settings) -> Report:
    """The findings about this installation's server; one that stopped by itself is told with its log's reason."""
    status = servers.status(settings)
    if status.state is ServerState.STOPPED:
        start = Remedy("Start Triton", job=Job(JobKind.SERVER_START, {"kind": "embedded", "port_base": None}))
        found = _found(
            "server_stopped", "info", "no Triton of this installation runs",
            "Nothing can be loaded, asked or measured before one does.",
            "Start one with `tritune server start`, or attach to one with `tritune server attach URL`.", remedy=start,
        )  # fmt: skip
        return Report((found,))
    if status.state is ServerState.FAILED:
        return _failed(settings, status)
    if status.state is ServerState.STARTING:
        return Report((), (Checked(Area.SERVER, "Triton", "is starting"),))
    try:
        with servers.connect(settings) as triton:
            items = list(_running(settings, status, triton))
    except ServerError as error:
        found = _found(
            "server_silent", "error", str(error), "The server stopped answering while it was being looked at.",
            "Look at `tritune server logs`, stop it and start it again.",
        )  # fmt: skip
        return Report((found,))
    report = Report(
        tuple(item for item in items if isinstance(item, Diagnosis)),
        tuple(item for item in items if isinstance(item, Checked)),
    )
    return report.sorted()


def _found(
    code: str, severity: Any, seen: str, cause: str, fix: str, *, model: str = "", remedy: Remedy | None = None
) -> Diagnosis:
    return Diagnosis(Finding(code, severity, seen, cause, fix), Area.SERVER, model, remedy=remedy)


def _failed(settings: Settings, status: ServerStatus) -> Report:
    reason = status.reason or "the server does not answer"
    if status.kind is ServerKind.REMOTE:
        found = _found(
            "server_down", "error", reason, "The server that this installation is attached to cannot be reached.",
            "See to it that it runs and that this machine reaches it, or let it go with `tritune server stop`.",
        )  # fmt: skip
        return Report((found,))
    log = of_log.text(servers.logs(settings, LOG_LINES), "the server's log")
    named = [found for found in log.findings if found.finding.code != "unknown_error"]
    again = {"kind": str(status.kind), "port_base": None, "image": status.image, "gpus": status.gpus}
    cause = "Its log names the cause, which is told below." if named else "Its log names no cause that is known here."
    found = _found(
        "server_failed", "error", reason, cause, "Mend what the log names, and start it again: `tritune server start`.",
        remedy=Remedy("Start it again", job=Job(JobKind.SERVER_START, again)),
    )  # fmt: skip
    return Report((found, *log.findings))


def _running(settings: Settings, status: ServerStatus, triton: Triton) -> Iterator[Item]:
    yield Checked(Area.SERVER, "Triton", f"{status.triton_version or 'of an unknown version'} answers at "
                  f"{triton.endpoints.http} ({status.kind})")  # fmt: skip
    control = status.control is not False and triton.has_model_control
    yield from _abilities(status, triton, control)
    index: dict[str, list[Mapping[str, Any]]] = {}
    try:
        for row in triton.index():
            index.setdefault(str(row.get("name")), []).append(row)
    except ServerError as error:
        yield _found(
            "no_index", "info", str(error), "This server does not list its models.",
            "Name the model yourself where you need it.",
        )  # fmt: skip
        return
    repository = ModelRepository(settings.model_repo)
    entries = {} if status.kind is ServerKind.REMOTE else {entry.name: entry for entry in repository.models()}
    for name in sorted({*index, *entries}):
        yield from _model(repository, triton, name, index.get(name, []), entries.get(name), control=control)


def _abilities(status: ServerStatus, triton: Triton, control: bool) -> Iterator[Item]:
    if control:
        yield Checked(Area.SERVER, "Model control", "models can be loaded and unloaded")
    else:
        yield _found(
            "control_mode", "warning", f"{triton.endpoints.http} does not let models be loaded or unloaded",
            "It was started with --model-control-mode=none (the default) or poll.",
            "Start it with --model-control-mode=explicit to tune there.",
        )  # fmt: skip
    if triton.has_statistics:
        yield Checked(Area.SERVER, "Statistics", "available")
    else:
        yield _found(
            "no_statistics", "warning", "the extension `statistics` is not among the server's",
            "Batch sizes, queue and compute times are not available there.",
            "Use a Triton with statistics; latencies and throughput are measured without.",
        )  # fmt: skip
    if not triton.has_model_config:
        yield _found(
            "no_model_config", "warning", "the extension `model_configuration` is not among the server's",
            "What is served cannot be compared with what is written.", "Use a Triton to see its configuration.",
        )  # fmt: skip
    metrics = triton.metrics()
    if metrics is None:
        address = triton.endpoints.metrics
        yield _found(
            "no_metrics", "warning", f"no metrics at {address}" if address else "no metrics address is known",
            "GPU use and memory cannot be recorded with a load test.",
            "Start the server with --allow-metrics=true and publish its port, or attach again with --metrics URL.",
        )  # fmt: skip
        return
    gpu = sum(name.startswith("nv_gpu_utilization") for name in metrics)
    yield Checked(Area.SERVER, "Metrics", f"{len(metrics)} values; " + (f"GPU metrics of {gpu}" if gpu
                  else "GPU metrics are not available"))  # fmt: skip


def _model(
    repository: ModelRepository,
    triton: Triton,
    name: str,
    rows: list[Mapping[str, Any]],
    entry: ModelEntry | None,
    *,
    control: bool,
) -> Iterator[Item]:
    ready = [row for row in rows if row.get("state") == "READY"]
    load = None
    if control and entry is not None:
        undo = None if ready else JobKind.UNLOAD_MODEL
        job = Job(JobKind.LOAD_MODEL, {"model": name}, undo, {"model": name} if undo else {})
        load = Remedy("Load it again" if ready else "Load it", job=job)
    for row in rows:
        reason = str(row.get("reason") or "")
        if row.get("state") != "READY" and reason not in ("", "unloaded"):
            yield _refused(name, str(row.get("version") or ""), reason, load)
    if not ready:
        if not any(row.get("reason") not in (None, "", "unloaded") for row in rows):
            yield _found(
                "not_loaded", "info", f"{name} is not loaded", "Requests for it are refused until it is.",
                "Load it here or on the Server page." if load else "Load it where that server runs.", model=name,
                remedy=load,
            )  # fmt: skip
        return
    yield Checked(Area.SERVER, name, "ready, version " + ", ".join(str(row.get("version")) for row in ready))
    if entry is not None:
        served = {str(row.get("version")) for row in ready}
        newest = str(entry.versions[-1]) if entry.versions else ""
        if newest and newest not in served and max(map(int, served & _numbers(served)), default=0) < int(newest):
            yield _found(
                "older_served", "warning", f"{name}: version {newest} is published, {', '.join(sorted(served))} served",
                "The model was published after it was loaded.", "Load it again.", model=name, remedy=load,
            )  # fmt: skip
    yield from _served(repository, triton, name, entry, load)


def _numbers(texts: set[str]) -> set[str]:
    return {text for text in texts if text.isdecimal()}


def _refused(name: str, version: str, reason: str, load: Remedy | None) -> Diagnosis:
    """A model that could not be loaded; the reason is looked up in the catalogue like a line of a log."""
    seen = f"{name} version {version}: {reason}" if version else f"{name}: {reason}"
    hits = matcher.read([reason.encode()]).told()
    if hits:
        return Diagnosis(hits[0].entry.finding(seen, hits[0].groups), Area.SERVER, name, remedy=load)
    return _found(
        "refused", "error", seen, "Triton could not load it and gives this reason.",
        f"Mend what it names (`tritune model check {name}` may say more), and load it again.", model=name, remedy=load,
    )  # fmt: skip


def _served(
    repository: ModelRepository, triton: Triton, name: str, entry: ModelEntry | None, load: Remedy | None
) -> Iterator[Item]:
    """The served configuration against the written one, and whether the batcher does anything."""
    if not triton.has_model_config:
        return
    try:
        served = model_config.from_served(triton.config(name))
        written = repository.config(name) if entry is not None else None
    except TrituneError:
        return  # a file that cannot be read is told by the repository's check
    differences = model_config.differences(written, served) if written is not None else ()
    if differences:
        yield _found(
            "not_in_effect", "warning", f"{name}: " + "; ".join(differences)[:400],
            "The server serves another configuration than the one that is written: the file was changed after the "
            "load, or an override is in effect.",
            "Load the model again.", model=name, remedy=load,
        )  # fmt: skip
    elif written is not None:
        yield Checked(Area.SERVER, name, "serves what is written")
    if not triton.has_statistics or not served.configuration.dynamic_batching:
        return
    try:
        counters = triton.statistics(name)
    except ServerError:
        return
    if counters.execution_count >= ENOUGH_EXECUTIONS and counters.inference_count == counters.execution_count:
        yield _found(
            "never_batched", "info",
            f"{name}: {counters.inference_count:,} inferences in {counters.execution_count:,} executions",
            "Dynamic batching is on and has merged nothing since the model was loaded: its clients send one request at "
            "a time and wait, or there are at least as many instances as clients.",
            "Measure with more clients than instances, such as `tritune load " + name + " --concurrency 16`.",
            model=name,
        )  # fmt: skip
