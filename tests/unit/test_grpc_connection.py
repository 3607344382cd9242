"""The ready-made HTTP/2 frames against a real gRPC server (grpcio's)."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from loadgen.responses import ResponseCheck
from loadgen.samples import Samples, Status
from loadgen.users.grpc import METHOD, GrpcConnection, answer_of, frame, grpc_requests, header_block
from loadgen.users.grpc_stream import STREAM_METHOD, GrpcStreamConnection, stream_messages
from loadgen.users.loops import ClosedLoop
from loadgen.users.wire import resolve
from tritune.load_plan import LoadPlan
from tritune.plan import Signature, TensorSpec

Behaviour = Callable[[bytes, grpc.ServicerContext], bytes]


class Handler(grpc.GenericRpcHandler):
    """Answers ModelInfer with a function of the request's bytes, and ModelStreamInfer with its answer in a stream."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == STREAM_METHOD:
            return grpc.stream_stream_rpc_method_handler(self._stream)
        return grpc.unary_unary_rpc_method_handler(self._behaviour) if details.method == METHOD else None

    def _stream(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        for request in requests:
            yield self._behaviour(request, context)


@pytest.fixture
def server() -> Iterator[Callable[..., str]]:
    """Start a gRPC server with a behaviour; its address."""
    started: list[grpc.Server] = []

    def start(behaviour: Behaviour) -> str:
        made = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_receive_message_length", -1)])
        made.add_generic_rpc_handlers((Handler(behaviour),))
        port = made.add_insecure_port("127.0.0.1:0")
        made.start()
        started.append(made)
        return f"127.0.0.1:{port}"

    yield start
    for made in started:
        made.stop(None).wait()


def run(
    address: str,
    messages: list[bytes],
    headers: dict[str, str] | None = None,
    duration_s: float = 0.4,
    *,
    stream: bool = False,
    check: ResponseCheck | None = None,
) -> tuple[Samples, ClosedLoop]:
    where, blocks = resolve(address), dict[bytes, dict[str, str]]()

    def connect() -> GrpcConnection:
        if stream:
            return GrpcStreamConnection(where, None, parts, call, blocks, check)
        return GrpcConnection(where, None, requests, blocks, check)

    requests = grpc_requests(messages, address, headers or {}, is_tls=False)
    parts = stream_messages(messages)
    call = header_block(STREAM_METHOD, address, headers or {}, is_tls=False)
    loop = ClosedLoop(connect, len(requests), 5.0, lambda: None)
    loop.add_client()
    loop.add_client()
    begin = time.monotonic_ns() + 100_000_000
    loop.schedule(begin, begin, begin + int(duration_s * 1e9))
    loop.run()
    samples = Samples.from_packed(loop.take_records(), 0)
    loop.close()
    return samples, loop


def test_requests_arrive_whole_and_answers_are_ok(server: Callable[..., str]) -> None:
    seen: set[bytes] = set()

    def behaviour(request: bytes, _: grpc.ServicerContext) -> bytes:
        seen.add(request)
        return request

    samples, loop = run(server(behaviour), [b"a" * 10, b"b" * 3000, b""])
    assert len(samples) > 20
    assert set(samples.status.tolist()) == {Status.OK}, loop.errors
    assert seen == {b"a" * 10, b"b" * 3000, b""}
    assert loop.opened == 2


@pytest.mark.parametrize("size", [16_379, 16_380, 65_530, 200_000, 5_000_000])
def test_messages_larger_than_frames_and_windows_arrive_whole(server: Callable[..., str], size: int) -> None:
    message = np.random.default_rng(0).bytes(size)
    wrong: list[int] = []

    def behaviour(request: bytes, _: grpc.ServicerContext) -> bytes:
        if request != message:
            wrong.append(len(request))
        return request  # as large a message back

    samples, loop = run(server(behaviour), [message])
    assert len(samples) >= 2
    assert set(samples.status.tolist()) == {Status.OK}, loop.errors
    assert wrong == []


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, Status.FAILED),
        (grpc.StatusCode.NOT_FOUND, Status.FAILED),
        (grpc.StatusCode.UNAVAILABLE, Status.REJECTED),
    ],
)
def test_an_error_keeps_the_servers_words(server: Callable[..., str], code: grpc.StatusCode, status: Status) -> None:
    def behaviour(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(code, "batch-size must be <= 4 for 'é' 100%")
        return b""

    samples, loop = run(server(behaviour), [b"x"])
    assert set(samples.status.tolist()) == {status}
    assert loop.errors == {"batch-size must be <= 4 for 'é' 100%": len(samples)}


def test_headers_go_with_every_request(server: Callable[..., str]) -> None:
    def behaviour(_: bytes, context: grpc.ServicerContext) -> bytes:
        if ("key", "Value") not in [(entry.key, entry.value) for entry in context.invocation_metadata()]:
            context.abort(grpc.StatusCode.PERMISSION_DENIED, "no key")
        return b""

    samples, loop = run(server(behaviour), [b"x"], headers={"Key": "Value"})
    assert set(samples.status.tolist()) == {Status.OK}, loop.errors


def test_an_unknown_method_is_a_failed_request(server: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadgen.users.grpc.METHOD", "/nothing/Here")
    samples, loop = run(server(lambda request, _: request), [b"x"])
    assert set(samples.status.tolist()) == {Status.FAILED}
    assert "Method not found!" in loop.errors


def test_a_server_that_goes_away_makes_failed_requests(server: Callable[..., str]) -> None:
    def behaviour(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.CANCELLED, "")
        return b""

    samples, loop = run(server(behaviour), [b"x"])
    assert set(samples.status.tolist()) == {Status.FAILED}
    assert list(loop.errors) == ["CANCELLED"]


def test_a_server_that_speaks_http_1_is_named(fake_server: Callable[..., Any]) -> None:
    # it sees "PRI * HTTP/2.0" and answers as to any request
    samples, loop = run(fake_server("--manners", "ok").address, [b"x"])
    assert len(samples) > 0
    assert loop.open_error == "the answer is not gRPC"


def test_an_answer_without_a_grpc_status_says_so() -> None:
    assert answer_of({":status": "502"}) == (Status.FAILED, "HTTP 502 without a gRPC status")
    assert answer_of({":status": "503"}) == (Status.REJECTED, "HTTP 503 without a gRPC status")


def test_a_frame_has_its_nine_octets() -> None:
    assert frame(0, 1, 5, b"abc") == b"\x00\x00\x03\x00\x01\x00\x00\x00\x05abc"


# --- streaming -----------------------------------------------------------------------------------------------------


def in_stream(payload: bytes = b"", error: str = "") -> bytes:
    """A serialized ModelStreamInferResponse."""
    from tritonclient.grpc import service_pb2

    response = service_pb2.ModelStreamInferResponse()
    if error:
        response.error_message = error
    else:
        output = response.infer_response.outputs.add(name="y", datatype="UINT8", shape=[len(payload)])
        output.datatype = "UINT8"
        response.infer_response.raw_output_contents.append(payload)
    return bytes(response.SerializeToString())


@pytest.mark.parametrize("size", [10, 16_379, 70_000, 2_000_000])
def test_a_stream_carries_messages_of_any_size_both_ways(server: Callable[..., str], size: int) -> None:
    message = np.random.default_rng(0).bytes(size)
    wrong: list[int] = []

    def behaviour(request: bytes, _: grpc.ServicerContext) -> bytes:
        if request != message:
            wrong.append(len(request))
        return in_stream(request)

    check = ResponseCheck(
        Signature((), (TensorSpec("y", "UINT8", (size,)),), 0), LoadPlan("m", concurrency=1, check_share=0.5)
    )
    samples, loop = run(server(behaviour), [message], stream=True, check=check)
    assert len(samples) >= 2
    assert set(samples.status.tolist()) == {Status.OK}, loop.errors
    assert wrong == []
    assert check.checked > 0
    assert loop.opened == 2


@pytest.mark.parametrize(
    ("words", "status"),
    [("batch-size must be <= 4 for 'é'", Status.FAILED), ("Exceeds maximum queue size", Status.REJECTED)],
)
def test_an_error_in_the_stream_keeps_the_servers_words_and_the_stream(
    server: Callable[..., str], words: str, status: Status
) -> None:
    samples, loop = run(server(lambda *_: in_stream(error=words)), [b"x"], stream=True)
    assert set(samples.status.tolist()) == {status}
    assert loop.errors == {words: len(samples)}
    assert loop.opened == 2


def test_a_stream_that_the_server_ends_is_a_failed_request_and_is_opened_again(server: Callable[..., str]) -> None:
    def behaviour(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.INTERNAL, "no more")
        return b""

    samples, loop = run(server(behaviour), [b"x"], stream=True)
    assert set(samples.status.tolist()) == {Status.FAILED}
    assert set(loop.errors) == {"no more"}
    assert loop.opened >= len(samples)


def test_a_unary_answer_is_checked_too(server: Callable[..., str]) -> None:
    check = ResponseCheck(
        Signature((), (TensorSpec("y", "UINT8", (1,)),), 0), LoadPlan("m", concurrency=1, check_share=1)
    )
    samples, loop = run(server(lambda request, _: b""), [b"x"], check=check)
    assert loop.errors == {"response check: outputs none instead of y": len(samples)}
