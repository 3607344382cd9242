"""`tritune doctor`: what is wrong, why, and what to do next.

Belongs here: options and what is printed. Never: what is looked for (tritune.doctor).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tritune.cli.frame import MISSED, Json, app, say, show, verb
from tritune.errors import InputError
from tritune.settings import Settings

if TYPE_CHECKING:
    from tritune.doctor import Diagnosis, Report


@app.command("doctor")
@verb
def run_doctor(
    log: Annotated[
        Path | None, typer.Option(help="Look through this log instead (a file, or - for standard input).")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on reading the log (default: this server's own) until Ctrl-C.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say what is wrong with environment, repository and server, or what a log means. Exit code 3: something is."""
    from tritune import doctor
    from tritune.doctor import of_log

    settings = Settings.from_env()
    if follow:
        report = _follow(settings, log, quiet=as_json)
    elif log is not None and str(log) == "-":
        report = of_log.diagnose(iter(lambda: sys.stdin.buffer.read(of_log.PIECE), b""), "standard input")
    elif log is not None:
        report = of_log.diagnose(of_log.file(log), str(log))
    else:
        report = doctor.look(settings)
    show(report.to_dict(), as_json, "" if follow else _text(report))
    if report.errors:
        raise typer.Exit(MISSED)


def _text(report: Report) -> str:
    """What a person reads: the findings, then one line of sums."""
    if not report.findings:
        good = "\n".join(f"ok: {checked.what}: {checked.seen}" for checked in report.checked)
        return f"{good}\nNothing is wrong.".lstrip() if good else "Nothing that looks like an error was found."
    parts = [_one(found) for found in report.findings]
    sums = ", ".join(
        f"{count} {word}{'s' if count != 1 and word != 'info' else ''}"
        for word in ("error", "warning", "info")
        if (count := report.count(word))
    )
    good = f"; {len(report.checked)} things in order" if report.checked else ""
    return "\n\n".join([*parts, f"{sums}{good}."])


def _one(found: Diagnosis) -> str:
    finding = found.finding
    place = str(found.area) if found.line is None else f"line {found.line}"
    times = f", {found.count:,} times" if found.count > 1 else ""
    return f"{finding.severity} ({place}{times}): {finding.seen}\n  {finding.cause}\n  → {finding.fix}"


def _follow(settings: Settings, log: Path | None, *, quiet: bool) -> Report:
    """Tell every finding once, as soon as its line is there; ends by Ctrl-C (or where standard input ends)."""
    from tritune.doctor import of_log
    from tritune.doctor.matcher import LogReader

    reader = LogReader()
    source = str(log) if log is not None else "the server's log"
    told: set[tuple[str, str]] = set()
    say(f"Following {source}; Ctrl-C ends it.")

    def tell() -> None:
        for found in of_log.report(reader, source).findings:
            key = (found.finding.code, found.finding.seen)
            if key not in told:
                told.add(key)
                if not quiet:
                    typer.echo(_one(found) + "\n")

    try:
        for piece in _pieces(settings, log):
            if piece:
                reader.feed(piece)
            else:
                reader.settle()
            tell()
    except KeyboardInterrupt:
        pass
    reader.finish()
    tell()
    return of_log.report(reader, source)


def _pieces(settings: Settings, log: Path | None) -> Iterator[bytes]:
    """What comes in, as long as nobody presses Ctrl-C; b"" while nothing does."""
    from tritune import servers
    from tritune.doctor import of_log

    if log is not None and str(log) == "-":
        yield from iter(sys.stdin.buffer.readline, b"")
        return
    if log is None:
        kind = servers.status(settings).kind
        if kind is servers.ServerKind.REMOTE:
            raise InputError("The attached server keeps its own log. Give it as a file: `tritune doctor --log FILE`.")
        if kind is servers.ServerKind.DOCKER:
            yield from of_log.follow_text(lambda: servers.logs(settings, of_log.TAIL_LINES), goes_on=lambda: True)
            return
        log = settings.server_log
    elif not log.exists():
        raise InputError(f"--log {log} does not exist. Name the file that the server writes.")
    yield from of_log.follow(log, goes_on=lambda: True)
