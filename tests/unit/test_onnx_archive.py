"""A zip gives its one model and its weights, or is refused with what is wrong; nothing is left of it."""

from __future__ import annotations

import shutil
import stat
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritune import onnx_archive, onnx_file, onnx_model
from tritune.errors import OnnxError


def save(path: Path, *, floats: int = 1000, external: bool = True) -> Path:
    """y = x + w, its weights in w.bin beside it."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", floats]) for name in "xy")
    weight = numpy_helper.from_array(np.zeros(floats, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="w.bin", size_threshold=0)
    return path


def test_a_model_and_its_weights_come_out_where_they_find_each_other(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx")
    with zipfile.ZipFile(tmp_path / "m.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("m.onnx", "w.bin"):
            archive.write(tmp_path / name, f"export/{name}")
        archive.writestr("__MACOSX/export/._m.onnx", b"noise")
    with onnx_archive.model_file(tmp_path / "m.zip", tmp_path / "place") as file:
        model = onnx_model.check(file)
        assert model.external_files == ("w.bin",)
        assert model.inputs[0].shape == (-1, 1000)
    assert list((tmp_path / "place").iterdir()) == []


def link(archive: zipfile.ZipFile) -> None:
    entry = zipfile.ZipInfo("w.bin")
    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    archive.writestr(entry, "/etc/passwd")


def bomb(archive: zipfile.ZipFile) -> None:
    archive.writestr("m.onnx", b"")
    with archive.open(zipfile.ZipInfo("w.bin"), "w") as file:
        file.write(b"\0")
    archive.filelist[-1].file_size = 5 << 30


@pytest.mark.parametrize(
    ("fill", "words"),
    [
        (lambda archive: archive.writestr("../m.onnx", b"x"), "leaves its folder"),
        (lambda archive: archive.writestr("/m.onnx", b"x"), "leaves its folder"),
        (lambda archive: archive.writestr("a\\..\\m.onnx", b"x"), "leaves its folder"),
        (lambda archive: archive.writestr("C:/m.onnx", b"x"), "leaves its folder"),
        (link, "is a link"),
        (bomb, "which no weights do"),
        (lambda archive: archive.writestr("readme.txt", b"x"), "no .onnx file"),
        (lambda archive: [archive.writestr(f"{n}.onnx", b"x") for n in range(2)], "2 .onnx files"),
    ],
)
def test_what_must_not_be_unpacked_is_refused_by_name(
    tmp_path: Path, fill: Callable[[zipfile.ZipFile], object], words: str
) -> None:
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        fill(archive)
    with pytest.raises(OnnxError, match=words), onnx_archive.model_file(tmp_path / "m.zip", tmp_path / "place"):
        pass
    assert list((tmp_path / "place").iterdir()) == []
    assert not (tmp_path / "m.onnx").exists()


def test_a_damaged_zip_is_one_sentence(tmp_path: Path) -> None:
    save(tmp_path / "m.onnx")
    with zipfile.ZipFile(tmp_path / "m.zip", "w") as archive:
        archive.write(tmp_path / "m.onnx", "m.onnx")
    data = bytearray((tmp_path / "m.zip").read_bytes())
    data[60] ^= 0xFF
    (tmp_path / "m.zip").write_bytes(data)
    refused = pytest.raises(OnnxError, match="no zip that can be unpacked")
    with refused, onnx_archive.model_file(tmp_path / "m.zip", tmp_path / "place"):
        pass


def test_a_large_file_says_the_same_without_its_weights_in_memory(tmp_path: Path) -> None:
    path = save(tmp_path / "large.onnx", floats=5_000_000, external=False)
    assert path.stat().st_size > onnx_file.LARGE_FILE_BYTES
    model = onnx_model.check(path)
    assert onnx_model.check_dynamic_batch(model) == ("x", "y")
    slim = onnx_file.read(path, with_weights=False)
    assert slim.ByteSize() < 1000
    assert list(slim.graph.initializer[0].dims) == [5_000_000]
    assert len(onnx_file.read(path).graph.initializer[0].raw_data) == 20_000_000


def test_more_than_two_gib_of_weights_beside_a_model_are_hashed_in_parts(tmp_path: Path) -> None:
    if shutil.disk_usage(tmp_path).free < 8 << 30:
        pytest.skip("too little room on the disk")
    path = save(tmp_path / "m.onnx")
    model = onnx.load(path, load_external_data=False)
    tensor = model.graph.initializer[0]
    rows = 540_000  # of 1,000 FP32: 2.16 GB; the file is sparse and takes no room
    tensor.dims[:] = [rows, 1000]
    for entry in tensor.external_data:
        if entry.key == "length":
            entry.value = str(rows * 4000)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = rows
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = rows
    onnx.save(model, path)
    with (tmp_path / "w.bin").open("r+b") as file:
        file.truncate(rows * 4000)
    found = onnx_model.check(path)
    assert found.size_bytes > 2 << 30
    assert not found.batchable
