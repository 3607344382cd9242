"""gRPC's bidirectional streaming: one ModelStreamInfer call a connection, a message out, a message back.

Belongs here: what differs from the unary call (grpc.py). Never: clocks, schedules, Locust.

A request is then one DATA frame without headers, and an answer one without headers and trailers. Triton answers a
failed request inside the stream, with its words and without a status code.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Sequence

from loadgen.responses import ResponseCheck
from loadgen.samples import Status
from loadgen.users.grpc import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE,
    HEADERS,
    NOT_HTTP2,
    RENEW_WINDOW,
    WINDOW_UPDATE,
    GrpcConnection,
    GrpcRequest,
    frame,
    unpadded,
)
from loadgen.users.wire import OK, Address, Answer, ConnectionFailed

STREAM_METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
STREAM = 1
ERROR_FIELD = 0x0A  # of ModelStreamInferResponse: 1 is error_message, 2 is infer_response
RESPONSE_FIELD = 0x12
REJECTIONS = ("Exceeds maximum queue size", "Request timeout expired", "is not ready")  # what is 503 over HTTP


def stream_messages(messages: Sequence[bytes]) -> list[GrpcRequest]:
    """Each serialized message as the DATA frames of the stream."""
    requests = []
    for message in messages:
        prefixed = struct.pack(">BI", 0, len(message)) + message
        whole = bytearray()
        for start in range(0, len(prefixed), FRAME_SIZE):
            whole += frame(DATA, 0, STREAM, prefixed[start : start + FRAME_SIZE])
        requests.append(GrpcRequest(whole, (), b"", prefixed))
    return requests


class GrpcStreamConnection(GrpcConnection):
    """One HTTP/2 connection with one call that lasts; one request at a time."""

    is_streaming = True
    last_flag = 0  # the stream goes on

    __slots__ = ("_call", "_parts", "_stream_consumed", "_want")

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext | None,
        requests: list[GrpcRequest],
        call: bytes,
        known_blocks: dict[bytes, dict[str, str]],
        check: ResponseCheck | None = None,
    ) -> None:
        self._call = call
        super().__init__(address, context, requests, known_blocks, check)

    def _begin(self) -> None:
        super()._begin()
        self._parts = b""  # of an answer that has not all come
        self._want = 0  # its length with the prefix, 0 while that is unknown
        self._stream_consumed = 0

    def _greet(self) -> bool:
        is_ready = super()._greet()
        if is_ready and self._stream != STREAM:
            self._stream = STREAM
            self._stream_window = self._first_window
            self._write(frame(HEADERS, END_HEADERS, STREAM, self._call))
        return is_ready

    def send(self, index: int) -> None:
        if self._check is not None:
            self._is_checked = self._check.is_due()
        request = self._requests[index]
        size = len(request.message)
        if size <= self._peer_window and size <= self._stream_window:
            self._peer_window -= size
            self._stream_window -= size
            self._write(request.whole)
            return
        self._rest = request.message
        self._send_rest()

    def _data(self, payload: bytes, flags: int, stream: int) -> Answer | None:
        """Called for every DATA frame."""
        self._stream_consumed += len(payload)
        if self._stream_consumed >= RENEW_WINDOW:
            self._write(frame(WINDOW_UPDATE, 0, STREAM, struct.pack(">I", self._stream_consumed)))
            self._stream_consumed = 0
        if stream != STREAM:
            return None
        if flags & END_STREAM:
            raise ConnectionFailed("the server ended the stream")
        part = unpadded(payload, flags)
        if self._parts:
            self._parts += part
        else:
            self._parts = part
        if not self._want:
            if len(self._parts) < 5:
                return None
            self._want = 5 + int.from_bytes(self._parts[1:5], "big")
        if len(self._parts) < self._want:
            return None
        message, self._parts, self._want = self._parts, b"", 0
        return self._answer(message)

    def _answer(self, prefixed: bytes) -> Answer:
        if len(prefixed) > 5 and prefixed[5] == ERROR_FIELD:
            text = _field(prefixed, 6).decode("utf-8", "replace")
            return Status.REJECTED if any(words in text for words in REJECTIONS) else Status.FAILED, text
        if self._is_checked:
            if len(prefixed) < 7 or prefixed[5] != RESPONSE_FIELD:
                raise ConnectionFailed(NOT_HTTP2)
            return self._checked(b"\0" * 5 + _field(prefixed, 6))
        return OK

    def _headers(self, stream: int, flags: int, block: bytes) -> Answer | None:
        answer = super()._headers(stream, flags, block)
        if answer is not None and stream == STREAM:  # trailers: the call is over, and with it this connection
            raise ConnectionFailed(answer[1] or "the server ended the stream")
        return None


def _field(data: bytes, position: int) -> bytes:
    """A length-delimited field whose tag ends before `position`."""
    size = shift = 0
    while True:
        byte = data[position]
        size |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return data[position : position + size]
