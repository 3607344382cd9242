"""Request bodies, made once from a model's signature and a seed, before the load begins.

Belongs here: tensors of the right shape and type, and their three encodings (KServe v2 binary over HTTP,
a serialized ModelInferRequest, perf_analyzer's JSON). Never: sending, clocks.

A pool holds several distinct payloads, so that no cache on the server's side is flattered.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tritune.errors import InputError
from tritune.load_plan import LoadPlan
from tritune.plan import Signature, TensorSpec

POOL_SIZE = 32
POOL_BYTES = 128 * 2**20  # fewer payloads where they are large
DTYPES: Mapping[str, Any] = {
    "BOOL": np.bool_,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
_DEFAULT_RANGES = {"UINT8": (0, 255)}  # other integers are 0 or 1: an index that every table has
_DEFAULT_RANGE = (0, 1)
_STEPS = 16  # floats are k/16 from 0 to 1: exact in every type, and short where perf_analyzer prints them


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input of one request: `shape` with the batch dimension where the model has one, `raw` row-major bytes
    (BYTES elements each behind their 4-byte little-endian length)."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes


Payload = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class HttpBody:
    """One HTTP request's body and what its head must say about it."""

    body: bytes
    json_length: int | None
    """None: the body is JSON to its end."""


def byte_size(datatype: str) -> int | None:
    """Bytes of one element, None where they vary or the data type is unknown."""
    if datatype == "BF16":
        return 2
    dtype = DTYPES.get(datatype)
    return None if dtype is None else np.dtype(dtype).itemsize


def payloads(signature: Signature, plan: LoadPlan, count: int | None = None) -> list[Payload]:
    """Distinct payloads, the same for the same seed; `count` None lets their size decide (at most POOL_SIZE).

    Raises InputError: a batch the model does not take, a dimension that nobody chose, a shape, range or input
    file that does not fit the model.
    """
    _check_names(signature, plan)
    batch = _check_batch(signature, plan)
    if plan.input_data is not None:
        # A file brings the sizes of free dimensions itself.
        chosen = {
            tensor.name: _sample_shape(tensor, plan.shapes, plan, signature) if tensor.name in plan.shapes else None
            for tensor in signature.inputs
        }
        return _from_file(Path(plan.input_data), signature, chosen, batch)
    mixed = [
        {tensor.name: _sample_shape(tensor, row, plan, signature) for tensor in signature.inputs}
        for row in _in_turn(plan)
    ]
    largest = max(sum(_nbytes(tensor, row[tensor.name], batch) for tensor in signature.inputs) for row in mixed)
    if count is None:
        fitting = POOL_BYTES // max(1, largest)
        # Whole turns, so that the weights hold; one turn at least, also where it is large.
        count = max(1, min(POOL_SIZE, fitting) // len(mixed)) * len(mixed)
    return [_random_payload(signature, plan, mixed[index % len(mixed)], batch, index) for index in range(count)]


def _in_turn(plan: LoadPlan) -> list[Mapping[str, tuple[int, ...]]]:
    """The shapes of as many requests as their weights add up to, the heavy ones spread evenly over them."""
    if not plan.shape_mix:
        return [plan.shapes]
    shrink = math.gcd(*(row.weight for row in plan.shape_mix))
    weights = [row.weight // shrink for row in plan.shape_mix]
    total, credit, turn = sum(weights), [0] * len(weights), []
    for _ in range(total):  # smooth weighted round-robin
        credit = [have + weight for have, weight in zip(credit, weights, strict=True)]
        chosen = credit.index(max(credit))
        credit[chosen] -= total
        turn.append(plan.shape_mix[chosen].shapes)
    return turn


def _nbytes(tensor: TensorSpec, shape: Sequence[int], batch: int | None) -> int:
    """About how large a tensor is."""
    return math.prod(shape) * (batch or 1) * (byte_size(tensor.datatype) or 12)


def http_body(payload: Payload) -> HttpBody:
    """KServe v2 with the binary tensor extension: a JSON head, then the raw tensors; outputs come back binary too."""
    head = {
        "inputs": [
            {
                "name": tensor.name,
                "shape": list(tensor.shape),
                "datatype": tensor.datatype,
                "parameters": {"binary_data_size": len(tensor.raw)},
            }
            for tensor in payload
        ],
        "parameters": {"binary_data_output": True},
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    return HttpBody(text + b"".join(tensor.raw for tensor in payload), len(text))


def grpc_message(payload: Payload, model: str) -> bytes:
    """A serialized inference.ModelInferRequest with raw input contents."""
    from tritonclient.grpc import service_pb2

    request = service_pb2.ModelInferRequest(model_name=model)
    for tensor in payload:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.raw)
    return bytes(request.SerializeToString())


def perf_analyzer_document(pool: Sequence[Payload], signature: Signature) -> dict[str, Any]:
    """perf_analyzer's --input-data: one entry a sample, shapes without the batch dimension, contents in base64."""
    entries = []
    for payload in pool:
        samples = payload[0].shape[0] if signature.max_batch_size > 0 and payload else 1
        for index in range(samples):
            entry = {}
            for tensor in payload:
                shape = tensor.shape[1:] if signature.max_batch_size > 0 else tensor.shape
                raw = _split(tensor, samples)[index] if samples > 1 else tensor.raw
                content = {"b64": base64.b64encode(raw).decode()}
                entry[tensor.name] = {"content": content, "shape": list(shape)}
            entries.append(entry)
    return {"data": entries}


def _split(tensor: Tensor, samples: int) -> list[bytes]:
    if tensor.datatype != "BYTES":
        step = len(tensor.raw) // samples
        return [tensor.raw[start : start + step] for start in range(0, len(tensor.raw), step)]
    elements = bytes_elements(tensor.raw)
    step = len(elements) // samples
    return [b"".join(elements[start : start + step]) for start in range(0, len(elements), step)]


def bytes_elements(raw: bytes) -> list[bytes]:
    """The elements of a BYTES tensor, each with its length in front."""
    elements, position = [], 0
    while position < len(raw):
        (length,) = struct.unpack_from("<I", raw, position)
        elements.append(raw[position : position + 4 + length])
        position += 4 + length
    return elements


def _check_names(signature: Signature, plan: LoadPlan) -> None:
    names = [tensor.name for tensor in signature.inputs]
    if not names:
        raise InputError(f"Model {plan.model} declares no inputs, so no request can be made. Check its configuration.")
    mixed = [name for row in plan.shape_mix for name in row.shapes]
    for given in (*plan.shapes, *mixed, *plan.int_ranges):
        if given not in names:
            raise InputError(f"Model {plan.model} has no input {given}. Its inputs: {', '.join(names)}.")


def _check_batch(signature: Signature, plan: LoadPlan) -> int | None:
    """The batch dimension to put in front, None where the model has none."""
    limit = signature.max_batch_size
    if limit <= 0:
        if plan.batch != 1:
            raise InputError(
                f"batch={plan.batch}: model {plan.model} has no batch dimension (max_batch_size is 0). Use batch 1."
            )
        return None
    if plan.batch > limit:
        raise InputError(
            f"batch={plan.batch} is above max_batch_size={limit} of model {plan.model}; Triton refuses such a request "
            "and never splits it. Use a smaller batch, or raise max_batch_size."
        )
    return plan.batch


def _sample_shape(
    tensor: TensorSpec, shapes: Mapping[str, tuple[int, ...]], plan: LoadPlan, signature: Signature
) -> tuple[int, ...]:
    declared = tensor.shape
    chosen = shapes.get(tensor.name)
    if chosen is None:
        if -1 in declared:
            example = ",".join("8" if size == -1 else str(size) for size in declared)
            raise InputError(
                f"Input {tensor.name} of model {plan.model} has a dimension that the request chooses: "
                f"{list(declared)}. Give its shape{' without the batch' if signature.max_batch_size > 0 else ''}, "
                f"such as --shape {tensor.name}:{example}."
            )
        return declared
    fits = len(chosen) == len(declared) and all(
        size > 0 and want in (-1, size) for size, want in zip(chosen, declared, strict=True)
    )
    if not fits:
        without = ", without the batch dimension" if signature.max_batch_size > 0 else ""
        raise InputError(
            f"The shape {list(chosen)} of input {tensor.name} does not fit {list(declared)}{without}. "
            "Give one positive number a dimension; only -1 can be chosen."
        )
    return tuple(chosen)


def _random_payload(
    signature: Signature, plan: LoadPlan, shapes: Mapping[str, tuple[int, ...]], batch: int | None, index: int
) -> Payload:
    tensors = []
    for position, tensor in enumerate(signature.inputs):
        generator = np.random.default_rng([plan.seed, index, position])
        shape = shapes[tensor.name] if batch is None else (batch, *shapes[tensor.name])
        raw = _random_bytes(tensor, shape, plan.int_ranges.get(tensor.name), generator)
        tensors.append(Tensor(tensor.name, tensor.datatype, shape, raw))
    return tuple(tensors)


def _random_bytes(
    tensor: TensorSpec, shape: tuple[int, ...], span: tuple[int, int] | None, generator: np.random.Generator
) -> bytes:
    kind = tensor.datatype
    if kind == "BYTES":
        numbers = generator.integers(*(span or (0, 99_999_999)), size=math.prod(shape), endpoint=True)
        return b"".join(element(str(number).encode()) for number in numbers)
    if kind == "BF16":
        return bfloat16((generator.integers(0, _STEPS, size=shape, endpoint=True) / _STEPS).astype(np.float32))
    dtype = DTYPES.get(kind)
    if dtype is None:
        raise InputError(
            f"Input {tensor.name} has the data type {kind}, which Tritune cannot make. Give --input-data with b64 data."
        )
    if kind == "BOOL":
        return generator.integers(0, 2, size=shape).astype(dtype).tobytes()
    if kind in ("FP16", "FP32", "FP64"):
        if span is not None:
            values = generator.integers(span[0], span[1], size=shape, endpoint=True)
            return values.astype(dtype).tobytes()
        return (generator.integers(0, _STEPS, size=shape, endpoint=True) / _STEPS).astype(dtype).tobytes()
    limits = np.iinfo(dtype)
    low, high = span or _DEFAULT_RANGES.get(kind, _DEFAULT_RANGE)
    if low < limits.min or high > limits.max:
        raise InputError(
            f"The integer range {low}:{high} of input {tensor.name} does not fit {kind}. "
            f"Use numbers from {limits.min} to {limits.max}."
        )
    return generator.integers(low, high, size=shape, dtype=dtype, endpoint=True).tobytes()


def bfloat16(values: NDArray[np.float32]) -> bytes:
    """FP32 as BF16's bytes: the upper half of each number."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def element(data: bytes) -> bytes:
    """One BYTES element: its length, then its bytes."""
    return struct.pack("<I", len(data)) + data


def _from_file(
    path: Path, signature: Signature, shapes: Mapping[str, tuple[int, ...] | None], batch: int | None
) -> list[Payload]:
    """With a batch of b the samples i, i+1, .. i+b-1 (around the end) make request i."""
    from loadgen import input_data

    samples = input_data.read(path, signature, shapes)
    size = batch or 1
    pool = []
    for index in range(math.ceil(len(samples) / size)):
        rows = [samples[(index * size + offset) % len(samples)] for offset in range(size)]
        tensors = []
        for spec in signature.inputs:
            parts = [row[spec.name] for row in rows]
            if len({part.shape for part in parts}) > 1:
                raise InputError(
                    f"{path}: samples of input {spec.name} with different shapes cannot share one request. Use batch 1."
                )
            shape = parts[0].shape if batch is None else (batch, *parts[0].shape)
            tensors.append(Tensor(spec.name, spec.datatype, shape, b"".join(part.raw for part in parts)))
        pool.append(tuple(tensors))
    return pool
