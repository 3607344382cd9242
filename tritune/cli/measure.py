"""`tritune tune`, `load`, `compare`: change a configuration, measure it, hold trials against each other.

Belongs here: options, waiting, printing. Never: what the verbs do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tritune.arrival_plan import parse_intervals, parse_stages
from tritune.cli.frame import (
    MISSED,
    Json,
    app,
    pairs,
    readable,
    require,
    run_job,
    say,
    show,
    verb,
    whole_numbers,
)
from tritune.errors import InputError
from tritune.load_plan import Arrivals, Compression, Driver, LoadPlan, Protocol, SharedMemory, Wire, describe_load
from tritune.plan import JobKind, JobState, TuneChange
from tritune.settings import Settings
from tritune.shape_mix import parse_shapes

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
    threads: Annotated[int | None, typer.Option(help="ONNX Runtime's threads of each instance.")] = None,
    set_knob: Annotated[
        list[str] | None, typer.Option("--set", help="KNOB=VALUE, such as model_version=2; VALUE none removes it.")
    ] = None,
    list_knobs: Annotated[
        bool, typer.Option("--list-knobs", help="List what --set knows, and change nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the change and write nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Serve what was served before the last tune.")] = False,
    without_stall: Annotated[
        bool, typer.Option("--without-stall", help="Load the new one beside the old, for more memory.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Change a model's configuration, reload it, and verify what is served; what is not given stays as it is."""
    from tritune import deploy, knobs, servers
    from tritune.repository import ModelRepository

    if list_knobs:
        listed = list(knobs.KNOBS.values())
        show({"knobs": [knob.to_dict() for knob in listed]}, as_json, "\n".join(knob.line() for knob in listed))
        return
    settings = Settings.from_env()
    change = TuneChange(
        preferred_batch_size=None
        if preferred_batch_size is None
        else whole_numbers(preferred_batch_size, "preferred_batch_size"),
        max_queue_delay_microseconds=max_queue_delay_us,
        max_batch_size=max_batch_size,
        instance_count=instances,
        dynamic_batching=dynamic_batching,
        further=({} if threads is None else {"intra_op_thread_count": threads})
        | {knob: knobs.parse(knob, text) for knob, text in pairs(set_knob, "--set").items()},
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
    asked = {"model": name, "change": change.to_dict(), "undo": undo, "without_stall": without_stall}
    job, _ = run_job(JobKind.TUNE, asked)
    require(job)
    result = dict(job.result)
    for difference in result["differences"]:
        say(f"Not in effect: {difference}")
    stall = f"{result['stall_ms']:.0f} ms" if result["stall_ms"] is not None else f"unknown ({result['stall_reason']})"
    memory = result.get("memory")
    cost = f", memory {memory['before_mib']:.0f} MiB, {memory['peak_mib']:.0f} MiB meanwhile" if memory else ""
    show(
        result,
        as_json,
        f"{result['diff'] or 'The file did not change.'}\n"
        f"reloaded in {result['reload_ms']:.0f} ms, longest stall {stall}{cost}, "
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
    shape: Annotated[
        list[str] | None, typer.Option(help="INPUT:12,8 for free dimensions; several are mixed, INPUT:128@3.")
    ] = None,
    int_range: Annotated[list[str] | None, typer.Option(help="INPUT:0:99 for integer inputs.")] = None,
    input_data: Annotated[Path | None, typer.Option(help="A JSON, .npy, .npz or image file, or a folder.")] = None,
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
    shapes, shape_mix = parse_shapes(shape or [])
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
        shapes=shapes,
        shape_mix=shape_mix,
        int_ranges=integer_ranges(int_range or []),
        input_data=str(input_data.absolute()) if input_data else None,
        p99_limit_ms=p99_ms,
    )
    payload = {"plan": plan.to_dict(), "labels": pairs(label, "--label"), "note": readable(note, "--note")}
    if find_rate:
        _find_rate(plan, payload, precision, budget_min, as_json)
        return
    jobs.check_load(Settings.from_env(), plan)
    job, store = run_job(JobKind.LOAD_TEST, payload)
    trial_id = (job.result or {}).get("trial_id")
    if job.state is not JobState.FINISHED and trial_id and as_json:
        show(store.trial(trial_id).to_dict(), True, "")
        say(job.error or f"This ended {job.state}.")
        raise typer.Exit(1)
    require(job)
    trial = store.trial(trial_id)
    show(trial.to_dict(), as_json, trial_text(trial.to_dict()))
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
    job, store = run_job(JobKind.FIND_RATE, {**payload, "goal": goal.to_dict()})
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


def integer_ranges(values: list[str]) -> dict[str, tuple[int, int]]:
    """`INPUT:0:99` of every value. Raises InputError."""
    ranges = {}
    for value in values:
        parts = value.rsplit(":", 2)
        try:
            ranges[parts[0]] = (int(parts[1]), int(parts[2]))
        except (IndexError, ValueError):
            raise InputError(f"--int-range {value!r} must look like INPUT:0:99.") from None
    return ranges


def trial_text(document: Mapping[str, Any]) -> str:
    """A finished trial as a person reads it."""
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
    trials: Annotated[list[str], typer.Argument(help="A study (s7), or several studies and trials (t1 t2).")],
    baseline: Annotated[
        str | None, typer.Option(help="The trial to compare with (default: the first, or the study's).")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write the comparison as an HTML report.")] = None,
    as_json: Json = False,
) -> None:
    """Compare trials or studies with a baseline, ratio by ratio; verdicts within one study only."""
    from tritune import analysis, compared
    from tritune.cli.study import study_lines
    from tritune.store import Store

    if html is not None and html.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--html {html.name} must end in .html. `tritune study export` writes other forms.")
    store = Store.of(Settings.from_env())
    is_of_studies = any(compared.is_study(name) for name in trials)
    if is_of_studies or html is not None:
        job, document = compared.compared(store, trials, baseline)
        if html is not None:
            from tritune import exports

            exports.export(job, document, html)
            say(f"{html} is written.")
        if is_of_studies:
            show(document, as_json, "\n".join(study_lines(document)))
            return
    chosen = [store.trial(trial_id) for trial_id in trials]
    comparison = analysis.compare(chosen, store.trial(baseline).trial_id if baseline else chosen[0].trial_id)
    show(
        {"trials": [trial.to_dict() for trial in chosen], **comparison.to_dict()},
        as_json,
        "\n".join([trial_text(trial.to_dict()) for trial in chosen] + comparison.sentences()),
    )
