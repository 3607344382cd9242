"""The benchmarks run: each in its shortest form, and none leaves a process behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import clients, efficiency, fidelity, lost, served
from benchmarks.command import Options
from benchmarks.laws import Law
from benchmarks.processes import Group, children_of, group_of, processes_where
from benchmarks.tables import TARGETS
from tritune.load_plan import Protocol
from tritune.triton import Triton

ROOT = Path(__file__).resolve().parents[2]


def script(*arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", *arguments], cwd=ROOT, process_group=0, **options)


def test_no_sample_is_lost_and_a_killed_workers_loss_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lost, "LOADS", {"open loop": lost.LOADS["open loop"]})
    report = lost.measure(Options(1, 1.0, tmp_path))
    assert report.figures == {"lost_two_workers": 0.0, "lost_when_killed": 0.0, "loss_not_stated": 0.0}
    assert set(report.figures) <= {target.key for target in TARGETS}
    assert "Stated (open loop): Worker" in report.notes[0]
    json.dumps(report.to_dict())


def test_ctrl_c_ends_everything_that_a_benchmark_has_started() -> None:
    process = script("benchmarks.lost", "--duration", "30", stderr=subprocess.PIPE)
    try:
        limit = time.monotonic() + 20
        while len(started := descendants(process.pid)) < 3:  # server, generator, a worker of it
            assert time.monotonic() < limit
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
        assert process.returncode == 130
        assert b"has been ended" in said
        alive = processes_where(lambda pid, fields: pid in started and fields[0] not in (b"Z", b"X"))
        assert alive == []
    finally:
        process.kill()
        process.wait()


def descendants(pid: int) -> list[int]:
    found = children_of(pid)
    return found + [child for parent in found for child in descendants(parent)]


def test_perf_analyzer_and_plain_locust_are_measured_against_triton(triton: Triton, tmp_path: Path) -> None:
    server = served.Served(
        "Triton",
        "double",
        triton.endpoints,
        triton.signature("double"),
        lambda: triton.statistics("double").inference_count,
    )
    for protocol in Protocol:
        reading = clients.cost_of_perf_analyzer(protocol, server, tmp_path, 0.2, 0.5)
        assert reading.cpu_us > 1
        assert reading.rps > 10
        ours = clients.cost_of_ours(protocol, server, tmp_path / protocol, 0.2, 0.5)
        assert ours.cpu_us > 1


def test_a_plain_locust_user_is_held_against_the_log(tmp_path: Path) -> None:
    with served.law_server(tmp_path, "fixed:5") as (server, log):
        found = fidelity._plain_locust("fixed", Law.parse("fixed:5"), server, log, tmp_path, 2.0)
    assert found.client == "plain Locust"
    assert all(truth >= 5.0 for truth in found.truth)
    assert found.reported[0] >= 5.0  # rounded to a millisecond, and never below the delay


def test_what_is_missing_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(efficiency, "triton_with_mnist", lambda *_: served.law_server(tmp_path, "nonsense"))
    monkeypatch.setattr(efficiency.shutil, "which", lambda *_, **__: None)
    report = efficiency.measure(Options(1, 0.5, tmp_path))
    assert any(note.startswith("Nothing was measured against Triton: ") for note in report.notes)
    assert any(note.startswith("wrk is not installed") for note in report.notes)
    assert any(note.startswith("nginx is not installed") for note in report.notes)
    assert [row[0] for row in report.tables[0].rows] == ["ours http"]
    assert report.figures == {}


def test_a_group_is_ended_with_its_children(tmp_path: Path) -> None:
    with Group(
        ["/bin/sh", "-c", "trap '' INT; sleep 60 & exec sleep 60"], tmp_path, end_signal=signal.SIGTERM
    ) as group:
        pid = group.pid
        limit = time.monotonic() + 5
        while len(group_of(pid)) < 2 and time.monotonic() < limit:
            time.sleep(0.02)
        assert len(group_of(pid)) == 2
    assert group_of(pid) == [] or all(fields[0] == b"Z" for _, fields in group_of(pid))
