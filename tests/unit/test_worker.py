"""The worker does one job at a time, ends it whatever happens, and leaves no job behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tritune import worker
from tritune.errors import ServerDownError, StoreError
from tritune.plan import JobKind, JobState
from tritune.settings import Settings
from tritune.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder = tmp_path / "an installation"
    return Settings.from_env({"TRITUNE_RESULTS": str(folder / "results"), "TRITUNE_MODEL_REPO": str(folder / "models")})


@pytest.fixture
def store(settings: Settings) -> Iterator[Store]:
    store = Store(settings.database_url)
    yield store
    store.close()


def do(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch, function: Any, *, stopped: bool = False
) -> Any:
    """Let the worker do one job whose work is `function`; returns the job as the store has it then."""
    monkeypatch.setattr(worker, "_JOBS", {JobKind.TUNE: function})
    job_id = store.insert_job(JobKind.TUNE, {"model": "m"})
    job = store.claim("me")
    assert job is not None
    stop = threading.Event()
    if stopped:
        stop.set()
    worker._do(worker.Context(settings, store, job, "me"), stop)
    return store.job(job_id)


def test_a_finished_job_keeps_its_result(settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = do(settings, store, monkeypatch, lambda context: {"x": 1})
    assert (job.state, job.result, job.error) == (JobState.FINISHED, {"x": 1}, None)


def test_a_known_fault_ends_the_job_with_its_sentence(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(context: worker.Context) -> Mapping[str, Any]:
        raise ServerDownError("No Triton is running. Start one.")

    job = do(settings, store, monkeypatch, fails)
    assert (job.state, job.error) == (JobState.FAILED, "No Triton is running. Start one.")


def test_an_unknown_fault_is_one_sentence_that_names_the_log(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = do(settings, store, monkeypatch, lambda context: {"x": 1 / 0})
    assert job.state is JobState.FAILED
    assert "ZeroDivisionError" in job.error
    assert str(settings.worker_log) in job.error
    assert "Traceback" not in job.error


def test_a_cancelled_job_ends_at_its_next_sign_of_progress(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HEARTBEAT_S", 0.01)

    def endless(context: worker.Context) -> Mapping[str, Any]:
        store.request_cancel(context.job.id)
        while True:
            context.progress("Still at it")
            context.ended.wait(0.01)

    assert do(settings, store, monkeypatch, endless).state is JobState.CANCELLED


def test_a_job_whose_worker_is_stopped_fails_and_says_so(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(context: worker.Context) -> Mapping[str, Any]:
        context.ended.set()
        context.check()
        return {}

    job = do(settings, store, monkeypatch, stopped, stopped=True)
    assert job.state is JobState.FAILED
    assert "worker was stopped" in job.error


@pytest.mark.parametrize("folder", ["uploads", "elsewhere"])
def test_an_upload_is_gone_once_it_was_published_or_refused_and_a_users_file_stays(
    settings: Settings, store: Store, folder: str
) -> None:
    file = settings.results / folder / "x.onnx"
    file.parent.mkdir(parents=True)
    file.write_text("this is no ONNX")
    job_id = store.insert_job(JobKind.MODEL_ADD, {"path": str(file), "name": "m"})
    job = store.claim("me")
    assert job is not None
    worker._do(worker.Context(settings, store, job, "me"), threading.Event())
    assert "is not an ONNX model" in str(store.job(job_id).error)
    assert file.exists() == (folder == "elsewhere")


def test_every_kind_of_job_has_somebody_who_does_it() -> None:
    assert set(worker._JOBS) == set(JobKind) - {JobKind.IMPORT}  # done where it is asked for, and only recorded


def test_undo_finds_the_last_tune_that_was_not_undone(settings: Settings, store: Store) -> None:
    def finish(result: Mapping[str, Any], model: str = "m", state: JobState = JobState.FINISHED) -> int:
        job_id = store.insert_job(JobKind.TUNE, {"model": model})
        store.claim("me")
        store.finish_job(job_id, "me", state, result=result)
        return job_id

    assert worker.last_tune(store, "m") is None
    first = finish({"before": "a", "after": "b", "diff": "x"})
    second = finish({"before": "b", "after": "c", "diff": "x"})
    finish({"before": "c", "after": "c", "diff": ""})
    finish({"before": "q", "after": "r", "diff": "x"}, model="other")
    finish({}, state=JobState.FAILED)
    last = worker.last_tune(store, "m")
    assert last is not None
    assert last.id == second
    finish({"before": "c", "after": "b", "diff": "x", "undo_of": second})
    last = worker.last_tune(store, "m")
    assert last is not None
    assert last.id == first
    finish({"before": "b", "after": "a", "diff": "x", "undo_of": first})
    assert worker.last_tune(store, "m") is None


def environment(settings: Settings) -> dict[str, str]:
    return {
        **worker.child_environment(settings),
        "TRITUNE_RESULTS": str(settings.results),
        "TRITUNE_MODEL_REPO": str(settings.model_repo),
    }


def start_worker(settings: Settings, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", code], env=environment(settings), cwd=settings.root)


RUN = "from tritune import worker; from tritune.settings import Settings; "


def wait_until(condition: Any, seconds: float = 20.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.05)


def test_one_worker_is_elected_and_a_second_goes_home(settings: Settings) -> None:
    first = start_worker(settings, RUN + "worker.run(Settings.from_env(), service=True)")
    try:
        wait_until(lambda: worker.is_running(settings))
        second = start_worker(settings, RUN + "raise SystemExit(worker.run(Settings.from_env()))")
        assert second.wait(20) == 0  # False: another is at work
        assert first.poll() is None
    finally:
        first.send_signal(signal.SIGTERM)
        assert first.wait(20) == 0
    assert not worker.is_running(settings)


def test_an_idle_worker_goes_home_unless_an_app_is_open(settings: Settings) -> None:
    import fcntl

    settings.results.mkdir(parents=True)
    with settings.app_lock.open("a") as app:
        fcntl.flock(app, fcntl.LOCK_SH)
        process = start_worker(settings, RUN + "worker.run(Settings.from_env(), idle_exit_s=0.2)")
        wait_until(lambda: worker.is_running(settings))
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
    assert process.wait(20) == 0


def test_after_kill_9_the_next_worker_fails_the_lost_job_and_goes_on(settings: Settings, store: Store) -> None:
    slow = (
        "import time; worker._JOBS = {worker.JobKind.TUNE: lambda c: time.sleep(60) or {}}; "
        "worker.run(Settings.from_env(), service=True)"
    )
    lost = store.insert_job(JobKind.TUNE, {"model": "m"})
    process = start_worker(settings, RUN + slow)
    wait_until(lambda: store.job(lost).state is JobState.RUNNING)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(20)
    again = store.insert_job(JobKind.UNLOAD_MODEL, {"model": "m"})
    process = start_worker(settings, RUN + "worker.run(Settings.from_env(), idle_exit_s=0.1)")
    assert process.wait(30) == 0
    assert (store.job(lost).state, store.job(lost).error) == (JobState.FAILED, worker.LOST)
    assert store.job(again).state is JobState.FAILED  # no server is up
    assert "No Triton is running" in (store.job(again).error or "")


def test_a_worker_of_an_older_program_hands_over_to_a_new_one(settings: Settings, store: Store) -> None:
    outdated = "worker._SOURCES = 0.0; worker.UPDATE_LOOK_S = 0.0; worker.run(Settings.from_env(), service=True)"
    job = store.insert_job(JobKind.UNLOAD_MODEL, {"model": "m"})
    assert start_worker(settings, RUN + outdated).wait(30) == 0
    wait_until(lambda: store.job(job).state is JobState.FAILED)
    assert "No Triton is running" in (store.job(job).error or "")
    assert "the program was updated" not in settings.worker_log.read_text()


def test_what_a_lost_study_left_is_put_back_before_it_counts_as_ended_and_keeps_no_worker_from_working(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tritune import study

    lost = store.insert_job(JobKind.SWEEP, {"model": "m"})
    store.claim("who was lost")
    seen: list[JobState] = []

    def tidy(*_: Any) -> None:
        seen.append(store.job(lost).state)
        raise RuntimeError("nobody thought of this")

    monkeypatch.setattr(study, "tidy", tidy)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert worker.run(settings, idle_exit_s=0.0)
    assert seen == [JobState.RUNNING]
    assert store.job(lost).state is JobState.INTERRUPTED


def test_a_worker_whose_database_is_gone_does_not_stay_for_ever(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: Any) -> None:
        raise StoreError("The database could not be used.")

    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(worker, "STORE_WAIT_S", 0.01)
    monkeypatch.setattr(Store, "claim", gone)
    with pytest.raises(StoreError):
        worker.run(settings, idle_exit_s=0.05)
    assert not worker.is_running(settings)
