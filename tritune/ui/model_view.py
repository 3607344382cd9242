"""The model page's parts: uploads, the list of models, one model's signature and findings.

Belongs here: drawing what the repository holds. Never: writing into the repository (a job does).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from tritune import onnx_model, ui
from tritune.errors import InputError, OnnxError, StoreError
from tritune.model_rules import Finding
from tritune.onnx_model import OnnxModel
from tritune.plan import JobKind, JobState, TensorSpec
from tritune.repository import ModelEntry
from tritune.servers import ServerKind, images
from tritune.settings import Settings
from tritune.triton import Triton
from tritune.ui import wording

COPY_BYTES = 8 << 20


def choose() -> str:
    """The model this page is about, kept from page to page; ends the page where there is none."""
    names = ui.model_names()
    asked = st.query_params.get("model") or st.session_state.get("model_choice")
    if ui.is_elsewhere():
        # A server elsewhere may not list its models, so that a name can be typed.
        names = list(dict.fromkeys([*names, *([asked] if asked else [])]))
        index = names.index(asked) if asked else 0 if names else None
        chosen = st.selectbox(
            "Model", names, index, placeholder="name of a model on the server", accept_new_options=True, width=320
        )
        if chosen is None:
            st.stop()
    elif not names:
        ui.empty("There is no model yet.", "pages/model.py", "Build or add a model")
        st.stop()
    else:
        chosen = asked if asked in names else names[0]
        if len(names) > 1:
            chosen = st.selectbox("Model", names, index=names.index(chosen), width=320)
    st.session_state["model_choice"] = chosen
    return chosen


def suggested_name(file_name: str) -> str:
    """A model name that Triton accepts, from a file's name."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(file_name).stem).strip("._-")[:64] or "model"


def keep_upload(upload: Any) -> Path:
    """Write a model's upload (.onnx or .zip) under results/uploads for the worker to read. Raises StoreError."""
    kind = ".zip" if Path(upload.name).suffix.lower() == ".zip" else ".onnx"
    return _keep(upload, f"{upload.file_id}-{suggested_name(upload.name)}{kind}")


def on_this_machine(text: str) -> Path:
    """The file of that path. Raises InputError where there is none."""
    path = Path(text.strip()).expanduser()
    if not path.is_absolute() or not path.is_file():
        raise InputError(f"There is no file {text.strip()!r} on this machine. Give its whole path, from / on.")
    return path


def keep_file(upload: Any) -> str:
    """Write input data's upload likewise, once; returns its path. Raises StoreError."""
    return str(_keep(upload, f"{upload.file_id}-{suggested_name(upload.name)}{Path(upload.name).suffix.lower()}"))


def _keep(upload: Any, name: str) -> Path:
    """The upload as a file, written in parts and whole or not at all."""
    folder = ui.settings().uploads
    path, part = folder / name, folder / f".{name}.part"
    if path.is_file() and path.stat().st_size == upload.size:
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        upload.seek(0)
        with part.open("wb") as file:
            shutil.copyfileobj(upload, file, COPY_BYTES)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(
            f"The upload could not be written to {folder}: {error.strerror}. Free some space and upload again."
        ) from error
    return path


def outcome() -> None:
    """How the newest build or import ended."""
    ended = [job for kind in (JobKind.MODEL_BUILD, JobKind.MODEL_ADD) if (job := ui.last(kind)) is not None]
    job = max(ended, key=lambda job: job.id, default=None)
    if job is None or job.state is not JobState.FINISHED or job.result is None:
        ui.outcome(job)
        return
    made = job.result
    words = f"Published **{wording.plain(str(made['model']))}** version {made['version']}"
    if "accuracy" in made:
        words += f": {made['accuracy']:.2%} of the MNIST test images named rightly"
    words += ", and loaded into the running server." if made.get("loaded") else "."
    ui.outcome(job, words)


@st.cache_data(max_entries=64, show_spinner=False)
def _inspect(path: str, changed_ns: int) -> OnnxModel:
    return onnx_model.inspect(Path(path))


def inspect(entry: ModelEntry) -> OnnxModel:
    """The newest version's ONNX file, read again only where it has changed. Raises OnnxError."""
    path = entry.onnx_path
    if path is None:
        raise OnnxError(f"Model {entry.name} has no version with a model.onnx. Build or add it again.")
    try:
        changed_ns = path.stat().st_mtime_ns
    except OSError as error:
        raise OnnxError(f"{path} cannot be read: {error.strerror}. Build or add the model again.") from error
    return _inspect(str(path), changed_ns)


def table(entries: Sequence[ModelEntry]) -> None:
    """Every model: versions, whether it is served, whether its folder is sound."""
    states = {} if ui.is_elsewhere() else served_states()
    rows = []
    for entry in entries:
        problems = [finding for finding in ui.repository().check(entry.name) if finding.severity != "info"]
        rows.append(
            {
                "Model": entry.name,
                "Versions": ", ".join(str(version) for version in entry.versions) or "none",
                "On the server": _where(states, entry.name),
                "config.pbtxt": "written" if entry.has_config else "completed by Triton",
                "Check": f"{len(problems)} to look at" if problems else "nothing to mend",
            }
        )
    st.dataframe(rows, hide_index=True, alt="Models of the repository")


def _where(states: Mapping[str, str], name: str) -> str:
    if ui.is_elsewhere():
        return "the server has its own models"
    return states.get(name, "not loaded") if ui.is_ready() else "no server"


def strays() -> None:
    """What lies in the repository and is no model, where there is any."""
    if found := ui.repository().strays():
        findings(found)


def served_states() -> dict[str, str]:
    """Model name → what the server's index says of it; empty where no server answers."""
    if not ui.is_ready():
        return {}
    return index_states(ui.triton())


def index_states(triton: Triton) -> dict[str, str]:
    """Model name → `ready`, or the state and Triton's reason."""
    states: dict[str, str] = {}
    for row in triton.index():
        state = str(row.get("state") or "not loaded").lower()
        reason = str(row.get("reason") or "")
        states[str(row["name"])] = f"{state}: {reason}" if reason and state != "ready" else state
    return states


def details(entry: ModelEntry) -> None:
    """Signature, facts and findings of one model's newest version."""
    findings(ui.repository().check(entry.name))
    model = inspect(entry)
    left, right = st.columns(2)
    with left:
        st.markdown("**Inputs and outputs**")
        rows = [_tensor("input", tensor) for tensor in model.inputs] + [
            _tensor("output", tensor) for tensor in model.outputs
        ]
        st.dataframe(rows, hide_index=True, alt=f"Signature of {entry.name}")
        batch = (
            "batches: dimension 0 is free" if model.batchable else "has a fixed batch dimension: Triton cannot batch it"
        )
        st.caption(f"The model {batch}. −1 is a dimension that the request chooses.")
    with right:
        st.markdown("**Newest version**")
        facts = {
            "Version": str(max(entry.versions, default=0)),
            "Size": _size(model),
            "Opset, IR version": f"{model.opset}, {model.ir_version}",
            **_against_server(model),
            "Made by": model.producer or "unknown",
            "SHA-256": f"{model.sha256[:16]}…",
        }
        if accuracy := model.metadata.get("accuracy"):
            facts["Accuracy"] = f"{float(accuracy):.2%} of the test images"
        plain = {wording.plain(key): wording.plain(value) for key, value in facts.items()}
        st.table(plain, border="horizontal", width="content", alt=f"Facts about {entry.name}")
    if model.metadata:
        with st.expander("What the file says about itself"):
            said = {wording.plain(key): wording.plain(value[:500]) for key, value in model.metadata.items()}
            st.table(said, border="horizontal", alt=f"Metadata of {entry.name}")
    if text := ui.repository().config_text(entry.name):
        with st.expander("config.pbtxt"):
            st.code(text, language=None)


def _size(model: OnnxModel) -> str:
    mib = model.size_bytes / 2**20
    size = f"{mib / 1024:.3g} GiB" if mib >= 1024 else f"{mib:.3g} MiB" if mib >= 0.1 else f"{model.size_bytes:,} bytes"
    files = len(model.external_files)
    return f"{size}, weights in {files} file{'s' if files > 1 else ''} beside it" if files else size


def _against_server(model: OnnxModel) -> dict[str, str]:
    """The chosen server's ONNX Runtime, and whether it takes the file's opset and IR version; {} where not known."""
    status = ui.server_status()
    limits = None
    if status.kind is ServerKind.DOCKER and status.image:
        limits = images.onnx_limits(status.image)
    elif status.kind is not ServerKind.REMOTE:
        limits = images.limits_of(embedded_onnxruntime(ui.settings()))
    if limits is None:
        return {}
    misfit = limits.misfit(model.opset, model.ir_version)
    return {f"ONNX Runtime {limits.onnxruntime}": f"too new: {misfit}" if misfit else "takes both"}


def embedded_onnxruntime(settings: Settings) -> str:
    """The version of the embedded server's ONNX Runtime; empty where it is not set up."""
    found = settings.embedded_env.glob("lib/python3*/site-packages/onnxruntime-*.dist-info")
    return next((path.name.removeprefix("onnxruntime-").removesuffix(".dist-info") for path in found), "")


def findings(found: Sequence[Finding]) -> None:
    """What Triton would refuse or do otherwise, in plain words."""
    draw = {"error": st.error, "warning": st.warning, "info": st.info}
    for finding in found:
        draw[finding.severity](wording.plain(f"{finding.cause} {finding.fix}"), title=wording.plain(finding.seen))
    if not found:
        st.markdown(":green-badge[:material/check: The check found nothing that Triton would refuse]")


def _tensor(role: str, tensor: TensorSpec) -> dict[str, str]:
    return {
        "Role": role,
        "Name": tensor.name,
        "Type": tensor.datatype,
        "Shape": f"[{', '.join(str(size).replace('-', '−') for size in tensor.shape)}]",
    }
