"""Plans refuse what cannot be run, in one sentence, and survive JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tritune.arrival_plan import Stage, describe_stages, parse_intervals, parse_stages
from tritune.errors import InputError
from tritune.load_plan import (
    Arrivals,
    Compression,
    Driver,
    GeneratorPlan,
    LoadPlan,
    Protocol,
    SharedMemory,
    Wire,
    describe_load,
)
from tritune.plan import Configuration, Endpoints, Signature, TensorSpec, TuneChange


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rate_rps": 0}, ["rate=0", "above 0"]),
        ({"rate_rps": -3}, ["rate=-3"]),
        ({"rate_rps": float("nan")}, ["rate=nan"]),
        ({"rate_rps": float("inf")}, ["rate=inf"]),
        ({"concurrency": -1}, ["concurrency=-1", "from 1"]),
        ({"concurrency": 0}, ["concurrency=0"]),
        ({"concurrency": True}, ["concurrency=True"]),
        ({"concurrency": 10**9}, ["concurrency=1000000000"]),
        ({}, ["exactly one"]),
        ({"concurrency": 1, "rate_rps": 1}, ["exactly one"]),
        ({"concurrency": 8, "batch": 0}, ["batch=0"]),
        ({"concurrency": 8, "duration_s": 0}, ["duration=0"]),
        ({"concurrency": 8, "warmup_s": -1}, ["warmup=-1"]),
        ({"concurrency": 8, "timeout_s": 0}, ["timeout=0"]),
        ({"concurrency": 8, "seed": -1}, ["seed=-1"]),
        ({"concurrency": 2, "workers": 3}, ["workers=3", "concurrency=2"]),
        ({"concurrency": 2, "int_ranges": {"ids": (9, 1)}}, ["9:1", "ids"]),
        ({"rate_rps": 5, "stages": (Stage(10, 1, 1),)}, ["exactly one"]),
        ({"stages": (Stage(5, 1, 1),)}, ["duration=10", "5 s"]),
        ({"stages": (Stage(10, 1, 1),), "driver": Driver.PERF_ANALYZER}, ["perf_analyzer knows no stages"]),
        ({"stages": (Stage(10, 0, 0),)}, ["send nothing"]),
        ({"intervals_us": (5,)}, ["belong together"]),
        ({"rate_rps": 5, "arrivals": Arrivals.REPLAY}, ["belong together"]),
        ({"intervals_us": (0, 0), "arrivals": Arrivals.REPLAY}, ["2 intervals of 0 µs"]),
        ({"intervals_us": (5, -1), "arrivals": Arrivals.REPLAY}, ["interval of -1"]),
        ({"rate_rps": 5, "check_share": 1.5}, ["check_share=1.5"]),
        ({"rate_rps": 5, "wire": Wire.JSON, "protocol": Protocol.GRPC}, ["JSON", "http"]),
        ({"rate_rps": 5, "wire": Wire.JSON, "shared_memory": SharedMemory.SYSTEM}, ["Choose one"]),
        ({"rate_rps": 5, "compression": Compression.GZIP, "protocol": Protocol.GRPC}, ["compression=gzip"]),
        ({"rate_rps": 5, "grpc_stream": True}, ["ModelStreamInfer"]),
        ({"rate_rps": 5, "check_share": 0.1, "driver": Driver.PERF_ANALYZER}, ["check_share is not offered"]),
        ({"rate_rps": 5, "max_connections": 0}, ["max_connections=0"]),
        ({"rate_rps": 5, "max_connections": 2, "workers": 3}, ["max_connections=2", "workers=3"]),
    ],
)
def test_a_load_plan_that_cannot_run_is_refused_with_its_value(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        LoadPlan(model="mnist", **values)
    for word in words:
        assert word in str(raised.value)
    assert raised.value.exit_code == 2


def test_seed_zero_is_a_seed() -> None:
    assert LoadPlan(model="mnist", concurrency=1, seed=0).seed == 0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"max_queue_delay_microseconds": -5}, ["max_queue_delay_us=-5", "Use 0 to send batches at once"]),
        ({"preferred_batch_size": (4, 0)}, ["preferred_batch_size=0"]),
        ({"max_batch_size": -1}, ["max_batch_size=-1"]),
        ({"instance_count": 0}, ["instances=0"]),
        ({"dynamic_batching": False, "preferred_batch_size": (4,)}, ["need dynamic batching"]),
        ({"dynamic_batching": False, "max_queue_delay_microseconds": 5}, ["need dynamic batching"]),
    ],
)
def test_a_change_that_no_model_could_take_is_refused(values: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as raised:
        TuneChange(**values)
    for word in words:
        assert word in str(raised.value)


def test_switching_batching_off_may_also_remove_preferred_sizes() -> None:
    assert not TuneChange(dynamic_batching=False, preferred_batch_size=()).is_empty
    assert TuneChange().is_empty


def test_plans_survive_json() -> None:
    plan = GeneratorPlan(
        LoadPlan(
            model="mnist",
            driver=Driver.PERF_ANALYZER,
            protocol=Protocol.GRPC,
            rate_rps=12.5,
            arrivals=Arrivals.POISSON,
            shapes={"ids": (12,)},
            int_ranges={"ids": (0, 99)},
        ),
        Endpoints("127.0.0.1:8000", "127.0.0.1:8001", headers={"a": "b"}, control=("x", "y"), tls={"verify": True}),
        Signature((TensorSpec("ids", "INT64", (-1,)),), (TensorSpec("y", "FP32", (10,)),), 8),
    )
    assert GeneratorPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    change = TuneChange(preferred_batch_size=(), max_batch_size=4)
    assert TuneChange.from_dict(json.loads(json.dumps(change.to_dict()))) == change
    configuration = Configuration(16, True, (4, 8), 700, 2)
    assert Configuration.from_dict(json.loads(json.dumps(configuration.to_dict()))) == configuration


def test_configurations_and_loads_have_short_labels() -> None:
    assert Configuration(16, True, (4, 8), 700, 2).describe() == "batch ≤ 16, preferred 4,8, delay 700 µs, 2 instances"
    assert Configuration(8, False).describe() == "batch ≤ 8, no dynamic batching"
    assert describe_load(LoadPlan(model="m", concurrency=1).load()) == "locust http, 1 client"
    poisson = LoadPlan(model="m", rate_rps=100.0, arrivals=Arrivals.POISSON, batch=4)
    assert describe_load(poisson.load()) == "locust http, 100/s poisson, batch 4"
    staged = LoadPlan(model="m", stages=parse_stages("10s:100,500ms:100-400"), duration_s=10.5)
    assert describe_load(staged.load()) == "locust http, stages 10s:100,0.5s:100-400 constant"
    wires = LoadPlan("m", concurrency=2, wire=Wire.JSON, compression=Compression.GZIP)
    assert describe_load(wires.load()) == "locust http json gzip, 2 clients"
    stream = LoadPlan("m", concurrency=2, protocol=Protocol.GRPC, grpc_stream=True, shared_memory=SharedMemory.SYSTEM)
    assert describe_load(stream.load()) == "locust grpc shared memory stream, 2 clients"
    assert LoadPlan.from_dict(json.loads(json.dumps(stream.to_dict()))) == stream
    replay = LoadPlan(model="m", intervals_us=(1000, 3000), arrivals=Arrivals.REPLAY)
    assert describe_load(replay.load()) == "locust http, replay of 2 intervals (880c18e9c36d), 500/s"


def test_loads_that_differ_in_their_arrivals_are_told_apart() -> None:
    plans = [
        LoadPlan("m", rate_rps=100),
        LoadPlan("m", stages=parse_stages("10s:100")),
        LoadPlan("m", stages=parse_stages("5s:100,5s:100-200")),
        LoadPlan("m", intervals_us=(10_000,), arrivals=Arrivals.REPLAY),
        LoadPlan("m", intervals_us=(9000, 11_000), arrivals=Arrivals.REPLAY),
    ]
    assert len({json.dumps(plan.load()) for plan in plans}) == len(plans)
    for plan in plans:
        assert LoadPlan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
        assert plan.is_open_loop
        assert plan.peak_rate_rps == (200 if len(plan.stages) == 2 else 100)


def test_stages_are_read_as_they_are_written() -> None:
    text = "10s:100,5s:100-400,1s:1000,0.5s:0"
    assert describe_stages(parse_stages(text)) == text
    assert parse_stages("1m:5, 250ms:8, 3:1") == (Stage(60, 5, 5), Stage(0.25, 8, 8), Stage(3, 1, 1))


@pytest.mark.parametrize(
    "text", ["", "10s", "10s:", "10x:5", "10s:5-", "-1s:5", "0s:5", "10s:1e3", "1.2.3s:5", "5s:2000000"]
)
def test_a_stage_that_cannot_be_sent_is_one_sentence(text: str) -> None:
    with pytest.raises(InputError, match="stage"):
        parse_stages(text)


def test_intervals_are_whole_microseconds_one_a_line() -> None:
    assert parse_intervals("1000\n\n 20 \n", "f") == (1000, 20)
    with pytest.raises(InputError, match=r"f, line 2: '1\.5' is no interval"):
        parse_intervals("7\n1.5\n", "f")
    with pytest.raises(InputError, match="f holds no interval"):
        parse_intervals("\n", "f")
    with pytest.raises(InputError, match=r"f holds 100,001 intervals"):
        parse_intervals("5\n" * 100_001, "f")
