"""`python -m tritune.cli`: how a worker is started where no console script is installed."""

from tritune.cli import main

main()
