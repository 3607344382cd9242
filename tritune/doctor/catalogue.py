"""The catalogue: what a line of a log means. One entry a symptom, read from catalogue.toml beside this file.

Belongs here: what an entry is, reading and checking the file. Never: looking through logs (matcher), the entries
themselves. A new entry is a new `[[entry]]` with its example log; the tests run every example.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, get_args

from tritune.errors import TrituneError
from tritune.model_rules import Finding, Severity

FILE = Path(__file__).with_name("catalogue.toml")
MAX_GROUP = 200
"""A piece of a line in a sentence is cut after so many characters."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One symptom, its cause and the one next step.

    A line is looked at where it holds one of `words` (literal text, so that a log of any size is searched quickly) and
    matches where `pattern` is found in it. `lines`: how many lines the message spans; they are joined by a space.
    Of several entries that match a line the one of the highest `rank` counts. `explains`: codes of symptoms that only
    follow from this one and are left out where it was seen. `vague`: it says that something failed and not what, so it
    is left out where the log names an error. `cause` and `fix` may use the pattern's named groups as $name.
    """

    code: str
    severity: Severity
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    lines: int
    rank: int
    explains: frozenset[str]
    vague: bool
    cause: str
    fix: str
    source: str
    cases: tuple[str, ...]
    example: str

    def finding(self, seen: str, groups: Mapping[str, str]) -> Finding:
        """The entry about one line, with its groups in the sentences."""
        cut = {name: value if len(value) <= MAX_GROUP else value[:MAX_GROUP] + "…" for name, value in groups.items()}
        cause, fix = (Template(text).safe_substitute(cut) for text in (self.cause, self.fix))
        return Finding(self.code, self.severity, seen, cause, fix)


@functools.cache
def load(path: Path = FILE) -> tuple[Entry, ...]:
    """Every entry of the file. Raises TrituneError that names the entry that is wrong."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TrituneError(f"The doctor's catalogue {path} cannot be read: {error}. Check the project out.") from error
    entries = tuple(_entry(path, raw) for raw in document.get("entry", []))
    codes = [entry.code for entry in entries]
    for code in codes:
        if codes.count(code) > 1:
            raise _wrong(path, code, "its code is there twice")
    for entry in entries:
        if unknown := entry.explains - set(codes):
            raise _wrong(path, entry.code, f"it explains {', '.join(sorted(unknown))}, which is no entry")
    return entries


def _entry(path: Path, raw: Mapping[str, Any]) -> Entry:
    code = str(raw.get("code", "(without a code)"))
    if left := {"code", "words", "cause", "fix", "source", "example"} - set(raw):
        raise _wrong(path, code, f"it lacks {', '.join(sorted(left))}")
    words = (raw["words"],) if isinstance(raw["words"], str) else tuple(raw["words"])
    if raw.get("severity", "error") not in get_args(Severity):
        raise _wrong(path, code, f"severity {raw['severity']!r} must be error, warning or info")
    try:
        pattern = re.compile(raw.get("pattern") or "|".join(re.escape(word) for word in words))
    except re.error as error:
        raise _wrong(path, code, f"its pattern is no regular expression ({error})") from error
    return Entry(
        code=code,
        severity=raw.get("severity", "error"),
        words=words,
        pattern=pattern,
        lines=raw.get("lines", 1),
        rank=raw.get("rank", 0),
        explains=frozenset(raw.get("explains", ())),
        vague=raw.get("vague", False),
        cause=raw["cause"],
        fix=raw["fix"],
        source=raw["source"],
        cases=tuple(raw.get("cases", ())),
        example=raw["example"],
    )


def _wrong(path: Path, code: str, what: str) -> TrituneError:
    return TrituneError(f"The doctor's catalogue {path} is wrong at the entry {code}: {what}. Correct that entry.")
