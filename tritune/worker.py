"""The one loop: claim a job, do it, finish it. One worker process per installation.

An flock on `results/worker.lock` elects the worker; whoever needs one and finds none starts one, detached. It
exits after 30 s with neither jobs nor an app, unless it runs as a service.

Belongs here: orchestration, cancel, the one broad `except`. Never: measuring, formulas, widgets.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import tritune
from tritune import trial
from tritune.errors import InputError, StoreError, TrituneError
from tritune.load_plan import LoadPlan
from tritune.plan import JobKind, JobState, TuneChange
from tritune.settings import Settings
from tritune.store import Job, Store

IDLE_EXIT_S = 30.0
POLL_S = 0.2
HEARTBEAT_S = 1.0
UPDATE_LOOK_S = 1.0
STORE_WAIT_S = 2.0
LOST = (
    "worker lost: its process ended before this was done. Start it again (a study: `tritune study resume`); what had "
    "finished is kept."
)

log = logging.getLogger("tritune.worker")

_started: list[subprocess.Popen[bytes]] = []
"""Workers that this process has started: waited for when they have ended."""


def _fingerprint() -> float:
    """When a source file of this program was last written: changes with an update, unix seconds."""
    root = Path(tritune.__file__).parent
    newest = 0.0
    for folder in (root, root.parent / "loadgen"):
        with suppress(OSError):  # a file that is just being replaced
            newest = max(newest, *(path.stat().st_mtime for path in folder.rglob("*.py")))
    return newest


_SOURCES = _fingerprint()


class Context:
    """What a running job may use: settings, store, progress, and whether it should go on."""

    def __init__(self, settings: Settings, store: Store, job: Job, worker: str) -> None:
        self.settings = settings
        self.store = store
        self.job = job
        self.worker = worker
        self.ended = threading.Event()
        self._progress: dict[str, Any] = {"text": "Starting", "fraction": None}
        self._stop_beating = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def progress(self, text: str, fraction: float | None = None, **extra: Any) -> None:
        """Say what is being done; raises trial.Cancelled where the job should end."""
        self._progress = {"text": text, "fraction": fraction, **extra}
        self.check()

    def check(self) -> None:
        """Raise trial.Cancelled where the job should end."""
        if self.ended.is_set():
            raise trial.Cancelled

    def _beat(self) -> None:
        while not self._stop_beating.is_set():
            try:
                if not self.store.heartbeat(self.job.id, self.worker, self._progress):
                    self.ended.set()
            except StoreError as error:
                log.warning("heartbeat of job %s failed: %s", self.job.id, error)
            self._stop_beating.wait(HEARTBEAT_S)

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Heartbeats for as long as the block runs."""
        self._heart.start()
        try:
            yield
        finally:
            self._stop_beating.set()
            self._heart.join(20.0)


# --- the jobs ---------------------------------------------------------------------------------------------


def _setup(context: Context) -> Mapping[str, Any]:
    from tritune.servers import embedded

    embedded.set_up(context.settings, context.progress)
    return {}


def _server_start(context: Context) -> Mapping[str, Any]:
    from tritune import servers
    from tritune.servers import embedded

    payload = context.job.payload
    kind = servers.ServerKind(payload.get("kind", "embedded"))
    if kind is servers.ServerKind.EMBEDDED and not embedded.is_set_up(context.settings):
        embedded.set_up(context.settings, context.progress)
    status = servers.start(
        context.settings,
        kind,
        image=payload.get("image"),
        gpus=payload.get("gpus"),
        port_base=payload.get("port_base"),
        progress=context.progress,
    )
    return status.to_dict()


def _model_build(context: Context) -> Mapping[str, Any]:
    from tritune import publish

    payload = context.job.payload
    return publish.build_mnist(
        context.settings,
        opset=payload.get("opset"),
        simplify=bool(payload.get("simplify")),
        retrain=bool(payload.get("retrain")),
        progress=context.progress,
    )


def _model_add(context: Context) -> Mapping[str, Any]:
    from tritune import publish

    payload = context.job.payload
    path = Path(payload["path"])
    try:
        return publish.add(context.settings, path, payload.get("name"), progress=context.progress)
    finally:
        if path.parent == context.settings.uploads:  # published or refused, it is not needed again
            path.unlink(missing_ok=True)


def _load_model(context: Context) -> Mapping[str, Any]:
    from tritune import deploy, servers
    from tritune.repository import ModelRepository

    model = context.job.payload["model"]
    context.progress(f"Loading {model}")
    triton = servers.connect(context.settings)
    served = deploy.load(triton, ModelRepository(context.settings.model_repo), model)
    return {"model": model, "served": served.to_dict()}


def _unload_model(context: Context) -> Mapping[str, Any]:
    from tritune import servers

    model = context.job.payload["model"]
    context.progress(f"Unloading {model}")
    servers.connect(context.settings).unload(model)
    return {"model": model}


def _tune(context: Context) -> Mapping[str, Any]:
    from tritune import deploy, servers, switch
    from tritune.repository import ModelRepository

    payload = context.job.payload
    model = payload["model"]
    repository = ModelRepository(context.settings.model_repo)
    triton = servers.connect(context.settings)
    if payload.get("undo"):
        last = last_tune(context.store, model)
        if last is None or last.result is None:
            raise InputError(f"There is no tune of {model} to undo. `tritune tune {model} …` makes one.")
        if repository.config_text(model) != last.result["after"]:
            raise InputError(
                f"The config.pbtxt of {model} was changed since the last tune, and undo would lose that change. "
                f"Edit the file, or tune {model} again."
            )
        wanted, more = deploy.earlier(repository, model, last.result["before"]), {"undo_of": last.id}
    else:
        wanted, more = deploy.preview(repository, model, TuneChange.from_dict(payload["change"])), {}
    if payload.get("without_stall"):
        pid = servers.status(context.settings).pid
        applied = switch.apply(triton, repository, wanted, context.progress, server_pid=pid)
    else:
        applied = deploy.apply(triton, repository, wanted, context.progress)
    return {**applied.to_dict(), **more}


def last_tune(store: Store, model: str) -> Job | None:
    """The newest finished tune of a model that has not been undone, or None."""
    undone: set[int] = set()
    for job in store.jobs([JobKind.TUNE], limit=1000):
        if job.payload["model"] != model or job.state is not JobState.FINISHED or job.result is None:
            continue
        if job.result.get("undo_of") is not None:
            undone.add(job.result["undo_of"])
        elif job.id not in undone and job.result.get("diff"):
            return job
    return None


def _load_test(context: Context) -> Mapping[str, Any]:
    payload = context.job.payload
    plan = LoadPlan.from_dict(payload["plan"])
    return trial.run(context, plan, labels=payload.get("labels") or {}, note=payload.get("note") or "")


def _find_rate(context: Context) -> Mapping[str, Any]:
    from tritune import find_rate
    from tritune.search import RateGoal

    payload = context.job.payload
    plan, goal = LoadPlan.from_dict(payload["plan"]), RateGoal.from_dict(payload["goal"])
    return find_rate.run(context, plan, goal, labels=payload.get("labels") or {}, note=payload.get("note") or "")


def _sweep(context: Context) -> Mapping[str, Any]:
    from tritune import study

    return study.run(context)


_JOBS: Mapping[JobKind, Callable[[Context], Mapping[str, Any]]] = {
    JobKind.SETUP: _setup,
    JobKind.SERVER_START: _server_start,
    JobKind.MODEL_BUILD: _model_build,
    JobKind.MODEL_ADD: _model_add,
    JobKind.LOAD_MODEL: _load_model,
    JobKind.UNLOAD_MODEL: _unload_model,
    JobKind.TUNE: _tune,
    JobKind.LOAD_TEST: _load_test,
    JobKind.FIND_RATE: _find_rate,
    JobKind.SWEEP: _sweep,
}


# --- the loop ---------------------------------------------------------------------------------------------


def run(settings: Settings, *, service: bool = False, idle_exit_s: float = IDLE_EXIT_S) -> bool:
    """Work until told to end, or (unless `service`) until idle; returns False where another worker is at work."""
    settings.results.mkdir(parents=True, exist_ok=True)
    stop = threading.Event()
    current: list[Context] = []

    def end(_signal: int, _frame: object) -> None:
        stop.set()
        for context in current:
            context.ended.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    while True:
        lock = _try_lock(settings)
        if lock is None:
            return False
        with lock:
            store = Store.of(settings)
            _tidy(settings, store)
            for job_id in store.fail_lost(older_than_s=0.0, reason=LOST):
                log.warning("job %s was running when its worker ended", job_id)
            is_newest = _work(settings, store, stop, current, service, idle_exit_s)
        # Whoever saw the lock held did not start a worker: look once more after letting it go.
        waiting = not stop.is_set() and any(job.state is JobState.WAITING for job in store.jobs(active=True))
        store.close()
        if waiting and not is_newest:
            start(settings)
        if not waiting or not is_newest:
            return True


def _tidy(settings: Settings, store: Store) -> None:
    """What a lost worker's study left on the server goes, before that study counts as ended: a worker that is lost
    meanwhile leaves it to the next one."""
    for job in store.jobs([JobKind.SWEEP], active=True):
        if job.state is JobState.RUNNING and job.home in (None, store.home):
            from tritune import study

            try:
                study.tidy(settings, store, job)
            except Exception:  # no worker may be kept from working by what another one left
                log.exception("what job %s left could not be put back", job.id)


def _work(
    settings: Settings, store: Store, stop: threading.Event, current: list[Context], service: bool, idle_exit_s: float
) -> bool:
    """Claim and do jobs until there is nothing to do; returns False where this program is no longer the newest."""
    worker = f"{socket.gethostname()}:{os.getpid()}"
    idle_since = looked_at = time.monotonic()
    while not stop.is_set():
        if time.monotonic() - looked_at > UPDATE_LOOK_S:
            looked_at = time.monotonic()
            if _fingerprint() != _SOURCES:
                log.info("the program was updated; a worker with the new one takes over")
                return False
        try:
            job = store.claim(worker)
        except StoreError as error:
            log.warning("%s", error)
            if not service and time.monotonic() - idle_since > idle_exit_s:
                raise  # whoever needs one starts one, perhaps with another database
            stop.wait(STORE_WAIT_S)
            continue
        if job is not None:
            context = Context(settings, store, job, worker)
            current.append(context)
            _do(context, stop)
            current.clear()
            idle_since = time.monotonic()
        elif not service and time.monotonic() - idle_since > idle_exit_s:
            if not _somebody_watches(settings):
                return True
            idle_since = time.monotonic()
        else:
            stop.wait(POLL_S)
    return True


def _do(context: Context, stop: threading.Event) -> None:
    """Do one job and end it in the store, whatever happens."""
    job = context.job
    log.info("job %s %s", job.id, job.kind)
    result: Mapping[str, Any] | None = None
    error: str | None = None
    with context.beating():
        try:
            result = _JOBS[job.kind](context)
            state = JobState.FINISHED
        except trial.Cancelled:
            state = JobState.FAILED if stop.is_set() else JobState.CANCELLED
            error = "The worker was stopped before this was done." if stop.is_set() else None
        except trial.TrialEnded as ended:
            state, result, error = ended.state, ended.result, ended.reason
        except TrituneError as told:
            state, error = JobState.FAILED, str(told)
        except Exception as unexpected:
            log.exception("job %s failed unexpectedly", job.id)
            state = JobState.FAILED
            error = (
                f"An unexpected fault ended this job: {type(unexpected).__name__}: {unexpected}. "
                f"The details are in {context.settings.worker_log}."
            )
    if stop.is_set() and job.kind is JobKind.SWEEP and state in (JobState.CANCELLED, JobState.FAILED):
        state, error = JobState.INTERRUPTED, f"The worker was stopped. `tritune study resume s{job.id}` goes on."
    for _ in range(10):
        try:
            context.store.finish_job(job.id, context.worker, state, result=result, error=error)
            break
        except StoreError as full:
            log.error("job %s could not be finished in the store: %s", job.id, full)
            time.sleep(2.0)
    log.info("job %s %s%s", job.id, state, f": {error}" if error else "")


# --- who works --------------------------------------------------------------------------------------------


def _try_lock(settings: Settings) -> IO[str] | None:
    """The installation's worker lock, or None where another process holds it."""
    lock = settings.worker_lock.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return None
    return lock


def _somebody_watches(settings: Settings) -> bool:
    with settings.app_lock.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def is_running(settings: Settings) -> bool:
    """Whether a worker of this installation is at work."""
    if not settings.worker_lock.exists():
        return False
    lock = _try_lock(settings)
    if lock is None:
        return True
    lock.close()
    return False


def ensure(settings: Settings) -> None:
    """Start a detached worker where none is at work. Safe to call often. With TRITUNE_WORKER=service something else
    keeps one (docker-compose.yml does), and none is started.

    Raises StoreError where the results folder cannot be written.
    """
    if os.environ.get("TRITUNE_WORKER") == "service":
        return
    try:
        settings.results.mkdir(parents=True, exist_ok=True)
        _started[:] = [process for process in _started if process.poll() is None]
        if is_running(settings):
            return
        _started.append(start(settings))
    except OSError as error:
        raise StoreError(
            f"The results folder {settings.results} cannot be used: {error.strerror}. Set TRITUNE_RESULTS to another."
        ) from error


def start(settings: Settings, *, service: bool = False) -> subprocess.Popen[bytes]:
    """Start a worker process in a session of its own, its output in `results/worker.log`. Raises OSError."""
    settings.results.mkdir(parents=True, exist_ok=True)
    with settings.worker_log.open("a") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tritune.cli", "worker", *(["--service"] if service else [])],
            cwd=settings.root,
            env=child_environment(settings),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment of a process that imports this checkout, also where it is not installed, and works on these
    settings, also where they were given relative to another folder.
    """
    path = os.pathsep.join(part for part in (str(settings.root), os.environ.get("PYTHONPATH", "")) if part)
    return {**os.environ, **settings.environment(), "PYTHONPATH": path}
