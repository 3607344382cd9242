"""The knobs beyond the five of plan.Configuration: their names, limits, words, and what each of them needs.

Belongs here: the one table of further knobs, `parse` and `check` of a value, reading and writing all of them. Never:
the five (model_config), what a knob is (knob_kinds), where it stands in the protobuf (knob_places), rules over a whole
configuration (knob_rules, model_rules), files, servers.

Sources: Triton common `model_config.proto`; NVIDIA's onnxruntime_backend, README and `src/onnxruntime.cc`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from tritune.errors import InputError
from tritune.knob_kinds import NUMBERS, PATH, SHAPES, Knob, KnobKind
from tritune.knob_places import (
    Accelerator,
    AcceleratorParameter,
    Batching,
    GraphLevel,
    InstanceGpus,
    InstanceKind,
    Parameter,
    ResponseCache,
    Scalar,
    Version,
    Warmup,
)

__all__ = ["KNOBS", "Knob", "KnobKind", "Scalar", "check", "describe", "knob", "parse", "read", "write"]

_ON_OFF = {"on": True, "true": True, "1": True, "yes": True, "off": False, "false": False, "0": False, "no": False}
_REMOVE = ("none", "default", "")

_INT, _BOOL, _CHOICE, _TEXT = KnobKind.INT, KnobKind.BOOL, KnobKind.CHOICE, KnobKind.TEXT


def _trt(key: str, label: str, kind: KnobKind, hint: str, phrase: str, **more: Any) -> Knob:
    type_ = {_BOOL: bool, _INT: int}.get(kind, str)
    place = AcceleratorParameter("tensorrt", key, type_)
    return Knob(key, label, kind, place, hint, phrase, needs_gpu=True, engine="tensorrt", **more)


def _cuda(key: str, label: str, hint: str, phrase: str) -> Knob:
    place = AcceleratorParameter("cuda", key, bool)
    return Knob(key, label, _BOOL, place, hint, phrase, needs_gpu=True, engine="cuda")


def _profile(which: str) -> Knob:
    return _trt(
        f"trt_profile_{which}_shapes",
        f"TensorRT {which} shapes",
        _TEXT,
        "With the batch dimension, for every free input; min, opt and max go together.",
        f"TensorRT {which} {{}}",
        form=SHAPES,
        example="x:1x4 (several inputs with commas between)",
    )


_ALL = (
    Knob(
        "model_version",
        "Served version",
        _INT,
        Version(),
        "The number of a version folder; left out, Triton serves the newest.",
        "version {}",
        low=1,
        high=2**62,
    ),
    Knob(
        "intra_op_thread_count",
        "Intra-op threads",
        _INT,
        Parameter("intra_op_thread_count"),
        "Within an operator, for each instance. Left out or 0, NVIDIA's container takes all cores for each instance, "
        "and the embedded Triton shares them out.",
        "{} intra-op threads",
        high=1024,
    ),
    Knob(
        "inter_op_thread_count",
        "Inter-op threads",
        _INT,
        Parameter("inter_op_thread_count"),
        "Across operators, for each instance; counts only where operators run in parallel.",
        "{} inter-op threads",
        high=1024,
    ),
    Knob(
        "execution_mode",
        "Operators run",
        _CHOICE,
        Parameter("execution_mode"),
        "In parallel can help models with many branches.",
        "{} execution",
        choices={0: "sequential", 1: "parallel"},
    ),
    Knob(
        "graph_optimization_level",
        "Graph optimisation",
        _CHOICE,
        GraphLevel(),
        "ONNX Runtime's rewriting of the graph; left out, it does all of it.",
        "graph optimisation {}",
        choices={0: "all", -1: "basic", 1: "extended", 2: "off"},
    ),
    Knob(
        "model_warmup",
        "Warm up batch sizes",
        _TEXT,
        Warmup(),
        "Triton runs one batch of zeros of each size before the model is ready. None may be above max_batch_size: "
        "Triton 2.51 crashes there.",
        "warm-up {}",
        low=1,
        form=NUMBERS,
        example="1,4,16 (different sizes from 1 on)",
    ),
    Knob(
        "timeout_action",
        "On timeout",
        _CHOICE,
        Batching("timeout_action", policy=True),
        "What happens to requests that waited too long: rejected, or kept and served after all others.",
        "timed-out requests {}",
        choices={"REJECT": "rejected", "DELAY": "delayed"},
    ),
    Knob(
        "default_timeout_microseconds",
        "Queue timeout",
        _INT,
        Batching("default_timeout_microseconds", policy=True),
        "The longest wait; 0: no limit. Triton looks for such requests only now and then while all instances are busy.",
        "timeout {}",
        unit="µs",
        high=3_600_000_000,
    ),
    Knob(
        "allow_timeout_override",
        "Timeout override",
        _BOOL,
        Batching("allow_timeout_override", policy=True),
        "Whether a request may name a timeout of its own, which can only be shorter.",
        "timeout override {}",
    ),
    Knob(
        "max_queue_size",
        "Longest queue",
        _INT,
        Batching("max_queue_size", policy=True),
        "0: no limit. Above it requests are rejected at once.",
        "queue of at most {}",
    ),
    Knob(
        "priority_levels",
        "Priority levels",
        _INT,
        Batching("priority_levels"),
        "0: none. Needs a default priority, which may be at most as large.",
        "{} priority levels",
        high=1000,
    ),
    Knob(
        "default_priority_level",
        "Default priority",
        _INT,
        Batching("default_priority_level"),
        "Of requests that name none; 1 is the most urgent. At most the number of levels.",
        "default priority {}",
        high=1000,
    ),
    Knob(
        "response_cache",
        "Response cache",
        _BOOL,
        ResponseCache(),
        "Works only where the server was started with --cache-config, and a load test that repeats its requests then "
        "measures the cache.",
        "response cache {}",
    ),
    Knob(
        "instance_kind",
        "Instances run on",
        _CHOICE,
        InstanceKind(),
        "Left out, Triton takes the GPUs where there are any.",
        "on {}",
        choices={"KIND_GPU": "GPU", "KIND_CPU": "CPU"},
        needs_gpu=True,
    ),
    Knob(
        "instance_gpus",
        "GPUs",
        _TEXT,
        InstanceGpus(),
        "Numbers as nvidia-smi shows them. The number of instances is for each of them.",
        "GPU {}",
        form=NUMBERS,
        example="0,1 (different numbers from 0 on)",
        needs_gpu=True,
    ),
    Knob(
        "gpu_mem_limit",
        "CUDA memory limit",
        _INT,
        Parameter("gpu_mem_limit"),
        "For ONNX Runtime's arena, each instance.",
        "GPU memory {}",
        unit="bytes",
        low=1_000_000,
        high=2**62,
        needs_gpu=True,
    ),
    Knob(
        "cudnn_conv_algo_search",
        "Convolution search",
        _CHOICE,
        Parameter("cudnn_conv_algo_search"),
        "Exhaustive (the default) makes the first request of each new shape slow.",
        "{} convolution search",
        choices={0: "exhaustive", 1: "heuristic", 2: "default"},
        needs_gpu=True,
    ),
    Knob(
        "execution_accelerator",
        "Accelerator",
        _CHOICE,
        Accelerator(),
        "TensorRT builds an engine at the first load and for new shapes, which can take minutes; CUDA is used anyway "
        "and is named only to set its options.",
        "{}",
        choices={"tensorrt": "TensorRT", "cuda": "CUDA options"},
        needs_gpu=True,
    ),
    _trt(
        "precision_mode",
        "TensorRT precision",
        _CHOICE,
        "FP32 is the default. INT8 needs a model with quantisation nodes. Compare the answers, not only the speed.",
        "{}",
        choices={name: name for name in ("FP32", "FP16", "BF16", "INT8")},
    ),
    _trt(
        "max_workspace_size_bytes",
        "TensorRT workspace",
        _INT,
        "GPU memory for building and running; 1 GiB (1073741824) is the default.",
        "workspace {}",
        unit="bytes",
        low=1_048_576,
        high=2**40,
    ),
    _trt(
        "trt_engine_cache_enable",
        "TensorRT engine cache",
        _BOOL,
        "Keeps built engines, so that a reload does not build them again.",
        "engine cache {}",
    ),
    _trt(
        "trt_engine_cache_path",
        "TensorRT cache folder",
        _TEXT,
        "A folder in the container; mount it, or it is lost with the container.",
        "engine cache in {}",
        form=PATH,
        example="/cache (an absolute path)",
    ),
    _trt(
        "trt_builder_optimization_level",
        "TensorRT build effort",
        _INT,
        "3 is the default; higher builds longer.",
        "builder level {}",
        high=5,
    ),
    _trt(
        "trt_cuda_graph_enable",
        "TensorRT CUDA graphs",
        _BOOL,
        "Saves launch time in small models; only for shapes that do not change.",
        "CUDA graphs {}",
    ),
    _profile("min"),
    _profile("opt"),
    _profile("max"),
    _cuda(
        "cudnn_conv_use_max_workspace",
        "Convolution workspace",
        "More memory for the search of convolution algorithms.",
        "max convolution workspace {}",
    ),
    _cuda(
        "use_ep_level_unified_stream",
        "One CUDA stream",
        "All of a session's work on one stream.",
        "unified stream {}",
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
    close = difflib.get_close_matches(name, KNOBS, n=1, cutoff=0.6)
    advice = f"Did you mean {close[0]}?" if close else f"There are: {', '.join(KNOBS)}."
    raise InputError(f"There is no knob {name}. {advice}")


def check(name: str, value: Any) -> Scalar:
    """`value` where the knob `name` can have it. Raises InputError."""
    return knob(name).check(value)


def parse(name: str, text: str) -> Scalar | None:
    """A value as typed: `4`, `on`, `FP16`, `parallel`; None for `none` or `default`, which takes the knob out.

    Raises InputError where the knob cannot have it.
    """
    entry, text = knob(name), text.strip()
    value: Scalar = text
    if entry.kind is KnobKind.CHOICE:
        for key, words in (entry.choices or {}).items():
            if text.lower() in (str(key).lower(), words.lower()):
                return key
    if text.lower() in _REMOVE:
        return None
    if entry.kind is KnobKind.BOOL:
        value = _ON_OFF.get(text.lower(), text)
    elif entry.kind is KnobKind.INT or (entry.kind is KnobKind.CHOICE and 0 in (entry.choices or {})):
        value = int(text) if re.fullmatch(r"[+-]?[0-9]{1,19}", text) else text
    elif entry.form == NUMBERS:
        value = ",".join(text.replace(",", " ").split())
    return entry.check(value)


def read(message: Any) -> tuple[tuple[str, Scalar], ...]:
    """Every further knob that a `ModelConfig` message sets, as sorted pairs."""
    found = ((entry.name, entry.read(message)) for entry in KNOBS.values())
    return tuple(sorted((name, value) for name, value in found if value is not None))


def write(message: Any, changes: Mapping[str, Scalar | None]) -> None:
    """Write changes into a message, in the table's order; None takes a knob out. Raises InputError as Knob.write."""
    for name in changes:
        knob(name)
    for name, entry in KNOBS.items():
        if name in changes:
            entry.write(message, changes[name])


def describe(name: str, value: Scalar) -> str:
    """A knob and its value in the few words of a label: `version 2`, `4 intra-op threads`."""
    entry = KNOBS.get(name)
    if entry is None:
        return f"{name} {value}"
    words = entry.phrase.format(entry.words(value))
    return words.removesuffix("s") if value == 1 and entry.phrase.startswith("{} ") and entry.kind is _INT else words
