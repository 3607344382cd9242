"""The option strings of `tritune sweep` as a StudyPlan: lists of sizes, delays, loads, on or off (pure).

Belongs here: what an option may look like, with one sentence where it does not. Never: files (study_file), which
combinations exist (study_space), waiting, printing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from tritune import knobs
from tritune.errors import InputError
from tritune.knobs import Scalar
from tritune.load_plan import Arrivals, Driver, Protocol
from tritune.model_rules import nearest
from tritune.study_plan import LoadSpace, Objective, SearchMethod, SearchSpace, StudyPlan, Switching

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_NUMBER = r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?"
_ON_OFF = {"on": True, "true": True, "yes": True, "off": False, "false": False, "no": False}
MAX_VALUES = 10_000


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """What was typed, None where it was not. `knobs` maps a further knob to its values; `request` holds what every load
    shares, as StudyPlan.request."""

    preferred_batch_size: str | None = None
    max_queue_delay_us: str | None = None
    max_batch_size: str | None = None
    instances: str | None = None
    batching: str | None = None
    threads: str | None = None
    knobs: Mapping[str, str] = field(default_factory=dict)
    concurrency: str | None = None
    rate: str | None = None
    arrivals: str | None = None
    batch: str | None = None
    protocol: str | None = None
    driver: str | None = None
    rounds: int | None = None
    duration_s: float | None = None
    warmup_s: float | None = None
    seed: int | None = None
    budget_min: float | None = None
    precision: float | None = None
    p99_ms: float | None = None
    min_throughput: float | None = None
    baseline: str | None = None
    search: str | None = None
    switching: str | None = None
    stop_early: bool | None = None
    share: str | None = None
    title: str | None = None
    request: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, model: str, base: StudyPlan | None = None) -> StudyPlan:
        """The plan of these options; what was not given stays as in `base` (a plan's file or a preset).

        Raises InputError with the option, the value and what it may look like.
        """
        start = base or StudyPlan(model)
        changes: dict[str, Any] = _given(
            model=model,
            rounds=self.rounds,
            duration_s=self.duration_s,
            warmup_s=self.warmup_s,
            seed=self.seed,
            budget_s=None if self.budget_min is None else self.budget_min * 60,
            precision=self.precision,
            stop_early=self.stop_early,
            share=self.share,
            title=self.title,
            baseline=None if self.baseline is None else baseline(self.baseline),
            search=None if self.search is None else _choice("search", self.search, SearchMethod),
            switching=None
            if self.switching is None
            else _choice("switching", self.switching.replace("-", "_"), Switching),
        )
        limits = _given(p99_ms=self.p99_ms, min_throughput_ips=self.min_throughput)
        return replace(
            start,
            **changes,
            space=self._space(start.space),
            loads=self._loads(start.loads),
            objective=Objective(**limits) if limits else start.objective,
            request={**start.request, **self.request},
        )

    def _space(self, start: SearchSpace) -> SearchSpace:
        further = {name: knob_values(name, text) for name, text in self.knobs.items()}
        if self.threads is not None:
            if "intra_op_thread_count" in further:
                raise InputError("--threads and the knob intra_op_thread_count are the same. Give one of them.")
            further["intra_op_thread_count"] = wholes(self.threads, "threads")
        for name, values in further.items():
            for value in values:
                knobs.check(name, value)
        changes = _given(
            preferred_batch_size=_read(preferred, self.preferred_batch_size),
            max_queue_delay_microseconds=_read(wholes, self.max_queue_delay_us, "max_queue_delay_us"),
            max_batch_size=_read(wholes, self.max_batch_size, "max_batch_size"),
            instance_count=_read(wholes, self.instances, "instances"),
            dynamic_batching=_read(on_off, self.batching),
        )
        return replace(start, **changes, further={**start.further, **further})

    def _loads(self, start: LoadSpace) -> LoadSpace:
        changes = _given(
            arrivals=_read(_choices, self.arrivals, "arrivals", Arrivals),
            batch=_read(wholes, self.batch, "batch"),
            protocol=_read(_choices, self.protocol, "protocol", Protocol),
            driver=_read(_choices, self.driver, "driver", Driver),
        )
        if Arrivals.REPLAY in changes.get("arrivals", ()):
            raise InputError("arrivals=replay is not for studies. Use constant or poisson.")
        if self.concurrency is not None or self.rate is not None:
            changes["concurrency"] = _read(wholes, self.concurrency, "concurrency") or ()
            changes["rate_rps"] = _read(numbers, self.rate, "rate") or ()
        if self.arrivals is not None and not changes.get("rate_rps", start.rate_rps):
            raise InputError(f"arrivals={self.arrivals} is about an open loop. Give --rate as well, or leave it out.")
        return replace(start, **changes)


def preferred(text: str) -> tuple[tuple[int, ...], ...]:
    """`none;4;4,8` as lists of preferred sizes, one a configuration. Raises InputError."""
    found: list[tuple[int, ...]] = []
    for part in text.split(";"):
        if part.strip().lower() in ("none", ""):
            if not part.strip():
                raise _wrong("preferred_batch_size", text, 'lists with semicolons between them, such as "none;4;4,8"')
            found.append(())
            continue
        if not re.fullmatch(r"\s*\d{1,10}\s*(,\s*\d{1,10}\s*)*", part):
            raise _wrong("preferred_batch_size", text, 'lists with semicolons between them, such as "none;4;4,8"')
        found.append(tuple(int(size) for size in part.split(",")))
    return _once(found)


def wholes(text: str, what: str) -> tuple[int, ...]:
    """`0,100,1000` as numbers; `1:32:4` is 1, 5, 9, …, 29, as perf_analyzer counts. Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        if match := re.fullmatch(r"\s*(\d{1,10}):(\d{1,10})(?::(\d{1,10}))?\s*", part):
            start, end, step = int(match[1]), int(match[2]), int(match[3] or 1)
            if step < 1 or end < start or (end - start) // step >= MAX_VALUES:
                raise _wrong(what, text, f"start:end:step with at most {MAX_VALUES:,} steps upwards, such as 1:32:4")
            found += range(start, end + 1, step)
        elif re.fullmatch(r"\s*-?\d{1,18}\s*", part):
            found.append(int(part))
        else:
            raise _wrong(what, text, "whole numbers with commas between them, such as 1,8,32 (or 1:32:4)")
    return _once(found)


def numbers(text: str, what: str) -> tuple[float, ...]:
    """`100,250.5` as numbers. Raises InputError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch(_NUMBER, part, re.IGNORECASE) for part in parts):
        raise _wrong(what, text, "numbers with commas between them, such as 100,500")
    return _once([float(part) for part in parts])


def on_off(text: str) -> tuple[bool, ...]:
    """`on,off` as whether dynamic batching is on. Raises InputError."""
    parts = [part.strip().lower() for part in text.split(",")]
    if not all(part in _ON_OFF for part in parts):
        raise _wrong("batching", text, "on, off or on,off")
    return _once([_ON_OFF[part] for part in parts])


def knob_values(name: str, text: str) -> tuple[Scalar, ...]:
    """The values of a further knob: commas between them, semicolons where a value has commas itself. Raises InputError
    with the knob's limits."""
    knob = knobs.knob(name)
    separator = ";" if ";" in text or knob.kind is knobs.KnobKind.TEXT else ","
    parts = [text] if knob.kind is knobs.KnobKind.TEXT and separator not in text else text.split(separator)
    found: list[Scalar] = []
    for part in parts:
        value = knobs.parse(name, part)
        if value is None:
            raise InputError(
                f"{name}={text} has a value that only takes the knob out. Leave it away: the baseline is measured in "
                "any case."
            )
        found.append(value)
    return _once(found)


def baseline(text: str) -> str:
    """`served` or a trial's id. Raises InputError."""
    if text != "served" and not re.fullmatch(r"t\d+", text):
        raise _wrong("baseline", text, "`served` or a trial's id, such as t12")
    return text


def _choices(text: str, what: str, kind: type[E]) -> tuple[E, ...]:
    return _once([_choice(what, part, kind) for part in text.split(",")])


def _choice(what: str, text: str, kind: type[E]) -> E:
    names = [str(each) for each in kind]
    if (name := text.strip().lower()) in names:
        return kind(name)
    close = nearest(name, names)
    advice = f"Did you mean {close}?" if close else f"It is one of {', '.join(names)}."
    raise InputError(f"{what}={text.strip()} is unknown. {advice}")


def _read(parse: Callable[..., T], text: str | None, *more: Any) -> T | None:
    return None if text is None else parse(text, *more)


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _once(values: Sequence[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(values))


def _wrong(what: str, text: str, wanted: str) -> InputError:
    return InputError(f"{what}={text!r} must be {wanted}.")
