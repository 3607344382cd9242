"""The doctor's catalogue and what it finds in logs of any size and kind."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from pathlib import Path
from string import Template

import pytest

from tritune.doctor import matcher, of_log
from tritune.doctor.catalogue import Entry, load
from tritune.errors import InputError, TrituneError
from tritune.settings import ROOT

GROUPS = {
    "A": "1 2 4 5 6 8 9 10 11 12 13",
    "B": "15 16 17 18 19 20 22 24 25",
    "C": "27 28 29 30 31",
    "D": "32 33 34 35 37 38 39 41",
    "E": "42a 42b 42c 42d 42f 43 44 45 47 48 49",
    "F": "50 51 53",
    "G": "54 56 57 59 60 61 63 64 65 66",
    "H": "68 69 70 72 73 74 75 76 77",
    "I": "78 79 80",
    "J": "81 82 83 84 85 86",
}
CASES = [group + number for group, numbers in GROUPS.items() for number in numbers.split()]
TOOLKIT = 'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'
HARMLESS = 'I1130 09:12:01.532118 1 http_server.cc:4685] "Started HTTPService at 0.0.0.0:8000"'


def codes(text: str | bytes) -> list[str]:
    data = text.encode() if isinstance(text, str) else text
    return [found.finding.code for found in of_log.diagnose([data], "log").findings]


# --- the catalogue ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", load(), ids=lambda entry: entry.code)
def test_every_example_is_found_as_its_own_entry_and_no_other(entry: Entry) -> None:
    report = of_log.text(entry.example)
    assert {found.finding.code for found in report.findings} == {entry.code}
    for found in report.findings:
        assert found.finding.seen
        assert found.finding.seen.split()[0].strip("…") in entry.example
        assert not re.search(r"\$\{?\w", found.finding.cause + found.finding.fix)


@pytest.mark.parametrize("entry", load(), ids=lambda entry: entry.code)
def test_no_line_of_an_example_has_two_entries_of_one_rank(entry: Entry) -> None:
    lines = entry.example.strip().splitlines()
    for index, line in enumerate(lines):
        ranks = []
        for other in load():
            text = " ".join(part.strip() for part in lines[index : index + other.lines])
            if any(word in line for word in other.words) and other.pattern.search(text):
                ranks.append(other.rank)
        assert ranks.count(max(ranks, default=0)) <= 1, line


@pytest.mark.parametrize("entry", load(), ids=lambda entry: entry.code)
def test_sentences_name_only_what_the_pattern_gives(entry: Entry) -> None:
    names = {name for text in (entry.cause, entry.fix) for name in Template(text).get_identifiers()}
    assert names <= set(entry.pattern.groupindex)
    assert entry.cause.rstrip()[-1] in ".)$" or entry.cause.endswith(tuple(f"${name}" for name in names))
    assert entry.source


def test_a_wrong_entry_is_named_with_what_is_wrong(tmp_path: Path) -> None:
    entry = 'code = "x"\nwords = "boom"\ncause = "c"\nfix = "f"\nsource = "s"\nexample = "boom"\n'
    for text, said in (
        ("[[entry]]\ncode = 'x'\n", "lacks"),
        (f'[[entry]]\n{entry}pattern = "("\n', "no regular expression"),
        (f'[[entry]]\n{entry}severity = "bad"\n', "severity"),
        (f"[[entry]]\n{entry}[[entry]]\n{entry}", "twice"),
        (f'[[entry]]\n{entry}explains = ["y"]\n', "explains y"),
        ("[[entry", "cannot be read"),
    ):
        path = tmp_path / f"{abs(hash(text))}.toml"
        path.write_text(text)
        with pytest.raises(TrituneError, match=re.escape(said)):
            load(path)


def test_a_new_entry_needs_its_entry_and_example_only(tmp_path: Path) -> None:
    path = tmp_path / "catalogue.toml"
    path.write_text(
        '[[entry]]\ncode = "flux"\nwords = "flux capacitor"\npattern = \'flux capacitor (?P<which>\\d+)\'\n'
        'cause = "Number $which is empty."\nfix = "Fill $which."\nsource = "us"\nexample = "flux capacitor 7"\n'
    )
    reader = matcher.read([b"ok\nflux capacitor 7 failed\n"], load(path))
    (found,) = of_log.report(reader, "log").findings
    assert (found.finding.code, found.finding.cause, found.line) == ("flux", "Number 7 is empty.", 2)


# --- what a log may look like ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        TOOLKIT,
        f"triton-1  | {TOOLKIT}",
        f"2026-11-30T09:12:01.532118431Z {TOOLKIT}",
        f"triton-1  | 2026-11-30T09:12:01.5Z \x1b[31mERROR\x1b[0m {TOOLKIT}",
        TOOLKIT.replace("select", "sel\x1b[1;33mect\x1b[0m"),
        json.dumps({"log": TOOLKIT + "\n", "stream": "stderr", "time": "2026-11-30T09:12:01Z"}),
        f"progress 1%\rprogress 100%\r{TOOLKIT}\r",
        f"\x00\x01{TOOLKIT}\x7f",
        "x" * 3_000_000 + TOOLKIT + "y" * 3_000_000,
    ],
    ids=["plain", "compose", "time", "colours", "colours-inside", "json", "returns", "controls", "long"],
)
def test_prefixes_colours_and_junk_do_not_matter(line: str) -> None:
    assert "toolkit_missing" in codes(f"{HARMLESS}\n{line}\n{HARMLESS}\n")


def test_utf_16_of_a_windows_shell_is_read() -> None:
    assert codes(f"{HARMLESS}\r\n{TOOLKIT}\r\n".encode("utf-16")) == ["toolkit_missing"]


def test_however_a_log_is_cut_into_pieces_the_same_is_found_on_the_same_lines() -> None:
    text = "".join(f"{HARMLESS}\n{entry.example.strip()}\n" for entry in load()).encode()

    def found(size: int) -> list[tuple[str, int, int]]:
        reader = matcher.read(text[start : start + size] for start in range(0, len(text), size))
        return [(hit.entry.code, hit.line, hit.count) for hit in sorted(reader.hits.values(), key=lambda h: h.line)]

    whole = found(len(text))
    assert {code for code, _, _ in whole} >= {entry.code for entry in load()}
    assert found(7) == found(100) == found(4096) == whole
    lines = text.decode().split("\n")
    for code, line, _ in whole:
        entry = next(entry for entry in load() if entry.code == code)
        assert any(word in lines[line - 1] for word in entry.words)


def test_a_message_over_two_lines_is_one_also_with_the_prefixes_of_compose() -> None:
    (found,) = of_log.text(
        "t-1  | ERROR: This container was built for NVIDIA Driver Release 545.23 or later, but\n"
        "t-1  |        version 470.57.02 was detected and compatibility mode is UNAVAILABLE.\n"
    ).findings
    assert found.finding.code == "driver_too_old"
    assert "470.57.02" in found.finding.cause
    assert "545.23" in found.finding.cause


def test_a_container_without_a_gpu_is_not_told_to_upgrade_its_driver() -> None:
    (found,) = of_log.text(next(entry.example for entry in load() if entry.code == "no_gpu_given")).findings
    assert "need not be upgraded" in found.finding.cause


def test_what_only_says_that_something_failed_is_told_where_nothing_says_more() -> None:
    vague = "error: creating server: Internal - failed to load all models\n"
    assert codes(vague) == ["all_models_failed"]
    assert codes(next(e.example for e in load() if e.code == "fixed_batch") + vague) == ["fixed_batch"]


def test_repeated_lines_are_one_finding_with_their_count_and_other_tensors_are_others() -> None:
    line = "unexpected inference output '{}', allowed outputs are: logits\n"
    report = of_log.text(line.format("a") * 3 + line.format("b"))
    assert [(found.finding.code, found.count) for found in report.findings] == [("tensor_name", 3), ("tensor_name", 1)]
    many = of_log.text("".join(line.format(number) for number in range(1000)))
    assert len(many.findings) == matcher.MAX_DISTINCT
    assert sum(found.count for found in many.findings) == 1000


def test_an_unknown_error_says_so_and_shows_its_line() -> None:
    line = 'E1130 09:12:01.532118 1 flux.cc:12] "the flux capacitor overflowed at 0x7f21"'
    report = of_log.text(f"{HARMLESS}\n{line}\n{line.replace('0x7f21', '0x9a00')}\n")
    (found,) = report.findings
    assert (found.finding.code, found.finding.seen, found.line, found.count) == ("unknown_error", line, 2, 2)
    assert "does not know" in found.finding.cause
    assert report.errors == 1


@pytest.mark.parametrize(
    "line",
    [
        HARMLESS,
        "I1130 09:12:01 1 server.cc:1] exit_on_error failed_requests error",
        "| exit_on_error  | 0 |",
        "| strict_readiness | 1 | failed |",
        "2026-11-30 09:12:01 INFO 0 errors, 3 requests failed: 0",
        "no errors found",
        '{"level":"INFO","error": null}',
        "",
    ],
)
def test_what_is_no_error_is_no_finding(line: str) -> None:
    assert codes(line) == []


def test_a_row_of_tritons_model_table_is_an_error() -> None:
    assert codes("| m | 1 | UNAVAILABLE: Internal: something new |") == ["unknown_error"]


def test_a_hundred_kinds_of_unknown_errors_are_shown_up_to_a_limit_and_the_rest_is_counted() -> None:
    text = "".join(f"ERROR {chr(97 + n // 26)}{chr(97 + n % 26)} broke\n" for n in range(100))
    findings = of_log.text(text).findings
    assert len(findings) == matcher.MAX_UNKNOWN + 1
    assert "80 further lines" in findings[-1].finding.seen


@pytest.mark.parametrize(
    "piece",
    [
        (HARMLESS + "\n").encode() * 8000,
        b"".join(b"inference request batch-size must be <= 4 for 'm%d'\n" % n for n in range(20_000)),
        b"Error: " * 150_000,
        b"CUDA out of memory " * 55_000,
        random.Random(1).randbytes(1 << 20),
        b"\x00" * (1 << 20),
        b"\x1b[" * (1 << 19),
        ("'" * 50 + "unexpected inference input '" + "a" * 900 + "\n").encode() * 1000,
    ],
    ids=["harmless", "all-hits", "errors-in-one-line", "hits-in-one-line", "junk", "zeros", "escapes", "near-hits"],
)
def test_time_grows_with_the_size_and_memory_does_not(piece: bytes) -> None:
    def seconds(times: int) -> float:
        began = time.process_time()
        reader = matcher.read(itertools.repeat(piece, times))
        assert len(reader.hits) <= 20 * len(load())
        assert len(reader._rest) <= matcher.MAX_LINE
        return time.process_time() - began

    once = max(seconds(1), 0.01)
    # Linear is 4 times; a busy machine makes short times uncertain. Quadratic would be 16 times.
    assert seconds(4) < 10 * once
    # 100 MB in a minute at the very worst.
    assert once / (len(piece) / 1e6) < 0.6


# --- where a log comes from ------------------------------------------------------------------------------------------


def test_a_log_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none", Path("a\0b")):
        with pytest.raises(InputError, match="--log"):
            list(of_log.file(path))


def test_a_followed_file_gives_what_is_appended_and_starts_anew_when_it_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    seen: list[bytes] = []
    rounds = iter(range(40))

    def sleep(_: float) -> None:
        step = next(rounds)
        if step == 0:
            path.write_bytes(b"one\n")
        elif step == 2:
            with path.open("ab") as log:
                log.write(b"two\n")
        elif step == 4:
            path.rename(tmp_path / "server.log.1")
            path.write_bytes(b"three\n")
        elif step == 6:
            path.write_bytes(b"4\n")

    for piece in of_log.follow(path, goes_on=lambda: b"4\n" not in seen, sleep=sleep):
        if piece:
            seen.append(piece)
    assert seen == [b"one\n", b"two\n", b"three\n", b"4\n"]


def test_the_end_of_a_log_that_is_asked_again_and_again_is_read_once() -> None:
    tails = iter(["a\nb", "a\nb\nc", "b\nc\nd", "b\nc\nd", "x\ny", ""])
    left = iter([True] * 6 + [False])
    pieces = of_log.follow_text(lambda: next(tails), goes_on=lambda: next(left), sleep=lambda _: None)
    assert list(pieces) == [b"a\nb\n", b"c\n", b"d\n", b"", b"x\ny\n", b""]


def test_a_reader_that_waits_can_be_asked_for_what_it_holds_back() -> None:
    reader = matcher.LogReader()
    reader.feed(TOOLKIT.encode() + b"\nhalf a li")
    assert not reader.hits
    reader.settle()
    assert [hit.entry.code for hit in reader.told()] == ["toolkit_missing"]
    reader.feed(b"ne\n")
    reader.finish()
    assert (len(reader.hits), reader.lines) == (1, 2)


# --- the table of cases ----------------------------------------------------------------------------------------------


def rows() -> dict[str, tuple[set[str], str]]:
    found = {}
    for line in (ROOT / "docs" / "cases.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"[A-J]\d+[a-f]?", cells[0]):
            found[cells[0]] = (set(cells[2].split(", ")), cells[3])
    return found


def test_every_case_has_its_row() -> None:
    assert list(rows()) == CASES


@pytest.mark.parametrize("case", CASES)
def test_a_case_is_where_its_row_says(case: str) -> None:
    how, where = rows()[case]
    assert how <= {"catalogue", "prevented", "not"}
    named = set(re.findall(r"`(\w+)`", where))
    entries = {entry.code for entry in load() if case in entry.cases}
    if "catalogue" in how:
        assert named == entries != set()
    else:
        assert not entries
    if "prevented" in how:
        tests = re.findall(r"\btest_\w+(?!\w*\.py)", re.sub(r"`[^`]+`", "", where))
        files = re.findall(r"`(tests/[\w/]+\.py)`", where)
        assert tests
        for test, file in zip(tests, files, strict=True):
            assert re.search(rf"def {test}\b", (ROOT / file).read_text()), f"{file} has no {test}"
    if how == {"not"}:
        assert len(where) > 30


def test_every_case_that_an_entry_names_is_in_the_table() -> None:
    assert {case for entry in load() for case in entry.cases} <= set(CASES)
