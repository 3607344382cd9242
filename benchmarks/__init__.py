"""How cheap, how exact, against whom: run by hand or `make bench`.

Each part is a script of its own (`python -m benchmarks.efficiency`, `.fidelity`, `.soak`, `.lost`);
`python -m benchmarks` runs the short forms of all and writes RESULTS.md. Nothing in the project imports this package.
"""
