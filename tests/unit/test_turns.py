"""What a study serves is taken back, whatever happened in between."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tritune import model_config, turns
from tritune.errors import TritonRefusedError
from tritune.load_plan import LoadPlan
from tritune.servers import ServerKind, ServerState
from tritune.settings import Settings

CONFIG = model_config.parse('name: "m" platform: "onnxruntime_onnx" max_batch_size: 16')
FOUND = {"name": "m", "max_batch_size": 16}
LOAD = LoadPlan(model="m", concurrency=1)


class Server:
    """A Triton that says what it was told to serve."""

    def __init__(self, *, has_model_control: bool = True) -> None:
        self.has_model_control = has_model_control
        self.kind, self.state = ServerKind.EMBEDDED, ServerState.READY
        self.served: Any = FOUND
        self.refuses = False

    def model_ready(self, _: str) -> bool:
        return True

    def config(self, _: str) -> Any:
        return self.served

    def load(self, _: str, *, config: str) -> None:
        if self.refuses:
            raise TritonRefusedError("No.")
        self.served = FOUND if config == model_config.from_served(FOUND).json else "a candidate"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRITUNE_RESULTS": str(tmp_path), "TRITUNE_MODEL_REPO": str(tmp_path / "models")})


def taking_turns(settings: Settings, server: Server, monkeypatch: pytest.MonkeyPatch) -> turns.Turns:
    monkeypatch.setattr(turns, "servers", SimpleNamespace(connect=lambda _: server, status=lambda _: server))
    monkeypatch.setattr(turns, "deploy", SimpleNamespace(warm=lambda *_: None))
    return turns.Turns(settings, "m", [CONFIG, CONFIG, CONFIG], FOUND)


def test_what_was_found_is_served_again_also_after_a_refusal(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    mine = taking_turns(settings, server, monkeypatch)
    mine.serve(1, LOAD, lambda _: None)
    server.refuses = True
    with pytest.raises(TritonRefusedError):
        mine.serve(2, LOAD, lambda _: None)
    mine.lost()
    server.refuses = False
    assert server.served == "a candidate"
    assert mine.put_back() is None
    assert server.served == FOUND


def test_a_server_without_model_control_is_left_alone(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Server(has_model_control=False)
    server.refuses = True
    mine = taking_turns(settings, server, monkeypatch)
    assert mine.serve(0, LOAD, lambda _: None) == "m"
    assert mine.put_back() is None
    assert turns.put_back(settings, "m", None) is None


def test_nothing_is_to_be_put_back_on_a_server_that_is_gone(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    mine = taking_turns(settings, server, monkeypatch)
    mine.serve(1, LOAD, lambda _: None)
    server.state, server.refuses = ServerState.FAILED, True
    assert mine.put_back() is None
