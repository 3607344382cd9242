"""One embedded Triton for all integration tests, in a temporary installation whose path a shell would not leave alone.

`installation` (Settings) holds the folders, `triton_server` (ServerStatus) is the running server, `triton` its client;
`publish` writes a small model into a repository, `new_installation` makes further installations that are stopped again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tritune import servers
from tritune.servers import ServerStatus, embedded, launch
from tritune.settings import Settings
from tritune.triton import Triton

PATH_FOR_A_SHELL = "a b $(touch pwned) 'c"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.integration)


def settings_in(folder: Path) -> Settings:
    """An installation of its own with the project's .triton."""
    ours = Settings.from_env({})
    return Settings(
        root=ours.root,
        model_repo=folder / "models",
        results=folder / "results",
        database_url=f"sqlite:///{folder / 'results' / 'tritune.db'}",
        embedded_env=Settings.from_env().embedded_env,
        mnist_dir=None,
    )


def free_port_base() -> int:
    """The first of three free ports, somewhere where no other test looks."""
    return launch.free_ports(random.randrange(20000, 29000, launch.PORT_STEP))[0]


def add_model(repository: Path, name: str, *, dims: list[int | str] | None = None, config: str | None = None) -> Path:
    """A model y = x + x (FP32) as version 1; returns its folder."""
    shape = ["batch", 4] if dims is None else dims
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "1" / "model.onnx")
    if config is not None:
        (folder / "config.pbtxt").write_text(config)
    return folder


@pytest.fixture(scope="session")
def publish() -> Callable[..., Path]:
    """`add_model`, for tests."""
    return add_model


@pytest.fixture(scope="session")
def port_base() -> Callable[[], int]:
    """`free_port_base`, for tests."""
    return free_port_base


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Folders with two good models (`double`, without a configuration, and `alone`, which does not batch), a broken
    one and one whose name Triton must not see.
    """
    reason = embedded.unsupported_reason()
    if reason:
        pytest.skip(reason)
    settings = settings_in(tmp_path_factory.mktemp(PATH_FOR_A_SHELL))
    if not embedded.is_set_up(settings):
        pytest.fail("The embedded Triton is not set up: run `make setup` first.")
    add_model(settings.model_repo, "double")
    add_model(settings.model_repo, "alone", dims=[1, 4])
    add_model(settings.model_repo, "x$(touch pwned)")
    (settings.model_repo / "broken" / "1").mkdir(parents=True)
    (settings.model_repo / "broken" / "1" / "model.onnx").write_bytes(b"no ONNX at all")
    return settings


@pytest.fixture(scope="session")
def start_messages() -> list[str]:
    """What the start of `triton_server` said."""
    return []


@pytest.fixture(scope="session")
def triton_server(installation: Settings, start_messages: list[str]) -> Iterator[ServerStatus]:
    """The one running server."""
    yield servers.start(installation, port_base=free_port_base(), progress=start_messages.append)
    servers.stop(installation)


@pytest.fixture
def triton(installation: Settings, triton_server: ServerStatus) -> Iterator[Triton]:
    """A client for the one running server."""
    with servers.connect(installation) as client:
        yield client


@pytest.fixture
def new_installation(installation: Settings, tmp_path: Path) -> Iterator[Callable[[], Settings]]:
    """A function that makes an empty installation; its server is stopped in the end."""
    made: list[Settings] = []

    def make() -> Settings:
        made.append(settings_in(tmp_path / f"installation {len(made)}"))
        return made[-1]

    yield make
    for settings in made:
        servers.stop(settings)
