"""Which configurations and loads a study measures, which are left out and why, and how long it will take (pure).

Belongs here: the expansion of a plan against the configuration that it starts from. Never: a plan's values and limits
(study_plan), Triton's rules (model_config), which candidates a round asks for (optuna_search), files, servers, clocks.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tritune import knobs, model_config
from tritune.analysis import configuration_features
from tritune.doubts import as_served
from tritune.errors import InputError
from tritune.load_plan import MAX_WORKERS, LoadPlan, describe_load
from tritune.model_config import ModelConfig
from tritune.model_rules import nearest
from tritune.plan import Configuration, TuneChange, whole
from tritune.study_plan import FIRST_LOOK, SearchMethod, StudyPlan

if TYPE_CHECKING:
    from tritune.onnx_model import OnnxModel

MAX_CANDIDATES = 1000
MAX_TRIALS = 20_000
MAX_COMBINATIONS = 20_000
"""Before equal ones are counted once and invalid ones left out."""
OVERHEAD_S = 4.0
"""What a trial takes beside warm-up and window: the configuration's turn, its warm-up by size, the generator's start,
and the numbers."""
ASKED = 4
"""How many configurations a search measures in a round beside the baseline."""

SHARED = (
    "shapes",
    "shape_mix",
    "int_ranges",
    "input_data",
    "timeout_s",
    "workers",
    "max_connections",
    "wire",
    "shared_memory",
    "compression",
    "grpc_stream",
    "check_share",
    "max_raw_samples",
)
"""The fields of a LoadPlan that StudyPlan.request may hold."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One configuration of a study. `change` makes it out of the baseline's; number 0 is the baseline itself."""

    number: int
    change: TuneChange
    configuration: Configuration
    label: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "number": self.number,
            "change": self.change.to_dict(),
            "configuration": self.configuration.to_dict(),
            "label": self.label,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Candidate:
        return cls(
            int(document["number"]),
            TuneChange.from_dict(document["change"]),
            Configuration.from_dict(document["configuration"]),
            str(document["label"]),
        )


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A combination that is not measured: the knobs (or the load) that were asked for, flat, and why."""

    configuration: Mapping[str, Any]
    reason: str

    def to_dict(self) -> dict[str, Any]:
        configuration = {name: list(v) if isinstance(v, tuple) else v for name, v in self.configuration.items()}
        return {"configuration": configuration, "reason": self.reason}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LeftOut:
        return cls(dict(document["configuration"]), str(document["reason"]))

    def describe(self) -> str:
        """What was asked for, such as `preferred_batch_size 4,8 · max_batch_size 4`."""
        return _knobs_words(self.configuration.items())


@dataclass(frozen=True, slots=True)
class Expansion:
    """What a plan comes to. `trials` and `expected_s` are those of all rounds, with the drift checks, as if nothing
    were left out on the way; `same` counts combinations that are equal to another one.
    """

    candidates: tuple[Candidate, ...]
    loads: tuple[LoadPlan, ...]
    left_out: tuple[LeftOut, ...]
    trials: int
    expected_s: float
    rounds: int
    trials_a_round: int
    same: int = 0
    notes: tuple[str, ...] = ()

    def sentences(self) -> list[str]:
        """The expansion in words: what is measured, how long it takes, what is left out and why."""
        what = f"{_count(len(self.candidates), 'configuration')} under {_count(len(self.loads), 'load')}"
        length = f"{_count(self.rounds, 'round')}, about {duration_words(self.expected_s)}"
        lines = [
            f"{what}: {_count(self.trials_a_round, 'trial')} a round, {length}.",
            *self.notes,
        ]
        if self.same:
            are = "combinations are" if self.same != 1 else "combination is"
            lines.append(f"{self.same} {are} equal to another one and measured once.")
        reasons: dict[str, list[LeftOut]] = {}
        for left_out in self.left_out:
            reasons.setdefault(left_out.reason, []).append(left_out)
        lines += [f"Left out: {_together(group)}. {reason}" for reason, group in reasons.items()]
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "loads": [load.to_dict() for load in self.loads],
            "left_out": [left_out.to_dict() for left_out in self.left_out],
            "rounds": self.rounds,
            "trials_a_round": self.trials_a_round,
            "trials": self.trials,
            "expected_s": self.expected_s,
            "sentences": self.sentences(),
        }


def expand(
    plan: StudyPlan, baseline: ModelConfig, onnx: OnnxModel | None, versions: Sequence[int] | None = None
) -> Expansion:
    """Every combination of the plan's axes, applied to `baseline`, which is candidate 0; equal ones once; what Triton
    would refuse is left out with its reason.

    `onnx` is the model's file, where it is known; `versions` are the versions that the repository holds, None: not
    known. Raises InputError where no load is left, the baseline cannot take the loads, or it is too much for a study.
    """
    loads, left_out = _loads(plan)
    refused = _refusal(baseline, loads)
    if refused is not None:
        raise InputError(f"The baseline cannot be measured under these loads: {refused}")
    size = math.prod(len(values) for values in _axes(plan).values())
    if size > MAX_COMBINATIONS:
        raise InputError(
            f"The plan has {size:,} combinations; a study takes {MAX_COMBINATIONS:,} at most. Give fewer values."
        )
    found: dict[Configuration, TuneChange] = {as_served(baseline.configuration): TuneChange()}
    configurations = [baseline.configuration]
    tried: set[tuple[Any, ...]] = set()
    same = 0
    for knobs_ in _combinations(plan):
        asked = _asked(knobs_)
        key = tuple(sorted((name, str(value)) for name, value in asked.items()))
        if key in tried:
            same += 1
            continue
        tried.add(key)
        try:
            change = _change(baseline, asked)
            config = model_config.change(baseline, change)
        except InputError as error:
            left_out.append(LeftOut(asked, str(error)))
            continue
        reason = _unservable(baseline, config, asked, onnx, versions) or _refusal(config, loads)
        if reason is not None:
            left_out.append(LeftOut(asked, reason))
            continue
        served = as_served(config.configuration)
        if served in found:
            same += served != as_served(baseline.configuration)
            continue
        found[served] = change
        configurations.append(config.configuration)
    return _sized(plan, configurations, list(found.values()), loads, left_out, same)


def duration_words(seconds: float) -> str:
    """A length in the words of a plan: `40 s`, `58 min`, `2 h 5 min`."""
    if seconds < 100:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def labels(configurations: Sequence[Configuration]) -> tuple[str, ...]:
    """A name for each configuration, made of what differs between them; of a single one, all that it is."""
    if len(configurations) == 1:
        return (configurations[0].describe(),)
    features = [configuration_features(configuration) for configuration in configurations]
    first = ("batching", "preferred", "delay", "max", "instances")
    order = [*first, *(name for name in knobs.KNOBS if any(name in found for found in features))]
    differing = [name for name in order if len({found.get(name) for found in features}) > 1]
    return tuple(
        " · ".join(words for name in differing if (words := _words(found, name))) or "as it is" for found in features
    )


def _together(group: Sequence[LeftOut]) -> str:
    """Combinations that are left out for one reason, by what they have in common."""
    if len(group) == 1:
        return group[0].describe()
    common = [
        (name, value)
        for name, value in group[0].configuration.items()
        if all(each.configuration.get(name) == value for each in group)
    ]
    return f"{len(group)} combinations with {_knobs_words(common)}" if common else f"{len(group)} combinations"


def _knobs_words(pairs: Iterable[tuple[str, Any]]) -> str:
    return " · ".join(f"{name} {_shown(value)}" for name, value in pairs)


def _words(found: Mapping[str, str], name: str) -> str | None:
    if name in found:
        return found[name]
    if name == "instances":
        return "instances by default"
    knob = knobs.KNOBS.get(name)
    if knob is None or (knob.needs_batching and "batching" in found):
        return None
    return f"{knob.label[0].lower()}{knob.label[1:]} by default"


def _axes(plan: StudyPlan) -> dict[str, tuple[Any, ...]]:
    """The knobs that a plan gives values for, in the order in which candidates are numbered."""
    space = plan.space
    for name in space.further:
        knobs.knob(name)
    axes: dict[str, tuple[Any, ...]] = {
        "max_batch_size": space.max_batch_size,
        "instance_count": space.instance_count,
        "dynamic_batching": space.dynamic_batching,
        "preferred_batch_size": space.preferred_batch_size,
        "max_queue_delay_microseconds": space.max_queue_delay_microseconds,
        **space.further,
    }
    return {name: values for name, values in axes.items() if values}


def _combinations(plan: StudyPlan) -> Iterator[dict[str, Any]]:
    axes = _axes(plan)
    for values in itertools.product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def _asked(combination: Mapping[str, Any]) -> dict[str, Any]:
    """A combination without what means nothing in it: knobs of the dynamic batcher where that is off."""
    if combination.get("dynamic_batching", True):
        return dict(combination)
    off = ("preferred_batch_size", "max_queue_delay_microseconds")
    return {
        name: value
        for name, value in combination.items()
        if name not in off and not (name in knobs.KNOBS and knobs.KNOBS[name].needs_batching)
    }


def _change(baseline: ModelConfig, asked: Mapping[str, Any]) -> TuneChange:
    """The change that makes a combination out of the baseline.

    A server that was given no preferred size reports [max_batch_size] as one; with another maximum that would be a
    preferred size that nobody asked for, and so it goes.
    """
    further = {name: value for name, value in asked.items() if name in knobs.KNOBS}
    values = {name: value for name, value in asked.items() if name not in further}
    now = baseline.configuration
    if (
        values.get("max_batch_size", 0) > 0
        and values.get("dynamic_batching", now.dynamic_batching)
        and now.dynamic_batching
        and not now.preferred_batch_size
    ):
        values.setdefault("preferred_batch_size", ())
    return TuneChange(**values, further=further)


def _unservable(
    baseline: ModelConfig,
    config: ModelConfig,
    asked: Mapping[str, Any],
    onnx: OnnxModel | None,
    versions: Sequence[int] | None,
) -> str | None:
    """Why Triton would refuse to load a configuration, None where it would not."""
    version = asked.get("model_version")
    if version is not None and versions is not None and version not in versions:
        known = ", ".join(str(each) for each in sorted(versions)) or "none"
        return f"The model has no version {version} (there are: {known})."
    # The file is the newest version's; what another version looks like is not known here.
    file = onnx if version is None else None
    known_faults = {(found.code, found.seen) for found in model_config.findings(baseline, file, None)}
    for finding in model_config.findings(config, file, None):
        if finding.severity == "error" and (finding.code, finding.seen) not in known_faults:
            return finding.sentence()
    return None


def _refusal(config: ModelConfig, loads: Iterable[LoadPlan]) -> str | None:
    """Why a configuration would refuse the requests of one of the loads."""
    limit = config.configuration.max_batch_size
    batch = max((load.batch for load in loads), default=1)
    if batch > max(limit, 1):
        return (
            f"Requests of {batch} samples are above max_batch_size {limit}; Triton refuses them and never splits them. "
            f"Use a client batch of {max(limit, 1)} or less."
        )
    return None


def _loads(plan: StudyPlan) -> tuple[tuple[LoadPlan, ...], list[LeftOut]]:
    """The loads of a plan, each once, and those that no generator can send."""
    wrong = next((name for name in plan.request if name not in SHARED), None)
    if wrong is not None:
        close = nearest(wrong, SHARED)
        advice = f"Did you mean {close}?" if close else f"There are: {', '.join(SHARED)}."
        raise InputError(f"request.{wrong} is nothing that the loads of a study share. {advice}")
    space, left_out = plan.loads, []
    arrivals = [{"concurrency": clients} for clients in space.concurrency] + [
        {"rate_rps": rate, "arrivals": process} for rate in space.rate_rps for process in space.arrivals
    ]
    found: dict[str, LoadPlan] = {}
    wires = [{"wire": wire} for wire in space.wire] or [{}]
    for driver, protocol, wire, batch, coming in itertools.product(
        space.driver, space.protocol, wires, space.batch, arrivals
    ):
        asked = {"driver": driver, "protocol": protocol, **wire, "batch": batch, **coming}
        try:
            load = _load(plan, asked)
        except InputError as error:
            left_out.append(LeftOut({name: _plain(value) for name, value in asked.items()}, str(error)))
            continue
        found.setdefault(describe_load(load.load()), load)
    if not found:
        reason = left_out[0].reason if left_out else "It names none."
        raise InputError(f"No load of the plan can be sent. {reason}")
    return tuple(found.values()), left_out


def _load(plan: StudyPlan, asked: Mapping[str, Any]) -> LoadPlan:
    base = LoadPlan(model=plan.model, concurrency=1).to_dict()
    values = base | {"concurrency": None} | dict(plan.request)
    values |= {name: _plain(value) for name, value in asked.items()}
    if not isinstance(values["input_data"], str | None):
        raise InputError(f"request.input_data={values['input_data']!r} must be the path of a file, as text.")
    try:
        workers = whole("workers", values["workers"], 1, MAX_WORKERS, "One generator process fills about one core.")
        values["workers"] = min(workers, asked.get("concurrency", workers))
        load = LoadPlan.from_dict(values)
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise InputError(
            f"The plan's request cannot be read: {error}. `tritune load --help` shows the values."
        ) from error
    return replace(
        load,
        duration_s=plan.duration_s,
        warmup_s=plan.warmup_s,
        seed=plan.seed,
        p99_limit_ms=plan.objective.p99_ms,
    )


def _sized(
    plan: StudyPlan,
    configurations: Sequence[Configuration],
    changes: Sequence[TuneChange],
    loads: tuple[LoadPlan, ...],
    left_out: Sequence[LeftOut],
    same: int,
) -> Expansion:
    """The expansion with its numbers. Raises InputError where it is too much for a study."""
    count = len(configurations)
    if count > MAX_CANDIDATES:
        raise InputError(
            f"The plan has {count:,} different configurations; a study takes {MAX_CANDIDATES:,} at most. Give fewer "
            "values."
        )
    a_round = min(count, 1 + ASKED) if plan.search is SearchMethod.OPTUNA else count
    cells = a_round * len(loads)
    trials = (cells + (cells > 1)) * plan.rounds
    if trials > MAX_TRIALS:
        raise InputError(
            f"The plan comes to {trials:,} trials ({count} configurations × {len(loads)} loads × {plan.rounds} "
            f"rounds); a study takes {MAX_TRIALS:,} at most. Give fewer values, loads or rounds."
        )
    trial_s = plan.warmup_s + plan.duration_s + OVERHEAD_S
    named = zip(changes, configurations, labels(configurations), strict=True)
    return Expansion(
        candidates=tuple(Candidate(number, *each) for number, each in enumerate(named)),
        loads=loads,
        left_out=tuple(left_out),
        trials=trials,
        expected_s=trials * trial_s,
        rounds=plan.rounds,
        trials_a_round=cells,
        same=same,
        notes=tuple(_notes(plan, count, cells, trial_s)),
    )


def _notes(plan: StudyPlan, count: int, cells: int, trial_s: float) -> Iterator[str]:
    """What else there is to know before it starts."""
    if plan.search is SearchMethod.OPTUNA and count > 1 + ASKED:
        yield f"Optuna chooses {ASKED} of them for each round; the baseline is in every round."
    if cells > 1:
        yield "Each round ends with its first trial measured again, which shows a drift of the machine."
    a_round_s = (cells + (cells > 1)) * trial_s
    if plan.budget_s is not None and plan.budget_s < a_round_s * plan.rounds:
        lasts = plan.budget_s / a_round_s
        yield (
            f"The budget of {duration_words(plan.budget_s)} ends it after about {math.floor(lasts)} rounds."
            if lasts >= 2
            else f"The budget of {duration_words(plan.budget_s)} is less than two rounds, so no verdict can be given."
        )
    elif plan.rounds >= FIRST_LOOK and plan.stop_early and count > 1:
        yield f"From round {FIRST_LOOK} on it may end sooner: what is clearly out is measured no further."
    if plan.rounds < FIRST_LOOK and count > 1:
        yield f"Fewer than {FIRST_LOOK} rounds show large differences at best."


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _plain(value: Any) -> Any:
    """A value as a document holds it: of an enum its text."""
    return str(value) if isinstance(value, str) else value


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(str(each) for each in value) or "none"
    return str(value)
