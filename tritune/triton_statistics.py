"""Triton's counters: one reading, the difference of two, and how they arrive (JSON and Prometheus' text).

Belongs here: pure functions on what a server has answered. Never: asking a server.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """Triton's cumulative counters of one model, its versions added up, at one moment.

    `taken_ns` is time.monotonic_ns(); the `_ns` sums charge every request of a batch the whole batch's compute
    time, so they are per request. `batch_executions` maps a batch size to its executions.
    """

    taken_ns: int
    inference_count: int
    execution_count: int
    success_count: int
    fail_count: int
    success_ns: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    batch_executions: Mapping[int, int]
    versions: tuple[str, ...]

    def since(self, before: ModelStatistics) -> StatisticsDifference | None:
        """What happened after `before`; None where the two are not of one series (a reload or restart between)."""
        counters = [name for name in self.__slots__ if name not in ("batch_executions", "versions")]
        steps = {name: getattr(self, name) - getattr(before, name) for name in counters}
        sizes = {
            size: self.batch_executions.get(size, 0) - before.batch_executions.get(size, 0)
            for size in sorted({*self.batch_executions, *before.batch_executions})
        }
        if self.versions != before.versions or min([*steps.values(), *sizes.values()]) < 0:
            return None

        requests = steps["success_count"]
        executions = steps["execution_count"]

        def per_request_us(name: str) -> float | None:
            return steps[name] / requests / 1e3 if requests else None

        return StatisticsDifference(
            inference_count=steps["inference_count"],
            execution_count=executions,
            success_count=requests,
            fail_count=steps["fail_count"],
            average_batch=steps["inference_count"] / executions if executions else None,
            batch_sizes={size: count for size, count in sizes.items() if count},
            queue_us=per_request_us("queue_ns"),
            compute_input_us=per_request_us("compute_input_ns"),
            compute_infer_us=per_request_us("compute_infer_ns"),
            compute_output_us=per_request_us("compute_output_ns"),
            window_s=steps["taken_ns"] / 1e9,
        )


@dataclass(frozen=True, slots=True)
class StatisticsDifference:
    """What a server did between two readings. Times are per successful request, None where there was none;
    `average_batch` is inferences per execution, None where nothing was executed.
    """

    inference_count: int
    execution_count: int
    success_count: int
    fail_count: int
    average_batch: float | None
    batch_sizes: Mapping[int, int]
    queue_us: float | None
    compute_input_us: float | None
    compute_infer_us: float | None
    compute_output_us: float | None
    window_s: float


def parse_statistics(document: Mapping[str, Any], taken_ns: int) -> ModelStatistics:
    """ModelStatistics from the JSON of GET /v2/models/M/stats, its versions added up."""
    models = document.get("model_stats") or []
    sizes: dict[int, int] = {}
    for model in models:
        for batch in model.get("batch_stats") or []:
            size = int(batch["batch_size"])
            sizes[size] = sizes.get(size, 0) + int((batch.get("compute_infer") or {}).get("count") or 0)

    def total(*path: str) -> int:
        values: list[Any] = models
        for key in path:
            values = [(value or {}).get(key) for value in values]
        return sum(int(value or 0) for value in values)

    return ModelStatistics(
        taken_ns=taken_ns,
        inference_count=total("inference_count"),
        execution_count=total("execution_count"),
        success_count=total("inference_stats", "success", "count"),
        fail_count=total("inference_stats", "fail", "count"),
        success_ns=total("inference_stats", "success", "ns"),
        queue_ns=total("inference_stats", "queue", "ns"),
        compute_input_ns=total("inference_stats", "compute_input", "ns"),
        compute_infer_ns=total("inference_stats", "compute_infer", "ns"),
        compute_output_ns=total("inference_stats", "compute_output", "ns"),
        batch_executions=sizes,
        versions=tuple(sorted(str(model.get("version", "")) for model in models)),
    )


def parse_metrics(text: str) -> dict[str, float]:
    """Prometheus' text format: `name{labels}` to value; comments and what cannot be read are left out."""
    samples = {}
    for line in text.splitlines():
        match = re.fullmatch(r"([A-Za-z_:][\w:]*(?:\{.*\})?)\s+(\S+)(?:\s+\d+)?", line.strip())
        if match:
            try:
                samples[match[1]] = float(match[2])
            except ValueError:
                continue
    return samples


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the metrics say of one GPU at one moment; None: not available (under MIG, without DCGM), never zero.

    `utilization` is from 0 to 1.
    """

    uuid: str
    utilization: float | None = None
    memory_used_bytes: float | None = None
    memory_total_bytes: float | None = None
    power_w: float | None = None


_GPU_METRICS: Mapping[str, str] = {
    "nv_gpu_utilization": "utilization",
    "nv_gpu_memory_used_bytes": "memory_used_bytes",
    "nv_gpu_memory_total_bytes": "memory_total_bytes",
    "nv_gpu_power_usage": "power_w",
}


def gpu_readings(metrics: Mapping[str, float]) -> tuple[GpuReading, ...] | None:
    """One reading for each GPU in `parse_metrics`' samples, in the order of their UUIDs; None where there is none."""
    found: dict[str, dict[str, float]] = {}
    for name, value in metrics.items():
        match = re.fullmatch(r'(nv_gpu_\w+)\{.*?gpu_uuid="([^"]+)".*\}', name)
        if match and (field := _GPU_METRICS.get(match[1])):
            found.setdefault(match[2], {})[field] = value
    return tuple(GpuReading(uuid, **fields) for uuid, fields in sorted(found.items())) or None


def gpu_document(readings: Sequence[tuple[float, Sequence[GpuReading] | None]]) -> dict[str, Any] | None:
    """What is kept with a trial of readings at seconds of its window; None (not available) where none had a GPU.

    {gpus: [{uuid, utilization {mean, max}, memory_used_bytes {mean, max}, memory_total_bytes, power_w {mean, max}}],
    series: [{at_s, uuid, utilization, memory_used_bytes}]}; what is not available is None.
    """
    series = [(at_s, gpu) for at_s, gpus in readings for gpu in gpus or ()]
    if not series:
        return None

    def summary(uuid: str, field: str) -> dict[str, float] | None:
        values = [getattr(gpu, field) for _, gpu in series if gpu.uuid == uuid and getattr(gpu, field) is not None]
        return {"mean": sum(values) / len(values), "max": max(values)} if values else None

    gpus = []
    for uuid in sorted({gpu.uuid for _, gpu in series}):
        total = summary(uuid, "memory_total_bytes")
        parts = {field: summary(uuid, field) for field in ("utilization", "memory_used_bytes", "power_w")}
        gpus.append({"uuid": uuid, **parts, "memory_total_bytes": total["max"] if total else None})
    points = [
        {"at_s": at_s, "uuid": g.uuid, "utilization": g.utilization, "memory_used_bytes": g.memory_used_bytes}
        for at_s, g in series
    ]
    return {"gpus": gpus, "series": points}
