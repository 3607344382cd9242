"""A payload as the bytes of a request: binary, JSON, in shared memory; over HTTP, compressed or not, and over gRPC.

Belongs here: KServe v2's forms of a request beyond the plain binary one (payload.py). Never: sockets, clocks.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.payload import DTYPES, HttpBody, Payload, Tensor, bytes_elements, grpc_message, http_body
from loadgen.shared_memory import Layout, Place, layout
from tritune.errors import InputError
from tritune.load_plan import Compression, GeneratorPlan, LoadPlan, Wire
from tritune.plan import Signature

NOT_IN_JSON = ("FP16", "BF16")


def check(signature: Signature, load: LoadPlan) -> None:
    """Raise InputError where the plan's wire cannot carry the model's tensors."""
    if load.wire is not Wire.JSON:
        return
    for what, specs in (("input", signature.inputs), ("output", signature.outputs)):
        for spec in specs:
            if spec.datatype in NOT_IN_JSON:
                raise InputError(
                    f"The {what} {spec.name} of model {load.model} is {spec.datatype}, which Triton neither takes nor "
                    "gives as JSON. Use the binary wire."
                )


def http_bodies(pool: Sequence[Payload], plan: GeneratorPlan) -> list[HttpBody]:
    """One body a payload, compressed where the plan says so. Raises InputError: BYTES that are no text, in JSON."""
    load = plan.load
    if plan.regions is not None:
        where = layout(plan.regions, pool, plan.signature, load)
        outputs = [spec.name for spec in plan.signature.outputs]
        made = [_shared_body(payload, row, where, outputs) for payload, row in zip(pool, where.inputs, strict=True)]
    elif load.wire is Wire.JSON:
        made = [json_body(payload) for payload in pool]
    else:
        made = [http_body(payload) for payload in pool]
    return [HttpBody(compress(body.body, load.compression), body.json_length) for body in made]


def compress(body: bytes, compression: Compression) -> bytes:
    """As Content-Encoding means it: `deflate` is zlib's format (RFC 9110, 8.4.1.2)."""
    if compression is Compression.GZIP:
        return gzip.compress(body, mtime=0)
    return zlib.compress(body) if compression is Compression.DEFLATE else body


def decompress(body: bytes, encoding: str) -> bytes:
    """Undo `compress`. Raises ValueError where it is not what it says."""
    try:
        if encoding == "gzip":
            return gzip.decompress(body)
        return zlib.decompress(body) if encoding == "deflate" else body
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"the body is not {encoding} ({error})") from error


def json_body(payload: Payload) -> HttpBody:
    """All tensors as JSON numbers or strings, row-major; the outputs come back as JSON too."""
    inputs = [
        {"name": tensor.name, "shape": list(tensor.shape), "datatype": tensor.datatype, "data": _values(tensor)}
        for tensor in payload
    ]
    text = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    return HttpBody(text, None)


def _values(tensor: Tensor) -> list[Any]:
    if tensor.datatype != "BYTES":
        return list(np.frombuffer(tensor.raw, dtype=DTYPES[tensor.datatype]).tolist())
    try:
        return [element[4:].decode() for element in bytes_elements(tensor.raw)]
    except UnicodeDecodeError as error:
        raise InputError(
            f"Input {tensor.name} holds bytes that are no UTF-8 text ({error.reason}), which JSON cannot carry. Use "
            "the binary wire."
        ) from error


def _parameters(place: Place) -> dict[str, Any]:
    return {
        "shared_memory_region": place.region,
        "shared_memory_offset": place.offset,
        "shared_memory_byte_size": place.size,
    }


def _shared_body(payload: Payload, row: Sequence[Place], where: Layout, outputs: Sequence[str]) -> HttpBody:
    inputs = [
        {
            "name": tensor.name,
            "shape": list(tensor.shape),
            "datatype": tensor.datatype,
            "parameters": _parameters(place),
        }
        for tensor, place in zip(payload, row, strict=True)
    ]
    places = {name: _parameters(place) for name, place in where.outputs.items()}
    wanted = [{"name": name, "parameters": places.get(name, {"binary_data": True})} for name in outputs]
    return HttpBody(json.dumps({"inputs": inputs, "outputs": wanted}, separators=(",", ":")).encode(), None)


def grpc_messages(pool: Sequence[Payload], plan: GeneratorPlan) -> list[bytes]:
    """One serialized ModelInferRequest a payload."""
    if plan.regions is None:
        return [grpc_message(payload, plan.load.model) for payload in pool]
    from tritonclient.grpc import service_pb2

    where = layout(plan.regions, pool, plan.signature, plan.load)
    messages = []
    for payload, row in zip(pool, where.inputs, strict=True):
        request = service_pb2.ModelInferRequest(model_name=plan.load.model)
        for tensor, place in zip(payload, row, strict=True):
            made = request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            _put(made.parameters, _parameters(place))
        for spec in plan.signature.outputs:
            output = request.outputs.add(name=spec.name)
            if spec.name in where.outputs:
                _put(output.parameters, _parameters(where.outputs[spec.name]))
        messages.append(bytes(request.SerializeToString()))
    return messages


def _put(parameters: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(value, str):
            parameters[name].string_param = value
        else:
            parameters[name].int64_param = value
