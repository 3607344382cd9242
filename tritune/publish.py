"""From a model to a published version that a running server serves: the built-in MNIST, or any ONNX file.

Belongs here: check, publish, load, in that order. Never: how a file is checked or a folder is written.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tritune import deploy, mnist, model_config, onnx_archive, onnx_model, servers
from tritune.onnx_model import OnnxModel
from tritune.repository import ModelRepository
from tritune.settings import Settings

MNIST_MODEL = "mnist"
DEFAULT_OPSET = 17
MNIST_MAX_BATCH_SIZE = 32

Progress = Callable[[str], None]


def build_mnist(
    settings: Settings,
    *,
    opset: int | None = None,
    simplify: bool = False,
    retrain: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Export the built-in network, publish it as the next version of `mnist`, and load it where a server is up.

    Returns {"model", "version", "opset", "accuracy", "max_abs_difference", "loaded"}. Raises InputError,
    DatasetError (only with `retrain`) and TritonRefusedError.
    """
    opset = DEFAULT_OPSET if opset is None else opset
    if retrain:
        mnist.train(settings, progress=lambda text, _fraction: progress(text))
    progress("Exporting the MNIST network to ONNX")
    with tempfile.TemporaryDirectory(prefix="tritune-export-") as folder:
        path = mnist.export(opset, Path(folder), simplify=simplify)
        model = onnx_model.inspect(path)
        metadata = model.metadata
        result = _publish(settings, path, model, MNIST_MODEL, MNIST_MAX_BATCH_SIZE, progress)
    return {
        **result,
        "opset": opset,
        "accuracy": float(metadata["accuracy"]),
        "max_abs_difference": float(metadata["max_abs_difference"]),
    }


def add(settings: Settings, path: str | Path, name: str | None, *, progress: Progress) -> dict[str, Any]:
    """Publish an ONNX file, or the one in a zip, under `name` (default: the file's own) and load it where a server is
    up.

    Returns {"model", "version", "loaded"}. Raises OnnxError, InputError and TritonRefusedError.
    """
    given = Path(path)
    if name is None:
        name = re.sub(r"[^A-Za-z0-9_.-]+", "_", given.stem).strip(".-") or "model"
    ModelRepository(settings.model_repo).check_name(name)
    if given.suffix.lower() == ".zip":
        progress(f"Unpacking {given.name}")
    with onnx_archive.model_file(given, settings.uploads) as file:
        progress(f"Checking {file.name}")
        model = onnx_model.check(file)
        if model.batchable:
            onnx_model.check_dynamic_batch(model)
        elif (fixed := model.fixed_batch) is not None:
            shape = ",".join(str(size) for size in fixed.shape)
            progress(
                f"{file.name} cannot be batched: dimension 0 of {fixed.name} [{shape}] is fixed. It is published with "
                "max_batch_size 0; export it with a dynamic batch dimension to tune its batching."
            )
        return _publish(settings, file, model, name, None, progress)


def _publish(
    settings: Settings, path: Path, model: OnnxModel, name: str, max_batch_size: int | None, progress: Progress
) -> dict[str, Any]:
    repository = ModelRepository(settings.model_repo)
    progress(f"Publishing {name}")
    config = model_config.generate(model, name, max_batch_size)
    version = repository.publish(name, path, config)
    status = servers.status(settings)
    loaded = status.state is servers.ServerState.READY and status.kind is not servers.ServerKind.REMOTE
    if loaded:
        progress(f"Loading {name} version {version}")
        deploy.load(servers.connect(settings), repository, name)
    else:
        progress(f"Published {name} version {version}; no server that reads this repository is running yet")
    return {"model": name, "version": version, "loaded": loaded}
