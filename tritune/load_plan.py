"""What a load test is asked to be: driver, the way a request travels, arrivals, length. Frozen, units in names.

Belongs here: values and their validation. Never: I/O, clocks, the times of the arrivals (loadgen/schedule.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
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
from tritune.plan import Endpoints, Signature, number, whole
from tritune.shape_mix import MixedShape, check_mix, describe_shapes

MAX_WORKERS = 64
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


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """One load test of one model: closed loop where `concurrency` is given, otherwise an open loop.

    An open loop has `rate_rps`, or `stages` (they are the measured time; the warm-up before them runs at the first
    rate), or `intervals_us`, which are repeated from the warm-up's begin on. `max_connections` is the most that an
    open loop opens, over all workers. `check_share` of the responses are decoded and checked. Beyond
    `max_raw_samples` requests a histogram takes the place of the single ones. `p99_limit_ms` is what the P99 should
    stay under; it changes nothing that is sent. `shape_mix` takes the place of `shapes` where requests differ.

    Raises InputError where a value is out of range, or not exactly one
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
    shape_mix: tuple[MixedShape, ...] = ()

    def __post_init__(self) -> None:
        given = (self.concurrency is not None, self.rate_rps is not None, bool(self.stages), bool(self.intervals_us))
        if sum(given) != 1:
            raise InputError(
                "A load test is either a closed loop (concurrency) or an open loop (rate, stages or intervals). Give "
                "exactly one of them."
            )
        if self.concurrency is not None:
            whole("concurrency", self.concurrency, 1, MAX_CONCURRENCY, "It is the number of requests in flight.")
        if self.rate_rps is not None:
            number("rate", self.rate_rps, 0, MAX_RATE_RPS, open_low=True, hint="It is in requests per second.")
        whole("batch", self.batch, 1, 65536, "It is the number of samples in one request.")
        number("duration", self.duration_s, 0.5, MAX_DURATION_S, hint="It is in seconds.")
        number("warmup", self.warmup_s, 0, 3600, hint="It is in seconds.")
        whole("workers", self.workers, 1, MAX_WORKERS, "One generator process fills about one core.")
        whole("seed", self.seed, 0, 2**63 - 1)
        number("timeout", self.timeout_s, 0, 3600, open_low=True, hint="It is in seconds.")
        whole("max_connections", self.max_connections, 1, MAX_CONNECTIONS, "An open loop opens at most so many.")
        if self.p99_limit_ms is not None:
            number("p99_ms", self.p99_limit_ms, 0, 3_600_000, open_low=True, hint="It is in milliseconds.")
        number("check_share", self.check_share, 0, 1, hint="It is the share of responses that are decoded.")
        whole("max_raw_samples", self.max_raw_samples, 0, 2**40, "Use 0 to keep counts only.")
        self._check_open_loop()
        self._check_wire()
        self._check_mix()
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

    def _check_mix(self) -> None:
        if not self.shape_mix:
            return
        if self.shapes or self.input_data is not None:
            raise InputError("Mixed shapes go with neither a single shape nor an input file. Give one of them.")
        check_mix(self.shape_mix)
        if self.driver is Driver.PERF_ANALYZER and self.batch > 1:
            raise InputError("perf_analyzer cannot send mixed shapes in batches. Use batch 1, or the locust driver.")

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
        if self.shapes or self.shape_mix:
            document["shapes"] = describe_shapes(self.shape_mix or (MixedShape(self.shapes),))
        if self.input_data is not None:
            document["input_data"] = Path(self.input_data).name
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
            "shape_mix": [
                {"shapes": {name: list(shape) for name, shape in row.shapes.items()}, "weight": row.weight}
                for row in self.shape_mix
            ],
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
        values["shape_mix"] = tuple(
            MixedShape({name: tuple(shape) for name, shape in row["shapes"].items()}, row["weight"])
            for row in values.get("shape_mix") or ()
        )
        return cls(**values)


def describe_load(load: Mapping[str, Any]) -> str:
    """A short label of `LoadPlan.load()`, such as `locust http, 8 clients` or `locust http, 100/s poisson`."""
    batch = f", batch {load['batch']}" if load.get("batch", 1) != 1 else ""
    wire = [str(load["wire"])] if load.get("wire") else []
    wire += ["shared memory"] if load.get("shared_memory") else []
    wire += [str(load["compression"])] if load.get("compression") else []
    wire += ["stream"] if load.get("grpc_stream") else []
    data = f", {load['shapes']}" if load.get("shapes") else ""
    data += f", {load['input_data']}" if load.get("input_data") else ""
    return f"{' '.join([load['driver'], load['protocol'], *wire])}, {describe_arrivals(load)}{batch}{data}"


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
