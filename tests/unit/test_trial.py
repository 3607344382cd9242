"""A trial ends as what it was: finished, failed with a reason, or cancelled."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tritune import trial
from tritune.errors import InputError
from tritune.load_plan import LoadPlan
from tritune.plan import Endpoints, JobKind, JobState, Signature, TensorSpec, TrialState
from tritune.settings import Settings
from tritune.store import Store

PLAN = LoadPlan("m", concurrency=1)
SIGNATURE = Signature((TensorSpec("x", "FP32", (4,)),), (TensorSpec("y", "FP32", (4,)),), 8)


class Asked:
    """A job's context that is asked to end at its first sign of progress after the trial was recorded."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings = settings
        self.store = store
        self.ended = threading.Event()
        self.job = store.job(store.insert_job(JobKind.LOAD_TEST, {}))

    def progress(self, text: str, fraction: float | None = None, **extra: Any) -> None:
        if "trial_id" in extra:
            raise trial.Cancelled


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    settings = Settings.from_env(
        {"TRITUNE_RESULTS": str(tmp_path / "results"), "TRITUNE_MODEL_REPO": str(tmp_path / "models")}
    )
    triton = SimpleNamespace(
        endpoints=Endpoints("127.0.0.1:1"),
        has_model_config=False,
        model_ready=lambda name: True,
        signature=lambda name: SIGNATURE,
        listens=lambda: True,
        server_metadata=dict,
    )
    monkeypatch.setattr(trial.servers, "connect", lambda settings: triton)
    store = Store(settings.database_url)
    yield Asked(settings, store)
    store.close()


def test_a_cancel_in_the_middle_of_a_look_at_the_generator_is_a_cancelled_trial(
    context: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[bool] = []
    running = SimpleNamespace(
        poll=lambda: None, window=lambda: None, live=lambda: None, cancel=lambda: ended.append(True)
    )
    monkeypatch.setattr(trial.generator, "start", lambda plan, folder: running)
    with pytest.raises(trial.TrialEnded) as raised:
        trial.run(context, PLAN, labels={}, note="")
    assert raised.value.state is JobState.CANCELLED
    (made,) = context.store.trials()
    assert (made.state, made.error) == (TrialState.CANCELLED, None)
    assert ended == [True]


def test_a_plan_of_which_no_request_can_be_made_is_refused_before_a_trial_is_recorded(context: Asked) -> None:
    with pytest.raises(InputError, match=r"batch=9 .*8"):
        trial.run(context, LoadPlan("m", concurrency=1, batch=9), labels={}, note="")
    assert context.store.trials() == ()
