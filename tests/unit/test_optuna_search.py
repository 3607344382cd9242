"""What Optuna is told and asked: the baseline in every round, the same answer for the same readings, shared studies."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest

from tritune import model_config, optuna_search
from tritune.errors import InputError, StoreError
from tritune.evidence import Reading
from tritune.study_plan import LoadSpace, Objective, SearchMethod, SearchSpace, StudyPlan
from tritune.study_space import ASKED, Candidate, Expansion, expand

CONFIG = """name: "m" platform: "onnxruntime_onnx" max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] } ] output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] } ]
dynamic_batching { } instance_group [ { count: 1 } ]"""
SPACE = SearchSpace(((), (4,), (4, 8)), (0, 100, 1000), (8, 16, 32), (1, 2, 4), (True, False))
NOWHERE = "sqlite:////nowhere/tritune.db"


def study(objective: Objective, share: str | None = None, space: SearchSpace = SPACE) -> tuple[StudyPlan, Expansion]:
    plan = StudyPlan("m", space, LoadSpace((1, 8)), objective, search=SearchMethod.OPTUNA, share=share)
    return plan, expand(plan, model_config.parse(CONFIG), None)


def truth(candidate: Candidate) -> tuple[float, float]:
    """A made-up server: more instances and larger batches give throughput, instances and delay cost latency."""
    knobs = candidate.configuration
    batching = 1.3 if knobs.dynamic_batching else 1.0
    throughput = (
        1000 * (1 + 0.2 * (knobs.instance_count or 1)) * batching * (1 + 0.05 * math.log2(knobs.max_batch_size))
    )
    return throughput, 4 * (1 + knobs.max_queue_delay_microseconds / 1000) * (1 + 0.2 * (knobs.instance_count or 1))


def measured(
    objective: Objective,
    rounds: int,
    url: str = NOWHERE,
    share: str | None = None,
    owner: str = "a",
    noise: float = 0.03,
) -> tuple[Expansion, list[tuple[int, ...]]]:
    """What a study of so many rounds asked for, with readings of the made-up server."""
    plan, found = study(objective, share)
    readings: list[Reading] = []
    asked = []
    draw = random.Random(owner)
    for round_ in range(1, rounds + 1):
        chosen = optuna_search.next_candidates(
            plan, found.candidates, found.loads, readings, round=round_, storage_url=url, owner=owner
        )
        asked.append(chosen)
        for candidate in chosen:
            for load in range(len(found.loads)):
                throughput, p99 = (
                    value * math.exp(draw.gauss(0, noise)) for value in truth(found.candidates[candidate])
                )
                name = f"{owner}{len(readings)}"
                readings.append(Reading(candidate, load, round_, "measure", throughput, p99, False, name))
    return found, asked


@pytest.mark.parametrize("objective", [Objective(), Objective(p99_ms=8), Objective(min_throughput_ips=1500)])
def test_every_round_has_the_baseline_and_different_configurations_and_is_the_same_again(objective: Objective) -> None:
    _, asked = measured(objective, 5)
    for chosen in asked:
        assert chosen[0] == 0
        assert len(set(chosen)) == 1 + ASKED
    assert measured(objective, 5)[1] == asked


def test_it_finds_nearly_the_best_that_keeps_the_limit() -> None:
    found, asked = measured(Objective(p99_ms=8), 12)
    good = [truth(c)[0] for c in found.candidates if truth(c)[1] <= 7.5]
    last = [found.candidates[number] for number in asked[-1]]
    assert max(truth(c)[0] for c in last if truth(c)[1] <= 8.2) >= 0.95 * max(good)


def test_the_best_so_far_is_measured_again() -> None:
    found, asked = measured(Objective(p99_ms=8), 6, noise=0)
    seen: set[int] = set()
    for before, chosen in itertools.pairwise(asked):
        seen |= set(before[1:])
        kept = [number for number in seen if truth(found.candidates[number])[1] <= 8]
        if kept:
            top = max(truth(found.candidates[number])[0] for number in kept)
            assert any(math.isclose(truth(found.candidates[n])[0], top) for n in chosen)


def test_what_is_out_is_not_asked_for_again() -> None:
    plan, found = study(Objective())
    out = set(range(1, len(found.candidates) - 6))
    chosen = optuna_search.next_candidates(
        plan, found.candidates, found.loads, [], round=1, storage_url=NOWHERE, out=out
    )
    assert len(chosen) == 1 + ASKED
    assert not out.intersection(chosen)
    few = optuna_search.next_candidates(
        plan, found.candidates, found.loads, [], round=1, storage_url=NOWHERE, out=set(range(4, 1000))
    )
    assert few == (0, 1, 2, 3)


def test_readings_without_a_number_are_not_told() -> None:
    plan, found = study(Objective(p99_ms=5))
    readings = [
        Reading(1, 0, 1, "measure", None, None, False, "t1"),
        Reading(2, 0, 1, "measure", 100.0, None, False, "t2"),
        Reading(0, 0, 1, "drift", 100.0, 1.0, False, "t3"),
    ]
    chosen = optuna_search.next_candidates(plan, found.candidates, found.loads, readings, round=2, storage_url=NOWHERE)
    assert len(set(chosen)) == 1 + ASKED


def test_a_p99_of_which_only_a_lower_bound_is_known_misses_its_limit() -> None:
    plan, found = study(Objective(p99_ms=5))
    readings = [
        Reading(1, 0, 1, "measure", 900.0, 4.0, True, "t1"),
        Reading(2, 0, 1, "measure", 100.0, 4.0, False, "t2"),
    ]
    chosen = optuna_search.next_candidates(plan, found.candidates, found.loads, readings, round=2, storage_url=NOWHERE)
    assert chosen[1] == 2


def shared_twice(url: str) -> None:
    import optuna

    _, first = measured(Objective(p99_ms=8), 3, url, "ours", "a")
    _, second = measured(Objective(p99_ms=8), 3, url, "ours", "b")
    alone = measured(Objective(p99_ms=8), 3, owner="b")[1]
    assert second != alone, "the second machine knows nothing of the first one's readings"
    storage = optuna_search._storage(url)
    trials = optuna.load_study(study_name="ours", storage=storage).get_trials()
    storage.remove_session()
    storage.engine.dispose()
    complete = [trial for trial in trials if trial.state is optuna.trial.TrialState.COMPLETE]
    names = [trial.user_attrs["trials"] for trial in complete]
    assert len(names) == len(set(names)), "a reading was told twice"
    # The last round of each was asked for and not told.
    told = {c for asked in (first[:2], second[:2]) for chosen in asked for c in chosen}
    assert len(told - {0}) <= len(complete)
    running = [trial for trial in trials if trial.state is optuna.trial.TrialState.RUNNING]
    assert {trial.user_attrs["owner"] for trial in running} == {"a", "b"}
    assert len(running) == 2 * ASKED
    with pytest.raises(InputError, match="varies other knobs or has another objective"):
        measured(Objective(), 1, url, "ours")
    plan, found = study(Objective(p99_ms=8), "ours", SearchSpace(instance_count=(1, 2, 3, 4, 5, 6)))
    with pytest.raises(InputError, match="varies other knobs"):
        optuna_search.next_candidates(plan, found.candidates, found.loads, [], round=1, storage_url=url)


def test_machines_share_a_search_in_a_file_beside_the_database(tmp_path: Path) -> None:
    shared_twice(f"sqlite:///{tmp_path / 'tritune.db'}")
    assert [path.name for path in tmp_path.iterdir()] == ["tritune.optuna.db"]


def test_machines_share_a_search_in_the_same_postgresql(postgresql_url: str) -> None:
    from tritune.store import Store

    store = Store(postgresql_url)  # its tables and Optuna's have names in common
    shared_twice(postgresql_url)
    assert store.trials() == ()
    store.close()


def test_a_shared_search_that_cannot_be_reached_is_one_sentence() -> None:
    plan, found = study(Objective(), "ours")
    with pytest.raises(StoreError, match=r"The shared search ours could not be used: .* reachable\?"):
        optuna_search.next_candidates(plan, found.candidates, found.loads, [], round=1, storage_url=NOWHERE)
