"""A trial ends as what it was: finished, failed with a reason, or cancelled."""

from __future__ import annotations

import threading
import time
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
from tritune.triton_statistics import GpuReading

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
        versions=lambda _: (),
        gpu=lambda: None,
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


def test_gpus_are_read_once_a_second_inside_the_window_and_a_server_without_is_asked_once() -> None:
    reading = GpuReading("GPU-1", utilization=0.5, memory_used_bytes=1e9)
    asked: list[int] = []

    def gpu(found: Any) -> Any:
        asked.append(1)
        return found

    now = time.monotonic_ns()
    window = (now - 10**9, now + 10**10)
    with_gpu = trial._Gpus(SimpleNamespace(gpu=lambda: gpu((reading,))))  # type: ignore[arg-type]
    with_gpu.look(None)
    with_gpu.look((now + 10**10, now + 2 * 10**10))
    for _ in range(5):
        with_gpu.look(window)
    document = with_gpu.document()
    assert document is not None
    assert [(point["uuid"], point["utilization"]) for point in document["series"]] == [("GPU-1", 0.5)]
    assert len(asked) == 1
    without = trial._Gpus(SimpleNamespace(gpu=lambda: gpu(None)))  # type: ignore[arg-type]
    without.look(window)
    without._looked_at = 0.0
    without.look(window)
    assert without.document() is None
    assert len(asked) == 2


def test_counters_that_begin_anew_inside_the_window_are_a_restart_also_where_more_was_counted_after() -> None:
    counts = iter([600, 4_000, 90, 5_000])
    triton = SimpleNamespace(has_statistics=True, statistics=lambda _: SimpleNamespace(inference_count=next(counts)))
    restarts = trial._Restarts(triton, "m")  # type: ignore[arg-type]
    window = (time.monotonic_ns() - 10**9, time.monotonic_ns() + 10**10)
    seen = []
    for _ in range(4):
        restarts._looked_at = 0.0
        restarts.look(window)
        seen.append(restarts.happened)
    assert seen == [False, False, True, True]
