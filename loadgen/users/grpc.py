"""gRPC on one connection: ready-made HTTP/2 frames go out, what comes back is read only as far as needed.

Belongs here: KServe v2 over gRPC (unary ModelInfer) and as much of HTTP/2 as that takes. Never: clocks, schedules,
Locust.

The header block of a request is encoded without a dynamic table, and the server is told to use none either
(SETTINGS_HEADER_TABLE_SIZE 0), so equal header blocks are equal bytes: a request differs from the last one only in
its stream's number, and a trailer is decoded once and then looked up. Sources: RFC 9113 (HTTP/2), RFC 7541 (HPACK),
grpc/grpc doc/PROTOCOL-HTTP2.md.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from loadgen.responses import ResponseCheck
from loadgen.samples import Status
from loadgen.users.wire import CLOSED_BEFORE, OK, Address, Answer, Connection, ConnectionFailed

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
HEADER_TABLE_SIZE, ENABLE_PUSH, INITIAL_WINDOW_SIZE = 1, 2, 4
FRAME_SIZE = 16384  # what every server takes
FIRST_WINDOW = 65535
LARGEST_WINDOW = 2**31 - 1
RENEW_WINDOW = 2**30
LAST_STREAM = 2**30
UNAVAILABLE = "14"
NOT_HTTP2 = "the answer is not gRPC"
MAX_KNOWN_BLOCKS = 1024
CODES = (
    *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS"),
    *("PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED"),
    *("INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """One HTTP/2 frame."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


@dataclass(slots=True)
class GrpcRequest:
    """A request's frames. `whole` is all of them, with the stream's number still to be written at every one of
    `streams`; `message` is the length-prefixed message for a server whose window is too small for `whole`."""

    whole: bytearray
    streams: tuple[int, ...]
    headers: bytes
    message: bytes


def header_block(method: str, authority: str, headers: Mapping[str, str], *, is_tls: bool) -> bytes:
    """The header block that begins a call."""
    from hpack import Encoder, NeverIndexedHeaderTuple

    fields = [
        (":method", "POST"),
        (":scheme", "https" if is_tls else "http"),
        (":path", method),
        (":authority", authority),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("user-agent", "tritune"),
        *((name.lower(), value) for name, value in headers.items()),
    ]
    return bytes(Encoder().encode([NeverIndexedHeaderTuple(name, value) for name, value in fields]))


def grpc_requests(
    messages: Sequence[bytes], authority: str, headers: Mapping[str, str], *, is_tls: bool
) -> list[GrpcRequest]:
    """The frames of a unary call for each serialized message."""
    block = header_block(METHOD, authority, headers, is_tls=is_tls)
    requests = []
    for message in messages:
        prefixed = struct.pack(">BI", 0, len(message)) + message
        whole = bytearray(frame(HEADERS, END_HEADERS, 0, block))
        streams = [5]
        for start in range(0, len(prefixed), FRAME_SIZE):
            part = prefixed[start : start + FRAME_SIZE]
            streams.append(len(whole) + 5)
            whole += frame(DATA, END_STREAM if start + FRAME_SIZE >= len(prefixed) else 0, 0, part)
        requests.append(GrpcRequest(whole, tuple(streams), block, prefixed))
    return requests


def unpadded(payload: bytes, flags: int) -> bytes:
    """The content of a DATA frame."""
    return payload[1 : len(payload) - payload[0]] if flags & PADDED else payload


def decode_block(block: bytes) -> dict[str, str]:
    """The fields of a header block that uses no dynamic table. Raises ConnectionFailed."""
    from hpack import Decoder
    from hpack.exceptions import HPACKError

    try:
        decoder: Any = Decoder()
        decoder.max_allowed_table_size = 0
        decoder.header_table_size = 0
        return {str(name): str(value) for name, value in decoder.decode(block)}
    except HPACKError as error:
        raise ConnectionFailed(f"{NOT_HTTP2} ({error})") from error


def answer_of(fields: Mapping[str, str]) -> Answer:
    """What the trailers of a call say. `fields` holds those of the response's first headers too."""
    code = fields.get("grpc-status")
    if code == "0":
        return OK
    if code is None:
        status = fields.get(":status", "")
        return Status.REJECTED if status == "503" else Status.FAILED, f"HTTP {status} without a gRPC status"
    message = unquote(fields.get("grpc-message", ""))
    if not message:
        message = CODES[int(code)] if code.isdigit() and int(code) < len(CODES) else f"gRPC status {code}"
    return Status.REJECTED if code == UNAVAILABLE else Status.FAILED, message


class GrpcConnection(Connection):
    """One HTTP/2 connection with one stream at a time."""

    is_streaming = False
    last_flag = END_STREAM  # of a request's last frame

    __slots__ = (
        "_block",
        "_body",
        "_buffer",
        "_check",
        "_consumed",
        "_fields",
        "_first_window",
        "_is_checked",
        "_is_greeted",
        "_known_blocks",
        "_peer_window",
        "_requests",
        "_rest",
        "_stream",
        "_stream_window",
    )

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext | None,
        requests: list[GrpcRequest],
        known_blocks: dict[bytes, dict[str, str]],
        check: ResponseCheck | None = None,
    ) -> None:
        super().__init__(address, context)
        self._requests = requests
        self._known_blocks = known_blocks
        self._check = check
        self._begin()

    def _begin(self) -> None:
        self._buffer = b""
        self._is_greeted = False
        self._stream = -1  # of the request in flight or the last one
        self._fields: dict[str, str] = {}
        self._block: tuple[bytes, int] | None = None  # a header block that goes on in CONTINUATION frames
        self._rest = b""  # of a message that waits for the server's window
        self._first_window = FIRST_WINDOW  # of every new stream
        self._peer_window = FIRST_WINDOW  # what the server takes on the whole connection
        self._stream_window = 0
        self._consumed = 0
        self._is_checked = False  # whether the answer at hand is to be decoded
        self._body = b""  # of that answer

    def open(self) -> None:
        self._begin()
        super().open()

    def _greet(self) -> bool:
        if not self._is_greeted:
            self._is_greeted = True
            values = ((HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, LARGEST_WINDOW))
            settings = b"".join(struct.pack(">HI", name, value) for name, value in values)
            renew = struct.pack(">I", LARGEST_WINDOW - FIRST_WINDOW)
            self._write(PREFACE + frame(SETTINGS, 0, 0, settings) + frame(WINDOW_UPDATE, 0, 0, renew))
            return False
        data = self._read()
        if data == b"":
            raise ConnectionFailed("the server closed the connection instead of speaking HTTP/2")
        if data:
            self._take(data)
        return self.is_ready  # since the server's settings came

    def send(self, index: int) -> None:
        if self._check is not None:
            self._is_checked = self._check.is_due()
            self._body = b""
        request = self._requests[index]
        self._stream = stream = self._stream + 2
        if stream >= LAST_STREAM:
            self.must_reopen = True  # after this one
        size = len(request.message)
        if size <= self._peer_window and size <= self._first_window:
            self._peer_window -= size
            whole = request.whole
            number = stream.to_bytes(4, "big")
            for position in request.streams:
                whole[position : position + 4] = number
            self._write(whole)
            return
        self._stream_window = self._first_window
        self._rest = request.message
        self._write(frame(HEADERS, END_HEADERS, stream, request.headers))
        self._send_rest()

    def _send_rest(self) -> None:
        """As much of the message as the server's windows allow."""
        while self._rest and (room := min(self._peer_window, self._stream_window, FRAME_SIZE)) > 0:
            part, self._rest = self._rest[:room], self._rest[room:]
            self._peer_window -= len(part)
            self._stream_window -= len(part)
            self._write(frame(DATA, 0 if self._rest else self.last_flag, self._stream, part))

    def receive(self) -> Answer | None:
        data = self._read()
        if data is None:
            return None
        if not data:
            raise ConnectionFailed(CLOSED_BEFORE)
        return self._take(data)

    def idle_event(self) -> None:
        data = self._read()
        if data == b"":
            raise ConnectionFailed("the server closed an idle connection")
        if data:
            self._take(data)

    def _take(self, data: bytes) -> Answer | None:
        """Read whole frames; the answer when one of them ends the stream in flight."""
        if self._buffer:
            data = self._buffer + data
        position, length = 0, len(data)
        answer = None
        while length - position >= 9:
            size = (data[position] << 16) | (data[position + 1] << 8) | data[position + 2]
            kind, flags = data[position + 3], data[position + 4]
            start = position + 9
            if size > FRAME_SIZE or (kind != SETTINGS and not self.is_ready):
                raise ConnectionFailed(NOT_HTTP2)
            if length - start < size:
                break
            stream = int.from_bytes(data[position + 5 : start], "big") & 0x7FFFFFFF
            position = start + size
            if kind == DATA:
                self._consumed += size
                if self.is_streaming:
                    answer = self._data(data[start:position], flags, stream) or answer
                elif self._is_checked and stream == self._stream:
                    self._body += unpadded(data[start:position], flags)
                if flags & END_STREAM and stream == self._stream:
                    answer = answer_of(self._fields)
            elif kind == HEADERS and flags & END_HEADERS and not flags & (PADDED | PRIORITY):
                answer = self._headers(stream, flags, data[start:position]) or answer
            else:
                answer = self._other_frame(kind, flags, stream, data[start:position]) or answer
        self._buffer = data[position:]
        if self._consumed >= RENEW_WINDOW:
            self._write(frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", self._consumed)))
            self._consumed = 0
        return answer

    def _headers(self, stream: int, flags: int, block: bytes) -> Answer | None:
        fields = self._known_blocks.get(block)
        if fields is None:
            fields = decode_block(block)
            if len(self._known_blocks) < MAX_KNOWN_BLOCKS:
                self._known_blocks[block] = fields
        if stream != self._stream:
            return None
        if not flags & END_STREAM:
            self._fields = fields
            return None
        answer = answer_of(fields if "grpc-status" in fields else {**self._fields, **fields})
        self._fields = {}
        if self._is_checked and answer is OK:
            answer = self._checked(self._body)
        if self._rest:  # answered before all was sent: the stream has to be closed from this side
            self._rest = b""
            self._write(frame(RST_STREAM, 0, stream, struct.pack(">I", 0)))
        return answer

    def _data(self, payload: bytes, flags: int, stream: int) -> Answer | None:
        """What a DATA frame means where the call lasts."""
        raise NotImplementedError

    def _checked(self, prefixed: bytes) -> Answer:
        assert self._check is not None
        wrong = self._check.of_grpc(prefixed[5:])
        return OK if wrong is None else (Status.FAILED, wrong)

    def _other_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> Answer | None:
        if kind in (HEADERS, CONTINUATION):
            return self._header_part(kind, flags, stream, payload)
        if kind == SETTINGS and not flags & ACK:
            self._settings(payload)
            self._write(frame(SETTINGS, ACK, 0, b""))
            self.is_ready = True
        elif kind == PING and not flags & ACK:
            self._write(frame(PING, ACK, 0, payload))
        elif kind == WINDOW_UPDATE:
            self._window(stream, int.from_bytes(payload, "big") & 0x7FFFFFFF)
        elif kind == GOAWAY:
            self.must_reopen = True
            last = int.from_bytes(payload[:4], "big") & 0x7FFFFFFF
            if last < self._stream:
                raise ConnectionFailed(f"the server is going away{_reason(payload)}")
        elif kind == RST_STREAM and stream == self._stream:
            raise ConnectionFailed(f"the server reset the stream (HTTP/2 error {int.from_bytes(payload, 'big')})")
        return None

    def _header_part(self, kind: int, flags: int, stream: int, payload: bytes) -> Answer | None:
        if kind == HEADERS:
            if flags & PADDED:
                payload = payload[1 : len(payload) - payload[0]]
            if flags & PRIORITY:
                payload = payload[5:]
            self._block = (payload, flags & END_STREAM)
        elif self._block is not None:
            self._block = (self._block[0] + payload, self._block[1])
        if not flags & END_HEADERS or self._block is None:
            return None
        block, ends = self._block
        self._block = None
        return self._headers(stream, ends, block)

    def _settings(self, payload: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", payload[: len(payload) // 6 * 6]):
            if name == INITIAL_WINDOW_SIZE:
                self._stream_window += value - self._first_window
                self._first_window = value
        self._send_rest()

    def _window(self, stream: int, increment: int) -> None:
        if stream == 0:
            self._peer_window += increment
        elif stream == self._stream:
            self._stream_window += increment
        self._send_rest()


def _reason(payload: bytes) -> str:
    text = payload[8:].decode("utf-8", "replace")
    return f" ({text})" if text else ""
