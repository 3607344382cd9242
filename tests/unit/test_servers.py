"""Where a Triton comes from, without one: platform rules, the set-up's decisions, server.json, URLs, ports."""

from __future__ import annotations

import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tritune import servers
from tritune.errors import InputError, ServerDownError, ServerError
from tritune.plan import Endpoints
from tritune.servers import ServerKind, ServerState, embedded, environment, launch, record, remote
from tritune.servers.environment import Machine
from tritune.servers.record import ServerRecord
from tritune.settings import Settings

GOOD = Machine("Linux", "x86_64", "CPython", (3, 11), (2, 35), Path("/usr/lib/libpython3.11.so.1.0"), "Install X.")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {
        "TRITUNE_RESULTS": str(tmp_path / "results"),
        "TRITUNE_MODEL_REPO": str(tmp_path / "models"),
        "TRITUNE_EMBEDDED_ENV": str(tmp_path / "env"),
    }
    return Settings.from_env(environ)


# --- which machines ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [GOOD, replace(GOOD, python=(3, 12)), replace(GOOD, glibc=(3, 0))])
def test_linux_with_a_shared_libpython_is_supported(machine: Machine) -> None:
    assert environment.unsupported_reason(machine) is None


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (replace(GOOD, system="Darwin", machine="arm64"), "x86-64 Linux and this is Darwin on arm64"),
        (replace(GOOD, machine="aarch64"), "x86-64 Linux and this is Linux on aarch64"),
        (replace(GOOD, system="Windows", machine="AMD64"), "x86-64 Linux and this is Windows"),
        (replace(GOOD, python=(3, 10)), "CPython 3.11 or 3.12 and this is CPython 3.10"),
        (replace(GOOD, python=(3, 13)), "CPython 3.11 or 3.12 and this is CPython 3.13"),
        (replace(GOOD, implementation="PyPy"), "CPython 3.11 or 3.12 and this is PyPy 3.11"),
        (replace(GOOD, glibc=(2, 34)), "glibc 2.35 or newer and this is glibc 2.34"),
        (replace(GOOD, glibc=None), "glibc 2.35 or newer and this is another C library"),
        (replace(GOOD, libpython=None), "needs libpython3.11.so.1.0, which this Python does not have. Install X."),
        (replace(GOOD, has_bash=False), "Install bash"),
        (replace(GOOD, has_venv=False), "Install python3.11-venv"),
    ],
)
def test_any_other_machine_is_told_why_and_what_to_do(machine: Machine, words: str) -> None:
    reason = environment.unsupported_reason(machine)
    assert reason is not None
    assert words in reason
    assert "\n" not in reason
    assert "attach" in reason or "Install" in reason


def test_libpython_is_found_where_the_interpreter_has_it(tmp_path: Path) -> None:
    library = tmp_path / "x86_64-linux-gnu" / "libpython3.99.so.1.0"
    library.parent.mkdir()
    library.touch()
    folders = [tmp_path, library.parent]
    assert environment.find_libpython(folders, version=(3, 99), system_wide=False) == library


def test_a_libpython_of_another_python_is_not_taken(tmp_path: Path) -> None:
    assert environment.find_libpython([tmp_path], version=(3, 11), system_wide=False) is None
    assert environment.find_libpython([tmp_path], version=(3, 99), system_wide=True) is None


# --- setting up ----------------------------------------------------------------------------------------------------


def test_what_is_not_set_up_is_not_started(settings: Settings) -> None:
    assert not environment.is_set_up(settings)
    with pytest.raises(ServerError, match=r"not set up yet\. Run `make setup`"):
        servers.start(settings)
    assert servers.status(settings).state is ServerState.STOPPED


def fake_environment(settings: Settings, tritonserver: str) -> None:
    """A set-up environment whose server is a shell script."""
    binary = environment.tritonserver(settings.embedded_env)
    stub = binary.parents[1] / "python_backend_stubs" / f"{sys.version_info[0]}.{sys.version_info[1]}"
    for folder in (binary.parent, stub, binary.parents[1] / "backends" / "python", settings.embedded_env / "bin"):
        folder.mkdir(parents=True)
    (stub / "triton_python_backend_stub").touch()
    (settings.embedded_env / "bin" / "python").symlink_to(sys.executable)
    binary.write_text(f"#!/bin/sh\n{tritonserver}\n")
    binary.chmod(0o755)
    (settings.embedded_env / environment.STAMP).write_text(environment._stamp(settings))


def test_a_stamp_of_other_pins_or_another_python_is_no_set_up(settings: Settings) -> None:
    fake_environment(settings, "true")
    assert environment.is_set_up(settings)
    stamp = settings.embedded_env / environment.STAMP
    stamp.write_text(stamp.read_text().replace("python3", "python4"))
    assert not environment.is_set_up(settings)
    changed = replace(settings, root=settings.embedded_env)
    (changed.root / "requirements-triton.txt").write_text("nvidia-pytriton==9\n")
    assert not environment.is_set_up(changed)


def test_an_environment_whose_python_is_gone_is_no_set_up(settings: Settings) -> None:
    fake_environment(settings, "true")
    (settings.embedded_env / "bin" / "python").unlink()
    (settings.embedded_env / "bin" / "python").symlink_to("/no/such/python")
    assert not environment.is_set_up(settings)


def test_a_folder_with_other_files_is_never_cleared(settings: Settings) -> None:
    settings.embedded_env.mkdir()
    (settings.embedded_env / "thesis.txt").write_text("years of work")
    with pytest.raises(ServerError, match="holds other files"):
        environment.set_up(settings, lambda _: None)
    assert (settings.embedded_env / "thesis.txt").read_text() == "years of work"


def test_every_pin_is_exact() -> None:
    lines = environment.requirements_file(Settings.from_env({})).read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert "nvidia-pytriton==0.7.0" in pins
    assert all(line.count("==") == 1 and "<" not in line and ">" not in line for line in pins)


# --- a server that does not come up --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'error: creating server: Internal - out of luck' >&2; exit 1", "Internal - out of luck"),
        (
            "echo 'E1130 02:45:13.161335 31983 main.cc:293] \"failed to start: no \"' >&2; exit 1",
            "failed to start: no",
        ),
        ("exit 3", "its process ended"),
    ],
)
def test_a_server_that_dies_while_starting_is_failed_with_its_last_words(
    settings: Settings, script: str, reason: str
) -> None:
    fake_environment(settings, script)
    with pytest.raises(ServerError, match=f"Triton did not start: {reason}. The log is "):
        servers.start(settings, port_base=free_base())
    status = servers.status(settings)
    assert (status.state, status.reason) == (ServerState.FAILED, f"Triton did not start: {reason}.")
    assert status.to_dict()["state"] == "failed"
    assert not list(Path("/tmp").glob(f"{launch._prefix(settings)}*"))
    with pytest.raises(ServerDownError, match=reason):
        servers.connect(settings)
    assert servers.stop(settings).state is ServerState.STOPPED
    assert servers.status(settings).state is ServerState.STOPPED


def test_ports_that_are_lost_again_and_again_end_in_one_sentence(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_environment(settings, "echo \"Unavailable - Socket '127.0.0.1:8000' already in use\"; exit 1")
    monkeypatch.setattr(embedded, "START_TRIES", 2)
    with pytest.raises(ServerError, match="No three free ports could be kept"):
        servers.start(settings, port_base=free_base())


# A server that starts and never answers; its program is the private folder's, as Triton's is.
SILENT = 'exec bash -c \'exec -a "$0" sleep 60\' "$0"'


@pytest.mark.parametrize("moment", ["_wait_until_live", "load_all"])
def test_a_start_that_is_interrupted_leaves_no_process_no_folder_and_no_record(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    fake_environment(settings, SILENT)
    monkeypatch.setattr(embedded, "_wait_until_live", lambda settings, known: "2.51.0")
    seen: list[int] = []

    def interrupted(*_: object) -> str:
        while not seen:
            seen.extend(launch.processes(launch._prefix(settings)))
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, moment, interrupted)
    with pytest.raises(KeyboardInterrupt):
        servers.start(settings, port_base=free_base())
    assert [record.process_start(pid) for pid in seen] == [None]
    assert not list(Path("/tmp").glob(f"{launch._prefix(settings)}*"))
    assert not settings.server_file.exists()
    assert servers.status(settings).state is ServerState.STOPPED


def test_a_server_whose_record_was_lost_or_damaged_is_ended_by_stop(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_environment(settings, SILENT)
    monkeypatch.setattr(embedded, "_wait_until_live", lambda settings, known: "2.51.0")
    pid = servers.start(settings, port_base=free_base()).pid
    assert pid is not None
    settings.server_file.write_text('{"state": "rea')
    assert servers.status(settings).state is ServerState.STOPPED
    assert servers.stop(settings).state is ServerState.STOPPED
    assert record.process_start(pid) is None
    assert not list(Path("/tmp").glob(f"{launch._prefix(settings)}*"))


@pytest.mark.parametrize("folder", ["kept", "tritune-0-kept", "kept/.."])
def test_whatever_a_record_calls_the_servers_folder_only_a_private_folder_is_removed(
    settings: Settings, tmp_path: Path, folder: str
) -> None:
    (tmp_path / folder.partition("/")[0]).mkdir()
    record.write(settings, known(pid=None, folder=str(tmp_path / folder)))
    servers.stop(settings)
    assert (tmp_path / folder).is_dir()


def test_errors_of_models_and_missing_hardware_are_no_reason_of_death() -> None:
    log = (
        'E1130 02:43:37.5 28694 cuda_driver.cc:1] "CudaDriverHelper has not been initialized."\n'
        "E1130 02:43:38.5 28694 model_lifecycle.cc:642] \"failed to load 'bad' version 1\"\n"
        "Signal (15) received.\n"
    )
    assert embedded.reason_in_log(log) == ""
    assert embedded.reason_in_log(log + "x: error while loading shared libraries: libz.so.1: no") == (
        "x: error while loading shared libraries: libz.so.1: no"
    )
    assert embedded.reason_in_log(log + "Signal (11) received.\n") == "Signal (11) received"


# --- what is remembered --------------------------------------------------------------------------------------------


def known(**changes: object) -> ServerRecord:
    """A record of a running process: this one."""
    values = ServerRecord(
        state=ServerState.READY,
        kind=ServerKind.EMBEDDED,
        endpoints=Endpoints("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", control=("tritune-control", "s")),
        started_at=time.time() - 3600,
        pid=os.getpid(),
        process_start=record.process_start(os.getpid()),
        boot_id=record.boot_id(),
    )
    return replace(values, **changes)  # type: ignore[arg-type]


def test_a_record_is_read_as_it_was_written_by_this_user_only(settings: Settings) -> None:
    record.write(settings, known())
    assert record.read(settings) == known(started_at=record.read(settings).started_at)  # type: ignore[union-attr]
    assert settings.server_file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in settings.results.iterdir()] == ["server.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "[" * 100_000,
        '{"state": "ready"}',
        '{"state": "odd", "kind": "embedded"}',
        '{"state": "ready", "kind": "embedded", "started_at": 1, "endpoints": {"http": "nowhere"}}',
        '{"state": "ready", "kind": "remote", "started_at": 1, "endpoints": {"http": "a:1", "metrics": 5}}',
        '{"state": "ready", "kind": "embedded", "started_at": 1, "endpoints": {"http": "a:1"}, "pid": "1"}',
        '{"state": "ready", "kind": "embedded", "started_at": 1, "endpoints": {"http": "a:1", "control": ["x"]}}',
        '{"state": "ready", "kind": "embedded", "started_at": 1, "endpoints": {"http": "a:1"}, "folder": 7}',
    ],
)
def test_a_record_that_cannot_be_understood_is_none(settings: Settings, text: str) -> None:
    settings.results.mkdir()
    settings.server_file.write_text(text)
    assert record.read(settings) is None
    assert servers.status(settings).state is ServerState.STOPPED


def test_a_process_is_known_by_more_than_its_pid() -> None:
    assert known().is_running
    assert not known(boot_id="another boot").is_running
    assert not known(process_start=1).is_running
    assert not known(pid=2**22 + 1).is_running
    assert not known(pid=None).is_running


def test_a_process_name_with_brackets_does_not_confuse(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text("7 (a) Z (b) S 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n")
    assert record.process_start(7, tmp_path) == 4242
    (tmp_path / "7" / "stat").write_text("7 (gone) Z 1 7 7 0 -1 4 0 0 0 0 0 0 0 0 20 0 1 0 4242 0 0\n")
    assert record.process_start(7, tmp_path) is None


def test_a_server_of_another_boot_is_stopped_one_of_this_boot_that_ended_has_failed(settings: Settings) -> None:
    record.write(settings, known(boot_id="another boot"))
    assert servers.status(settings).state is ServerState.STOPPED
    record.write(settings, known(process_start=1))
    status = servers.status(settings)
    assert status.state is ServerState.FAILED
    assert status.reason == f"Triton (pid {os.getpid()}) ended although nobody stopped it."


def test_stopping_never_ends_a_process_that_got_the_pid_of_an_old_server(settings: Settings) -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        try:
            record.write(settings, known(pid=stranger.pid, process_start=1, folder=str(settings.results / "gone")))
            assert servers.stop(settings).state is ServerState.STOPPED
            assert stranger.poll() is None
            assert not settings.server_file.exists()
        finally:
            stranger.kill()


def test_a_process_that_runs_and_does_not_answer_is_said_to(settings: Settings) -> None:
    record.write(settings, known(endpoints=Endpoints(f"127.0.0.1:{free_base()}")))
    assert "runs but does not answer" in str(servers.status(settings).reason)
    record.write(
        settings,
        known(endpoints=Endpoints(f"127.0.0.1:{free_base()}"), state=ServerState.STARTING, started_at=time.time()),
    )
    assert servers.status(settings).state is ServerState.STARTING
    with pytest.raises(ServerDownError, match="still starting"):
        servers.connect(settings)


def test_a_results_folder_that_cannot_be_written_is_said(settings: Settings) -> None:
    settings.results.write_text("a file where the folder should be")
    with pytest.raises(ServerError, match="cannot be written"):
        servers.start(settings)


# --- ports and the private folder ----------------------------------------------------------------------------------


def free_base() -> int:
    return launch.free_ports(30000 + os.getpid() % 2000)[0]


def test_the_next_three_free_ports_are_taken() -> None:
    base = free_base()
    with socket.socket() as other:
        other.bind(("127.0.0.1", base + 2))
        other.listen()
        assert launch.free_ports(base)[0] >= base + 10


@pytest.mark.parametrize("base", [0, -1, 65534, 70000])
def test_a_base_that_leaves_no_room_for_three_ports_is_refused(base: int) -> None:
    with pytest.raises(InputError, match=f"port_base={base} must be from 1 to 65533"):
        launch.free_ports(base)


def test_triton_sees_neither_spaces_nor_what_steers_a_shell(settings: Settings, tmp_path: Path) -> None:
    fake_environment(settings, "true")
    odd = replace(settings, model_repo=tmp_path / "my models $(x)", results=tmp_path / "a b")
    folder = launch.private_folder(odd)
    try:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert (folder / "models").resolve() == odd.model_repo.resolve()
        command = launch.command_line(folder, launch.new_endpoints((1, 2, 3)))
        assert all(
            launch.SAFE_PATH.fullmatch(argument.partition("=")[2].partition(",")[0]) for argument in command[1:7:4]
        )
        assert not [argument for argument in command if " " in argument or "$" in argument]
        variables = launch.server_environment(
            folder, {"BASH_ENV": "x", "PYTHONPATH": "x", "TRITUNE_DATABASE_URL": "x", "HOME": "/h", "PATH": "/bin"}
        )
        assert set(variables) == {"HOME", "PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"}
        assert variables["PATH"] == f"{folder}/env/bin:/bin"
    finally:
        launch.remove(folder)
    assert not folder.exists()
    assert odd.model_repo.is_dir()


def test_a_temporary_folder_with_a_space_is_passed_over(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_environment(settings, "true")
    (tmp_path / "my tmp").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "my tmp"))
    folder = launch.private_folder(settings)
    launch.remove(folder)
    assert launch.SAFE_PATH.fullmatch(str(folder))


def test_only_models_with_a_version_are_loaded(settings: Settings) -> None:
    for name in ("b/1", "a/12", ".half-written/1", "empty", "odd/one", "x y/1"):
        (settings.model_repo / name).mkdir(parents=True)
    (settings.model_repo / "README.md").touch()
    assert embedded.model_folders(settings.model_repo) == ["a", "b", "x y"]
    assert embedded.model_folders(settings.results) == []


# --- attached servers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "http", "secure"),
    [
        ("gpu-box", "gpu-box:8000", False),
        ("gpu-box:9000", "gpu-box:9000", False),
        ("http://gpu-box", "gpu-box:8000", False),
        ("http://gpu-box:8000/", "gpu-box:8000", False),
        ("https://gpu-box", "gpu-box:443", True),
        ("https://gpu-box:8443/v2/", "gpu-box:8443", True),
        ("http://[::1]:8000", "[::1]:8000", False),
        ("  10.0.0.1 ", "10.0.0.1:8000", False),
    ],
)
def test_a_url_becomes_an_address(url: str, http: str, secure: bool) -> None:
    ends = remote.parse(url)
    assert (ends.http, ends.tls is not None) == (http, secure)


def test_the_other_addresses_may_be_urls_too() -> None:
    ends = remote.parse("h", grpc="h:9001", metrics="http://h:9002/metrics", headers={"Authorization": "Bearer x"})
    assert (ends.grpc, ends.metrics, ends.headers) == ("h:9001", "h:9002", {"Authorization": "Bearer x"})


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://proxy/triton", "has a path"),
        ("http://proxy:80/a/b", "has a path"),
        ("http://h?x=1", "has a path"),
        ("ftp://h", "must begin with http"),
        ("", "names no host"),
        ("http://", "names no host"),
        ("http://a b", "names no host"),
        ("http://h:99999", "is not a URL"),
        ("http://h:x", "is not a URL"),
        ("http://me:pw@h", "holds a password"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_in_words(url: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        remote.parse(url)


def test_tls_files_and_headers_are_looked_at(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"TLS file .*nowhere.pem \(ca\) does not exist"):
        remote.parse("https://h", tls={"ca": str(tmp_path / "nowhere.pem"), "verify": True})
    with pytest.raises(InputError, match="which is not encrypted"):
        remote.parse("http://h", tls={"verify": False})
    with pytest.raises(InputError, match="cannot be sent"):
        remote.parse("h", headers={"X-A": "b\r\nX-C: d"})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("", "x"),
        ("a b", "x"),
        ("a:", "x"),
        ("ü", "x"),
        ("a", "b\nc: d"),
        ("a", "b\rc"),
        ("a", "☃"),
        ("a", "\udcff"),
        ("a\0", "x"),
    ],
)
def test_a_header_that_cannot_be_sent_is_refused(name: str, value: str) -> None:
    with pytest.raises(InputError, match="cannot be sent"):
        remote.parse("h", headers={name: value})


def test_a_server_that_is_not_there_is_not_attached_to(settings: Settings) -> None:
    with pytest.raises(ServerDownError, match=r"No server answers at 127\.0\.0\.1:"):
        servers.attach(settings, f"127.0.0.1:{free_base()}")
    assert servers.status(settings).state is ServerState.STOPPED


class _OtherServer(BaseHTTPRequestHandler):
    """A KServe v2 server that is no Triton: neither model control nor statistics; wants a header."""

    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Bearer x"
        body = json.dumps({"name": "other", "version": "1.2", "extensions": []} if allowed else {"error": "who?"})
        self.send_response(200 if allowed else 401)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def other_server(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """(https URL, CA file) of a server with a certificate of its own."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with HTTPServer(("127.0.0.1", 0), _OtherServer) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}", certificate
        server.shutdown()
        thread.join()


def test_headers_and_tls_are_used_and_what_the_server_cannot_do_is_unavailable(
    settings: Settings, other_server: tuple[str, Path]
) -> None:
    url, certificate = other_server
    tls, headers, told = {"ca": str(certificate), "verify": True}, {"Authorization": "Bearer x"}, []
    status = servers.attach(settings, url, headers=headers, tls=tls, progress=told.append)
    assert (status.state, status.triton_version) == (ServerState.READY, "1.2")
    assert (status.control, status.statistics, status.to_dict()["metrics"]) == (False, False, None)
    assert any("tuning is unavailable" in line for line in told)
    assert servers.status(settings).state is ServerState.READY
    with servers.connect(settings) as client:
        assert not client.has_statistics
    assert servers.attach(settings, url, headers=headers, tls={"verify": False}).state is ServerState.READY


def test_an_untrusted_certificate_and_a_missing_header_are_told_apart(
    settings: Settings, other_server: tuple[str, Path]
) -> None:
    url, certificate = other_server
    with pytest.raises(ServerDownError, match="certificate is not trusted"):
        servers.attach(settings, url)
    with pytest.raises(ServerError, match=r"does not speak the KServe v2 protocol \(who\?\)"):
        servers.attach(settings, url, tls={"ca": str(certificate), "verify": True})


def test_without_docker_its_start_says_what_to_do(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{settings.results}/no.sock")
    with pytest.raises(ServerError, match=r"Docker is not running: nothing answers at .*no\.sock\. Start it"):
        servers.start(settings, ServerKind.DOCKER)
