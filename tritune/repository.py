"""The model repository on disk: <model>/config.pbtxt and <model>/<version>/model.onnx.

Belongs here: reading the folder, checking its layout, and writing into it so that Triton never sees half of anything.
Never: a running server (triton, deploy), what a configuration says (model_config), making ONNX files (onnx_model).

How writing is atomic: everything is made in a hidden folder beside the repository (on the same file system, held by an
flock, so that what a killed process leaves is known as dead and removed by the next) and enters by one rename.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tritune import model_config, onnx_model, repository_rules
from tritune.errors import ConfigError, InputError, OnnxError, TrituneError, UnknownModelError
from tritune.model_config import Finding, ModelConfig
from tritune.plan import MODEL_NAME_PATTERN
from tritune.repository_rules import CONFIG_FILE, MODEL_FILE, version_number

MAX_CONFIG_BYTES = 16 << 20
_ATTEMPTS = 100


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model's folder. `versions` ascend; `onnx_path` is the newest version's model, None where it has none."""

    name: str
    versions: tuple[int, ...]
    has_config: bool
    onnx_path: Path | None


@dataclass(frozen=True, slots=True)
class ModelRepository:
    """The folder that Triton reads. It may be missing: then it holds no model, and publishing makes it."""

    path: Path

    def models(self) -> tuple[ModelEntry, ...]:
        """Every model by name. Folders whose names are not safe for Triton are not among them (see `strays`)."""
        return tuple(self._entry(folder) for folder in self._folders() if _is_name(folder.name))

    def entry(self, name: str) -> ModelEntry:
        """One model. Raises InputError for an unsafe name, UnknownModelError (naming the known) for an absent one."""
        self.check_name(name)
        if not (self.path / name).is_dir():
            known = ", ".join(entry.name for entry in self.models())
            raise UnknownModelError(
                f"There is no model {name} in {self.path}. "
                + (f"It has: {known}." if known else "Publish one with `tritune model build` or `tritune model add`.")
            )
        return self._entry(self.path / name)

    def check_name(self, name: str) -> None:
        """Raise InputError unless Triton can be given a model of that name (its Python stubs start through a shell)."""
        if not _is_name(name):
            raise InputError(
                f"{name!r} cannot be a model's name. Use up to 64 letters, digits, '_', '.' or '-', "
                "beginning with a letter, a digit or '_'."
            )

    def strays(self) -> tuple[Finding, ...]:
        """The folders that are never loaded because of their names."""
        names = [folder.name for folder in self._folders() if not _is_name(folder.name)]
        return tuple(repository_rules.stray(name) for name in names if not name.startswith(self._staging_prefix))

    def publish(self, name: str, onnx_file: Path, config: ModelConfig | None) -> int:
        """Publish an ONNX file (and its outside weights) as the model's next version; returns its number.

        The version appears whole or not at all, and a new model together with its configuration. `config` is written
        only where the model has none. Raises InputError (the name), OnnxError (the file), and TrituneError where the
        disk is full or cannot be written.
        """
        self.check_name(name)
        weights = onnx_model.inspect(onnx_file).external_files
        target = self.path / name
        with _told(f"Publishing {name} in {self.path}"):
            if target.exists() and not target.is_dir():
                raise InputError(
                    f"{target} is a file, so {name} cannot be published. Remove it or choose another name."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            with self._staging() as staging:
                model = staging / "model"
                _make_version(model / "1", onnx_file, weights)
                if config is not None:
                    _write(model / CONFIG_FILE, config.text)
                _sync(model)
                for _ in range(_ATTEMPTS):
                    number = self._enter(model, target)
                    if number is not None:
                        return number
        raise TrituneError(f"{name} could not be published: its folder {target} changes all the time. Try again.")

    def config_text(self, name: str) -> str | None:
        """The model's config.pbtxt; None where it has none. Raises UnknownModelError, ConfigError for other bytes."""
        self.entry(name)
        return _config_text(self.path / name / CONFIG_FILE)

    def config(self, name: str) -> ModelConfig:
        """The model's configuration; inputs and outputs that the file leaves to auto-complete are written out.

        Without a config.pbtxt it is what auto-complete makes of the ONNX file. Raises UnknownModelError, ConfigError
        (with line, column and the right word) and, where there is nothing to complete it from, InputError.
        """
        return self.completed(name, self.config_text(name))

    def completed(self, name: str, text: str | None) -> ModelConfig:
        """What a config.pbtxt of this text, or none, means for the model. Raises as `config` does."""
        config = model_config.parse(text or "")
        onnx_path = self.entry(name).onnx_path
        if onnx_path is None:
            if text is None:
                raise InputError(
                    f"Model {name} has no config.pbtxt and no model.onnx. Publish one: `tritune model add`."
                )
            return config
        try:
            return model_config.complete(config, onnx_model.inspect(onnx_path), name)
        except OnnxError:
            if text is None:
                raise
            return config

    def write_config(self, name: str, text: str) -> None:
        """Replace the model's config.pbtxt in one step; no other file ever lies in the model's folder.

        Raises UnknownModelError, and TrituneError where the disk is full or cannot be written.
        """
        self.entry(name)
        with _told(f"Writing {CONFIG_FILE} of {name}"), self._staging() as staging:
            _write(staging / CONFIG_FILE, text)
            (staging / CONFIG_FILE).replace(self.path / name / CONFIG_FILE)
            _sync(self.path / name)

    def remove_config(self, name: str) -> None:
        """Remove the model's config.pbtxt, if it has one. Raises UnknownModelError and TrituneError."""
        self.entry(name)
        with _told(f"Removing {CONFIG_FILE} of {name}"):
            (self.path / name / CONFIG_FILE).unlink(missing_ok=True)
            _sync(self.path / name)

    def check(self, name: str) -> tuple[Finding, ...]:
        """What Triton would refuse or ignore in the model's folder, errors first; a bad file is a finding too.

        Raises UnknownModelError where there is no such folder.
        """
        if not _is_name(name) and name in {folder.name for folder in self._folders()}:
            return (repository_rules.stray(name),)
        entry = self.entry(name)
        found, model = [], None
        if entry.onnx_path is not None:
            try:
                model = onnx_model.inspect(entry.onnx_path)
            except OnnxError as error:
                fix = f"Publish a sound file: `tritune model add FILE --name {name}`."
                found.append(Finding("onnx", "error", str(entry.onnx_path.relative_to(self.path)), str(error), fix))
        try:
            text = self.config_text(name)
        except TrituneError as error:
            fix = f"Save {CONFIG_FILE} as readable UTF-8 text."
            found.append(Finding("config_file", "error", f"{name}/{CONFIG_FILE}", str(error), fix))
        else:
            if text is None:
                found.append(repository_rules.no_config(model))
            else:
                found.extend(model_config.text_findings(text, model, name))
                found.extend(repository_rules.missing_versions(_specific_versions(text), entry.versions))
            found.extend(repository_rules.layout(self.path / name, _other_file_name(text)))
        order = ("error", "warning", "info")
        return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))

    def model_hash(self, name: str, version: int) -> str:
        """SHA-256 (hex) of a version's ONNX file, its outside weights included. Raises UnknownModelError, OnnxError."""
        return onnx_model.inspect(self._version_file(name, version)).sha256

    def onnx_path(self, name: str, version: int | None = None) -> Path | None:
        """A version's ONNX file, the newest one's by default; None where there is none. Raises UnknownModelError."""
        if version is None:
            return self.entry(name).onnx_path
        path = self._version_file(name, version)
        return path if path.is_file() else None

    def _version_file(self, name: str, version: int) -> Path:
        entry = self.entry(name)
        if version not in entry.versions:
            known = ", ".join(str(number) for number in entry.versions) or "none"
            raise UnknownModelError(f"Model {name} has no version {version}. Its versions: {known}.")
        return self._model_file(self.path / name, version)

    def _folders(self) -> list[Path]:
        try:
            return sorted(path for path in self.path.iterdir() if path.is_dir())
        except FileNotFoundError:
            return []
        except OSError as error:
            raise TrituneError(f"{self.path} cannot be read ({error.strerror}). Check its permissions.") from error

    def _entry(self, folder: Path) -> ModelEntry:
        with _told(f"Reading {folder}"):
            names = [path.name for path in folder.iterdir() if path.is_dir()]
            versions = tuple(sorted(number for name in names if (number := version_number(name)) is not None))
            model = self._model_file(folder, versions[-1]) if versions else None
            return ModelEntry(
                name=folder.name,
                versions=versions,
                has_config=(folder / CONFIG_FILE).is_file(),
                onnx_path=model if model is not None and model.is_file() else None,
            )

    def _model_file(self, folder: Path, version: int) -> Path:
        path = folder / str(version) / MODEL_FILE
        if path.exists():
            return path
        with contextlib.suppress(TrituneError):
            return path.with_name(_other_file_name(_config_text(folder / CONFIG_FILE)) or MODEL_FILE)
        return path

    def _enter(self, model: Path, target: Path) -> int | None:
        """Rename what was made into place: a whole new model, or its version. None: somebody else was quicker."""
        if not target.exists() or not any(target.iterdir()):
            if _renamed(model, target):
                _sync(target.parent)
                return 1
            return None
        taken = [int(path.name) for path in target.iterdir() if path.name.isascii() and path.name.isdecimal()]
        number = max(taken, default=0) + 1
        if not _renamed(model / "1", target / str(number)):
            return None
        # The version before the configuration: killed between the two, the model is whole and Triton completes it.
        if (model / CONFIG_FILE).exists():
            _add(model / CONFIG_FILE, target / CONFIG_FILE)
        _sync(target)
        return number

    @property
    def _staging_prefix(self) -> str:
        return f".{self.path.resolve().name}.publishing-"

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Path]:
        """A private folder on the repository's file system that is gone afterwards.

        It lies beside the repository, where no server looks. Where that place is another mount or not writable (as in
        a container) it lies inside: hidden, and with the model too deep in it to be one.
        """
        root = self.path.resolve()
        beside = os.access(root.parent, os.R_OK | os.W_OK | os.X_OK) and _mount(root.parent) == _mount(root)
        place = root.parent if beside else root
        self._remove_dead(place)
        folder, lock = _locked_folder(self._staging_prefix, place)
        try:
            yield folder if beside else _deeper(folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)

    def _remove_dead(self, place: Path) -> None:
        """Remove what killed processes left: folders whose lock nobody holds."""
        for path in place.glob(f"{self._staging_prefix}*"):
            with contextlib.suppress(OSError):
                lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lock)


def _config_text(path: Path) -> str | None:
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_CONFIG_BYTES:
            kind = f"larger than {MAX_CONFIG_BYTES >> 20} MiB" if stat.S_ISREG(status.st_mode) else "no regular file"
            raise ConfigError(f"{path} is {kind}, and Triton needs a short text there. Write it again.")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start} cannot be read). Save it as UTF-8.") from error
    except OSError as error:
        raise TrituneError(f"{path} cannot be read ({error.strerror}). Check its permissions.") from error


def _is_name(name: str) -> bool:
    return re.fullmatch(MODEL_NAME_PATTERN, name) is not None


def _other_file_name(text: str | None) -> str | None:
    """`default_model_filename` of a readable config.pbtxt."""
    if not text or "default_model_filename" not in text:
        return None
    try:
        return str(model_config.parse(text).message.default_model_filename) or None
    except ConfigError:
        return None


def _specific_versions(text: str) -> tuple[int, ...]:
    """The versions that a readable config.pbtxt asks for by number."""
    try:
        return tuple(model_config.parse(text).message.version_policy.specific.versions)
    except ConfigError:
        return ()


def _locked_folder(prefix: str, place: Path) -> tuple[Path, int]:
    """A new folder and the descriptor that holds its flock."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                return folder, lock
            # Another process took it for dead before it was locked.
            os.close(lock)


def _deeper(folder: Path) -> Path:
    """Triton takes <folder>/<sub>/model.onnx for a model; one level more and it is nothing to it."""
    deeper = folder / "not-a-model" / "staging"
    deeper.mkdir(parents=True)
    return deeper


def _make_version(folder: Path, onnx_file: Path, weights: tuple[str, ...]) -> None:
    """The version's folder: the file as model.onnx, its outside weights where it looks for them, all on disk."""
    folder.mkdir(parents=True)
    _copy(onnx_file, folder / MODEL_FILE)
    for name in weights:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(onnx_file.parent / name, folder / name)
    for path in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
        _sync(path)
    _sync(folder)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    _sync(target)


def _write(path: Path, text: str) -> None:
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    """Make sure that a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _add(source: Path, target: Path) -> None:
    """Move a file in, unless there is one of that name."""
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:  # a file system without hard links
        if not target.exists():
            source.replace(target)


def _mount(path: Path) -> str:
    """Which mount a folder is on: a rename cannot leave it, even where both sides are on one disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    except OSError:
        lines = []
    finally:
        os.close(descriptor)
    return next((line for line in lines if line.startswith("mnt_id:")), str(path.stat().st_dev))


def _renamed(source: Path, target: Path) -> bool:
    """Rename a folder; False where the name is taken."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


@contextlib.contextmanager
def _told(action: str) -> Iterator[None]:
    """Turn an OSError into one sentence with the next step."""
    try:
        yield
    except OSError as error:
        reason, step = error.strerror or str(error), "Check the folder and its permissions"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            reason, step = "no space is left on the disk", "Free some, or set TRITUNE_MODEL_REPO to another disk"
        elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            reason = f"{error.filename or 'the folder'} may not be written or read: {reason}"
            step = "Change its permissions, or set TRITUNE_MODEL_REPO to a folder of yours"
        raise TrituneError(f"{action} failed: {reason}. {step}, and try again; what was there is unchanged.") from error
