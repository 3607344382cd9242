"""Where things lie, and what the environment may change."""

from __future__ import annotations

from pathlib import Path

import pytest

from tritune.errors import InputError
from tritune.settings import ROOT, Settings


def test_without_variables_everything_lies_in_the_project() -> None:
    settings = Settings.from_env({})
    assert settings.model_repo == ROOT / "model_repo"
    assert settings.results == ROOT / "results"
    assert settings.database_url == f"sqlite:///{ROOT}/results/tritune.db"
    assert settings.embedded_env == ROOT / ".triton"
    assert settings.mnist_dir is None


def test_two_results_folders_are_two_installations(tmp_path: Path) -> None:
    one, two = (Settings.from_env({"TRITUNE_RESULTS": str(tmp_path / name)}) for name in ("a b", "c"))
    assert one.database_url != two.database_url
    assert one.worker_lock != two.worker_lock
    assert one.server_file != two.server_file


def test_a_variable_that_names_a_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match=r"TRITUNE_RESULTS=.* is a file and must be a folder"):
        Settings.from_env({"TRITUNE_RESULTS": str(file)})


@pytest.mark.parametrize(
    "variable", ["TRITUNE_RESULTS", "TRITUNE_MODEL_REPO", "TRITUNE_EMBEDDED_ENV", "TRITUNE_MNIST_DIR"]
)
@pytest.mark.parametrize("text", ["x" * 300, "/" + "y/" * 3000, "~nobody-of-that-name/x"])
def test_a_variable_that_can_be_no_path_is_refused_in_one_sentence(variable: str, text: str) -> None:
    with pytest.raises(InputError, match=f"{variable}=.* is not a path"):
        Settings.from_env({variable: text})


def test_relative_folders_count_from_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Settings.from_env({"TRITUNE_MODEL_REPO": "models"}).model_repo == tmp_path / "models"


@pytest.mark.parametrize(
    "text", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite:////x.db", "sqlite"]
)
def test_a_database_that_other_processes_cannot_open_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"must be sqlite:///PATH"):
        Settings.from_env({"TRITUNE_DATABASE_URL": text})


def test_another_process_gets_the_very_same_settings_in_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    relative = {
        "TRITUNE_RESULTS": "the results?",
        "TRITUNE_MODEL_REPO": "models",
        "TRITUNE_EMBEDDED_ENV": "../env",
        "TRITUNE_DATABASE_URL": "sqlite:///other.db",
        "TRITUNE_MNIST_DIR": "digits",
    }
    for variables in (relative, {"TRITUNE_RESULTS": "the results?"}, {}):
        monkeypatch.chdir(tmp_path)
        settings = Settings.from_env(variables)
        monkeypatch.chdir("/")
        assert Settings.from_env(settings.environment()) == settings
