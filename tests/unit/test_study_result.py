"""A study's document: whole in every state, from the right trials, quick, and silent where there is nothing to say."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tritune import study_result
from tritune.load_plan import LoadPlan
from tritune.plan import Configuration, JobKind, JobState, TrialState
from tritune.store import Cell, Job, Trial
from tritune.study_plan import LoadSpace, StudyPlan

PROVENANCE = {
    "machine": {"cpu": "Some CPU", "cores": 2, "memory_gib": 7.8},
    "triton_version": "2.51.0",
    "generator_versions": {"locust": "2.47.0"},
    "server_kind": "embedded",
    "server_http": "127.0.0.1:8000",
    "model_version": 1,
    "model_sha256": "aa",
}
DELAYS = (100, 0, 4000)


def configuration(number: int) -> Configuration:
    return Configuration(
        16,
        dynamic_batching=True,
        preferred_batch_size=(),
        max_queue_delay_microseconds=DELAYS[number],
        instance_count=1,
    )


def load(clients: int) -> LoadPlan:
    return LoadPlan("mnist", concurrency=clients)


def job(state: JobState = JobState.FINISHED, clients: tuple[int, ...] = (2, 16), **plan: Any) -> Job:
    asked = StudyPlan("mnist", loads=LoadSpace(concurrency=clients), **({"rounds": 3} | plan))
    payload = {
        "model": "mnist",
        "plan": asked.to_dict(),
        "candidates": [
            {
                "number": number,
                "change": {},
                "configuration": configuration(number).to_dict(),
                "label": f"delay {delay} µs",
            }
            for number, delay in enumerate(DELAYS)
        ],
        "loads": [load(count).to_dict() for count in clients],
        "left_out": [],
        "baseline": 0,
    }
    return Job(7, JobKind.SWEEP, payload, state, {}, None, None, False, 1000.0, 1001.0, None)


def measurement(throughput: float, p99: float | None, at_least: bool = False) -> dict[str, Any]:
    return {
        "throughput_ips": {"value": throughput, "ci95": [throughput * 0.9, throughput * 1.1]},
        "latency_ms": {
            "p50": 2.0,
            "p90": 3.0,
            "p95": 4.0,
            "p99": {"value": p99, "ci95": None, "at_least": at_least},
            "p999": {"value": None},
            "lower_bounds": [],
        },
        "server": {"average_batch": 4.0, "batch_sizes": {"4": 30, "1": 20}, "queue_us": 300.0},
        "warnings": [],
    }


def study(clients: tuple[int, ...] = (2, 16), rounds: int = 3, slow: float = 0.2, noise: float = 0.02) -> list[Trial]:
    """Three configurations, the last `slow` times as fast with the fewest clients."""
    chance = random.Random(1)
    made: list[Trial] = []
    for round in range(1, rounds + 1):
        for candidate in range(len(DELAYS)):
            for number, count in enumerate(clients):
                factor = slow if candidate == 2 and number == 0 else 1.0
                throughput = 1000.0 * count * factor * chance.lognormvariate(0, noise)
                p99 = 4.0 * count / factor * chance.lognormvariate(0, 2 * noise)
                made.append(trial(len(made) + 1, round, candidate, number, count, measurement(throughput, p99)))
    return made


def trial(
    number: int,
    round: int,
    candidate: int,
    at: int,
    clients: int,
    measured: dict[str, Any] | None,
    **other: Any,
) -> Trial:
    values = {
        "trial_id": f"t{number}",
        "study_id": "s7",
        "state": TrialState.FINISHED if measured else TrialState.WAITING,
        "model": "mnist",
        "configuration": configuration(candidate),
        "plan": load(clients),
        "labels": {},
        "note": "",
        "measurement": measured,
        "provenance": PROVENANCE if measured else {},
        "error": None,
        "created_at": 1000.0,
        "finished_at": 1000.0 + 15 * number,
        "round": round,
        "attempt": 1,
        "cell": Cell(candidate, at),
    }
    return Trial(**(values | other))


def verdicts_of(document: dict[str, Any]) -> dict[tuple[int, int], str]:
    return {(row["candidate"], row["load_number"]): row["verdict"] for row in document["comparisons"]}


def test_three_rounds_call_the_slow_configuration_worse_and_the_equal_ones_not() -> None:
    document = study_result.document(job(), study())
    assert verdicts_of(document) == {
        (1, 0): "no difference shown",
        (1, 1): "no difference shown",
        (2, 0): "worse",
        (2, 1): "no difference shown",
    }
    slow = next(row for row in document["comparisons"] if row["verdict"] == "worse")
    assert slow["configuration"]["max_queue_delay_microseconds"] == 4000
    assert slow["load"]["concurrency"] == 2
    assert slow["throughput_ratio"]["value"] == pytest.approx(0.2, rel=0.1)
    assert slow["sentence"] == "0.197 times the throughput (95 % 0.189 to 0.205 times) of the baseline: worse."
    assert document["best"]["load"]["concurrency"] == 16
    assert len(document["best"]["indistinguishable"]) == 2
    assert document["rounds"] == {"planned": 3, "done": 3}
    assert document["warnings"] == []
    assert document["stopped"] == "All 3 planned rounds are done."
    json.dumps(document)
