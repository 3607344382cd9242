"""A checked response is held against the model's signature, whatever the wire."""

from __future__ import annotations

import gzip
import json
import struct
from typing import Any

import numpy as np
import pytest

from loadgen.responses import ResponseCheck
from tritune.load_plan import LoadPlan
from tritune.plan import Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (3,)),), 8)


def check_of(datatype: str = "FP32", shape: tuple[int, ...] = (3,), *, share: float = 1.0) -> ResponseCheck:
    signature = Signature(SIGNATURE.inputs, (TensorSpec("y", datatype, shape),), 8)
    return ResponseCheck(signature, LoadPlan("m", concurrency=1, batch=2, check_share=share))


def http(raw: bytes, datatype: str = "FP32", shape: tuple[int, ...] = (2, 3), name: str = "y") -> tuple[bytes, int]:
    output = {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"outputs": [output]}).encode()
    return head + raw, len(head)


def grpc(raw: bytes, datatype: str = "FP32", shape: tuple[int, ...] = (2, 3), name: str = "y") -> bytes:
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelInferResponse()
    response.outputs.add(name=name, datatype=datatype, shape=shape)
    response.raw_output_contents.append(raw)
    return bytes(response.SerializeToString())


def said(check: ResponseCheck, *arguments: Any) -> list[str | None]:
    """What the check says of the same response over HTTP and over gRPC."""
    return [check.of_http(*http(*arguments), ""), check.of_grpc(grpc(*arguments))]


GOOD = np.zeros((2, 3), np.float32).tobytes()


def test_a_response_like_the_signature_is_right() -> None:
    assert said(check_of(), GOOD) == [None, None]
    assert said(check_of(shape=(-1,)), GOOD) == [None, None]
    words = b"".join(struct.pack("<I", 2) + b"ab" for _ in range(6))
    assert said(check_of("BYTES"), words, "BYTES") == [None, None]
    body, length = http(GOOD)
    assert check_of().of_http(gzip.compress(body), length, "gzip") is None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((GOOD, "FP32", (2, 3), "z"), "outputs z instead of y"),
        ((GOOD, "INT32"), "output y is INT32 instead of FP32"),
        ((GOOD, "FP32", (3, 2)), "output y has the shape [3, 2] instead of [2, 3]"),
        ((GOOD, "FP32", (6,)), "output y has the shape [6] instead of [2, 3]"),
        ((GOOD[:-4],), "output y has 20 bytes instead of 24"),
        ((np.full((2, 3), np.nan, np.float32).tobytes(),), "output y has a value that is not finite"),
        ((np.full((2, 3), -np.inf, np.float32).tobytes(),), "output y has a value that is not finite"),
    ],
)
def test_what_is_wrong_is_said(arguments: tuple[Any, ...], problem: str) -> None:
    assert said(check_of(), *arguments) == [f"response check: {problem}"] * 2


@pytest.mark.parametrize(
    ("datatype", "bad"), [("FP16", b"\x00\x7c"), ("BF16", b"\x80\x7f"), ("FP64", b"\0" * 6 + b"\xf0\x7f")]
)
def test_every_float_has_its_own_infinity(datatype: str, bad: bytes) -> None:
    good = b"\0" * len(bad) * 6
    assert said(check_of(datatype), good, datatype) == [None, None]
    assert (
        said(check_of(datatype), good[len(bad) :] + bad, datatype)
        == ["response check: output y has a value that is not finite"] * 2
    )


def test_json_values_are_counted_and_finite() -> None:
    def of(data: list[Any]) -> str | None:
        output = {"name": "y", "datatype": "FP32", "shape": [2, 3], "data": data}
        return check_of().of_http(json.dumps({"outputs": [output]}).encode(), None, "")

    assert of([0.5] * 6) is None
    assert of([[0.5] * 3] * 2) is None
    assert of([0.5] * 5) == "response check: output y has 5 values instead of 6"
    assert of([None, *[0.5] * 5]) == "response check: output y has a value that is not finite"


def test_what_cannot_be_decoded_is_a_failed_check() -> None:
    body, length = http(GOOD)
    for arguments in (
        (b"{", None, ""),
        (b"[]", None, ""),
        (body, 5, ""),
        (body, length, "gzip"),
        (body + b"x", length, ""),
    ):
        wrong = check_of().of_http(*arguments)  # type: ignore[arg-type]
        assert wrong is not None
        assert wrong.startswith("response check: the response cannot be decoded")
    wrong = check_of().of_grpc(b"\xff\xff")
    assert wrong is not None
    assert wrong.startswith("response check: the response cannot be decoded")


def test_an_output_in_shared_memory_is_checked_by_name_type_and_shape() -> None:
    output = {"name": "y", "datatype": "FP32", "shape": [2, 3], "parameters": {"shared_memory_region": "r"}}
    assert check_of().of_http(json.dumps({"outputs": [output]}).encode(), None, "") is None


@pytest.mark.parametrize(("share", "checked"), [(1.0, 1000), (0.01, 10), (0.3, 300), (0.0, 0)])
def test_the_share_is_kept_evenly(share: float, checked: int) -> None:
    check = check_of(share=share)
    due = [check.is_due() for _ in range(1000)]
    assert abs(sum(due) - checked) <= 1  # a sum of floats
    assert check.checked == sum(due)
