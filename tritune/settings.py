"""Paths and TRITUNE_* environment variables, in one place.

Belongs here: where things lie, and the installation's name. Never: reading or writing them otherwise.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from tritune.errors import InputError

ROOT = Path(__file__).resolve().parent.parent
DEFAULT_HTTP_PORT = 8000
DEFAULT_APP_PORT = 8501
SQLITE = "sqlite:///"


def _path(variable: str, text: str) -> Path:
    try:
        path = Path(text).expanduser().absolute()
        path.exists()
    except (OSError, RuntimeError, ValueError) as error:  # a name too long, the home of nobody, a NUL
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{variable}={text} is not a path ({reason}). Unset it or name a folder.") from error
    return path


@lru_cache(maxsize=32)
def _home(results: Path) -> str:
    """What `results/installation` says, written whole by whoever comes first; without rights there, the path's hash."""
    path = results / "installation"
    with suppress(OSError):
        if not path.exists():
            results.mkdir(parents=True, exist_ok=True)
            draft = results / f".installation.{secrets.token_hex(8)}"
            draft.write_text(draft.suffix[1:])
            with suppress(FileExistsError):
                path.hardlink_to(draft)
            draft.unlink()
        if name := path.read_text().strip()[:64]:
            return name
    return hashlib.sha256(str(results).encode()).hexdigest()[:16]


def _database_url(text: str) -> str:
    """The address with an absolute path; a database in memory, which no other process sees, is refused."""
    if not text.startswith("sqlite"):
        return text
    path = text.removeprefix(SQLITE)
    if not text.startswith(SQLITE) or path in ("", ":memory:"):
        raise InputError(f"TRITUNE_DATABASE_URL={text} must be sqlite:///PATH, a file that every process can open.")
    return f"{SQLITE}{_path('TRITUNE_DATABASE_URL', path)}"


@dataclass(frozen=True, slots=True)
class Settings:
    """One installation: two values of `results` are two independent installations on one machine."""

    root: Path
    model_repo: Path
    results: Path
    database_url: str
    embedded_env: Path
    mnist_dir: Path | None

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Read TRITUNE_MODEL_REPO, _RESULTS, _DATABASE_URL, _EMBEDDED_ENV and _MNIST_DIR; relative paths count
        from the current folder, defaults from the project's root.

        Raises InputError where a variable names something that cannot be a folder.
        """

        def folder(variable: str, default: Path) -> Path:
            text = environ.get(variable, "").strip()
            path = _path(variable, text) if text else default
            if path.exists() and not path.is_dir():
                raise InputError(f"{variable}={text} is a file and must be a folder. Unset it or name a folder.")
            return path

        results = folder("TRITUNE_RESULTS", ROOT / "results")
        mnist = environ.get("TRITUNE_MNIST_DIR", "").strip()
        return cls(
            root=ROOT,
            model_repo=folder("TRITUNE_MODEL_REPO", ROOT / "model_repo"),
            results=results,
            database_url=_database_url(
                environ.get("TRITUNE_DATABASE_URL", "").strip() or f"{SQLITE}{results / 'tritune.db'}"
            ),
            embedded_env=folder("TRITUNE_EMBEDDED_ENV", ROOT / ".triton"),
            mnist_dir=_path("TRITUNE_MNIST_DIR", mnist) if mnist else None,
        )

    def environment(self) -> dict[str, str]:
        """The variables that give another process these very settings, whatever its current folder."""
        variables = {
            "TRITUNE_MODEL_REPO": str(self.model_repo),
            "TRITUNE_RESULTS": str(self.results),
            "TRITUNE_DATABASE_URL": self.database_url,
            "TRITUNE_EMBEDDED_ENV": str(self.embedded_env),
        }
        return variables | ({"TRITUNE_MNIST_DIR": str(self.mnist_dir)} if self.mnist_dir else {})

    @property
    def home(self) -> str:
        """The name of this installation in a database that several share: the same for all who see this folder."""
        return _home(self.results)

    @property
    def server_file(self) -> Path:
        """Which Triton this installation started or attached to."""
        return self.results / "server.json"

    @property
    def server_log(self) -> Path:
        return self.results / "server.log"

    @property
    def worker_lock(self) -> Path:
        """An flock on this file elects the worker."""
        return self.results / "worker.lock"

    @property
    def worker_log(self) -> Path:
        return self.results / "worker.log"

    @property
    def app_lock(self) -> Path:
        """Held shared by every running app, so that the worker knows that somebody watches."""
        return self.results / "app.lock"

    @property
    def trials(self) -> Path:
        """`trials/<id>/`: plan, samples, served configuration and logs of one trial."""
        return self.results / "trials"

    @property
    def variants(self) -> Path:
        """A second model repository: configurations that a study serves side by side."""
        return self.results / "variants"

    @property
    def uploads(self) -> Path:
        return self.results / "uploads"

    @property
    def cache(self) -> Path:
        """Downloads that can be fetched again (the MNIST images)."""
        return self.results / "cache"
