"""What one further knob is: its words, its limits, and how a value is checked, read from a message and written there.

Belongs here: the class Knob. Never: which knobs there are (knobs), where they stand in the protobuf (knob_places).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tritune.errors import InputError
from tritune.knob_places import Accelerator, Batching, InstanceGpus, InstanceKind, Place, Scalar, Warmup, numbers

NUMBERS = r"[0-9]{1,9}(,[0-9]{1,9})*"
SHAPES = r"[^\s:,]+:[0-9]+(x[0-9]+)*(,[^\s:,]+:[0-9]+(x[0-9]+)*)*"
PATH = r"/[^\x00-\x1f\"\\]*"


class KnobKind(StrEnum):
    """What a value is: a whole number, on or off, one of a few, or a text of a certain form."""

    INT = "int"
    BOOL = "bool"
    CHOICE = "choice"
    TEXT = "text"


@dataclass(frozen=True, slots=True)
class Knob:
    """One further knob. `phrase` is a label with {} for the value; `choices` maps a value to its words; `form` is what
    a text must match and `example` one that does; `engine` is the accelerator that it belongs to.
    """

    name: str
    label: str
    kind: KnobKind
    place: Place
    hint: str
    phrase: str
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
        """Its value in a `ModelConfig` message; None where it is not written, or written with Triton's default."""
        return self.place.read(message)

    def write(self, message: Any, value: Scalar | None) -> None:
        """Put it into a message, None: take it out. Raises InputError for a value that it cannot have and where what it
        needs is not there."""
        if value is not None:
            self.check(value)
            self._check_needs(message, value)
        self.place.write(message, value)

    def words(self, value: Scalar) -> str:
        """A value as people read it: `parallel`, `on`, `1,000 µs`."""
        if self.choices and value in self.choices:
            return self.choices[value]
        if isinstance(value, bool):
            return "on" if value else "off"
        shown = f"{value:,}" if isinstance(value, int) and self.unit else str(value)
        return f"{shown} {self.unit}".strip()

    @property
    def wanted(self) -> str:
        """What a value must be, in words."""
        if self.kind is KnobKind.BOOL:
            return "on or off"
        if self.kind is KnobKind.INT:
            return f"a whole number from {self.low} to {self.high}"
        if self.kind is KnobKind.TEXT:
            return f"such as {self.example}"
        pairs = (self.choices or {}).items()
        return "one of " + ", ".join(f"{key} ({words})" if isinstance(key, int) else f"{key}" for key, words in pairs)

    def line(self) -> str:
        """The knob in one line: `model_version: a whole number from 1 …. Served version. The number of …`."""
        gpu = " Needs a GPU." if self.needs_gpu else ""
        return f"{self.name}: {self.wanted}. {self.label}. {self.hint}{gpu}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "label": self.label,
            "kind": str(self.kind),
            "unit": self.unit,
            "allowed": self.wanted,
            "hint": self.hint,
            "needs_gpu": self.needs_gpu,
        }

    def check(self, value: Any) -> Scalar:
        """`value` where it is allowed. Raises InputError with the value, the limit and what to write."""
        if self.kind is KnobKind.BOOL:
            good = isinstance(value, bool)
        elif self.kind is KnobKind.CHOICE:
            good = isinstance(value, int | str) and not isinstance(value, bool) and value in (self.choices or ())
        elif self.kind is KnobKind.INT:
            good = isinstance(value, int) and not isinstance(value, bool) and self.low <= value <= self.high
        else:
            good = isinstance(value, str) and len(value) <= 1000 and re.fullmatch(self.form, value) is not None
            if good and self.form == NUMBERS:
                found = numbers(value)
                good = len(set(found)) == len(found) and min(found) >= self.low
        if not good:
            raise InputError(f"{self.name}={value} must be {self.wanted}. {self.hint}")
        return value  # type: ignore[no-any-return]

    def _check_needs(self, message: Any, value: Scalar) -> None:
        if self.needs_batching and not message.HasField("dynamic_batching"):
            raise InputError(
                f"{self.name}={value} needs dynamic batching, which is off. Switch it on in the same change."
            )
        if self.engine is not None and Accelerator().read(message) != self.engine:
            raise InputError(
                f"{self.name}={value} needs execution_accelerator={self.engine}. Set that in the same change."
            )
        if isinstance(self.place, Warmup) and not message.input:
            raise InputError(
                f"{self.name}={value} needs the inputs in config.pbtxt, and they are left to Triton's auto-complete. "
                "Write inputs and outputs in full first."
            )
        if isinstance(self.place, InstanceKind | InstanceGpus) and len(message.instance_group) > 1:
            raise InputError(
                f"{self.name}={value} is ambiguous: config.pbtxt has {len(message.instance_group)} instance groups. "
                "Edit the groups in config.pbtxt, or leave one."
            )
