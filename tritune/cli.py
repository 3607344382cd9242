"""The command line: the same verbs as the pages.

Every verb takes --json and then prints one JSON document on stdout and nothing else there; messages go to
stderr. Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 done but an objective or check was missed.

Belongs here: options, waiting, printing. Never: what the verbs do.
"""

from __future__ import annotations

import io
import json
import logging
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, NoReturn, ParamSpec

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from tritune.arrival_plan import parse_intervals, parse_stages
from tritune.errors import InputError, TrituneError
from tritune.plan import (
    Arrivals,
    Compression,
    Driver,
    JobKind,
    JobState,
    LoadPlan,
    Protocol,
    SharedMemory,
    TuneChange,
    Wire,
    describe_load,
)
from tritune.settings import Settings

P = ParamSpec("P")

MISSED = 3
MAX_ROWS = 1_000_000
INTERRUPTED = 130  # as a shell gives it for Ctrl-C

_options: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}


class _Commands(TyperGroup):
    """All verbs. A wrong use of one is told like any failure: with --json one document is on stdout then too."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(given, *others, **{**options, "standalone_mode": False})
        except TyperException as wrong:
            if "--json" in given:
                show({"error": wrong.format_message()}, True, "")
            wrong.show()  # type: ignore[attr-defined]  # all of them have it; their class is private to Typer
            code = wrong.exit_code
        sys.exit(code or 0)


app = typer.Typer(
    help="From an ONNX model to a tuned, measured, compared configuration on Triton.", cls=_Commands, **_options
)
model_app = typer.Typer(help="Publish, check and list models.", **_options)
server_app = typer.Typer(help="Start, attach to, look at and stop a Triton.", **_options)
study_app = typer.Typer(help="Load tests that were made.", **_options)
app.add_typer(model_app, name="model")
app.add_typer(server_app, name="server")
app.add_typer(study_app, name="study")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def say(text: str) -> None:
    """A message for the person at the terminal."""
    typer.echo(text, err=True)


def show(document: Mapping[str, Any], as_json: bool, text: str) -> None:
    """Print the result: the document, or the text that a person reads."""
    typer.echo(json.dumps(document, allow_nan=False) if as_json else text)


def _fail(error: TrituneError, as_json: bool) -> NoReturn:
    if as_json:
        show({"error": str(error)}, True, "")
    say(str(error))
    raise typer.Exit(error.exit_code)


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """Turn a TrituneError into its sentence and its exit code: no traceback reaches a user."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _interruptible():
                function(*args, **kwargs)
        except TrituneError as error:
            _fail(error, bool(kwargs.get("as_json")))
        except KeyboardInterrupt:
            if kwargs.get("as_json"):
                show({"error": "Stopped."}, True, "")
            say("Stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever reads the output has heard enough
            raise
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            said = TrituneError(f"The system refused: {error.strerror or error}{where}. Check rights and free space.")
            _fail(said, bool(kwargs.get("as_json")))
        except (typer.Exit, typer.Abort):
            raise
        except Exception as unexpected:
            _fail(_unexpected(unexpected), bool(kwargs.get("as_json")))

    return run


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C is KeyboardInterrupt while a verb runs, also where __main__ let it end the process before and after."""
    ends = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _unexpected(error: Exception) -> TrituneError:
    """A fault of ours, as one sentence; its traceback goes to a file."""
    try:
        log = Settings.from_env().results / "faults.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except (OSError, TrituneError):
        return TrituneError(f"An unexpected fault: {type(error).__name__}: {error}.")
    return TrituneError(f"An unexpected fault: {type(error).__name__}: {error}. The details are in {log}.")


def _whole_numbers(text: str, what: str) -> tuple[int, ...]:
    if text.strip().lower() in ("", "none"):
        return ()
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*(,\s*-?[0-9]{1,18}\s*)*", text):
        raise InputError(f"{what}={text!r} must be whole numbers with commas between them, such as 4,8.")
    return tuple(int(part) for part in text.split(","))


def _named(values: list[str], what: str, example: str) -> list[tuple[str, str]]:
    pairs = []
    for value in values:
        name, separator, rest = value.rpartition(":")
        if not separator or not name or not rest:
            raise InputError(f"{what} {value!r} must look like {example}.")
        pairs.append((name, rest))
    return pairs


def _pairs(values: list[str] | None, option: str) -> dict[str, str]:
    pairs = {}
    for value in values or []:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise InputError(f"{option} {value!r} must look like KEY=VALUE.")
        pairs[_readable(key, option)] = _readable(text, option)
    return pairs


def _readable(text: str, option: str) -> str:
    """Text that can be kept: an argument may hold bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{option} {text!r} holds bytes that are not UTF-8 text. Leave them out.") from None
    return text


def _run_job(kind: JobKind, payload: Mapping[str, Any]) -> tuple[Any, Any]:
    """Insert a job, wait for its end while saying what it does; returns (job, store)."""
    from tritune import jobs
    from tritune.store import Store

    settings = Settings.from_env()
    store = Store(settings.database_url)
    return jobs.run_and_wait(settings, store, kind, payload, say), store


def _require(job: Any) -> None:
    if job.state is JobState.CANCELLED:
        raise TrituneError("This was cancelled.")
    if job.state is not JobState.FINISHED:
        raise TrituneError(job.error or f"This ended {job.state}.")


# --- model ------------------------------------------------------------------------------------------------


@model_app.command("build")
@verb
def model_build(
    model: Annotated[str, typer.Argument(help="The built-in model.")] = "mnist",
    opset: Annotated[int | None, typer.Option(help="ONNX opset (default 17).")] = None,
    simplify: Annotated[bool, typer.Option("--simplify", help="Simplify the graph with onnxslim.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Train again on MNIST first (minutes).")] = False,
    as_json: Json = False,
) -> None:
    """Publish a new version of the built-in model."""
    if model != "mnist":
        raise InputError(f"The built-in model is mnist, not {model!r}. Publish a file with `tritune model add FILE`.")
    from tritune import publish

    result = publish.build_mnist(Settings.from_env(), opset=opset, simplify=simplify, retrain=retrain, progress=say)
    show(
        result,
        as_json,
        f"mnist version {result['version']}: opset {result['opset']}, {result['accuracy']:.2%} of the test images "
        f"right, {'loaded' if result['loaded'] else 'not loaded (no server is running)'}",
    )


@model_app.command("add")
@verb
def model_add(
    file: Annotated[Path, typer.Argument(help="An ONNX file.")],
    name: Annotated[str | None, typer.Option(help="The model's name (default: the file's).")] = None,
    as_json: Json = False,
) -> None:
    """Publish any ONNX file."""
    from tritune import publish

    result = publish.add(Settings.from_env(), file, name, progress=say)
    show(
        result,
        as_json,
        f"{result['model']} version {result['version']} published"
        f"{' and loaded' if result['loaded'] else '; no server is running yet'}",
    )


@model_app.command("check")
@verb
def model_check(name: str, as_json: Json = False) -> None:
    """What Triton would refuse, and why."""
    from tritune.repository import ModelRepository

    findings = ModelRepository(Settings.from_env().model_repo).check(name)
    lines = [f"{f.severity}: {f.seen}\n  {f.cause}\n  {f.fix}" for f in findings]
    show({"findings": [f.to_dict() for f in findings]}, as_json, "\n".join(lines) or f"{name}: nothing to complain of.")
    if any(finding.severity == "error" for finding in findings):
        raise typer.Exit(MISSED)


@model_app.command("list")
@verb
def model_list(as_json: Json = False) -> None:
    """The models in the repository."""
    from tritune.repository import ModelRepository

    entries = ModelRepository(Settings.from_env().model_repo).models()
    show(
        {"models": [{"name": e.name, "versions": list(e.versions), "has_config": e.has_config} for e in entries]},
        as_json,
        "\n".join(f"{e.name}: versions {', '.join(map(str, e.versions)) or 'none'}" for e in entries)
        or "No model yet. `tritune model build` publishes MNIST.",
    )


# --- server -----------------------------------------------------------------------------------------------


@app.command("setup")
@verb
def setup(as_json: Json = False) -> None:
    """Set up the embedded Triton's environment (once)."""
    from tritune.servers import embedded

    settings = Settings.from_env()
    embedded.set_up(settings, say)
    show({"embedded_env": str(settings.embedded_env)}, as_json, f"The embedded Triton is in {settings.embedded_env}.")


@server_app.command("start")
@verb
def server_start(
    kind: Annotated[str, typer.Option(help="embedded (docker comes later).")] = "embedded",
    port_base: Annotated[int | None, typer.Option(help="First of three ports (default 8000).")] = None,
    as_json: Json = False,
) -> None:
    """Start a Triton with every model of the repository."""
    from tritune import servers
    from tritune.servers import embedded

    if kind != "embedded":
        raise InputError(f"--kind {kind} is not available yet. Use embedded, or `tritune server attach URL`.")
    settings = Settings.from_env()
    if not embedded.is_set_up(settings):
        say("The embedded Triton is not set up yet; this is done once.")
        embedded.set_up(settings, say)
    status = servers.start(settings, servers.ServerKind.EMBEDDED, port_base=port_base, progress=say)
    show(status.to_dict(), as_json, _status_text(status.to_dict()))


@server_app.command("attach")
@verb
def server_attach(
    url: Annotated[str, typer.Argument(help="HOST:PORT or http(s)://HOST:PORT")],
    grpc: Annotated[str | None, typer.Option(help="HOST:PORT of gRPC.")] = None,
    metrics: Annotated[str | None, typer.Option(help="HOST:PORT or URL of the metrics.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, sent with every request.")] = None,
    ca: Annotated[Path | None, typer.Option(help="CA certificate (PEM) for TLS.")] = None,
    cert: Annotated[Path | None, typer.Option(help="Client certificate (PEM) for TLS.")] = None,
    key: Annotated[Path | None, typer.Option(help="Client key (PEM) for TLS.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Do not check the server's certificate.")] = False,
    as_json: Json = False,
) -> None:
    """Use a Triton (or another KServe v2 server) that runs already."""
    from tritune import servers

    tls: dict[str, Any] | None = None
    if ca or cert or key or insecure:
        tls = {
            "ca": str(ca.absolute()) if ca else None,
            "cert": str(cert.absolute()) if cert else None,
            "key": str(key.absolute()) if key else None,
            "verify": not insecure,
        }
    status = servers.attach(
        Settings.from_env(), url, grpc=grpc, metrics=metrics, headers=_pairs(header, "--header"), tls=tls, progress=say
    )
    show(status.to_dict(), as_json, _status_text(status.to_dict()))


@server_app.command("status")
@verb
def server_status(as_json: Json = False) -> None:
    """Whether a Triton is running, and where."""
    from tritune import servers

    document = servers.status(Settings.from_env()).to_dict()
    show(document, as_json, _status_text(document))


@server_app.command("logs")
@verb
def server_logs(
    lines: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="How many of the last lines.")] = 200,
    as_json: Json = False,
) -> None:
    """The last lines of the server's log."""
    from tritune import servers

    text = servers.logs(Settings.from_env(), lines)
    show({"log": text}, as_json, text)


@server_app.command("stop")
@verb
def server_stop(as_json: Json = False) -> None:
    """Stop the started Triton, or let go of an attached one."""
    from tritune import servers

    document = servers.stop(Settings.from_env()).to_dict()
    show(document, as_json, _status_text(document))


def _status_text(document: Mapping[str, Any]) -> str:
    parts = [str(document["state"])]
    if document["kind"]:
        parts.append(f"({document['kind']}, Triton {document['triton_version']})")
    if document["http"]:
        parts.append(f"at http {document['http']}, grpc {document['grpc']}, metrics {document['metrics']}")
    return " ".join(parts) + (f". {document['reason']}" if document.get("reason") else "")


# --- tune, load, compare ----------------------------------------------------------------------------------


@app.command("tune")
@verb
def tune(
    name: str,
    preferred_batch_size: Annotated[str | None, typer.Option(help="Such as 4,8; none removes them.")] = None,
    max_queue_delay_us: Annotated[int | None, typer.Option(help="Microseconds; 0 sends at once.")] = None,
    max_batch_size: Annotated[int | None, typer.Option(help="The largest batch.")] = None,
    instances: Annotated[int | None, typer.Option(help="Model instances.")] = None,
    dynamic_batching: Annotated[bool | None, typer.Option("--dynamic-batching/--no-dynamic-batching")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change and write nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Serve what was served before the last tune.")] = False,
    as_json: Json = False,
) -> None:
    """Change a model's batching, reload it, and verify what is served; what is not given stays as it is."""
    from tritune import deploy, servers
    from tritune.repository import ModelRepository

    settings = Settings.from_env()
    change = TuneChange(
        preferred_batch_size=None
        if preferred_batch_size is None
        else _whole_numbers(preferred_batch_size, "preferred_batch_size"),
        max_queue_delay_microseconds=max_queue_delay_us,
        max_batch_size=max_batch_size,
        instance_count=instances,
        dynamic_batching=dynamic_batching,
    )
    if undo and (dry_run or not change.is_empty):
        raise InputError("--undo takes no other change and no --dry-run. Leave the other options out.")
    if not undo and change.is_empty:
        raise InputError("Nothing to change was given. `tritune tune --help` lists the options.")
    repository = ModelRepository(settings.model_repo)
    repository.entry(name)
    if not undo:
        preview = deploy.preview(repository, name, change)
        if dry_run:
            document = {"model": name, "before": preview.before, "after": preview.after.text, "diff": preview.diff}
            show(document, as_json, preview.diff or "Nothing would change.")
            return
    servers.connect(settings)
    job, _ = _run_job(JobKind.TUNE, {"model": name, "change": change.to_dict(), "undo": undo})
    _require(job)
    result = dict(job.result)
    for difference in result["differences"]:
        say(f"Not in effect: {difference}")
    stall = f"{result['stall_ms']:.0f} ms" if result["stall_ms"] is not None else f"unknown ({result['stall_reason']})"
    show(
        result,
        as_json,
        f"{result['diff'] or 'The file did not change.'}\n"
        f"reloaded in {result['reload_ms']:.0f} ms, longest stall {stall}, "
        f"{'verified against the served configuration' if result['verified'] else 'NOT in effect as asked'}",
    )
    if not result["verified"]:
        raise typer.Exit(MISSED)


@app.command("load")
@verb
def load(
    name: str,
    driver: Annotated[str, typer.Option(help="locust or perf_analyzer.")] = "locust",
    protocol: Annotated[str, typer.Option(help="http or grpc.")] = "http",
    concurrency: Annotated[int | None, typer.Option(help="Closed loop: requests in flight.")] = None,
    rate: Annotated[float | None, typer.Option(help="Open loop: requests per second.")] = None,
    arrivals: Annotated[str, typer.Option(help="constant or poisson (with --rate, --stages).")] = "constant",
    stages: Annotated[str | None, typer.Option(help="Open loop: 10s:100,5s:100-400 (length:rate or from-to).")] = None,
    intervals: Annotated[Path | None, typer.Option(help="Open loop: replay microseconds, one a line.")] = None,
    wire: Annotated[str, typer.Option(help="Tensors in HTTP requests: binary or json.")] = "binary",
    shared_memory: Annotated[str, typer.Option(help="system: tensors in memory shared with the server.")] = "none",
    compression: Annotated[str, typer.Option(help="HTTP bodies: none, gzip or deflate.")] = "none",
    grpc_stream: Annotated[bool, typer.Option("--grpc-stream", help="gRPC: one lasting call a connection.")] = False,
    check_share: Annotated[float, typer.Option(help="Share of responses to decode and check, such as 0.01.")] = 0.0,
    raw_samples: Annotated[bool, typer.Option("--raw-samples/--no-raw-samples", help="Keep every request.")] = True,
    max_connections: Annotated[int, typer.Option(help="The most that an open loop opens.")] = 512,
    batch: Annotated[int, typer.Option(help="Samples in one request.")] = 1,
    duration: Annotated[
        float | None, typer.Option(help="Seconds that are measured (default 10, or the stages).")
    ] = None,
    warmup: Annotated[float, typer.Option(help="Seconds before that.")] = 2.0,
    workers: Annotated[int, typer.Option(help="Generator processes.")] = 1,
    seed: Annotated[int, typer.Option(help="Of arrivals and payloads.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds until a request is given up.")] = 10.0,
    shape: Annotated[list[str] | None, typer.Option(help="INPUT:12,8 for inputs with free dimensions.")] = None,
    int_range: Annotated[list[str] | None, typer.Option(help="INPUT:0:99 for integer inputs.")] = None,
    input_data: Annotated[Path | None, typer.Option(help="A perf_analyzer-style JSON file.")] = None,
    p99_ms: Annotated[
        float | None, typer.Option("--p99-ms", help="What the P99 should stay under; gives goodput.")
    ] = None,
    find_rate: Annotated[bool, typer.Option("--find-rate", help="Find the highest rate whose P99 does.")] = False,
    budget_min: Annotated[float, typer.Option(help="Minutes that --find-rate may take.")] = 10.0,
    precision: Annotated[float, typer.Option(help="Where --find-rate stops: 0.05 is a range of 5 %.")] = 0.05,
    label: Annotated[list[str] | None, typer.Option(help="KEY=VALUE, kept with the trial.")] = None,
    note: Annotated[str, typer.Option(help="Kept with the trial.")] = "",
    as_json: Json = False,
) -> None:
    """Load-test the served configuration once, or (--find-rate) until its highest rate under a P99 limit is found.

    With --p99-ms the exit code is 3 where the whole 95 % interval of the P99 lies above the limit; with --find-rate
    where no rate was shown to hold, not even the lowest one.
    """
    from tritune import jobs

    if find_rate and (concurrency, rate, stages, intervals) != (None, None, None, None):
        raise InputError("--find-rate chooses the load itself. Leave --concurrency, --rate, --stages, --intervals out.")
    steps = parse_stages(stages) if stages is not None else ()
    plan = LoadPlan(
        model=name,
        driver=_choice(Driver, driver, "driver"),
        protocol=_choice(Protocol, protocol, "protocol"),
        concurrency=_opening_clients() if find_rate else concurrency,
        rate_rps=rate,
        arrivals=Arrivals.REPLAY if intervals is not None else _choice(Arrivals, arrivals, "arrivals"),
        stages=steps,
        intervals_us=_intervals(intervals) if intervals is not None else (),
        max_connections=max_connections,
        wire=_choice(Wire, wire, "wire"),
        shared_memory=_choice(SharedMemory, shared_memory, "shared-memory"),
        compression=_choice(Compression, compression, "compression"),
        grpc_stream=grpc_stream,
        check_share=check_share,
        **({} if raw_samples else {"max_raw_samples": 0}),
        batch=batch,
        duration_s=duration if duration is not None else sum(stage.duration_s for stage in steps) or 10.0,
        warmup_s=warmup,
        workers=workers,
        seed=seed,
        timeout_s=timeout,
        shapes={k: _whole_numbers(v, f"--shape {k}") for k, v in _named(shape or [], "--shape", "INPUT:12,8")},
        int_ranges=_int_ranges(int_range or []),
        input_data=str(input_data.absolute()) if input_data else None,
        p99_limit_ms=p99_ms,
    )
    payload = {"plan": plan.to_dict(), "labels": _pairs(label, "--label"), "note": _readable(note, "--note")}
    if find_rate:
        _find_rate(plan, payload, precision, budget_min, as_json)
        return
    jobs.check_load(Settings.from_env(), plan)
    job, store = _run_job(JobKind.LOAD_TEST, payload)
    trial_id = (job.result or {}).get("trial_id")
    if job.state is not JobState.FINISHED and trial_id and as_json:
        show(store.trial(trial_id).to_dict(), True, "")
        say(job.error or f"This ended {job.state}.")
        raise typer.Exit(1)
    _require(job)
    trial = store.trial(trial_id)
    show(trial.to_dict(), as_json, _trial_text(trial.to_dict()))
    from tritune import p99_limit

    if p99_limit.trial_side(trial) is p99_limit.Judgement.MISSED:
        raise typer.Exit(MISSED)


def _opening_clients() -> int:
    from tritune.p99_limit import OPENING_CLIENTS

    return OPENING_CLIENTS


def _find_rate(plan: LoadPlan, payload: Mapping[str, Any], precision: float, budget_min: float, as_json: bool) -> None:
    """Search for the highest rate and print what was found, also where the search was stopped."""
    from tritune import jobs, rate_report
    from tritune.search import RateGoal

    goal = RateGoal.of(plan, precision=precision, budget_s=60 * budget_min)
    jobs.check_load(Settings.from_env(), plan)
    job, store = _run_job(JobKind.FIND_RATE, {**payload, "goal": goal.to_dict()})
    found = rate_report.document(job, store.trials(study_id=f"s{job.id}"))
    show(found, as_json, "\n".join(rate_report.sentences(found)))
    if job.state is not JobState.FINISHED:
        say(job.error or f"This ended {job.state}.")
        raise typer.Exit(1)
    if found["rate_rps"]["value"] is None:
        raise typer.Exit(MISSED)


def _choice(kind: Any, value: str, what: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        known = " or ".join(str(member) for member in kind)
        raise InputError(f"--{what} {value!r} must be {known}.") from None


def _intervals(path: Path) -> tuple[int, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InputError(f"The intervals {path} could not be read ({error}). Name a text file.") from error
    return parse_intervals(text, str(path))


def _int_ranges(values: list[str]) -> dict[str, tuple[int, int]]:
    ranges = {}
    for value in values:
        parts = value.rsplit(":", 2)
        try:
            ranges[parts[0]] = (int(parts[1]), int(parts[2]))
        except (IndexError, ValueError):
            raise InputError(f"--int-range {value!r} must look like INPUT:0:99.") from None
    return ranges


def _trial_text(document: Mapping[str, Any]) -> str:
    from tritune.analysis import Number, significant
    from tritune.p99_limit import LIMIT_WORDS, side
    from tritune.plan import Configuration

    latency, throughput = document["latency_ms"], document["throughput_ips"]
    p99 = latency["p99"]
    lines = [f"{document['trial_id']} {document['model']}: {describe_load(document['load'])}"]
    if document["configuration"]:
        lines.append(f"  {Configuration.from_dict(document['configuration']).describe()}")
    lines.append(f"  throughput {significant(throughput['value'])}/s{_interval(throughput['ci95'])}")
    if latency["p50"] is not None:
        lines.append(f"  P50 {significant(latency['p50'])} ms, P95 {significant(latency['p95'])} ms")
    if p99["value"] is not None:
        lines.append(f"  P99 {'≥ ' if p99['at_least'] else ''}{significant(p99['value'])} ms{_interval(p99['ci95'])}")
    else:
        lines.append(f"  P99 not given: {p99.get('reason')}")
    if (limit_ms := document["plan"].get("p99_limit_ms")) is not None:
        low, high = p99["ci95"] or (None, None)
        held = LIMIT_WORDS[side(Number(p99["value"], low, high, p99["at_least"]), limit_ms)]
        lines.append(f"  goodput {significant(document['goodput_rps'])} requests/s within {limit_ms:g} ms: {held}")
    if document["server"] and document["server"]["average_batch"]:
        lines.append(f"  average batch {significant(document['server']['average_batch'])}")
    lines += [f"  warning: {warning['message']}" for warning in document["warnings"]]
    return "\n".join(lines)


def _interval(bounds: Sequence[float] | None) -> str:
    from tritune.analysis import significant

    return f" (95 % {significant(bounds[0])} to {significant(bounds[1])})" if bounds else ""


@app.command("compare")
@verb
def compare(
    trials: Annotated[list[str], typer.Argument(help="Two or more trials, such as t1 t2.")],
    baseline: Annotated[str | None, typer.Option(help="The trial to compare with (default: the first).")] = None,
    as_json: Json = False,
) -> None:
    """Compare trials with a baseline, ratio by ratio."""
    from tritune import analysis
    from tritune.store import Store

    store = Store(Settings.from_env().database_url)
    chosen = [store.trial(trial_id) for trial_id in trials]
    comparison = analysis.compare(chosen, store.trial(baseline).trial_id if baseline else chosen[0].trial_id)
    show(
        {"trials": [trial.to_dict() for trial in chosen], **comparison.to_dict()},
        as_json,
        "\n".join([_trial_text(trial.to_dict()) for trial in chosen] + comparison.sentences()),
    )


@study_app.command("list")
@verb
def study_list(
    limit: Annotated[int, typer.Option(min=1, max=MAX_ROWS, help="How many of the newest.")] = 100,
    as_json: Json = False,
) -> None:
    """The load tests and searches that were made, newest first."""
    from tritune import rate_report
    from tritune.store import Store

    store = Store(Settings.from_env().database_url)
    rows: list[dict[str, Any]] = []
    for job in store.jobs([JobKind.LOAD_TEST, JobKind.FIND_RATE], limit=limit):
        plan = LoadPlan.from_dict(job.payload["plan"])
        if job.kind is JobKind.FIND_RATE:
            rows.append(rate_report.row(job, store.trials(study_id=f"s{job.id}")))
            continue
        trial_id = (job.result or {}).get("trial_id")
        rows.append(
            {
                "study_id": f"s{job.id}",
                "state": str(job.state),
                "model": plan.model,
                "load": plan.load(),
                "trial_ids": [trial_id] if trial_id else [],
                "error": job.error,
                "created_at": job.created_at,
            }
        )
    text = "\n".join(
        f"{row['study_id']} {row['state']}: {row['model']}, "
        f"{row.get('found') or describe_load(row['load'])} {' '.join(row['trial_ids'])}"
        for row in rows
    )
    show({"studies": rows}, as_json, text or "No load test yet. `tritune load NAME --concurrency 8` makes one.")


@study_app.command("show")
@verb
def study_show(study_id: str, as_json: Json = False) -> None:
    """One load test or search with its trials."""
    from tritune import rate_report
    from tritune.store import Store, study_number

    store = Store(Settings.from_env().database_url)
    job = store.job(study_number(study_id))
    made = store.trials(study_id=f"s{job.id}")
    trials = [trial.to_dict() for trial in made]
    document = {"study_id": f"s{job.id}", "state": str(job.state), "error": job.error, "trials": trials}
    if job.kind is JobKind.FIND_RATE:
        found = rate_report.document(job, made)
        show({**found, "trials": trials}, as_json, "\n".join([f"s{job.id} {job.state}", *rate_report.sentences(found)]))
        return
    text = "\n".join(_trial_text(trial) for trial in trials if trial["state"] == "finished")
    show(document, as_json, f"s{job.id} {job.state}{f': {job.error}' if job.error else ''}\n{text}".rstrip())


@study_app.command("cancel")
@verb
def study_cancel(study_id: str, as_json: Json = False) -> None:
    """Cancel a load test that waits or runs."""
    from tritune.store import Store, study_number

    store = Store(Settings.from_env().database_url)
    store.request_cancel(study_number(study_id))
    show({"study_id": study_id, "cancel_requested": True}, as_json, f"{study_id} is asked to end.")


# --- processes --------------------------------------------------------------------------------------------


@app.command("app")
@verb
def run_app(
    port: Annotated[int | None, typer.Option(help="Port of the app (default 8501, or the next free one).")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Also build MNIST, start Triton and the worker, and end them again.")
    ] = False,
) -> None:
    """Open the app on 127.0.0.1; Ctrl-C ends all that this started."""
    from tritune import launch

    raise typer.Exit(launch.run(Settings.from_env(), port=port, everything=everything, say=say))


@app.command("worker")
@verb
def run_worker(
    service: Annotated[bool, typer.Option("--service", help="Stay, even with nothing to do.")] = False,
) -> None:
    """Do the jobs of this installation (started by itself where it is needed)."""
    from tritune import worker

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if not worker.run(Settings.from_env(), service=service):
        say("Another worker of this installation is at work.")


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows fewer characters gets their numbers
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="tritune")


if __name__ == "__main__":
    main()
