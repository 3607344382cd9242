"""Studies on the real Triton: rounds, what is put back, a cancel, a killed worker, a killed server, side by side."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tritune import jobs, servers, study_ask, study_result, worker
from tritune.errors import InputError
from tritune.plan import JobKind, JobState, TrialState
from tritune.settings import Settings
from tritune.side_by_side import CODE
from tritune.store import Job, Store, Trial
from tritune.study_plan import LoadSpace, SearchSpace, StudyPlan, Switching
from tritune.triton import Triton

LIMIT_S = 90.0


@pytest.fixture
def store(installation: Settings, triton: Triton) -> Iterator[Store]:
    triton.load("double")
    store = Store.of(installation)
    yield store
    store.close()


def plan(**changes: Any) -> StudyPlan:
    """Two configurations of `double`, the baseline among them, under one load, as short as can be."""
    shortest: dict[str, Any] = {
        "space": SearchSpace(max_queue_delay_microseconds=(2000,)),
        "loads": LoadSpace(concurrency=(2,)),
        "rounds": 2,
        "duration_s": 0.6,
        "warmup_s": 0.1,
    }
    return StudyPlan("double", **{**shortest, **changes})


def ask(settings: Settings, store: Store, **changes: Any) -> int:
    return store.insert_job(JobKind.SWEEP, study_ask.prepare(settings, plan(**changes))[0])


def work(settings: Settings, store: Store) -> Job:
    """Do the waiting job as the worker does."""
    job = store.claim("me")
    assert job is not None
    worker._do(worker.Context(settings, store, job, "me"), threading.Event())
    return store.job(job.id)


def wait_for(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.05)


def rows(store: Store, job_id: int, state: TrialState | None = None) -> list[Trial]:
    return list(reversed(store.trials(study_id=f"s{job_id}", state=state)))


def test_every_round_measures_all_in_a_drawn_order_and_what_was_served_is_put_back(
    installation: Settings, store: Store, triton: Triton
) -> None:
    before = triton.config("double")
    job_id = ask(installation, store)
    job = work(installation, store)
    assert job.state is JobState.FINISHED, job.error
    trials = rows(store, job_id)
    assert {trial.state for trial in trials} == {TrialState.FINISHED}
    for number in (1, 2):
        cells = [trial.cell for trial in trials if trial.round == number]
        assert {cell.candidate for cell in cells if cell and cell.role == "measure"} == {0, 1}
        assert cells[-1] is not None
        assert cells[0] is not None
        assert (cells[-1].candidate, cells[-1].role) == (cells[0].candidate, "drift")
    slow = [trial for trial in trials if trial.cell and trial.cell.candidate == 1]
    assert all(trial.configuration and trial.configuration.max_queue_delay_microseconds == 2000 for trial in slow)
    assert all("not_in_effect" not in str((trial.measurement or {})["warnings"]) for trial in trials)
    assert len({trial.plan.seed for trial in trials if trial.round == 1}) == 1
    assert triton.config("double") == before
    assert not (installation.model_repo / "double" / "config.pbtxt").exists()
    found = study_result.document(job, trials)
    assert found["rounds"] == {"planned": 2, "done": 2}
    assert [row["throughput_ratio"]["value"] < 1 for row in found["comparisons"]] == [True]


def test_a_cancelled_study_keeps_what_is_finished_puts_back_and_can_go_on(
    installation: Settings, store: Store, triton: Triton
) -> None:
    before = triton.config("double")
    job_id = ask(installation, store)

    def cancel_after_the_first() -> None:
        wait_for(lambda: rows(store, job_id, TrialState.FINISHED))
        store.request_cancel(job_id)

    canceller = threading.Thread(target=cancel_after_the_first)
    canceller.start()
    job = work(installation, store)
    canceller.join()
    assert job.state is JobState.CANCELLED
    assert not rows(store, job_id, TrialState.WAITING)
    assert triton.config("double") == before
    kept = [trial.to_dict() for trial in rows(store, job_id, TrialState.FINISHED)]
    assert kept
    assert store.requeue_job(job_id)
    assert work(installation, store).state is JobState.FINISHED
    after = {trial.trial_id: trial.to_dict() for trial in rows(store, job_id)}
    assert all(after[trial["trial_id"]] == trial for trial in kept)
    with pytest.raises(InputError, match="is finished"):
        jobs.resume(installation, store, f"s{job_id}")


def test_a_study_whose_worker_was_killed_goes_on_with_its_plan_and_leaves_no_process(
    installation: Settings, store: Store, triton: Triton
) -> None:
    before = triton.config("double")
    job_id = ask(installation, store)
    process = worker.start(installation)
    wait_for(lambda: rows(store, job_id, TrialState.FINISHED))
    wait_for(lambda: rows(store, job_id, TrialState.RUNNING))
    kept = [trial.to_dict() for trial in rows(store, job_id, TrialState.FINISHED)]
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not _generators(installation))
    assert jobs.resume(installation, store, f"s{job_id}") == job_id
    wait_for(lambda: store.job(job_id).state.is_final)
    job = store.job(job_id)
    assert job.state is JobState.FINISHED, job.error
    after = {trial.trial_id: trial.to_dict() for trial in rows(store, job_id)}
    assert all(after[trial["trial_id"]] == trial for trial in kept)
    assert triton.config("double") == before
    counted = study_result.readings(rows(store, job_id))
    assert sorted((reading.round, reading.candidate) for reading in counted if reading.role == "measure") == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]
    _end_workers(installation)


def test_a_server_that_dies_fails_its_trial_is_started_once_and_the_study_says_so(
    new_installation: Callable[[], Settings], publish: Callable[..., Path], port_base: Callable[[], int]
) -> None:
    settings = new_installation()
    publish(settings.model_repo, "double")
    servers.start(settings, port_base=port_base())
    store = Store.of(settings)
    job_id = ask(settings, store, duration_s=4.0, rounds=1)

    def kill(number: int) -> None:
        wait_for(lambda: len(rows(store, job_id, TrialState.FAILED)) == number - 1)
        wait_for(lambda: (store.job(job_id).progress.get("probe") or {}).get("phase") == "measuring")
        pid = servers.status(settings).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, args=(1,))
    killer.start()
    job = work(settings, store)
    killer.join()
    assert job.state is JobState.FINISHED, job.error
    (failed,) = rows(store, job_id, TrialState.FAILED)
    assert "ended during the load test" in str(failed.error)
    assert [note["code"] for note in job.notes] == ["server_restarted"]
    again = [trial for trial in rows(store, job_id) if trial.cell == failed.cell and trial.attempt == 2]
    assert [trial.state for trial in again] == [TrialState.FINISHED]
    store.close()


def test_side_by_side_is_decided_by_an_aa_and_leaves_nothing(
    installation: Settings, store: Store, triton: Triton, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritune.study.side_by_side.judge", lambda trials: (True, "as good as alone"))
    monkeypatch.setattr("tritune.side_by_side.PAIRS", 2)
    models = sorted(path.name for path in installation.model_repo.iterdir())
    before = triton.config("double")
    job_id = ask(installation, store, rounds=1, switching=Switching.SIDE_BY_SIDE, duration_s=0.5)
    job = work(installation, store)
    assert job.state is JobState.FINISHED, job.error
    assert [(note["code"], note["good"]) for note in job.notes] == [(CODE, True)]
    roles = [trial.cell.role for trial in rows(store, job_id) if trial.cell]
    assert roles[:4] == ["alone", "together", "together", "alone"]
    measured = [trial for trial in rows(store, job_id) if trial.round == 1]
    names = {trial.provenance["served_config"]["name"] for trial in measured}
    assert names == {"double.tritune-c0", "double.tritune-c1"}
    assert not list(installation.variants.iterdir())
    assert not [entry for entry in triton.index() if "tritune" in entry["name"] and entry.get("state") == "READY"]
    assert sorted(path.name for path in installation.model_repo.iterdir()) == models
    assert triton.config("double") == before


def _generators(settings: Settings) -> list[int]:
    """Processes whose working folder is a trial of this installation."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(settings.trials):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _end_workers(settings: Settings) -> None:
    results = os.fsencode(str(settings.results))
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().split(b"\0")
            if b"tritune.cli" in line and b"worker" in line and results in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGTERM)
        except OSError:
            continue
    wait_for(lambda: not worker.is_running(settings))
