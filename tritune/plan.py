"""What is asked for: configurations, load plans, trials, jobs. Frozen dataclasses, units in names.

Belongs here: values and their validation. Never: I/O, pandas, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tritune.arrival_plan import (
    MAX_RATE_RPS,
    Stage,
    check_intervals,
    check_stages,
    describe_stages,
    fingerprint,
    mean_rate_rps,
)
from tritune.errors import InputError

MODEL_NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"
MAX_CONCURRENCY = 4096
MAX_CONNECTIONS = 16384
MAX_DURATION_S = 24 * 3600.0


class Driver(StrEnum):
    """Which load generator sends the requests."""

    LOCUST = "locust"
    PERF_ANALYZER = "perf_analyzer"


class Protocol(StrEnum):
    """How a request travels."""

    HTTP = "http"
    GRPC = "grpc"


class Arrivals(StrEnum):
    """The arrival process of an open loop; stages change the rate of the first two, REPLAY has its own intervals."""

    CONSTANT = "constant"
    POISSON = "poisson"
    REPLAY = "replay"


class Wire(StrEnum):
    """How tensors are written in an HTTP request."""

    BINARY = "binary"
    JSON = "json"


class SharedMemory(StrEnum):
    """Where tensors lie: in the request, or in memory that generator and server share."""

    NONE = "none"
    SYSTEM = "system"


class Compression(StrEnum):
    """How HTTP bodies are compressed, both ways."""

    NONE = "none"
    GZIP = "gzip"
    DEFLATE = "deflate"


class JobKind(StrEnum):
    """What a worker can be asked to do."""

    SETUP = "setup"
    SERVER_START = "server_start"
    MODEL_BUILD = "model_build"
    MODEL_ADD = "model_add"
    LOAD_MODEL = "load_model"
    UNLOAD_MODEL = "unload_model"
    TUNE = "tune"
    LOAD_TEST = "load_test"
    FIND_RATE = "find_rate"


class JobState(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Whether no worker will touch the job again by itself."""
        return self not in (JobState.WAITING, JobState.RUNNING)


class TrialState(StrEnum):
    """Where a trial stands. A finished trial is immutable."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


def _whole(name: str, value: Any, low: int, high: int, hint: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{name}={value} must be a whole number from {low} to {high}.{' ' + hint if hint else ''}")
    return value


def _number(name: str, value: Any, low: float, high: float, *, open_low: bool = False, hint: str = "") -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not good or value > high or value < low or (open_low and value == low):
        bound = f"above {low:g}" if open_low else f"at least {low:g}"
        raise InputError(f"{name}={value} must be {bound} and at most {high:g}.{' ' + hint if hint else ''}")
    return float(value)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of a model.

    `datatype` is KServe's name (FP32, INT64, BYTES, ...). `shape` leaves the batch dimension out where the
    model batches; -1 is a dimension chosen by the request.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "datatype": self.datatype, "shape": list(self.shape)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TensorSpec:
        return cls(str(document["name"]), str(document["datatype"]), tuple(int(d) for d in document["shape"]))


@dataclass(frozen=True, slots=True)
class Signature:
    """What a request to a model looks like. `max_batch_size` 0: the model has no batch dimension."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "inputs": [tensor.to_dict() for tensor in self.inputs],
            "outputs": [tensor.to_dict() for tensor in self.outputs],
            "max_batch_size": self.max_batch_size,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Signature:
        return cls(
            tuple(TensorSpec.from_dict(tensor) for tensor in document["inputs"]),
            tuple(TensorSpec.from_dict(tensor) for tensor in document["outputs"]),
            int(document["max_batch_size"]),
        )


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where one Triton answers; each address is host:port. `headers` go with every request; `control` is the
    (header name, value) that the restricted model-repository API wants, if it does.

    `tls` None: plain; otherwise {"ca": path?, "cert": path?, "key": path?, "verify": bool}.
    """

    http: str
    grpc: str | None = None
    metrics: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    control: tuple[str, str] | None = None
    tls: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "http": self.http,
            "grpc": self.grpc,
            "metrics": self.metrics,
            "headers": dict(self.headers),
            "control": list(self.control) if self.control else None,
            "tls": dict(self.tls) if self.tls is not None else None,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Endpoints:
        control = document.get("control")
        tls = document.get("tls")
        return cls(
            http=str(document["http"]),
            grpc=document.get("grpc"),
            metrics=document.get("metrics"),
            headers={str(k): str(v) for k, v in (document.get("headers") or {}).items()},
            control=(str(control[0]), str(control[1])) if control else None,
            tls=dict(tls) if tls is not None else None,
        )


@dataclass(frozen=True, slots=True)
class Configuration:
    """The knobs of one served model, flat, in Triton's names: what is compared with what.

    `instance_count` None: Triton's own default. `preferred_batch_size` and `max_queue_delay_microseconds`
    count only where `dynamic_batching` is on.
    """

    max_batch_size: int
    dynamic_batching: bool
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    instance_count: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "preferred_batch_size": list(self.preferred_batch_size),
            "max_queue_delay_microseconds": self.max_queue_delay_microseconds,
            "max_batch_size": self.max_batch_size,
            "instance_count": self.instance_count,
            "dynamic_batching": self.dynamic_batching,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Configuration:
        count = document.get("instance_count")
        return cls(
            max_batch_size=int(document["max_batch_size"]),
            dynamic_batching=bool(document["dynamic_batching"]),
            preferred_batch_size=tuple(int(size) for size in document.get("preferred_batch_size") or ()),
            max_queue_delay_microseconds=int(document.get("max_queue_delay_microseconds") or 0),
            instance_count=None if count is None else int(count),
        )

    def describe(self) -> str:
        """A short label, such as `batch <= 16, preferred 4,8, delay 700 us, 2 instances`."""
        parts = [f"batch ≤ {self.max_batch_size}"]
        if not self.dynamic_batching:
            parts.append("no dynamic batching")
        else:
            preferred = ",".join(str(size) for size in self.preferred_batch_size)
            parts.append(f"preferred {preferred}" if preferred else "no preferred size")
            parts.append(f"delay {self.max_queue_delay_microseconds} µs")
        if self.instance_count is not None:
            parts.append(f"{self.instance_count} instance{'s' if self.instance_count != 1 else ''}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class TuneChange:
    """A change of a configuration; None leaves the knob as it is.

    `preferred_batch_size` () removes the preferred sizes. Setting a batching knob switches dynamic batching on
    unless `dynamic_batching` is False. Raises InputError for a value that no model could take.
    """

    preferred_batch_size: tuple[int, ...] | None = None
    max_queue_delay_microseconds: int | None = None
    max_batch_size: int | None = None
    instance_count: int | None = None
    dynamic_batching: bool | None = None

    def __post_init__(self) -> None:
        for size in self.preferred_batch_size or ():
            _whole("preferred_batch_size", size, 1, 2**31 - 1, "Use sizes that clients can fill, such as 4,8.")
        if self.max_queue_delay_microseconds is not None:
            _whole(
                "max_queue_delay_us", self.max_queue_delay_microseconds, 0, 60_000_000, "Use 0 to send batches at once."
            )
        if self.max_batch_size is not None:
            _whole("max_batch_size", self.max_batch_size, 0, 2**31 - 1, "Use 0 for a model without a batch dimension.")
        if self.instance_count is not None:
            _whole("instances", self.instance_count, 1, 256, "Each instance loads the model once more.")
        knobs = self.preferred_batch_size or self.max_queue_delay_microseconds
        if self.dynamic_batching is False and knobs:
            raise InputError(
                "preferred_batch_size and max_queue_delay_us need dynamic batching, which this change switches off. "
                "Leave one of the two out."
            )

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, name) is None for name in self.__slots__)

    def to_dict(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in self.__slots__}
        if self.preferred_batch_size is not None:
            document["preferred_batch_size"] = list(self.preferred_batch_size)
        return document

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> TuneChange:
        preferred = document.get("preferred_batch_size")
        return cls(
            preferred_batch_size=None if preferred is None else tuple(preferred),
            max_queue_delay_microseconds=document.get("max_queue_delay_microseconds"),
            max_batch_size=document.get("max_batch_size"),
            instance_count=document.get("instance_count"),
            dynamic_batching=document.get("dynamic_batching"),
        )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One load test of one model: closed loop where `concurrency` is given, otherwise an open loop.

    An open loop has `rate_rps`, or `stages` (they are the measured time; the warm-up before them runs at the first
    rate), or `intervals_us`, which are repeated from the warm-up's begin on. `max_connections` is the most that an
    open loop opens, over all workers. `check_share` of the responses are decoded and checked. Beyond
    `max_raw_samples` requests a histogram takes the place of the single ones. `p99_limit_ms` is what the P99 should
    stay under; it changes nothing that is sent. Raises InputError where a value is out of range, or not exactly one
    load is given.
    """

    model: str
    driver: Driver = Driver.LOCUST
    protocol: Protocol = Protocol.HTTP
    concurrency: int | None = None
    rate_rps: float | None = None
    arrivals: Arrivals = Arrivals.CONSTANT
    batch: int = 1
    duration_s: float = 10.0
    warmup_s: float = 2.0
    workers: int = 1
    seed: int = 0
    timeout_s: float = 10.0
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    int_ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    input_data: str | None = None
    stages: tuple[Stage, ...] = ()
    intervals_us: tuple[int, ...] = ()
    max_connections: int = 512
    wire: Wire = Wire.BINARY
    shared_memory: SharedMemory = SharedMemory.NONE
    compression: Compression = Compression.NONE
    grpc_stream: bool = False
    check_share: float = 0.0
    max_raw_samples: int = 20_000_000
    p99_limit_ms: float | None = None

    def __post_init__(self) -> None:
        given = (self.concurrency is not None, self.rate_rps is not None, bool(self.stages), bool(self.intervals_us))
        if sum(given) != 1:
            raise InputError(
                "A load test is either a closed loop (concurrency) or an open loop (rate, stages or intervals). Give "
                "exactly one of them."
            )
        if self.concurrency is not None:
            _whole("concurrency", self.concurrency, 1, MAX_CONCURRENCY, "It is the number of requests in flight.")
        if self.rate_rps is not None:
            _number("rate", self.rate_rps, 0, MAX_RATE_RPS, open_low=True, hint="It is in requests per second.")
        _whole("batch", self.batch, 1, 65536, "It is the number of samples in one request.")
        _number("duration", self.duration_s, 0.5, MAX_DURATION_S, hint="It is in seconds.")
        _number("warmup", self.warmup_s, 0, 3600, hint="It is in seconds.")
        _whole("workers", self.workers, 1, 64, "One generator process fills about one core.")
        _whole("seed", self.seed, 0, 2**63 - 1)
        _number("timeout", self.timeout_s, 0, 3600, open_low=True, hint="It is in seconds.")
        _whole("max_connections", self.max_connections, 1, MAX_CONNECTIONS, "An open loop opens at most so many.")
        if self.p99_limit_ms is not None:
            _number("p99_ms", self.p99_limit_ms, 0, 3_600_000, open_low=True, hint="It is in milliseconds.")
        _number("check_share", self.check_share, 0, 1, hint="It is the share of responses that are decoded.")
        _whole("max_raw_samples", self.max_raw_samples, 0, 2**40, "Use 0 to keep counts only.")
        self._check_open_loop()
        self._check_wire()
        if self.workers > (self.concurrency or self.workers):
            raise InputError(
                f"workers={self.workers} must not exceed concurrency={self.concurrency}. Use fewer workers."
            )
        for name, (low, high) in self.int_ranges.items():
            if low > high:
                raise InputError(f"The integer range {low}:{high} of input {name} is empty. Give the lower end first.")

    def _check_open_loop(self) -> None:
        if self.is_open_loop and self.max_connections < self.workers:
            raise InputError(
                f"max_connections={self.max_connections} must be at least workers={self.workers}: every process needs "
                "one."
            )
        if bool(self.intervals_us) != (self.arrivals is Arrivals.REPLAY):
            raise InputError("Replayed arrivals and a list of intervals belong together. Give both or neither.")
        if self.intervals_us:
            check_intervals(self.intervals_us)
        if self.stages:
            check_stages(self.stages)
            total_s = sum(stage.duration_s for stage in self.stages)
            if not math.isclose(total_s, self.duration_s, rel_tol=1e-9):
                raise InputError(
                    f"duration={self.duration_s:g} must be what the stages add up to, {total_s:g} s. Leave it out."
                )
            if self.driver is Driver.PERF_ANALYZER:
                raise InputError(
                    "perf_analyzer knows no stages. Use the locust driver, or a file of intervals, which both can send."
                )

    def _check_wire(self) -> None:
        is_http = self.protocol is Protocol.HTTP
        if self.wire is Wire.JSON and not is_http:
            raise InputError("JSON tensors travel over HTTP only. Use the http protocol, or the binary wire.")
        if self.wire is Wire.JSON and self.shared_memory is not SharedMemory.NONE:
            raise InputError(
                "Tensors in shared memory are in no request, so they cannot be JSON. Choose one of the two."
            )
        if self.compression is not Compression.NONE and not is_http:
            raise InputError(f"compression={self.compression} is for HTTP bodies only. Use the http protocol.")
        if self.grpc_stream and is_http:
            raise InputError("Streaming (ModelStreamInfer) is gRPC's. Use the grpc protocol.")
        if self.driver is Driver.PERF_ANALYZER:
            ours = {"compression": self.compression is not Compression.NONE, "grpc_stream": self.grpc_stream}
            ours["check_share"] = self.check_share > 0
            if wrong := [name for name, is_given in ours.items() if is_given]:
                raise InputError(f"{wrong[0]} is not offered with perf_analyzer. Use the locust driver.")

    @property
    def is_open_loop(self) -> bool:
        return self.concurrency is None

    @property
    def peak_rate_rps(self) -> float:
        """The highest rate of an open loop; of a replay the mean one."""
        if self.intervals_us:
            return mean_rate_rps(self.intervals_us)
        return self.rate_rps or max((max(stage.from_rps, stage.to_rps) for stage in self.stages), default=0.0)

    def load(self) -> dict[str, Any]:
        """The part that must be equal for two trials to be comparable. What is as always is left out."""
        document: dict[str, Any] = {
            "driver": str(self.driver),
            "protocol": str(self.protocol),
            "concurrency": self.concurrency,
            "rate_rps": self.rate_rps,
            "arrivals": str(self.arrivals) if self.is_open_loop else None,
            "batch": self.batch,
        }
        if self.stages:
            document["stages"] = describe_stages(self.stages)
        if self.intervals_us:
            document["intervals"] = fingerprint(self.intervals_us)
        if self.wire is not Wire.BINARY:
            document["wire"] = str(self.wire)
        if self.shared_memory is not SharedMemory.NONE:
            document["shared_memory"] = str(self.shared_memory)
        if self.compression is not Compression.NONE:
            document["compression"] = str(self.compression)
        if self.grpc_stream:
            document["grpc_stream"] = True
        return document

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "driver": str(self.driver),
            "protocol": str(self.protocol),
            "concurrency": self.concurrency,
            "rate_rps": self.rate_rps,
            "arrivals": str(self.arrivals),
            "batch": self.batch,
            "duration_s": self.duration_s,
            "warmup_s": self.warmup_s,
            "workers": self.workers,
            "seed": self.seed,
            "timeout_s": self.timeout_s,
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "int_ranges": {name: list(pair) for name, pair in self.int_ranges.items()},
            "input_data": self.input_data,
            "stages": [[stage.duration_s, stage.from_rps, stage.to_rps] for stage in self.stages],
            "intervals_us": list(self.intervals_us),
            "max_connections": self.max_connections,
            "wire": str(self.wire),
            "shared_memory": str(self.shared_memory),
            "compression": str(self.compression),
            "grpc_stream": self.grpc_stream,
            "check_share": self.check_share,
            "max_raw_samples": self.max_raw_samples,
            "p99_limit_ms": self.p99_limit_ms,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> LoadPlan:
        values = dict(document)
        values["driver"] = Driver(values["driver"])
        values["protocol"] = Protocol(values["protocol"])
        values["arrivals"] = Arrivals(values["arrivals"])
        values["shapes"] = {name: tuple(shape) for name, shape in values["shapes"].items()}
        values["int_ranges"] = {name: (pair[0], pair[1]) for name, pair in values["int_ranges"].items()}
        values["wire"] = Wire(values.get("wire", Wire.BINARY))
        values["shared_memory"] = SharedMemory(values.get("shared_memory", SharedMemory.NONE))
        values["compression"] = Compression(values.get("compression", Compression.NONE))
        values["stages"] = tuple(Stage(*row) for row in values.get("stages") or ())
        values["intervals_us"] = tuple(values.get("intervals_us") or ())
        return cls(**values)


def describe_load(load: Mapping[str, Any]) -> str:
    """A short label of `LoadPlan.load()`, such as `locust http, 8 clients` or `locust http, 100/s poisson`."""
    batch = f", batch {load['batch']}" if load.get("batch", 1) != 1 else ""
    wire = [str(load["wire"])] if load.get("wire") else []
    wire += ["shared memory"] if load.get("shared_memory") else []
    wire += [str(load["compression"])] if load.get("compression") else []
    wire += ["stream"] if load.get("grpc_stream") else []
    return f"{' '.join([load['driver'], load['protocol'], *wire])}, {describe_arrivals(load)}{batch}"


def describe_arrivals(load: Mapping[str, Any]) -> str:
    """How the requests of `LoadPlan.load()` come, such as `8 clients`, `100/s poisson`, `stages 10s:100,5s:100-400
    constant`, `replay of 500 intervals (1a2b3c4d5e6f), 80/s`."""
    if load.get("concurrency") is not None:
        count = load["concurrency"]
        return f"{count} client{'s' if count != 1 else ''}"
    if load.get("stages"):
        return f"stages {load['stages']} {load['arrivals']}"
    if replayed := load.get("intervals"):
        return f"replay of {replayed['count']} intervals ({replayed['sha256']}), {replayed['mean_rps']:.3g}/s"
    return f"{load['rate_rps']:g}/s {load['arrivals']}"


@dataclass(frozen=True, slots=True)
class GeneratorPlan:
    """All that a generator process needs to know; written as plan.json into the trial's folder.

    `regions` is what the names of its shared memory begin with, where tensors lie there.
    """

    load: LoadPlan
    endpoints: Endpoints
    signature: Signature
    regions: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "load": self.load.to_dict(),
            "endpoints": self.endpoints.to_dict(),
            "signature": self.signature.to_dict(),
            "regions": self.regions,
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> GeneratorPlan:
        return cls(
            LoadPlan.from_dict(document["load"]),
            Endpoints.from_dict(document["endpoints"]),
            Signature.from_dict(document["signature"]),
            document.get("regions"),
        )
