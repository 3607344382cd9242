"""Rules about the further knobs in plain words: accelerators, warm-up, response cache, queue policy, threads.

Belongs here: pure rules over one `ModelConfig` protobuf message about what stands where a further knob stands, whoever
wrote it. Never: the limits of one value (knobs), Triton's rules about the rest (model_rules), files, servers.

Source: NVIDIA's onnxruntime_backend `onnxruntime.cc` (ModelState::LoadModel) and Triton's documents on priorities,
queue policies and the response cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritune.errors import InputError
from tritune.knobs import KNOBS
from tritune.model_rules import Finding, enum_name, nearest, serves_onnx

REFUSED_WHEN_ASKED = ("accelerator_ignored", "priority_ignored")
"""Warnings about what has no effect at all; a change that asks for it is refused."""

_PROFILES = ("trt_profile_min_shapes", "trt_profile_opt_shapes", "trt_profile_max_shapes")
_TENSORRT_PARAMETERS = frozenset(
    (
        "precision_mode",
        "max_workspace_size_bytes",
        "int8_calibration_table_name",
        "int8_use_native_calibration_table",
        "trt_max_partition_iterations",
        "trt_min_subgraph_size",
        "trt_dla_enable",
        "trt_dla_core",
        "trt_engine_cache_enable",
        "trt_engine_cache_path",
        "trt_engine_cache_prefix",
        "trt_dump_subgraphs",
        "trt_force_sequential_engine_build",
        "trt_context_memory_sharing_enable",
        "trt_layer_norm_fp32_fallback",
        "trt_timing_cache_enable",
        "trt_timing_cache_path",
        "trt_force_timing_cache",
        "trt_detailed_build_log",
        "trt_build_heuristics_enable",
        "trt_sparsity_enable",
        "trt_builder_optimization_level",
        "trt_auxiliary_streams",
        "trt_tactic_sources",
        "trt_extra_plugin_lib_paths",
        *_PROFILES,
        "trt_cuda_graph_enable",
        "trt_dump_ep_context_model",
        "trt_ep_context_file_path",
        "trt_ep_context_embed_mode",
    )
)


def rules(message: Any) -> tuple[Finding, ...]:
    """What a server would refuse or leave without effect among the further knobs."""
    found = [*_cache(message), *_queue(message)]
    if serves_onnx(message):
        found += [*_threads(message), *_accelerators(message)]
    return tuple(found)


def _cache(message: Any) -> Iterator[Finding]:
    if message.response_cache.enable:
        yield Finding(
            "response_cache",
            "warning",
            "response_cache { enable: true }",
            "A server that was started without --cache-config serves the model without a cache and does not say so; "
            "with one, a load test that repeats its requests measures the cache.",
            "Start the server with --cache-config local,size=BYTES, or take response_cache out to measure the model.",
        )


def _queue(message: Any) -> Iterator[Finding]:
    batching = message.dynamic_batching
    policy = batching.default_queue_policy
    if policy.timeout_action and not policy.default_timeout_microseconds and not policy.allow_timeout_override:
        yield Finding(
            "queue_timeout",
            "warning",
            "timeout_action: DELAY without default_timeout_microseconds",
            "No request ever waits too long, so the action has no effect.",
            "Set default_timeout_microseconds above 0, or allow_timeout_override: true.",
        )
    if batching.default_priority_level and not batching.priority_levels:
        yield Finding(
            "priority_ignored",
            "warning",
            f"default_priority_level: {batching.default_priority_level} without priority_levels",
            "Without levels there are no priorities.",
            f"Set priority_levels to {batching.default_priority_level} or more as well.",
        )


def _threads(message: Any) -> Iterator[Finding]:
    parameters = message.parameters
    if "inter_op_thread_count" not in parameters or parameters["inter_op_thread_count"].string_value == "0":
        return
    if "execution_mode" not in parameters or parameters["execution_mode"].string_value == "0":
        yield Finding(
            "inter_op_threads",
            "warning",
            "inter_op_thread_count with sequential execution",
            "ONNX Runtime uses these threads only where operators run in parallel.",
            "Set execution_mode to 1, or take inter_op_thread_count out.",
        )


def _accelerators(message: Any) -> Iterator[Finding]:
    found = message.optimization.execution_accelerators
    for entry in found.cpu_execution_accelerator:
        if entry.name != "openvino":
            yield _unknown(entry.name, "openvino", "cpu_execution_accelerator")
    entries = found.gpu_execution_accelerator
    for entry in entries:
        if entry.name not in ("tensorrt", "cuda"):
            guess = nearest(entry.name, ("tensorrt", "cuda")) or "tensorrt"
            yield _unknown(entry.name, guess, "gpu_execution_accelerator")
        elif entry.name == "tensorrt":
            yield from _tensorrt(entry.parameters)
    for knob in KNOBS.values():
        value = knob.read(message) if knob.engine else None
        if value is not None:
            try:
                knob.check(value)
            except InputError as error:
                fix = f"Write one that is allowed: {error}"
                yield Finding("accelerator_parameter", "error", f'{knob.name}: "{value}"', "It cannot have it.", fix)
    if not entries:
        return
    kinds = {enum_name(group, "kind") for group in message.instance_group}
    names = ", ".join(entry.name for entry in entries)
    if kinds and kinds <= {"KIND_CPU", "KIND_MODEL"}:
        yield Finding(
            "accelerator_ignored",
            "warning",
            f"gpu_execution_accelerator {names} with instance_group kind: {', '.join(sorted(kinds))}",
            "No instance runs on a GPU, so ONNX Runtime's backend ignores the accelerator.",
            "Take the accelerator out, or use kind: KIND_GPU.",
        )
    else:
        yield Finding(
            "needs_gpu",
            "info",
            f"gpu_execution_accelerator {names}",
            "A server without a GPU serves the model without it and does not say so.",
            "Use it on a server with a GPU; with TensorRT the first load builds an engine, which can take minutes.",
        )


def _unknown(name: str, right: str, field: str) -> Finding:
    return Finding(
        "accelerator",
        "error",
        f'{field} name: "{name}"',
        f"ONNX Runtime's backend refuses it: unknown Execution Accelerator '{name}' is requested.",
        f'Write name: "{right}", or take it out.',
    )


def _tensorrt(parameters: Any) -> Iterator[Finding]:
    for key in sorted(set(parameters) - _TENSORRT_PARAMETERS):
        guess = nearest(key, _TENSORRT_PARAMETERS)
        yield Finding(
            "accelerator_parameter",
            "error",
            f"parameter {key} of the accelerator tensorrt",
            "ONNX Runtime's backend refuses the model: it is an unknown parameter.",
            f"Write {guess}." if guess else "Take it out.",
        )
    given = [key for key in _PROFILES if key in parameters]
    if given and len(given) < len(_PROFILES):
        missing = ", ".join(key for key in _PROFILES if key not in given)
        yield Finding(
            "tensorrt_profile",
            "error",
            f"{', '.join(given)} without {missing}",
            "ONNX Runtime takes the three shapes of a profile together only.",
            f"Set {missing} as well, or take {', '.join(given)} out.",
        )
    cached = str(parameters.get("trt_engine_cache_enable", "0"))
    on, path = cached.lower() in ("1", "true"), "trt_engine_cache_path" in parameters
    if on and not path:
        yield Finding(
            "engine_cache",
            "warning",
            "trt_engine_cache_enable without trt_engine_cache_path",
            "The engines are written to the server's working folder and are lost with the container.",
            "Set trt_engine_cache_path to a folder that is mounted into the container.",
        )
    elif path and not on:
        yield Finding(
            "engine_cache",
            "warning",
            "trt_engine_cache_path without trt_engine_cache_enable",
            "Without the cache no engine is kept, and every load builds it again.",
            "Set trt_engine_cache_enable to 1, or take the path out.",
        )
