"""A server with a known latency law and known bad manners, run as a script by tests and benchmarks.

    python tests/fake_server.py --law fixed:5 [--manners ok] [--log FILE]

prints its port, answers every POST with a canned KServe v2 response after the law's delay, and ends at end of file on
stdin. Laws (milliseconds): none, fixed:D, bimodal:D1:D2:SHARE_OF_D2, lognormal:MEDIAN:SIGMA, stall:D:EVERY:FOR
(answers after D, but a request that arrives in the last FOR of every EVERY waits for its end). With --log, each
request's arrival and delay (ns, CLOCK_MONOTONIC) go to FILE as int64 pairs at the end: the truth that a generator is
held against.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import ssl
import struct
import sys
import time
from array import array
from collections.abc import Callable

JSON_HEAD = (
    b'{"model_name":"fake","model_version":"1","outputs":[{"name":"OUTPUT__0","datatype":"FP32","shape":[1,10],'
    b'"parameters":{"binary_data_size":40}}]}'
)
BODY = JSON_HEAD + b"\0" * 40
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\n"
ANSWER = (
    HEAD + b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(JSON_HEAD), len(BODY)) + BODY
)
ERROR = b'{"error":"inference request batch-size must be <= 4 for \'fake\'"}'
REJECTED = b'{"error":"Exceeds maximum queue size"}'


def _json(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body)) + body


def _chunked(body: bytes) -> bytes:
    middle = len(body) // 2
    parts = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:middle], body[middle:]))
    return HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"


WHOLE = {
    "ok": ANSWER,
    "chunked": _chunked(BODY),
    "continue": b"HTTP/1.1 100 Continue\r\n\r\n" + ANSWER,
    "bad_request": _json(b"400 Bad Request", ERROR),
    "unavailable": _json(b"503 Service Unavailable", REJECTED),
    "not_json": b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 9\r\n\r\nno server",
    "garbage": b"SSH-2.0-OpenSSH_9.2\r\n",
    "too_long": ANSWER + b"more",
    "no_length": HEAD + b"\r\n" + BODY,
    "close_header": ANSWER.replace(b"Content-Type", b"Connection: close\r\nContent-Type", 1),
}


def law(text: str, seed: int) -> Callable[[float], float]:
    """The delay in seconds of a request that arrives at a time (seconds since the start)."""
    kind, *numbers = text.split(":")
    values = [float(number) for number in numbers]
    chance = random.Random(seed)
    if kind == "none":
        return lambda _: 0.0
    if kind == "fixed":
        return lambda _: values[0] / 1e3
    if kind == "bimodal":
        return lambda _: values[chance.random() < values[2]] / 1e3
    if kind == "lognormal":
        return lambda _: values[0] / 1e3 * chance.lognormvariate(0.0, values[1])
    if kind == "stall":
        delay, every, length = (value / 1e3 for value in values)

        def stalled(since: float) -> float:
            left = every - since % every
            return left + delay if left <= length else delay

        return stalled
    raise SystemExit(f"unknown law {text}")


class Server(asyncio.Protocol):
    """One connection; requests are answered one after the other."""

    def __init__(self, options: argparse.Namespace, delay: Callable[[float], float], log: array[int] | None) -> None:
        self._options, self._delay, self._log = options, delay, log
        self._data = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._data += data
        while True:
            end = self._data.find(b"\r\n\r\n")
            if end < 0:
                return
            length = 0
            for line in self._data[:end].split(b"\r\n")[1:]:
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
            if len(self._data) < end + 4 + length:
                return
            self._data = self._data[end + 4 + length :]
            self._arrived()

    def _arrived(self) -> None:
        now = time.monotonic_ns()
        loop = asyncio.get_running_loop()
        delay = self._delay((now - self._options.started_ns) / 1e9)
        if self._log is not None:
            self._log.extend((now, int(delay * 1e9)))
        if delay > 0:
            loop.call_at(now / 1e9 + delay, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        transport = self._transport
        manners = self._options.manners
        if transport is None or transport.is_closing() or manners == "silent":
            return
        if manners in WHOLE:
            transport.write(WHOLE[manners])
            if manners in ("no_length", "close_header"):
                transport.close()
        elif manners == "close":
            transport.close()
        elif manners == "close_midway":
            transport.write(ANSWER[: len(ANSWER) // 2])
            transport.close()
        elif manners == "byte_by_byte":
            self._dribble(0)
        elif manners == "large":
            body = b"x" * 3_000_000
            transport.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    def _dribble(self, position: int) -> None:
        assert self._transport is not None
        if position < len(ANSWER) and not self._transport.is_closing():
            self._transport.write(ANSWER[position : position + 1])
            asyncio.get_running_loop().call_later(0.0002, self._dribble, position + 1)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--law", default="none")
    parser.add_argument("--manners", default="ok")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log")
    parser.add_argument("--tls", nargs=2, metavar=("CERTIFICATE", "KEY"))
    options = parser.parse_args()
    options.started_ns = time.monotonic_ns()
    log: array[int] | None = array("q") if options.log else None
    loop = asyncio.get_running_loop()
    delay = law(options.law, options.seed)
    context = None
    if options.tls:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*options.tls)
    server = await loop.create_server(lambda: Server(options, delay, log), "127.0.0.1", options.port, ssl=context)
    sys.stdout.write(f"{server.sockets[0].getsockname()[1]}\n")
    sys.stdout.flush()
    await loop.run_in_executor(None, sys.stdin.read)
    if options.log and log is not None:
        with contextlib.closing(open(options.log, "wb")) as file:  # noqa: PTH123
            file.write(struct.pack(f"={len(log)}q", *log))


if __name__ == "__main__":
    asyncio.run(main())
