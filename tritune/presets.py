"""What a popular tutorial claims, as something that can be run here: the claim, and what is really measured (pure).

Belongs here: the presets' words and the plans that they are. Never: running them, results.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from tritune.errors import InputError
from tritune.load_plan import Arrivals, Driver, Wire
from tritune.model_rules import nearest
from tritune.plan import Configuration, TuneChange
from tritune.study_plan import FIRST_LOOK, LoadSpace, SearchSpace, StudyPlan


class PresetKind(StrEnum):
    """How a preset is run: as a study, or as a change of the configuration whose reload is measured."""

    STUDY = "study"
    TUNE = "tune"


@dataclass(frozen=True, slots=True)
class Preset:
    """One claim. `measured` says what the run shows about it, and what to expect."""

    name: str
    title: str
    claim: str
    measured: str
    kind: PresetKind
    make: Callable[[str], StudyPlan] | None = None

    def plan(self, model: str) -> StudyPlan:
        """The study for a model. Raises InputError where the preset is a tune."""
        if self.make is None:
            raise InputError(
                f"The preset {self.name} is a change of the configuration, not a study. "
                "`tritune tune NAME --max-queue-delay-us 200` makes one and measures its stall."
            )
        return self.make(model)


def study(name: str, model: str) -> StudyPlan:
    """A preset's plan for a model. Raises InputError with the names that there are."""
    return preset(name).plan(model)


def preset(name: str) -> Preset:
    """The preset of that name. Raises InputError with the names that there are."""
    if name in PRESETS:
        return PRESETS[name]
    lines = "; ".join(f"{each.name} ({each.title})" for each in PRESETS.values())
    close = nearest(name, PRESETS)
    unknown = "" if name == "list" else f"There is no preset {name}. "
    raise InputError(f"{unknown}{f'Did you mean {close}? ' if close and unknown else ''}There are: {lines}.")


def reload_change(served: Configuration) -> TuneChange:
    """A change of one number that any model can take, so that its reload can be measured: the queue delay where the
    model is batched, otherwise the number of instances."""
    if served.dynamic_batching:
        return TuneChange(max_queue_delay_microseconds=200 if served.max_queue_delay_microseconds != 200 else 100)
    return TuneChange(instance_count=2 if served.instance_count != 2 else 1)


def _queue_delay(model: str) -> StudyPlan:
    return StudyPlan(
        model,
        SearchSpace(max_queue_delay_microseconds=(100, 1000)),
        LoadSpace(rate_rps=(100.0,), arrivals=(Arrivals.CONSTANT, Arrivals.POISSON)),
        title="Queue delay: 1000 µs against 100 µs at 100 requests/s",
    )


def _preferred(model: str) -> StudyPlan:
    return StudyPlan(
        model,
        SearchSpace(
            preferred_batch_size=((), (32, 64, 128)), max_queue_delay_microseconds=(0, 1000), max_batch_size=(128,)
        ),
        LoadSpace(concurrency=(8, 64)),
        title="Preferred batch sizes 32, 64, 128",
    )


def _concurrency(model: str) -> StudyPlan:
    return StudyPlan(
        model,
        loads=LoadSpace(concurrency=tuple(range(1, 33, 4)), driver=(Driver.PERF_ANALYZER,)),
        rounds=FIRST_LOOK,
        duration_s=5.0,
        title="perf_analyzer: concurrency 1 to 32 in steps of 4",
    )


def _json_binary(model: str) -> StudyPlan:
    return StudyPlan(
        model,
        loads=LoadSpace(concurrency=(1,), batch=(1,), wire=(Wire.BINARY, Wire.JSON)),
        rounds=5,
        duration_s=5.0,
        title="JSON against binary tensors",
    )


_ALL = (
    Preset(
        "queue-delay",
        "Queue delay: 1000 µs against 100 µs at 100 requests/s",
        "A delay of 1000 µs gives 42 % lower mean latency and 3.7 times the throughput of 100 µs.",
        "Both delays and what is served now, in an open loop of 100 requests/s, evenly spaced and at random. An open "
        "loop gets the throughput that it offers as long as the server keeps up, whatever the delay; at 10 ms between "
        "requests there is seldom another one to batch with, so a longer delay is a longer wait.",
        PresetKind.STUDY,
        _queue_delay,
    ),
    Preset(
        "preferred-sizes",
        "Preferred batch sizes 32, 64, 128",
        "preferred_batch_size [32, 64, 128] makes batches of these sizes and so raises throughput.",
        "The sizes against none, without a delay and with 1000 µs, with 8 and 64 clients. Without a delay Triton sends "
        "what is waiting; with one, 8 clients can never fill a batch of 32 and wait for it. NVIDIA's guide "
        "advises against preferred sizes for most models.",
        PresetKind.STUDY,
        _preferred,
    ),
    Preset(
        "concurrency",
        "perf_analyzer: concurrency 1 to 32 in steps of 4",
        "One pass of perf_analyzer over the levels shows how latency and throughput go; "
        "--stability-percentage=990 makes it about P99.",
        "The same levels (1, 5, …, 29), each in three rounds, with P99 from every request. That option is no "
        "percentile: it is how much windows may differ, and 990 calls nearly anything stable.",
        PresetKind.STUDY,
        _concurrency,
    ),
    Preset(
        "json-binary",
        "JSON against binary tensors",
        "JSON takes 120 ms where binary takes 8 ms.",
        "The same requests in both forms in turns, one client, one sample. How large the gap is depends on "
        "the bytes of a request; `python -m benchmarks.json_vs_binary` measures one megabyte.",
        PresetKind.STUDY,
        _json_binary,
    ),
    Preset(
        "reload",
        "A reload inside 800 ms",
        "A new configuration is in effect within 800 ms, without an interruption.",
        "A small change of the configuration: how long Triton's load call takes, and the longest gap between two "
        "answers that a client sees meanwhile. How long a reload takes depends on the model.",
        PresetKind.TUNE,
    ),
)

PRESETS = {each.name: each for each in _ALL}
