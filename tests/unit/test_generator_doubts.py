"""Every doubt about the generator, provoked with the real one against a server whose law is known."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadgen import child
from loadgen.samples import read_stream
from tritune import measurement
from tritune.doubts import WarningCode
from tritune.load_plan import GeneratorPlan, LoadPlan
from tritune.measurement import Measurement
from tritune.plan import Endpoints, Signature, TensorSpec

SIGNATURE = Signature((TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (4,)),), 8)
Run = Callable[..., Measurement]

BUSY = """
import signal, time
def work(*_):
    until = time.perf_counter() + 0.0045
    while time.perf_counter() < until:
        pass
signal.signal(signal.SIGALRM, work)
signal.setitimer(signal.ITIMER_REAL, 2.0, 0.005)
"""
"""A sitecustomize.py: from 2 s after the start on, the process has something else to do for 90 % of the time."""


@pytest.fixture
def run(fake_server: Callable[..., Any], tmp_path: Path) -> Run:
    """Run a load against a fake server and measure it."""

    def go(*server: str, **options: Any) -> Measurement:
        load = LoadPlan("m", **({"duration_s": 1.5, "warmup_s": 0.3} | options))
        plan = GeneratorPlan(load, Endpoints(fake_server(*server).address), SIGNATURE)
        made = child.start(plan, tmp_path / "run")
        try:
            made.wait(90)
        finally:
            made.cancel()
        outcome = made.outcome()
        return measurement.measure(
            load,
            read_stream(made.folder / "samples.arrow"),
            outcome,
            None,
            generator_cpu_ns=outcome.cpu_ns,
            generator_processes=load.workers,
            asked=None,
            served=None,
            server_restarted=False,
        )

    return go


def said(measured: Measurement, code: str) -> str:
    return next(warning.message for warning in measured.warnings if warning.code == code)


def test_requests_that_wait_for_a_connection_are_schedule_lag_with_their_cause(run: Run) -> None:
    measured = run("--law", "fixed:50", rate_rps=500.0, max_connections=4)
    assert "Requests left late" in said(measured, WarningCode.SCHEDULE_LAG)
    assert "could not be sent at all" in said(measured, WarningCode.SCHEDULE_LAG)
    assert "cap" in said(measured, "connections_capped")


def test_a_server_that_slows_down_is_unstable(run: Run) -> None:
    measured = run("--law", "stall:1:60000:57500", rate_rps=400.0, duration_s=3.0, timeout_s=0.5)
    assert "mean latency" in said(measured, WarningCode.UNSTABLE)


def test_a_server_that_rejects_or_fails_is_told_in_its_words(run: Run) -> None:
    assert "Exceeds maximum queue size" in said(
        run("--manners", "unavailable", rate_rps=100.0), WarningCode.REJECTED_REQUESTS
    )
    assert "batch-size must be <= 4" in said(run("--manners", "bad_request", rate_rps=100.0), WarningCode.ERRORS)


def test_a_generator_that_fills_its_core_is_saturated(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "busy").mkdir()
    (tmp_path / "busy" / "sitecustomize.py").write_text(BUSY)
    real = child.start

    def start(*arguments: Any) -> child.Child:
        with pytest.MonkeyPatch.context() as patch:  # the generator alone, not the server
            patch.setenv("PYTHONPATH", str(tmp_path / "busy"))
            return real(*arguments)

    monkeypatch.setattr(child, "start", start)
    measured = run("--law", "none", concurrency=16, duration_s=2.0, warmup_s=2.5)  # so busy from the window's start on
    if measured.generator.cpu_percent <= 85 and os.getloadavg()[0] > (os.cpu_count() or 1):
        pytest.skip("other work on this machine takes the core that the generator should fill")
    assert "of a core per process (limit 85 %)" in said(measured, WarningCode.GENERATOR_SATURATED)
