"""A model is replaced while requests come: none fails, and none waits for the whole reload."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from loadgen import child
from loadgen.samples import Samples, Status, read_stream
from tritune import deploy, servers, switch
from tritune.errors import InputError, TritonRefusedError
from tritune.load_plan import GeneratorPlan, LoadPlan
from tritune.model_config import ModelConfig, parse
from tritune.plan import Endpoints, TuneChange
from tritune.repository import ModelRepository
from tritune.settings import Settings
from tritune.triton import Triton

MODEL = "switched"


@pytest.fixture
def repository(installation: Settings, publish: Callable[..., Path], triton: Triton) -> Iterator[ModelRepository]:
    """A repository whose model is served."""
    publish(installation.model_repo, MODEL)
    repository = ModelRepository(installation.model_repo)
    repository.write_config(MODEL, repository.config(MODEL).text)
    triton.load(MODEL)
    yield repository
    triton.unload(MODEL)


def under_load(triton: Triton, folder: Path, change: Callable[[], object]) -> Samples:
    """What requests saw that came 50 times a second while `change` was made."""
    load = LoadPlan(MODEL, rate_rps=50.0, duration_s=12.0, warmup_s=0.0, max_raw_samples=1_000_000)
    made = child.start(GeneratorPlan(load, triton.endpoints, triton.signature(MODEL)), folder / "run")
    try:
        limit = time.monotonic() + 30
        while (window := made.window()) is None or time.monotonic_ns() < window[0] + 2_000_000_000:
            assert time.monotonic() < limit
            time.sleep(0.05)
        change()
        made.wait(60)
    finally:
        made.cancel()
    return read_stream(folder / "run" / "samples.arrow")


def test_requests_go_on_while_a_model_is_replaced(
    repository: ModelRepository, triton: Triton, installation: Settings, tmp_path: Path
) -> None:
    made: list[deploy.Applied] = []
    began: list[int] = []
    wanted = deploy.preview(
        repository, MODEL, TuneChange(preferred_batch_size=(2, 4), max_queue_delay_microseconds=300)
    )
    pid = servers.status(installation).pid

    def change() -> None:
        began.append(time.monotonic_ns())
        made.append(switch.apply(triton, repository, wanted, server_pid=pid))

    samples = under_load(triton, tmp_path, change)
    assert set(samples.status.tolist()) == {Status.OK}
    (applied,) = made
    assert applied.verified, applied.differences
    assert applied.served.preferred_batch_size == (2, 4)
    assert repository.config_text(MODEL) == wanted.after.text
    assert applied.memory is not None
    assert applied.memory.peak_mib > applied.memory.before_mib + 20  # two more Pythons with ONNX Runtime
    assert applied.memory.after_mib < applied.memory.peak_mib - 20
    # A plain reload lets every request of its time wait for its end: a tenth of them for nine tenths of it and more.
    # Here a request may be late for the processor, on a machine that others use too, but not for the reload.
    assert applied.stall_ms is not None
    assert applied.stall_ms < applied.reload_ms / 2
    inside = (samples.intended_ns > began[0]) & (samples.intended_ns < began[0] + applied.reload_ms * 1e6)
    waited_ms = (samples.done_ns - samples.intended_ns)[inside] / 1e6
    assert np.quantile(waited_ms, 0.9) < applied.reload_ms / 5


def test_what_triton_refuses_never_stops_what_is_served(repository: ModelRepository, triton: Triton) -> None:
    before = repository.config_text(MODEL)
    config = parse(str(before))
    message = type(config.message)()
    message.CopyFrom(config.message)
    message.parameters["execution_mode"].string_value = "7"
    wanted = deploy.Preview(MODEL, before, ModelConfig(message), "a change")
    with pytest.raises(TritonRefusedError, match=r"execution_mode are 0 or 1 .* is served on"):
        switch.apply(triton, repository, wanted)
    assert repository.config_text(MODEL) == before
    assert triton.model_ready(MODEL)


def test_without_grpc_it_says_why_it_cannot(repository: ModelRepository, triton: Triton) -> None:
    http = Triton(Endpoints(triton.endpoints.http, control=triton.endpoints.control))
    wanted = deploy.preview(repository, MODEL, TuneChange(max_queue_delay_microseconds=7))
    with pytest.raises(InputError, match="no gRPC address"):
        switch.apply(http, repository, wanted)


def test_what_is_not_served_is_simply_loaded(
    installation: Settings, repository: ModelRepository, publish: Callable[..., Path], triton: Triton
) -> None:
    publish(installation.model_repo, "not_yet", dims=[1, 4])
    applied = switch.apply(triton, repository, deploy.preview(repository, "not_yet", TuneChange(instance_count=1)))
    assert applied.stall_ms is None
    again = deploy.preview(repository, "not_yet", TuneChange(instance_count=2))
    assert switch.apply(triton, repository, again).verified  # no batch dimension, warmed up all the same
    triton.unload("not_yet")
