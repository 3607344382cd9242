"""The console script and `python -m tritune`: the command line, quiet from the first moment.

Belongs here: what must hold before the command line's own modules are there. Never: verbs.
"""

import signal

# Until there is somebody to say "Stopped.": Ctrl-C while the modules are still being imported would be a traceback.
_said_later = signal.getsignal(signal.SIGINT) is signal.default_int_handler
if _said_later:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from tritune import cli  # noqa: E402


def main() -> None:
    """The console script."""
    if _said_later:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
