"""What a `sweep` job is asked with: the plan expanded against what the server serves now.

Belongs here: looking at server and repository before a study waits in line. Never: which combinations exist
(study_space), the rounds (study).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loadgen.payload import payloads
from tritune import model_config, onnx_model, servers, study_space, trial
from tritune.errors import InputError, ServerError
from tritune.load_plan import LoadPlan
from tritune.model_config import ModelConfig
from tritune.plan import JobKind, JobState
from tritune.repository import ModelRepository
from tritune.settings import Settings
from tritune.store import Job, Store, Trial
from tritune.study_plan import StudyPlan
from tritune.triton import Triton
from tritune.variants import renamed

SERVED = "served"
NOT_PUT_BACK = "not_put_back"
"""The note of a study after which something else is served than before it."""


def prepare(settings: Settings, plan: StudyPlan, *, note: str = "") -> tuple[dict[str, Any], list[str]]:
    """What a `sweep` job is asked with: the plan, its candidates and loads, and what the server serves now; and what it
    comes to, in sentences.

    Raises ServerDownError, UnknownModelError, InputError where it cannot be run here.
    """
    triton = servers.connect(settings)
    store = Store.of(settings)
    repository = ModelRepository(settings.model_repo)
    trial.check_model(settings, triton, LoadPlan(model=plan.model, concurrency=1))
    is_known = plan.model in {entry.name for entry in repository.models()}
    if not triton.has_model_config:
        raise InputError(
            f"The server at {triton.endpoints.http} does not tell a model's configuration, so none can be compared."
        )
    found = _found(store, triton, plan.model)
    written = repository.completed(plan.model, repository.config_text(plan.model)) if found is None else None
    base = written or model_config.from_served(found or {})
    if plan.baseline != SERVED:
        base = _configuration_of(store.trial(plan.baseline), plan)
    entry = repository.entry(plan.model) if is_known else None
    onnx = onnx_model.inspect(entry.onnx_path) if entry is not None and entry.onnx_path is not None else None
    expansion = study_space.expand(plan, base, onnx, entry.versions if entry is not None else None)
    if (len(expansion.candidates) > 1 or plan.baseline != SERVED) and not triton.has_model_control:
        raise InputError(
            f"The server at {triton.endpoints.http} does not let models be loaded, so only what it serves can be "
            "measured. Leave the knobs and --baseline out, or start it with --model-control-mode=explicit."
        )
    for load in expansion.loads:
        trial.check_disk(settings, load)
        payloads(base.signature, load, count=1)
    asked = {
        "model": plan.model,
        "title": plan.title,
        "plan": plan.to_dict(),
        "candidates": [candidate.to_dict() for candidate in expansion.candidates],
        "loads": [load.to_dict() for load in expansion.loads],
        "left_out": [left_out.to_dict() for left_out in expansion.left_out],
        "baseline": 0,
        "base_config": base.text,
        "found": found,
        "labels": {},
        "note": note,
    }
    return asked, expansion.sentences()


def brought_up_to_date(settings: Settings, store: Store, job: Job) -> Mapping[str, Any] | None:
    """What a job is to be asked with as it begins, where something else is served than when it was asked for (a tune
    was in line before it, or the study is resumed a day later); None: as it is.

    The plan of a study that has trials stays; what it puts back in the end is what it finds now. Raises InputError
    where the plan cannot be run any more.
    """
    asked = job.payload
    plan = StudyPlan.from_dict(asked["plan"])
    if job.notes and job.notes[-1]["code"] == NOT_PUT_BACK:
        return None
    try:
        triton = servers.connect(settings)
        now = triton.config(plan.model) if triton.has_model_config and triton.model_ready(plan.model) else None
    except ServerError:
        return None  # its first trial says so
    if now == asked.get("found"):
        return None
    if plan.baseline != SERVED or store.trials(study_id=f"s{job.id}", limit=1):
        return {**asked, "found": now}
    return prepare(settings, plan, note=asked.get("note") or "")[0]


def _found(store: Store, triton: Triton, model: str) -> dict[str, Any] | None:
    """What is served of the model; while a study of it runs here, what was served before that one."""
    for job in store.jobs([JobKind.SWEEP], active=True):
        if job.state is JobState.RUNNING and job.home == store.home and job.payload["model"] == model:
            return dict(job.payload["found"]) if job.payload.get("found") else None
    return triton.config(model) if triton.model_ready(model) else None


def _configuration_of(made: Trial, plan: StudyPlan) -> ModelConfig:
    served = made.provenance.get("served_config")
    if made.model != plan.model or not served:
        raise InputError(
            f"Trial {made.trial_id} is of {made.model} and cannot be the baseline of {plan.model}. Name a trial of "
            "this model whose served configuration is known."
        )
    return renamed(model_config.from_served(served), plan.model)  # it was perhaps served side by side
