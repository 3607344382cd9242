"""The shapes that a load test's requests have where the model leaves them free, one set or several that are mixed.

Belongs here: their text, their weights, the rules. Never: the model's signature, making tensors (loadgen/payload.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritune.errors import InputError
from tritune.plan import whole

MAX_MIX = 1000


@dataclass(frozen=True, slots=True)
class MixedShape:
    """One of several sets of shapes, and how often it comes in proportion to the others."""

    shapes: Mapping[str, tuple[int, ...]]
    weight: int = 1


def check_mix(mix: Sequence[MixedShape]) -> None:
    """Raises InputError for a weight or a sum of weights that is too large."""
    for row in mix:
        whole("weight", row.weight, 1, MAX_MIX, "It is how often a shape comes, in proportion to the others.")
    total = sum(row.weight for row in mix)
    if total // math.gcd(*(row.weight for row in mix)) > MAX_MIX:
        raise InputError(f"The weights of mixed shapes add up to {total}; {MAX_MIX} is the most. Use smaller ones.")


def parse_shapes(values: Iterable[str]) -> tuple[dict[str, tuple[int, ...]], tuple[MixedShape, ...]]:
    """`INPUT:12,8` texts as (shapes, mix): of an input with several, the first ones go together, the second ones, and
    so on, as often as their weight says: `IDS:12@3 IDS:128 MASK:12 MASK:128` is 12 in three of four requests.

    An input with one shape keeps it throughout. Raises InputError.
    """
    given: dict[str, list[tuple[int, ...]]] = {}
    weights: dict[int, int] = {}
    for value in values:
        name, _, rest = value.rpartition(":")
        sizes, at, weight = rest.partition("@")
        parts = sizes.split(",")
        numbers = [*parts, weight] if at else parts
        if not name or not all(part.isascii() and part.isdigit() for part in numbers):
            raise InputError(
                f"The shape {value!r} must be NAME:sizes, such as INPUT:12,8, or with a weight, INPUT:128@3, where "
                "several are mixed."
            )
        rows = given.setdefault(name, [])
        if weight and weights.setdefault(len(rows), int(weight)) != int(weight):
            raise InputError(f"The shape {value!r} has another weight than the one it goes with. Give it once.")
        rows.append(tuple(int(part) for part in parts))
    counts = {len(rows) for rows in given.values()} - {1}
    if len(counts) > 1:
        words = ", ".join(f"{name} has {len(rows)}" for name, rows in given.items())
        raise InputError(
            f"Mixed shapes go together in turn, and {words}. Give each input one, or as many as the others."
        )
    if not counts:
        return {name: rows[0] for name, rows in given.items()}, ()
    return {}, tuple(
        MixedShape({name: rows[min(turn, len(rows) - 1)] for name, rows in given.items()}, weights.get(turn, 1))
        for turn in range(counts.pop())
    )


def parse_ranges(values: Iterable[str]) -> dict[str, tuple[int, int]]:
    """`INPUT:0:99` texts as {"INPUT": (0, 99)}. Raises InputError."""
    ranges = {}
    for value in values:
        name, low, high = [*value.rsplit(":", 2), "", ""][:3]
        try:
            ranges[name] = (int(low), int(high))
        except ValueError:
            raise InputError(f"The range {value!r} must be NAME:lowest:highest, such as INPUT:0:99.") from None
    return ranges


def describe_shapes(mix: Sequence[MixedShape]) -> str:
    """`IDS:12 ×3, IDS:128`: a set of shapes each, with its weight where it is not 1."""
    texts = []
    for row in mix:
        sizes = " ".join(f"{name}:{','.join(str(size) for size in shape)}" for name, shape in row.shapes.items())
        texts.append(f"{sizes} ×{row.weight}" if row.weight > 1 else sizes)
    return ", ".join(texts)
