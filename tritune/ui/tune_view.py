"""The tune page's parts: what is written and served, the preview of a change, the last tune's result.

Belongs here: turning widgets into a TuneChange and showing what the core says of it. Never: Triton's rules.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import streamlit as st

from tritune import deploy, model_config, ui, worker
from tritune.errors import InputError, ServerError
from tritune.knobs import KNOBS, Scalar
from tritune.plan import Configuration, JobKind, JobState, TuneChange
from tritune.ui import model_view, wording

ON_CPU = KNOBS["instance_kind"].label
"""What Triton reports of every model and nobody asked for."""


def need_local(model: str) -> None:
    """End the page for a model that this installation does not hold."""
    if ui.is_elsewhere():
        ui.empty(
            "The server that this installation is attached to reads its own model repository, "
            "so a configuration written here would not reach it.",
            "pages/server.py",
            "Start a Triton here instead",
        )
        st.stop()
    if model not in {entry.name for entry in ui.repository().models()}:
        ui.empty(
            f"{model} is served from somewhere else, so its config.pbtxt cannot be written here.",
            "pages/model.py",
            "Add the model to this repository",
        )
        st.stop()


def written(model: str) -> Configuration:
    """The configuration in config.pbtxt, or what Triton makes of none."""
    return ui.repository().config(model).configuration


def key(model: str) -> str:
    """Changes whenever config.pbtxt does, so that the widgets begin anew with its values."""
    text = ui.repository().config_text(model) or ""
    return hashlib.sha256(f"{model}\n{text}".encode()).hexdigest()[:12]


def sizes_text(configuration: Configuration) -> str:
    """Preferred sizes as people type them."""
    return ", ".join(str(size) for size in configuration.preferred_batch_size)


def parse_sizes(text: str) -> tuple[int, ...]:
    """`4, 8` → (4, 8). Raises InputError for anything that is not whole numbers."""
    parts = text.replace(",", " ").split()
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise InputError(
            f"Preferred batch sizes {text!r} must be whole numbers with commas between, such as 4, 8."
        ) from None


def change(
    before: Configuration,
    *,
    batching: bool,
    sizes: str,
    delay_us: int,
    max_batch: int,
    instances: int | None,
    further: Mapping[str, Scalar | None] | None = None,
) -> TuneChange:
    """What the widgets ask for beyond what is written. Raises InputError."""
    if not batching:
        return TuneChange(
            dynamic_batching=False if before.dynamic_batching else None,
            max_batch_size=max_batch if max_batch != before.max_batch_size else None,
            instance_count=instances if instances != before.instance_count else None,
            further=further or {},
        )
    preferred = parse_sizes(sizes)
    return TuneChange(
        dynamic_batching=True if not before.dynamic_batching else None,
        preferred_batch_size=preferred if preferred != before.preferred_batch_size else None,
        max_queue_delay_microseconds=delay_us if delay_us != before.max_queue_delay_microseconds else None,
        max_batch_size=max_batch if max_batch != before.max_batch_size else None,
        instance_count=instances if instances != before.instance_count else None,
        further=further or {},
    )


def preview(
    model: str,
    *,
    batching: bool,
    sizes: str,
    delay_us: int,
    max_batch: int,
    instances: int | None,
    further: Mapping[str, Scalar | None] | None,
) -> TuneChange | None:
    """Show what would be written, or in plain words why Triton would refuse it; None where it would. `further` None:
    one of the further knobs has been refused already."""
    if further is None:
        return None
    try:
        asked = change(
            written(model),
            batching=batching,
            sizes=sizes,
            delay_us=int(delay_us),
            max_batch=int(max_batch),
            instances=None if instances is None else int(instances),
            further=further,
        )
        if asked.is_empty:
            return asked
        would = deploy.preview(ui.repository(), model, asked)
    except InputError as error:
        st.error(wording.plain(str(error)), title="Triton would refuse this", icon=":material/error:")
        return None
    st.markdown("**What would change in config.pbtxt**")
    st.code(would.diff or "The text stays as it is.", language="diff")
    doubts = [finding for finding in model_config.findings(would.after, None, model) if finding.severity == "warning"]
    if doubts:
        model_view.findings(doubts)
    return asked


def compare(before: Configuration, served: Configuration | None) -> None:
    """Every knob as written and as served."""
    asked, now = wording.knobs(before), wording.knobs(served)
    rows = [
        {"Setting": name, "config.pbtxt": asked.get(name, "–"), "Served now": now.get(name, "–")}
        for name in (asked | now if served else asked)
        if name in asked or name != ON_CPU
    ]
    st.dataframe(rows, hide_index=True, alt="The configuration as written and as served")
    if served is None:
        st.caption("No server reports this model's configuration now.")


def needs_reload(model: str) -> bool:
    """Whether the server serves something else than what is written."""
    if (served := ui.served_config(model)) is None:
        return True
    asked = ui.repository().config(model)
    if not model_config.differences(asked, served):
        return False
    try:
        with ui.triton() as triton:
            return bool(deploy.differences(triton, model, asked, served))
    except ServerError:
        return True


def can_undo(model: str) -> bool:
    """Whether there is a tune of this model that has not been undone."""
    return worker.last_tune(ui.store(), model) is not None


def last_result(model: str) -> None:
    """How the newest tune ended: the stall and whether it is in effect, or Triton's reason."""
    job = ui.last(JobKind.TUNE, model)
    if job is None:
        return
    st.subheader("Last tune")
    if job.state is not JobState.FINISHED or job.result is None:
        ui.outcome(job)
        return
    found = job.result
    if found["verified"]:
        ui.outcome(job, "Written, reloaded, and verified against the configuration that the server reports.")
    else:
        st.warning(
            wording.plain(" ".join(found.get("differences") or ())),
            title="The server serves something else than was asked",
            icon=":material/warning:",
        )
    with st.grid(2, gap="small"):
        stall = found.get("stall_ms")
        st.metric(
            "Stall of the reload",
            wording.figure(stall, "ms"),
            border=True,
            help="The longest gap between two answers that one back-to-back client saw around the reload.",
        )
        st.metric("Triton's load call", wording.figure(found.get("reload_ms"), "ms"), border=True)
    if memory := found.get("memory"):
        st.caption(
            f"Without a stall: the server's processes held {memory['before_mib']:,.0f} MiB before, "
            f"{memory['peak_mib']:,.0f} MiB meanwhile and {memory['after_mib']:,.0f} MiB after."
        )
    if stall is None and found.get("stall_reason"):
        st.caption(f"No stall was measured: {wording.plain(str(found['stall_reason']))}")
    if found.get("diff"):
        with st.expander("What was changed"):
            st.code(found["diff"], language="diff")
