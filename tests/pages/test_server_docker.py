"""The Server page's Docker form: which image and GPUs are asked for, and what is said where Docker is not there."""

from __future__ import annotations

from typing import Any

import pytest

from tritune.plan import Endpoints, JobKind
from tritune.servers import engine, images


@pytest.fixture
def docker(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that answers."""
    monkeypatch.setattr(engine, "is_reachable", lambda: None)


@pytest.fixture
def page(installation: Any) -> Any:
    """The Server page with Docker chosen."""
    from streamlit.testing.v1 import AppTest

    from tritune.settings import ROOT

    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    app.switch_page("pages/server.py").run()
    return choose(app, "Which Triton", "In a Docker container")


def choose(app: Any, label: str, option: str) -> Any:
    (control,) = [group for group in app.button_group if group.label == label]
    return control.set_value(option).run()


def press(app: Any, label: str) -> Any:
    (found,) = [button for button in app.button if button.label == label]
    return found.click().run()


def test_a_container_is_asked_for_with_its_image_and_all_gpus(docker: None, page: Any, installation: Any) -> None:
    assert "opset 21 and IR version 10" in "".join(text.value for text in page.caption)
    press(page, "Start Triton")
    job = installation.store.jobs(limit=1)[0]
    assert job.kind is JobKind.SERVER_START
    assert job.payload == {"kind": "docker", "port_base": None, "image": images.DEFAULT_IMAGE, "gpus": None}


def test_some_gpus_and_another_image_are_checked_here(docker: None, page: Any, installation: Any) -> None:
    page.selectbox[0].set_value(images.CPU_IMAGE)
    app = choose(page, "GPUs", "Some")
    assert "not known" in "".join(text.value for text in app.caption)
    app.text_input[0].set_value("zero")
    press(app, "Start Triton")
    assert "--gpus" in "".join(error.value for error in app.error)
    assert not installation.store.jobs(limit=1)
    app.text_input[0].set_value("0, 1").run()
    press(app, "Start Triton")
    job = installation.store.jobs(limit=1)[0]
    assert (job.payload["image"], job.payload["gpus"]) == (images.CPU_IMAGE, "0,1")


def test_where_docker_does_not_run_the_form_says_so(monkeypatch: pytest.MonkeyPatch, installation: Any) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{installation.settings.results}/no.sock")
    from streamlit.testing.v1 import AppTest

    from tritune.settings import ROOT

    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    app.switch_page("pages/server.py").run()
    choose(app, "Which Triton", "In a Docker container")
    assert "Docker is not running" in app.warning[0].value
    assert not [button for button in app.button if button.label == "Start Triton"]


def test_a_running_container_is_shown_with_its_image_and_gpus(
    installation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamlit.testing.v1 import AppTest

    from tritune import servers
    from tritune.servers import ServerKind, ServerState, ServerStatus
    from tritune.settings import ROOT
    from tritune.ui import server_view

    endpoints = Endpoints("127.0.0.1:8000", "127.0.0.1:8001", "127.0.0.1:8002")
    ready = ServerStatus(
        ServerState.READY, ServerKind.DOCKER, endpoints, "2.47.0", container="0123456789abcdef", image="x:1", gpus="0,1"
    )
    monkeypatch.setattr(servers, "status", lambda settings: ready)
    monkeypatch.setattr(servers, "logs", lambda settings, lines=200: "I1130 server ready")
    monkeypatch.setattr(server_view, "models", lambda *, control: None)  # would ask it
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=30)
    app.switch_page("pages/server.py").run()
    assert not app.exception
    shown = " ".join(str(table.value) for table in app.table).replace("\\", "")
    assert all(word in shown for word in ("x:1", "0,1", "0123456789ab"))
    assert any("the container" in text.value for text in app.caption)
