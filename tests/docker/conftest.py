"""A real Docker engine with nothing but what these tests put into it; no registry is needed or reached.

`our_engine` is Debian's dockerd, started here as root on a data root and socket of its own in a temporary folder, or
the one that runs already. `base_image` is Debian by debootstrap with the wheels of both requirement files in it, so
that images are built without any network; debootstrap's and pip's work is kept in .cache/. `cpu_image` is built from
the project's Dockerfile. Where no engine can start the tests are skipped, or fail if TRITUNE_DOCKER_TESTS=required.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tritune import servers
from tritune.servers import engine as docker_engine
from tritune.servers import launch
from tritune.settings import ROOT, Settings

CACHE = ROOT / ".cache" / "docker-tests"
SUITE = "bookworm"
PYTHON = "3.11"
PACKAGES = f"python3,python3-venv,libpython{PYTHON}"
APP_WITHOUT = "torch|vl-convert-python|onnxslim|optuna"  # what the tests do not use and costs most to install
START_S = 60.0
DOCKERD = ("dockerd", "--storage-driver=overlay2", "--shutdown-timeout=5")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.docker)
            item.add_marker(pytest.mark.timeout(900))  # the first one makes the images


def cannot(reason: str) -> NoReturn:
    """Skip, or fail where these tests must run."""
    if os.environ.get("TRITUNE_DOCKER_TESTS") == "required":
        pytest.fail(f"The Docker tests must run here and cannot: {reason}")
    pytest.skip(reason)


@dataclass
class Engine:
    """One dockerd; `process` None: it was running before and is left alone."""

    folder: Path
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def host(self) -> str:
        return f"unix://{self.folder}/docker.sock"

    def start(self) -> None:
        """Start the daemon and wait until it answers."""
        options = ["--data-root", "data", "--exec-root", "exec", "--pidfile", "pid"]
        paths = [option if option.startswith("--") else f"{self.folder}/{option}" for option in options]
        with (self.folder / "dockerd.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*DOCKERD, *paths, "-H", self.host],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while docker_engine.is_reachable() is not None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                words = (self.folder / "dockerd.log").read_text(errors="replace").strip().splitlines()[-1:]
                self.stop()
                cannot(f"dockerd does not start here: {' '.join(words)[-300:]}")
            time.sleep(0.1)

    def stop(self) -> None:
        """End the daemon that this started, and with it its containers."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(10)


@pytest.fixture(scope="session")
def our_engine() -> Iterator[Engine]:
    """The engine; DOCKER_HOST names it for as long as the tests run."""
    before = os.environ.get("DOCKER_HOST")
    folder = Path(tempfile.mkdtemp(prefix="tritune-docker-"))
    running = Engine(folder)
    if docker_engine.is_reachable() is not None:
        if os.geteuid() != 0:
            cannot("no Docker engine runs, and only root can start one")
        if missing := [name for name in ("dockerd", "debootstrap") if shutil.which(name) is None]:
            cannot(f"{' and '.join(missing)} is not installed (apt-get install docker.io debootstrap)")
        os.environ["DOCKER_HOST"] = running.host
        running.start()
    yield running
    running.stop()
    if before is None:
        os.environ.pop("DOCKER_HOST", None)
    else:
        os.environ["DOCKER_HOST"] = before
    shutil.rmtree(folder, ignore_errors=True)


# --- images --------------------------------------------------------------------------------------------------------


def run(*command: str, folder: Path = ROOT, timeout_s: float = 600.0, **environment: str) -> str:
    """Run a command to its end; its output. What it said is shown where it fails."""
    answer = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if answer.returncode:
        pytest.fail(
            f"{' '.join(command)} ended with {answer.returncode}:\n{answer.stdout[-3000:]}{answer.stderr[-3000:]}"
        )
    return answer.stdout


def kept(name: str, key: str, make: Callable[[Path], None]) -> Path:
    """A path in the cache, made once for each key; one that was left half made is made again."""
    path = CACHE / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        for old in CACHE.glob(f"{name}-*"):
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        draft = CACHE / f".{name}.{os.getpid()}"
        make(draft)
        draft.replace(path)
    return path


def _system(draft: Path) -> None:
    """A minimal Debian with Python, as a tar file."""
    with tempfile.TemporaryDirectory(prefix="tritune-debian-") as root:
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root)
        shutil.rmtree(f"{root}/var/cache/apt", ignore_errors=True)
        run("tar", "-C", root, "-cf", str(draft), ".")


def _requirements() -> tuple[str, str]:
    """What the two images install, as pip's requirement files."""
    names = APP_WITHOUT.split("|")
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    app = "\n".join(line for line in lines if line.partition("==")[0].partition("[")[0] not in names)
    return app, (ROOT / "requirements-triton.txt").read_text()


def _wheels(draft: Path) -> None:
    """Every wheel of both images, fetched by this machine's pip with its own configuration."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    pip += ["--only-binary", ":all:", "--python-version", PYTHON, "--dest", str(draft)]
    app, triton = _requirements()
    for text, options in ((app, []), (triton, ["--no-deps"])):
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            file.write(text)
            file.flush()
            run(*pip, *options, "-r", file.name)


@pytest.fixture(scope="session")
def base_image(our_engine: Engine) -> str:
    """Debian with Python, the wheels and a pip that takes nothing else."""
    import docker

    if shutil.which("debootstrap") is None or os.geteuid() != 0:
        cannot("the base image needs root and debootstrap (apt-get install debootstrap)")
    with ThreadPoolExecutor(2) as pool:
        debian = pool.submit(kept, "system", f"{SUITE} {PACKAGES}", _system)
        wheels = pool.submit(kept, "wheels", "\n".join(_requirements()), _wheels).result()
        system = debian.result()
    client = docker.DockerClient(base_url=os.environ.get("DOCKER_HOST"), timeout=600)
    client.api.import_image(str(system), repository="tritune-test-debian", tag="latest")
    client.close()
    with tempfile.TemporaryDirectory(prefix="tritune-base-", dir=CACHE) as name:
        context = Path(name)
        shutil.copytree(wheels, context / "wheels", copy_function=os.link)
        (context / "pip.conf").write_text("[global]\nno-index = true\nfind-links = /wheels\n")
        (context / "Dockerfile").write_text(
            "FROM tritune-test-debian\nCOPY pip.conf /etc/pip.conf\nCOPY wheels /wheels\n"
        )
        build(context, "tritune-test-base")
    return "tritune-test-base"


def build(context: Path, tag: str, dockerfile: str = "Dockerfile", **arguments: str) -> None:
    """Build an image without any network. Fails the test with the build's last words."""
    import docker

    client = docker.DockerClient(base_url=os.environ.get("DOCKER_HOST"), timeout=900)
    try:
        client.images.build(
            path=str(context), tag=tag, dockerfile=dockerfile, buildargs=arguments, network_mode="none", rm=True
        )
    except docker.errors.BuildError as error:
        said = "".join(str(entry.get("stream") or entry.get("error") or "") for entry in error.build_log)
        pytest.fail(f"{dockerfile} could not be built: {said[-3000:]}")
    finally:
        client.close()


@pytest.fixture(scope="session")
def cpu_image(base_image: str) -> str:
    """The embedded Triton as an image, from the project's Dockerfile."""
    build(ROOT, "tritune-test-triton:cpu", "docker/triton-cpu.Dockerfile", BASE_IMAGE=base_image)
    return "tritune-test-triton:cpu"


@pytest.fixture(scope="session")
def derived(cpu_image: str) -> Callable[[str, str], str]:
    """A function that builds an image on another one from the rest of a Dockerfile."""

    def make(tag: str, rest: str, base: str = cpu_image) -> str:
        with tempfile.TemporaryDirectory(prefix="tritune-derived-") as context:
            (Path(context) / "Dockerfile").write_text(f"FROM {base}\n{rest}\n")
            build(Path(context), tag)
        return tag

    return make


# --- installations -------------------------------------------------------------------------------------------------


def add_model(repository: Path, name: str, *, opset: int = 17, ir_version: int = 8) -> None:
    """A model y = x + x (FP32, 4 values a row) as version 1."""
    import onnx
    from onnx import TensorProto, helper

    (repository / name / "1").mkdir(parents=True)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)
    onnx.save(model, repository / name / "1" / "model.onnx")


@pytest.fixture(scope="session")
def publish() -> Callable[..., None]:
    """`add_model`, for tests."""
    return add_model


@pytest.fixture(scope="session")
def port_base() -> Callable[[], int]:
    """The first of three free ports, where no other test looks."""
    return lambda: launch.free_ports(30000 + os.getpid() % 200 * 10)[0]


@dataclass(frozen=True)
class Installation:
    """One installation, and its command line."""

    settings: Settings

    def tritune(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """Run `tritune … --json` and give its document; for another exit code than 0 what it said."""
        answer = subprocess.run(
            [sys.executable, "-m", "tritune", *arguments, "--json"],
            cwd=ROOT,
            env={**os.environ, **self.settings.environment()},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert answer.returncode == code, (answer.returncode, answer.stdout, answer.stderr)
        if code:
            assert "Traceback" not in answer.stderr
            return {"said": answer.stderr}
        document: dict[str, Any] = json.loads(answer.stdout)
        return document | {"messages": answer.stderr}


def settings_in(folder: Path) -> Settings:
    """An installation of its own in a folder whose path a shell or Docker's short syntax would not leave alone."""
    return Settings.from_env(
        {"TRITUNE_RESULTS": str(folder / "re sults"), "TRITUNE_MODEL_REPO": str(folder / "mo:dels $(x)")}
    )


@pytest.fixture(scope="session")
def installation(cpu_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """An installation with one good model and a broken one; its server is stopped in the end."""
    settings = settings_in(tmp_path_factory.mktemp("installation"))
    add_model(settings.model_repo, "double")
    (settings.model_repo / "broken" / "1").mkdir(parents=True)
    (settings.model_repo / "broken" / "1" / "model.onnx").write_bytes(b"no ONNX at all")
    yield Installation(settings)
    servers.stop(settings)


@pytest.fixture
def empty(our_engine: Engine, tmp_path: Path) -> Iterator[Settings]:
    """An installation without any model; its server is stopped in the end."""
    settings = settings_in(tmp_path)
    yield settings
    servers.stop(settings)


@pytest.fixture
def containers(our_engine: Engine) -> Callable[[Settings], list[Any]]:
    """The containers of an installation, in whatever state: a function that gives their inspected documents."""

    def found(settings: Settings) -> list[Any]:
        with docker_engine.connected("look for containers") as client:
            label = f"io.tritune.installation={settings.home}"
            return [one.attrs for one in client.containers.list(all=True, filters={"label": label})]

    return found
