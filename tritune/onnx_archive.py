"""A model in a zip: an .onnx file with its weights beside it, unpacked into a folder of its own.

Belongs here: what an archive may hold, and unpacking it in parts. Never: what the model means (onnx_model).
"""

from __future__ import annotations

import contextlib
import shutil
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from tritune.errors import OnnxError

MAX_FILES = 10_000
SPARE_BYTES = 1 << 30
BOMB_BYTES = 4 << 30
BOMB_RATIO = 200
COPY_BYTES = 8 << 20
_IGNORED = ("__MACOSX", ".DS_Store")


@contextlib.contextmanager
def model_file(path: Path, place: Path) -> Iterator[Path]:
    """The .onnx file at `path`, or the one in the zip there, unpacked under `place` until the end.

    Raises OnnxError with what is wrong with the archive; nothing of it is then left.
    """
    if not path.is_file() or path.suffix.lower() == ".onnx" or not zipfile.is_zipfile(path):
        yield path
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".unpacked-", dir=place)
    except OSError as error:
        raise OnnxError(f"{path.name} cannot be unpacked in {place} ({error.strerror}). Make room there.") from error
    with folder as name:
        yield _unpack(path, Path(name))


def _unpack(path: Path, folder: Path) -> Path:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [entry for entry in archive.infolist() if not entry.is_dir() and not _is_ignored(entry)]
            model = _checked(path, members, folder)
            for entry in members:
                target = folder / entry.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("xb") as file:
                    _copy(path, entry, source, file)
    except OnnxError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
        raise OnnxError(f"{path.name} is no zip that can be unpacked ({error}). Zip the folder again.") from error
    except OSError as error:
        raise OnnxError(
            f"{path.name} could not be unpacked in {folder.parent} ({error.strerror or error}). Make room there."
        ) from error
    return folder / model


def _is_ignored(entry: zipfile.ZipInfo) -> bool:
    return any(part in _IGNORED for part in PurePosixPath(entry.filename).parts)


def _checked(path: Path, members: list[zipfile.ZipInfo], folder: Path) -> str:
    """The name of the one .onnx file. Raises OnnxError for what must not be unpacked."""
    if len(members) > MAX_FILES:
        raise OnnxError(f"{path.name} holds {len(members)} files, and {MAX_FILES} is the most. Zip the model alone.")
    for entry in members:
        inside = PurePosixPath(entry.filename)
        if inside.is_absolute() or ".." in inside.parts or "\\" in entry.filename or ":" in inside.parts[0]:
            raise OnnxError(f"{path.name} holds {entry.filename!r}, which leaves its folder. Zip the folder again.")
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG):
            raise OnnxError(
                f"{path.name} holds {entry.filename!r}, which is a link or no file. Zip the files themselves."
            )
        if entry.flag_bits & 1:
            raise OnnxError(f"{path.name} is protected with a password. Zip it without one.")
    total = sum(entry.file_size for entry in members)
    if total > BOMB_BYTES and total > BOMB_RATIO * path.stat().st_size:
        raise OnnxError(
            f"{path.name} would grow {total // max(path.stat().st_size, 1)} times, to {total / 2**30:.1f} GiB, which "
            "no weights do. Give the .onnx file and its weights in a folder."
        )
    free = shutil.disk_usage(folder).free - SPARE_BYTES
    if total > free:
        raise OnnxError(
            f"{path.name} needs {total / 2**30:.1f} GiB unpacked, and {max(free, 0) / 2**30:.1f} are free in "
            f"{folder.parent}. Make room there."
        )
    models = [entry.filename for entry in members if entry.filename.lower().endswith(".onnx")]
    if len(models) != 1:
        found = f"{len(models)} .onnx files ({', '.join(models[:5])})" if models else "no .onnx file"
        raise OnnxError(f"{path.name} holds {found}. Zip one model with its weights.")
    return models[0]


def _copy(path: Path, entry: zipfile.ZipInfo, source: IO[bytes], file: IO[bytes]) -> None:
    """In parts, and never more than the archive's directory said."""
    left = entry.file_size
    while part := source.read(COPY_BYTES):
        left -= len(part)
        if left < 0:
            raise OnnxError(f"{path.name}: {entry.filename!r} is larger than the archive says. Zip the folder again.")
        file.write(part)
