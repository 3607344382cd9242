"""Both drivers and both protocols against the real Triton: what is claimed is what the server counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen import child
from loadgen.outcome import Outcome
from loadgen.samples import Samples, Status, read_stream
from tritune.errors import LoadTestError
from tritune.plan import Arrivals, Driver, Endpoints, GeneratorPlan, LoadPlan, Protocol, Signature
from tritune.triton import Triton

Run = Callable[..., tuple[Samples, Outcome]]


@pytest.fixture
def run(triton: Triton, tmp_path: Path) -> Run:
    """Run a load on the model `double` and check the samples against the window."""

    def go(*, model: str = "double", signature: Signature | None = None, **options: Any) -> tuple[Samples, Outcome]:
        load = LoadPlan(model, **({"duration_s": 1.5, "warmup_s": 0.5} | options))
        plan = GeneratorPlan(load, triton.endpoints, signature or triton.signature("double"))
        made = child.start(plan, tmp_path / "run")
        try:
            made.wait(90)
        finally:
            made.cancel()
        outcome = made.outcome()
        samples = read_stream(tmp_path / "run" / "samples.arrow")
        sent = samples.status != Status.UNSENT
        assert samples.sent_ns[sent].max(initial=0) < outcome.window_end_ns
        assert (samples.done_ns[sent] >= samples.sent_ns[sent]).all()
        return samples, outcome

    return go


def in_window(samples: Samples, outcome: Outcome) -> int:
    inside = (samples.intended_ns >= outcome.window_start_ns) & (samples.intended_ns < outcome.window_end_ns)
    return int(np.count_nonzero(inside))


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize("workers", [1, 2])
def test_locust_claims_exactly_what_triton_did(run: Run, triton: Triton, protocol: Protocol, workers: int) -> None:
    before = triton.statistics("double")
    samples, outcome = run(protocol=protocol, concurrency=8, batch=3, workers=workers)
    after = triton.statistics("double")
    assert set(samples.status.tolist()) == {Status.OK}, outcome.errors
    assert len(samples) > 100
    assert after.inference_count - before.inference_count == 3 * len(samples)


@pytest.mark.parametrize("protocol", list(Protocol))
def test_an_open_loop_sends_its_whole_schedule(run: Run, protocol: Protocol) -> None:
    samples, outcome = run(protocol=protocol, rate_rps=100.0)
    assert in_window(samples, outcome) == 150
    assert len(samples) == 200
    assert set(samples.status.tolist()) == {Status.OK}, outcome.errors


@pytest.mark.parametrize("protocol", list(Protocol))
def test_a_refused_request_keeps_tritons_words(run: Run, triton: Triton, protocol: Protocol) -> None:
    true = triton.signature("double")
    wrong = Signature(true.inputs, true.outputs, 10_000)
    samples, outcome = run(signature=wrong, batch=true.max_batch_size + 1, protocol=protocol, concurrency=1)
    assert set(samples.status.tolist()) == {Status.FAILED}
    assert f"inference request batch-size must be <= {true.max_batch_size} for 'double'" in outcome.errors[0]["message"]


@pytest.mark.parametrize("protocol", list(Protocol))
def test_an_unknown_model_is_a_failed_request(run: Run, protocol: Protocol) -> None:
    samples, outcome = run(model="nobody", protocol=protocol, concurrency=1)
    assert set(samples.status.tolist()) == {Status.FAILED}
    assert outcome.errors[0]["message"].startswith("Request for unknown model: 'nobody'")


@pytest.mark.parametrize("protocol", list(Protocol))
@pytest.mark.parametrize(
    "load",
    [
        {"concurrency": 4, "batch": 3},
        {"rate_rps": 100.0, "arrivals": Arrivals.POISSON},
        {"rate_rps": 100.0},
        {"intervals_us": (5000, 15_000), "arrivals": Arrivals.REPLAY},
    ],
)
def test_perf_analyzer_fills_the_same_window(
    run: Run, triton: Triton, protocol: Protocol, load: dict[str, Any]
) -> None:
    before = triton.statistics("double")
    samples, outcome = run(driver=Driver.PERF_ANALYZER, protocol=protocol, **load)
    after = triton.statistics("double")
    assert set(samples.status.tolist()) == {Status.OK}
    np.testing.assert_array_equal(samples.intended_ns, samples.sent_ns)
    claimed = load.get("batch", 1) * len(samples)
    done = after.inference_count - before.inference_count
    assert done - 0.2 * done - 50 <= claimed <= done  # it goes on for a moment, which is cut off
    first = samples.sent_ns.min()
    assert outcome.window_start_ns - 0.8e9 < first < outcome.window_start_ns
    # answers' own time on the mapped clock: a wrong mapping would be off by hours
    assert 0 < np.median(samples.done_ns - samples.sent_ns) < 1e9
    if "concurrency" not in load:
        assert in_window(samples, outcome) == pytest.approx(150, abs=60)
        assert "service_time" in [note["code"] for note in outcome.notes]


def test_perf_analyzer_that_cannot_keep_up_says_so(run: Run) -> None:
    _, outcome = run(driver=Driver.PERF_ANALYZER, rate_rps=100_000.0)
    (note,) = [note for note in outcome.notes if note["code"] == "not_kept_up"]
    assert "100000 requests/s were asked for" in note["message"]


def test_perf_analyzers_error_is_one_sentence(run: Run) -> None:
    with pytest.raises(LoadTestError, match=r"exit code 99: failed to get model metadata: Request for unknown model"):
        run(driver=Driver.PERF_ANALYZER, model="nobody", concurrency=1)


def test_a_port_where_nobody_listens_is_one_sentence(triton: Triton, tmp_path: Path) -> None:
    plan = GeneratorPlan(LoadPlan("double", concurrency=1), Endpoints("127.0.0.1:9"), triton.signature("double"))
    made = child.start(plan, tmp_path / "run")
    made.wait(60)
    with pytest.raises(LoadTestError, match=r"Nothing that speaks http answers at 127\.0\.0\.1:9"):
        made.outcome()
