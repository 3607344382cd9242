"""Trials side by side: named by what differs, compared without a verdict, turned into tables for charts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadgen.samples import Samples, Status
from tritune import analysis, frames
from tritune.analysis import compare, configuration_key, configuration_keys, ecdf, labels, significant
from tritune.errors import InputError
from tritune.load_plan import Arrivals, Driver, LoadPlan
from tritune.plan import Configuration, TrialState
from tritune.store import Trial

BATCHED = Configuration(
    16, dynamic_batching=True, preferred_batch_size=(4, 8), max_queue_delay_microseconds=700, instance_count=2
)
PLAIN = Configuration(16, dynamic_batching=False, instance_count=2)
PROVENANCE = {
    "machine": {"cpu": "Some CPU", "cores": 2, "memory_gib": 7.8},
    "triton_version": "2.51.0",
    "generator_versions": {"locust": "2.47.0"},
    "server_kind": "embedded",
    "server_http": "127.0.0.1:8000",
    "model_version": 1,
    "model_sha256": "aa",
}


def trial(number: int, *, throughput: float = 3000.0, p50: float = 2.0, p99: float = 5.0, **other: Any) -> Trial:
    plan = other.pop("plan", LoadPlan("mnist", concurrency=8))
    measurement = other.pop(
        "measurement",
        {
            "throughput_ips": {"value": throughput, "ci95": [throughput - 100, throughput + 100]},
            "latency_ms": {
                "p50": p50,
                "p99": {"value": p99, "ci95": [p99 - 0.5, p99 + 0.5], "at_least": False},
                "lower_bounds": [],
            },
            "server": {
                "average_batch": 4.0,
                "batch_sizes": {"10": 5, "4": 30, "1": 20},
                "queue_us": 300.0,
                "compute_input_us": 10.0,
                "compute_infer_us": 700.0,
                "compute_output_us": None,
            },
            "warnings": [],
            "window_ns": [0, 10_000_000_000],
        },
    )
    values = {
        "study_id": f"s{number}",
        "state": TrialState.FINISHED,
        "model": plan.model,
        "configuration": BATCHED,
        "labels": {},
        "note": "",
        "provenance": PROVENANCE,
        "error": None,
        "created_at": 1000.0 + number,
        "finished_at": None,
        "round": 0,
        "attempt": 0,
    }
    return Trial(trial_id=f"t{number}", plan=plan, measurement=measurement, **(values | other))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3213.4, "3,210"),
        (1234567.0, "1,230,000"),
        (0.012345, "0.0123"),
        (1, "1.00"),
        (9.999, "10.0"),
        (999.6, "1,000"),
        (0, "0"),
        (-42.123, "-42.1"),
        (None, "–"),
        (float("nan"), "–"),
        (float("inf"), "–"),
    ],
)
def test_numbers_have_three_significant_digits(value: float | None, text: str) -> None:
    assert significant(value) == text


def test_more_digits_on_request() -> None:
    assert significant(3213.4, 4) == "3,213"


# --- names ---------------------------------------------------------------------------------------------------------


def test_trials_are_named_by_what_differs_between_them() -> None:
    trials = [
        trial(1, configuration=PLAIN),
        trial(2),
        trial(3, configuration=replace(BATCHED, max_queue_delay_microseconds=0)),
    ]
    assert labels(trials) == {
        "t1": "no batching",
        "t2": "preferred 4,8 · delay 700 µs",
        "t3": "preferred 4,8 · delay 0 µs",
    }


def test_loads_are_part_of_the_name_only_where_they_differ() -> None:
    rate = LoadPlan("mnist", rate_rps=100, arrivals=Arrivals.POISSON)
    trials = [
        trial(1),
        trial(2, plan=LoadPlan("mnist", concurrency=1, driver=Driver.PERF_ANALYZER)),
        trial(3, plan=rate),
    ]
    assert labels(trials) == {
        "t1": "8 clients · locust",
        "t2": "1 client · perf_analyzer",
        "t3": "100/s poisson · locust",
    }


def test_equal_trials_are_told_apart_by_their_ids() -> None:
    assert labels([trial(1), trial(2)]) == {"t1": "t1", "t2": "t2"}
    assert labels([trial(1), trial(2), trial(3, configuration=PLAIN)]) == {
        "t1": "preferred 4,8 · delay 700 µs · t1",
        "t2": "preferred 4,8 · delay 700 µs · t2",
        "t3": "no batching",
    }


def test_a_configuration_that_the_server_did_not_report_says_so() -> None:
    assert labels([trial(1), trial(2, configuration=None)])["t2"] == analysis.UNKNOWN_CONFIGURATION
    assert configuration_key(trial(2, configuration=None)) == "mnist: configuration not reported"


def test_what_triton_fills_in_is_the_same_configuration() -> None:
    empty = replace(BATCHED, preferred_batch_size=())
    assert configuration_key(trial(1, configuration=empty)) == configuration_key(
        trial(2, configuration=replace(BATCHED, preferred_batch_size=(16,)))
    )


def test_configurations_are_ordered_by_their_first_measurement_however_trials_are_listed() -> None:
    trials = [
        trial(1),
        trial(2, configuration=PLAIN),
        trial(3),
        trial(10, configuration=replace(PLAIN, max_batch_size=4)),
    ]
    keys = configuration_keys(trials)
    assert keys == configuration_keys(list(reversed(trials)))
    assert keys[:2] == (configuration_key(trials[0]), configuration_key(trials[1]))
    assert len(keys) == 3


# --- comparison ----------------------------------------------------------------------------------------------------


def test_ratios_are_to_the_chosen_baseline() -> None:
    found = compare([trial(1, throughput=2000, p99=4.0), trial(2, throughput=3000, p99=5.0, configuration=PLAIN)], "t1")
    (row,) = found.rows
    assert row.throughput_ratio.value == 1.5
    assert row.p99_ratio.value == 1.25
    assert row.p50_ratio.value == 1.0
    assert found.warnings == ()


def test_trials_that_were_not_interleaved_get_no_verdict_even_where_intervals_are_far_apart() -> None:
    found = compare([trial(1, throughput=1000), trial(2, throughput=9000)], "t1")
    document = found.to_dict()["comparisons"][0]
    assert document["verdict"] is None
    assert document["throughput_ratio"] == {"value": 9.0, "ci95": None, "at_least": False}
    assert document["reason"] == analysis.NO_VERDICT
    assert found.sentences()[-1] == analysis.NO_VERDICT
    assert "×9.00 (+800 %)" in found.sentences()[1]


def test_the_comparison_is_plain_json() -> None:
    document = compare([trial(1), trial(2)], "t2").to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["baseline"] == "t2"


def with_p99(number: int, value: float | None, *, at_least: bool = False) -> Trial:
    made = trial(number)
    assert made.measurement is not None
    p99 = {"value": value, "ci95": None, "at_least": at_least}
    latency = dict(made.measurement["latency_ms"]) | {"p99": p99}
    return replace(made, measurement=dict(made.measurement) | {"latency_ms": latency})


def test_a_number_that_is_missing_or_only_a_bound_gives_no_more_than_that() -> None:
    def ratio(number: Trial, baseline: Trial) -> analysis.Ratio:
        return compare([baseline, number], baseline.trial_id).rows[0].p99_ratio

    assert ratio(with_p99(2, None), trial(1)) == analysis.Ratio(None)
    assert ratio(trial(2), with_p99(1, None)) == analysis.Ratio(None)
    assert ratio(trial(2), with_p99(1, 4.0, at_least=True)) == analysis.Ratio(None)
    assert ratio(with_p99(2, 10.0, at_least=True), trial(1)).describe() == "≥ ×2.00 (+100 %)"
    assert compare([with_p99(1, 0.0), trial(2)], "t1").rows[0].p99_ratio.describe() == "–"


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"plan": LoadPlan("mnist", concurrency=16)}, "load_differs", "16 clients"),
        ({"plan": LoadPlan("mnist", concurrency=8, driver=Driver.PERF_ANALYZER)}, "driver_differs", "perf_analyzer"),
        ({"provenance": PROVENANCE | {"machine": {"cpu": "Other"}}}, "hardware_differs", "cpu Other against Some CPU"),
        ({"provenance": PROVENANCE | {"triton_version": "2.60.0"}}, "versions_differ", "2.60.0 against 2.51.0"),
        ({"provenance": PROVENANCE | {"server_http": "gpu-box:8000"}}, "path_differs", "gpu-box"),
        ({"provenance": PROVENANCE | {"model_sha256": "bb"}}, "model_differs", "bb against aa"),
    ],
)
def test_whatever_else_differs_is_warned_of(change: dict[str, Any], code: str, said: str) -> None:
    (warning,) = compare([trial(1), trial(2, **change)], "t1").warnings
    assert warning.code == code
    assert said in warning.message
    assert "t2 and t1" in warning.message


def test_another_driver_under_the_same_load_is_one_warning() -> None:
    other = LoadPlan("mnist", concurrency=8, driver=Driver.PERF_ANALYZER)
    provenance = PROVENANCE | {"server_http": "127.0.0.1:8010"}  # a restart may take another port
    found = compare([trial(1), trial(2, plan=other, provenance=provenance)], "t1").warnings
    assert [warning.code for warning in found] == ["driver_differs"]


@pytest.mark.parametrize(
    ("trials", "baseline", "said"),
    [
        ([trial(1)], "t1", "at least two different"),
        ([trial(1), trial(1)], "t1", "at least two different"),
        ([trial(1), trial(2)], "t3", "baseline t3 is not among"),
        ([trial(1), trial(2, measurement=None, state=TrialState.FAILED)], "t1", "t2 is failed"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_sentence(trials: list[Trial], baseline: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        compare(trials, baseline)


# --- distributions and tables --------------------------------------------------------------------------------------


def samples_of(count: int, *, unsent: int = 0) -> Samples:
    rng = np.random.default_rng(0)
    intended = rng.integers(0, 10_000_000_000, count)
    status = np.where(np.arange(count) < unsent, Status.UNSENT, Status.OK).astype(np.int8)
    sent = np.where(status == Status.UNSENT, -1, intended)
    done = np.where(status == Status.UNSENT, -1, intended + (rng.lognormal(0, 1, count) * 1e6).astype(np.int64))
    return Samples(intended, sent, done, status, np.zeros(count, dtype=np.int16))


@pytest.mark.parametrize("count", [1, 1999, 2001, 200_000])
def test_the_thinned_distribution_lies_on_the_full_one_and_keeps_the_tail(count: int) -> None:
    samples = samples_of(count)
    latency_ms, share = ecdf(samples, (0, 10_000_000_000))
    full = np.sort((samples.done_ns - samples.intended_ns) / 1e6)
    assert len(latency_ms) == len(share) <= 2000
    assert np.array_equal(latency_ms, full[(share * count).round().astype(int) - 1])
    tail = min(count, 500)
    assert np.array_equal(latency_ms[-tail:], full[-tail:])
    assert (np.diff(share) > 0).all()
    assert share[-1] == 1.0
    if count > 2000:
        assert np.quantile(full, 0.99, method="inverted_cdf") in latency_ms


def test_the_distribution_ends_below_one_where_requests_were_not_answered() -> None:
    _, share = ecdf(samples_of(1000, unsent=100), (0, 10_000_000_000))
    assert share[-1] == 0.9
    assert ecdf(Samples.empty(), (0, 1))[0].size == 0


def test_tables_have_a_row_for_every_mark() -> None:
    trials = [trial(1), with_p99(2, None), trial(3, configuration=PLAIN)]
    headline = frames.headline_frame(trials)
    assert list(headline["trial_id"]) == ["t1", "t2", "t3"]
    assert headline["p99_ms"].isna().tolist() == [False, True, False]
    assert headline["throughput_low"].tolist() == [2900.0] * 3
    assert headline["key"].nunique() == 2
    times = frames.server_time_frame(trials)
    assert times[times["trial_id"] == "t1"]["part"].tolist() == ["Queue", "Compute input", "Inference"]
    assert times["time_ms"].iloc[0] == 0.3
    sizes = frames.batch_size_frame(trials[:1])
    assert sizes["batch_size"].tolist() == [1, 4, 10]
    assert sizes["share"].tolist() == pytest.approx([20 / 190, 120 / 190, 50 / 190])
    curves = frames.ecdf_frame(trials, {"t1": samples_of(3000)})
    assert curves["trial_id"].unique().tolist() == ["t1"]


def test_tables_of_nothing_have_their_columns() -> None:
    bare = trial(1)
    assert bare.measurement is not None
    bare = replace(bare, measurement=dict(bare.measurement) | {"server": None})
    for table in (
        frames.server_time_frame([bare]),
        frames.batch_size_frame([bare]),
        frames.ecdf_frame([bare], {}),
        frames.headline_frame([]),
        frames.live_frame([]),
    ):
        assert table.empty
        assert len(table.columns) >= 4


def test_a_live_second_counts_once() -> None:
    points = [
        {"elapsed_s": 2.0, "throughput_rps": 10, "p99_ms": 3, "phase": "measuring"},
        {"elapsed_s": 1.0, "throughput_rps": 0, "p99_ms": None, "phase": "warmup"},
        {"elapsed_s": 2.0, "throughput_rps": 20, "p99_ms": 3, "phase": "measuring"},
    ]
    live = frames.live_frame(points)
    assert live["elapsed_s"].tolist() == [1.0, 2.0]
    assert live["throughput_rps"].tolist() == [0.0, 20.0]
    assert live["p99_ms"].isna().tolist() == [True, False]
