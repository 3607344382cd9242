"""HTTP/1.1 on one connection: a request's bytes go out as they are, answers are parsed only as far as needed.

Belongs here: KServe v2 over HTTP. Never: clocks, schedules, Locust.

Servers repeat their response heads byte for byte, so a head is parsed once and then looked up.
"""

from __future__ import annotations

import contextlib
import json
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from loadgen.encoding import decompress
from loadgen.payload import HttpBody
from loadgen.responses import ResponseCheck
from loadgen.samples import Status
from loadgen.users.wire import CLOSED_BEFORE, OK, Address, Answer, Connection, ConnectionFailed
from tritune.load_plan import Compression

MAX_HEAD = 65536
MAX_KNOWN_HEADS = 1024
MAX_ERROR_BODY = 65536
NOT_HTTP = "the answer is not HTTP"
UNTIL_CLOSE = -1
CHUNKED = -2


def http_requests(
    bodies: Sequence[HttpBody],
    model: str,
    host: str,
    headers: Mapping[str, str],
    compression: Compression = Compression.NONE,
) -> list[bytes]:
    """The whole requests, head and body, one a body; `compression` is what the bodies have and the answers may have."""
    path = f"/v2/models/{quote(model)}/infer"
    if compression is not Compression.NONE:
        headers = {**headers, "Content-Encoding": str(compression), "Accept-Encoding": str(compression)}
    extra = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    requests = []
    for made in bodies:
        kind = "Content-Type: application/json\r\n"
        if made.json_length is not None:
            kind = f"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: {made.json_length}\r\n"
        head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\n{kind}Content-Length: {len(made.body)}\r\n{extra}\r\n"
        requests.append(head.encode("latin-1") + made.body)
    return requests


@dataclass(frozen=True, slots=True)
class Head:
    """What matters of a response's head. `length` is the body's, or UNTIL_CLOSE, or CHUNKED; `json_length` that of
    the JSON before binary tensors, None where there are none."""

    status: int
    reason: str
    length: int
    closes: bool
    json_length: int | None = None
    encoding: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


def parse_head(head: bytes) -> Head:
    """Parse a response's head (without the empty line). Raises ConnectionFailed where it is not HTTP."""
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ", 2)
    if len(parts) < 2 or not parts[0].startswith(b"HTTP/1.") or not parts[1].isdigit() or len(parts[1]) != 3:
        raise ConnectionFailed(NOT_HTTP)
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon:
            raise ConnectionFailed(NOT_HTTP)
        fields[name.strip().lower()] = value.strip()
    closes = fields.get(b"connection", b"").lower() == b"close"
    if parts[0] == b"HTTP/1.0":
        closes = fields.get(b"connection", b"").lower() != b"keep-alive"
    status = int(parts[1])
    if fields.get(b"transfer-encoding", b"").lower().endswith(b"chunked"):
        length = CHUNKED
    elif b"content-length" in fields:
        if not fields[b"content-length"].isdigit():
            raise ConnectionFailed("the answer's Content-Length is not a number")
        length = int(fields[b"content-length"])
    elif status in (204, 304) or status < 200:
        length = 0
    else:
        length, closes = UNTIL_CLOSE, True
    json_length = fields.get(b"inference-header-content-length", b"")
    return Head(
        status,
        parts[2].decode("latin-1") if len(parts) > 2 else "",
        length,
        closes,
        int(json_length) if json_length.isdigit() else None,
        fields.get(b"content-encoding", b"").decode("latin-1").lower(),
    )


def error_message(head: Head, body: bytes) -> str:
    """Triton's own words where there are some, otherwise what the server said."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        text = " ".join(body[:300].decode("utf-8", "replace").split())
        return f"HTTP {head.status} {head.reason}".rstrip() + (f": {text}" if text else "")


class HttpConnection(Connection):
    """One keep-alive connection. `requests` are the bytes to send; `known_heads` and `check` are shared by all
    connections of a process."""

    __slots__ = ("_buffer", "_check", "_head", "_is_checked", "_known_heads", "_missing", "_requests")

    def __init__(
        self,
        address: Address,
        context: ssl.SSLContext | None,
        requests: list[bytes],
        known_heads: dict[bytes, Head],
        check: ResponseCheck | None = None,
    ) -> None:
        super().__init__(address, context)
        self._requests = requests
        self._known_heads = known_heads
        self._check = check
        self._is_checked = False  # whether the answer at hand is to be decoded
        self._reset()

    def _reset(self) -> None:
        self._buffer = b""
        self._head: Head | None = None
        self._missing = 0  # of a body whose length is known and whose bytes nobody needs

    def open(self) -> None:
        self._reset()
        super().open()

    def send(self, index: int) -> None:
        if self._check is not None:
            self._is_checked = self._check.is_due()
        self._write(self._requests[index])

    def receive(self) -> Answer | None:
        data = self._read()
        if data is None:
            return None
        if not data:
            return self._ended()
        if self._missing:
            return self._skip(len(data))
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        head = self._head
        if head is None:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._wait_for_head(data)
                return None
            text = data[:end]
            head = self._known_heads.get(text)
            if head is None:
                head = parse_head(text)
                if head.status < 200:  # 1xx: the real answer follows
                    self._buffer = data[end + 4 :]
                    return self._again()
                if len(self._known_heads) < MAX_KNOWN_HEADS:
                    self._known_heads[text] = head
            missing = head.length - (len(data) - end - 4)
            if missing == 0 and head.status == 200 and not self._is_checked:  # what nearly every answer is
                self.must_reopen = head.closes
                return OK
            if head.is_success and missing > 0 and head.length > 0 and not self._is_checked:
                self._head, self._missing = head, missing
                return None
            self._head = head
            data = data[end + 4 :]
        return self._body(head, data)

    def _again(self) -> Answer | None:
        """Go on with what is in the buffer already."""
        data, self._buffer = self._buffer, b""
        end = data.find(b"\r\n\r\n")
        if end < 0:
            if data:
                self._wait_for_head(data)
            return None
        head = parse_head(data[:end])
        if head.status < 200:
            self._buffer = data[end + 4 :]
            return self._again()
        self._head = head
        return self._body(head, data[end + 4 :])

    def _wait_for_head(self, data: bytes) -> None:
        start = b"HTTP/1."
        if data[: len(start)] != start[: len(data)]:
            raise ConnectionFailed(NOT_HTTP)
        if len(data) > MAX_HEAD:
            raise ConnectionFailed(f"the answer's head is longer than {MAX_HEAD} bytes")
        self._buffer = data

    def _skip(self, count: int) -> Answer | None:
        self._missing -= count
        if self._missing > 0:
            return None
        head = self._head
        assert head is not None
        if self._missing < 0:
            raise ConnectionFailed("the answer is longer than its Content-Length")
        return self._finish(head, b"")

    def _body(self, head: Head, data: bytes) -> Answer | None:
        if head.length == CHUNKED:
            whole = dechunk(data)
            if whole is None:
                self._buffer = data
                return None
            return self._finish(head, whole)
        if head.length == UNTIL_CLOSE or len(data) < head.length:
            self._buffer = data
            return None
        if len(data) > head.length:
            raise ConnectionFailed("the answer is longer than its Content-Length")
        return self._finish(head, data)

    def _ended(self) -> Answer:
        head = self._head
        if head is not None and head.length == UNTIL_CLOSE:
            return self._finish(head, self._buffer)
        if head is not None or self._buffer:
            raise ConnectionFailed("the server closed the connection in the middle of its answer")
        raise ConnectionFailed(CLOSED_BEFORE)

    def _finish(self, head: Head, body: bytes) -> Answer:
        self._reset()
        self.must_reopen = head.closes
        if head.is_success:
            if self._is_checked and self._check is not None:
                wrong = self._check.of_http(body, head.json_length, head.encoding)
                return OK if wrong is None else (Status.FAILED, wrong)
            return OK
        if head.encoding:
            with contextlib.suppress(ValueError):
                body = decompress(body, head.encoding)
        status = Status.REJECTED if head.status == 503 else Status.FAILED
        return status, error_message(head, body[:MAX_ERROR_BODY])


def dechunk(data: bytes) -> bytes | None:
    """The whole body of a chunked answer, None while it is not all there. Raises ConnectionFailed."""
    parts: list[bytes] = []
    position = 0
    while True:
        end = data.find(b"\r\n", position)
        if end < 0:
            return None
        try:
            size = int(data[position:end].split(b";")[0], 16)
        except ValueError:
            raise ConnectionFailed(NOT_HTTP) from None
        position = end + 2
        if size == 0:
            closing = data.find(b"\r\n", position)
            while closing > position:  # trailers
                position = closing + 2
                closing = data.find(b"\r\n", position)
            return b"".join(parts) if closing == position else None
        if len(data) < position + size + 2:
            return None
        parts.append(data[position : position + size])
        position += size + 2
