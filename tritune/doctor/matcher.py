"""Lines of a log against the catalogue: fed piece by piece, in linear time, whatever the bytes are.

Belongs here: finding lines, the entry of each, and errors that no entry knows. Never: where a log comes from (logs),
what a line means (catalogue.toml).

How it stays quick: a piece is searched for every entry's literal words at the speed of `bytes.find`; only a line that
holds one is decoded and matched. Colours are taken out first; prefixes (times, `service-1  | `, Docker's JSON) do not
matter, because patterns are searched and not anchored.
"""

from __future__ import annotations

import codecs
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tritune.doctor.catalogue import Entry, load

MAX_LINE = 1 << 20
"""A longer line (binary junk) is looked at in pieces of this size."""
BEFORE, AFTER = 1024, 4096
"""How much of a long line around the words is decoded and matched."""
MAX_SPAN = 4
"""The most lines that one message may span."""
SHOWN = 500
"""Characters of a line that are shown."""
MAX_DISTINCT = 20
"""Lines of one entry that are told apart (by the pattern's groups); the others are counted with the last."""
MAX_UNKNOWN = 20

_COLOURS = re.compile(rb"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[@-Z\\^_])")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ufffd]+")
_PREFIX = re.compile(r"^\s*(?:[\w.-]{1,80}\s*\|\s|\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:?\d\d)\s)?\s*")
_TROUBLE = (b"rror", b"ERROR", b"atal", b"FATAL", b"ailed", b"FAILED", b"raceback", b"xception", b"egmentation fault",
            b"terminate called", b"denied", b"annot ", b"nable to ", b"UNAVAILABLE: ", b"anic: ")  # fmt: skip
_GLOG_TROUBLE = re.compile(rb"[EF]\d{4} \d\d:\d\d")
_GLOG = re.compile(r"(?:^|[\s|\"])([DIWEF])\d{4} \d\d:\d\d")
_TROUBLE_WORDS = re.compile(
    r"(?i)\b(?:\w*error|fatal|failed|traceback|\w*exception|cannot|unable to|denied|segmentation fault|panic|"
    r"terminate called)\b"
)
_NO_TROUBLE = re.compile(
    r"(?i)\b(?:no|0|without) (?:\w+ )?(?:errors?|failures?|exceptions?)\b|\b(?:errors?|failed)[\"']?\s*[:=]\s*"
    r"(?:0|none|null|false)\b|(?:^|[\s\[(\"=])(?:INFO|DEBUG|TRACE|NOTICE)\b"
)
_VARIES = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(slots=True)
class Hit:
    """An entry and the first line where it was seen; `count` lines in all say the same."""

    entry: Entry
    text: str
    line: int
    groups: dict[str, str]
    count: int = 1


@dataclass(slots=True)
class Unknown:
    """A line that looks like an error and that no entry knows; `count` lines in all are like it."""

    text: str
    line: int
    count: int = 1


@dataclass(slots=True)
class LogReader:
    """Feed it a log in pieces of any size; `hits`, `unknown`, `lines` and `size` are what was seen so far.

    The last lines are held back until more comes, since a message may go on: `finish` ends that.
    """

    entries: Sequence[Entry] = field(default_factory=load)
    hits: dict[tuple[str, tuple[str, ...]], Hit] = field(default_factory=dict)
    unknown: dict[str, Unknown] = field(default_factory=dict)
    more_unknown: int = 0
    lines: int = 0
    size: int = 0
    _words: list[tuple[bytes, Entry]] = field(init=False, repr=False)
    _of_entry: dict[str, list[Hit]] = field(init=False, repr=False, default_factory=dict)
    _rest: bytes = field(init=False, repr=False, default=b"")
    _decoder: codecs.IncrementalDecoder | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        self._words = [(word.encode(), entry) for entry in self.entries for word in entry.words]

    def feed(self, data: bytes) -> None:
        """Look through the next piece."""
        data = self._as_utf8(data)
        self.size += len(data)
        start = 0
        while start < len(data):  # in pieces, so that a log that comes at once needs no more than one that is streamed
            self._take(data[start : start + MAX_LINE])
            start += MAX_LINE

    def finish(self) -> None:
        """Look through what was held back."""
        if self._decoder is not None:
            self._rest += self._decoder.decode(b"", True).encode()
        if self._rest:
            self._look(self._rest, len(self._rest), is_end=True)
        self._rest = b""

    def settle(self) -> None:
        """Look through the whole lines that are held back, because nothing has come for a while."""
        cut = self._rest.rfind(b"\n") + 1
        if cut:
            self._look(self._rest, cut)
            self._rest = self._rest[cut:]

    def _as_utf8(self, data: bytes) -> bytes:
        """Windows' shells write UTF-16 where output goes into a file."""
        if not self.size and data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            self._decoder = codecs.getincrementaldecoder("utf-16")("replace")
        return self._decoder.decode(data).encode() if self._decoder is not None else data

    def _take(self, data: bytes) -> None:
        data = self._rest + data
        cut = len(data)
        for _ in range(MAX_SPAN):
            cut = data.rfind(b"\n", 0, cut)
            if cut < 0:
                break
        if cut < 0 and len(data) <= MAX_LINE:
            self._rest = data
            return
        if cut < 0:  # hardly a newline in a whole piece: no text, and nothing worth waiting for
            self._look(data, len(data), is_end=True)
            self._rest = b""
            return
        self._look(data, cut + 1)
        self._rest = data[cut + 1 :]

    def _look(self, data: bytes, end: int, *, is_end: bool = False) -> None:
        """Look through the lines of `data` that begin before `end`; those after it only end messages."""
        clean = data
        if b"\x1b" in data:
            clean = _COLOURS.sub(b"", data[:end])
            end, clean = len(clean), clean + _COLOURS.sub(b"", data[end:])
        found: dict[int, tuple[Entry, re.Match[str], int]] = {}
        for word, entry in self._words:
            for start, stop, position in _lines_with(clean, word, end):
                best = found.get(start)
                if best is not None and best[0].rank >= entry.rank:
                    continue
                text = _text(clean, start, stop, position)
                for _ in range(entry.lines - 1):
                    if stop >= len(clean):
                        break
                    start_next, stop = stop + 1, _line_end(clean, stop + 1)
                    text += " " + _PREFIX.sub("", _text(clean, start_next, stop, start_next))
                if match := entry.pattern.search(text):
                    found[start] = (entry, match, stop)
        newlines = [match.start() for match in re.finditer(b"\n", clean[:end])] if found else []
        covered = []
        for start in sorted(found):
            entry, match, stop = found[start]
            covered.append((start, stop))
            number = self.lines + bisect_right(newlines, start - 1) + 1
            self._hit(entry, match, number)
        self._look_for_unknown(clean, end, covered)
        self.lines += clean.count(b"\n", 0, end) + (is_end and not clean.endswith(b"\n", 0, end))

    def _hit(self, entry: Entry, match: re.Match[str], line: int) -> None:
        groups = {name: value for name, value in match.groupdict().items() if value is not None}
        key = (entry.code, tuple(groups.values()))
        known = self.hits.get(key)
        if known is None:
            same = self._of_entry.setdefault(entry.code, [])
            if len(same) < MAX_DISTINCT:
                same.append(Hit(entry, shown(match.string, match.start()), line, groups))
                self.hits[key] = same[-1]
                return
            known = same[-1]
        known.count += 1

    def _look_for_unknown(self, clean: bytes, end: int, covered: Sequence[tuple[int, int]]) -> None:
        starts = [start for start, _ in covered]
        lines: dict[int, tuple[int, int]] = {}
        for word in _TROUBLE:
            for start, stop, position in _lines_with(clean, word, end):
                lines.setdefault(start, (stop, position))
        for match in _GLOG_TROUBLE.finditer(clean, 0, end):
            start = clean.rfind(b"\n", 0, match.start()) + 1
            lines.setdefault(start, (_line_end(clean, match.end()), match.start()))
        for start in sorted(lines):
            stop, position = lines[start]
            index = bisect_right(starts, start) - 1
            if index >= 0 and start < covered[index][1]:
                continue
            text = _text(clean, start, stop, position)
            if not is_trouble(text):
                continue
            key = _VARIES.sub("#", _PREFIX.sub("", text))[:200]
            if (known := self.unknown.get(key)) is not None:
                known.count += 1
            elif len(self.unknown) < MAX_UNKNOWN:
                number = self.lines + clean.count(b"\n", 0, start) + 1
                self.unknown[key] = Unknown(shown(text, 0), number)
            else:
                self.more_unknown += 1

    def told(self) -> list[Hit]:
        """The hits that say the most, in the order of the log: without what others explain and what says nothing."""
        hits = sorted(self.hits.values(), key=lambda hit: hit.line)
        explained = {code for hit in hits for code in hit.entry.explains}
        hits = [hit for hit in hits if hit.entry.code not in explained]
        named = any(hit.entry.severity == "error" and not hit.entry.vague for hit in hits)
        return [hit for hit in hits if not (hit.entry.vague and named)]


def read(pieces: Iterable[bytes], entries: Sequence[Entry] | None = None) -> LogReader:
    """A whole log."""
    reader = LogReader() if entries is None else LogReader(entries)
    for piece in pieces:
        reader.feed(piece)
    reader.finish()
    return reader


def is_trouble(text: str) -> bool:
    """Whether a line reports an error by its level or its words."""
    level = _GLOG.search(text)
    if level:
        return level[1] in "EF"
    if text.lstrip().startswith(("|", "+-")):
        return "UNAVAILABLE: " in text
    return bool(_TROUBLE_WORDS.search(text)) and not _NO_TROUBLE.search(text)


def shown(text: str, position: int) -> str:
    """The line as it is shown: short enough, with what matched in it, and without characters that no screen shows."""
    start = 0 if position < SHOWN // 2 else position - SHOWN // 4
    piece = text[start : start + SHOWN].strip()
    return ("…" if start else "") + piece + ("…" if start + SHOWN < len(text) else "")


def _lines_with(data: bytes, word: bytes, end: int) -> Iterable[tuple[int, int, int]]:
    """(start, end, where the word is) of every line that holds the word and begins before `end`."""
    position = data.find(word)
    while position >= 0:
        start = data.rfind(b"\n", 0, position) + 1
        if start >= end:
            return
        stop = _line_end(data, position)
        yield start, stop, position
        position = data.find(word, stop)


def _line_end(data: bytes, position: int) -> int:
    stop = data.find(b"\n", position)
    return len(data) if stop < 0 else stop


def _text(data: bytes, start: int, stop: int, position: int) -> str:
    """The text around `position` of a line; of one that Docker keeps as JSON its message."""
    piece = data[max(start, position - BEFORE) : min(stop, position + AFTER)]
    text = piece.decode("utf-8", "replace")
    if text.startswith('{"log":"'):
        try:
            text = str(json.loads(text)["log"])
        except (ValueError, KeyError, TypeError):
            text = text.replace('\\"', '"')
    return _CONTROLS.sub(" ", text)
