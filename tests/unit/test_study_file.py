"""Plans as files: TOML there and back, errors that name the key, Model Analyzer's YAML."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tritune import model_analyzer, presets, study_file
from tritune.errors import InputError
from tritune.load_plan import Arrivals, Driver, Protocol, Wire
from tritune.plan import Configuration
from tritune.study_plan import LoadSpace, Objective, SearchMethod, SearchSpace, StudyPlan, Switching

EXAMPLES = sorted((Path(__file__).parents[2] / "docs" / "examples").iterdir())

FULL = StudyPlan(
    "m",
    SearchSpace(
        ((), (4,), (4, 8)),
        (0, 100),
        (8, 32),
        (1, 2),
        (True, False),
        {"execution_mode": (0, 1), "model_warmup": ("1,4", "8"), "response_cache": (True,)},
    ),
    LoadSpace(
        (1, 8),
        (0.1, 100.0),
        (Arrivals.CONSTANT, Arrivals.POISSON),
        (1, 4),
        (Protocol.GRPC,),
        (Driver.LOCUST,),
        (Wire.BINARY,),
    ),
    Objective(5.5, 100.0),
    rounds=5,
    duration_s=3.25,
    warmup_s=0.5,
    seed=2**62,
    budget_s=1234.5,
    precision=0.05,
    baseline="t12",
    search=SearchMethod.OPTUNA,
    switching=Switching.SIDE_BY_SIDE,
    stop_early=False,
    share="ours",
    title='a "title" with \\ and\ttab, \x7f and é',
    request={"shapes": {"a b": [1, 2]}, "workers": 2, "check_share": 0.5, "grpc_stream": True},
)
LOAD = "\n[loads]\nconcurrency = [1]\n"


@pytest.mark.parametrize("plan", [FULL, StudyPlan("m"), *(p.make("m") for p in presets.PRESETS.values() if p.make)])
def test_a_plan_comes_back_exactly(plan: StudyPlan) -> None:
    assert study_file.parse(study_file.write(plan)) == plan
    assert study_file.parse(study_file.example(plan)) == plan


def test_every_key_of_the_example_can_be_switched_on() -> None:
    lines = study_file.example(StudyPlan("m")).splitlines()
    on = [line.removeprefix("# ") if " = " in line else line for line in lines]
    plan = study_file.parse("\n".join(on))
    assert plan.space.dynamic_batching == (True, False)
    assert plan.objective == Objective(10.0, 1000.0)
    assert plan.request["input_data"] == "samples.json"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_are_plans(path: Path) -> None:
    assert study_file.read(path).plan.model == "mnist"


def test_a_single_value_needs_no_brackets() -> None:
    plan = study_file.parse('model = "m"\n[space]\nmax_batch_size = 8\n[loads]\nrate_rps = 100')
    assert plan.space.max_batch_size == (8,)
    assert plan.loads.rate_rps == (100,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("modl = 'm'", "modl is unknown. Did you mean model?"),
        ("model = 'm'", "names no load"),
        (LOAD, "names no model"),
        ("x =", "is not TOML"),
        ("model = 3" + LOAD, "names no model"),
        ("model = 'm'\nspace = 3" + LOAD, "space is a section. Write [space]"),
        ("model = 'm'\np99_ms = 3" + LOAD, "p99_ms is unknown. It belongs below [objective]."),
        ("model = 'm'" + LOAD + "rounds = 3", "[loads] rounds is unknown. It belongs at the top"),
        ("model = 'm'" + LOAD + "protocol = 'gprc'", "protocol = gprc is unknown. Did you mean grpc?"),
        ("model = 'm'" + LOAD + "arrivals = 'replay'", "one of constant, poisson"),
        ("model = 'm'\nrounds = '8'" + LOAD, "rounds=8 must be a whole number"),
        ("model = 'm'\nstop_early = 1" + LOAD, "stop_early = 1 must be true or false"),
        ("model = 'm'\n[loads]\nconcurrency = ['a']", "concurrency=a must be a whole number"),
        ("model = 'm'\n[space]\nmax_queue_delay_us = [1]" + LOAD, "Did you mean max_queue_delay_microseconds?"),
        ("model = 'm'\n[space]\npreferred_batch_size = [4, 8]" + LOAD, "[[4, 8]] is one with two preferred sizes"),
        ("model = 'm'\n[space]\ndynamic_batching = ['on']" + LOAD, "must be true or false"),
        ("model = 'm'\n[space]\nexecution_mode = [7]" + LOAD, "execution_mode=7 must be one of"),
        ("model = 'm'\n[request]\nshape = {x = [1]}" + LOAD, "Did you mean shapes?"),
    ],
)
def test_a_wrong_key_is_named_with_the_right_one(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        study_file.parse(text, "plan.toml")
    assert str(caught.value).startswith("plan.toml")
    assert sentence in str(caught.value)


def test_a_file_names_its_model_or_is_given_one(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(LOAD)
    assert study_file.read(path, "other").plan.model == "other"
    path.write_text("model = 'm'" + LOAD)
    with pytest.raises(InputError, match="is a plan for m, not for other"):
        study_file.read(path, "other")


def test_a_file_of_samples_is_found_beside_its_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text("model = 'm'\n[request]\ninput_data = 'data/a.json'" + LOAD)
    assert study_file.read(path).plan.request["input_data"] == str(tmp_path / "data" / "a.json")


def test_what_is_no_plan_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="could not be read: No such file"):
        study_file.read(tmp_path / "none.toml")
    path = tmp_path / "plan.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        study_file.read(path)
    path.write_bytes(b"#" * (study_file.MAX_BYTES + 1))
    with pytest.raises(InputError, match="1,000,001 bytes"):
        study_file.read(path)


# --- Model Analyzer ---------------------------------------------------------------------------------------------------

MANUAL = """
model_repository: /x
checkpoint_directory: /c
run_config_search_disable: True
triton_launch_mode: remote
client_protocol: http
something_new: 1
profile_models:
  m:
    parameters: {concurrency: {start: 2, stop: 64, step: 8}, batch_sizes: "1,2"}
    model_config_parameters:
      max_batch_size: [6, 8]
      dynamic_batching:
        preferred_batch_size: [[1], [2], [3]]
        max_queue_delay_microseconds: [200, 300]
        default_queue_policy: {max_queue_size: 5}
        preserve_ordering: true
      instance_group:
        - kind: KIND_GPU
          count: [1, 2]
      parameters: {intra_op_thread_count: {string_value: ["1", "2"]}}
      optimization:
        execution_accelerators: {gpu_execution_accelerator: [{name: tensorrt, parameters: {precision_mode: FP16}}]}
      version_policy: {latest: {num_versions: 1}}
    objectives: {perf_throughput: 2, gpu_used_memory: 1}
    constraints: {perf_latency_p99: {max: 100}, gpu_used_memory: {max: 200}}
    perf_analyzer_flags: {percentile: 95, shape: ["A:1,2"], request-distribution: poisson, measurement-interval: 4000}
"""


def test_what_maps_of_a_model_analyzer_yaml_is_mapped() -> None:
    plan = model_analyzer.parse(MANUAL).plan
    assert plan == StudyPlan(
        "m",
        SearchSpace(
            ((1,), (2,), (3,)),
            (200, 300),
            (6, 8),
            (1, 2),
            (True,),
            {
                "max_queue_size": (5,),
                "intra_op_thread_count": (1, 2),
                "execution_accelerator": ("tensorrt",),
                "precision_mode": ("FP16",),
            },
        ),
        LoadSpace((2, 10, 18, 26, 34, 42, 50, 58), (), (Arrivals.POISSON,), (1, 2), (Protocol.HTTP,)),
        Objective(p99_ms=100),
        duration_s=4.0,
        request={"shapes": {"A": [1, 2]}},
    )


@pytest.mark.parametrize(
    "key",
    [
        "model_repository",
        "checkpoint_directory",
        "triton_launch_mode",
        "something_new",
        "dynamic_batching.preserve_ordering",
        "instance_group.kind KIND_GPU",
        "model_config_parameters.version_policy",
        "objectives.gpu_used_memory",
        "constraints.gpu_used_memory",
        "perf_analyzer_flags.percentile",
    ],
)
def test_what_is_ignored_is_named(key: str) -> None:
    assert any(note.startswith("Ignored, ") and key in note for note in model_analyzer.parse(MANUAL).notes)


def test_a_list_of_sizes_is_one_configuration_and_a_list_of_lists_several() -> None:
    def sizes(written: Any) -> Any:
        config = {"dynamic_batching": {"preferred_batch_size": written}}
        text = json.dumps({"profile_models": {"m": {"model_config_parameters": config}}})
        return model_analyzer.parse(text).plan.space.preferred_batch_size

    assert sizes([1, 2]) == ((1, 2),)
    assert sizes([[1], [2, 4]]) == ((1,), (2, 4))
    assert sizes(4) == ((4,),)


def test_the_automatic_search_becomes_a_search_over_the_same_values() -> None:
    text = "profile_models: [a, b]\nrun_config_search_max_concurrency: 8\nrun_config_search_max_instance_count: 2"
    found = model_analyzer.parse(text, model="b")
    assert found.plan.search is SearchMethod.OPTUNA
    assert found.plan.space == SearchSpace(max_batch_size=(1, 2, 4, 8, 16, 32, 64, 128), instance_count=(1, 2))
    assert found.plan.loads == LoadSpace((1, 2, 4, 8), protocol=(Protocol.GRPC,))
    assert any("automatic search" in note for note in found.notes)


def test_latency_as_the_only_objective_is_the_lowest_p99() -> None:
    plan = model_analyzer.parse("profile_models: m\nobjectives: [perf_latency_p99]\nmin_throughput: 50").plan
    assert plan.objective == Objective(None, 50)
    assert model_analyzer.parse("profile_models: m\nlatency_budget: 7").plan.objective == Objective(7)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "has no profile_models"),
        ("!!python/object:os.system {}", "is not YAML"),
        ("profile_models: a,b", "has several models (a, b)"),
        ("profile_models: {m: {parameters: {concurrency: x}}}", "concurrency: x must be numbers"),
        ("profile_models: {m: {parameters: {concurrency: 1.5}}}", "must be whole numbers"),
        ("profile_models: {m: {parameters: {concurrency: {start: 9}}}}", "must have start and stop"),
        ("profile_models: m\nclient_protocol: quic", "client_protocol quic is unknown"),
        ("profile_models: m\nrun_config_search_max_concurrency: x", "must be a whole number"),
        ("profile_models: m\nlatency_budget: fast", "p99_ms=fast must be above 0"),
    ],
)
def test_a_yaml_that_cannot_be_read_is_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        model_analyzer.parse(text, "plan.yaml")
    assert str(caught.value).startswith("plan.yaml")
    assert sentence in str(caught.value)


# --- presets ----------------------------------------------------------------------------------------------------------


def test_presets_are_the_claims_numbers() -> None:
    delay = presets.study("queue-delay", "m")
    assert delay.space.max_queue_delay_microseconds == (100, 1000)
    assert delay.loads.rate_rps == (100.0,)
    assert (32, 64, 128) in presets.study("preferred-sizes", "m").space.preferred_batch_size
    levels = presets.study("concurrency", "m").loads
    assert levels.concurrency == (1, 5, 9, 13, 17, 21, 25, 29)
    assert levels.driver == (Driver.PERF_ANALYZER,)
    assert presets.study("json-binary", "m").loads.wire == (Wire.BINARY, Wire.JSON)


def test_a_preset_that_is_not_there_or_no_study_says_what_is() -> None:
    with pytest.raises(InputError, match=r"Did you mean queue-delay\? There are: "):
        presets.study("qeue-delay", "m")
    with pytest.raises(InputError, match=r"^There are: queue-delay"):
        presets.study("list", "m")
    with pytest.raises(InputError, match="tritune tune NAME"):
        presets.study("reload", "m")


def test_the_reload_preset_changes_something_whatever_is_served() -> None:
    for delay in (0, 100, 200):
        served = Configuration(16, True, (), delay)
        assert presets.reload_change(served).max_queue_delay_microseconds not in (None, delay)
    assert presets.reload_change(Configuration(0, False)).instance_count == 2
