"""What a study is asked to do: the search space, its loads, rounds, objective and budget (frozen dataclasses).

Belongs here: values and their validation, to and from a document. Never: which combinations exist and what they cost
(study_space), files (study_file), I/O, clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tritune.arrival_plan import MAX_RATE_RPS
from tritune.errors import InputError
from tritune.load_plan import MAX_CONCURRENCY, Arrivals, Driver, LoadPlan, Protocol, Wire
from tritune.plan import TuneChange, number, whole

MAX_ROUNDS = 100
DEFAULT_ROUNDS = 8
FIRST_LOOK = 3
"""Before this round no configuration is left out and no study stops early."""

Scalar = bool | int | float | str


class SearchMethod(StrEnum):
    """Which configurations the next round measures."""

    GRID = "grid"
    OPTUNA = "optuna"


class Switching(StrEnum):
    """How configurations take turns: side by side under names of their own, or reloaded in turn.

    AUTO serves them side by side only where an A/A shows no difference.
    """

    AUTO = "auto"
    SIDE_BY_SIDE = "side_by_side"
    RELOAD = "reload"


class Metric(StrEnum):
    """What a verdict is about."""

    THROUGHPUT = "throughput_ips"
    P99 = "p99_ms"


@dataclass(frozen=True, slots=True)
class Objective:
    """What the best configuration is: highest throughput with P99 at most `p99_ms`, or lowest P99 with throughput of at
    least `min_throughput_ips`; both limits None: highest throughput in a closed loop, lowest P99 in an open one.
    """

    p99_ms: float | None = None
    min_throughput_ips: float | None = None

    def __post_init__(self) -> None:
        if self.p99_ms is not None:
            number("p99_ms", self.p99_ms, 0, 3_600_000, open_low=True, hint="It is in milliseconds.")
        if self.min_throughput_ips is not None:
            number("min_throughput", self.min_throughput_ips, 0, 1e9, open_low=True, hint="Inferences per second.")

    def metric(self, load: LoadPlan) -> Metric:
        """What configurations are compared by under one load. An open loop offers all the same, so there it is P99."""
        if load.is_open_loop or (self.min_throughput_ips is not None and self.p99_ms is None):
            return Metric.P99
        return Metric.THROUGHPUT

    def to_dict(self) -> dict[str, Any]:
        return {"p99_ms": self.p99_ms, "min_throughput_ips": self.min_throughput_ips}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Objective:
        return cls(document.get("p99_ms"), document.get("min_throughput_ips"))


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """The values of each knob; an empty axis stays as the baseline has it. Every combination is a candidate.

    `further` holds knobs beyond the five by their flat name (plan.Configuration), such as `intra_op_thread_count`.
    """

    preferred_batch_size: tuple[tuple[int, ...], ...] = ()
    max_queue_delay_microseconds: tuple[int, ...] = ()
    max_batch_size: tuple[int, ...] = ()
    instance_count: tuple[int, ...] = ()
    dynamic_batching: tuple[bool, ...] = ()
    further: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for sizes in self.preferred_batch_size:
            TuneChange(preferred_batch_size=sizes)
        for delay in self.max_queue_delay_microseconds:
            TuneChange(max_queue_delay_microseconds=delay)
        for size in self.max_batch_size:
            TuneChange(max_batch_size=size)
        for count in self.instance_count:
            TuneChange(instance_count=count)
        for name, values in self.further.items():
            if not values:
                raise InputError(f"The axis {name} has no value. Give at least one or leave it out.")

    def to_dict(self) -> dict[str, Any]:
        return {
            "preferred_batch_size": [list(sizes) for sizes in self.preferred_batch_size],
            "max_queue_delay_microseconds": list(self.max_queue_delay_microseconds),
            "max_batch_size": list(self.max_batch_size),
            "instance_count": list(self.instance_count),
            "dynamic_batching": list(self.dynamic_batching),
            "further": {name: list(values) for name, values in self.further.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> SearchSpace:
        return cls(
            tuple(tuple(sizes) for sizes in document.get("preferred_batch_size") or ()),
            tuple(document.get("max_queue_delay_microseconds") or ()),
            tuple(document.get("max_batch_size") or ()),
            tuple(document.get("instance_count") or ()),
            tuple(document.get("dynamic_batching") or ()),
            {name: tuple(values) for name, values in (document.get("further") or {}).items()},
        )


@dataclass(frozen=True, slots=True)
class LoadSpace:
    """The loads of every candidate: each of `concurrency` (closed) and of `rate_rps` with each of `arrivals` (open),
    for every batch, protocol, driver and, where it is given, `wire` (else StudyPlan.request says it, or it is binary).
    """

    concurrency: tuple[int, ...] = ()
    rate_rps: tuple[float, ...] = ()
    arrivals: tuple[Arrivals, ...] = (Arrivals.CONSTANT,)
    batch: tuple[int, ...] = (1,)
    protocol: tuple[Protocol, ...] = (Protocol.HTTP,)
    driver: tuple[Driver, ...] = (Driver.LOCUST,)
    wire: tuple[Wire, ...] = ()

    def __post_init__(self) -> None:
        if not self.concurrency and not self.rate_rps:
            raise InputError("A study needs a load. Give at least one concurrency or one rate.")
        for clients in self.concurrency:
            whole("concurrency", clients, 1, MAX_CONCURRENCY, "It is the number of requests in flight.")
        for rate in self.rate_rps:
            number("rate", rate, 0, MAX_RATE_RPS, open_low=True, hint="It is in requests per second.")
        for name in ("arrivals", "batch", "protocol", "driver"):
            if not getattr(self, name):
                raise InputError(f"The loads of a study need at least one {name}.")

    def to_dict(self) -> dict[str, Any]:
        return {
            "concurrency": list(self.concurrency),
            "rate_rps": list(self.rate_rps),
            "arrivals": [str(value) for value in self.arrivals],
            "batch": list(self.batch),
            "protocol": [str(value) for value in self.protocol],
            "driver": [str(value) for value in self.driver],
            "wire": [str(value) for value in self.wire],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LoadSpace:
        return cls(
            tuple(document.get("concurrency") or ()),
            tuple(document.get("rate_rps") or ()),
            tuple(Arrivals(value) for value in document.get("arrivals") or ("constant",)),
            tuple(document.get("batch") or (1,)),
            tuple(Protocol(value) for value in document.get("protocol") or ("http",)),
            tuple(Driver(value) for value in document.get("driver") or ("locust",)),
            tuple(Wire(value) for value in document.get("wire") or ()),
        )


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A whole study. `request` holds what every load shares: LoadPlan's fields shapes, int_ranges, input_data,
    timeout_s, workers, wire, compression, shared_memory, grpc_stream, in the form of `LoadPlan.to_dict()`.

    `baseline` is `served` (what the server serves when the study begins) or a trial's id (t12), whose configuration it
    is. `precision` stops a study once every interval of the remaining ratios is at most so wide (0.05: ±5 %).
    `budget_s` None: no limit. `share` names an Optuna study that several machines fill together.
    """

    model: str
    space: SearchSpace = field(default_factory=SearchSpace)
    loads: LoadSpace = field(default_factory=lambda: LoadSpace(concurrency=(8,)))
    objective: Objective = field(default_factory=Objective)
    rounds: int = DEFAULT_ROUNDS
    duration_s: float = 10.0
    warmup_s: float = 2.0
    seed: int = 0
    budget_s: float | None = None
    precision: float | None = None
    baseline: str = "served"
    search: SearchMethod = SearchMethod.GRID
    switching: Switching = Switching.AUTO
    stop_early: bool = True
    share: str | None = None
    title: str = ""
    request: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole("rounds", self.rounds, 1, MAX_ROUNDS, "Three or more are needed for a verdict.")
        number("duration", self.duration_s, 0.5, 86_400, hint="It is in seconds.")
        number("warmup", self.warmup_s, 0, 3600, hint="It is in seconds.")
        whole("seed", self.seed, 0, 2**63 - 1)
        if self.budget_s is not None:
            number("budget", self.budget_s, 0, 7 * 86_400, open_low=True, hint="It is in seconds.")
        if self.precision is not None:
            number("precision", self.precision, 0, 1, open_low=True, hint="0.05 is an interval of ±5 %.")

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "space": self.space.to_dict(),
            "loads": self.loads.to_dict(),
            "objective": self.objective.to_dict(),
            "rounds": self.rounds,
            "duration_s": self.duration_s,
            "warmup_s": self.warmup_s,
            "seed": self.seed,
            "budget_s": self.budget_s,
            "precision": self.precision,
            "baseline": self.baseline,
            "search": str(self.search),
            "switching": str(self.switching),
            "stop_early": self.stop_early,
            "share": self.share,
            "title": self.title,
            "request": dict(self.request),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> StudyPlan:
        values = dict(document)
        values["space"] = SearchSpace.from_dict(values.get("space") or {})
        values["loads"] = LoadSpace.from_dict(values["loads"])
        values["objective"] = Objective.from_dict(values.get("objective") or {})
        values["search"] = SearchMethod(values.get("search", SearchMethod.GRID))
        values["switching"] = Switching(values.get("switching", Switching.AUTO))
        return cls(**values)
