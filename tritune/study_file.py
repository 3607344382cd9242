"""A study's plan as a file that a team commits: TOML in and out, and Model Analyzer's YAML in.

Belongs here: which keys a plan's file has, their comments, reading with an error that names the key. Never: what the
values mean and their limits (study_plan), Model Analyzer's keys (model_analyzer), running anything.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from tritune import knobs, model_analyzer
from tritune.errors import InputError
from tritune.load_plan import Arrivals, Driver, Protocol, Wire
from tritune.model_rules import nearest
from tritune.study_plan import SearchMethod, StudyPlan, Switching

MAX_BYTES = 1_000_000
YAML = (".yaml", ".yml")

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan that was read from a file, and what of the file has no counterpart in it, a sentence each."""

    plan: StudyPlan
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Key:
    """One key of the file: what it is for, and what it could be where it is not set."""

    name: str
    comment: str
    sample: Any = None


_TOP = (
    _Key("model", "The model's name on the server."),
    _Key("title", "Shown in lists and reports."),
    _Key("rounds", "Every round measures each configuration once under each load; 3 or more for a verdict."),
    _Key("duration_s", "The measured time of one trial, seconds."),
    _Key("warmup_s", "Sent before it and not counted."),
    _Key("seed", "The same seed: the same order, arrivals and payloads."),
    _Key("budget_s", "The study ends when this time is spent, seconds.", 1800),
    _Key("precision", "It ends when every interval is at most so wide; 0.05 is ±5 %.", 0.05),
    _Key("stop_early", "From round 3 on, measure no further what is clearly out."),
    _Key("baseline", '"served": what the server serves when it begins; or a trial, such as "t12".'),
    _Key("search", '"grid": everything in each round; "optuna": it chooses.'),
    _Key("switching", '"auto", "side_by_side" or "reload": how configurations take turns.'),
    _Key("share", "Machines with one database fill this Optuna study together.", "mnist-on-cpu"),
)
_SPACE = (
    _Key("preferred_batch_size", "One list a configuration; [] is none.", [[], [4], [4, 8]]),
    _Key("max_queue_delay_microseconds", "How long the batcher may wait; 0 sends at once.", [0, 100, 1000]),
    _Key("max_batch_size", "The largest batch of one execution.", [8, 32]),
    _Key("instance_count", "How often the model is loaded.", [1, 2]),
    _Key("dynamic_batching", "false is without the batcher.", [True, False]),
)
_FURTHER = (
    _Key("intra_op_thread_count", "Any other knob of `tritune tune --list-knobs`.", [1, 2]),
    _Key("model_version", "Versions of the model against each other.", [1, 2]),
)
_LOADS = (
    _Key("concurrency", "Closed loop: requests in flight.", [1, 8, 32]),
    _Key("rate_rps", "Open loop: requests per second.", [100.0, 500.0]),
    _Key("arrivals", 'Of an open loop: "constant", "poisson".'),
    _Key("batch", "Samples in one request."),
    _Key("protocol", '"http", "grpc".'),
    _Key("driver", '"locust", "perf_analyzer".'),
    _Key("wire", 'Tensors in HTTP requests: "binary", "json".', ["binary", "json"]),
)
_OBJECTIVE = (
    _Key("p99_ms", "Highest throughput with at most this P99, milliseconds.", 10.0),
    _Key("min_throughput_ips", "Lowest P99 with at least so many inferences per second.", 1000.0),
)
_REQUEST = (
    _Key("shapes", "Sizes of variable dimensions, by input.", {"INPUT": [12, 8]}),
    _Key("shape_mix", "Several shapes, by weight.", [{"shapes": {"INPUT": [12, 8]}, "weight": 1}]),
    _Key("int_ranges", "Random whole numbers from … to …, by input.", {"INPUT": [0, 99]}),
    _Key("input_data", "A file of samples.", "samples.json"),
    _Key("timeout_s", "A request without an answer has failed after so long.", 10.0),
    _Key("workers", "Generator processes.", 1),
    _Key("max_connections", "The most that an open loop opens.", 512),
    _Key("wire", '"binary" or "json", where [loads] does not say it.', "binary"),
    _Key("shared_memory", '"none" or "system".', "none"),
    _Key("compression", 'HTTP bodies: "none", "gzip" or "deflate".', "none"),
    _Key("grpc_stream", "One gRPC stream instead of single calls.", False),
    _Key("check_share", "The share of answers that are decoded and checked.", 0.0),
    _Key("max_raw_samples", "More requests than this are kept as a histogram.", 20_000_000),
)
_SECTIONS = {
    "space": (
        "What is varied; every combination is one configuration. What is not named stays as the baseline.",
        _SPACE,
    ),
    "loads": ("Each configuration meets each of these.", _LOADS),
    "objective": (
        "What the best configuration is; with neither: highest throughput, or lowest P99 at a rate.",
        _OBJECTIVE,
    ),
    "request": ("What every load shares.", _REQUEST),
}
_CHOICES: Mapping[str, type[StrEnum]] = {
    "arrivals": Arrivals,
    "protocol": Protocol,
    "driver": Driver,
    "wire": Wire,
    "search": SearchMethod,
    "switching": Switching,
}


def read(path: Path, model: str | None = None) -> PlanFile:
    """The plan in a TOML file, or in a Model Analyzer YAML. `model` stands for a missing name, and chooses one of
    several in a YAML.

    Raises InputError with the file, the key and the right one.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"The plan {path} could not be read: {error.strerror or error}.") from error
    if len(data) > MAX_BYTES:
        raise InputError(
            f"The plan {path} has {len(data):,} bytes; a plan has {MAX_BYTES:,} at most. Is it the right file?"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"The plan {path} is not UTF-8 text (byte {error.start}). Is it the right file?") from error
    if path.suffix.lower() in YAML:
        found = model_analyzer.parse(text, str(path), model)
        return PlanFile(_beside(found.plan, path), found.notes)
    return PlanFile(_beside(parse(text, str(path), model), path))


def parse(text: str, source: str = "The plan", model: str | None = None) -> StudyPlan:
    """The plan in a TOML text; `source` is what an error calls it. Raises InputError."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{source} is not TOML: {error}. Strings want quotes, lists brackets.") from error
    values = _known(document, [key.name for key in _TOP] + list(_SECTIONS), source, "")
    for name in _SECTIONS:
        if not isinstance(values.setdefault(name, {}), dict):
            raise InputError(f"{source}: {name} is a section. Write [{name}] and its keys below.")
    named = values.setdefault("model", model)
    if not isinstance(named, str) or not named:
        raise InputError(f'{source} names no model. Write model = "NAME" at its top.')
    if model is not None and named != model:
        raise InputError(f"{source} is a plan for {named}, not for {model}. Change its model, or take the line out.")
    values["space"] = _space(values["space"], source)
    values["loads"] = _loads(values["loads"], source)
    values["objective"] = _known(values["objective"], [key.name for key in _OBJECTIVE], source, "objective")
    values["request"] = _known(values["request"], [key.name for key in _REQUEST], source, "request")
    for name, kind in (("title", str), ("share", str), ("baseline", str), ("stop_early", bool)):
        if name in values and not isinstance(values[name], kind):
            raise InputError(
                f"{source}: {name} = {values[name]} must be {'a text' if kind is str else 'true or false'}."
            )
    for name in ("search", "switching"):
        if name in values:
            values[name] = _choice(values[name], name, source)
    try:
        return StudyPlan.from_dict(values)
    except InputError as error:
        raise InputError(f"{source}: {error}") from error


def write(plan: StudyPlan) -> str:
    """The plan as TOML with a comment at each key, such that `parse` gives the same plan."""
    return _text(plan, with_samples=False)


def example(plan: StudyPlan) -> str:
    """`write`, with every key that the plan leaves out as a comment that can be switched on."""
    return _text(plan, with_samples=True)


def _beside(plan: StudyPlan, path: Path) -> StudyPlan:
    """The plan with its file of samples found from where the plan lies."""
    data = plan.request.get("input_data")
    if not isinstance(data, str):
        return plan
    return replace(plan, request={**plan.request, "input_data": str((path.parent / data).absolute())})


# --- reading ----------------------------------------------------------------------------------------------------------


def _known(values: Mapping[str, Any], names: Iterable[str], source: str, section: str) -> Document:
    """`values` where each key is one of `names`. Raises InputError with the nearest right one."""
    names = list(names)
    where = f"[{section}] " if section else ""
    for name in values:
        if name not in names:
            close = nearest(name, names)
            home = next((s for s, (_, keys) in _SECTIONS.items() if name in [key.name for key in keys]), None)
            if home is not None and home != section:
                advice = f"It belongs below [{home}]."
            elif section and name in [key.name for key in _TOP]:
                advice = "It belongs at the top, before the first section."
            else:
                advice = f"Did you mean {close}?" if close else f"There are: {', '.join(names)}."
            raise InputError(f"{source}: {where}{name} is unknown. {advice}")
    return dict(values)


def _space(values: Mapping[str, Any], source: str) -> Document:
    ours = [key.name for key in _SPACE]
    found: Document = _known(values, [*ours, *knobs.KNOBS], source, "space")
    found = {name: _list(value) for name, value in found.items()}
    for sizes in found.get("preferred_batch_size", ()):
        if not isinstance(sizes, list):
            raise InputError(
                f"{source}: [space] preferred_batch_size wants one list a configuration: [[4, 8]] is one with two "
                "preferred sizes, [[4], [8]] are two, [[]] is none."
            )
    for value in found.get("dynamic_batching", ()):
        if not isinstance(value, bool):
            raise InputError(f"{source}: [space] dynamic_batching = {value} must be true or false.")
    further = {name: found.pop(name) for name in list(found) if name not in ours}
    for name, axis in further.items():
        for value in axis:
            try:
                knobs.check(name, value)
            except InputError as error:
                raise InputError(f"{source}: [space] {error}") from error
    return {**found, "further": further}


def _loads(values: Mapping[str, Any], source: str) -> Document:
    found = _known(values, [key.name for key in _LOADS], source, "loads")
    found = {name: _list(value) for name, value in found.items()}
    for name in ("arrivals", "protocol", "driver", "wire"):
        if name in found:
            found[name] = [_choice(value, name, source) for value in found[name]]
    if "concurrency" not in found and "rate_rps" not in found:
        raise InputError(f"{source} names no load. Write concurrency = [1, 8] or rate_rps = [100.0] below [loads].")
    return found


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


def _choice(value: Any, name: str, source: str) -> str:
    names = [str(each) for each in _CHOICES[name] if each is not Arrivals.REPLAY]
    if value in names:
        return str(value)
    close = nearest(str(value), names)
    advice = f"Did you mean {close}?" if close else f"It is one of {', '.join(names)}."
    raise InputError(f"{source}: {name} = {value} is unknown. {advice}")


# --- writing ----------------------------------------------------------------------------------------------------------


def _text(plan: StudyPlan, *, with_samples: bool) -> str:
    document = plan.to_dict()
    further = document["space"].pop("further")
    lines = ["# A study's plan: tritune sweep NAME --plan THIS_FILE", ""]
    lines += _lines(_TOP, document, with_samples)
    for name, (comment, keys) in _SECTIONS.items():
        values = document[name]
        extra: tuple[_Key, ...] = ()
        if name == "space":
            values = {key: value for key, value in values.items() if value} | further
            more = tuple(_Key(knob, knobs.KNOBS[knob].label + ".") for knob in further if knob in knobs.KNOBS)
            extra = (*more, *(key for key in _FURTHER if key.name not in further))
        if name == "loads":
            values = {key: value for key, value in values.items() if value}
        section = _lines((*keys, *extra), values, with_samples)
        if section:
            lines += ["", f"[{name}]  # {comment}", *section]
    return "\n".join(lines) + "\n"


def _lines(keys: Iterable[_Key], values: Mapping[str, Any], with_samples: bool) -> list[str]:
    written = []
    for key in keys:
        value = values.get(key.name)
        if value is not None and value != "":
            written.append((f"{key.name} = {_toml(value)}", key.comment))
        elif with_samples and key.sample is not None:
            written.append((f"# {key.name} = {_toml(key.sample)}", key.comment))
    width = min(max((len(text) for text, _ in written), default=0), 48)
    return [f"{text:<{width}}  # {comment}" for text, comment in written]


def _toml(value: Any) -> str:
    import tomlkit

    if isinstance(value, Mapping):
        pairs = (f"{tomlkit.key(name).as_string()} = {_toml(each)}" for name, each in value.items())
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return str(tomlkit.item(value).as_string())
