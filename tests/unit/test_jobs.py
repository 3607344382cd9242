"""Waiting for the worker: what Ctrl-C does, and what is refused before it waits in line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tritune import jobs, servers, worker
from tritune.errors import InputError, StoreError
from tritune.load_plan import LoadPlan
from tritune.plan import JobKind, JobState, Signature, TensorSpec
from tritune.settings import Settings
from tritune.store import Store


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({"TRITUNE_RESULTS": str(tmp_path / "results"), "TRITUNE_MODEL_REPO": str(tmp_path / "m")})


@pytest.fixture
def store(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(worker, "ensure", lambda settings: None)
    store = Store(settings.database_url)
    yield store
    store.close()


def interrupt(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Ctrl-C comes this often while jobs waits."""
    left = [times]

    def sleep(seconds: float) -> None:
        if left[0]:
            left[0] -= 1
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)


def test_an_interrupt_cancels_the_job_and_waits_for_its_end(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 1)
    said: list[str] = []
    job = jobs.run_and_wait(settings, store, JobKind.TUNE, {"model": "m"}, said.append)
    assert job.state is JobState.CANCELLED
    assert any("press Ctrl-C again" in line for line in said)


def test_a_second_interrupt_leaves_the_running_job_to_the_worker(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(monkeypatch, 2)

    def claimed(line: str) -> None:
        store.claim("me")

    with pytest.raises(KeyboardInterrupt):
        jobs.run_and_wait(settings, store, JobKind.TUNE, {"model": "m"}, claimed)
    (job,) = store.jobs(active=True)
    assert (job.state, job.cancel_requested) == (JobState.RUNNING, True)


class _Serving:
    """A server that serves one model without free dimensions."""

    def model_ready(self, name: str) -> bool:
        return True

    def signature(self, name: str) -> Signature:
        return Signature((TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (4,)),), 8)


@pytest.mark.parametrize(
    "plan",
    [
        LoadPlan("m", concurrency=1, shapes={"z": (4,)}),
        LoadPlan("m", concurrency=1, shapes={"x": (-5,)}),
        LoadPlan("m", concurrency=1, int_ranges={"": (1, 2)}),
        LoadPlan("m", concurrency=1, input_data="/no/such/file"),
        LoadPlan("m", concurrency=1, batch=9),
    ],
)
def test_a_request_that_cannot_be_made_is_refused_before_it_waits_in_line(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, plan: LoadPlan
) -> None:
    monkeypatch.setattr(servers, "connect", lambda settings: _Serving())
    with pytest.raises(InputError):
        jobs.check_load(settings, plan)


def test_a_study_that_waits_or_runs_at_another_installation_is_not_resumed_here(
    settings: Settings, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Store(settings.database_url, home="there")
    study = theirs.insert_job(JobKind.SWEEP, {"model": "m"})
    for state in ("waiting", "running"):
        with pytest.raises(InputError, match=f"is {state} at another installation, there"):
            jobs.resume(settings, store, f"s{study}")
        theirs.claim("their worker")
    theirs.finish_job(study, "their worker", JobState.INTERRUPTED)
    assert jobs.resume(settings, store, f"s{study}") == study
    theirs.close()


def test_a_results_folder_that_is_deleted_ends_the_wait_with_a_sentence(settings: Settings, store: Store) -> None:
    def move(_: str) -> None:
        settings.results.rename(settings.results.with_name("elsewhere"))
        settings.results.mkdir()

    with pytest.raises(StoreError, match="was deleted or moved while this waited"):
        jobs.run_and_wait(settings, store, JobKind.TUNE, {"model": "m"}, move)
