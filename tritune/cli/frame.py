"""What every verb stands on: the program and its groups, one JSON document, one sentence a failure, options.

Belongs here: what two verbs share. Never: a verb.
"""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Annotated, Any, NoReturn, ParamSpec

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from tritune.errors import InputError, TrituneError
from tritune.plan import JobKind, JobState
from tritune.settings import Settings

P = ParamSpec("P")

MISSED = 3
MAX_ROWS = 1_000_000
INTERRUPTED = 130  # as a shell gives it for Ctrl-C

_options: dict[str, Any] = {
    "no_args_is_help": True,
    "add_completion": False,
    "rich_markup_mode": None,
    "pretty_exceptions_enable": False,
}


class _Commands(TyperGroup):
    """All verbs. A wrong use of one is told like any failure: with --json one document is on stdout then too."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **options: Any) -> NoReturn:
        given = sys.argv[1:] if args is None else list(args)
        try:
            code = super().main(given, *others, **{**options, "standalone_mode": False})
        except TyperException as wrong:
            if "--json" in given:
                show({"error": wrong.format_message()}, True, "")
            wrong.show()  # type: ignore[attr-defined]  # all of them have it; their class is private to Typer
            code = wrong.exit_code
        sys.exit(code or 0)


app = typer.Typer(
    help="From an ONNX model to a tuned, measured, compared configuration on Triton.", cls=_Commands, **_options
)
model_app = typer.Typer(help="Publish, check and list models.", **_options)
server_app = typer.Typer(help="Start, attach to, look at and stop a Triton.", **_options)
study_app = typer.Typer(help="Load tests that were made.", **_options)
app.add_typer(model_app, name="model")
app.add_typer(server_app, name="server")
app.add_typer(study_app, name="study")

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]


def say(text: str) -> None:
    """A message for the person at the terminal."""
    typer.echo(text, err=True)


def show(document: Mapping[str, Any], as_json: bool, text: str) -> None:
    """Print the result: the document, or the text that a person reads."""
    typer.echo(json.dumps(document, allow_nan=False) if as_json else text)


def _fail(error: TrituneError, as_json: bool) -> NoReturn:
    if as_json:
        show({"error": str(error)}, True, "")
    say(str(error))
    raise typer.Exit(error.exit_code)


def verb(function: Callable[P, None]) -> Callable[P, None]:
    """Turn a TrituneError into its sentence and its exit code: no traceback reaches a user."""

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with _interruptible():
                function(*args, **kwargs)
        except TrituneError as error:
            _fail(error, bool(kwargs.get("as_json")))
        except KeyboardInterrupt:
            if kwargs.get("as_json"):
                show({"error": "Stopped."}, True, "")
            say("Stopped.")
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # whoever reads the output has heard enough
            raise
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            said = TrituneError(f"The system refused: {error.strerror or error}{where}. Check rights and free space.")
            _fail(said, bool(kwargs.get("as_json")))
        except (typer.Exit, typer.Abort):
            raise
        except Exception as unexpected:
            _fail(_unexpected(unexpected), bool(kwargs.get("as_json")))

    return run


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C is KeyboardInterrupt while a verb runs, also where __main__ let it end the process before and after."""
    ends = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_DFL
    if ends:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        if ends:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _unexpected(error: Exception) -> TrituneError:
    """A fault of ours, as one sentence; its traceback goes to a file."""
    try:
        log = Settings.from_env().results / "faults.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8", errors="backslashreplace") as file:
            traceback.print_exception(error, file=file)
    except (OSError, TrituneError):
        return TrituneError(f"An unexpected fault: {type(error).__name__}: {error}.")
    return TrituneError(f"An unexpected fault: {type(error).__name__}: {error}. The details are in {log}.")


def whole_numbers(text: str, what: str) -> tuple[int, ...]:
    """`4,8` as numbers; `none` as none of them. Raises InputError."""
    if text.strip().lower() in ("", "none"):
        return ()
    if not re.fullmatch(r"\s*-?[0-9]{1,18}\s*(,\s*-?[0-9]{1,18}\s*)*", text):
        raise InputError(f"{what}={text!r} must be whole numbers with commas between them, such as 4,8.")
    return tuple(int(part) for part in text.split(","))


def named(values: list[str], what: str, example: str) -> list[tuple[str, str]]:
    """`NAME:REST` of every value, split at the last colon. Raises InputError."""
    pairs = []
    for value in values:
        name, separator, rest = value.rpartition(":")
        if not separator or not name or not rest:
            raise InputError(f"{what} {value!r} must look like {example}.")
        pairs.append((name, rest))
    return pairs


def pairs(values: list[str] | None, option: str) -> dict[str, str]:
    """`KEY=VALUE` of every value. Raises InputError."""
    pairs = {}
    for value in values or []:
        key, separator, text = value.partition("=")
        if not separator or not key:
            raise InputError(f"{option} {value!r} must look like KEY=VALUE.")
        pairs[readable(key, option)] = readable(text, option)
    return pairs


def readable(text: str, option: str) -> str:
    """Text that can be kept: an argument may hold bytes that are none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{option} {text!r} holds bytes that are not UTF-8 text. Leave them out.") from None
    return text


def run_job(kind: JobKind, payload: Mapping[str, Any]) -> tuple[Any, Any]:
    """Insert a job, wait for its end while saying what it does; returns (job, store)."""
    from tritune import jobs
    from tritune.store import Store

    settings = Settings.from_env()
    store = Store.of(settings)
    return jobs.run_and_wait(settings, store, kind, payload, say), store


def require(job: Any) -> None:
    """Raise the sentence of a job that did not finish."""
    if job.state is JobState.CANCELLED:
        raise TrituneError("This was cancelled.")
    if job.state is not JobState.FINISHED:
        raise TrituneError(job.error or f"This ended {job.state}.")
