"""A payload in KServe's other forms: JSON, compressed, in shared memory."""

from __future__ import annotations

import gzip
import itertools
import json
import zlib
from typing import Any

import numpy as np
import pytest

from loadgen.encoding import check, compress, decompress, grpc_messages, http_bodies, json_body
from loadgen.payload import Tensor, payloads
from loadgen.shared_memory import ALIGNMENT, layout
from loadgen.users.http import http_requests
from tritune.errors import InputError
from tritune.load_plan import Compression, GeneratorPlan, LoadPlan, Wire
from tritune.plan import Endpoints, Signature, TensorSpec

TWO = Signature(
    (TensorSpec("x", "FP32", (3,)), TensorSpec("words", "BYTES", (2,))),
    (TensorSpec("y", "FP32", (5,)), TensorSpec("free", "FP32", (-1,)), TensorSpec("text", "BYTES", (1,))),
    8,
)


def generator_plan(signature: Signature = TWO, regions: str | None = None, **options: Any) -> GeneratorPlan:
    load = LoadPlan("m", concurrency=1, **options)
    return GeneratorPlan(load, Endpoints("127.0.0.1:1"), signature, regions)


def test_a_json_body_holds_every_value_and_no_header_length() -> None:
    plan = generator_plan(batch=2, wire=Wire.JSON)
    (payload,) = payloads(TWO, plan.load, count=1)
    (made,) = http_bodies([payload], plan)
    assert made.json_length is None
    x, words = json.loads(made.body)["inputs"]
    assert (x["name"], x["shape"], x["datatype"]) == ("x", [2, 3], "FP32")
    np.testing.assert_array_equal(np.array(x["data"], dtype=np.float32), np.frombuffer(payload[0].raw, np.float32))
    assert words["shape"] == [2, 2]
    assert all(isinstance(word, str) and word.isdigit() for word in words["data"])
    (request,) = http_requests([made], "m", "h:1", {})
    assert b"Content-Type: application/json\r\n" in request
    assert b"Inference-Header-Content-Length" not in request


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
@pytest.mark.parametrize("side", ["input", "output"])
def test_half_precision_is_refused_as_json_before_anything_is_sent(datatype: str, side: str) -> None:
    half, single = TensorSpec("h", datatype, (2,)), TensorSpec("s", "FP32", (2,))
    signature = Signature((half,), (single,), 0) if side == "input" else Signature((single,), (half,), 0)
    with pytest.raises(InputError, match=rf"The {side} h of model m is {datatype}.*Use the binary wire"):
        check(signature, LoadPlan("m", concurrency=1, wire=Wire.JSON))
    check(signature, LoadPlan("m", concurrency=1))


def test_bytes_that_are_no_text_are_refused_as_json() -> None:
    with pytest.raises(InputError, match=r"Input w holds bytes that are no UTF-8 text"):
        json_body((Tensor("w", "BYTES", (1,), b"\x02\0\0\0\xff\xfe"),))


def test_bodies_are_compressed_once_and_the_header_length_is_of_the_json_inside() -> None:
    plain = http_bodies(payloads(TWO, generator_plan().load, count=1), generator_plan())[0]
    for compression, undo in ((Compression.GZIP, gzip.decompress), (Compression.DEFLATE, zlib.decompress)):
        plan = generator_plan(compression=compression)
        (made,) = http_bodies(payloads(TWO, plan.load, count=1), plan)
        assert undo(made.body) == plain.body  # type: ignore[operator]
        assert made.json_length == plain.json_length
        (request,) = http_requests([made], "m", "h:1", {}, compression)
        assert f"Content-Encoding: {compression}\r\nAccept-Encoding: {compression}\r\n".encode() in request
        assert f"Content-Length: {len(made.body)}\r\n".encode() in request


def test_what_is_not_compressed_as_it_says_is_an_error() -> None:
    assert decompress(compress(b"abc", Compression.DEFLATE), "deflate") == b"abc"
    assert decompress(b"abc", "") == b"abc"
    for encoding in ("gzip", "deflate"):
        with pytest.raises(ValueError, match=f"not {encoding}"):
            decompress(b"no", encoding)


def test_tensors_in_shared_memory_are_named_by_place_and_outputs_without_a_fixed_size_are_not() -> None:
    from tritonclient.grpc import service_pb2

    plan = generator_plan(batch=2, regions="r")
    pool = payloads(TWO, plan.load, count=3)
    where = layout("r", pool, TWO, plan.load)
    places = [place for row in where.inputs for place in row] + list(where.outputs.values())
    assert set(where.outputs) == {"y"}
    assert where.outputs["y"].size == 2 * 5 * 4
    for region in ("r-in", "r-out"):
        mine = sorted((place for place in places if place.region == region), key=lambda place: place.offset)
        assert all(place.offset % ALIGNMENT == 0 for place in mine)
        assert all(left.offset + left.size <= right.offset for left, right in itertools.pairwise(mine))
        end = where.input_size if region == "r-in" else where.output_size
        assert mine[-1].offset + mine[-1].size <= end
    bodies, messages = http_bodies(pool, plan), grpc_messages(pool, plan)
    for body, message, row in zip(bodies, messages, where.inputs, strict=True):
        document = json.loads(body.body)
        for made, place in zip(document["inputs"], row, strict=True):
            assert made["parameters"]["shared_memory_region"] == "r-in"
            assert made["parameters"]["shared_memory_offset"] == place.offset
        assert [("shared_memory_region" in output["parameters"]) for output in document["outputs"]] == [1, 0, 0]
        request = service_pb2.ModelInferRequest.FromString(message)
        assert not request.raw_input_contents
        assert [made.parameters["shared_memory_offset"].int64_param for made in request.inputs] == [
            place.offset for place in row
        ]
        assert [("shared_memory_region" in output.parameters) for output in request.outputs] == [True, False, False]
