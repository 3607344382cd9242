"""Every doubt about the server, provoked on the real Triton with the real generator."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen import child
from tritune import trial
from tritune.doubts import WarningCode
from tritune.load_plan import GeneratorPlan, LoadPlan
from tritune.plan import JobKind
from tritune.settings import Settings
from tritune.store import Store
from tritune.triton import Triton

Run = Callable[..., dict[str, Any]]
IO = """
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
"""
PLAIN = f'platform: "onnxruntime_onnx" max_batch_size: 8 dynamic_batching {{ }} {IO}'
NARROW = f"""platform: "onnxruntime_onnx" max_batch_size: 1 {IO}
dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }} instance_group [ {{ count: 1 kind: KIND_CPU }} ]"""


@pytest.fixture
def run(installation: Settings, triton: Triton) -> Run:
    """Make one trial as the worker does and return its document; `meanwhile` runs while it measures."""

    def go(model: str, meanwhile: Callable[[], None] | None = None, **options: Any) -> dict[str, Any]:
        plan = LoadPlan(model, **({"duration_s": 1.5, "warmup_s": 0.3} | options))
        store = Store(installation.database_url)
        job = store.job(store.insert_job(JobKind.LOAD_TEST, {"plan": plan.to_dict()}))
        begun = threading.Event()

        def progress(text: str, fraction: float | None = None, **extra: Any) -> None:
            if text == "Measuring" and meanwhile is not None and not begun.is_set():
                begun.set()
                meanwhile()

        context = SimpleNamespace(
            settings=installation, store=store, job=job, ended=threading.Event(), progress=progress
        )
        done = trial.run(context, plan, labels={}, note="")
        store.request_cancel(job.id)  # no worker shall find it waiting
        document = store.trial(done["trial_id"]).to_dict()
        store.close()
        return document

    return go


def codes(document: dict[str, Any]) -> set[str]:
    return {warning["code"] for warning in document["warnings"]}


def said(document: dict[str, Any], code: WarningCode) -> str:
    return next(warning["message"] for warning in document["warnings"] if warning["code"] == code)


@pytest.fixture
def model(
    installation: Settings, triton: Triton, publish: Callable[..., Path], request: pytest.FixtureRequest
) -> Callable[[str], str]:
    """Publish and load a model with this configuration under a name of the test's own."""

    def make(config: str) -> str:
        name = f"m{abs(hash(request.node.name)) % 10**8}"
        publish(installation.model_repo, name, config=config)
        triton.load(name)
        return name

    return make


def test_one_client_is_never_batched(run: Run) -> None:
    assert "1 client in flight" in said(run("double", concurrency=1), WarningCode.NEVER_BATCHED)


def test_few_requests_give_no_p99(run: Run) -> None:
    document = run("double", rate_rps=100.0)
    assert "P99 needs 459" in said(document, WarningCode.TOO_FEW_SAMPLES)
    assert document["latency_ms"]["p99"]["value"] is None


def test_a_full_queue_is_rejected_requests_in_tritons_words(run: Run, model: Callable[[str], str]) -> None:
    document = run(model(NARROW), concurrency=64)
    assert "maximum queue size" in said(document, WarningCode.REJECTED_REQUESTS)
    assert document["requests"]["rejected"] > 0


def test_requests_that_time_out_are_errors(run: Run) -> None:
    document = run("double", concurrency=64, timeout_s=0.002)
    assert "no answer in time" in said(document, WarningCode.ERRORS)


def test_a_file_that_is_not_what_is_served_is_not_in_effect(
    run: Run, model: Callable[[str], str], installation: Settings
) -> None:
    name = model(PLAIN)
    path = installation.model_repo / name / "config.pbtxt"
    path.write_text(PLAIN.replace("max_batch_size: 8", "max_batch_size: 4"))
    assert "max_batch_size 4 was asked and 8 is served" in said(run(name, concurrency=4), WarningCode.NOT_IN_EFFECT)


def test_a_preferred_size_that_caps_batches_is_not_in_effect(run: Run, model: Callable[[str], str]) -> None:
    capped = PLAIN.replace("dynamic_batching { }", "dynamic_batching { preferred_batch_size: [ 2 ] }")
    assert "Batches stopped at 2" in said(run(model(capped), concurrency=32), WarningCode.NOT_IN_EFFECT)


def test_a_model_that_is_reloaded_meanwhile_is_a_restart(
    run: Run, model: Callable[[str], str], installation: Settings, triton: Triton
) -> None:
    name = model(PLAIN)
    path = installation.model_repo / name / "config.pbtxt"

    def reload() -> None:
        path.write_text(PLAIN.replace("{ }", "{ max_queue_delay_microseconds: 50 }"))
        triton.load(name)

    document = run(name, reload, concurrency=4, duration_s=4.0)
    assert WarningCode.SERVER_RESTARTED in codes(document)
    assert document["server"] is None


def test_somebody_elses_requests_are_other_traffic(run: Run, triton: Triton, tmp_path: Path) -> None:
    load = LoadPlan("double", concurrency=8, duration_s=100.0, warmup_s=0.0)
    other = child.start(GeneratorPlan(load, triton.endpoints, triton.signature("double")), tmp_path / "other")
    try:
        while other.window() is None:
            assert other.poll() is None
        document = run("double", rate_rps=50.0)
    finally:
        other.cancel()
    assert "somebody else used the model" in said(document, WarningCode.OTHER_TRAFFIC)
