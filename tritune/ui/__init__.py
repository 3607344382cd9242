"""What every page shares: the frame, the guard, submitting jobs, cached reads, empty states.

Only this package imports streamlit, besides app.py and pages/. A `…_view` module holds what a page's 100 lines do not.
Belongs here: drawing and reading. Never: SQL, processes, statistics, requests to Triton other than through the core.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import streamlit as st

from tritune import jobs, model_config, servers, worker
from tritune.errors import ServerError, StoreError, TrituneError
from tritune.model_config import ModelConfig
from tritune.plan import Configuration, JobKind, JobState
from tritune.repository import ModelRepository
from tritune.servers import ServerKind, ServerState, ServerStatus
from tritune.settings import Settings
from tritune.store import Job, Store, Trial
from tritune.triton import Triton
from tritune.ui import wording

log = logging.getLogger("tritune.ui")

HOME = "app.py"
PAGES: Mapping[str, tuple[tuple[str, str, str], ...]] = {
    "": ((HOME, "Home", ":material/home:"),),
    "Set up": (
        ("pages/model.py", "Model", ":material/deployed_code:"),
        ("pages/server.py", "Server", ":material/dns:"),
        ("pages/tune.py", "Tune", ":material/tune:"),
    ),
    "Measure": (
        ("pages/load_test.py", "Load test", ":material/speed:"),
        ("pages/sweep.py", "Sweep", ":material/grid_view:"),
    ),
    "Results": (
        ("pages/compare.py", "Compare", ":material/bar_chart:"),
        ("pages/history.py", "History", ":material/history:"),
    ),
    "Help": (
        ("pages/try_it.py", "Try it", ":material/draw:"),
        ("pages/doctor.py", "Doctor", ":material/stethoscope:"),
    ),
}
KINDS: Mapping[JobKind, str] = {
    JobKind.SETUP: "Set-up",
    JobKind.SERVER_START: "Server start",
    JobKind.MODEL_BUILD: "Model build",
    JobKind.MODEL_ADD: "Model import",
    JobKind.LOAD_MODEL: "Load",
    JobKind.UNLOAD_MODEL: "Unload",
    JobKind.TUNE: "Tune",
    JobKind.LOAD_TEST: "Load test",
    JobKind.FIND_RATE: "Rate search",
    JobKind.SWEEP: "Study",
    JobKind.IMPORT: "Import",
}
_BARS = (
    '<g fill="#17826F"><rect x="1" y="14" width="6" height="14" rx="2"/>'
    '<rect x="10" y="4" width="6" height="24" rx="2"/><rect x="19" y="9" width="6" height="19" rx="2"/></g>'
)
# An icon of Streamlit's (":material/…:") as page icon would be fetched from fonts.gstatic.com.
ICON = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-3 0 32 32" height="64" width="64">{_BARS}</svg>'
LOGO = (
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 132 32" height="32" width="132">{_BARS}'
    '<text x="34" y="24" font-family="sans-serif" font-size="22" font-weight="650" fill="#17826F">Tritune</text></svg>'
)


# --- the frame of a page ----------------------------------------------------------------------------------


def frame(title: str, purpose: str) -> None:
    """The first statement of every page: page settings, navigation, title and status line.

    Ends the page with one sentence where the store cannot be read, since no page could then show anything.
    """
    st.set_page_config(page_title=f"{title} · Tritune", page_icon=ICON, layout="wide", initial_sidebar_state=220)
    st.logo(LOGO, size="large")
    for group, pages in PAGES.items():
        if group:
            st.sidebar.caption(group)
        for path, label, page_icon in pages:
            st.sidebar.page_link(path, label=label, icon=page_icon, width="stretch")
    usable = False
    with guard():
        _watch(str(settings().app_lock))
        _status_line()
        usable = True
    st.title(title)
    st.caption(purpose)
    if not usable:
        st.stop()
    if (ended := st.session_state.pop("ended_job", None)) is not None:
        with guard():
            job = store().job(ended)
            good = job.state is JobState.FINISHED
            st.toast(f"{KINDS[job.kind]} {job.state}", icon=":material/check_circle:" if good else ":material/error:")


@contextmanager
def guard() -> Iterator[None]:
    """Turn whatever is raised inside into one sentence on the page; nobody sees a traceback."""
    try:
        yield
    except TrituneError as error:
        st.error(wording.plain(str(error)), icon=":material/error:")
    except Exception as error:
        where = _write_log(error)
        st.error(
            wording.plain(
                f"Something went wrong that Tritune did not expect ({type(error).__name__}). Details: {where}."
            ),
            icon=":material/bug_report:",
        )


def live(draw: Callable[[], None], *, running: bool, every: str = "1s") -> None:
    """Draw now, and again every second while something runs; guarded like the page."""

    @st.fragment(run_every=every if running else None)
    def guarded() -> None:
        with guard():
            draw()

    guarded()


def _write_log(error: Exception) -> str:
    """Append the traceback to app.log; returns where it went."""
    log.error("unexpected error on a page", exc_info=error)
    try:
        path = settings().results / "app.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = logging.FileHandler(path)
    except (OSError, TrituneError):
        return "the terminal that runs the app"
    try:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        handler.handle(logging.LogRecord("tritune.ui", logging.ERROR, "", 0, "%s", (error,), _info(error)))
    finally:
        handler.close()
    return str(path)


def _info(error: Exception) -> tuple[type[BaseException], BaseException, Any]:
    return type(error), error, error.__traceback__


@st.cache_resource(show_spinner=False, on_release=os.close)
def _watch(path: str) -> int:
    """Hold the app's lock for as long as this process lives, so that the worker knows that somebody watches."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        raise StoreError(
            f"The results folder {Path(path).parent} cannot be written: {error.strerror}. "
            "Make it writable or set TRITUNE_RESULTS to another folder."
        ) from error
    return lock


def _status_line() -> None:
    """Server, model and running jobs; looks every second while a job runs, and redraws the page when one ends."""
    seen = store().jobs(active=True)
    ids = [job.id for job in seen]

    def draw() -> None:
        active = store().jobs(active=True)
        if active:
            # A worker that was killed leaves its jobs waiting for the next one.
            worker.ensure(settings())
        if [job.id for job in active] != ids:
            ended = set(ids) - {job.id for job in active}
            if ended:
                st.session_state["ended_job"] = max(ended)
            forget()
            st.rerun()
        for job in reversed(active):
            _job_progress(job)

    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        status = server_status()
        st.markdown(_server_badge(status), width="content")
        if (name := st.session_state.get("model_choice")) or (name := _first_model()):
            st.markdown(f":gray-badge[:material/deployed_code: {wording.plain(name)}]", width="content")
        if not seen:
            st.markdown(":gray-badge[:material/check: nothing running]", width="content")
    live(draw, running=bool(seen))


def _server_badge(status: ServerStatus) -> str:
    color, icon, words = {
        ServerState.READY: ("green", "check_circle", "Triton ready"),
        ServerState.STARTING: ("orange", "hourglass_top", "Triton starting"),
        ServerState.STOPPED: ("gray", "stop_circle", "Triton stopped"),
        ServerState.FAILED: ("red", "error", "Triton failed"),
    }[status.state]
    where = f" · {status.kind} · {status.endpoints.http}" if status.kind and status.endpoints else ""
    return f":{color}-badge[:material/{icon}: {words}{wording.plain(where)}]"


def _job_progress(job: Job) -> None:
    with st.container(horizontal=True, vertical_alignment="center"):
        text = wording.plain(str(job.progress.get("text") or job.state))
        words = f"**{KINDS[job.kind]}** · {text}{time_left(job)}"
        if job.cancel_requested:
            words = f"**{KINDS[job.kind]}** · ending…"
        if job.progress.get("fraction") is None:
            since = f" · {wording.duration(time.time() - job.started_at)}" if job.started_at else ""
            st.markdown(f":material/progress_activity: {words}{since}")
        else:
            st.progress(fraction(job), text=words)
        if st.button("Cancel", key=f"cancel_{job.id}", icon=":material/close:", disabled=job.cancel_requested):
            store().request_cancel(job.id)
            st.rerun()


# --- jobs -------------------------------------------------------------------------------------------------


def submit(kind: JobKind, payload: Mapping[str, Any], *, to: str | None = None) -> None:
    """Ask the worker for a job, then draw the page again (or go to page `to`)."""
    jobs.submit(settings(), store(), kind, payload)
    forget()
    if to is not None:
        st.switch_page(to)
    st.rerun()


def active(*kinds: JobKind) -> Job | None:
    """The oldest waiting or running job of these kinds (of any kind without arguments)."""
    found = store().jobs(kinds or None, active=True)
    return found[-1] if found else None


def last(kind: JobKind, model: str | None = None) -> Job | None:
    """The newest job of a kind that has ended."""
    for job in store().jobs([kind], limit=50):
        if job.state.is_final and (model is None or job.payload.get("model", model) == model):
            return job
    return None


def outcome(job: Job | None, good: str = "") -> None:
    """How a job ended: its reason where it failed, `good` where it finished."""
    if job is None:
        return
    when = wording.ago(job.finished_at)
    if job.state is JobState.FINISHED:
        if good:
            st.success(f"{good} :gray[({when})]", icon=":material/check_circle:")
    elif job.state is JobState.CANCELLED:
        st.caption(f"The last {KINDS[job.kind].lower()} was cancelled {when}.")
    else:
        reason = job.error or "The worker ended before it was done. Start it again."
        st.error(wording.plain(reason), title=f"{KINDS[job.kind]} {job.state}, {when}", icon=":material/error:")


def fraction(job: Job) -> float:
    """How much of a job is done, 0 to 1; what cannot be known reads 0."""
    value = job.progress.get("fraction")
    good = isinstance(value, int | float) and math.isfinite(value)
    return min(1.0, max(0.0, float(value))) if good and value is not None else 0.0


def time_left(job: Job) -> str:
    """` · 12 s left`, or nothing where it cannot be said."""
    if running := job.progress.get("live"):
        left = float(running["total_s"]) - float(running["elapsed_s"])
    elif job.started_at is not None and (done := fraction(job)) > 0.02:
        left = (time.time() - job.started_at) * (1 - done) / done
    else:
        return ""
    return f" · {wording.duration(max(0.0, left))} left"


# --- reads ------------------------------------------------------------------------------------------------


def settings() -> Settings:
    """This installation's paths."""
    return Settings.from_env()


@st.cache_resource(show_spinner=False, on_release=Store.close)
def _store(url: str, home: str) -> Store:
    return Store(url, home=home)


def store() -> Store:
    """The store of jobs and trials."""
    return _store(settings().database_url, settings().home)


def _revision() -> str:
    """Changes with every job that begins or ends, so that no cached read outlives what changed it."""
    return " ".join(f"{job.id}{job.state}" for job in store().jobs(limit=8))


@st.cache_data(ttl=2.0, max_entries=8, show_spinner=False)
def _status(results: str, revision: str) -> ServerStatus:
    return servers.status(settings())


def server_status() -> ServerStatus:
    """The server as it was within the last 2 s."""
    return _status(str(settings().results), _revision())


def triton() -> Triton:
    """A connection to the running server. Raises ServerDownError where there is none."""
    return servers.connect(settings())


def repository() -> ModelRepository:
    """The model repository on disk."""
    return ModelRepository(settings().model_repo)


def forget() -> None:
    """Read everything anew: something has changed."""
    _status.clear()
    _served.clear()
    _elsewhere.clear()


def is_ready() -> bool:
    """Whether a server answers."""
    return server_status().state is ServerState.READY


def is_elsewhere() -> bool:
    """Whether the server is one that somebody else runs, with a model repository of its own."""
    return is_ready() and server_status().kind is ServerKind.REMOTE


def _first_model() -> str | None:
    names = model_names()
    return names[0] if names else None


def model_names() -> list[str]:
    """Models of the repository, and those that a server elsewhere serves."""
    names = [entry.name for entry in repository().models()]
    if is_elsewhere():
        names += [name for name in _elsewhere(str(settings().results), _revision()) if name not in names]
    return names


@st.cache_data(ttl=2.0, max_entries=8, show_spinner=False)
def _elsewhere(results: str, revision: str) -> list[str]:
    """What a server elsewhere lists; nothing where it does not say."""
    try:
        return [str(model["name"]) for model in triton().index()]
    except ServerError:
        return []


@st.cache_data(ttl=2.0, max_entries=32, show_spinner=False)
def _served(results: str, model: str, revision: str) -> Mapping[str, Any] | None:
    try:
        return triton().config(model)
    except ServerError:
        return None


def served_config(model: str) -> ModelConfig | None:
    """What the server says it serves, as it was within the last 2 s; None where it serves nothing or does not say."""
    document = _served(str(settings().results), model, _revision()) if is_ready() else None
    return None if document is None else model_config.from_served(document)


def served_configuration(model: str) -> Configuration | None:
    """The knobs of what is served, or None."""
    served = served_config(model)
    return None if served is None else served.configuration


def finished_trials() -> Sequence[Trial]:
    """Trials with a measurement, newest first."""
    return [trial for trial in store().trials() if trial.measurement is not None]


# --- empty states ------------------------------------------------------------------------------------------------


def empty(sentence: str, page: str, label: str) -> None:
    """An empty state: a sentence and a link to the page that fills it."""
    with st.container(border=True):
        st.markdown(wording.plain(sentence))
        st.page_link(page, label=label, icon=":material/arrow_forward:")
