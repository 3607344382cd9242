"""Request bodies are exactly what KServe v2 asks for, the same for the same seed."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.payload import POOL_SIZE, grpc_message, http_body, payloads, perf_analyzer_document
from tritune.errors import InputError
from tritune.load_plan import LoadPlan
from tritune.plan import Signature, TensorSpec

IMAGE = Signature((TensorSpec("INPUT__0", "FP32", (1, 28, 28)),), (TensorSpec("OUTPUT__0", "FP32", (10,)),), 16)


def one(datatype: str, shape: tuple[int, ...] = (4,), max_batch_size: int = 8) -> Signature:
    return Signature((TensorSpec("x", datatype, shape),), (TensorSpec("y", "FP32", (1,)),), max_batch_size)


def plan(**options: Any) -> LoadPlan:
    return LoadPlan("m", concurrency=1, **options)


def test_an_http_body_is_a_json_head_and_the_raw_tensors() -> None:
    (payload,) = payloads(IMAGE, plan(batch=3), count=1)
    made = http_body(payload)
    head = json.loads(made.body[: made.json_length])
    assert head["inputs"] == [
        {
            "name": "INPUT__0",
            "shape": [3, 1, 28, 28],
            "datatype": "FP32",
            "parameters": {"binary_data_size": 3 * 784 * 4},
        }
    ]
    assert head["parameters"] == {"binary_data_output": True}
    values = np.frombuffer(made.body[made.json_length :], dtype=np.float32)
    assert values.size == 3 * 784
    assert values.min() >= 0
    assert values.max() <= 1


def test_a_grpc_message_says_the_same() -> None:
    from tritonclient.grpc import service_pb2

    (payload,) = payloads(IMAGE, plan(batch=2), count=1)
    request = service_pb2.ModelInferRequest.FromString(grpc_message(payload, "m"))
    assert request.model_name == "m"
    assert [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in request.inputs] == [
        ("INPUT__0", "FP32", [2, 1, 28, 28])
    ]
    assert request.raw_input_contents[0] == payload[0].raw


def test_a_pool_holds_distinct_payloads_the_same_for_the_same_seed() -> None:
    pool = payloads(IMAGE, plan(seed=0))
    assert len({payload[0].raw for payload in pool}) == len(pool) == POOL_SIZE
    assert payloads(IMAGE, plan(seed=0)) == pool
    assert payloads(IMAGE, plan(seed=1)) != pool


def test_large_payloads_make_a_small_pool() -> None:
    assert len(payloads(one("FP32", (16, 2**20)), plan())) == 2


@pytest.mark.parametrize(
    ("datatype", "size"),
    [
        *(("BOOL", 1), ("INT8", 1), ("UINT8", 1), ("INT16", 2), ("UINT16", 2), ("FP16", 2), ("BF16", 2)),
        *(("INT32", 4), ("UINT32", 4), ("FP32", 4), ("INT64", 8), ("UINT64", 8), ("FP64", 8)),
    ],
)
def test_every_data_type_has_its_size(datatype: str, size: int) -> None:
    (payload,) = payloads(one(datatype), plan(batch=2), count=1)
    assert len(payload[0].raw) == 2 * 4 * size


def test_integers_without_a_range_are_safe_for_any_table() -> None:
    (payload,) = payloads(one("INT64", (100,)), plan(), count=1)
    assert set(np.frombuffer(payload[0].raw, dtype=np.int64).tolist()) == {0, 1}


def test_an_integer_range_is_kept_and_both_ends_occur() -> None:
    (payload,) = payloads(one("INT32", (1000,)), plan(int_ranges={"x": (5, 9)}), count=1)
    assert set(np.frombuffer(payload[0].raw, dtype=np.int32).tolist()) == {5, 6, 7, 8, 9}


def test_bytes_elements_stand_behind_their_length() -> None:
    (payload,) = payloads(one("BYTES", (2,)), plan(int_ranges={"x": (7, 7)}), count=1)
    assert payload[0].raw == 2 * (struct.pack("<I", 1) + b"7")


def test_a_model_without_a_batch_dimension_gets_none() -> None:
    (payload,) = payloads(one("FP32", (2, 3), max_batch_size=0), plan(), count=1)
    assert payload[0].shape == (2, 3)


def test_a_shape_fills_the_dimensions_that_the_request_chooses() -> None:
    (payload,) = payloads(one("FP32", (-1, 3)), plan(shapes={"x": (5, 3)}, batch=2), count=1)
    assert payload[0].shape == (2, 5, 3)


@pytest.mark.parametrize(
    ("signature", "options", "sentence"),
    [
        (one("FP32", (-1, 3)), {}, r"Input x of model m has a dimension that the request chooses.*--shape x:8,3"),
        (one("FP32", (-1, 3)), {"shapes": {"x": (5, 4)}}, r"The shape \[5, 4\] of input x does not fit \[-1, 3\]"),
        (one("FP32", (-1, 3)), {"shapes": {"x": (5,)}}, "does not fit"),
        (one("FP32", (-1,)), {"shapes": {"x": (0,)}}, "positive"),
        (one("FP32"), {"shapes": {"z": (4,)}}, "Model m has no input z. Its inputs: x"),
        (one("FP32"), {"batch": 9}, "batch=9 is above max_batch_size=8.*never splits"),
        (one("FP32", max_batch_size=0), {"batch": 2}, "no batch dimension"),
        (one("INT8"), {"int_ranges": {"x": (0, 200)}}, "does not fit INT8. Use numbers from -128 to 127"),
        (one("STRANGE"), {}, "data type STRANGE"),
        (Signature((), (), 0), {}, "declares no inputs"),
    ],
)
def test_what_fits_no_request_is_one_sentence(signature: Signature, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        payloads(signature, plan(**options))


def write(folder: Path, document: Any) -> str:
    path = folder / "data.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def test_input_data_is_read_in_all_forms_of_perf_analyzer(tmp_path: Path) -> None:
    raw = np.array([7, 8, 9, 10], dtype=np.int32).tobytes()
    entries = [
        {"x": [1, 2, 3, 4]},
        {"x": {"content": [5, 6, 7, 8], "shape": [4]}},
        {"x": {"b64": base64.b64encode(raw).decode()}},
        {"x": {"content": {"b64": base64.b64encode(raw).decode()}, "shape": [4]}},
    ]
    pool = payloads(one("INT32"), plan(input_data=write(tmp_path, {"data": entries})))
    values = [np.frombuffer(payload[0].raw, dtype=np.int32).tolist() for payload in pool]
    assert values == [[1, 2, 3, 4], [5, 6, 7, 8], [7, 8, 9, 10], [7, 8, 9, 10]]


def test_samples_of_a_file_fill_batches_around_its_end(tmp_path: Path) -> None:
    data = write(tmp_path, {"data": [{"x": [number] * 4} for number in range(3)]})
    pool = payloads(one("INT32"), plan(input_data=data, batch=2))
    firsts = [np.frombuffer(payload[0].raw, dtype=np.int32)[::4].tolist() for payload in pool]
    assert firsts == [[0, 1], [2, 0]]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("{", "is not of the form"),
        ({"data": []}, "is not of the form"),
        ([1], "is not of the form"),
        ({"data": [{"y": [1]}]}, "sample 0, input x is missing"),
        ({"data": [{"x": [1, 2]}]}, r"has 2 elements, and its shape \[4\] needs 4"),
        ({"data": [{"x": ["a", 1, 2, 3]}]}, "cannot be read as INT32"),
        ({"data": [{"x": {"b64": "?"}}]}, "cannot be read as INT32"),
    ],
)
def test_bad_input_data_is_one_sentence(tmp_path: Path, document: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        payloads(one("INT32"), plan(input_data=write(tmp_path, document)))


def test_missing_input_data_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="There is no input data"):
        payloads(one("INT32"), plan(input_data=str(tmp_path / "none.json")))


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_perf_analyzers_document_has_one_entry_a_sample_without_the_batch(datatype: str) -> None:
    signature = one(datatype, (2, 2))
    pool = payloads(signature, plan(batch=3), count=2)
    document = perf_analyzer_document(pool, signature)
    assert len(document["data"]) == 6
    assert {tuple(entry["x"]["shape"]) for entry in document["data"]} == {(2, 2)}
    joined = b"".join(base64.b64decode(entry["x"]["content"]["b64"]) for entry in document["data"])
    assert joined == pool[0][0].raw + pool[1][0].raw
