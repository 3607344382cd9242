"""A Model Analyzer YAML (`model-analyzer profile -f FILE`) as a plan: what maps is mapped, the rest is named (pure).

Belongs here: Model Analyzer's keys and what they are in a StudyPlan. Never: our own file (study_file), its CSV files,
files as such, running anything.

Source: Model Analyzer docs/config.md and docs/config_search.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tritune import knobs
from tritune.errors import InputError
from tritune.load_plan import Arrivals, Protocol
from tritune.study_plan import LoadSpace, Objective, SearchMethod, SearchSpace, StudyPlan

MAX_VALUES = 1000
SEARCHED_CLIENTS = (1, 4, 16, 64)
"""Concurrencies where a file leaves the choice to Model Analyzer, which would double them from 1 to 1024."""

_SERVER = ("triton_", "gpus", "reload_model_disable", "cpu_only", "client_max_retries", "model_repository", "bls_")
_RESULTS = (
    "checkpoint_directory",
    "output_model_repository_path",
    "override_output_model_repository",
    "export_path",
    "filename_",
    "skip_",
    "num_",
    "_output_fields",
    "plots",
    "report_",
    "perf_output",
    "always_report_gpu_metrics",
)
_USED = (
    "profile_models",
    "concurrency",
    "batch_sizes",
    "request_rate",
    "client_protocol",
    "constraints",
    "objectives",
    "latency_budget",
    "min_throughput",
    "perf_analyzer_flags",
    "run_config_search_disable",
    "run_config_search_mode",
    "run_config_search_max_concurrency",
    "run_config_search_min_concurrency",
    "run_config_search_max_instance_count",
    "run_config_search_min_instance_count",
    "run_config_search_max_model_batch_size",
    "run_config_search_min_model_batch_size",
    "config_file",
    "parameters",
    "model_config_parameters",
)


@dataclass(frozen=True, slots=True)
class Mapped:
    """The plan, and in a sentence each what is ignored or became something else."""

    plan: StudyPlan
    notes: tuple[str, ...]


def parse(text: str, source: str = "The YAML", model: str | None = None) -> Mapped:
    """The plan of one model of a YAML text; `model` chooses it where there are several.

    Raises InputError where it is not such a file or a value cannot be read.
    """
    import yaml

    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise InputError(f"{source} is not YAML: {problem}") from error
    if not isinstance(document, Mapping) or not document.get("profile_models"):
        raise InputError(
            f"{source} has no profile_models, so it is not a configuration of `model-analyzer profile`. A plan of "
            "Tritune's own is a .toml file."
        )
    name, own = _chosen(document["profile_models"], source, model)
    reading = _Reading(source, {str(key): value for key, value in document.items()}, own)
    try:
        return reading.mapped(name)
    except InputError as error:
        text = str(error)
        raise InputError(text if text.startswith(source) else f"{source}: {text}") from error


def _chosen(models: Any, source: str, model: str | None) -> tuple[str, dict[str, Any]]:
    """The model to measure and its own section."""
    if isinstance(models, str):
        models = [part.strip() for part in models.split(",") if part.strip()]
    found: dict[str, dict[str, Any]] = {}
    for entry in [models] if isinstance(models, Mapping) else models if isinstance(models, list) else ():
        sections = entry if isinstance(entry, Mapping) else {entry: None}
        for name, section in sections.items():
            found[str(name)] = dict(section) if isinstance(section, Mapping) else {}
    names = ", ".join(found) or "none"
    if model is None and len(found) == 1:
        return next(iter(found.items()))
    if model is None:
        raise InputError(f"{source} has several models ({names}), and a study is about one. Name the one to measure.")
    if model not in found:
        raise InputError(f"{source} has no model {model} in profile_models (there are: {names}).")
    return model, found[model]


@dataclass
class _Reading:
    """One pass over a file. `ignored` collects keys by the reason why they mean nothing here."""

    source: str
    top: dict[str, Any]
    own: dict[str, Any]
    ignored: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def mapped(self, name: str) -> Mapped:
        flags = {**_section(self.top.get("perf_analyzer_flags")), **_section(self.own.get("perf_analyzer_flags"))}
        request, changes, arrivals, is_stream = self._flags(flags)
        config = _section(self.own.get("model_config_parameters"))
        automatic = not self._flag("run_config_search_disable") and not config
        space = self._searched() if automatic else self._space(config)
        mode = str(self.top.get("run_config_search_mode", "brute")).lower()
        search = SearchMethod.OPTUNA if automatic or mode in ("quick", "optuna") else SearchMethod.GRID
        if automatic:
            self.notes.append(
                "The automatic search of Model Analyzer became Optuna's over the same instance counts and batch sizes."
            )
        elif search is SearchMethod.OPTUNA:
            self.notes.append(f"The search mode {mode} became Optuna's over the values that are given.")
        loads = self._loads(arrivals, is_stream)
        objective = self._objective()
        self._rest()
        self.notes.append("Requests come from Locust; --driver perf_analyzer sends them as Model Analyzer did.")
        ignored = [f"Ignored, {why}: {', '.join(dict.fromkeys(keys))}." for why, keys in self.ignored.items()]
        plan = StudyPlan(name, space, loads, objective, search=search, request=request, **changes)
        return Mapped(plan, (*self.notes, *ignored))

    def _ignore(self, key: str, why: str) -> None:
        self.ignored.setdefault(why, []).append(key)

    def _flag(self, key: str) -> bool:
        return self.top.get(key) in (True, "true", "True", 1)

    def _limit(self, name: str, default: int) -> int:
        """One of the automatic search's limits."""
        key = f"run_config_search_{name}"
        value = self.top.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_VALUES * 100:
            raise InputError(f"{key}: {value} must be a whole number of at least 1.")
        return value

    # --- loads --------------------------------------------------------------------------------------------------------

    def _loads(self, arrivals: Arrivals, is_stream: bool) -> LoadSpace:
        given = {**self.top, **_section(self.own.get("parameters"))}
        clients = _whole_values(given.get("concurrency"), "concurrency")
        rates = tuple(float(rate) for rate in _values(given.get("request_rate"), "request_rate"))
        if not clients and not rates:
            clients = self._searched_clients()
        protocol = str(self.top.get("client_protocol", "grpc")).lower()
        if protocol not in ("http", "grpc"):
            raise InputError(f"client_protocol {protocol} is unknown. It is http or grpc.")
        if is_stream:
            protocol = "grpc"
        return LoadSpace(
            clients,
            rates,
            (arrivals,),
            _whole_values(given.get("batch_sizes"), "batch_sizes") or (1,),
            (Protocol(protocol),),
        )

    def _searched_clients(self) -> tuple[int, ...]:
        if any(f"run_config_search_{end}_concurrency" in self.top for end in ("min", "max")):
            return _doubled(self._limit("min_concurrency", 1), self._limit("max_concurrency", 1024))
        if self._flag("run_config_search_disable"):
            return (1,)
        self.notes.append(
            f"No concurrency is given: {', '.join(map(str, SEARCHED_CLIENTS))} clients take the place of Model "
            "Analyzer's search from 1 to 1024."
        )
        return SEARCHED_CLIENTS

    def _flags(self, flags: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], Arrivals, bool]:
        """perf_analyzer's own options: what every load shares, the plan's lengths, arrivals, whether it streams."""
        request: dict[str, Any] = {}
        changes: dict[str, Any] = {}
        arrivals, is_stream = Arrivals.CONSTANT, False
        for key, value in flags.items():
            if key == "shape":
                request["shapes"] = dict(_shape(str(each)) for each in _each(value))
            elif key == "input-data" and str(value) not in ("random", "zero"):
                request["input_data"] = str(value)
            elif key == "streaming" and value not in (False, None):
                request["grpc_stream"] = is_stream = True
            elif key == "shared-memory" and value in ("none", "system"):
                request["shared_memory"] = value
            elif key == "request-distribution" and value in ("constant", "poisson"):
                arrivals = Arrivals(value)
            elif key == "measurement-interval" and isinstance(value, int):
                changes["duration_s"] = value / 1000
            elif key == "percentile" and value == 99:
                continue
            else:
                self._ignore(f"perf_analyzer_flags.{key}", "an option of perf_analyzer that has no counterpart")
        return request, changes, arrivals, is_stream

    # --- configurations -----------------------------------------------------------------------------------------------

    def _searched(self) -> SearchSpace:
        """What the automatic search would try."""

        counts = range(self._limit("min_instance_count", 1), self._limit("max_instance_count", 5) + 1)
        sizes = _doubled(self._limit("min_model_batch_size", 1), self._limit("max_model_batch_size", 128))
        return SearchSpace(max_batch_size=sizes, instance_count=tuple(counts))

    def _space(self, config: Mapping[str, Any]) -> SearchSpace:
        axes: dict[str, tuple[Any, ...]] = {}
        further: dict[str, tuple[Any, ...]] = {}
        for key, value in config.items():
            if key == "max_batch_size":
                axes[key] = _whole_values(value, key)
            elif key == "dynamic_batching":
                self._batching(value, axes, further)
            elif key == "instance_group":
                self._instances(value, axes, further)
            elif key == "parameters" and isinstance(value, Mapping):
                self._parameters(value, further)
            elif key == "optimization" and isinstance(value, Mapping):
                self._optimization(value, further)
            else:
                self._ignore(f"model_config_parameters.{key}", "not a knob of a study")
        return SearchSpace(**axes, further=further)

    def _batching(self, value: Any, axes: dict[str, Any], further: dict[str, Any]) -> None:
        variants = [_section(each) for each in _each(value)]
        if len(variants) > 1:
            self.notes.append("The variants of dynamic_batching became every combination of their values.")
        axes["dynamic_batching"] = (True,)
        for variant in variants:
            for key, given in variant.items():
                if key == "preferred_batch_size":
                    lists = given if isinstance(given, list) and any(isinstance(e, list) for e in given) else [given]
                    sizes = tuple(_whole_values(each, key) for each in lists)
                    axes[key] = _merged(axes.get(key), sizes)
                elif key == "max_queue_delay_microseconds":
                    axes[key] = _merged(axes.get(key), _whole_values(given, key))
                elif key == "default_queue_policy" and isinstance(given, Mapping):
                    for name, policy in given.items():
                        self._knob(name, policy, further, f"dynamic_batching.{key}.{name}")
                else:
                    self._knob(key, given, further, f"dynamic_batching.{key}")

    def _instances(self, value: Any, axes: dict[str, Any], further: dict[str, Any]) -> None:
        groups = value if isinstance(value, list) else [value]
        variants = groups if groups and all(isinstance(each, list) for each in groups) else [groups]
        kinds: tuple[Any, ...] = ()
        for variant in variants:
            if len(variant) != 1 or not isinstance(variant[0], Mapping):
                self._ignore("model_config_parameters.instance_group", "several groups at once are not a knob")
                continue
            group = variant[0]
            if "count" in group:
                counts = _whole_values(group["count"], "instance_group.count")
                axes["instance_count"] = _merged(axes.get("instance_count"), counts)
            kinds = _merged(kinds, tuple(_each(group.get("kind", ()))))
            for key in group:
                if key not in ("count", "kind"):
                    self._ignore(f"instance_group.{key}", "not a knob of a study")
        if len(kinds) > 1:
            self._knob("instance_kind", list(kinds), further, "instance_group.kind")
        elif kinds:
            self._ignore(f"instance_group.kind {kinds[0]}", "left as the server has it")

    def _parameters(self, value: Mapping[str, Any], further: dict[str, Any]) -> None:
        for key, given in value.items():
            texts = given.get("string_value") if isinstance(given, Mapping) else given
            self._knob(key, texts, further, f"model_config_parameters.parameters.{key}")

    def _optimization(self, value: Mapping[str, Any], further: dict[str, Any]) -> None:
        for key, given in value.items():
            found = given.get("gpu_execution_accelerator") if isinstance(given, Mapping) else None
            if key == "graph" and isinstance(given, Mapping):
                self._knob("graph_optimization_level", given.get("level"), further, "optimization.graph.level")
            elif key == "execution_accelerators" and found and len(_each(found)) == 1:
                accelerator = _section(_each(found)[0])
                self._knob("execution_accelerator", accelerator.get("name"), further, "gpu_execution_accelerator.name")
                for name, values in _section(accelerator.get("parameters")).items():
                    self._knob(name, values, further, f"gpu_execution_accelerator.{name}")
            else:
                self._ignore(f"optimization.{key}", "not a knob of a study")

    def _knob(self, name: str, value: Any, further: dict[str, Any], where: str) -> None:
        """One further knob's values, in Triton's own words or as texts."""
        if name not in knobs.KNOBS:
            self._ignore(where, "not a knob of a study")
            return
        values = tuple(knobs.parse(name, _text(each)) for each in _each(value))
        if values and None not in values:
            further[name] = _merged(further.get(name), values)

    # --- objective and the rest ---------------------------------------------------------------------------------------

    def _objective(self) -> Objective:
        constraints: dict[str, Any] = {}
        for source in (self.top.get("constraints"), self.own.get("constraints")):
            for each in _each(source):
                constraints |= _section(each)
        p99_ms = self.top.get("latency_budget")
        least = self.top.get("min_throughput")
        for key, limits in constraints.items():
            if key == "perf_latency_p99":
                p99_ms = _section(limits).get("max", p99_ms)
            elif key == "perf_throughput":
                least = _section(limits).get("min", least)
            else:
                self._ignore(f"constraints.{key}", "not measured as a limit")
        given = self.own.get("objectives") or self.top.get("objectives") or []
        names = [str(name) for name in (given if isinstance(given, Mapping) else _each(given))]
        for name in names:
            if name not in ("perf_throughput", "perf_latency_p99"):
                self._ignore(f"objectives.{name}", "not an objective of a study")
        ours = [name for name in names if name in ("perf_throughput", "perf_latency_p99")]
        if len(ours) > 1:
            self.notes.append("The weights of several objectives are ignored: a study has limits and one goal.")
        if ours == ["perf_latency_p99"] and p99_ms is None and least is None:
            self.notes.append("The lowest P99 is looked for among all configurations that answer (1 inference/s).")
            least = 1.0
        return Objective(p99_ms, least)

    def _rest(self) -> None:
        """Name every key that was not used."""
        for key in [*self.top, *self.own]:
            if key in _USED:
                continue
            if key.startswith(_SERVER):
                self._ignore(key, "the server is the one that runs here")
            elif key.startswith(_RESULTS) or key.endswith("_output_fields"):
                self._ignore(key, "results are kept in Tritune's own store")
            else:
                self._ignore(key, "without a counterpart")


def _section(value: Any) -> dict[str, Any]:
    return {str(key): each for key, each in value.items()} if isinstance(value, Mapping) else {}


def _each(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _merged(before: tuple[Any, ...] | None, more: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys((*(before or ()), *more)))


def _values(value: Any, what: str) -> list[float]:
    """A number, `1,2,3`, a list, or {start, stop, step}. Raises InputError."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        try:
            start, stop, step = int(value["start"]), int(value["stop"]), int(value.get("step", 1))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{what} {dict(value)} must have start and stop, whole numbers.") from error
        if step < 1 or stop < start or (stop - start) // step >= MAX_VALUES:
            raise InputError(f"{what} {dict(value)} must go upwards in at most {MAX_VALUES:,} steps.")
        return list(range(start, stop + 1, step))
    parts = value.split(",") if isinstance(value, str) else _each(value)
    found = []
    for part in parts:
        try:
            found.append(float(part) if not isinstance(part, bool) else float("nan"))
        except (TypeError, ValueError):
            found.append(float("nan"))
    if any(each != each for each in found):
        raise InputError(f"{what}: {value} must be numbers.")
    return found


def _whole_values(value: Any, what: str) -> tuple[int, ...]:
    found = _values(value, what)
    if any(each != int(each) for each in found if abs(each) < 1e15) or any(abs(each) >= 1e15 for each in found):
        raise InputError(f"{what}: {value} must be whole numbers.")
    return tuple(dict.fromkeys(int(each) for each in found))


def _doubled(low: int, high: int) -> tuple[int, ...]:
    """1, 2, 4, … within both ends, which are among them."""
    found = [low]
    while found[-1] * 2 < high and found[-1] > 0:
        found.append(found[-1] * 2)
    return tuple(dict.fromkeys([*found, high])) if high >= low else (low,)


def _shape(text: str) -> tuple[str, list[int]]:
    name, _, dims = text.rpartition(":")
    try:
        return name, [int(size) for size in dims.split(",")]
    except ValueError as error:
        raise InputError(f"perf_analyzer_flags.shape {text} must look like INPUT:12,8.") from error


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
