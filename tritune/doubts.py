"""What can spoil a number: one pure function a doubt, each giving a typed warning or None.

Belongs here: thresholds, and the sentence with cause and next step. Never: how the numbers are computed. A doubt is
stored with its trial and shown beside the number it spoils (docs/measurement.md, "Warnings").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tritune.estimators import required_successes
from tritune.load_plan import Driver, LoadPlan
from tritune.plan import Configuration

SATURATED_CPU_PERCENT = 85.0
"""Generator CPU without spinning, in percent of one core per process: above it the generator queues by itself."""
LAG_SHARE = 0.10
"""P99 of the send lag over P99 of the latency."""
STABLE_WINDOWS = 3
STABLE_RATIO = 1.10
"""Largest over smallest of the last three windows, as perf_analyzer's default --stability-percentage=10."""
STABLE_MIN_PER_WINDOW = 100
"""Below this many requests in a window its mean varies by 10 % by chance alone."""
P99_SUCCESSES = required_successes(0.99)
OTHER_TRAFFIC_SHARE = 0.01
OTHER_TRAFFIC_SLACK = 20
NEVER_BATCHED_RATIO = 1.05
"""Average batch over the client's own batch: at or below it the batcher merged nothing."""
DEFAULT_INSTANCES = 2
"""The most instances that Triton makes of an ONNX model whose configuration names no count (2 on a CPU)."""


class WarningCode(StrEnum):
    """The kinds of doubt."""

    GENERATOR_SATURATED = "generator_saturated"
    SCHEDULE_LAG = "schedule_lag"
    UNSTABLE = "unstable"
    TOO_FEW_SAMPLES = "too_few_samples"
    ERRORS = "errors"
    REJECTED_REQUESTS = "rejected_requests"
    NOT_IN_EFFECT = "not_in_effect"
    SERVER_RESTARTED = "server_restarted"
    OTHER_TRAFFIC = "other_traffic"
    NEVER_BATCHED = "never_batched"


@dataclass(frozen=True, slots=True)
class MeasurementWarning:
    """Why a number may measure the wrong thing: the cause and the next step, in plain words.

    `code` is a WarningCode, or the code of a note that the generator left (such as `lost_worker`).
    """

    code: str
    message: str

    def to_dict(self) -> dict[str, str]:
        return {"code": str(self.code), "message": self.message}


def generator_saturated(cpu_percent: float, cores: int, plan: LoadPlan) -> MeasurementWarning | None:
    """`cpu_percent` is of one core, all processes together, without spinning; `cores` is how many the generator can
    fill: a process of ours one, perf_analyzer's threads all."""
    share = cpu_percent / max(cores, 1)
    if share <= SATURATED_CPU_PERCENT:
        return None
    what = "a core per process" if plan.driver is Driver.LOCUST else "each core that its threads can fill"
    step = (
        f"Use more workers (now {plan.workers}), or send the load from another machine."
        if plan.driver is Driver.LOCUST
        else "Use the locust driver with several workers, or send the load from another machine."
    )
    return MeasurementWarning(
        WarningCode.GENERATOR_SATURATED,
        f"The load generator used {share:.0f} % of {what} (limit {SATURATED_CPU_PERCENT:.0f} %), so part "
        f"of the latency is its own and the server may be able to do more. {step}",
    )


def schedule_lag(lag_p99_ms: float, latency_p99_ms: float, unsent: int) -> MeasurementWarning | None:
    """Open loop only: requests left later than they were planned to."""
    if lag_p99_ms <= LAG_SHARE * latency_p99_ms:
        return None
    never = f" {unsent:,} could not be sent at all before the window ended." if unsent else ""
    return MeasurementWarning(
        WarningCode.SCHEDULE_LAG,
        f"Requests left late: the P99 of their lag behind the schedule is {lag_p99_ms:.3g} ms, more than "
        f"{LAG_SHARE:.0%} of the P99 latency of {latency_p99_ms:.3g} ms.{never} The generator, "
        "its connections or the server cannot keep up with the rate, or the machine is busy with something else. Lower "
        "the rate, use more workers, or stop the other work.",
    )


def unstable(
    shares: Sequence[float], means_ms: Sequence[float], counts: Sequence[int], *, open_loop: bool
) -> MeasurementWarning | None:
    """The thirds of the window, in order: throughput (open loop: answered over planned), mean latency, requests."""
    if min(counts, default=0) < STABLE_MIN_PER_WINDOW:
        return None
    what = "share of planned requests answered" if open_loop else "throughput"
    moved = []
    for name, values in ((what, shares), ("mean latency", means_ms)):
        if min(values) <= 0:
            moved.append(f"the {name} fell to nothing")
        elif max(values) / min(values) > STABLE_RATIO:
            moved.append(f"the {name} differs by {max(values) / min(values) - 1:.0%}")
    if not moved:
        return None
    return MeasurementWarning(
        WarningCode.UNSTABLE,
        f"Between the last {STABLE_WINDOWS} windows {' and '.join(moved)} (limit {STABLE_RATIO - 1:.0%}), so the "
        "numbers depend on when they were taken. Warm up longer, measure longer, and stop other work on this machine. "
        "If the latency only grows, the rate is above what the server sustains.",
    )


def too_few_samples(successes: int) -> MeasurementWarning | None:
    """`successes` were intended inside the window and answered."""
    if successes >= P99_SUCCESSES:
        return None
    return MeasurementWarning(
        WarningCode.TOO_FEW_SAMPLES,
        f"{successes:,} requests succeeded and P99 needs {P99_SUCCESSES}, so there is no P99. Measure longer or "
        "send more.",
    )


def errors(failed: int, timeouts: int, total: int, said: Sequence[Mapping[str, Any]]) -> MeasurementWarning | None:
    """`said` are the generator's {message, count}, most frequent first; `total` is all requests of the window."""
    if not failed + timeouts:
        return None
    parts = [f"{failed:,} failed"] if failed else []
    if timeouts:
        parts.append(f"{timeouts:,} got no answer in time")
    return MeasurementWarning(
        WarningCode.ERRORS,
        f"Of {total:,} requests {' and '.join(parts)}.{_most_frequent(said)} Failed requests are in no latency, so the "
        "percentiles describe the successful ones only. Mend the cause, or lower the load or raise the timeout, and "
        "measure again.",
    )


def rejected_requests(rejected: int, total: int, said: Sequence[Mapping[str, Any]]) -> MeasurementWarning | None:
    """The server said 503 or UNAVAILABLE."""
    if not rejected:
        return None
    return MeasurementWarning(
        WarningCode.REJECTED_REQUESTS,
        f"The server rejected {rejected:,} of {total:,} requests: its queue was full, a request waited too long in it, "
        f"or the model was not ready.{_most_frequent(said)} The latencies leave them out. Lower the load, or raise "
        "max_queue_size or default_timeout_microseconds in the model's default_queue_policy.",
    )


def _most_frequent(said: Sequence[Mapping[str, Any]]) -> str:
    if not said:
        return ""
    words = str(said[0]["message"]).strip().rstrip(".")
    return f" Most frequent ({int(said[0]['count']):,} times): “{words[:300]}”."


def not_in_effect(asked: Configuration | None, served: Configuration | None) -> MeasurementWarning | None:
    """The server serves another configuration than was asked for."""
    if asked is None or served is None:
        return None
    want, have = as_served(asked), as_served(served)
    other = []
    for name in ("dynamic_batching", "max_batch_size", "preferred_batch_size", "max_queue_delay_microseconds"):
        if getattr(want, name) != getattr(have, name):
            other.append(f"{name} {_shown(getattr(want, name))} was asked and {_shown(getattr(have, name))} is served")
    if want.instance_count is not None and have.instance_count not in (None, want.instance_count):
        other.append(f"instance_count {want.instance_count} was asked and {have.instance_count} is served")
    for name, value in want.further:
        # Which version is served is read from what is loaded, not from the policy that the server reports.
        if name != "model_version" and (found := dict(have.further).get(name)) != value:
            other.append(f"{name} {_shown(value)} was asked and {_shown(found)} is served")
    if not other:
        return None
    return MeasurementWarning(
        WarningCode.NOT_IN_EFFECT,
        f"The numbers belong to another configuration: {'; '.join(other)}. Reload the model, look for the reason in "
        "the server's log, and measure again.",
    )


def as_served(configuration: Configuration) -> Configuration:
    """The configuration as Triton normalises it: no preferred size means the maximum; without dynamic batching the
    other batching knobs mean nothing (core, model_config_utils.cc)."""
    if not configuration.dynamic_batching:
        return replace(configuration, preferred_batch_size=(), max_queue_delay_microseconds=0)
    preferred = configuration.preferred_batch_size or (configuration.max_batch_size,)
    return replace(configuration, preferred_batch_size=tuple(sorted(set(preferred))))


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(str(size) for size in value) if isinstance(value, tuple) else str(value)


def capped(
    served: Configuration | None, plan: LoadPlan, in_flight: float, batch_sizes: Mapping[int, int]
) -> MeasurementWarning | None:
    """Batches stop at the largest preferred size although the maximum is higher and more requests were waiting.

    With a delay of 0 the batcher sends exactly the preferred prefix (core, dynamic_batch_scheduler.cc).
    """
    if served is None or not served.dynamic_batching or not served.preferred_batch_size or not batch_sizes:
        return None
    cap, largest = max(served.preferred_batch_size), max(batch_sizes)
    if served.max_queue_delay_microseconds or cap >= served.max_batch_size or largest > cap:
        return None
    if in_flight * plan.batch <= cap or largest < cap:
        return None
    return MeasurementWarning(
        WarningCode.NOT_IN_EFFECT,
        f"Batches stopped at {cap} although max_batch_size is {served.max_batch_size}: with a queue delay of 0 Triton "
        f"sends exactly a preferred size, even when more requests wait. Remove the preferred sizes, add "
        f"{served.max_batch_size} to them, or set a queue delay above 0.",
    )


def server_restarted(restarted: bool) -> MeasurementWarning | None:
    """The server or the model was restarted or reloaded during the load test."""
    if not restarted:
        return None
    return MeasurementWarning(
        WarningCode.SERVER_RESTARTED,
        "The server or the model was restarted during the load test, so its counters began again and the numbers mix "
        "two lives. Look for the reason in the server's log and measure again.",
    )


def other_traffic(answered: int, ours: float) -> MeasurementWarning | None:
    """`answered` is the server's success count; `ours` is the most that it can have answered of our requests."""
    if answered <= ours * (1 + OTHER_TRAFFIC_SHARE) + OTHER_TRAFFIC_SLACK:
        return None
    return MeasurementWarning(
        WarningCode.OTHER_TRAFFIC,
        f"The server answered {answered:,} requests to this model and at most {ours:,.0f} of them were this load "
        "test's: somebody else used the model meanwhile, which makes throughput look lower and latency higher. Stop "
        "the other clients and measure again.",
    )


def never_batched(
    served: Configuration | None, plan: LoadPlan, in_flight: float, average_batch: float | None
) -> MeasurementWarning | None:
    """Dynamic batching is on and merged nothing. `in_flight` is the mean number of requests in flight."""
    if served is None or not served.dynamic_batching or average_batch is None:
        return None
    if average_batch > NEVER_BATCHED_RATIO * plan.batch:
        return None
    instances = served.instance_count or DEFAULT_INSTANCES
    if 2 * plan.batch > served.max_batch_size:
        cause = (
            f"a request of {plan.batch} leaves no room for a second one under max_batch_size {served.max_batch_size}"
        )
        step = "Raise max_batch_size or send smaller requests."
    elif in_flight <= instances:
        few = _count(plan.concurrency, "client") if plan.concurrency else f"{in_flight:.2g} requests"
        each = ", each waiting for its answer before it sends again," if plan.concurrency else ""
        cause = f"{few} in flight{each} meet {_count(instances, 'instance')}, so no request ever waits beside another"
        more = _count(instances, "client")
        step = f"This measures a lone request. Use more than {more}, or a higher rate, to see batching."
    else:
        cause = (
            f"about {in_flight:.2g} requests were in flight for {_count(instances, 'instance')}, yet no two were "
            "merged: their shapes differ, or each was taken before the next one arrived"
        )
        step = "Raise max_queue_delay_microseconds, send inputs of one shape, and look at the batch-size histogram."
    return MeasurementWarning(
        WarningCode.NEVER_BATCHED,
        f"Dynamic batching is on but batches averaged {average_batch:.3g}: {cause}. {step}",
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"
