"""The main job from the command line against the real Triton, and what happens when a part of it dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tritune import servers, worker
from tritune.settings import ROOT, Settings
from tritune.store import Store

LIMIT_S = 120.0


class Installation:
    """A command line of its own, with a started Triton that serves MNIST."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.environment = {
            **worker.child_environment(settings),
            "TRITUNE_RESULTS": str(settings.results),
            "TRITUNE_MODEL_REPO": str(settings.model_repo),
        }
        self.environment.pop("TRITUNE_DATABASE_URL", None)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "tritune.cli", *arguments, "--json"],
            env=self.environment,
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ended(self, process: subprocess.Popen[str], code: int = 0) -> tuple[dict[str, Any], str]:
        out, err = process.communicate(timeout=LIMIT_S)
        assert process.returncode == code, err
        assert "Traceback" not in out + err
        return json.loads(out or "{}"), err

    def run(self, *arguments: str, code: int = 0) -> tuple[dict[str, Any], str]:
        return self.ended(self.start(*arguments), code)

    def wait_for(self, phase: str) -> None:
        """Until the running load test is in this phase."""
        store = Store(self.settings.database_url)
        limit = time.monotonic() + LIMIT_S
        while True:
            jobs = store.jobs(active=True)
            if jobs and (jobs[0].progress.get("live") or {}).get("phase") == phase:
                store.close()
                return
            assert time.monotonic() < limit, f"no load test reached {phase}"
            time.sleep(0.05)

    def workers(self) -> list[int]:
        """The processes of this installation's worker."""
        results = os.fsencode(str(self.settings.results))
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
                if b"tritune.cli" in line and b"worker" in line and results in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def generators(self) -> list[int]:
        """Processes of this installation's load generators."""
        trials = os.fsencode(str(self.settings.trials))
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cwd").readlink().is_relative_to(self.settings.trials) or (
                    b"loadgen" in (entry / "cmdline").read_bytes() and trials in (entry / "environ").read_bytes()
                ):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def _home(tmp_path_factory: pytest.TempPathFactory, port_base: Callable[[], int]) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("an installation")
    variables = {"TRITUNE_RESULTS": str(folder / "results"), "TRITUNE_MODEL_REPO": str(folder / "models")}
    home = Installation(Settings.from_env({**os.environ, **variables}))
    home.run("model", "build")
    yield home
    servers.stop(home.settings)
    for pid in home.workers():  # an idle worker goes home by itself; end it now, so that nothing outlives the tests
        os.kill(pid, signal.SIGTERM)


@pytest.fixture
def home(_home: Installation, port_base: Callable[[], int]) -> Installation:
    """The installation, its server up and serving the configuration that `model build` writes."""
    _home.run("server", "start", "--port-base", str(port_base()))
    _home.run("tune", "mnist", "--dynamic-batching", "--preferred-batch-size", "none", "--max-queue-delay-us", "0")
    return _home


LOAD = ("load", "mnist", "--concurrency", "4", "--warmup", "0.5")


def is_sound(trial: Mapping[str, Any]) -> None:
    latency = trial["latency_ms"]
    assert trial["requests"]["failed"] == 0
    assert trial["requests"]["ok"] >= 459
    assert 0 < latency["p50"] <= latency["p99"]["value"] <= latency["max"]
    assert latency["p99"]["ci95"][0] <= latency["p99"]["value"] <= latency["p99"]["ci95"][1]


def test_two_configurations_are_tuned_measured_by_both_engines_and_compared(home: Installation) -> None:
    tuned, _ = home.run("tune", "mnist", "--preferred-batch-size", "4,8", "--max-queue-delay-us", "500")
    assert tuned["verified"]
    assert tuned["stall_ms"] > 0
    served = servers.connect(home.settings).config("mnist")
    assert served["dynamic_batching"]["preferred_batch_size"] == [4, 8]

    trials = [home.run(*LOAD, "--duration", "3")[0]]
    trials.append(home.run(*LOAD, "--duration", "3", "--driver", "perf_analyzer")[0])
    trials.append(home.run(*LOAD, "--duration", "3", "--protocol", "grpc", "--label", "why=grpc")[0])
    home.run("tune", "mnist", "--no-dynamic-batching")
    trials.append(home.run(*LOAD, "--duration", "3")[0])
    for trial in trials:
        is_sound(trial)
    assert trials[0]["server"]["average_batch"] > 1.1
    assert trials[3]["server"]["average_batch"] == pytest.approx(1.0, abs=0.01)
    assert trials[2]["labels"] == {"why": "grpc"}

    compared, _ = home.run("compare", *(trial["trial_id"] for trial in trials))
    assert len(compared["trials"]) == 4
    assert compared["comparisons"]

    undone, _ = home.run("tune", "mnist", "--undo")
    assert undone["served"]["preferred_batch_size"] == [4, 8]


def test_a_refused_tune_changes_nothing_that_is_served(home: Installation) -> None:
    before = servers.connect(home.settings).config("mnist")
    _, said = home.run("tune", "mnist", "--preferred-batch-size", "999", code=2)
    assert "999" in said
    assert "32" in said
    assert servers.connect(home.settings).config("mnist") == before


def test_a_request_larger_than_the_model_takes_is_refused_before_it_is_sent(home: Installation) -> None:
    _, said = home.run(*LOAD, "--batch", "200", code=2)
    assert "200" in said
    assert "32" in said


def test_a_server_that_dies_fails_the_trial_with_the_reason_and_keeps_the_finished_one(home: Installation) -> None:
    finished, _ = home.run(*LOAD, "--duration", "2")
    process = home.start(*LOAD, "--duration", "30")
    home.wait_for("measuring")
    pid = servers.status(home.settings).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    failed, said = home.ended(process, code=1)
    assert "ended during the load test" in said
    assert "tritune server start" in said
    assert failed["state"] == "failed"
    assert home.generators() == []
    kept, _ = home.run("study", "show", finished["study_id"])
    assert kept["trials"] == [finished]


def test_after_kill_9_of_the_worker_no_generator_is_left_and_the_next_load_test_runs(home: Installation) -> None:
    finished, _ = home.run(*LOAD, "--duration", "2")
    process = home.start(*LOAD, "--duration", "30")
    home.wait_for("measuring")
    (pid,) = home.workers()
    os.kill(pid, signal.SIGKILL)
    _, said = home.ended(process, code=1)
    assert "worker lost" in said
    limit = time.monotonic() + 20
    while home.generators():
        assert time.monotonic() < limit, "the generator outlived its worker"
        time.sleep(0.1)
    again, _ = home.run(*LOAD, "--duration", "2")
    is_sound(again)
    kept, _ = home.run("study", "show", finished["study_id"])
    assert kept["trials"] == [finished]


def test_an_interrupt_cancels_the_load_test_and_leaves_no_process(home: Installation) -> None:
    process = home.start(*LOAD, "--duration", "30")
    home.wait_for("measuring")
    process.send_signal(signal.SIGINT)
    document, _ = home.ended(process, code=1)
    assert document["state"] == "cancelled"
    assert home.generators() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk needs root")
def test_a_disk_that_fills_up_fails_the_trial_and_keeps_the_finished_one(home: Installation, tmp_path: Path) -> None:
    home.settings.trials.mkdir(parents=True, exist_ok=True)
    finished, _ = home.run(*LOAD, "--duration", "2")
    disk = home.settings.trials / f"t{int(finished['trial_id'][1:]) + 1}"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)]).returncode:
        pytest.skip("this machine does not let tests mount")
    try:
        _, said = home.run(*LOAD, "--duration", "5", code=1)
        assert "space" in said
        kept, _ = home.run("study", "show", finished["study_id"])
        assert kept["trials"] == [finished]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_nearly_full_disk_is_told_before_the_load_test_starts(
    home: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    from collections import namedtuple

    from tritune import trial
    from tritune.errors import InputError
    from tritune.load_plan import LoadPlan

    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage(10**9, 10**9 - 1000, 1000))
    with pytest.raises(InputError, match="MB free"):
        trial.check_disk(home.settings, LoadPlan(model="mnist", concurrency=1))
