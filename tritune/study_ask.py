"""What a `sweep` job is asked with: the plan expanded against what the server serves now.

Belongs here: looking at server and repository before a study waits in line. Never: which combinations exist
(study_space), the rounds (study).
"""

from __future__ import annotations

from typing import Any

from loadgen.payload import payloads
from tritune import model_config, onnx_model, servers, study_space, trial
from tritune.errors import InputError
from tritune.load_plan import LoadPlan
from tritune.model_config import ModelConfig
from tritune.repository import ModelRepository
from tritune.settings import Settings
from tritune.store import Store, Trial
from tritune.study_plan import StudyPlan


def prepare(settings: Settings, plan: StudyPlan, *, note: str = "") -> tuple[dict[str, Any], list[str]]:
    """What a `sweep` job is asked with: the plan, its candidates and loads, and what the server serves now; and what it
    comes to, in sentences.

    Raises ServerDownError, UnknownModelError, InputError where it cannot be run here.
    """
    triton = servers.connect(settings)
    repository = ModelRepository(settings.model_repo)
    trial.check_model(settings, triton, LoadPlan(model=plan.model, concurrency=1))
    is_known = plan.model in {entry.name for entry in repository.models()}
    if not triton.has_model_config:
        raise InputError(
            f"The server at {triton.endpoints.http} does not tell a model's configuration, so none can be compared."
        )
    found = triton.config(plan.model) if triton.model_ready(plan.model) else None
    written = repository.completed(plan.model, repository.config_text(plan.model)) if found is None else None
    base = written or model_config.from_served(found or {})
    if plan.baseline != "served":
        base = _configuration_of(Store.of(settings).trial(plan.baseline), plan)
    entry = repository.entry(plan.model) if is_known else None
    onnx = onnx_model.inspect(entry.onnx_path) if entry is not None and entry.onnx_path is not None else None
    expansion = study_space.expand(plan, base, onnx, entry.versions if entry is not None else None)
    if len(expansion.candidates) > 1 and not triton.has_model_control:
        raise InputError(
            f"The server at {triton.endpoints.http} does not let models be loaded, so only what it serves can be "
            "measured. Leave the knobs out, or start it with --model-control-mode=explicit."
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


def _configuration_of(made: Trial, plan: StudyPlan) -> ModelConfig:
    served = made.provenance.get("served_config")
    if made.model != plan.model or not served:
        raise InputError(
            f"Trial {made.trial_id} is of {made.model} and cannot be the baseline of {plan.model}. Name a trial of "
            "this model whose served configuration is known."
        )
    return model_config.from_served(served)
