"""What is asked for: signatures, endpoints, configurations, changes, jobs. Frozen dataclasses, units in names.

Belongs here: values and their validation. Never: I/O, pandas, clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tritune import knobs
from tritune.errors import InputError
from tritune.knobs import Scalar

MODEL_NAME_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}"


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
    SWEEP = "sweep"
    IMPORT = "import"


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


def whole(name: str, value: Any, low: int, high: int, hint: str = "") -> int:
    """`value` where it is a whole number from `low` to `high`. Raises InputError with its name and the limits."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InputError(f"{name}={value} must be a whole number from {low} to {high}.{' ' + hint if hint else ''}")
    return value


def number(name: str, value: Any, low: float, high: float, *, open_low: bool = False, hint: str = "") -> float:
    """`value` where it is a finite number from `low` (or above it) to `high`. Raises InputError."""
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
    count only where `dynamic_batching` is on. `further` holds the knobs beyond the five (knobs.KNOBS) that are set, as
    sorted pairs; `to_dict` puts them beside the five.
    """

    max_batch_size: int
    dynamic_batching: bool
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    instance_count: int | None = None
    further: tuple[tuple[str, Scalar], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "further", tuple(sorted((str(name), value) for name, value in self.further)))

    def to_dict(self) -> dict[str, Any]:
        return {
            **dict(self.further),
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
            further=tuple(
                (name, value)
                for name, value in document.items()
                if name not in cls.__slots__ and isinstance(value, bool | int | float | str)
            ),
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
        parts += [knobs.describe(name, value) for name, value in self.further if (name, value) not in knobs.PLAIN]
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class TuneChange:
    """A change of a configuration; None leaves the knob as it is. In `further` (knobs.KNOBS) None takes the knob out.

    `preferred_batch_size` () removes the preferred sizes. Setting a batching knob switches dynamic batching on
    unless `dynamic_batching` is False. Raises InputError for a value that no model could take.
    """

    preferred_batch_size: tuple[int, ...] | None = None
    max_queue_delay_microseconds: int | None = None
    max_batch_size: int | None = None
    instance_count: int | None = None
    dynamic_batching: bool | None = None
    further: Mapping[str, Scalar | None] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name, value in self.further.items():
            knobs.knob(name)
            if value is not None:
                knobs.check(name, value)
        for size in self.preferred_batch_size or ():
            whole("preferred_batch_size", size, 1, 2**31 - 1, "Use sizes that clients can fill, such as 4,8.")
        if self.max_queue_delay_microseconds is not None:
            whole(
                "max_queue_delay_us", self.max_queue_delay_microseconds, 0, 60_000_000, "Use 0 to send batches at once."
            )
        if self.max_batch_size is not None:
            whole("max_batch_size", self.max_batch_size, 0, 2**31 - 1, "Use 0 for a model without a batch dimension.")
        if self.instance_count is not None:
            whole("instances", self.instance_count, 1, 256, "Each instance loads the model once more.")
        batched = self.preferred_batch_size or self.max_queue_delay_microseconds
        if self.dynamic_batching is False and batched:
            raise InputError(
                "preferred_batch_size and max_queue_delay_us need dynamic batching, which this change switches off. "
                "Leave one of the two out."
            )

    @property
    def is_empty(self) -> bool:
        return all(getattr(self, name) is None for name in self.__slots__ if name != "further") and not self.further

    def to_dict(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in self.__slots__ if name != "further"}
        if self.further:
            document["further"] = dict(self.further)
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
            further=dict(document.get("further") or {}),
        )
