"""A KServe server with a known latency law that logs what it really did: what load generators are held against.

    python -m benchmarks.law_server --law lognormal:5:0.5 --log FILE [--core 1] [--seed 0]

prints its port, answers every POST after the law's delay (laws.py) and ends at end of file on stdin; then FILE holds
what laws.ServerLog reads. A delay begins when the *kernel* had the request (SO_TIMESTAMPNS), so a server that is late
to look is late in its own log. With --core it has that core for itself and never sleeps: a request is seen within
microseconds and an answer leaves on time. GET /count tells how many POSTs have come; the other GETs are what
perf_analyzer and tritonclient ask a Triton for.
"""

from __future__ import annotations

import argparse
import gc
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from array import array
from pathlib import Path
from typing import Any

from benchmarks.laws import Law

MODEL = "bench"
TIMESTAMPS = 35  # SO_TIMESTAMPNS and SCM_TIMESTAMPNS, which the socket module does not name
INPUT, OUTPUT, SIZE = "INPUT__0", "OUTPUT__0", 16
_TENSORS = (
    {"name": INPUT, "datatype": "FP32", "shape": [-1, SIZE]},
    {"name": OUTPUT, "datatype": "FP32", "shape": [-1, 10]},
)
CONFIG = {
    "name": MODEL,
    "platform": "onnxruntime_onnx",
    "backend": "onnxruntime",
    "max_batch_size": 8,
    "version_policy": {"latest": {"num_versions": 1}},
    "input": [{"name": INPUT, "data_type": "TYPE_FP32", "dims": [SIZE]}],
    "output": [{"name": OUTPUT, "data_type": "TYPE_FP32", "dims": [10]}],
}
DOCUMENTS: dict[str, Any] = {
    "/v2": {"name": "triton", "version": "2.51.0", "extensions": ["model_configuration", "binary_tensor_data"]},
    "/v2/health/live": {},
    "/v2/health/ready": {},
    f"/v2/models/{MODEL}/ready": {},
    f"/v2/models/{MODEL}/config": CONFIG,
    f"/v2/models/{MODEL}": {
        "name": MODEL,
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [_TENSORS[0]],
        "outputs": [_TENSORS[1]],
    },
}
JSON_HEAD = json.dumps(
    {
        "model_name": MODEL,
        "model_version": "1",
        "outputs": [{**_TENSORS[1], "shape": [1, 10], "parameters": {"binary_data_size": 40}}],
    },
    separators=(",", ":"),
).encode()
ANSWER_BODY = JSON_HEAD + b"0" * 40  # printable, so that nginx's configuration can hold it too
ANSWER = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
    b"Content-Length: %d\r\n\r\n" % (len(JSON_HEAD), len(ANSWER_BODY))
) + ANSWER_BODY


def _kernel_time(notes: list[tuple[int, int, bytes]], earliest: int, latest: int) -> int:
    """When the kernel had the last bytes, on CLOCK_MONOTONIC; `latest` where it does not say."""
    for level, kind, data in notes:
        if (level, kind) == (socket.SOL_SOCKET, TIMESTAMPS):
            seconds, nanoseconds = struct.unpack("qq", data[:16])
            at = seconds * 1_000_000_000 + nanoseconds - (time.time_ns() - time.monotonic_ns())
            # its wall clock may be stepped, and nothing that came before the last look is new
            return int(min(max(at, earliest), latest))
    return latest


class LawServer:
    """All connections in one loop; requests on one connection are answered one after the other."""

    def __init__(self, law: Law, seed: int, *, is_spinning: bool) -> None:
        self._law, self._chance = law, random.Random(seed)
        self._is_spinning = is_spinning
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self._listener.setblocking(False)
        self.port = int(self._listener.getsockname()[1])
        self._epoll = select.epoll()
        self._epoll.register(self._listener.fileno(), select.EPOLLIN)
        self._epoll.register(0, select.EPOLLIN | select.EPOLLHUP)
        self._sockets: dict[int, socket.socket] = {}
        self._numbers: dict[int, int] = {}
        self._data: dict[int, bytes] = {}
        self._due: list[tuple[int, int, int]] = []  # when to answer, row, file descriptor
        self.log = array("q")
        self.started_ns = time.monotonic_ns()
        self.closed = array("q")  # by the number of the connection
        self.count = 0

    def run(self) -> None:
        """Serve until stdin ends."""
        due, clock, poll = self._due, time.monotonic_ns, self._epoll.poll
        seen = clock()
        while True:
            wait_s = 0.0
            if not self._is_spinning:
                wait_s = 0.05 if not due else max(0.0, (due[0][0] - clock()) / 1e9 - 0.0012)
            events = poll(wait_s)
            now = clock()
            while due and due[0][0] <= now:
                _, row, fd = heapq.heappop(due)
                self._answer(row, fd)
                now = clock()
            for fd, _ in events:
                if fd == 0:
                    if not os.read(0, 4096):
                        return
                elif fd == self._listener.fileno():
                    self._accept()
                else:
                    self._read(fd, now, seen)
            seen = now

    def _accept(self) -> None:
        try:
            made, _ = self._listener.accept()
        except BlockingIOError:
            return
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setsockopt(socket.SOL_SOCKET, TIMESTAMPS, 1)
        fd = made.fileno()
        self._sockets[fd], self._data[fd], self._numbers[fd] = made, b"", len(self.closed)
        self.closed.append(0)
        self._epoll.register(fd, select.EPOLLIN)

    def _read(self, fd: int, now: int, seen: int) -> None:
        try:
            data, notes, _, _ = self._sockets[fd].recvmsg(65536, 64)
        except BlockingIOError:
            return
        except OSError:
            data, notes = b"", []
        if not data:
            self._epoll.unregister(fd)
            self._sockets.pop(fd).close()
            self.closed[self._numbers[fd]] = now
            return
        self._data[fd] += data
        while (end := self._data[fd].find(b"\r\n\r\n")) >= 0:
            head, rest = self._data[fd][:end], self._data[fd][end + 4 :]
            position = head.lower().find(b"content-length:")
            while position > 0 and head[position - 1 : position] != b"\n":  # Inference-Header-Content-Length
                position = head.lower().find(b"content-length:", position + 1)
            length = int(head[position + 15 :].split(b"\r\n")[0]) if position >= 0 else 0
            if len(rest) < length:
                return
            self._data[fd] = rest[length:]
            if head.startswith(b"GET "):
                self._tell(fd, head.split(b" ")[1].decode())
            else:
                self._arrived(fd, _kernel_time(notes, seen, now), now)

    def _arrived(self, fd: int, arrived: int, now: int) -> None:
        delay_ns = self._law.delay_ns(arrived - self.started_ns, self._chance)
        row = len(self.log)
        self.log.extend((arrived, delay_ns, -1, self._numbers[fd], now - arrived))
        self.count += 1
        if delay_ns:
            heapq.heappush(self._due, (arrived + delay_ns, row, fd))
        else:
            self._answer(row, fd)

    def _answer(self, row: int, fd: int) -> None:
        made = self._sockets.get(fd)
        if made is not None and self._numbers[fd] == self.log[row + 3]:
            now = time.monotonic_ns()  # before: the client may have the answer, and this core, before send comes back
            try:
                made.send(ANSWER)
            except OSError:
                return  # its client is gone
            self.log[row + 2] = now

    def _tell(self, fd: int, path: str) -> None:
        found = {"count": self.count} if path == "/count" else DOCUMENTS.get(path.removesuffix("/versions/1"))
        status = b"404 Not Found" if found is None else b"200 OK"
        body = json.dumps({"error": f"there is no {path}"} if found is None else found).encode()
        head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
        self._sockets[fd].send(head + body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--law", default="none")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    server = LawServer(Law.parse(options.law), options.seed, is_spinning=options.core is not None)
    gc.disable()
    sys.stdout.write(f"{server.port}\n")
    sys.stdout.flush()
    server.run()
    if options.log is not None:
        head = array("q", [server.started_ns, len(server.closed)])
        options.log.write_bytes((head + server.closed + server.log).tobytes())


if __name__ == "__main__":
    main()
