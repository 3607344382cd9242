"""Request bodies, made once from a model's signature and a seed, before the load begins.

Belongs here: tensors of the right shape and type, and their three encodings (KServe v2 binary over HTTP,
a serialized ModelInferRequest, perf_analyzer's JSON). Never: sending, clocks.

A pool holds several distinct payloads, so that no cache on the server's side is flattered.
"""

from __future__ import annotations

import base64
import binascii
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
    shapes = {tensor.name: _sample_shape(tensor, plan, signature) for tensor in signature.inputs}
    if plan.input_data is not None:
        return _from_file(Path(plan.input_data), signature, shapes, batch)
    first = _random_payload(signature, plan, shapes, batch, 0)
    if count is None:
        size = sum(len(tensor.raw) for tensor in first)
        count = max(1, min(POOL_SIZE, POOL_BYTES // max(1, size)))
    return [first, *(_random_payload(signature, plan, shapes, batch, index) for index in range(1, count))]


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
    for given in (*plan.shapes, *plan.int_ranges):
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


def _sample_shape(tensor: TensorSpec, plan: LoadPlan, signature: Signature) -> tuple[int, ...]:
    declared = tensor.shape
    chosen = plan.shapes.get(tensor.name)
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
        return b"".join(_element(str(number).encode()) for number in numbers)
    if kind == "BF16":
        return _bfloat16((generator.integers(0, _STEPS, size=shape, endpoint=True) / _STEPS).astype(np.float32))
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


def _bfloat16(values: NDArray[np.float32]) -> bytes:
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


def _element(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


def _from_file(
    path: Path, signature: Signature, shapes: Mapping[str, tuple[int, ...]], batch: int | None
) -> list[Payload]:
    """perf_analyzer's JSON: {"data": [{"INPUT": [..] or {"content": .., "shape": ..} or {"b64": ..}}, ..]}; one
    sample an entry. With a batch of b the samples i, i+1, .. i+b-1 (around the end) make request i."""
    samples = _samples_in(path, signature, shapes)
    size = batch or 1
    count = max(1, math.ceil(len(samples) / size))
    pool = []
    for index in range(count):
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


def _samples_in(path: Path, signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, Tensor]]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entries = document["data"]
        if not isinstance(entries, list) or not entries:
            raise TypeError("data is not a list of samples")
    except OSError as error:
        raise InputError(f"The input data {path} could not be read ({error.strerror}). Name a JSON file.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f'The input data {path} is not of the form {{"data": [{{"{signature.inputs[0].name}": [numbers]}}]}} '
            f"({error}). Correct the file."
        ) from error
    return [_sample(path, number, entry, signature, shapes) for number, entry in enumerate(entries)]


def _sample(
    path: Path, number: int, entry: Any, signature: Signature, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, Tensor]:
    row = {}
    for spec in signature.inputs:
        where = f"{path}: sample {number}, input {spec.name}"
        if not isinstance(entry, dict) or spec.name not in entry:
            raise InputError(f"{where} is missing. Every sample needs every input of the model.")
        value = entry[spec.name]
        shape = shapes[spec.name]
        if isinstance(value, dict):
            shape = tuple(int(size) for size in value.get("shape", shape))
            value = value.get("content", value)
        try:
            raw = _raw(spec.datatype, value)
        except (ValueError, TypeError, OverflowError, binascii.Error) as error:
            raise InputError(f"{where} cannot be read as {spec.datatype} ({error}). Correct the file.") from error
        _check_size(where, spec, shape, raw)
        row[spec.name] = Tensor(spec.name, spec.datatype, shape, raw)
    return row


def _raw(datatype: str, value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(str(value["b64"]) if "b64" in value else "", validate=True)
    flat = np.asarray(value, dtype=object).ravel().tolist()
    if datatype == "BYTES":
        return b"".join(_element(str(item).encode()) for item in flat)
    if datatype == "BF16":
        return _bfloat16(np.asarray(flat, dtype=np.float32))
    return np.asarray(flat).astype(DTYPES[datatype], casting="unsafe").tobytes()


def _check_size(where: str, spec: TensorSpec, shape: tuple[int, ...], raw: bytes) -> None:
    have = len(bytes_elements(raw)) if spec.datatype == "BYTES" else len(raw) // (byte_size(spec.datatype) or 1)
    if have != math.prod(shape):
        raise InputError(
            f"{where} has {have} elements, and its shape {list(shape)} needs {math.prod(shape)}. Correct the file."
        )
