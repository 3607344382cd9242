"""A kernel timer with nanoseconds that epoll can watch (timerfd): epoll's own timeout knows milliseconds only.

Belongs here: the one system call that CPython has from 3.13 on. Never: schedules.
"""

from __future__ import annotations

import ctypes
import os

CLOCK_MONOTONIC = 1
_NONBLOCK = os.O_NONBLOCK
_ABSOLUTE = 1


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("value_s", ctypes.c_long),
        ("value_ns", ctypes.c_long),
    )


class Timer:
    """Readable once CLOCK_MONOTONIC has reached the time last given to `set`. Watch it edge-triggered."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        self.fd = library.timerfd_create(CLOCK_MONOTONIC, _NONBLOCK)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed")
        self._settime = library.timerfd_settime
        self._spec = _Spec()
        self._pointer = ctypes.byref(self._spec)

    def set(self, when_ns: int) -> None:
        """Fire at `when_ns` of CLOCK_MONOTONIC, at once where that is past; replaces what was set before."""
        self._spec.value_s, self._spec.value_ns = divmod(max(1, when_ns), 1_000_000_000)
        self._settime(self.fd, _ABSOLUTE, self._pointer, None)

    def close(self) -> None:
        os.close(self.fd)
