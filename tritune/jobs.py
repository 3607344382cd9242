"""Ask the worker for something and wait for it: what the command line does and the pages do by reading.

Belongs here: inserting a job, seeing to it that a worker is there, waiting. Never: doing the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tritune import worker
from tritune.errors import InputError, StoreError
from tritune.load_plan import LoadPlan
from tritune.plan import JobKind, JobState
from tritune.settings import Settings
from tritune.store import Job, Store, study_number

POLL_S = 0.1
ENSURE_EVERY_S = 2.0
LOST_WAIT_S = 30.0


def submit(settings: Settings, store: Store, kind: JobKind, payload: Mapping[str, Any]) -> int:
    """Insert a job and start a worker where none is at work; returns the job's id."""
    job_id = store.insert_job(kind, payload)
    worker.ensure(settings)
    return job_id


def run_and_wait(
    settings: Settings, store: Store, kind: JobKind, payload: Mapping[str, Any], say: Callable[[str], None]
) -> Job:
    """Submit a job and wait for its end, as `wait` does."""
    return wait(settings, store, submit(settings, store, kind, payload), say)


def wait(settings: Settings, store: Store, job_id: int, say: Callable[[str], None]) -> Job:
    """Return a job when it has ended; `say` gets each new line of progress.

    An interrupt (Ctrl-C) cancels the job and waits for its end; a second one is raised.
    """
    said = ""
    is_cancelled = False
    folder = _inode(settings.results)
    ensured = time.monotonic()
    while True:
        try:
            job = store.job(job_id)
            if job.state.is_final:
                return job
            text = str(job.progress.get("text", ""))
            if text and text != said:
                say(text)
                said = text
            if _inode(settings.results) != folder:
                raise StoreError(
                    f"The results folder {settings.results} was deleted or moved while this waited, and what was "
                    "measured with it. Put it back, or start the server and this anew."
                )
            if time.monotonic() - ensured > ENSURE_EVERY_S:
                worker.ensure(settings)
                ensured = time.monotonic()
            time.sleep(POLL_S)
        except KeyboardInterrupt:
            if is_cancelled:
                raise
            is_cancelled = True
            say("Cancelling; press Ctrl-C again to leave it to the worker.")
            store.request_cancel(job_id)


def _inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None


def resume(settings: Settings, store: Store, study_id: str) -> int:
    """Let a study that was interrupted, cancelled or has failed go on with its plan; returns its job's id.

    Raises InputError for what is no study, runs, or is finished.
    """
    job_id = study_number(study_id)
    job = store.job(job_id)
    if job.kind is not JobKind.SWEEP:
        raise InputError(f"s{job_id} is no study that can be resumed. `tritune study list` shows those.")
    if not job.state.is_final and job.home not in (None, store.home):
        raise InputError(
            f"s{job_id} is {job.state} at another installation, {job.home}. `tritune study cancel s{job_id}` ends it."
        )
    if job.state is JobState.RUNNING and not worker.is_running(settings):
        worker.ensure(settings)  # it finds that its predecessor was lost
        limit = time.monotonic() + LOST_WAIT_S
        while (job := store.job(job_id)).state is JobState.RUNNING and time.monotonic() < limit:
            time.sleep(POLL_S)
    if job.state is JobState.FINISHED:
        raise InputError(f"s{job_id} is finished. `tritune study show s{job_id}` shows it.")
    if job.state is JobState.RUNNING:
        raise InputError(f"s{job_id} is running. `tritune study cancel s{job_id}` ends it.")
    store.requeue_job(job_id)  # one that waits goes on waiting
    worker.ensure(settings)
    return job_id


def check_load(settings: Settings, plan: LoadPlan) -> None:
    """Refuse what cannot be run before it waits in line: no server, an unknown model or input, a batch too large.

    Raises ServerDownError, UnknownModelError, InputError.
    """
    from loadgen import payload
    from tritune import servers, trial

    triton = servers.connect(settings)
    trial.check_model(settings, triton, plan)
    if triton.model_ready(plan.model):
        payload.payloads(triton.signature(plan.model), plan, count=1)
    trial.check_disk(settings, plan)
