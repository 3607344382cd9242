"""Samples and a statistics difference in, an honest Measurement with its warnings out (docs/measurement.md).

Belongs here: pure functions of what a load test recorded. Which request counts for what is in window.py, the formulas
are in estimators.py, the warnings and their thresholds in doubts.py. Never: files, clocks, plots, how a request was
sent, how trials compare.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from loadgen.histogram import Tally
from loadgen.samples import SampleFile, Samples
from tritune import doubts
from tritune.doubts import MeasurementWarning
from tritune.estimators import (
    CountedDurations,
    Durations,
    Interval,
    draw_blocks,
    interval_of_rate,
    required_successes,
)
from tritune.load_plan import Driver, LoadPlan
from tritune.plan import Configuration
from tritune.window import NS_PER_MS, NS_PER_S, RequestCounts, Window

if TYPE_CHECKING:
    from loadgen.outcome import Outcome
    from tritune.triton import StatisticsDifference


_TOO_SHORT = "The window is under 1 s, too short for an interval."
_BY_STAGES = "Stages change the load on purpose, so stretches of time are not alike and there is no interval."


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval. `value` None has a `reason`; `at_least`: the truth is this or more."""

    value: float | None
    ci95: Interval | None = None
    at_least: bool = False
    reason: str | None = None

    def to_dict(self) -> dict[str, Any]:
        document: dict[str, Any] = {"value": self.value, "ci95": list(self.ci95) if self.ci95 else None}
        document["at_least"] = self.at_least
        if self.reason:
            document["reason"] = self.reason
        return document


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies in milliseconds of every request intended inside the window.

    Latency is done - intended, service time done - sent (answered requests only). None: too few successes.
    `lower_bounds` names the plain numbers that read "at least", because unfinished requests reach into them.
    """

    p50: float | None
    p90: float | None
    p95: float | None
    p99: Estimate
    p999: Estimate
    mean: float | None
    max: float | None
    service_p50: float | None
    service_p99: float | None
    lower_bounds: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {
            "p50": self.p50,
            "p90": self.p90,
            "p95": self.p95,
            "p99": self.p99.to_dict(),
            "p999": self.p999.to_dict(),
            "mean": self.mean,
            "max": self.max,
            "service_p50": self.service_p50,
            "service_p99": self.service_p99,
            "lower_bounds": list(self.lower_bounds),
        }


@dataclass(frozen=True, slots=True)
class GeneratorCost:
    """What the generator's process group spent between the window's edges, deliberate spinning apart.

    `cpu_percent` is of one core (100 * processes when all are full). `lag_p99_ms` is sent - intended; None where
    nothing is scheduled (closed loop, perf_analyzer) or the sample is too small.
    """

    cpu_us_per_request: float | None
    cpu_percent: float
    lag_p99_ms: float | None
    spin_percent: float
    processes: int

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class ServerShare:
    """What Triton counted between the window's edges; times in microseconds per request."""

    average_batch: float | None
    batch_sizes: Mapping[int, int]
    queue_us: float | None
    compute_input_us: float | None
    compute_infer_us: float | None
    compute_output_us: float | None

    def to_dict(self) -> dict[str, Any]:
        document = {name: getattr(self, name) for name in self.__slots__}
        document["batch_sizes"] = {str(size): count for size, count in sorted(self.batch_sizes.items())}
        return document


@dataclass(frozen=True, slots=True)
class Measurement:
    """One load test in numbers; `to_dict()` is part of what `tritune load --json` prints.

    `window_ns` are the window's edges on the samples' clock, `loop` is `open` or `closed`, and `latency_from` says
    whether latencies begin at the `intended` or (perf_analyzer: service times) at the `sent` time.
    """

    throughput_ips: Estimate
    latency: Latency
    requests: RequestCounts
    generator: GeneratorCost
    server: ServerShare | None
    warnings: tuple[MeasurementWarning, ...]
    goodput_rps: float | None
    window_s: float
    window_ns: tuple[int, int]
    loop: str
    latency_from: str

    def to_dict(self) -> dict[str, Any]:
        return {
            "throughput_ips": {"value": self.throughput_ips.value, "ci95": self.throughput_ips.to_dict()["ci95"]},
            "latency_ms": self.latency.to_dict(),
            "requests": self.requests.to_dict(),
            "generator": self.generator.to_dict(),
            "server": self.server.to_dict() if self.server else None,
            "warnings": [warning.to_dict() for warning in self.warnings],
            "goodput_rps": self.goodput_rps,
            "window_s": self.window_s,
            "window_ns": list(self.window_ns),
            "loop": self.loop,
            "latency_from": self.latency_from,
        }


def measure(
    plan: LoadPlan,
    samples: Samples | SampleFile | Tally,
    outcome: Outcome,
    server: StatisticsDifference | None,
    *,
    generator_cpu_ns: int,
    generator_processes: int,
    asked: Configuration | None,
    served: Configuration | None,
    server_restarted: bool,
    seed: int = 0,
    latency_limit_ms: float | None = None,
) -> Measurement:
    """The numbers of one load test and what is doubtful about them. Raises LoadTestError where the window is empty.

    `generator_cpu_ns` is user and system time of the generator's process group between the window's edges, spinning
    included. `server` None: no statistics, or counters that went backwards. `latency_limit_ms` gives goodput.
    The same arguments give the same result; `seed` moves the bootstrap only. A million samples take under 2 s.
    """
    window = Window.cut(samples, outcome.window_start_ns, outcome.window_end_ns)
    throughput, latency = _headline(plan, window, np.random.default_rng(seed))
    generator = _generator_cost(plan, window, generator_cpu_ns, outcome.spin_ns, generator_processes)
    goodput = None
    if latency_limit_ms is not None:
        goodput = window.latencies.within(latency_limit_ms * NS_PER_MS) / window.length_s
    return Measurement(
        throughput_ips=throughput,
        latency=latency,
        requests=window.counts,
        generator=generator,
        server=_server_share(server),
        warnings=(
            *_load_warnings(plan, window, outcome, generator),
            *_server_warnings(plan, window, outcome, server, asked, served, server_restarted),
            *(MeasurementWarning(str(note["code"]), str(note["message"])) for note in outcome.notes),
        ),
        goodput_rps=goodput,
        window_s=window.length_s,
        window_ns=(window.start_ns, window.end_ns),
        loop="open" if plan.is_open_loop else "closed",
        latency_from="intended" if plan.driver is Driver.LOCUST else "sent",
    )


def _headline(plan: LoadPlan, window: Window, rng: np.random.Generator) -> tuple[Estimate, Latency]:
    """Throughput and latency with their intervals; one draw of blocks serves both."""
    blocks = 0 if plan.stages else window.blocks
    draws = draw_blocks(blocks, rng) if blocks else None
    rate = window.answers * plan.batch / window.length_s
    interval = None
    if draws is not None and window.answers:
        interval = interval_of_rate(window.answers_by_slot * plan.batch, window.length_s, draws)
    return Estimate(rate, interval), _latency(window, draws, _BY_STAGES if plan.stages else _TOO_SHORT)


def _latency(window: Window, draws: NDArray[np.float32] | None, without: str) -> Latency:
    """`without` says why there are no intervals where there are no draws."""
    durations = window.latencies
    lower_bounds = []
    plain: dict[str, float | None] = {}
    for name, share in (("p50", 0.50), ("p90", 0.90), ("p95", 0.95)):
        found = durations.quantile(share) if window.successes >= required_successes(share) else None
        plain[name] = found.value / NS_PER_MS if found else None
        if found and found.at_least:
            lower_bounds.append(name)
    if durations.has_censored:
        lower_bounds += ["mean", "max"]
    tails = (0.99, 0.999)
    intervals: dict[float, Interval] = {}
    if draws is not None and (wanted := [q for q in tails if window.successes >= required_successes(q)]):
        intervals = dict(zip(wanted, window.quantile_intervals(wanted, draws), strict=True))
    p99, p999 = (_tail(window, quantile, intervals.get(quantile), without) for quantile in tails)
    some = durations.size > 0
    return Latency(
        p50=plain["p50"],
        p90=plain["p90"],
        p95=plain["p95"],
        p99=p99,
        p999=p999,
        mean=durations.mean / NS_PER_MS if some else None,
        max=durations.longest / NS_PER_MS if some else None,
        service_p50=_quantile_ms(window.services, 0.50),
        service_p99=_quantile_ms(window.services, 0.99),
        lower_bounds=tuple(lower_bounds),
    )


def _tail(window: Window, quantile: float, interval: Interval | None, without: str) -> Estimate:
    """A high percentile with its interval, or the reason why there is none."""
    needed = required_successes(quantile)
    found = window.latencies.quantile(quantile)
    if found is None or window.successes < needed:
        name = f"P{quantile * 100:g}"
        return Estimate(None, reason=f"{name} needs {needed} successful requests and there are {window.successes}.")
    value = found.value / NS_PER_MS
    if found.at_least:
        return Estimate(value, at_least=True, reason="Requests without an answer reach into it, so it may be higher.")
    if interval is None:
        return Estimate(value, reason=without)
    if interval[1] >= window.latencies.smallest_bound():
        return Estimate(value, reason="The interval reaches requests without an answer, so its upper end is unknown.")
    return Estimate(value, (interval[0] / NS_PER_MS, interval[1] / NS_PER_MS))


def _quantile_ms(durations: Durations | CountedDurations, quantile: float) -> float | None:
    """The quantile in milliseconds; None where the sample is too small for it."""
    found = durations.quantile(quantile) if durations.size >= required_successes(quantile) else None
    return found.value / NS_PER_MS if found else None


def _generator_cost(plan: LoadPlan, window: Window, cpu_ns: int, spin_ns: int, processes: int) -> GeneratorCost:
    work_ns = max(cpu_ns - spin_ns, 0)
    return GeneratorCost(
        cpu_us_per_request=work_ns / 1e3 / window.completed if window.completed else None,
        cpu_percent=work_ns / NS_PER_S / window.length_s * 100,
        lag_p99_ms=_quantile_ms(window.lags, 0.99) if _has_schedule(plan) else None,
        spin_percent=spin_ns / NS_PER_S / window.length_s * 100,
        processes=processes,
    )


def _has_schedule(plan: LoadPlan) -> bool:
    """Whether requests have an intended time of their own: an open loop of ours (perf_analyzer reports none)."""
    return plan.is_open_loop and plan.driver is Driver.LOCUST


def _server_share(server: StatisticsDifference | None) -> ServerShare | None:
    if server is None:
        return None
    return ServerShare(
        average_batch=server.average_batch,
        batch_sizes=dict(server.batch_sizes),
        queue_us=server.queue_us,
        compute_input_us=server.compute_input_us,
        compute_infer_us=server.compute_infer_us,
        compute_output_us=server.compute_output_us,
    )


def _load_warnings(
    plan: LoadPlan, window: Window, outcome: Outcome, generator: GeneratorCost
) -> Iterator[MeasurementWarning]:
    """Doubts about the generator and the requests."""
    counts = window.counts
    total = window.successes + counts.missed
    lag, latency = window.lags.quantile(0.99), window.latencies.quantile(0.99)
    found = [
        doubts.generator_saturated(generator.cpu_percent, outcome.fillable_cores or generator.processes, plan),
        _unstable(plan, window),
        doubts.too_few_samples(window.successes),
        doubts.errors(counts.failed, counts.timeout, total, outcome.errors),
        doubts.rejected_requests(counts.rejected, total, outcome.errors),
    ]
    if _has_schedule(plan) and lag and latency:
        found.append(doubts.schedule_lag(lag.value / NS_PER_MS, latency.value / NS_PER_MS, counts.unsent))
    return (doubt for doubt in found if doubt is not None)


def _unstable(plan: LoadPlan, window: Window) -> MeasurementWarning | None:
    """Throughput and mean latency of the thirds of the window against each other.

    An open loop's throughput follows its schedule, so there answers are divided by the requests planned in the third:
    what is left is the server's doing. Stages change the load on purpose and are not judged.
    """
    if plan.stages:
        return None
    thirds = window.thirds
    at_least_one = np.maximum(thirds.planned, 1)
    shares = thirds.answers / (at_least_one if plan.is_open_loop else window.length_s)
    means_ms = thirds.sums_ns / at_least_one / NS_PER_MS
    return doubts.unstable(shares.tolist(), means_ms.tolist(), thirds.planned.tolist(), open_loop=plan.is_open_loop)


def _server_warnings(
    plan: LoadPlan,
    window: Window,
    outcome: Outcome,
    server: StatisticsDifference | None,
    asked: Configuration | None,
    served: Configuration | None,
    server_restarted: bool,
) -> Iterator[MeasurementWarning]:
    """Doubts about what was measured: the configuration, the server's life, who else used it."""
    mean_s = window.latencies.mean / NS_PER_S
    rate = window.answers / window.length_s
    in_flight = float(plan.concurrency) if plan.concurrency else rate * mean_s  # Little 1961: L = lambda * W
    found = [doubts.not_in_effect(asked, served), doubts.server_restarted(server_restarted)]
    if server is not None and not server_restarted:
        # where perf_analyzer lost records of ours, nothing is known about those of others
        is_incomplete = any(note["code"] == "records_lost" for note in outcome.notes)
        late = max(server.window_s - window.length_s, 0.0)
        ours = window.answers + window.uncertain + rate * late + in_flight
        found += [
            doubts.capped(served, plan, in_flight, server.batch_sizes),
            None if is_incomplete else doubts.other_traffic(server.success_count, ours),
            doubts.never_batched(served, plan, in_flight, server.average_batch),
        ]
    return (doubt for doubt in found if doubt is not None)
