"""Which configurations and loads a plan comes to, which are left out and why, and how long it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tritune import model_config, study_space
from tritune.errors import InputError
from tritune.load_plan import Arrivals, Driver, Protocol, Wire
from tritune.model_config import ModelConfig
from tritune.study_plan import LoadSpace, Objective, SearchMethod, SearchSpace, StudyPlan
from tritune.study_space import Candidate, Expansion, LeftOut, expand

EIGHT_CLIENTS = LoadSpace(concurrency=(8,))


def served(max_batch_size: int = 16, rest: str | None = None) -> ModelConfig:
    """What a server reports: it fills in [max_batch_size] where no preferred size was given."""
    batched = f"dynamic_batching {{ preferred_batch_size: [ {max_batch_size} ] }}"
    if max_batch_size == 0:
        batched = ""
    dims = "4" if max_batch_size else "-1, 4"
    return model_config.parse(
        f"""name: "m" platform: "onnxruntime_onnx" max_batch_size: {max_batch_size}
        input [ {{ name: "x" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
        output [ {{ name: "y" data_type: TYPE_FP32 dims: [ {dims} ] }} ]
        instance_group [ {{ name: "m_0" count: 1 kind: KIND_CPU }} ] {batched if rest is None else rest}"""
    )


def expanded(space: SearchSpace, loads: LoadSpace = EIGHT_CLIENTS, base: ModelConfig | None = None) -> Expansion:
    return expand(StudyPlan("m", space, loads), base or served(), None)


def test_the_baseline_is_candidate_0_and_every_combination_follows() -> None:
    found = expanded(SearchSpace(preferred_batch_size=((4,), (4, 8)), max_queue_delay_microseconds=(100, 1000)))
    assert [candidate.number for candidate in found.candidates] == [0, 1, 2, 3, 4]
    assert found.candidates[0].change.is_empty
    assert found.candidates[0].configuration == served().configuration
    pairs = [
        (c.configuration.preferred_batch_size, c.configuration.max_queue_delay_microseconds) for c in found.candidates
    ]
    assert pairs == [((), 0), ((4,), 100), ((4,), 1000), ((4, 8), 100), ((4, 8), 1000)]


def test_each_change_makes_its_configuration_out_of_the_baseline() -> None:
    space = SearchSpace(((), (4,)), (0, 100), (8, 32), (1, 2), (True, False), {"intra_op_thread_count": (1, 2)})
    for candidate in expanded(space).candidates:
        assert model_config.change(served(), candidate.change).configuration == candidate.configuration


def test_without_axes_only_the_baseline_is_measured() -> None:
    found = expanded(SearchSpace())
    assert len(found.candidates) == 1
    assert found.candidates[0].label == served().configuration.describe()


def test_equal_configurations_are_measured_once() -> None:
    off = expanded(SearchSpace(max_queue_delay_microseconds=(0, 100, 1000), dynamic_batching=(False,)))
    assert len(off.candidates) == 2
    assert not off.candidates[1].configuration.dynamic_batching
    assert off.same == 2
    maximum = expanded(SearchSpace(preferred_batch_size=((), (16,), (4, 8), (8, 4))))
    assert [c.configuration.preferred_batch_size for c in maximum.candidates] == [(), (4, 8)]


def test_knobs_of_the_batcher_mean_nothing_where_it_is_off() -> None:
    found = expanded(SearchSpace(dynamic_batching=(True, False), further={"max_queue_size": (10, 20)}))
    assert len(found.candidates) == 4
    assert not found.left_out


def test_another_maximum_does_not_leave_the_filled_in_preferred_size_behind() -> None:
    found = expanded(SearchSpace(max_batch_size=(8, 32)))
    assert [c.configuration.max_batch_size for c in found.candidates] == [16, 8, 32]
    for candidate in found.candidates[1:]:
        changed = model_config.change(served(), candidate.change)
        assert list(changed.message.dynamic_batching.preferred_batch_size) == []


def test_what_triton_would_refuse_is_left_out_with_the_reason() -> None:
    found = expanded(SearchSpace(preferred_batch_size=((4,), (32,)), max_queue_delay_microseconds=(0, 100)))
    assert [left_out.configuration["preferred_batch_size"] for left_out in found.left_out] == [(32,), (32,)]
    assert "preferred_batch_size 32 is above max_batch_size 16" in found.left_out[0].reason
    line = next(line for line in found.sentences() if line.startswith("Left out"))
    assert line.startswith("Left out: 2 combinations with preferred_batch_size 32. ")


def test_a_model_without_a_batch_dimension_takes_no_batching() -> None:
    found = expanded(SearchSpace(preferred_batch_size=((), (4,)), instance_count=(1, 2)), base=served(0))
    assert len(found.left_out) == 4
    assert all("no batch dimension" in left_out.reason for left_out in found.left_out)
    instances = expanded(SearchSpace(instance_count=(1, 2)), base=served(0))
    assert [c.configuration.instance_count for c in instances.candidates] == [1, 2]


def test_a_version_that_is_not_there_is_left_out() -> None:
    plan = StudyPlan("m", SearchSpace(further={"model_version": (1, 7)}))
    found = expand(plan, served(), None, versions=[1, 2])
    assert len(found.candidates) == 2
    assert found.left_out[0].reason == "The model has no version 7 (there are: 1, 2)."


def test_a_configuration_that_cannot_take_the_clients_batch_is_left_out() -> None:
    found = expanded(SearchSpace(max_batch_size=(4, 32)), LoadSpace((1,), batch=(1, 8)))
    assert [c.configuration.max_batch_size for c in found.candidates] == [16, 32]
    assert "Requests of 8 samples are above max_batch_size 4" in found.left_out[0].reason
    with pytest.raises(InputError, match=r"baseline cannot be measured.* 32 samples are above max_batch_size 16"):
        expanded(SearchSpace(), LoadSpace((1,), batch=(32,)))


def test_the_loads_are_every_combination_of_what_can_be_sent() -> None:
    loads = LoadSpace((1, 8), (100.0,), (Arrivals.CONSTANT, Arrivals.POISSON), (1, 4))
    assert len(expanded(SearchSpace(), loads).loads) == 2 * (2 + 2)
    forms = LoadSpace((1,), protocol=(Protocol.HTTP, Protocol.GRPC), wire=(Wire.BINARY, Wire.JSON))
    found = expanded(SearchSpace(), forms)
    assert len(found.loads) == 3
    assert found.left_out[0].configuration == {
        "driver": "locust",
        "protocol": "grpc",
        "wire": "json",
        "batch": 1,
        "concurrency": 1,
    }
    with pytest.raises(InputError, match=r"No load of the plan can be sent. JSON tensors travel over HTTP only"):
        expanded(SearchSpace(), LoadSpace((1,), protocol=(Protocol.GRPC,), wire=(Wire.JSON,)))


def test_loads_share_the_request_and_the_lengths_of_the_plan() -> None:
    plan = StudyPlan(
        "m",
        loads=LoadSpace((1, 8)),
        objective=Objective(p99_ms=5),
        duration_s=3,
        warmup_s=1,
        seed=7,
        request={"workers": 4, "timeout_s": 2.0, "shapes": {"x": [4]}},
    )
    one, eight = expand(plan, served(), None).loads
    assert (one.workers, eight.workers) == (1, 4)
    assert (eight.duration_s, eight.warmup_s, eight.seed, eight.timeout_s) == (3, 1, 7, 2.0)
    assert (eight.shapes, eight.p99_limit_ms) == ({"x": (4,)}, 5)
    with pytest.raises(InputError, match=r"request\.timeout is nothing .* Did you mean timeout_s\?"):
        expand(replace(plan, request={"timeout": 2}), served(), None)
    with pytest.raises(InputError, match="request cannot be read"):
        expand(replace(plan, request={"shapes": [1]}), served(), None)


def test_trials_and_time_are_told_before_it_starts() -> None:
    space = SearchSpace(max_queue_delay_microseconds=(0, 100, 1000), instance_count=(1, 2, 3, 4))
    found = expanded(space, LoadSpace((1, 8, 32)))
    assert (found.trials_a_round, found.rounds, found.trials) == (36, 8, 37 * 8)
    assert found.expected_s == 37 * 8 * (10 + 2 + study_space.OVERHEAD_S)
    assert found.sentences()[0] == ("12 configurations under 3 loads: 36 trials a round, 8 rounds, about 79 min.")
    plan = StudyPlan("m", space, LoadSpace((1, 8, 32)), budget_s=1800)
    assert any(
        "The budget of 30 min ends it after about 3 rounds" in s for s in expand(plan, served(), None).sentences()
    )
    short = expand(replace(plan, budget_s=600), served(), None).sentences()
    assert any("less than two rounds" in sentence for sentence in short)


def test_a_search_measures_a_few_configurations_a_round() -> None:
    space = SearchSpace(max_queue_delay_microseconds=(0, 100, 1000), instance_count=(1, 2, 3, 4))
    found = expand(StudyPlan("m", space, EIGHT_CLIENTS, search=SearchMethod.OPTUNA), served(), None)
    assert found.trials_a_round == 1 + study_space.ASKED
    assert any("Optuna chooses 4 of them" in sentence for sentence in found.sentences())


def test_too_much_for_a_study_is_refused() -> None:
    delays = tuple(range(1, 1101))
    with pytest.raises(InputError, match="1,101 different configurations"):
        expanded(SearchSpace(max_queue_delay_microseconds=delays))
    with pytest.raises(InputError, match="combinations; a study takes 20,000"):
        expanded(SearchSpace(max_queue_delay_microseconds=delays, instance_count=tuple(range(1, 30))))
    with pytest.raises(InputError, match=r"trials \(901 configurations × 3 loads × 8 rounds\)"):
        expanded(SearchSpace(max_queue_delay_microseconds=delays[:900]), LoadSpace((1, 2, 3)))


def test_labels_show_only_what_differs() -> None:
    found = expanded(SearchSpace(max_queue_delay_microseconds=(0, 1000), instance_count=(1, 2)))
    assert [candidate.label for candidate in found.candidates] == [
        "delay 0 µs · 1 instance",
        "delay 1000 µs · 1 instance",
        "delay 0 µs · 2 instances",
        "delay 1000 µs · 2 instances",
    ]
    threads = expanded(SearchSpace(dynamic_batching=(False,), further={"intra_op_thread_count": (2,)}))
    assert [candidate.label for candidate in threads.candidates] == [
        "no preferred size · delay 0 µs · intra-op threads by default",
        "no batching · 2 intra-op threads",
    ]


def test_documents_give_the_same_candidates_back() -> None:
    found = expanded(SearchSpace(preferred_batch_size=((4,), (32,)), further={"execution_mode": (1,)}))
    for candidate in found.candidates:
        assert Candidate.from_dict(candidate.to_dict()) == candidate
    assert found.left_out[0].to_dict()["configuration"]["preferred_batch_size"] == [32]
    assert LeftOut.from_dict(found.left_out[0].to_dict()).describe() == found.left_out[0].describe()


def test_both_generators_can_be_compared() -> None:
    found = expanded(SearchSpace(), LoadSpace((1,), driver=(Driver.LOCUST, Driver.PERF_ANALYZER)))
    assert [load.driver for load in found.loads] == [Driver.LOCUST, Driver.PERF_ANALYZER]


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.2, "1 s"), (40, "40 s"), (58 * 60, "58 min"), (7500, "2 h 5 min"), (7200, "2 h")]
)
def test_lengths_read_as_people_say_them(seconds: float, words: str) -> None:
    assert study_space.duration_words(seconds) == words


def test_what_no_load_can_share_is_one_sentence() -> None:
    for shared, said in (({"workers": 9_999_999}, "workers=9999999"), ({"input_data": 5}, "input_data=5")):
        with pytest.raises(InputError, match=said):
            expand(StudyPlan("m", loads=LoadSpace(concurrency=(8,)), request=shared), served(), None)
