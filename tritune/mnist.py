"""The built-in model: the MNIST network, its training, its weights and its export.

Belongs here: what is particular to MNIST. Never: ONNX in general (onnx_model), where images come from (mnist_images),
publishing (repository). torch is imported where it is used, so that importing this module stays quick.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tritune import onnx_model
from tritune.errors import InputError, TrituneError
from tritune.mnist_images import PUBLISHED_SHA256, Images, load_images
from tritune.settings import Settings

if TYPE_CHECKING:
    import torch

ASSETS = Path(__file__).resolve().parent / "assets"
WEIGHTS = ASSETS / "mnist.safetensors"
SAMPLES = ASSETS / "mnist_samples.npz"
INPUT_NAME = "INPUT__0"
OUTPUT_NAME = "OUTPUT__0"
INPUT_TEXT = "float32 [batch, 1, 28, 28]: grey values 0 (background) to 255, divided by 255"
OUTPUT_TEXT = "float32 [batch, 10]: natural logarithm of the probability of each digit 0 to 9"
MINIMUM_ACCURACY = 0.988
EPOCHS = 8
BATCH = 128
LEARNING_RATE = 1e-3

Progress = Callable[[str, float], None]
Bytes = npt.NDArray[np.uint8]

__all__ = [
    "Images",
    "TrainingResult",
    "export",
    "load_images",
    "network",
    "normalise",
    "sample_images",
    "train",
    "trained_network",
    "weights",
]


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What a training reached: `accuracy` is the share of the test images that are named rightly."""

    accuracy: float
    test_images: int
    epochs: int
    seed: int
    duration_s: float
    dataset_source: str
    dataset_sha256: str
    path: Path


def normalise(images: Bytes) -> npt.NDArray[np.float32]:
    """What the model takes: float32 (N, 1, 28, 28) in 0..1 from grey values uint8 (N, 28, 28) or (28, 28).

    This division by 255 is the only preprocessing; it is what torchvision's ToTensor does.
    """
    if images.dtype != np.uint8 or images.shape[-2:] != (28, 28) or images.ndim not in (2, 3):
        raise InputError(
            f"An image array of {images.dtype} {images.shape} cannot be sent to the MNIST model. "
            "Give uint8 grey values of shape (N, 28, 28) or (28, 28)."
        )
    return images.reshape(-1, 1, 28, 28).astype(np.float32) / np.float32(255)


def network() -> torch.nn.Module:
    """The untrained network: (N, 1, 28, 28) → log-softmax (N, 10); 1,199,882 parameters."""
    from collections import OrderedDict

    from torch import nn

    return nn.Sequential(
        OrderedDict(
            [
                ("conv1", nn.Conv2d(1, 32, 3)),
                ("relu1", nn.ReLU()),
                ("conv2", nn.Conv2d(32, 64, 3)),
                ("relu2", nn.ReLU()),
                ("pool", nn.MaxPool2d(2)),
                ("dropout1", nn.Dropout(0.25)),
                ("flatten", nn.Flatten()),
                ("fc1", nn.Linear(9216, 128)),
                ("relu3", nn.ReLU()),
                ("dropout2", nn.Dropout(0.5)),
                ("fc2", nn.Linear(128, 10)),
                ("log_softmax", nn.LogSoftmax(dim=1)),
            ]
        )
    )


def train(
    settings: Settings,
    *,
    epochs: int = EPOCHS,
    seed: int = 0,
    progress: Progress = lambda text, fraction: None,
    minimum_accuracy: float = MINIMUM_ACCURACY,
    target: Path = WEIGHTS,
) -> TrainingResult:
    """Train on the 60,000 images and write the weights with their figures to `target`, a safetensors file.

    Adam with a learning rate that falls along a cosine to 0. The test images are looked at once, at the end: no epoch
    is chosen by them. `progress` gets a sentence and the fraction done; what it raises ends the training and leaves
    `target` as it was.

    Raises DatasetError without images, TrituneError where `minimum_accuracy` is missed (`target` is left as it was).
    """
    if not 1 <= epochs <= 1000:
        raise InputError(f"epochs={epochs} must be a whole number from 1 to 1000. The default is {EPOCHS}.")
    progress("Reading the MNIST images", 0.0)
    images = load_images(settings)
    started = time.monotonic()
    module = _fit(images, epochs, seed, progress)
    accuracy = _accuracy(module, images)
    reached = f"{accuracy:.2%} of {len(images.test_labels):,} test images after {epochs} epochs"
    if accuracy < minimum_accuracy:
        raise TrituneError(
            f"Training reached {reached}, which is below {minimum_accuracy:.2%}; the weights were left as they were. "
            f"Train for more epochs (the default is {EPOCHS})."
        )
    result = TrainingResult(
        accuracy=accuracy,
        test_images=len(images.test_labels),
        epochs=epochs,
        seed=seed,
        duration_s=time.monotonic() - started,
        dataset_source=images.source,
        dataset_sha256=images.sha256,
        path=target,
    )
    _write_weights(module, result, images)
    progress(f"Trained: {reached}", 1.0)
    return result


def weights(path: Path = WEIGHTS) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The trained weights and the figures stored with them: accuracy, test_images, train_images, epochs, seed,
    training, training_s, torch, dataset, dataset_source, dataset_sha256.

    Raises TrituneError where the file is missing or damaged.
    """
    import safetensors

    try:
        with safetensors.safe_open(path, framework="pt") as file:
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            # The format keeps no order, and an export shall give the same bytes each time.
            return state, dict(sorted((file.metadata() or {}).items()))
    except (OSError, safetensors.SafetensorError) as error:
        raise TrituneError(
            f"The weights {path} cannot be read ({error}). Restore the file from the repository, or train "
            "it again with `tritune model build --retrain`."
        ) from error


def trained_network(path: Path = WEIGHTS) -> torch.nn.Module:
    """The network with the trained weights, in evaluation mode (no dropout). Raises TrituneError."""
    state, _ = weights(path)
    module = network()
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise TrituneError(
            f"The weights {path} do not fit the network. Train them again with `tritune model build --retrain`."
        ) from error
    return module.eval()


def sample_images() -> list[tuple[Bytes, int]]:
    """Twenty images of the MNIST test set, two of each digit in the order 0 to 9: grey values uint8 (28, 28), label.

    Raises TrituneError where the file is missing or damaged.
    """
    try:
        with SAMPLES.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            images, labels = arrays["images"], arrays["labels"]
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise TrituneError(
            f"The sample images {SAMPLES} cannot be read ({error}). Restore the file from the repository."
        ) from error
    return [(image, int(label)) for image, label in zip(images, labels, strict=True)]


def export(opset: int, folder: Path, *, simplify: bool = False) -> Path:
    """Write the trained network as `model.onnx` into `folder`, checked as onnx_model.export_module says.

    The metadata holds the figures of the weights and, as `input` and `output`, what to send and what comes back.
    Takes about a second. Raises InputError for an opset out of range, OnnxError where a check fails.
    """
    _, figures = weights()
    target = folder / "model.onnx"
    onnx_model.export_module(
        trained_network(),
        target,
        input_shape=(1, 28, 28),
        input_name=INPUT_NAME,
        output_name=OUTPUT_NAME,
        opset=opset,
        metadata={**figures, "input": INPUT_TEXT, "output": OUTPUT_TEXT},
        simplify=simplify,
    )
    return target


def _fit(images: Images, epochs: int, seed: int, progress: Progress) -> torch.nn.Module:
    import torch
    from torch import nn

    inputs = torch.from_numpy(normalise(images.train_images))
    labels = torch.from_numpy(images.train_labels.astype(np.int64))
    steps = math.ceil(len(labels) / BATCH) * epochs
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = network().train()
        optimizer = torch.optim.Adam(module.parameters(), lr=LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        step, loss_mean = 0, math.nan
        for epoch in range(epochs):
            for batch in torch.randperm(len(labels)).split(BATCH):  # type: ignore[no-untyped-call]
                optimizer.zero_grad()
                loss = nn.functional.nll_loss(module(inputs[batch]), labels[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                loss_mean = loss.item() if step == 0 else 0.99 * loss_mean + 0.01 * loss.item()
                step += 1
                if step % 20 == 0:
                    progress(f"Training: epoch {epoch + 1} of {epochs}, loss {loss_mean:.4f}", 0.99 * step / steps)
    return module.eval()


def _accuracy(module: torch.nn.Module, images: Images) -> float:
    import torch

    inputs = torch.from_numpy(normalise(images.test_images))
    with torch.inference_mode():
        named = torch.cat([module(part).argmax(dim=1) for part in inputs.split(1000)])  # type: ignore[no-untyped-call]
    return float(np.mean(named.numpy() == images.test_labels))


def _write_weights(module: torch.nn.Module, result: TrainingResult, images: Images) -> None:
    import safetensors.torch
    import torch

    metadata = {
        "accuracy": f"{result.accuracy:.4f}",
        "test_images": str(result.test_images),
        "epochs": str(result.epochs),
        "seed": str(result.seed),
        "training": f"Adam {LEARNING_RATE:g} with cosine decay to 0, batch {BATCH}",
        "training_s": f"{result.duration_s:.0f}",
        "torch": torch.__version__,
        "dataset": "MNIST" if images.sha256 == PUBLISHED_SHA256 else "images that are not the published MNIST",
        "train_images": str(len(images.train_labels)),
        "dataset_source": images.source,
        "dataset_sha256": result.dataset_sha256,
    }
    data = safetensors.torch.save(module.state_dict(), metadata=metadata)
    try:
        result.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".mnist-", dir=result.path.parent) as folder:
            draft = Path(folder) / "weights"
            with draft.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(result.path)
    except OSError as error:
        raise TrituneError(
            f"The trained weights could not be written to {result.path}: {error.strerror}. "
            "Make the folder writable and train again."
        ) from error
