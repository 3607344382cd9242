"""The embedded server's environment .triton/: whether this machine can have one, and setting it up.

Belongs here: what the wheel nvidia-pytriton needs of a machine, the virtual environment with the pins of
requirements-triton.txt, the files in it. Never: a running server.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritune.errors import ServerError
from tritune.settings import Settings

PYTHONS = ((3, 11), (3, 12))
MIN_GLIBC = (2, 35)
SETUP_TIMEOUT_S = 1800.0
STAMP = "tritune-setup-complete"
ELSEWHERE = "You can still attach to a server: `tritune server attach URL`."


@dataclass(frozen=True, slots=True)
class Machine:
    """What counts of a machine; `glibc` None: another C library, `libpython` None: this Python has none."""

    system: str
    machine: str
    implementation: str
    python: tuple[int, int]
    glibc: tuple[int, int] | None
    libpython: Path | None
    libpython_hint: str
    has_bash: bool = True
    has_venv: bool = True


def this_machine() -> Machine:
    """The machine and the interpreter that run now."""
    library, version = platform.libc_ver()
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return Machine(
        system=platform.system(),
        machine=platform.machine(),
        implementation=platform.python_implementation(),
        python=sys.version_info[:2],
        glibc=(int(numbers[1]), int(numbers[2])) if library == "glibc" and numbers else None,
        libpython=find_libpython(),
        libpython_hint=_libpython_hint(),
        has_bash=shutil.which("bash") is not None,
        has_venv=_has_venv(),
    )


def unsupported_reason(machine: Machine | None = None) -> str | None:
    """Why this machine cannot run the embedded Triton, in one sentence with what to do; None where it can."""
    here = machine or this_machine()
    if here.system != "Linux" or here.machine != "x86_64":
        return f"The embedded Triton needs x86-64 Linux and this is {here.system} on {here.machine}. {ELSEWHERE}"
    if here.implementation != "CPython" or here.python not in PYTHONS:
        wanted = " or ".join(f"{major}.{minor}" for major, minor in PYTHONS)
        return (
            f"The embedded Triton needs CPython {wanted} and this is {here.implementation} "
            f"{here.python[0]}.{here.python[1]}. Run Tritune with one of them. {ELSEWHERE}"
        )
    if here.glibc is None or here.glibc < MIN_GLIBC:
        found = f"glibc {here.glibc[0]}.{here.glibc[1]}" if here.glibc else "another C library"
        return (
            f"The embedded Triton needs glibc {MIN_GLIBC[0]}.{MIN_GLIBC[1]} or newer and this is {found}. {ELSEWHERE}"
        )
    if here.libpython is None:
        name = f"libpython{here.python[0]}.{here.python[1]}.so.1.0"
        return f"The embedded Triton needs {name}, which this Python does not have. {here.libpython_hint} {ELSEWHERE}"
    if not here.has_bash:
        return f"The embedded Triton starts its backend with bash, which is not on PATH. Install bash. {ELSEWHERE}"
    if not here.has_venv:
        package = f"python{here.python[0]}.{here.python[1]}-venv"
        return f"The embedded Triton needs a virtual environment, and this Python lacks ensurepip. Install {package}."
    return None


def find_libpython(
    libdirs: Sequence[Path] | None = None, *, version: tuple[int, int] | None = None, system_wide: bool | None = None
) -> Path | None:
    """The shared library of the running Python, which Triton's stub links to; None where there is none.

    A library of another Python with the same version number is not taken: only the system's own Python
    (`system_wide`) may find it through the loader's cache, where a distribution's package puts it.
    """
    major, minor = version or sys.version_info[:2]
    name = f"libpython{major}.{minor}.so.1.0"
    if libdirs is None:
        libdir = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
        multiarch = sysconfig.get_config_var("MULTIARCH") or "x86_64-linux-gnu"
        # A relocated build (conda, python-build-standalone) has its own prefix, not the one it was compiled for.
        libdirs = [Path(sys.base_prefix, "lib"), Path(sys.base_prefix, "lib64"), libdir, libdir / multiarch]
    for folder in libdirs:
        if (folder / name).is_file():
            return folder / name
    if system_wide if system_wide is not None else sys.base_prefix in ("/usr", "/"):
        ldconfig = shutil.which("ldconfig") or "/sbin/ldconfig"
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            cache = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, timeout=10, check=False).stdout
            for line in cache.splitlines():
                if line.strip().startswith(f"{name} ") and "x86-64" in line:
                    return Path(line.rpartition("=> ")[2].strip())
    return None


def _libpython_hint(prefix: str | None = None) -> str:
    """What to install where libpython is missing."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if (prefix or sys.base_prefix) == "/usr":
        if Path("/etc/debian_version").exists():
            return f"Install the package libpython{version} (`apt-get install libpython{version}`)."
        return f"Install your distribution's shared libpython {version} (python{version}-libs or the like)."
    return "Build this Python with --enable-shared, or run Tritune with one that has it (Debian's, conda's, uv's)."


def _has_venv() -> bool:
    import importlib.util

    return importlib.util.find_spec("ensurepip") is not None and importlib.util.find_spec("venv") is not None


# --- the files in the environment ----------------------------------------------------------------------------------


def requirements_file(settings: Settings) -> Path:
    """The pins of the embedded server's environment."""
    return settings.root / "requirements-triton.txt"


def site_packages(environment: Path) -> Path:
    """Where the environment's packages lie, for the running Python's version."""
    return environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def tritonserver(environment: Path) -> Path:
    """The server's binary."""
    return site_packages(environment) / "pytriton" / "tritonserver" / "bin" / "tritonserver"


def is_set_up(settings: Settings) -> bool:
    """Whether the environment is complete, for this Python and these pins."""
    environment = settings.embedded_env
    try:
        stamp = (environment / STAMP).read_text().strip()
    except OSError:
        return False
    return stamp == _stamp(settings) and (environment / "bin/python").exists() and tritonserver(environment).is_file()


def _stamp(settings: Settings) -> str:
    try:
        pins = requirements_file(settings).read_bytes()
    except OSError as error:
        raise ServerError(
            f"{requirements_file(settings)} cannot be read ({error.strerror}). Check the project out again."
        ) from error
    return f"{hashlib.sha256(pins).hexdigest()} python{sys.version_info[0]}.{sys.version_info[1]}"


# --- setting it up -------------------------------------------------------------------------------------------------


def set_up(settings: Settings, progress: Callable[[str], None]) -> None:
    """Make the environment with this interpreter and install the pins; a set-up that was interrupted is continued.

    Needs a package index. Raises ServerError with the log's path where it fails.
    """
    reason = unsupported_reason()
    if reason:
        raise ServerError(reason)
    environment = settings.embedded_env
    log = settings.results / "setup.log"
    try:
        settings.results.mkdir(parents=True, exist_ok=True)
        environment.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError as error:
        raise ServerError(
            f"{error.filename} cannot be written ({error.strerror}). Make room or rights there."
        ) from error
    with _alone(environment, progress):
        if is_set_up(settings):
            progress("The embedded Triton is set up already.")
            return
        (environment / STAMP).unlink(missing_ok=True)
        python = str(environment / "bin/python")
        if not _is_usable(environment):
            if any(environment.iterdir()) and not (environment / "pyvenv.cfg").exists():
                raise ServerError(
                    f"{environment} holds other files, so no virtual environment is made there. "
                    "Empty it or set TRITUNE_EMBEDDED_ENV to a new folder."
                )
            progress(f"Making a virtual environment in {environment}")
            _run([sys.executable, "-m", "venv", "--clear", str(environment)], log, progress)
        progress("Installing the embedded Triton (about 120 MB to download)")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--no-deps"]
        _run([*pip, "--only-binary", ":all:", "-r", str(requirements_file(settings))], log, progress)
        _run([python, "-c", "import numpy, onnxruntime; assert numpy.__version__ < '2'"], log, progress)
        if not tritonserver(environment).is_file():
            raise ServerError(
                f"nvidia-pytriton was installed in {environment} but holds no tritonserver. "
                "Remove that folder and set up again."
            )
        temporary = environment / f"{STAMP}.new"
        temporary.write_text(_stamp(settings) + "\n")
        temporary.replace(environment / STAMP)
        progress("The embedded Triton is set up.")


@contextlib.contextmanager
def _alone(environment: Path, progress: Callable[[str], None]) -> Iterator[None]:
    """One set-up of a folder at a time, across processes; the lock is on the folder itself."""
    descriptor = os.open(environment, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            progress("Another process is setting up the embedded Triton: waiting for it")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_usable(environment: Path) -> bool:
    """Whether the folder is a virtual environment of this Python's version with a pip that works."""
    code = "import sys, pip; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [str(environment / "bin/python"), "-c", code], capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.returncode == 0 and answer.stdout.strip() == f"{sys.version_info[0]}.{sys.version_info[1]}"


def _run(command: Sequence[str], log: Path, progress: Callable[[str], None]) -> None:
    """Run one step with its output in the log; tell what pip is doing. Ctrl-C ends the step too."""
    with log.open("a") as out, log.open() as follow:
        out.write(f"\n$ {' '.join(command)}\n")
        out.flush()
        start = out.tell()
        follow.seek(start)
        deadline = time.monotonic() + SETUP_TIMEOUT_S
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        ) as process:
            try:
                while process.poll() is None and time.monotonic() < deadline:
                    _tell(follow, progress)
                    time.sleep(0.1)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        _tell(follow, progress)
    if process.returncode != 0:
        text = log.read_bytes()[start:].decode(errors="replace")
        raise ServerError(
            f"Setting up the embedded Triton failed ({_last_words(text)}). The whole output is in {log}; "
            "once the cause is gone, run `make setup` again: it continues."
        )


def _tell(lines: Iterator[str], progress: Callable[[str], None]) -> None:
    for line in lines:
        if re.match(r"(Collecting|  Downloading|Installing) ", line):
            progress(line.strip())


def _last_words(text: str) -> str:
    """The line of pip's output that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    if any("Could not find a version" in line or "No matching distribution" in line for line in errors) and any(
        "connection broken" in line or "Temporary failure" in line for line in lines
    ):
        return "the package index could not be reached"
    return (errors or lines or ["no output"])[-1][:300].rstrip(".")
