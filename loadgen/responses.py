"""A share of the responses, decoded and held against the model's signature.

Belongs here: names, datatypes, shapes, sizes and finite values of what came back. Never: whether an answer is right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadgen.encoding import decompress
from loadgen.payload import DTYPES, byte_size, bytes_elements
from tritune.load_plan import LoadPlan
from tritune.plan import Signature

FLOATS = ("FP16", "FP32", "FP64")


@dataclass(frozen=True, slots=True)
class Output:
    """One output of a response. `raw` None: its bytes are elsewhere (shared memory); `values` are those of JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    raw: bytes | memoryview | None = None
    values: list[Any] | None = None


class ResponseCheck:
    """Chooses every (1 / share)-th request of a process, and says what is wrong with its response.

    The values of outputs that are `elsewhere` (in shared memory) are not looked at.
    """

    def __init__(self, signature: Signature, load: LoadPlan, elsewhere: Collection[str] = ()) -> None:
        self._elsewhere = frozenset(elsewhere)
        self._expected = {spec.name: spec for spec in signature.outputs}
        self._batch = (load.batch,) if signature.max_batch_size > 0 else ()
        self._share = load.check_share
        self._owed = 0.0
        self.checked = 0

    def is_due(self) -> bool:
        """Whether the next response is to be checked."""
        self._owed += self._share
        if self._owed < 1.0:
            return False
        self._owed -= 1.0
        self.checked += 1
        return True

    def of_http(self, body: bytes, json_length: int | None, encoding: str) -> str | None:
        """What is wrong with an HTTP response, None where nothing is."""
        try:
            whole = decompress(body, encoding)
            head = json.loads(whole if json_length is None else whole[:json_length])
            return self._problem(_http_outputs(head, memoryview(whole)[json_length or len(whole) :]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"response check: the response cannot be decoded ({_words(error)})"

    def of_grpc(self, message: bytes) -> str | None:
        """The same for a serialized ModelInferResponse."""
        from google.protobuf.message import DecodeError
        from tritonclient.grpc import service_pb2

        try:
            response = service_pb2.ModelInferResponse.FromString(message)
        except DecodeError as error:
            return f"response check: the response cannot be decoded ({_words(error)})"
        raws = iter(response.raw_output_contents)
        outputs = []
        for tensor in response.outputs:
            raw = next(raws, b"")  # empty where the output is in shared memory
            is_here = tensor.name not in self._elsewhere
            outputs.append(Output(tensor.name, tensor.datatype, tuple(tensor.shape), raw if is_here else None))
        return self._problem(outputs)

    def _problem(self, outputs: list[Output]) -> str | None:
        names = [output.name for output in outputs]
        if sorted(names) != sorted(self._expected):
            return f"response check: outputs {', '.join(names) or 'none'} instead of {', '.join(self._expected)}"
        for output in outputs:
            if wrong := self._wrong(output):
                return f"response check: output {output.name} {wrong}"
        return None

    def _wrong(self, output: Output) -> str | None:
        spec = self._expected[output.name]
        if output.datatype != spec.datatype:
            return f"is {output.datatype} instead of {spec.datatype}"
        wanted = (*self._batch, *spec.shape)
        fits = len(wanted) == len(output.shape) and all(
            want in (-1, have) for want, have in zip(wanted, output.shape, strict=True)
        )
        if not fits:
            return f"has the shape {list(output.shape)} instead of {list(wanted)}"
        count = math.prod(output.shape)
        if output.values is not None:
            return _wrong_values(output, count)
        return None if output.raw is None else _wrong_bytes(output, count)


def _http_outputs(head: Mapping[str, Any], tail: memoryview) -> list[Output]:
    outputs = []
    position = 0
    for row in head["outputs"]:
        parameters = row.get("parameters") or {}
        size = parameters.get("binary_data_size")
        raw = None
        if size is not None:
            raw = tail[position : position + size]
            position += size
        shape = tuple(int(extent) for extent in row["shape"])
        outputs.append(Output(row["name"], row["datatype"], shape, raw, row.get("data")))
    if position != len(tail):
        raise ValueError(f"{len(tail)} bytes of tensors instead of {position}")
    return outputs


def _wrong_values(output: Output, count: int) -> str | None:
    flat = np.asarray(output.values, dtype=object).ravel()
    if len(flat) != count:
        return f"has {len(flat)} values instead of {count}"
    if output.datatype in FLOATS and not all(isinstance(value, int | float) and math.isfinite(value) for value in flat):
        return "has a value that is not finite"
    return None


def _wrong_bytes(output: Output, count: int) -> str | None:
    assert output.raw is not None
    if output.datatype == "BYTES":
        have = len(bytes_elements(bytes(output.raw)))
        return None if have == count else f"has {have} elements instead of {count}"
    size = byte_size(output.datatype)
    if size is None:
        return None
    if len(output.raw) != count * size:
        return f"has {len(output.raw)} bytes instead of {count * size}"
    if output.datatype in FLOATS:
        is_finite = bool(np.isfinite(np.frombuffer(output.raw, dtype=DTYPES[output.datatype])).all())
    elif output.datatype == "BF16":  # all ones in the exponent: infinite or not a number
        is_finite = not bool(((np.frombuffer(output.raw, dtype=np.uint16) & 0x7F80) == 0x7F80).any())
    else:
        is_finite = True
    return None if is_finite else "has a value that is not finite"


def _words(error: Exception) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__
