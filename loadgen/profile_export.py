"""perf_analyzer's profile export, read while it is written.

Belongs here: its two timestamps per request. Never: starting perf_analyzer, windows.

The export repeats every request's inputs as text (about 5 to 20 bytes a number), so it is read through a pipe and
never stored: a minute of MNIST would be gigabytes.
"""

from __future__ import annotations

import re
from array import array

import numpy as np
from numpy.typing import NDArray

_TOKENS = re.compile(rb'"timestamp"\s*:\s*(\d+)\s*,|"response_timestamps"\s*:\s*\[([\d,\s]*)\]')
_TAIL = 4096  # longer than any token


class ProfileReader:
    """Collects (sent, answered) in nanoseconds of the wall clock from the pieces of an export."""

    def __init__(self) -> None:
        self._tail = b""
        self._sent: int | None = None
        self._times: array[int] = array("q")  # sent and answered in turn: 16 bytes a request

    def feed(self, piece: bytes) -> None:
        """Read the next piece."""
        data = self._tail + piece
        end = 0
        for token in _TOKENS.finditer(data):
            end = token.end()
            if token[1] is not None:
                self._sent = int(token[1])
            elif self._sent is not None:
                if token[2].strip():  # none where a request was in flight at the end
                    self._times.extend((self._sent, int(token[2].rpartition(b",")[2])))
                self._sent = None
        self._tail = data[max(end, len(data) - _TAIL) :]

    @property
    def count(self) -> int:
        """How many answered requests were read."""
        return len(self._times) // 2

    def times(self) -> NDArray[np.int64]:
        """One row (sent, answered) a request, by the time of sending; shape (n, 2)."""
        times = np.array(self._times, dtype=np.int64).reshape(-1, 2)
        return times[np.lexsort((times[:, 1], times[:, 0]))]
