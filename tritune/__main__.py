"""The console script and `python -m tritune`: the command line, quiet from the first moment.

Belongs here: what must hold before the command line's own modules are there. Never: verbs.
"""

import signal

# Ctrl-C while modules are imported and arguments read would be a traceback: until a verb runs, and says what was
# stopped (cli.verb), it ends the process as it ends any program.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from tritune.cli import main

if __name__ == "__main__":
    main()
