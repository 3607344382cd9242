"""Configurations served side by side: a model under several names, from a second repository that is Tritune's own.

Each variant is a folder under `results/variants` with its config.pbtxt and a link to every version of the model, so
that neither the user's repository nor its files are touched. What a study leaves there goes when it ends, or when the
next worker starts.

Belongs here: making, loading and removing variants on the embedded server. Never: which is measured when (study).
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from pathlib import Path

from tritune import servers
from tritune.errors import InputError, ServerError
from tritune.model_config import ModelConfig
from tritune.repository import ModelRepository
from tritune.servers import ServerKind
from tritune.settings import Settings
from tritune.triton import Triton

MARK = ".tritune-c"
"""What stands between a model's name and its variant's number."""
MAX_NAME = 64


class Variants:
    """The candidates of one study under names of their own."""

    def __init__(self, settings: Settings, model: str, configs: Sequence[ModelConfig]) -> None:
        self._settings = settings
        self._model = model
        self._configs = configs
        self._loaded: set[int] = set()

    def name(self, candidate: int) -> str:
        return f"{self._model}{MARK}{candidate}"

    def make(self) -> None:
        """Write every variant's folder. Raises InputError where that cannot be done."""
        clear(self._settings)
        entry = ModelRepository(self._settings.model_repo).entry(self._model)
        source = self._settings.model_repo.absolute() / self._model
        try:
            for number, config in enumerate(self._configs):
                folder = self._settings.variants / self.name(number)
                folder.mkdir(parents=True)
                for version in entry.versions:
                    (folder / str(version)).symlink_to(source / str(version))
                (folder / "config.pbtxt").write_text(renamed(config, self.name(number)).text)
        except OSError as error:
            raise InputError(
                f"The variants of {self._model} could not be written under {self._settings.variants} "
                f"({error.strerror}). Make room there, or let configurations be reloaded in turn."
            ) from error

    def load(self, triton: Triton, candidate: int) -> bool:
        """Serve a variant; returns whether it had to be loaded."""
        if candidate in self._loaded and triton.model_ready(self.name(candidate)):
            return False
        triton.load(self.name(candidate))
        self._loaded.add(candidate)
        return True

    def unload_others(self, triton: Triton, candidate: int) -> None:
        """Let only one variant be loaded."""
        for other in sorted(self._loaded - {candidate}):
            triton.unload(self.name(other))
            self._loaded.discard(other)

    def forget(self) -> None:
        """The server was started anew and has loaded none of them."""
        self._loaded.clear()


def possible(settings: Settings, model: str, count: int) -> str | None:
    """Why variants cannot be served side by side here, or None."""
    if servers.status(settings).kind is not ServerKind.EMBEDDED:
        return "only the embedded server has a second model repository"
    if len(model) + len(MARK) + len(str(count)) > MAX_NAME:
        return f"the name {model} is too long for variants of it"
    return None


def clear(settings: Settings) -> None:
    """Unload and remove every variant that a study left."""
    folders = _left(settings)
    if folders:
        with contextlib.suppress(ServerError, InputError):
            triton = servers.connect(settings)
            for folder in folders:
                with contextlib.suppress(ServerError, InputError):
                    triton.unload(folder.name)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _left(settings: Settings) -> list[Path]:
    try:
        return [path for path in settings.variants.iterdir() if MARK in path.name and path.is_dir()]
    except OSError:
        return []


def renamed(config: ModelConfig, name: str) -> ModelConfig:
    """The same configuration under another name; instances get their names from Triton."""
    message = config.copy()
    message.name = name
    for group in message.instance_group:
        group.ClearField("name")
    return ModelConfig(message)
