"""`tritune sweep`: compare many configurations in fair rounds.

Belongs here: options, the preview, waiting. Never: what an option may look like (sweep_options), what the verb does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from tritune.cli.frame import Json, app, named, pairs, readable, say, show, verb, whole_numbers
from tritune.cli.measure import integer_ranges
from tritune.cli.study import wait_and_show
from tritune.errors import InputError
from tritune.plan import JobKind
from tritune.settings import Settings


@app.command("sweep")
@verb
def sweep(
    name: Annotated[str | None, typer.Argument(help="The model; a plan may name it.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan in TOML, or a Model Analyzer YAML.")] = None,
    preset: Annotated[str | None, typer.Option(help="A study that others made claims from (--preset list).")] = None,
    preferred_batch_size: Annotated[str | None, typer.Option(help='Such as "none;4;4,8".')] = None,
    max_queue_delay_us: Annotated[str | None, typer.Option(help="Microseconds, such as 0,100,1000.")] = None,
    max_batch_size: Annotated[str | None, typer.Option(help="Such as 8,32.")] = None,
    instances: Annotated[str | None, typer.Option(help="Model instances, such as 1,2.")] = None,
    batching: Annotated[str | None, typer.Option(help="Dynamic batching: on,off.")] = None,
    threads: Annotated[str | None, typer.Option(help="ONNX Runtime threads of an instance, such as 1,2.")] = None,
    knob: Annotated[list[str] | None, typer.Option("--set", help="KNOB=VALUES for further knobs.")] = None,
    concurrency: Annotated[str | None, typer.Option(help="Closed loop: clients, such as 1,8,32 or 1:32:4.")] = None,
    rate: Annotated[str | None, typer.Option(help="Open loop: requests per second, such as 100,500.")] = None,
    arrivals: Annotated[str | None, typer.Option(help="constant, poisson, or both.")] = None,
    protocol: Annotated[str | None, typer.Option(help="http, grpc, or both.")] = None,
    driver: Annotated[str | None, typer.Option(help="locust, perf_analyzer, or both.")] = None,
    batch: Annotated[str | None, typer.Option(help="Samples in one request, such as 1,4.")] = None,
    rounds: Annotated[int | None, typer.Option(help="At most so many (default 8).")] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds that each trial measures (default 10).")] = None,
    warmup: Annotated[float | None, typer.Option(help="Seconds before that (default 2).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of order, arrivals and payloads.")] = None,
    budget_min: Annotated[float | None, typer.Option(help="Minutes that it may take.")] = None,
    precision: Annotated[float | None, typer.Option(help="Stop when intervals are so narrow: 0.05 is ±5 %.")] = None,
    p99_ms: Annotated[float | None, typer.Option("--p99-ms", help="Best: most throughput with P99 up to this.")] = None,
    min_throughput: Annotated[float | None, typer.Option(help="Best: lowest P99 with at least this.")] = None,
    baseline: Annotated[str | None, typer.Option(help="served, or a trial such as t12.")] = None,
    search: Annotated[str | None, typer.Option(help="grid, or optuna.")] = None,
    share: Annotated[str | None, typer.Option(help="Name of an Optuna study that several machines fill.")] = None,
    switching: Annotated[str | None, typer.Option(help="auto, reload, or side-by-side.")] = None,
    stop_early: Annotated[bool | None, typer.Option("--stop-early/--all-rounds")] = None,
    workers: Annotated[int | None, typer.Option(help="Generator processes.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds until a request is given up.")] = None,
    shape: Annotated[list[str] | None, typer.Option(help="INPUT:12,8 for inputs with free dimensions.")] = None,
    int_range: Annotated[list[str] | None, typer.Option(help="INPUT:0:99 for integer inputs.")] = None,
    input_data: Annotated[Path | None, typer.Option(help="A perf_analyzer-style JSON file.")] = None,
    title: Annotated[str | None, typer.Option(help="What the study is called.")] = None,
    note: Annotated[str, typer.Option(help="Kept with the study.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be measured, and how long.")] = False,
    write_plan: Annotated[Path | None, typer.Option(help="Write the plan as TOML and measure nothing.")] = None,
    as_json: Json = False,
) -> None:
    """Compare configurations of a model in interleaved rounds, and say which is best under the objective.

    The exit code is 3 where no configuration met it.
    """
    from tritune.sweep_options import SweepOptions

    if plan is not None and preset is not None:
        raise InputError("--plan and --preset both are a whole study. Give one of them.")
    options = SweepOptions(
        preferred_batch_size=preferred_batch_size,
        max_queue_delay_us=max_queue_delay_us,
        max_batch_size=max_batch_size,
        instances=instances,
        batching=batching,
        threads=threads,
        knobs=pairs(knob, "--set"),
        concurrency=concurrency,
        rate=rate,
        arrivals=arrivals,
        batch=batch,
        protocol=protocol,
        driver=driver,
        rounds=rounds,
        duration_s=duration,
        warmup_s=warmup,
        seed=seed,
        budget_min=budget_min,
        precision=precision,
        p99_ms=p99_ms,
        min_throughput=min_throughput,
        baseline=baseline,
        search=search,
        switching=switching,
        stop_early=stop_early,
        share=None if share is None else readable(share, "--share"),
        title=None if title is None else readable(title, "--title"),
        request=_request(workers, timeout, shape, int_range, input_data),
    )
    start, model = _start(None if name is None else readable(name, "The model"), plan, preset)
    asked = options.plan(model, start)
    if write_plan is not None:
        from tritune import study_file

        write_plan.write_text(study_file.example(asked), encoding="utf-8")
        show({"plan": asked.to_dict(), "written": str(write_plan)}, as_json, f"The plan is in {write_plan}.")
        return
    _run(asked, readable(note, "--note"), dry_run, as_json)


def _run(asked: Any, note: str, dry_run: bool, as_json: bool) -> None:
    from tritune import jobs, study_ask
    from tritune.store import Store

    settings = Settings.from_env()
    payload, sentences = study_ask.prepare(settings, asked, note=note)
    if dry_run:
        show({**payload, "sentences": sentences}, as_json, "\n".join(sentences))
        return
    for sentence in sentences:
        say(sentence)
    store = Store.of(settings)
    job_id = jobs.submit(settings, store, JobKind.SWEEP, payload)
    say(f"This is study s{job_id}; `tritune study show s{job_id}` shows it at any time.")
    wait_and_show(settings, store, job_id, as_json)


def _start(name: str | None, plan: Path | None, preset: str | None) -> tuple[Any, str]:
    """The plan that the options change, if there is one, and the model's name."""
    if plan is not None:
        from tritune import study_file

        read = study_file.read(plan, name)
        for sentence in read.notes:
            say(sentence)
        return read.plan, name or read.plan.model
    if preset is not None:
        from tritune import presets

        chosen = presets.study(preset, name or "mnist")
        return chosen, chosen.model
    if name is None:
        raise InputError("Which model? `tritune sweep NAME …`, or a plan that names one: `--plan FILE`.")
    return None, name


def _request(
    workers: int | None,
    timeout: float | None,
    shape: list[str] | None,
    int_range: list[str] | None,
    input_data: Path | None,
) -> dict[str, Any]:
    """What every load shares, in the form of `LoadPlan.to_dict()`; only what was given."""
    request: dict[str, Any] = {}
    if workers is not None:
        request["workers"] = workers
    if timeout is not None:
        request["timeout_s"] = timeout
    if shape:
        shapes = named(shape, "--shape", "INPUT:12,8")
        request["shapes"] = {key: list(whole_numbers(value, f"--shape {key}")) for key, value in shapes}
    if int_range:
        request["int_ranges"] = {key: list(value) for key, value in integer_ranges(int_range).items()}
    if input_data is not None:
        request["input_data"] = str(input_data.absolute())
    return request
