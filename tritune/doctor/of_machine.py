"""The machine: Docker, NVIDIA's toolkit and driver, GPUs, ports, shared memory, disk, Python, perf_analyzer.

Belongs here: asking the machine (each question with a short timeout, each answer may be missing) and judging the
answers. Never: changing it. A missing GPU or Docker is no fault as such: the embedded Triton needs neither.

Sources: NVIDIA's release notes and CUDA compatibility pages (bands, not one number); FACTS of Docker 20.10.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritune.doctor.diagnosis import Area, Checked, Diagnosis, Job, Remedy, Report
from tritune.errors import LoadTestError, TrituneError
from tritune.model_rules import Finding, Severity
from tritune.plan import Endpoints, JobKind
from tritune.servers import engine, environment, images, record
from tritune.servers.record import ServerKind
from tritune.settings import DEFAULT_HTTP_PORT, Settings
from tritune.triton import Triton

QUESTION_S = 5.0
SMALL_SHM = 64 << 20
LOW_DISK, FULL_DISK = 1 << 30, 100 << 20
_SMI = ["nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as nvidia-smi tells; `capability` None: this driver does not tell it."""

    name: str
    driver: str
    capability: float | None


@dataclass(frozen=True, slots=True)
class Docker:
    """The engine. `error`: why it cannot be asked; `toolkit`: it can hand out GPUs; `from_snap`: installed by snap."""

    version: str = ""
    error: str = ""
    toolkit: bool = False
    from_snap: bool = False


@dataclass(frozen=True, slots=True)
class Port:
    """A port that Triton would take. `holder`: who has it, as far as that can be seen; "" where it is free."""

    number: int
    holder: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """The answers. `docker` None: there is no Docker here; `smi_error`: why nvidia-smi gives nothing, "" without it."""

    unsupported: str | None
    is_set_up: bool
    docker: Docker | None
    gpus: tuple[Gpu, ...]
    smi_error: str
    ports: tuple[Port, ...]
    shm_free: int | None
    disks: tuple[tuple[str, int], ...]
    perf_analyzer: str
    perf_analyzer_error: str
    image: str
    kind: ServerKind | None


def look(settings: Settings) -> Machine:
    """Ask the machine. Takes a second or two; no answer takes longer than its timeout."""
    known = record.read(settings)
    gpus, smi_error = _gpus()
    tool, tool_error = _perf_analyzer(settings)
    return Machine(
        unsupported=environment.unsupported_reason(),
        is_set_up=_is_set_up(settings),
        docker=_docker(),
        gpus=gpus,
        smi_error=smi_error,
        ports=() if known is not None else tuple(_port(DEFAULT_HTTP_PORT + offset) for offset in range(3)),
        shm_free=_free(Path("/dev/shm")),
        disks=_disks(settings),
        perf_analyzer=tool,
        perf_analyzer_error=tool_error,
        image=(known.image if known is not None else None) or images.DEFAULT_IMAGE,
        kind=known.kind if known is not None else None,
    )


def judge(machine: Machine) -> Report:
    """What the answers mean (pure)."""
    found = [*_embedded(machine), *_docker_findings(machine), *_gpu_findings(machine), *_rest(machine)]
    report = Report(
        tuple(Diagnosis(item[0], Area.MACHINE, remedy=item[1]) for item in found if isinstance(item, tuple)),
        tuple(item for item in found if isinstance(item, Checked)),
    )
    return report.sorted()


Item = tuple[Finding, Remedy | None] | Checked


def _found(
    code: str, severity: Severity, seen: str, cause: str, fix: str, remedy: Remedy | None = None
) -> tuple[Finding, Remedy | None]:
    return Finding(code, severity, seen, cause, fix), remedy


def _good(what: str, seen: str) -> Checked:
    return Checked(Area.MACHINE, what, seen)


def _embedded(machine: Machine) -> Iterator[Item]:
    if machine.unsupported is not None:
        needed = machine.kind in (None, ServerKind.EMBEDDED)
        said, _, step = machine.unsupported.partition(". ")
        fix = step or environment.ELSEWHERE
        yield _found(
            "machine_unsupported", "error" if needed else "info", said,
            "The embedded Triton is built for one kind of machine and cannot run on this one.", fix,
        )  # fmt: skip
        return
    here = environment.this_machine()
    glibc = f", glibc {here.glibc[0]}.{here.glibc[1]}" if here.glibc else ""
    seen = f"{here.implementation} {here.python[0]}.{here.python[1]}{glibc}, {here.libpython}"
    yield _good("Python and its library", seen)
    if machine.is_set_up:
        yield _good("Embedded Triton", "set up")
        return
    yield _found(
        "not_set_up", "info", "the embedded Triton's environment is not complete",
        "It is installed once: about 120 MB to download into a folder of its own.",
        "Run `tritune setup`.", Remedy("Set up the embedded Triton", job=Job(JobKind.SETUP, {})),
    )  # fmt: skip


def _docker_findings(machine: Machine) -> Iterator[Item]:
    docker, needed = machine.docker, machine.kind is ServerKind.DOCKER
    if docker is None:
        yield _found(
            "docker_missing", "error" if needed else "info", "no Docker engine and no `docker` command",
            "Only Triton in a container needs Docker; the embedded one and a server elsewhere do not.",
            "Install Docker if you want NVIDIA's image: https://docs.docker.com/engine/install/",
        )  # fmt: skip
        return
    if docker.error:
        denied = "ermission denied" in docker.error
        said, _, step = docker.error.partition(". ")
        yield _found(
            "docker_permission" if denied else "docker_down", "error" if needed else "warning", said,
            "This user may not use Docker's socket." if denied else "Docker is here, and its engine cannot be used.",
            step or "Check with `docker info`.",
        )  # fmt: skip
        return
    yield _good("Docker", f"engine {docker.version}")
    if docker.from_snap:
        yield _found(
            "docker_snap", "warning", "Docker is installed as a snap",
            "Docker from snap often cannot use NVIDIA's toolkit and cannot see folders outside of /home.",
            "Remove it (`sudo snap remove docker`) and install Docker's own packages.",
        )  # fmt: skip
    if docker.toolkit:
        yield _good("NVIDIA container toolkit", "Docker can hand out GPUs")
    elif machine.gpus:
        yield _found(
            "toolkit_missing", "error" if needed else "warning",
            f"{machine.gpus[0].name} is there, and Docker knows no NVIDIA runtime",
            "The NVIDIA Container Toolkit is not installed, or Docker was not told of it: a container gets no GPU.",
            "Install nvidia-container-toolkit, run `sudo nvidia-ctk runtime configure --runtime=docker`, and restart "
            "Docker.",
        )  # fmt: skip


def _gpu_findings(machine: Machine) -> Iterator[Item]:
    if machine.smi_error:
        yield _found(
            "driver_fault", "warning", f"nvidia-smi: {machine.smi_error}",
            "The NVIDIA driver is installed and does not answer: its module is not loaded, or it was upgraded without "
            "a restart.",
            "Restart the machine; where that does not help install the driver again.",
        )  # fmt: skip
        return
    if not machine.gpus:
        yield _good("GPU", "none (nvidia-smi is not installed): Triton runs on the CPU")
        return
    for gpu in machine.gpus:
        yield _good("GPU", f"{gpu.name}, driver {gpu.driver}")
        yield from _against_image(gpu, machine.image)


def _against_image(gpu: Gpu, image: str) -> Iterator[Item]:
    """The driver and the GPU against the release of the image: bands, since NVIDIA's own numbers disagree."""
    release = images.release(image)
    driver = int(gpu.driver.partition(".")[0]) if gpu.driver.partition(".")[0].isdecimal() else None
    if release is None:
        return
    if driver is not None:
        lowest, comfortable = (580, 580) if release >= (25, 8) else (525, 545 if release >= (24, 6) else 525)
        seen = f"driver {gpu.driver} and {image}"
        if driver < lowest:
            yield _found(
                "driver_old", "warning", seen,
                f"CUDA of this release wants a driver of the branch {lowest} or newer; older ones work on data-centre "
                "GPUs only, through the image's compatibility library.",
                "Upgrade the host's driver, or choose an older tag.",
            )  # fmt: skip
        elif driver < comfortable:
            yield _found(
                "driver_limited", "info", seen,
                f"The release notes name driver {comfortable} or newer; from {lowest} on it runs by CUDA's minor-"
                "version compatibility, without the newest features.",
                f"Nothing need be done; upgrade to {comfortable} or newer if CUDA fails to start.",
            )  # fmt: skip
    least = 7.5 if release >= (25, 3) else 6.0
    if gpu.capability is not None and gpu.capability < least:
        yield _found(
            "gpu_too_old", "error", f"{gpu.name} (compute capability {gpu.capability}) and {image}",
            f"Images from 25.03 on need compute capability 7.5, older ones 6.0; this one needs {least}.",
            "Choose a tag up to 25.02." if gpu.capability >= 6.0 else "Run without this GPU.",
        )  # fmt: skip


def _rest(machine: Machine) -> Iterator[Item]:
    taken = [port for port in machine.ports if port.holder]
    if taken:
        ports = ", ".join(str(port.number) for port in taken)
        a_triton = next((port for port in taken if port.holder.startswith("Triton")), None)
        yield _found(
            "port_taken", "info", f"port {ports}: {taken[0].holder}",
            "Another program has a port that Triton takes by default; `tritune server start` then uses the next free "
            "three and says so.",
            f"Attach to that server with `tritune server attach 127.0.0.1:{a_triton.number}`, or start one beside it."
            if a_triton else "Nothing need be done, or stop the other program to have the usual ports.",
        )  # fmt: skip
    elif machine.ports:
        yield _good("Ports", ", ".join(str(port.number) for port in machine.ports) + " are free")
    if machine.shm_free is not None and machine.shm_free < SMALL_SHM:
        yield _found(
            "small_shm", "warning", f"/dev/shm has {machine.shm_free >> 20} MB free",
            "Triton's Python stubs and Tritune's shared-memory requests live there.",
            "Make it larger (`mount -o remount,size=1g /dev/shm`; in a container --shm-size=1g) or clear it.",
        )  # fmt: skip
    elif machine.shm_free is not None:
        yield _good("Shared memory", f"{machine.shm_free >> 20:,} MB free in /dev/shm")
    for path, free in machine.disks:
        if free < LOW_DISK:
            yield _found(
                "disk", "error" if free < FULL_DISK else "warning", f"{free >> 20:,} MB free at {path}",
                "Models, samples and logs are written there; a full disk ends a load test.",
                "Make room there, or set TRITUNE_RESULTS or TRITUNE_MODEL_REPO to another disk.",
            )  # fmt: skip
        else:
            yield _good("Disk", f"{free / (1 << 30):,.0f} GB free at {path}")
    if machine.perf_analyzer:
        yield _good("perf_analyzer", machine.perf_analyzer)
    else:
        yield _found(
            "perf_analyzer", "info", machine.perf_analyzer_error,
            "The wheel of perf_analyzer needs a newer glibc or CUDA's library. Load tests with Locust do not need it.",
            "Run `tritune setup`, which brings one that starts, or use the Locust generator.",
        )  # fmt: skip


# --- asking ----------------------------------------------------------------------------------------------------------


def _is_set_up(settings: Settings) -> bool:
    try:
        return environment.is_set_up(settings)
    except TrituneError:
        return False


def _docker() -> Docker | None:
    """What the engine says of itself; None where there is neither an engine nor its command."""
    try:
        where = engine.address()
        is_here = shutil.which("docker") is not None or not where.startswith("unix:")
        if not is_here and not Path(where.removeprefix("unix://")).exists():
            return None
        with engine.connected("look at Docker", timeout_s=QUESTION_S) as client:
            info: dict[str, Any] = client.info()
    except TrituneError as error:
        return Docker(error=str(error))
    except engine.Missing as error:
        return Docker(
            error=f"Docker's engine does not know what it is asked ({error}). Is it Docker that listens there?"
        )
    runtimes = info.get("Runtimes") or {}
    tools = ("nvidia-container-runtime-hook", "nvidia-ctk", "nvidia-container-runtime")
    return Docker(
        version=str(info.get("ServerVersion") or "of an unknown version"),
        toolkit="nvidia" in runtimes or any(shutil.which(tool) for tool in tools),
        from_snap="/snap/" in str(info.get("DockerRootDir") or ""),
    )


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    """The GPUs, and why nvidia-smi gives none although it is installed."""
    if shutil.which("nvidia-smi") is None:
        return (), ""
    code, said = _ask(_SMI)
    if code and "compute_cap" in said:
        code, said = _ask([_SMI[0], "--query-gpu=name,driver_version", _SMI[2]])
    if code:
        return (), said.strip().partition("\n")[0][:200] or f"exit code {code}"
    gpus = []
    for line in said.splitlines():
        name, _, rest = line.partition(", ")
        driver, _, capability = rest.partition(", ")
        number = re.fullmatch(r"\d+\.\d+", capability.strip())
        gpus.append(Gpu(name, driver.strip(), float(number[0]) if number else None))
    return tuple(gpus), ""


def _ask(command: list[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=QUESTION_S, check=False,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"no answer within {QUESTION_S:.0f} s"
    except OSError as error:
        return 1, str(error)
    return done.returncode, done.stdout or done.stderr


def _port(number: int) -> Port:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Triton: connections in TIME_WAIT do not count
        with contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", number))
            return Port(number)
    address = f"127.0.0.1:{number}"
    with Triton(Endpoints(address, None, None), timeout_s=1.0) as triton:
        return Port(number, "Triton answers there" if triton.is_live() else "another program listens there")


def _free(path: Path) -> int | None:
    """Free bytes where `path` is, or where it would be made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return shutil.disk_usage(path).free
    except OSError:
        return None


def _disks(settings: Settings) -> tuple[tuple[str, int], ...]:
    """The folders that are written to, once a file system."""
    found: dict[int, tuple[str, int]] = {}
    for path in (settings.results, settings.model_repo):
        there = next(folder for folder in (path, *path.parents) if folder.exists())
        free = _free(there)
        if free is not None:
            found.setdefault(there.stat().st_dev, (str(path), free))
    return tuple(found.values())


def _perf_analyzer(settings: Settings) -> tuple[str, str]:
    from loadgen import perf_analyzer

    try:
        return str(perf_analyzer.find(settings).path), ""
    except LoadTestError as error:
        return "", str(error).partition(". ")[0]
