"""The sweep page's form: from widgets, a preset or a plan's file to a StudyPlan, and what it would come to.

Belongs here: widgets and their texts. Never: what a text may look like (sweep_options), which combinations exist
(study_space), a study that runs (sweep_live).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from tritune import model_analyzer, presets, study_ask, study_file, ui
from tritune.errors import InputError, TrituneError
from tritune.load_plan import Arrivals, Driver, Protocol
from tritune.plan import JobKind
from tritune.presets import PresetKind
from tritune.study_plan import LoadSpace, SearchSpace, StudyPlan
from tritune.study_space import LeftOut
from tritune.sweep_options import SweepOptions
from tritune.ui import results_view, study_actions, wording

THREADS, VERSION = "intra_op_thread_count", "model_version"
SEARCHES = {"grid": "Every configuration", "optuna": "Optuna chooses"}
TURNS = {"auto": "Where fair, side by side", "side_by_side": "Side by side", "reload": "Reload in turn"}
KEPT: Any = {"persist_state": "session"}
REST, SAID = "sweep_rest", "sweep_said"
"""The session's plan beneath the form (what has no widget is in it), and what was said about the last file."""


# --- from a plan to the widgets -------------------------------------------------------------------------------------


def texts(plan: StudyPlan) -> dict[str, Any]:
    """The widgets' values that make the plan, by their names."""
    space, loads, objective = plan.space, plan.loads, plan.objective
    further = dict(space.further)
    return {
        "sizes": ";".join(_list(sizes) or "none" for sizes in space.preferred_batch_size),
        "delays": _list(space.max_queue_delay_microseconds),
        "max": _list(space.max_batch_size),
        "instances": _list(space.instance_count),
        "batching": ["on" if value else "off" for value in space.dynamic_batching],
        "threads": _list(further.pop(THREADS, ())),
        "version": _list(further.pop(VERSION, ())),
        "knobs": "\n".join(f"{name}={_list(values, ';')}" for name, values in further.items()),
        "concurrency": _list(loads.concurrency),
        "rate": _list(f"{rate:g}" for rate in loads.rate_rps),
        "arrivals": [str(value) for value in loads.arrivals],
        "protocol": [str(value) for value in loads.protocol],
        "driver": [str(value) for value in loads.driver],
        "batch": _list(loads.batch),
        "p99": objective.p99_ms,
        "least": objective.min_throughput_ips,
        "rounds": plan.rounds,
        "duration": float(plan.duration_s),
        "warmup": float(plan.warmup_s),
        "seed": plan.seed,
        "budget": plan.budget_s / 60 if plan.budget_s else None,
        "precision": 100 * plan.precision if plan.precision else None,
        "search": str(plan.search),
        "switching": str(plan.switching),
        "early": plan.stop_early,
        "title": plan.title,
        "baseline": plan.baseline,
    }


def _list(values: Iterable[Any], between: str = ",") -> str:
    return between.join(("on" if value else "off") if isinstance(value, bool) else str(value) for value in values)


def first(model: str) -> StudyPlan:
    """What the form begins with: no preferred size and two lists, two delays, three loads."""
    space = SearchSpace(preferred_batch_size=((), (4, 8)), max_queue_delay_microseconds=(0, 1000))
    return StudyPlan(model, space, LoadSpace(concurrency=(1, 8, 32)))


def fill(plan: StudyPlan) -> None:
    """Let the widgets show the plan."""
    st.session_state[REST] = plan
    for name, value in texts(plan).items():
        st.session_state[f"sweep_{name}"] = value


def begin(model: str) -> StudyPlan:
    """The plan beneath the form; a new session begins with one for the model."""
    if REST not in st.session_state or st.session_state[REST].model != model:
        plan, pinned = first(model), study_actions.pinned()
        is_ours = pinned is not None and pinned.model == model
        fill(replace(plan, baseline=pinned.trial_id) if pinned is not None and is_ours else plan)
    found: StudyPlan = st.session_state[REST]
    return found


# --- plans from elsewhere -------------------------------------------------------------------------------------------


def sources(model: str) -> None:
    """Presets, and a plan's file to begin with."""
    with st.expander("Begin with a preset or a plan's file", icon=":material/folder_open:"):
        left, right = st.columns(2, gap="medium")
        name = left.selectbox("Preset", list(presets.PRESETS), format_func=lambda name: presets.PRESETS[name].title)
        chosen = presets.PRESETS[name]
        left.markdown(f"**The claim:** {wording.plain(chosen.claim)}")
        left.caption(f"What is measured: {wording.plain(chosen.measured)}")
        if chosen.kind is PresetKind.STUDY:
            left.button("Use this preset", on_click=lambda: fill(chosen.plan(model)))
        else:
            _reload_preset(left, model)
        right.file_uploader(
            "A plan in TOML, or a Model Analyzer YAML",
            ["toml", "yaml", "yml"],
            key="sweep_upload",
            on_change=_read_upload,
            args=(model,),
        )
        right.caption("Download the plan below and commit it; `tritune sweep --plan FILE` runs the same study.")
    for kind, text in st.session_state.get(SAID, ()):
        (st.error if kind == "error" else st.info)(wording.plain(text))


def _reload_preset(where: Any, model: str) -> None:
    """The preset that is no study: a small change, whose reload is measured; the tune page shows the stall and undoes
    it."""
    served = ui.served_configuration(model)
    unable = served is None or ui.is_elsewhere() or ui.active() is not None
    if where.button("Reload and measure the stall", icon=":material/restart_alt:", disabled=unable) and served:
        change = presets.reload_change(served)
        ui.submit(JobKind.TUNE, {"model": model, "change": change.to_dict(), "undo": False}, to="pages/tune.py")


def _read_upload(model: str) -> None:
    """The uploaded plan becomes the form; what has no counterpart in it, or why it is none, is said."""
    upload = st.session_state.get("sweep_upload")
    st.session_state[SAID] = []
    if upload is None:
        return
    try:
        text = upload.getvalue()[: study_file.MAX_BYTES].decode("utf-8-sig")
        if upload.name.lower().endswith(study_file.YAML):
            found = model_analyzer.parse(text, upload.name, None)
            plan, notes = found.plan, found.notes
        else:
            plan, notes = study_file.parse(text, upload.name, None if "model" in text else model), ()
    except UnicodeDecodeError:
        st.session_state[SAID] = [("error", f"{upload.name} is not UTF-8 text. Is it the right file?")]
    except TrituneError as error:
        st.session_state[SAID] = [("error", str(error))]
    else:
        st.session_state["model_choice"] = plan.model
        fill(plan)
        st.session_state[SAID] = [("info", note) for note in notes]


# --- the form -------------------------------------------------------------------------------------------------------


def form() -> dict[str, Any]:
    """The widgets; returns their values by name."""
    values: dict[str, Any] = {}

    def text(where: Any, name: str, label: str, example: str, help: str | None = None) -> None:
        values[name] = where.text_input(
            label, key=f"sweep_{name}", placeholder=example, help=help, live=True, **KEPT
        ).strip()

    def some(where: Any, name: str, label: str, options: Mapping[str, str]) -> None:
        values[name] = where.pills(
            label, list(options), selection_mode="multi", format_func=options.__getitem__, key=f"sweep_{name}", **KEPT
        )

    def count(where: Any, name: str, label: str, help: str | None = None, **more: Any) -> None:
        values[name] = where.number_input(label, key=f"sweep_{name}", help=help, **more, **KEPT)

    with st.container(border=True):
        st.markdown("**What is varied** — every combination is one configuration; empty stays as the baseline has it")
        with st.grid(4, min_column_width=200, gap="small") as place:
            text(place, "sizes", "Preferred batch sizes", "none;4;4,8", "Semicolons between lists; none: no size.")
            text(place, "delays", "Max queue delay, µs", "0,100,1000")
            text(place, "max", "Max batch size", "8,32")
            text(place, "instances", "Instances", "1,2")
            some(place, "batching", "Dynamic batching", {"on": "on", "off": "off"})
            text(place, "threads", "ONNX Runtime threads", "1,2", "Threads within an operator, for each instance.")
            text(place, "version", "Model version", "1,2", "Two exports or precisions against each other.")
        with st.expander("Further knobs"):
            values["knobs"] = st.text_area(
                "One a line, values with commas",
                key="sweep_knobs",
                placeholder="inter_op_thread_count=1,2",
                help="The same names as on the command line; `tritune tune --list-knobs` lists them.",
                **KEPT,
            )
    with st.container(border=True):
        st.markdown("**Loads** — each configuration meets each of these")
        with st.grid(4, min_column_width=200, gap="small") as place:
            text(place, "concurrency", "Clients (closed loop)", "1,8,32", "Or start:end:step, such as 1:32:4.")
            text(place, "rate", "Requests per second (open loop)", "100,500")
            some(place, "arrivals", "Arrivals at a rate", {"constant": "constant", "poisson": "poisson"})
            text(place, "batch", "Samples in a request", "1")
            some(place, "protocol", "Protocol", {"http": "HTTP", "grpc": "gRPC"})
            some(place, "driver", "Generator", {"locust": "Locust", "perf_analyzer": "perf_analyzer"})
    with st.container(border=True):
        st.markdown("**Objective and rounds**")
        with st.grid(4, min_column_width=200, gap="small") as place:
            count(place, "p99", "P99 at most, ms", "Then the best has the highest throughput.", placeholder="no limit")
            count(
                place, "least", "Inferences/s at least", "Alone: the best has the lowest P99.", placeholder="no limit"
            )
            count(place, "rounds", "Rounds", "Each measures every configuration once; 3 or more for a verdict.", step=1)
            count(place, "duration", "Measure for, s", step=1.0, format="%g")
            count(place, "warmup", "Warm up for, s", step=1.0, format="%g")
            count(place, "budget", "At most, min", placeholder="no limit", format="%g")
            values["baseline"] = _baseline(place)
            text(place, "title", "Title", "optional")
        with (
            st.expander("Seed, precision, search, how configurations take turns"),
            st.grid(4, min_column_width=200, gap="small") as place,
        ):
            count(place, "seed", "Seed", step=1)
            count(
                place,
                "precision",
                "Precision wanted, ± %",
                "Ends when every interval is so narrow.",
                format="%g",
                placeholder="none",
            )
            for name, label, options in (("search", "Search", SEARCHES), ("switching", "Turns", TURNS)):
                values[name] = place.selectbox(
                    label, list(options), format_func=options.__getitem__, key=f"sweep_{name}", **KEPT
                )
            values["early"] = place.toggle("Stop early", key="sweep_early", help="Leave out what is clearly out.")
    return values


def _baseline(where: Any) -> str:
    """The configuration that the others are compared with: what is served, the pinned load test, or the plan's."""
    pinned = study_actions.pinned()
    options = {"served": "what is served now"}
    if pinned is not None:
        options[pinned.trial_id] = f"pinned: {results_view.trial_label(pinned)}"
    kept = st.session_state.get("sweep_baseline", "served")
    options.setdefault(kept, f"load test {kept}")
    chosen: str = where.selectbox(
        "Baseline", list(options), format_func=options.__getitem__, key="sweep_baseline", **KEPT
    )
    return chosen


def plan(values: Mapping[str, Any], rest: StudyPlan) -> StudyPlan | None:
    """The plan of the widgets over what has no widget, or None with the reason on the page."""
    try:
        return plan_of(values, rest)
    except InputError as error:
        st.error(wording.plain(str(error)), icon=":material/error:")
        return None


def plan_of(values: Mapping[str, Any], rest: StudyPlan) -> StudyPlan:
    """Raises InputError with the field, the value and what it may look like."""
    if not values["concurrency"] and not values["rate"]:
        raise InputError("A study needs a load. Give at least one number of clients or one rate.")
    knobs = {}
    for line in filter(None, map(str.strip, values["knobs"].splitlines())):
        name, equals, text = line.partition("=")
        if not equals:
            raise InputError(f"The knob {line!r} must be NAME=VALUES, such as inter_op_thread_count=1,2.")
        knobs[name.strip()] = text.strip()
    if values["version"]:
        knobs[VERSION] = values["version"]
    options = SweepOptions(
        preferred_batch_size=values["sizes"] or None,
        max_queue_delay_us=values["delays"] or None,
        max_batch_size=values["max"] or None,
        instances=values["instances"] or None,
        batching=",".join(values["batching"]) or None,
        threads=values["threads"] or None,
        knobs=knobs,
        concurrency=values["concurrency"] or None,
        rate=values["rate"] or None,
        arrivals=",".join(values["arrivals"]) or None if values["rate"] else None,
        batch=values["batch"] or None,
        protocol=",".join(values["protocol"]) or None,
        driver=",".join(values["driver"]) or None,
        rounds=None if values["rounds"] is None else int(values["rounds"]),
        duration_s=values["duration"],
        warmup_s=values["warmup"],
        seed=None if values["seed"] is None else int(values["seed"]),
        p99_ms=values["p99"],
        min_throughput=values["least"],
        budget_min=values["budget"],
        precision=None if values["precision"] is None else values["precision"] / 100,
        baseline=values["baseline"],
        search=values["search"],
        switching=values["switching"],
        stop_early=values["early"],
        title=values["title"],
    )
    empty = StudyPlan(rest.model, loads=rest.loads, request=rest.request, share=rest.share)
    kept = replace(empty.loads, protocol=(Protocol.HTTP,), driver=(Driver.LOCUST,), batch=(1,))
    return options.plan(rest.model, replace(empty, loads=replace(kept, arrivals=(Arrivals.CONSTANT,))))


# --- before it starts -----------------------------------------------------------------------------------------------


@st.cache_data(ttl=20.0, max_entries=16, show_spinner=False)
def _prepared(results: str, revision: str, asked: str) -> tuple[dict[str, Any], list[str]]:
    return study_ask.prepare(ui.settings(), StudyPlan.from_dict(json.loads(asked)))


def preview(asked: StudyPlan) -> dict[str, Any] | None:
    """What the plan comes to: configurations, trials, time, what is left out and why; None where it cannot be run."""
    revision = str(ui.server_status().endpoints)
    try:
        payload, sentences = _prepared(str(ui.settings().results), revision, json.dumps(asked.to_dict()))
    except InputError as error:
        st.error(wording.plain(str(error)), title="This plan cannot be measured", icon=":material/error:")
        return None
    st.markdown("\n\n".join(wording.plain(line) for line in sentences if not line.startswith("Left out:")))
    left_out = [LeftOut.from_dict(row) for row in payload["left_out"]]
    with st.expander(f"The {len(payload['candidates'])} configurations"):
        st.markdown("\n".join(f"1. {wording.plain(each['label'])}" for each in payload["candidates"]))
    if left_out:
        with st.expander(f"Left out: {len(left_out)}", icon=":material/block:", expanded=len(left_out) <= 4):
            rows = [{"Left out": each.describe(), "Why": each.reason} for each in left_out]
            columns = {"Why": st.column_config.TextColumn(width="large")}
            st.dataframe(rows, hide_index=True, column_config=columns, alt="What is left out, and why")
    return payload


def start(asked: StudyPlan | None, payload: dict[str, Any] | None) -> None:
    """The page's primary button; the plan as a file beside it."""
    ready = ui.is_ready() and ui.active() is None
    with st.container(horizontal=True, vertical_alignment="center"):
        pressed = st.button(
            "Start the study", type="primary", icon=":material/play_arrow:", disabled=payload is None or not ready
        )
        if asked is not None:
            text = study_file.example(asked)
            st.download_button(
                "Download the plan", text, f"{asked.model}-study.toml", icon=":material/download:", on_click="ignore"
            )
        if ui.is_ready() and ui.active() is not None:
            st.caption("Something is running; the study can start when it is over.", width="content")
    if pressed and payload is not None:
        ui.submit(JobKind.SWEEP, payload)
