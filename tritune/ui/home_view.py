"""The four steps of the job on the home page: where each stands, and which is next.

Belongs here: reading the state of the steps and drawing them. Never: doing them (the worker does).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from tritune import ui
from tritune.plan import Configuration, JobKind, JobState
from tritune.servers import ServerKind, embedded
from tritune.store import Trial
from tritune.ui import wording


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the job. `button` submits the job `kind`, or opens `page` where there is none."""

    name: str
    icon: str
    detail: str
    done: bool
    page: str
    button: str
    kind: JobKind | None = None
    payload: Mapping[str, Any] | None = None


def steps() -> list[Step]:
    """Model, server, configuration, load test and compare: as they stand now."""
    names = ui.model_names()
    model = st.session_state.get("model_choice") or (names[0] if names else None)
    trials = [trial for trial in ui.finished_trials() if trial.model == model]
    served = ui.served_configuration(model) if model else None
    found = [_model(names, model), _server(), *_measure(served, trials, tuned=_is_tuned(model))]
    if ui.is_elsewhere():
        found[0] = _elsewhere(found[0], "The server that this installation is attached to brings its own models.")
        words = f"Served now: {served.describe()}. " if served else ""
        found[2] = _elsewhere(found[2], f"{words}It is changed where that server runs.")
    return found


def following(all_steps: Sequence[Step]) -> Step:
    """The step to do next: the set-up where it is missing, else the first that is not done, or the last."""
    for step in all_steps:
        if step.kind is JobKind.SETUP and not step.done:
            return step
    return next((step for step in all_steps if not step.done), all_steps[-1])


def _model(names: Sequence[str], model: str | None) -> Step:
    detail = "Nothing published yet. The MNIST network is built in; any ONNX file can be added."
    if model is not None:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        detail = f"{model}{more} in the repository."
    return Step(
        "Model",
        "deployed_code",
        detail,
        bool(names),
        "pages/model.py",
        "Build the MNIST model",
        JobKind.MODEL_BUILD,
        {},
    )


def _elsewhere(step: Step, detail: str) -> Step:
    """A step that is not ours to do: the server is somebody else's."""
    return replace(step, detail=detail, done=True)


def _server() -> Step:
    ready = ui.is_ready()
    detail, button, kind, payload = _server_now(ready)
    return Step("Server", "dns", detail, ready, "pages/server.py", button, kind, payload)


def _server_now(ready: bool) -> tuple[str, str, JobKind | None, Mapping[str, Any] | None]:
    """Detail, button, job and payload of the server's step."""
    status = ui.server_status()
    if ready:
        version = f"Triton {status.triton_version}" if status.triton_version else "A server"
        where = status.endpoints.http if status.endpoints else ""
        return f"{version} answers at {where}.", "Open the server page", None, None
    if reason := embedded.unsupported_reason():
        return f"{reason} You can attach to a server elsewhere.", "Attach to a server", None, None
    if not embedded.is_set_up(ui.settings()):
        detail = "The embedded Triton is not set up yet: one download of about 1 GB into a folder of its own."
        return detail, "Set up the embedded Triton", JobKind.SETUP, {}
    detail = status.reason or "The embedded Triton is set up and not running."
    return detail, "Start Triton", JobKind.SERVER_START, {"kind": str(ServerKind.EMBEDDED), "port_base": None}


def _measure(served: Configuration | None, trials: Sequence[Trial], *, tuned: bool) -> list[Step]:
    """Tune, then load test and compare: a second configuration is asked for once the first has been measured."""
    measured = {trial.configuration for trial in trials}
    unmeasured = served is None or served not in measured
    enough = len(measured) > 1
    count = "1 configuration" if len(measured) == 1 else f"{len(measured)} configurations"
    compare = enough and not unmeasured
    return [
        Step(
            name="Configuration",
            icon="tune",
            detail=f"Served now: {served.describe()}." if served else "Known as soon as a server serves the model.",
            done=enough or ((tuned or bool(trials)) and unmeasured),
            page="pages/tune.py",
            button="Try a second configuration" if trials else "Tune the batching",
        ),
        Step(
            name="Load test and compare",
            icon="bar_chart" if compare else "speed",
            detail=f"{count} measured." if measured else "Measure each configuration, then see them side by side.",
            done=False,
            page="pages/compare.py" if compare else "pages/load_test.py",
            button="Compare the configurations" if compare else "Run a load test",
        ),
    ]


def _is_tuned(model: str | None) -> bool:
    if model is None or (job := ui.last(JobKind.TUNE, model)) is None:
        return False
    return job.state is JobState.FINISHED


def draw(number: int, step: Step, following: Step, *, busy: bool) -> None:
    """One step as a row: number, state, detail, and its button."""
    is_next = step is following
    with st.container(border=True):
        left, right = st.columns([7, 3], vertical_alignment="center")
        badge = ":green-badge[:material/check: done]" if step.done else ""
        if is_next:
            badge = ":blue-badge[:material/arrow_forward: next]"
        with left.container(gap="xsmall"):
            st.markdown(f"**:material/{step.icon}: {number}. {step.name}** {badge}")
            st.markdown(wording.plain(step.detail))
        if is_next:
            if right.button(step.button, type="primary", width="stretch", disabled=busy):
                if step.kind is not None:
                    ui.submit(step.kind, step.payload or {})
                st.switch_page(step.page)
        else:
            with right.container(horizontal_alignment="right"):
                st.page_link(step.page, label="Open", icon=":material/arrow_forward:")
