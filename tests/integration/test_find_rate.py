"""The search for the highest rate on the real Triton: found, missed, cancelled, and after its worker was killed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tritune import rate_report, worker
from tritune.load_plan import LoadPlan
from tritune.p99_limit import OPENING_CLIENTS
from tritune.plan import JobKind, JobState, TrialState
from tritune.search import RateGoal
from tritune.settings import Settings
from tritune.store import Job, Store
from tritune.triton import Triton

LIMIT_S = 90.0


@pytest.fixture
def store(installation: Settings, triton: Triton) -> Iterator[Store]:
    triton.load("double")
    store = Store(installation.database_url)
    yield store
    store.close()


@pytest.fixture
def ask(store: Store) -> Callable[..., int]:
    """Insert a search on the model `double`; returns the job's id."""

    def go(limit_ms: float, budget_s: float = 150.0, precision: float = 0.5) -> int:
        plan = LoadPlan("double", concurrency=OPENING_CLIENTS, duration_s=1.2, warmup_s=0.2, p99_limit_ms=limit_ms)
        goal = RateGoal.of(plan, budget_s=budget_s, precision=precision)
        payload = {"plan": plan.to_dict(), "goal": goal.to_dict(), "labels": {"why": "test"}, "note": ""}
        return store.insert_job(JobKind.FIND_RATE, payload)

    return go


def work(installation: Settings, store: Store) -> Job:
    """Do the waiting job as the worker does."""
    job = store.claim("me")
    assert job is not None
    worker._do(worker.Context(installation, store, job, "me"), threading.Event())
    return store.job(job.id)


def wait_for(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.05)


def finished(store: Store, job_id: int) -> list[Any]:
    return [trial for trial in store.trials(study_id=f"s{job_id}") if trial.state is TrialState.FINISHED]


def test_a_rate_is_found_and_every_probe_is_a_trial_of_the_study(
    installation: Settings, store: Store, ask: Callable[..., int]
) -> None:
    job_id = ask(200.0)
    begun = time.monotonic()
    job = work(installation, store)
    assert job.state is JobState.FINISHED, job.error
    assert time.monotonic() - begun < 150.0 + 15.0
    trials = store.trials(study_id=f"s{job_id}")
    found = rate_report.document(job, trials)
    assert found["study_id"] == f"s{job_id}"
    assert found["rate_rps"]["value"] is not None, found["reason"]
    assert found["p99_ms"]["value"] < 200.0
    assert [probe["trial_id"] for probe in found["probes"]] == [trial.trial_id for trial in reversed(trials)]
    numbers = [(trial.round, trial.attempt) for trial in reversed(trials)]
    assert numbers[:2] == [(1, 1), (2, 1)]
    assert len(set(numbers)) == len(numbers)
    for trial in trials:
        assert trial.measurement is not None
        assert trial.measurement["goodput_rps"] is not None
        assert trial.labels == {"why": "test"}


def test_a_limit_below_the_idle_latency_is_held_by_no_rate(
    installation: Settings, store: Store, ask: Callable[..., int]
) -> None:
    ask(0.02, budget_s=60.0)
    job = work(installation, store)
    assert job.state is JobState.FINISHED, job.error
    assert job.result is not None
    assert job.result["rate_rps"]["value"] is None
    assert job.result["reason"]
    assert all(probe["judgement"] != "held" for probe in job.result["probes"])


def test_a_cancelled_search_keeps_its_finished_probes(
    installation: Settings, store: Store, ask: Callable[..., int]
) -> None:
    job_id = ask(200.0)

    def cancel() -> None:
        wait_for(lambda: finished(store, job_id))
        store.request_cancel(job_id)

    canceller = threading.Thread(target=cancel)
    canceller.start()
    job = work(installation, store)
    canceller.join(LIMIT_S)
    assert job.state is JobState.CANCELLED
    trials = store.trials(study_id=f"s{job_id}")
    assert TrialState.RUNNING not in {trial.state for trial in trials}
    found = rate_report.document(job, trials)
    assert len(found["probes"]) == len(finished(store, job_id)) >= 1
    assert "before it was done" in found["reason"]


def test_after_kill_9_of_the_worker_the_finished_probes_are_intact(
    installation: Settings, store: Store, ask: Callable[..., int]
) -> None:
    job_id = ask(200.0)
    process = worker.start(installation)
    try:
        wait_for(lambda: len(finished(store, job_id)) >= 2)
        kept = [trial.to_dict() for trial in finished(store, job_id)]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(20)
    store.fail_lost(older_than_s=0.0)  # what the next worker does first
    job = store.job(job_id)
    assert (job.state, job.error) == (JobState.FAILED, "worker lost")
    after = {trial.trial_id: trial.to_dict() for trial in store.trials(study_id=f"s{job_id}")}
    assert all(after[trial["trial_id"]] == trial for trial in kept)
    found = rate_report.document(job, store.trials(study_id=f"s{job_id}"))
    assert [probe["trial_id"] for probe in found["probes"]][:2] == [trial["trial_id"] for trial in reversed(kept)][:2]
    assert "worker lost" in found["reason"]
