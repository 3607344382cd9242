"""A log, wherever it is from: a file, a pipe, a pasted text, the end of a running server's own log.

Belongs here: reading it in pieces, following a file that grows, the findings of what was read. Never: what matches
(matcher).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from tritune.doctor import matcher
from tritune.doctor.diagnosis import Area, Diagnosis, Report
from tritune.doctor.matcher import LogReader
from tritune.errors import InputError
from tritune.model_rules import Finding

PIECE = 1 << 20
POLL_S = 0.3
TAIL_LINES = 4000
"""How much of a log that can only be asked for its end is read."""


def diagnose(pieces: Iterable[bytes], source: str) -> Report:
    """What a whole log says."""
    reader = matcher.read(pieces)
    return report(reader, source)


def text(pasted: str, source: str = "the pasted log") -> Report:
    """What a pasted log says."""
    return diagnose([pasted.encode("utf-8", "replace")], source)


def report(reader: LogReader, source: str) -> Report:
    """The findings of what a reader has seen so far; errors that no entry knows are findings too, with their lines."""
    found = []
    for hit in reader.told():
        model = hit.groups.get("model", "")
        finding = hit.entry.finding(hit.text, hit.groups)
        found.append(Diagnosis(finding, Area.LOG, model, source, hit.line, hit.count))
    for line in sorted(reader.unknown.values(), key=lambda unknown: unknown.line):
        found.append(Diagnosis(_unknown(line.text), Area.LOG, "", source, line.line, line.count))
    if reader.more_unknown:
        more = f"{reader.more_unknown:,} further lines that look like errors"
        found.append(Diagnosis(_unknown(more), Area.LOG, "", source))
    return Report(tuple(found)).sorted()


def _unknown(seen: str) -> Finding:
    return Finding(
        "unknown_error",
        "error",
        seen,
        "This looks like an error, and the catalogue does not know it; so nothing is claimed about its cause.",
        "Read the lines around it. Where you find the cause, an entry in tritune/doctor/catalogue.toml makes it known.",
    )


def file(path: Path) -> Iterator[bytes]:
    """A log file in pieces. Raises InputError where it cannot be read."""
    with _open(path) as log:
        while True:
            try:
                piece = log.read(PIECE)
            except OSError as error:
                raise _unreadable(path, error) from error
            if not piece:
                return
            yield piece


def follow(path: Path, *, goes_on: Callable[[], bool], sleep: Callable[[float], None] = time.sleep) -> Iterator[bytes]:
    """What a file holds and what is appended, as long as `goes_on` says so; b"" while nothing comes.

    A file that is replaced or cut short (a new start, a rotation) is read from its new beginning; one that is not
    there yet is waited for. Raises InputError where it cannot be read.
    """
    while goes_on():
        if not path.exists():
            yield b""
            sleep(POLL_S)
            continue
        with _open(path) as log:
            identity = path.stat().st_ino
            while goes_on():
                piece = log.read(PIECE)
                yield piece
                if piece:
                    continue
                try:
                    now = path.stat()
                except FileNotFoundError:
                    break
                if now.st_ino != identity or now.st_size < log.tell():
                    break
                sleep(POLL_S)


def follow_text(
    tail: Callable[[], str], *, goes_on: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> Iterator[bytes]:
    """What is new at the end of a log that can only be asked for its last lines; b"" while nothing comes."""
    seen: list[str] = []
    while goes_on():
        lines = tail().splitlines()
        fresh = lines[_overlap(seen, lines) :]
        seen = lines
        yield "".join(f"{line}\n" for line in fresh).encode("utf-8", "replace")
        if not fresh:
            sleep(POLL_S)


def _overlap(before: list[str], now: list[str]) -> int:
    """How many of the first lines of `now` are the last ones of `before`."""
    for start in range(len(before)):
        if before[start : start + len(now)] == now[: len(before) - start]:
            return min(len(before) - start, len(now))
    return 0


def _open(path: Path) -> BinaryIO:
    try:
        if path.is_dir():
            raise InputError(f"--log {path} is a folder. Name the log file in it.")
        return path.open("rb")
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:  # a NUL in the name
        raise InputError(f"--log {str(path)!r} is no path. Name a log file, or - for standard input.") from error


def _unreadable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"--log {path} cannot be read ({error.strerror}). Name a log file that exists, or - for standard input."
    )
