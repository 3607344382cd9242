"""One non-blocking connection to a server: opening, TLS, bytes out, bytes in. The protocols build on it.

Belongs here: sockets and TLS. Never: HTTP or gRPC, clocks, schedules, Locust.

Nothing here blocks or switches greenlets: the engine's own epoll says when a socket can be read or written. That
is why the sockets are the original ones, not gevent's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gevent.monkey import get_original

from loadgen.samples import Status
from tritune.errors import InputError, ServerDownError

_socket_class, _getaddrinfo, _STREAM, _TCP, _NODELAY, _SOL, _ERROR = get_original(
    "socket", ["socket", "getaddrinfo", "SOCK_STREAM", "IPPROTO_TCP", "TCP_NODELAY", "SOL_SOCKET", "SO_ERROR"]
)
_TIMESTAMPS = 35  # SO_TIMESTAMPNS and SCM_TIMESTAMPNS, which the socket module does not name
READ_SIZE = 65536
NOTE_SIZE = 64  # of the kernel's note with a timestamp, and more
Note = tuple[int, int, bytes]
CLOSED_BEFORE = "the server closed the connection before it had answered"

Answer = tuple[Status, str | None]
OK: Answer = (Status.OK, None)


class ConnectionFailed(Exception):
    """The connection is of no further use; the message says why, in a few words."""


@dataclass(frozen=True, slots=True)
class Address:
    """A resolved address: what the socket calls want."""

    name: str
    family: int
    sockaddr: tuple[Any, ...]


def resolve(name: str) -> Address:
    """Resolve host:port once, before the load begins. Raises InputError (no port), ServerDownError (no host)."""
    host, _, port = name.rpartition(":")
    if not host or not port.isdigit():
        raise InputError(f"The address {name!r} must be host:port, such as 127.0.0.1:8000.")
    try:
        family, _, _, _, sockaddr = _getaddrinfo(host.strip("[]"), int(port), 0, _STREAM)[0]
    except OSError as error:
        raise ServerDownError(f"The host {host} could not be found ({error.strerror}). Check the address.") from error
    return Address(name, family, sockaddr)


def tls_context(tls: Mapping[str, Any] | None, protocol: str) -> ssl.SSLContext | None:
    """The TLS settings of Endpoints.tls with `protocol` ("http/1.1" or "h2") asked for. Raises InputError."""
    if tls is None:
        return None
    try:
        context = ssl.create_default_context(cafile=tls.get("ca"))
        if tls.get("cert"):
            context.load_cert_chain(tls["cert"], tls.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"The TLS files {tls.get('ca')}, {tls.get('cert')} could not be read ({error}). Check the paths."
        ) from error
    if tls.get("verify") is False:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols([protocol])
    return context


class TlsSocket:
    """A non-blocking TLS client over a connected socket, with the socket's own method names."""

    def __init__(self, plain: Any, context: ssl.SSLContext, host: str) -> None:
        self._plain = plain
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._unsent = b""
        self._notes: list[Note] = []
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)

    @property
    def wants_write(self) -> bool:
        return bool(self._unsent)

    def handshake(self) -> bool:
        """One step; True when it is done. Raises OSError (ssl.SSLError is one)."""
        self._feed()
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.flush()
        return not self._unsent

    def send(self, data: bytes | memoryview) -> int:
        """Take all of `data`; what the kernel does not take at once goes out by `flush`."""
        self._tls.write(data)
        self.flush()
        return len(data)

    def flush(self) -> None:
        data = self._unsent + self._outgoing.read()
        self._unsent = b""
        if data:
            try:
                sent = self._plain.send(data)
            except BlockingIOError:
                sent = 0
            self._unsent = data[sent:]

    def recvmsg(self, _size: int, _note_size: int) -> tuple[bytes, list[Note], int, None]:
        """All that can be decrypted now; b"" at the end. Raises BlockingIOError where there is nothing yet."""
        ended = self._feed()
        parts = []
        try:
            while part := self._tls.read(READ_SIZE):
                parts.append(part)
        except ssl.SSLWantReadError:
            if not parts and not ended:
                raise BlockingIOError from None
        except ssl.SSLZeroReturnError:
            pass
        self.flush()
        return b"".join(parts), self._notes, 0, None

    def _feed(self) -> bool:
        try:
            while True:
                data, notes, _, _ = self._plain.recvmsg(READ_SIZE, NOTE_SIZE)
                self._notes = notes or self._notes
                if not data:
                    self._incoming.write_eof()
                    return True
                self._incoming.write(data)
        except BlockingIOError:
            return False

    def close(self) -> None:
        self._plain.close()


class Connection:
    """One connection that carries one request at a time.

    The engine calls `open`, then `step` at every event until it returns True; then `send` and, at every event,
    `receive` until it gives an answer. Every method may raise ConnectionFailed; the engine then calls `close`.
    `is_blocked`: bytes wait for the socket to take them (`flush`). `must_reopen`: the server asked that no further
    request is sent here. `stamp` is when the kernel had the bytes that were read last (a struct timespec of the wall
    clock), None where it does not say. The slots from `fd` on, is_blocked, is_ready, must_reopen and stamp apart, are
    the engine's notes.
    """

    __slots__ = (
        "_address",
        "_context",
        "_out",
        "_plain",
        "_sock",
        "fd",
        "intended_ns",
        "is_blocked",
        "is_busy",
        "is_ready",
        "is_retired",
        "must_reopen",
        "opened_ns",
        "sent_ns",
        "stamp",
    )

    def __init__(self, address: Address, context: ssl.SSLContext | None) -> None:
        self._address = address
        self._context = context
        self._sock: Any = None
        self._plain: Any = None
        self._out: memoryview | None = None
        self.fd = -1
        self.is_blocked = self.is_ready = self.must_reopen = False
        self.is_busy = self.is_retired = False
        self.intended_ns = self.sent_ns = self.opened_ns = 0
        self.stamp: bytes | None = None

    def open(self) -> None:
        """Begin to connect; the engine waits until the socket can be written."""
        self.is_ready = self.is_blocked = self.must_reopen = False
        self._out = None
        try:
            self._plain = self._sock = _socket_class(self._address.family, _STREAM)
            self._plain.setblocking(False)
            self._plain.setsockopt(_TCP, _NODELAY, 1)
            with contextlib.suppress(OSError):  # a sandbox that has none: `stamp` stays None
                self._plain.setsockopt(_SOL, _TIMESTAMPS, 1)
            self.fd = self._plain.fileno()
            code = self._plain.connect_ex(self._address.sockaddr)
        except OSError as error:
            raise ConnectionFailed(f"no connection could be opened ({error.strerror or error})") from error
        if code not in (0, errno.EINPROGRESS):
            raise ConnectionFailed(f"could not connect to {self._address.name} ({os.strerror(code)})")

    def step(self) -> bool:
        """Go on with opening at an event; True when a request can be sent."""
        if self._sock is self._plain:
            code = self._plain.getsockopt(_SOL, _ERROR)
            if code:
                raise ConnectionFailed(f"could not connect to {self._address.name} ({os.strerror(code)})")
        if self._context is not None:
            try:
                if self._sock is self._plain:
                    host = self._address.name.rpartition(":")[0].strip("[]")
                    self._sock = TlsSocket(self._plain, self._context, host)
                done = self._sock.handshake()
                self.is_blocked = self._sock.wants_write
                if not done:
                    return False
            except OSError as error:
                raise ConnectionFailed(f"the TLS handshake failed ({_words(error)})") from error
        return self._greet()

    def _greet(self) -> bool:
        """What a protocol does first on a new connection; True when a request can be sent."""
        self.is_ready = True
        return True

    def flush(self) -> None:
        """Write on at a write event."""
        out, self._out = self._out, None
        self.is_blocked = False
        if out is not None:
            self._write(out)
        elif self._context is not None:
            try:
                self._sock.flush()
            except OSError as error:
                raise ConnectionFailed(f"the connection broke ({_words(error)})") from error
            self.is_blocked = self._sock.wants_write

    def _write(self, data: bytes | bytearray | memoryview) -> None:
        """Write what the socket takes now, and keep a copy of the rest for `flush`."""
        if self._out is not None:
            self._out = memoryview(bytes(self._out) + bytes(data))
            return
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            raise ConnectionFailed(f"the connection broke ({_words(error)})") from error
        if sent < len(data):
            self._out = memoryview(bytes(memoryview(data)[sent:]))
            self.is_blocked = True
        elif self._context is not None:
            self.is_blocked = self._sock.wants_write

    def _read(self) -> bytes | None:
        """What has arrived; None where there is nothing, b"" where the server closed."""
        try:
            data, notes, _, _ = self._sock.recvmsg(READ_SIZE, NOTE_SIZE)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionFailed(f"the connection broke ({_words(error)})") from error
        self.stamp = notes[0][2] if notes else None
        return data  # type: ignore[no-any-return]

    def send(self, index: int) -> None:
        """Send request number `index` of the pool."""
        raise NotImplementedError

    def receive(self) -> Answer | None:
        """Read on; the answer when it is whole."""
        raise NotImplementedError

    def idle_event(self) -> None:
        """Something arrived although no request is in flight. The default: only a close can be meant."""
        data = self._read()
        if data is not None:
            raise ConnectionFailed("the server closed an idle connection" if not data else "unasked-for data")

    def close(self) -> None:
        self.is_ready = self.is_blocked = self.is_busy = False
        self._out = None
        if self._plain is not None:
            self._plain.close()
            self._plain = self._sock = None


def _words(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return str(error.reason or error)
    return os.strerror(error.errno) if error.errno else str(error)
