"""The option strings of `tritune sweep`: what they may look like, and one sentence where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from tritune.errors import InputError
from tritune.load_plan import Arrivals, Driver, Protocol
from tritune.study_plan import LoadSpace, Objective, SearchMethod, SearchSpace, StudyPlan, Switching
from tritune.sweep_options import SweepOptions, knob_values, wholes


def test_options_are_a_plan() -> None:
    options = SweepOptions(
        preferred_batch_size="none;4;4,8",
        max_queue_delay_us="0,100,1000",
        max_batch_size="8,32",
        instances="1,2",
        batching="on,off",
        threads="1,2",
        knobs={"execution_mode": "sequential,parallel"},
        concurrency="1,8,32",
        batch="1,4",
        protocol="http,grpc",
        driver="locust,perf_analyzer",
        rounds=5,
        duration_s=3,
        warmup_s=1,
        seed=4,
        budget_min=30,
        precision=0.05,
        p99_ms=5,
        baseline="t12",
        search="optuna",
        switching="side-by-side",
        stop_early=False,
        share="ours",
        title="a title",
        request={"workers": 2},
    )
    assert options.plan("m") == StudyPlan(
        "m",
        SearchSpace(
            ((), (4,), (4, 8)),
            (0, 100, 1000),
            (8, 32),
            (1, 2),
            (True, False),
            {"execution_mode": (0, 1), "intra_op_thread_count": (1, 2)},
        ),
        LoadSpace(
            (1, 8, 32),
            batch=(1, 4),
            protocol=(Protocol.HTTP, Protocol.GRPC),
            driver=(Driver.LOCUST, Driver.PERF_ANALYZER),
        ),
        Objective(p99_ms=5),
        rounds=5,
        duration_s=3,
        warmup_s=1,
        seed=4,
        budget_s=1800,
        precision=0.05,
        baseline="t12",
        search=SearchMethod.OPTUNA,
        switching=Switching.SIDE_BY_SIDE,
        stop_early=False,
        share="ours",
        title="a title",
        request={"workers": 2},
    )


def test_what_is_not_given_stays_as_the_plan_has_it() -> None:
    base = StudyPlan(
        "m", SearchSpace(instance_count=(1, 2)), LoadSpace((4,)), Objective(9), rounds=5, request={"wire": "json"}
    )
    assert SweepOptions().plan("m", base) == base
    changed = SweepOptions(rate="100,250.5", arrivals="poisson", request={"workers": 2}).plan("m", base)
    assert changed.space == base.space
    assert (changed.loads.concurrency, changed.loads.rate_rps) == ((), (100.0, 250.5))
    assert changed.loads.arrivals == (Arrivals.POISSON,)
    assert changed.request == {"wire": "json", "workers": 2}
    assert SweepOptions(min_throughput=50).plan("m", base).objective == Objective(None, 50)


def test_ranges_count_as_perf_analyzer_does() -> None:
    assert wholes("1:32:4", "concurrency") == (1, 5, 9, 13, 17, 21, 25, 29)
    assert wholes("2:4,8,8", "concurrency") == (2, 3, 4, 8)


def test_values_of_a_further_knob_are_parted_by_commas_or_where_they_have_some_by_semicolons() -> None:
    assert knob_values("execution_mode", "0,parallel") == (0, 1)
    assert knob_values("model_warmup", "1,4;8") == ("1,4", "8")
    assert knob_values("model_warmup", "1,4") == ("1,4",)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"preferred_batch_size": "4;;8"}, 'lists with semicolons between them, such as "none;4;4,8"'),
        ({"preferred_batch_size": "4;-1"}, "lists with semicolons"),
        ({"max_queue_delay_us": "1,a"}, "whole numbers with commas"),
        ({"max_queue_delay_us": "-5"}, "max_queue_delay_us=-5 must be a whole number from 0"),
        ({"instances": "0"}, "instances=0 must be a whole number from 1"),
        ({"concurrency": "8:1:2"}, "start:end:step"),
        ({"concurrency": "1:999999999"}, "start:end:step"),
        ({"concurrency": "0"}, "concurrency=0 must be a whole number from 1"),
        ({"rate": "1,x"}, "numbers with commas between them"),
        ({"rate": "0"}, "rate=0.0 must be above 0"),
        ({"batching": "maybe"}, "batching='maybe' must be on, off or on,off"),
        ({"threads": "-1"}, "intra_op_thread_count=-1 must be a whole number from 0"),
        ({"threads": "1", "knobs": {"intra_op_thread_count": "2"}}, "are the same"),
        ({"knobs": {"model_versio": "2"}}, "Did you mean model_version"),
        ({"knobs": {"model_version": "none"}}, "only takes the knob out"),
        ({"search": "optune"}, "Did you mean optuna"),
        ({"driver": "perf-analyzer"}, "Did you mean perf_analyzer"),
        ({"switching": "never"}, "It is one of auto, side_by_side, reload"),
        ({"arrivals": "poisson"}, "Give --rate as well"),
        ({"arrivals": "replay", "rate": "5"}, "not for studies"),
        ({"baseline": "best"}, "a trial's id, such as t12"),
        ({"rounds": 0}, "rounds=0 must be a whole number from 1"),
        ({"budget_min": 0.0}, "budget=0.0 must be above 0"),
    ],
)
def test_a_wrong_option_is_one_sentence_with_the_right_form(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        SweepOptions(**options).plan("m")
    assert sentence in str(caught.value)
