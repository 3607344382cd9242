"""The command line: the same verbs as the pages.

Every verb takes --json and then prints one JSON document on stdout and nothing else there; messages go to
stderr. Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 done but an objective or check was missed.

Belongs here: the verbs that start processes, and the program itself. `frame` is what all verbs share; the others are in
`set_up`, `measure`, `sweep`, `study`, `exchange` and `doctor`.
"""

from __future__ import annotations

import io
import logging
import sys
from typing import Annotated

import typer

from tritune.cli import doctor, exchange, measure, set_up, study, sweep
from tritune.cli.frame import app, say, verb
from tritune.settings import Settings

__all__ = [
    "app",
    "doctor",
    "exchange",
    "main",
    "measure",
    "set_up",
    "study",
    "sweep",
]  # the modules add their verbs to the app


@app.command("app")
@verb
def run_app(
    port: Annotated[int | None, typer.Option(help="Port of the app (default 8501, or the next free one).")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Also build MNIST, start Triton and the worker, and end them again.")
    ] = False,
) -> None:
    """Open the app on 127.0.0.1; Ctrl-C ends all that this started."""
    from tritune import launch

    raise typer.Exit(launch.run(Settings.from_env(), port=port, everything=everything, say=say))


@app.command("worker")
@verb
def run_worker(
    service: Annotated[bool, typer.Option("--service", help="Stay, even with nothing to do.")] = False,
) -> None:
    """Do the jobs of this installation (started by itself where it is needed)."""
    from tritune import worker

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    if not worker.run(Settings.from_env(), service=service):
        say("Another worker of this installation is at work.")


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal that knows fewer characters gets their numbers
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="tritune")
