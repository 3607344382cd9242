"""Both drivers and both protocols against the real Triton: what is claimed is what the server counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen import child
from loadgen.outcome import Outcome
from loadgen.samples import Samples, Status, read_stream
from tritune.errors import LoadTestError
from tritune.load_plan import Arrivals, Compression, Driver, GeneratorPlan, LoadPlan, Protocol, SharedMemory, Wire
from tritune.plan import Endpoints, Signature
from tritune.settings import ROOT
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


WIRES = {
    "json": {"wire": Wire.JSON},
    "gzip": {"compression": Compression.GZIP},
    "deflate": {"compression": Compression.DEFLATE},
    "json and gzip": {"wire": Wire.JSON, "compression": Compression.GZIP},
    "shared": {"shared_memory": SharedMemory.SYSTEM},
    "shared, gRPC": {"shared_memory": SharedMemory.SYSTEM, "protocol": Protocol.GRPC},
    "stream": {"grpc_stream": True, "protocol": Protocol.GRPC},
    "shared stream": {"shared_memory": SharedMemory.SYSTEM, "grpc_stream": True, "protocol": Protocol.GRPC},
}


def shared() -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"tritune-load-{os.getpid()}-*")]


@pytest.mark.parametrize("options", WIRES.values(), ids=WIRES)
def test_every_wire_says_the_same_and_every_answer_is_right(run: Run, triton: Triton, options: dict[str, Any]) -> None:
    before = triton.statistics("double")
    samples, outcome = run(concurrency=4, batch=2, check_share=1.0, duration_s=0.5, warmup_s=0.2, **options)
    after = triton.statistics("double")
    assert set(samples.status.tolist()) == {Status.OK}, outcome.errors
    assert len(samples) > 50
    assert after.inference_count - before.inference_count == 2 * len(samples)
    assert shared() == []
    assert regions(triton) == []


def regions(triton: Triton) -> list[str]:
    answer = triton._json("GET", "/v2/systemsharedmemory/status")
    return [row["name"] for row in answer if row["name"].startswith("tritune-load-")]


@pytest.mark.parametrize("end", ["cancel", "SIGKILL"])
def test_shared_memory_is_given_back_however_the_generator_ends(triton: Triton, tmp_path: Path, end: str) -> None:
    load = LoadPlan("double", concurrency=2, duration_s=60, shared_memory=SharedMemory.SYSTEM)
    made = child.start(GeneratorPlan(load, triton.endpoints, triton.signature("double")), tmp_path / "run")
    assert len(shared()) == 2
    assert len(regions(triton)) == 2
    limit = time.monotonic() + 30
    while made.window() is None and time.monotonic() < limit:
        time.sleep(0.05)
    if end == "cancel":
        made.cancel()
    else:
        os.kill(made.pid, signal.SIGKILL)
        made.wait(10)
    assert shared() == []
    assert regions(triton) == []


def test_shared_memory_whose_owner_is_gone_is_given_back_too(triton: Triton, tmp_path: Path) -> None:
    load = LoadPlan("double", concurrency=2, duration_s=60, shared_memory=SharedMemory.SYSTEM)
    plan = GeneratorPlan(load, triton.endpoints, triton.signature("double"))
    code = (
        "import json, os, signal, sys, time; from pathlib import Path; from loadgen import child\n"
        "from tritune.load_plan import GeneratorPlan\n"
        f"plan = GeneratorPlan.from_dict(json.loads({json.dumps(plan.to_dict())!r}))\n"
        f"made = child.start(plan, Path({str(tmp_path / 'run')!r}))\n"
        "while made.window() is None: time.sleep(0.02)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False, stderr=subprocess.DEVNULL)
    limit = time.monotonic() + 20
    while (regions(triton) or list(Path("/dev/shm").glob("tritune-load-*"))) and time.monotonic() < limit:
        time.sleep(0.1)
    assert regions(triton) == []
    assert list(Path("/dev/shm").glob("tritune-load-*")) == []


def test_a_server_that_cannot_see_the_memory_is_one_sentence(triton: Triton, tmp_path: Path) -> None:
    load = LoadPlan("double", concurrency=1, shared_memory=SharedMemory.SYSTEM)
    plan = GeneratorPlan(load, Endpoints("127.0.0.1:9"), triton.signature("double"))
    with pytest.raises(LoadTestError, match=r"could not use shared memory: No server answers at 127\.0\.0\.1:9"):
        child.start(plan, tmp_path / "run")
    assert shared() == []


@pytest.mark.parametrize(
    "options", [{"wire": Wire.JSON}, {"shared_memory": SharedMemory.SYSTEM}], ids=["json", "shared"]
)
def test_perf_analyzer_takes_the_same_wires(run: Run, options: dict[str, Any]) -> None:
    samples, _ = run(driver=Driver.PERF_ANALYZER, concurrency=2, duration_s=1.0, **options)
    assert set(samples.status.tolist()) == {Status.OK}


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
    # it goes on for one more of its windows, which is cut off: 2 of 3.5 s are ours
    assert 0.4 * done - 50 <= claimed <= done
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
