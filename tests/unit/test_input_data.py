"""What a request holds: samples from NumPy files and pictures, and shapes that are mixed by weight."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from loadgen.payload import payloads
from tritune.errors import InputError
from tritune.load_plan import Driver, LoadPlan, describe_load
from tritune.plan import Signature, TensorSpec
from tritune.shape_mix import MixedShape, parse_shapes


def signature(*inputs: tuple[str, str, tuple[int, ...]], max_batch_size: int = 8) -> Signature:
    return Signature(tuple(TensorSpec(*entry) for entry in inputs), (TensorSpec("y", "FP32", (1,)),), max_batch_size)


def plan(**options: Any) -> LoadPlan:
    return LoadPlan("m", **({"concurrency": 1} | options))


TOKENS = signature(("ids", "INT64", (-1,)), ("mask", "INT64", (-1,)))


def test_an_array_is_one_sample_or_samples_along_a_further_axis(tmp_path: Path) -> None:
    one = signature(("x", "FP16", (3,)))
    np.save(tmp_path / "x.npy", np.arange(12, dtype=np.float64).reshape(4, 3))
    pool = payloads(one, plan(input_data=str(tmp_path / "x.npy")))
    assert [np.frombuffer(payload[0].raw, np.float16).tolist() for payload in pool][1] == [3, 4, 5]
    np.save(tmp_path / "x.npy", np.arange(3))
    (payload,) = payloads(one, plan(input_data=str(tmp_path / "x.npy"), batch=2))
    assert payload[0].shape == (2, 3)


def test_an_npz_has_one_array_an_input_and_brings_its_sizes(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", ids=np.ones((5, 7), np.int32), mask=np.zeros((5, 7), np.int64))
    pool = payloads(TOKENS, plan(input_data=str(tmp_path / "x.npz")))
    assert len(pool) == 5
    assert {tensor.name: tensor.shape for tensor in pool[0]} == {"ids": (1, 7), "mask": (1, 7)}


def test_strings_from_numpy_are_bytes_elements(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array(["ab", "c"]))
    (payload,) = payloads(signature(("x", "BYTES", (2,))), plan(input_data=str(tmp_path / "x.npy")))
    assert payload[0].raw == b"\x02\0\0\0ab\x01\0\0\0c"


@pytest.mark.parametrize(
    ("datatype", "shape", "at", "expected"),
    [
        ("UINT8", (8, 6, 3), (0, 0), [255, 0, 102]),
        ("FP32", (8, 6, 3), (0, 0), [1.0, 0.0, 0.4]),
        ("FP32", (3, 8, 6), None, [1.0, 0.0, 0.4]),
        ("FP32", (1, 3, 8, 6), None, [1.0, 0.0, 0.4]),
        ("UINT8", (-1, -1, 3), (0, 0), [255, 0, 102]),
    ],
)
def test_a_picture_gets_the_inputs_size_layout_and_range(
    tmp_path: Path, datatype: str, shape: tuple[int, ...], at: tuple[int, int] | None, expected: list[float]
) -> None:
    Image.new("RGB", (20, 10), (255, 0, 102)).save(tmp_path / "a.png")
    Image.new("RGB", (20, 10), (255, 0, 102)).save(tmp_path / "b.jpg")
    pool = payloads(signature(("image", datatype, shape)), plan(input_data=str(tmp_path)))
    assert len(pool) == 2
    found = np.frombuffer(pool[0][0].raw, np.uint8 if datatype == "UINT8" else np.float32).reshape(pool[0][0].shape)[0]
    assert found.shape == ((10, 20, 3) if -1 in shape else shape)
    colour = found[at] if at is not None else found.reshape(3, -1)[:, 0]
    np.testing.assert_allclose(colour, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "make", "words"),
    [
        ("x.npy", lambda path: np.save(path, np.array([300.0])), "300.0 is not from 0 to 255"),
        ("x.npy", lambda path: np.save(path, np.zeros((2, 2, 2))), "one sample has 1 dimensions"),
        ("x.npy", lambda path: np.save(path, np.array([object()]), allow_pickle=True), "cannot be read"),
        ("x.npz", lambda path: np.savez(path, z=np.zeros(1)), "has no array x; it has z"),
        ("x.json", lambda path: path.write_text('{"data": [{"x": [-1]}]}'), "-1 is not from 0 to 255"),
        ("x.png", lambda path: path.write_bytes(b"no picture"), "is a picture, and input x"),
        ("folder", lambda path: path.mkdir(), "no .npy file and no picture"),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(tmp_path: Path, name: str, make: Any, words: str) -> None:
    make(tmp_path / name)
    with pytest.raises(InputError, match=words):
        payloads(signature(("x", "UINT8", (1,))), plan(input_data=str(tmp_path / name)))


def test_mixed_shapes_come_as_often_as_their_weights_say() -> None:
    shapes, mix = parse_shapes(["ids:12@3", "mask:12", "ids:128", "mask:128"])
    assert shapes == {}
    assert mix == (MixedShape({"ids": (12,), "mask": (12,)}, 3), MixedShape({"ids": (128,), "mask": (128,)}))
    pool = payloads(TOKENS, plan(shape_mix=mix))
    assert Counter(payload[0].shape for payload in pool) == {(1, 12): 24, (1, 128): 8}
    assert all(payload[0].shape == payload[1].shape for payload in pool)
    assert pool[0][0].shape != pool[2][0].shape or pool[1][0].shape != pool[3][0].shape  # spread, not in blocks


def test_a_plan_of_mixed_shapes_survives_its_document_and_says_them() -> None:
    asked = plan(shape_mix=parse_shapes(["ids:12@3", "ids:128", "mask:8"])[1])
    assert LoadPlan.from_dict(asked.to_dict()) == asked
    assert describe_load(asked.load()) == "locust http, 1 client, ids:12 mask:8 ×3, ids:128 mask:8"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["ids"], "must be NAME:sizes"),
        (["ids:1@"], "must be NAME:sizes"),
        (["ids:1@x"], "must be NAME:sizes"),
        (["ids:1", "ids:2", "mask:1", "mask:2", "mask:3"], "ids has 2, mask has 3"),
        (["ids:1@2", "ids:2", "mask:1@3", "mask:2"], "another weight"),
    ],
)
def test_shapes_that_cannot_be_mixed_are_refused(values: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        parse_shapes(values)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shapes": {"ids": (3,)}}, "go with neither"),
        ({"driver": Driver.PERF_ANALYZER, "batch": 2}, "perf_analyzer cannot send mixed shapes"),
    ],
)
def test_a_plan_refuses_what_does_not_go_with_mixed_shapes(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan(shape_mix=(MixedShape({"ids": (3,)}), MixedShape({"ids": (4,)})), **options)
