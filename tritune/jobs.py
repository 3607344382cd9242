"""Ask the worker for something and wait for it: what the command line does and the pages do by reading.

Belongs here: inserting a job, seeing to it that a worker is there, waiting. Never: doing the job.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tritune import worker
from tritune.load_plan import LoadPlan
from tritune.plan import JobKind
from tritune.settings import Settings
from tritune.store import Job, Store

POLL_S = 0.1
ENSURE_EVERY_S = 2.0


def submit(settings: Settings, store: Store, kind: JobKind, payload: Mapping[str, Any]) -> int:
    """Insert a job and start a worker where none is at work; returns the job's id."""
    job_id = store.insert_job(kind, payload)
    worker.ensure(settings)
    return job_id


def run_and_wait(
    settings: Settings, store: Store, kind: JobKind, payload: Mapping[str, Any], say: Callable[[str], None]
) -> Job:
    """Submit a job and return it when it has ended; `say` gets each new line of progress.

    An interrupt (Ctrl-C) cancels the job and waits for its end; a second one is raised.
    """
    job_id = submit(settings, store, kind, payload)
    said = ""
    is_cancelled = False
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
