"""The further knobs as widgets: threads, version, warm-up, queue and priorities, cache, and what needs a GPU.

Belongs here: one widget a knob and which of them are shown. Never: limits and rules (the core checks them again).
"""

from __future__ import annotations

from collections.abc import Iterable

import streamlit as st

from tritune import knobs, ui
from tritune.errors import InputError, ServerError
from tritune.knobs import Knob, KnobKind, Scalar
from tritune.plan import Configuration
from tritune.ui import wording

LEFT_OUT = "not set"
GROUPS = {
    "Version and warm-up": ("model_version", "model_warmup"),
    "ONNX Runtime": (
        "intra_op_thread_count",
        "inter_op_thread_count",
        "execution_mode",
        "graph_optimization_level",
    ),
    "Queue": (
        "timeout_action",
        "default_timeout_microseconds",
        "allow_timeout_override",
        "max_queue_size",
        "priority_levels",
        "default_priority_level",
    ),
    "Cache": ("response_cache",),
}
_LARGEST_IN_A_BROWSER = 2**53 - 1


@st.cache_data(ttl=5.0, max_entries=8, show_spinner=False)
def _has_gpu(results: str, address: str) -> bool:
    """`address` changes with the server."""
    try:
        with ui.triton() as triton:
            return bool(triton.has_gpu())
    except ServerError:
        return False


def has_gpu() -> bool:
    """Whether the server is known to have a GPU."""
    status = ui.server_status()
    if not ui.is_ready() or status.endpoints is None:
        return False
    return status.gpus not in (None, "none") or _has_gpu(str(ui.settings().results), status.endpoints.http)


def further(model: str, written: Configuration, key: str, *, batching: bool) -> dict[str, Scalar | None] | None:
    """The widgets, with what is written in them; returns what they ask for beyond that (a knob with None is taken out),
    or None where one holds what it cannot have, which is said there."""
    before = dict(written.further)
    versions = ui.repository().entry(model).versions
    asked: dict[str, Scalar | None] = {}
    refused: list[str] = []

    def group(title: str, names: Iterable[str]) -> None:
        st.markdown(f"**{title}**")
        with st.grid(4, min_column_width=180, gap="small"):
            for name in names:
                knob = knobs.KNOBS[name]
                off = knob.needs_batching and not batching  # it goes with the batching, so nothing is asked of it
                try:
                    found = _widget(
                        knob, before.get(name), versions if name == "model_version" else (), f"{name}_{key}", off
                    )
                    if not off:
                        asked[name] = found
                except InputError as error:  # the other widgets must still be drawn, or they forget their values
                    refused.append(str(error))

    with st.expander(f"More settings ({len(before) or 'none'} set)", icon=":material/tune:"):
        for title, names in GROUPS.items():
            group(title, names)
        for_gpu = [name for name, knob in knobs.KNOBS.items() if knob.needs_gpu]
        set_there = [name for name in for_gpu if name in before]
        if has_gpu():
            group("GPU", for_gpu)
            st.caption("These are checked as text; they were never run by who wrote Tritune. See docs/gpu.md.")
        elif set_there:
            group("GPU, which this server does not have", set_there)
        else:
            st.caption("Settings for GPUs appear here when the server has one.")
    for sentence in refused:
        st.error(wording.plain(sentence), icon=":material/error:")
    return None if refused else {name: value for name, value in asked.items() if value != before.get(name)}


def _widget(knob: Knob, value: Scalar | None, versions: tuple[int, ...], key: str, off: bool) -> Scalar | None:
    """A knob's widget with its written value; returns the value asked for, None where it is left out."""
    label = f"{knob.label}, {knob.unit}" if knob.unit else knob.label
    hint = wording.plain(knob.hint)
    choices = _choices(knob, versions)
    if choices is not None:
        options: list[Scalar | None] = [None, *choices]
        if value not in options:
            options.append(value)
        shown = {None: "newest" if versions else LEFT_OUT} | {option: knob.words(option) for option in choices}
        return st.selectbox(
            label,
            options,
            index=options.index(value),
            format_func=lambda option: shown.get(option, str(option)),
            key=key,
            help=hint,
            disabled=off,
        )
    is_number = knob.kind is KnobKind.INT
    if is_number and (value is None or (isinstance(value, int) and value <= _LARGEST_IN_A_BROWSER)):
        if value is not None:
            # Not as the widget's own value: then it could not be emptied.
            st.session_state.setdefault(key, value)
        return st.number_input(label, value=None, step=1, key=key, placeholder=LEFT_OUT, help=hint, disabled=off)
    text = st.text_input(
        label,
        "" if value is None else str(value),
        key=key,
        placeholder=knob.example.partition(" (")[0] or LEFT_OUT,
        help=hint,
        live=True,
        disabled=off,
    )
    if text == ("" if value is None else str(value)):
        return value
    return knobs.parse(knob.name, text)


def _choices(knob: Knob, versions: tuple[int, ...]) -> tuple[Scalar, ...] | None:
    if versions:
        return versions
    if knob.kind is KnobKind.BOOL:
        return (True, False)
    return tuple(knob.choices) if knob.choices else None
