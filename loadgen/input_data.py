"""Samples from files: perf_analyzer's JSON, NumPy's .npy and .npz, pictures, or a folder of .npy files or pictures.

Belongs here: reading a file into one tensor an input and sample, without the batch dimension. Never: made-up values and
how samples become requests (payload.py).

    data.json    {"data": [{"INPUT": [..] or {"content": .., "shape": ..} or {"b64": ..}}, ..]}, one sample an entry
    x.npy        for a model with one input: one sample, or samples along a first axis of its own
    x.npz        one array an input, under the inputs' names
    x.png, x.jpg for a model with one picture as input: scaled to its size; its layout (channels first or last) and its
                 type decide the rest: whole numbers get 0 to 255, others grey value / 255
    a folder     every .npy file or picture in it is a sample, in the order of their names
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadgen.payload import DTYPES, Tensor, bfloat16, byte_size, bytes_elements, element
from tritune.errors import InputError
from tritune.plan import Signature, TensorSpec

PICTURES = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif")
MAX_FILES = 1000
MAX_PIXELS = 100_000_000

Shapes = Mapping[str, tuple[int, ...] | None]
Row = dict[str, Tensor]


def read(path: Path, signature: Signature, shapes: Shapes) -> list[Row]:
    """Every sample of the file or folder, in order. `shapes`: what was chosen for each input, None where free
    dimensions were left to the file. Raises InputError with the file and what is wrong with it."""
    if not path.exists():
        raise InputError(f"There is no input data {path}. Give a JSON, .npy or .npz file, a picture, or a folder.")
    if path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in (".npy", *PICTURES))
        if not files or len(files) > MAX_FILES:
            found = f"{len(files)} .npy files and pictures" if files else "no .npy file and no picture"
            raise InputError(f"The folder {path} has {found}, and 1 to {MAX_FILES} are needed. Give another folder.")
        return [row for file in files for row in _read_file(file, signature, shapes)]
    return _read_file(path, signature, shapes)


def _read_file(path: Path, signature: Signature, shapes: Shapes) -> list[Row]:
    kind = path.suffix.lower()
    if kind in PICTURES:
        spec = _only_input(path, signature)
        return [{spec.name: _tensor(str(path), spec, shapes[spec.name], _picture(path, spec, shapes[spec.name]))}]
    if kind in (".npy", ".npz"):
        return _arrays(path, signature, shapes)
    return _json(path, signature, shapes)


def _only_input(path: Path, signature: Signature) -> TensorSpec:
    if len(signature.inputs) == 1:
        return signature.inputs[0]
    names = ", ".join(spec.name for spec in signature.inputs)
    raise InputError(f"{path} is for a model with one input, and this one has {names}. Give an .npz file with all.")


# --- NumPy ---------------------------------------------------------------------------------------------------------


def _arrays(path: Path, signature: Signature, shapes: Shapes) -> list[Row]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if path.suffix.lower() == ".npy":
            given = {_only_input(path, signature).name: np.asarray(loaded)}
        else:
            with loaded:
                given = {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, KeyError, AttributeError) as error:
        raise InputError(
            f"The input data {path} cannot be read ({error}). Save it with numpy.save or savez."
        ) from error
    parts: dict[str, list[NDArray[Any]]] = {}
    for spec in signature.inputs:
        if spec.name not in given:
            raise InputError(f"{path} has no array {spec.name}; it has {', '.join(given)}. Every input needs one.")
        array = given[spec.name]
        rank = len(spec.shape)
        if array.ndim not in (rank, rank + 1):
            raise InputError(
                f"{path}: the array for input {spec.name} has the shape {list(array.shape)}, and one sample has "
                f"{rank} dimensions, {list(spec.shape)}. Give one sample, or samples along a further first axis."
            )
        parts[spec.name] = [array] if array.ndim == rank else list(array)
    counts = {name: len(rows) for name, rows in parts.items()}
    if len(set(counts.values())) > 1 or not all(counts.values()):
        raise InputError(f"{path}: every input needs the same number of samples, one or more; there are {counts}.")
    return [
        {spec.name: _tensor(str(path), spec, shapes[spec.name], parts[spec.name][number]) for spec in signature.inputs}
        for number in range(next(iter(counts.values())))
    ]


def _tensor(where: str, spec: TensorSpec, chosen: tuple[int, ...] | None, array: NDArray[Any]) -> Tensor:
    """One sample's array as the input's type. Raises InputError where values or shape do not fit."""
    shape = tuple(int(size) for size in array.shape)
    _check_shape(f"{where}: input {spec.name}", spec, chosen, shape)
    try:
        raw = _from_flat(spec.datatype, array.reshape(-1))
    except (ValueError, TypeError, OverflowError, KeyError) as error:
        raise InputError(f"{where} cannot be read as {spec.datatype} ({error}). Correct the file.") from error
    return Tensor(spec.name, spec.datatype, shape, raw)


# --- pictures ------------------------------------------------------------------------------------------------------


def _picture(path: Path, spec: TensorSpec, chosen: tuple[int, ...] | None) -> NDArray[Any]:
    """The picture in the input's size, layout and range, as an array of one sample's shape."""
    from PIL import Image, UnidentifiedImageError

    shape = chosen or spec.shape
    places = _layout(shape)
    if places is None or spec.datatype in ("BYTES", "BOOL"):
        raise InputError(
            f"{path} is a picture, and input {spec.name} ({spec.datatype} {list(spec.shape)}) is none: it needs "
            "height, width and 1 or 3 channels. Give a .npy file instead."
        )
    high, wide, channels = places
    try:
        with Image.open(path) as opened:
            if opened.width * opened.height > MAX_PIXELS:
                raise InputError(f"{path} has more than {MAX_PIXELS:,} pixels. Give a smaller picture.")
            picture = opened.convert("L" if channels is None or shape[channels] == 1 else "RGB")
    except (OSError, UnidentifiedImageError, Image.DecompressionBombError, SyntaxError) as error:
        raise InputError(f"{path} is no picture that can be read ({error}). Give a PNG or JPEG file.") from error
    size = (shape[wide] if shape[wide] > 0 else picture.width, shape[high] if shape[high] > 0 else picture.height)
    pixels = np.asarray(picture.resize(size, Image.Resampling.BILINEAR))
    pixels = pixels[..., None] if channels is not None and pixels.ndim == 2 else pixels
    if channels is not None and channels < high:
        pixels = np.moveaxis(pixels, -1, 0)
    pixels = pixels.reshape((1,) * (len(shape) - pixels.ndim) + pixels.shape)
    if spec.datatype in ("FP16", "FP32", "FP64", "BF16"):
        return (pixels / np.float32(255)).astype(np.float32)
    if spec.datatype == "INT8":
        return (pixels.astype(np.int16) - 128).astype(np.int8)
    return pixels


def _layout(shape: Sequence[int]) -> tuple[int, int, int | None] | None:
    """Where height, width and channels are in a sample's shape (a leading 1 apart); None where it is no picture."""
    first = len(shape) - 3 if len(shape) > 3 and all(size == 1 for size in shape[:-3]) else 0
    rest = shape[first:]
    if len(rest) == 2:
        return first, first + 1, None
    if len(rest) != 3:
        return None
    if rest[0] in (1, 3):
        return first + 1, first + 2, first
    return (first, first + 1, first + 2) if rest[2] in (1, 3) else None


# --- JSON ----------------------------------------------------------------------------------------------------------


def _json(path: Path, signature: Signature, shapes: Shapes) -> list[Row]:
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
    return [_entry(path, number, entry, signature, shapes) for number, entry in enumerate(entries)]


def _entry(path: Path, number: int, entry: Any, signature: Signature, shapes: Shapes) -> Row:
    row = {}
    for spec in signature.inputs:
        where = f"{path}: sample {number}, input {spec.name}"
        if not isinstance(entry, dict) or spec.name not in entry:
            raise InputError(f"{where} is missing. Every sample needs every input of the model.")
        value, given = entry[spec.name], shapes[spec.name]
        try:
            if isinstance(value, dict):
                if "shape" in value:
                    said = value["shape"]
                    given = tuple(int(size) for size in (said if isinstance(said, list) else [said]))
                value = value.get("content", value)
            raw = _raw(spec.datatype, value)
        except (ValueError, TypeError, OverflowError, KeyError, binascii.Error) as error:
            raise InputError(f"{where} cannot be read as {spec.datatype} ({error}). Correct the file.") from error
        shape = _completed(where, spec, given, _count(spec, raw))
        _check_shape(where, spec, shapes[spec.name], shape)
        row[spec.name] = Tensor(spec.name, spec.datatype, shape, raw)
    return row


def _raw(datatype: str, value: Any) -> bytes:
    if isinstance(value, dict):
        return base64.b64decode(str(value["b64"]) if "b64" in value else "", validate=True)
    return _from_flat(datatype, np.asarray(value, dtype=object).reshape(-1))


def _from_flat(datatype: str, flat: NDArray[Any]) -> bytes:
    """Values as the bytes of a type. Raises ValueError for a number that it cannot hold."""
    if datatype == "BYTES":
        return b"".join(element(item if isinstance(item, bytes) else str(item).encode()) for item in flat.tolist())
    if datatype == "BF16":
        return bfloat16(flat.astype(np.float32))
    dtype = np.dtype(DTYPES[datatype])
    numbers = flat if flat.dtype != object else np.asarray(flat.tolist())
    if numbers.dtype.kind not in "biuf":
        raise ValueError("there is something else than numbers")
    if dtype.kind in "iu" and numbers.dtype != dtype and numbers.size:
        low, high, limits = numbers.min(), numbers.max(), np.iinfo(dtype)
        if not (limits.min <= low and high <= limits.max):
            raise ValueError(f"{low if low < limits.min else high} is not from {limits.min} to {limits.max}")
    return numbers.astype(dtype).tobytes()


def _count(spec: TensorSpec, raw: bytes) -> int:
    return len(bytes_elements(raw)) if spec.datatype == "BYTES" else len(raw) // (byte_size(spec.datatype) or 1)


def _completed(where: str, spec: TensorSpec, shape: tuple[int, ...] | None, count: int) -> tuple[int, ...]:
    """The shape of `count` elements: the one that was given, or the model's with its one free dimension filled in."""
    if shape is None:
        free = [place for place, size in enumerate(spec.shape) if size < 0]
        known = math.prod(size for size in spec.shape if size >= 0)
        if len(free) == 1 and known and count % known == 0:
            shape = tuple(count // known if place in free else size for place, size in enumerate(spec.shape))
        elif not free:
            shape = spec.shape
        else:
            raise InputError(f'{where} does not say its shape {list(spec.shape)}. Add "shape" beside "content".')
    if count != math.prod(shape):
        raise InputError(
            f"{where} has {count} elements, and its shape {list(shape)} needs {math.prod(shape)}. Correct the file."
        )
    return shape


def _check_shape(where: str, spec: TensorSpec, chosen: tuple[int, ...] | None, shape: tuple[int, ...]) -> None:
    wanted = chosen or spec.shape
    fits = len(shape) == len(wanted) and all(want in (-1, size) for size, want in zip(shape, wanted, strict=True))
    if not fits:
        raise InputError(f"{where} has the shape {list(shape)}, which does not fit {list(wanted)}. Correct the file.")
