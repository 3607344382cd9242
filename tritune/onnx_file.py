"""The bytes of an ONNX file: read without its outside weights, or refused in one sentence that says what it is.

Belongs here: what must hold before a file can be called ONNX at all. Never: what the model means (onnx_model).
"""

from __future__ import annotations

import contextlib
import mmap
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritune.errors import OnnxError

if TYPE_CHECKING:
    import onnx

PROTOBUF_LIMIT_BYTES = 2**31 - 1
LARGE_FILE_BYTES = 16 << 20
KEPT_BYTES = 64 << 10
"""Initializers up to here are kept: shape inference reads the values of small ones."""
_LOOKS_LIKE = (
    (b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint"),
    (b"\x1f\x8b", "a gzip file"),
    (b"\x80", "a Python pickle, such as an old PyTorch checkpoint"),
    (b"\x89HDF", "an HDF5 file, such as a Keras model"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself (run `git lfs pull`)"),
    (b"<", "a web page or XML"),
    (b"{", "JSON"),
)


def read(path: Path, *, with_weights: bool = True) -> onnx.ModelProto:
    """The model in the file at `path`; weights in files beside it are not loaded. Raises OnnxError.

    Without `with_weights`, large initializers of a large file keep name, type and dimensions only, so that it is never
    whole in memory.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise OnnxError(f"{path} is a folder. Give the .onnx file inside it.")
        if not stat.S_ISREG(status.st_mode):
            raise OnnxError(f"{path} is not a regular file. Give an .onnx file.")
        if status.st_size == 0:
            raise OnnxError(f"{path} is empty. Copy or export the model again.")
        if status.st_size > PROTOBUF_LIMIT_BYTES:
            raise OnnxError(
                f"{path} has {status.st_size / 2**30:.1f} GiB, and one ONNX file can hold 2. "
                "Save it with its weights as external data."
            )
        data = b""
        if not with_weights and status.st_size > LARGE_FILE_BYTES:
            # A damaged one is read whole, so that what is wrong with it can be said.
            with (
                contextlib.suppress(ValueError),
                path.open("rb") as file,
                mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            ):
                data = _without_weights(mapped)
        data = data or path.read_bytes()
    except FileNotFoundError as error:
        raise OnnxError(f"There is no file {path}. Check the path.") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise OnnxError(f"{path} cannot be read ({reason}). Check the path and its permissions.") from error
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise OnnxError(_why_not_onnx(path, data)) from error
    graph = proto.graph
    named = all(node.op_type for node in graph.node) and all(value.name for value in (*graph.input, *graph.output))
    if not (0 < proto.ir_version < 1000 and proto.opset_import and graph.node and graph.output and named):
        raise OnnxError(_why_not_onnx(path, data))
    texts = [proto.producer_name, proto.producer_version, *(value.name for value in (*graph.input, *graph.output))]
    texts += [text for entry in proto.metadata_props for text in (entry.key, entry.value)]
    if not all(isinstance(text, str) for text in texts):  # protobuf hands out bytes where they are not UTF-8
        raise OnnxError(f"{path} is damaged: it holds names that are not text. Copy or export the model again.")
    return proto


def _why_not_onnx(path: Path, data: bytes) -> str:
    if (size := _size_if_whole(data)) is not None:
        return f"{path} is cut short: it has {len(data)} bytes and needs at least {size}. Copy the model again."
    kind = next((kind for start, kind in _LOOKS_LIKE if data.lstrip()[: len(start)] == start), "")
    if not kind and data[:1] == b"\x08":
        return f"{path} is damaged, or an ONNX file without a graph. Copy or export the model again."
    if not kind and all(byte in b"\t\n\r" or 32 <= byte < 127 for byte in data[:256]):
        kind = "text"
    seems = f"; it looks like {kind}" if kind else ""
    return f"{path} is not an ONNX model{seems}. Give a file exported to ONNX, with torch.onnx.export for instance."


def _size_if_whole(data: bytes) -> int | None:
    """The size that a protobuf of ONNX's top-level fields must at least have, if `data` ends inside one of them.

    Wire format: https://protobuf.dev/programming-guides/encoding/, fields: ModelProto in onnx.proto.
    """
    wires = {1: 0, 5: 0} | dict.fromkeys((2, 3, 4, 6, 7, 8, 14, 20, 25, 26), 2)
    position = 0
    if data[:1] != b"\x08":
        return None
    while position < len(data):
        tag, position = _varint(data, position)
        if wires.get(tag >> 3) != tag & 7:
            return None
        value, position = _varint(data, position)
        if tag & 7 == 2:
            position += value
    return position if position > len(data) else None


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number at `position` and the position after it; past the end of `data` where the number is cut."""
    value = shift = 0
    while position < len(data):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    return value, len(data) + 1


def _without_weights(mapped: mmap.mmap) -> bytes:
    """A ModelProto's bytes without the values of its graph's large initializers; empty where it cannot be followed.

    Fields (onnx.proto): ModelProto.graph 7, GraphProto.initializer 5, TensorProto's values 4, 5, 6, 7, 9, 10, 11.
    """
    kept = []
    for field, start, body, end in _fields(mapped, 0, len(mapped)):
        if field != 7:
            kept.append(mapped[start:end])
            continue
        parts = []
        for inner, inner_start, inner_body, inner_end in _fields(mapped, body, end):
            if inner != 5 or inner_end - inner_start <= KEPT_BYTES:
                parts.append(mapped[inner_start:inner_end])
                continue
            heads = [
                mapped[begin:stop]
                for number, begin, _, stop in _fields(mapped, inner_body, inner_end)
                if number not in (4, 5, 6, 7, 9, 10, 11)
            ]
            tensor = b"".join(heads)
            parts.append(b"\x2a" + _as_varint(len(tensor)) + tensor)
        graph = b"".join(parts)
        kept.append(b"\x3a" + _as_varint(len(graph)) + graph)
    return b"".join(kept)


def _fields(data: mmap.mmap, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """(number, start, start of the value, end) of a message's fields. Raises ValueError where they do not add up."""
    while position < end:
        start = position
        tag, position = _number(data, position, end)
        wire = tag & 7
        body = position
        if wire == 0:
            _, position = _number(data, position, end)
        elif wire == 2:
            length, body = _number(data, position, end)
            position = body + length
        elif wire in (1, 5):
            position += 8 if wire == 1 else 4
        else:
            raise ValueError("it is damaged")
        if position > end:
            raise ValueError("it is cut short")
        yield tag >> 3, start, body, position


def _number(data: mmap.mmap, position: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while position < end and shift < 70:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position
    raise ValueError("it is cut short")


def _as_varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def external_files(path: Path, proto: onnx.ModelProto) -> tuple[str, ...]:
    """The names of the files with weights beside the model, each checked to lie in its folder and to be long enough."""
    needed: dict[str, int] = {}
    for tensor in _tensors(proto):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        entries = {str(entry.key): str(entry.value) for entry in tensor.external_data}
        name = entries.get("location", "")
        end = sum(int(value) for key in ("offset", "length") if (value := entries.get(key, "")[:20]).isdecimal())
        needed[name] = max(needed.get(name, 0), end)
    for name, end in needed.items():
        file = path.parent / name
        if not name or not _is_inside(file, path.parent):
            raise OnnxError(
                f"{path} takes weights from {name!r}, outside its own folder. Put them beside it and export it again."
            )
        if not file.is_file():
            raise OnnxError(
                f"{path} needs its weights in {name} beside it, and that file is missing. "
                "Put it there, or give both in one .zip."
            )
        if (size := file.stat().st_size) < end:
            raise OnnxError(f"{file} is cut short: it has {size} bytes and {path.name} needs {end}. Copy it again.")
    return tuple(sorted(needed))


def _is_inside(file: Path, folder: Path) -> bool:
    try:
        return file.resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that no file can have
        return False


def _tensors(message: Any) -> Iterator[onnx.TensorProto]:
    """Every tensor in a model, also those in attributes, subgraphs and functions."""
    import onnx

    for descriptor, value in message.ListFields():
        if descriptor.type != descriptor.TYPE_MESSAGE:
            continue
        for child in value if hasattr(value, "__len__") else (value,):
            if isinstance(child, onnx.TensorProto):
                yield child
            else:
                yield from _tensors(child)
