"""The knobs beyond the five of plan.Configuration: their names, limits, words, and rules between them.

Belongs here: the one table of further knobs, `parse` and `check` of a value, `refuse_together` of several. Never: how
the five are changed (model_config), Triton's rules over a whole configuration (model_rules), files, servers.

Sources: Triton common `model_config.proto`; README of NVIDIA's onnxruntime_backend (names of its parameters).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tritune.errors import InputError
from tritune.knob_places import (
    Batching,
    GraphLevel,
    Parameter,
    Place,
    Scalar,
    Version,
    numbers,
)

__all__ = ["KNOBS", "Knob", "KnobKind", "Scalar", "check", "describe", "knob", "parse", "read", "write"]

_NUMBERS = r"\d{1,9}(,\d{1,9})*"
_SHAPES = r"[^\s:,]+:\d+(x\d+)*(,[^\s:,]+:\d+(x\d+)*)*"
_TRIES = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}


class KnobKind(StrEnum):
    """What a value is: a whole number, on or off, one of a few, or a text of a certain form."""

    INT = "int"
    BOOL = "bool"
    CHOICE = "choice"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Knob:
    """One further knob. `choices` maps a value to its words; `form` is what a text must match and `example` one that
    does; `engine` is the accelerator that it belongs to; `short` stands before the value in a label.
    """

    name: str
    label: str
    kind: KnobKind
    place: Place
    hint: str
    short: str = ""
    unit: str = ""
    low: int = 0
    high: int = 2**31 - 1
    choices: Mapping[Scalar, str] | None = None
    form: str = ""
    example: str = ""
    needs_gpu: bool = False
    engine: str | None = None

    @property
    def needs_batching(self) -> bool:
        """Whether it stands in dynamic_batching, and so goes with it."""
        return isinstance(self.place, Batching)

    def read(self, message: Any) -> Scalar | None:
        """Its value in a `ModelConfig` message; None where it is not written."""
        return self.place.read(message)

    def write(self, message: Any, value: Scalar | None) -> None:
        """Put it into a message, None: take it out. The value is one that `check` lets pass."""
        self.place.write(message, value)

    def words(self, value: Scalar) -> str:
        """A value as people read it: `parallel`, `on`, `1,000 µs`."""
        if self.choices and value in self.choices:
            return self.choices[value]
        if isinstance(value, bool):
            return "on" if value else "off"
        shown = f"{value:,}" if isinstance(value, int) and self.unit else str(value)
        return f"{shown} {self.unit}".strip()

    def check(self, value: Any) -> Scalar:
        """`value` where it is allowed. Raises InputError with the value, the limit and what to write."""
        if self.kind is KnobKind.BOOL:
            good = isinstance(value, bool)
            wanted = "on or off"
        elif self.kind is KnobKind.CHOICE:
            good = not isinstance(value, bool) and value in (self.choices or ())
            wanted = "one of " + ", ".join(f"{key}" for key in self.choices or ())
        elif self.kind is KnobKind.INT:
            good = isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
            wanted = f"a whole number from {self.low} to {self.high}"
        else:
            good = isinstance(value, str) and re.fullmatch(self.form, value) is not None and len(value) <= 1000
            wanted = f"of the form {self.example}"
        if not good:
            raise InputError(f"{self.name}={value} must be {wanted}. {self.hint}")
        if self.form is _NUMBERS:
            self._check_numbers(value)
        return value  # type: ignore[no-any-return]

    def _check_numbers(self, value: str) -> None:
        found = numbers(value)
        if len(set(found)) < len(found) or min(found) < self.low:
            raise InputError(f"{self.name}={value} must be different numbers from {self.low} on. {self.hint}")


_TRT = {"needs_gpu": True, "engine": "tensorrt"}
_CUDA = {"needs_gpu": True, "engine": "cuda"}

_ALL = (
    Knob(
        "model_version",
        "Served version",
        KnobKind.INT,
        Version(),
        "It is the number of a version folder; leave it out to serve the newest.",
        short="version",
        low=1,
        high=2**62,
    ),
    Knob(
        "intra_op_thread_count",
        "Threads within an operator",
        KnobKind.INT,
        Parameter("intra_op_thread_count"),
        "Of each instance. Leave it out (or 0) for ONNX Runtime's choice: all cores.",
        short="intra-op threads",
        high=1024,
    ),
    Knob(
        "inter_op_thread_count",
        "Threads across operators",
        KnobKind.INT,
        Parameter("inter_op_thread_count"),
        "Of each instance; counts only with parallel execution. 0: all cores.",
        short="inter-op threads",
        high=1024,
    ),
    Knob(
        "execution_mode",
        "Operators run",
        KnobKind.CHOICE,
        Parameter("execution_mode"),
        "Parallel (1) can help models with many branches.",
        short="execution",
        choices={0: "sequential", 1: "parallel"},
    ),
    Knob(
        "graph_optimization_level",
        "Graph optimisation",
        KnobKind.CHOICE,
        GraphLevel(),
        "Left out, ONNX Runtime does all of them; -1 is basic, 1 is extended, 2 switches them off.",
        short="graph optimisation",
        choices={-1: "basic", 1: "extended", 2: "off"},
    ),
)

KNOBS: Mapping[str, Knob] = {entry.name: entry for entry in _ALL}
"""The further knobs by name, in the order in which they are written and shown."""

PLAIN = (("instance_kind", "KIND_CPU"),)
"""What needs no words in a label: Triton reports it of every model on a server without a GPU."""


def knob(name: str) -> Knob:
    """The knob of that name. Raises InputError with the nearest one."""
    if name in KNOBS:
        return KNOBS[name]
    close = difflib.get_close_matches(name, KNOBS, n=1, cutoff=0.5)
    advice = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(KNOBS)}."
    raise InputError(f"There is no knob {name}. {advice}")


def check(name: str, value: Any) -> Scalar:
    """`value` where the knob `name` can have it. Raises InputError."""
    return knob(name).check(value)


def parse(name: str, text: str) -> Scalar:
    """A value as typed: `4`, `on`, `FP16`, `parallel`. Raises InputError where the knob cannot have it."""
    entry, text = knob(name), text.strip()
    value: Scalar = text
    if entry.kind is KnobKind.BOOL:
        value = _TRIES.get(text.lower(), text)
    elif entry.kind is KnobKind.CHOICE:
        for key, words in (entry.choices or {}).items():
            if text.lower() in (str(key).lower(), words.lower()):
                value = key
    elif entry.kind is KnobKind.INT:
        value = int(text) if re.fullmatch(r"[+-]?\d{1,19}", text) else text
    elif entry.form is _NUMBERS:
        value = ",".join(text.replace(",", " ").split())
    return entry.check(value)


def read(message: Any) -> tuple[tuple[str, Scalar], ...]:
    """Every further knob that a `ModelConfig` message sets, as sorted pairs."""
    found = ((entry.name, entry.read(message)) for entry in KNOBS.values())
    return tuple(sorted((name, value) for name, value in found if value is not None))


def write(message: Any, changes: Mapping[str, Scalar | None]) -> None:
    """Write changes into a message, in the table's order; None takes a knob out. Raises InputError for a bad value."""
    for name in changes:
        knob(name)
    for name, entry in KNOBS.items():
        if name in changes:
            value = changes[name]
            entry.write(message, value if value is None else entry.check(value))


def describe(name: str, value: Scalar) -> str:
    """A knob and its value in the few words of a label: `version 2`, `intra-op threads 4`."""
    entry = KNOBS.get(name)
    return f"{name} {value}" if entry is None else f"{entry.short or entry.label.lower()} {entry.words(value)}"
