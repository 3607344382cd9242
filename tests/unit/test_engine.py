"""The closed and the open loop against a real server with bad manners, without Locust."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.payload import http_body, payloads
from loadgen.responses import ResponseCheck
from loadgen.samples import Samples, Status
from loadgen.schedule import offsets_ns
from loadgen.users.http import Head, HttpConnection, http_requests
from loadgen.users.loops import ClosedLoop, OpenLoop
from loadgen.users.wire import Connection, resolve, tls_context
from tritune.load_plan import Arrivals, LoadPlan
from tritune.plan import Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (4,)),), 8)


def connector(
    address: str, tls: dict[str, Any] | None = None, check: ResponseCheck | None = None, **headers: str
) -> Callable[[], Connection]:
    pool = payloads(SIGNATURE, LoadPlan("m", concurrency=1), count=4)
    requests = http_requests([http_body(payload) for payload in pool], "m", address, headers)
    where, context, heads = resolve(address), tls_context(tls, "http/1.1"), dict[bytes, Head]()
    return lambda: HttpConnection(where, context, requests, heads, check)


def nothing() -> None:
    time.sleep(0)


def run_closed(
    address: str,
    *,
    clients: int = 2,
    duration_s: float = 0.3,
    timeout_s: float = 5.0,
    tls: dict[str, Any] | None = None,
    check: ResponseCheck | None = None,
    give_way: Callable[[], None] = nothing,
) -> tuple[Samples, ClosedLoop, int]:
    """Samples, the loop, and the window's end."""
    loop = ClosedLoop(connector(address, tls, check), 4, timeout_s, give_way)
    for _ in range(clients):
        loop.add_client()
    begin = time.monotonic_ns() + 50_000_000
    end = begin + int(duration_s * 1e9)
    loop.schedule(begin, begin, end)
    loop.run()
    samples = Samples.from_packed(loop.take_records(), 0)
    loop.close()
    return samples, loop, end


def run_open(
    address: str,
    rate: float,
    *,
    duration_s: float = 0.5,
    timeout_s: float = 5.0,
    connections: int = 64,
    arrivals: Arrivals = Arrivals.CONSTANT,
) -> tuple[Samples, OpenLoop, int, int]:
    """Samples (with the unsent), the loop, and the window."""

    def times(length_ns: int) -> Iterator[Any]:
        return offsets_ns(rate, arrivals, 0, length_ns)

    loop = OpenLoop(
        connector(address), 4, timeout_s, nothing, arrivals=times, rate_rps=rate, max_connections=connections
    )
    loop.prepare()
    begin = time.monotonic_ns() + 50_000_000
    end = begin + int(duration_s * 1e9)
    loop.schedule(begin, begin, end)
    loop.run()
    parts = [Samples.from_packed(loop.take_records(), 0), *(Samples.unsent(chunk, 0) for chunk in loop.leftover())]
    loop.close()
    return Samples.join(parts), loop, begin, end


def count(samples: Samples, status: Status) -> int:
    return int(np.count_nonzero(samples.status == status))


@pytest.mark.parametrize("manners", ["ok", "chunked", "continue", "no_length", "close_header", "byte_by_byte", "large"])
def test_every_way_to_write_a_good_answer_is_understood(fake_server: Callable[..., Any], manners: str) -> None:
    samples, loop, _ = run_closed(fake_server("--manners", manners, "--law", "fixed:2").address)
    assert len(samples) >= 2
    assert set(samples.status.tolist()) == {Status.OK}
    assert loop.errors == {}


@pytest.mark.parametrize(
    ("manners", "status", "message"),
    [
        ("bad_request", Status.FAILED, "inference request batch-size must be <= 4 for 'fake'"),
        ("unavailable", Status.REJECTED, "Exceeds maximum queue size"),
        ("not_json", Status.FAILED, "HTTP 502 Bad Gateway: no server"),
        ("garbage", Status.FAILED, "the answer is not HTTP"),
        ("too_long", Status.FAILED, "the answer is longer than its Content-Length"),
        ("close", Status.FAILED, "the server closed the connection before it had answered"),
        ("close_midway", Status.FAILED, "the server closed the connection in the middle of its answer"),
    ],
)
def test_every_bad_answer_is_a_failed_request_with_its_message(
    fake_server: Callable[..., Any], manners: str, status: Status, message: str
) -> None:
    samples, loop, _ = run_closed(fake_server("--manners", manners, "--law", "fixed:2").address)
    assert len(samples) >= 2
    assert set(samples.status.tolist()) == {status}
    assert loop.errors == {message: len(samples)}


@pytest.mark.parametrize("manners", ["ok", "chunked", "continue", "no_length", "close_header", "byte_by_byte"])
def test_a_checked_answer_is_read_whole_however_it_comes(fake_server: Callable[..., Any], manners: str) -> None:
    right = Signature(SIGNATURE.inputs, (TensorSpec("OUTPUT__0", "FP32", (10,)),), 8)
    check = ResponseCheck(right, LoadPlan("m", concurrency=1, check_share=1.0))
    samples, loop, _ = run_closed(fake_server("--manners", manners, "--law", "fixed:2").address, check=check)
    assert len(samples) >= 2
    assert check.checked == len(samples)
    # the fake server names the JSON's length in every form of its answer but one
    assert loop.errors == {} or manners in ("chunked", "no_length")


def test_answers_that_fail_their_check_are_failed_requests(fake_server: Callable[..., Any]) -> None:
    check = ResponseCheck(SIGNATURE, LoadPlan("m", concurrency=1, check_share=0.25))
    samples, loop, _ = run_closed(fake_server("--law", "fixed:2").address, check=check)
    assert len(samples) > 20
    failed = count(samples, Status.FAILED)
    assert failed == check.checked == len(samples) // 4
    assert loop.errors == {"response check: outputs OUTPUT__0 instead of y": failed}


def test_a_silent_server_makes_timeouts_and_each_gets_a_new_connection(fake_server: Callable[..., Any]) -> None:
    samples, loop, end = run_closed(fake_server("--manners", "silent").address, duration_s=0.5, timeout_s=0.2)
    assert set(samples.status.tolist()) == {Status.TIMEOUT}
    assert len(samples) == 2 * 3  # sent at 0, 0.2 and 0.4 s
    assert loop.opened >= len(samples)
    waited = (samples.done_ns - samples.sent_ns) / 1e9
    assert waited.min() >= 0.2
    assert waited.max() < 0.4
    assert samples.sent_ns.max() < end < samples.done_ns.max()


def test_a_closed_loop_sends_back_to_back_and_nothing_after_the_window(fake_server: Callable[..., Any]) -> None:
    samples, _, end = run_closed(fake_server("--law", "fixed:20").address, clients=3, duration_s=0.4)
    np.testing.assert_array_equal(samples.intended_ns, samples.sent_ns)
    assert samples.sent_ns.max() < end
    assert samples.done_ns.max() >= end  # what was in flight has been followed
    assert (samples.done_ns - samples.sent_ns).min() >= 20e6
    assert 3 * 10 < len(samples) <= 3 * 20  # 400 ms / 20 ms, and time for the rest


def test_an_open_loop_keeps_its_schedule_whatever_the_server_does(fake_server: Callable[..., Any]) -> None:
    # 100/s into answers that take 200 ms: 20 in flight, more than the first connections
    samples, loop, begin, end = run_open(fake_server("--law", "fixed:200").address, 100)
    expected = np.concatenate(list(offsets_ns(100, Arrivals.CONSTANT, 0, end - begin))) + begin
    np.testing.assert_array_equal(np.sort(samples.intended_ns), expected)
    assert count(samples, Status.OK) == len(samples) == 50
    assert loop.connections >= 20
    assert not loop.is_capped
    assert (samples.sent_ns >= samples.intended_ns).all()
    # the machine may be busy; waiting for an answer would make 200 ms
    assert np.median(samples.sent_ns - samples.intended_ns) < 20e6


def test_an_open_loop_without_free_connections_keeps_intended_times_and_counts_the_unsent(
    fake_server: Callable[..., Any],
) -> None:
    samples, loop, begin, end = run_open(fake_server("--law", "fixed:100").address, 200, connections=2)
    assert loop.connections == 2
    assert loop.is_capped
    assert len(samples) == 100
    sent = count(samples, Status.OK)
    assert 4 <= sent <= 12
    assert count(samples, Status.UNSENT) == 100 - sent
    late = samples.sent_ns[samples.status == Status.OK] - samples.intended_ns[samples.status == Status.OK]
    assert late.max() > 50e6
    assert begin <= samples.intended_ns.min()
    assert samples.intended_ns.max() < end


def test_an_impossible_rate_ends_in_time(fake_server: Callable[..., Any]) -> None:
    begun = time.monotonic()
    samples, _, _, _ = run_open(fake_server("--law", "fixed:50").address, 200_000, connections=8)
    assert len(samples) == 100_000
    assert count(samples, Status.UNSENT) > 90_000
    assert time.monotonic() - begun < 10


def test_a_stopped_open_loop_counts_only_what_was_due(fake_server: Callable[..., Any]) -> None:
    def times(length_ns: int) -> Iterator[Any]:
        return offsets_ns(1000, Arrivals.CONSTANT, 0, length_ns)

    address = fake_server("--law", "fixed:1").address
    loop = OpenLoop(connector(address), 4, 5.0, nothing, arrivals=times, rate_rps=1000, max_connections=8)
    loop.prepare()
    begin = time.monotonic_ns()
    loop.schedule(begin, begin, begin + 3600 * 10**9)
    threading.Timer(0.3, loop.stop).start()
    loop.run()
    left = sum(len(chunk) for chunk in loop.leftover())
    sent = len(Samples.from_packed(loop.take_records(), 0))
    loop.close()
    assert 0 < sent + left <= 400


@pytest.mark.parametrize("rate", [None, 200.0])
def test_a_server_that_dies_makes_failed_requests_without_a_hot_loop(
    fake_server: Callable[..., Any], rate: float | None
) -> None:
    server = fake_server("--law", "fixed:1")
    threading.Timer(0.2, server.process.kill).start()
    begun, cpu = time.monotonic(), time.process_time()
    if rate is None:
        samples, loop, _ = run_closed(server.address, duration_s=0.8)
        assert count(samples, Status.FAILED) < 200  # 2 clients, one attempt every 10 ms
    else:
        samples, loop, _, _ = run_open(server.address, rate, duration_s=0.8)
        assert len(samples) == 160
    assert count(samples, Status.OK) > 0
    assert count(samples, Status.FAILED) > 10
    assert any("Connection refused" in message for message in loop.errors)
    assert time.monotonic() - begun < 5
    assert time.process_time() - cpu < 0.7


def test_nobody_listening_is_known_before_the_load(fake_server: Callable[..., Any]) -> None:
    server = fake_server()
    server.process.kill()
    server.process.wait()
    loop = ClosedLoop(connector(server.address), 4, 5.0, nothing)
    loop.add_client()
    threading.Timer(0.1, loop.stop).start()
    loop.run()
    loop.close()
    assert loop.is_settled
    assert loop.opened == 0
    assert loop.open_error is not None
    assert "Connection refused" in loop.open_error


def test_a_client_can_leave_while_the_load_goes_on(fake_server: Callable[..., Any]) -> None:
    loop = ClosedLoop(connector(fake_server("--law", "fixed:5").address), 4, 5.0, nothing)
    leaving, _ = loop.add_client(), loop.add_client()
    begin = time.monotonic_ns()
    loop.schedule(begin, begin, begin + 600_000_000)
    threading.Timer(0.2, loop.remove_client, [leaving]).start()
    loop.run()
    samples = Samples.from_packed(loop.take_records(), 0)
    loop.close()
    middle = begin + 300_000_000
    early, late = np.count_nonzero(samples.sent_ns < middle), np.count_nonzero(samples.sent_ns >= middle)
    assert 0 < late < early
    assert set(samples.status.tolist()) == {Status.OK}


def test_spinning_is_counted_apart_and_bounded(fake_server: Callable[..., Any]) -> None:
    samples, loop, _, _ = run_open(fake_server("--law", "fixed:1").address, 100)
    assert count(samples, Status.OK) == 50
    assert 0 < loop.spin_ns <= 0.25 * 0.5e9


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for 127.0.0.1 and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    kind = ("-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    name = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    subprocess.run(
        ["openssl", "req", *kind, *name, "-keyout", key, "-out", made],
        check=True,
        capture_output=True,
        timeout=30,
    )
    return made, key


@pytest.mark.parametrize("manners", ["ok", "large", "byte_by_byte", "close_header"])
def test_tls_with_the_servers_certificate_works(
    fake_server: Callable[..., Any], certificate: tuple[Path, Path], manners: str
) -> None:
    made, key = certificate
    server = fake_server("--manners", manners, "--law", "fixed:2", "--tls", str(made), str(key))
    samples, loop, _ = run_closed(server.address, tls={"ca": str(made)})
    assert len(samples) >= 2
    assert set(samples.status.tolist()) == {Status.OK}, loop.errors


@pytest.mark.parametrize("is_encrypted", [False, True])
def test_what_the_process_does_while_an_answer_comes_is_in_no_latency(
    fake_server: Callable[..., Any], certificate: tuple[Path, Path], is_encrypted: bool
) -> None:
    made, key = certificate
    arguments = ("--tls", str(made), str(key)) if is_encrypted else ()
    server = fake_server("--law", "fixed:2", *arguments)
    samples, _, _ = run_closed(
        server.address,
        clients=1,
        duration_s=0.6,
        tls={"ca": str(made)} if is_encrypted else None,
        give_way=lambda: time.sleep(0.04),  # 20 times as long as an answer takes, every 10 ms
    )
    assert set(samples.status.tolist()) == {Status.OK}
    between = np.diff(samples.sent_ns)
    assert np.quantile(between, 0.9) > 35e6  # the loop was away, so the next request was late
    assert np.quantile(samples.done_ns - samples.sent_ns, 0.9) < 20e6


def test_an_unknown_certificate_is_refused_unless_told_otherwise(
    fake_server: Callable[..., Any], certificate: tuple[Path, Path]
) -> None:
    made, key = certificate
    server = fake_server("--tls", str(made), str(key))
    samples, loop, _ = run_closed(server.address, tls={})
    assert loop.open_error is not None
    assert "certificate not accepted" in loop.open_error
    assert count(samples, Status.OK) == 0
    samples, _, _ = run_closed(server.address, tls={"verify": False})
    assert count(samples, Status.OK) == len(samples) > 0
