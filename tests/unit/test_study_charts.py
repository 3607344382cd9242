"""Charts and tables of a study: the right rows, valid charts, told in words, legible without colour."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadgen.samples import Samples
from tritune import chart_style, detail_charts, spectrum, study_charts, study_frames, study_tables
from tritune.load_plan import LoadPlan, describe_load
from tritune.plan import Configuration

CLIENTS = (1, 8, 32)
SECOND = 1_000_000_000


def configurations(count: int) -> list[Configuration]:
    """The baseline without batching, then preferred sizes by delays."""
    grid = itertools.product(
        ((), (4, 8), (16,), (8, 16), (4,), (32,), (2, 4)), (0, 100, 1000, 5000, 200, 300, 400, 700, 900)
    )
    return [Configuration(32, False), *(Configuration(32, True, sizes, delay) for sizes, delay in grid)][:count]


def one_trial(number: int, load: int, round: int, state: str = "finished", role: str = "measure") -> dict[str, Any]:
    """A trial's document with what the tables read of it."""
    plan = LoadPlan("mnist", concurrency=CLIENTS[load])
    configuration = configurations(60)[number]
    document: dict[str, Any] = {
        "trial_id": f"t{100 * round + 10 * load + number}",
        "state": state,
        "configuration": configuration.to_dict(),
        "load": plan.load(),
        "round": round,
        "attempt": 1,
        "cell": {"candidate": number, "load": load, "role": role},
        "error": "The server ended." if state == "failed" else None,
    }
    if state == "finished":
        average = 1.0 if number == 0 or load == 0 else 4.0
        document |= {
            "throughput_ips": {"value": 900.0 * (1 + load) + 20 * number, "ci95": [890.0, 3000.0]},
            "latency_ms": {"mean": 4.0 + load, "p50": 3.0, "p99": {"value": 9.0 + load, "ci95": None}},
            "requests": {"ok": 9000},
            "server": {
                "average_batch": average,
                "batch_sizes": {"1": 100} if average == 1 else {"1": 100, "4": 300, "8": 100},
                "queue_us": 1000.0,
                "compute_input_us": 100.0,
                "compute_infer_us": 2000.0,
                "compute_output_us": 100.0,
            },
            "warnings": [{"code": "never_batched", "message": "Dynamic batching is on but batches averaged 1."}]
            if number and load == 0
            else [],
        }
    return document


def study(count: int = 12, rounds: int = 8, *, done: int | None = None, state: str = "finished") -> dict[str, Any]:
    """The document of a study of `count` configurations under three loads, the ninth of them left out after round 3."""
    finished = rounds if done is None else done
    found = configurations(count)
    plans = [LoadPlan("mnist", concurrency=clients) for clients in CLIENTS]
    labels = [
        "no batching",
        *(f"preferred {c.preferred_batch_size} · delay {c.max_queue_delay_microseconds}" for c in found[1:]),
    ]
    names = [{"candidate": n, "configuration": c.to_dict(), "label": labels[n]} for n, c in enumerate(found)]
    cells = []
    comparisons = []
    for number, load in itertools.product(range(count), range(3)):
        ips = 900.0 * (1 + load) * (1 + (0.05 * number if load else -0.01 * number))
        p99 = 3.0 * (1 + 2 * load) * (1 + 0.02 * (number - 5) ** 2)
        cells.append(
            {
                "candidate": number,
                "load": load,
                "rounds": finished,
                "throughput_ips": {"value": ips, "ci95": [0.97 * ips, 1.03 * ips]},
                "p99_ms": {
                    "value": p99,
                    "ci95": None if number == 3 else [0.9 * p99, 1.1 * p99],
                    "at_least": number == 3,
                },
                "p50_ms": p99 / 3,
                "average_batch": 1.0 if number == 0 else 4.0,
                "queue_ms": 1.0,
            }
        )
        if number:
            verdict = "better" if load and number > 2 else "worse" if not load and number > 5 else "no difference shown"
            ratio = ips / (900.0 * (1 + load))
            comparisons.append(
                {
                    **names[number],
                    "load": plans[load].load(),
                    "load_number": load,
                    "metric": "throughput_ips",
                    "throughput_ratio": {"value": ratio, "ci95": [0.97 * ratio, 1.03 * ratio]},
                    "p99_ratio": {"value": 1.1, "ci95": [0.9, 1.3]} if number != 3 else None,
                    "verdict": verdict,
                    "rounds": finished,
                    "more_rounds": 14 if verdict == "no difference shown" else None,
                    "sentence": f"{labels[number]} is {verdict}.",
                }
            )
    if not finished:
        cells, comparisons = [], []
    best = {**names[-1], "load": plans[2].load(), "load_number": 2, "indistinguishable": []}
    best["indistinguishable"] = [{**each, "load": plans[2].load(), "load_number": 2} for each in names[-2:-1]]
    trials = [
        one_trial(number, load, round)
        for round in range(1, finished + 1)
        for number, load in itertools.product(range(count), range(3))
    ]
    return {
        "study_id": "s7",
        "state": state,
        "model": "mnist",
        "candidates": [
            {**each, "change": {}, "state": "out" if n == 8 else "kept", "reason": "It is slower.", "after_round": 3}
            for n, each in enumerate(names)
        ],
        "loads": [
            {"load": n, "describe": describe_load(plan.load()), "plan": plan.load()} for n, plan in enumerate(plans)
        ],
        "rounds": {"planned": rounds, "done": finished},
        "left_out": [],
        "baseline": names[0],
        "trials": trials,
        "cells": cells,
        "comparisons": comparisons,
        "best": best if finished > 2 else None,
        "drift": [
            {"round": n + 1, "load": n % 3, "throughput_ratio": 1 + 0.01 * n, "p99_ratio": 0.98}
            for n in range(finished)
        ],
    }


WHOLE = study()
FEW = [0, 3, 10, 11]


def samples(count: int = 60_000, seed: int = 0) -> Samples:
    random = np.random.default_rng(seed)
    intended = np.sort(random.integers(0, 10 * SECOND, count)).astype(np.int64)
    latency = (random.lognormal(np.log(4), 0.4, count) * 1e6).astype(np.int64)
    return Samples(intended, intended, intended + latency, np.zeros(count, np.int8), np.zeros(count, np.int16))


def every_chart(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    cells = study_frames.cell_frame(document)
    few = [number for number in FEW if number < len(document["candidates"])]
    colors = study_charts.colors(document, few, {})
    across, down = ("max_queue_delay_microseconds", "preferred_batch_size")
    knobs = study_frames.knob_frame(document, 1, across, down, "throughput_ips")
    tails = study_frames.knob_frame(document, 1, across, down, "p99_ms")
    axes = [("Max queue delay, µs", study_frames.knob_order(document, across))]
    axes += [("Preferred batch sizes", study_frames.knob_order(document, down))]
    curve = spectrum.spectrum([(samples(), (0, 10 * SECOND))]) if document["trials"] else (np.empty(0), np.empty(0))
    steps = study_frames.timeline_frame(
        spectrum.timeline(samples() if document["trials"] else Samples.empty(), (0, 10 * SECOND), 1)
    )
    shown = [study_frames.name_of(number) for number in few]
    made = {
        "frontier": study_charts.frontier(cells, 12.0, 500.0),
        "throughput by knobs": study_charts.heat_map(knobs, axes[0], axes[1], "throughput_ips", "8 clients"),
        "p99 by knobs": study_charts.heat_map(tails, axes[0], axes[1], "p99_ms", "8 clients"),
        "ratios": study_charts.ratios(study_frames.verdict_frame(document, 1), "8 clients"),
        "p99 by load": study_charts.p99_by_load(cells, shown, colors, unit="clients", limit_ms=12.0),
        "drift": study_charts.drift(study_frames.drift_frame(document)),
        "time": detail_charts.server_time(study_frames.server_time_frame(document, 1, few), "8 clients"),
        "spectra": detail_charts.spectra(
            study_frames.spectrum_frame(document, dict.fromkeys(few, curve)), colors, "8 clients"
        ),
        "throughput over time": detail_charts.throughput_over_time(steps, "t12"),
        "p99 over time": detail_charts.p99_over_time(steps, "t12"),
    }
    return {name: chart.to_dict() for name, chart in made.items()}  # to_dict validates against Vega-Lite's schema


CHARTS = every_chart(WHOLE)


def parts(document: Any, key: str) -> Iterator[dict[str, Any]]:
    """Every object inside that has the key."""
    if isinstance(document, dict):
        if key in document:
            yield document
        for value in document.values():
            yield from parts(value, key)
    elif isinstance(document, list):
        for value in document:
            yield from parts(value, key)


# --- charts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_has_a_title_with_its_unit_alt_text_and_its_containers_width(name: str) -> None:
    chart = CHARTS[name]
    assert len(chart["description"]) > 40
    assert chart["width"] == "container"
    assert "background" not in json.dumps(chart)
    titles = [chart["title"]["text"], *(str(part.get("title")) for part in parts(chart, "title"))]
    assert any(unit in " ".join(titles) for unit in ("ms", "inferences/s", "%"))


@pytest.mark.parametrize("document", [study(rounds=8, done=0, state="running"), study(count=1)], ids=["empty", "alone"])
def test_a_study_with_nothing_to_draw_has_its_charts_all_the_same(document: dict[str, Any]) -> None:
    assert all(chart["description"] for chart in every_chart(document).values())


def test_sixty_configurations_make_valid_charts_in_time() -> None:
    charts = every_chart(study(60, 3))
    assert "180 cells" in charts["frontier"]["description"]
    assert charts["ratios"]["height"] == 59 * chart_style.ROW_PX


def test_the_frontier_tells_winners_objective_and_each_loads_line() -> None:
    told = CHARTS["frontier"]["description"]
    assert "Objective: P99 at most 12 ms and at least 500 inferences/s." in told
    assert "best: preferred (4,) · delay 400 · baseline" not in told
    assert f"best: {WHOLE['candidates'][11]['label']}, 32 clients" in told
    assert f"not told from the best: {WHOLE['candidates'][10]['label']}, 32 clients" in told
    assert "1 client: " in told
    assert "8 clients: " in told


def test_the_frontier_is_what_no_other_configuration_beats_in_both() -> None:
    cells = study_frames.cell_frame(WHOLE)
    for _, part in cells[cells["p99_ms"].notna()].groupby("load"):
        for row in part.itertuples():
            beaten = (part["throughput_ips"] > row.throughput_ips) & (part["p99_ms"] < row.p99_ms)
            assert row.on_frontier != beaten.any()


def test_what_a_configuration_is_in_the_result_is_told_by_shape_and_colour() -> None:
    shapes = next(part["shape"] for part in parts(CHARTS["frontier"], "shape") if isinstance(part["shape"], dict))
    assert len(set(shapes["scale"]["range"])) == len(shapes["scale"]["domain"]) == 5
    assert len({shape for _, shape in study_charts.JUDGED.values()}) == len(study_charts.JUDGED)


def test_verdicts_stand_in_words_beside_each_pair() -> None:
    texts = " ".join(part["labelExpr"] for part in parts(CHARTS["ratios"], "labelExpr"))
    assert "better, +50.0 % (+45.5 to +54.5)" in texts
    assert "no difference shown, +10.0 %" in texts


def test_a_bound_reads_at_least() -> None:
    assert f"{WHOLE['candidates'][3]['label']}: ≥ " in CHARTS["p99 by load"]["description"]


def test_a_heat_map_is_readable_without_its_colours() -> None:
    values = [
        row["text"] for data in CHARTS["throughput by knobs"]["datasets"].values() for row in data if "text" in row
    ]
    assert "1,800 ▪" in values  # the baseline
    inks = {row["ink"] for data in CHARTS["p99 by knobs"]["datasets"].values() for row in data if "ink" in row}
    assert inks <= set(study_charts.INKS)


def test_the_best_of_several_configurations_stands_for_them_in_a_heat_map() -> None:
    document = copy.deepcopy(WHOLE)
    twice = document["candidates"][2]["configuration"]
    document["candidates"][1]["configuration"] = twice
    table = study_frames.knob_frame(document, 1, "max_queue_delay_microseconds", "preferred_batch_size", "p99_ms")
    assert table["others"].sum() == 1
    assert table[table["others"] == 1]["label"].item() == document["candidates"][2]["label"]


def test_two_configurations_of_one_chart_never_have_one_colour() -> None:
    keys = study_frames.keys(WHOLE)
    ours = dict.fromkeys(keys.values(), chart_style.PALETTE[0])
    chosen = study_charts.colors(WHOLE, list(range(8)), ours)
    assert len(set(chosen.values())) == 8
    assert chosen[keys[0]] == chart_style.PALETTE[0]


def test_the_grey_of_the_network_stays_apart_from_the_servers_colours_by_lightness_or_hue() -> None:
    assert len(set(detail_charts.TIMES)) == 5
    assert CHARTS["time"]["description"].startswith(
        "Stacked bar chart of the mean time of a request in ms under 8 clients: Network and client, Queue"
    )


# --- percentiles ----------------------------------------------------------------------------------------------------


def test_percentiles_are_those_of_all_requests_together_and_end_where_they_suffice() -> None:
    first, second = samples(30_000, 1), samples(30_000, 2)
    shares, latency = spectrum.spectrum([(first, (0, 10 * SECOND)), (second, (0, 10 * SECOND))])
    every = np.sort(np.concatenate([each.done_ns - each.intended_ns for each in (first, second)])) / 1e6
    assert shares[-1] == spectrum.HIGHEST
    for share in (0.5, 0.99, 0.999):
        place = int(np.flatnonzero(np.isclose(shares, share, rtol=0, atol=1e-12))[0])
        assert latency[place] == every[int(np.ceil(share * every.size)) - 1]
    assert spectrum.spectrum([(samples(1000), (0, 10 * SECOND))])[0][-1] <= 0.9955  # P99.9 would need 4,603


def test_a_percentile_that_reaches_requests_without_an_answer_is_not_drawn() -> None:
    made = samples(60_000)
    done = made.done_ns.copy()
    done[::50] = -1
    lost = Samples(made.intended_ns, made.sent_ns, done, made.status, made.worker)
    assert spectrum.spectrum([(lost, (0, 10 * SECOND))])[0][-1] <= 0.98


def test_a_timeline_has_a_second_a_step_and_no_p99_of_a_few_requests() -> None:
    middle, ips, p99 = spectrum.timeline(samples(60_000), (0, 10 * SECOND), 4)
    assert list(middle) == [n + 0.5 for n in range(10)]
    assert ips.mean() == pytest.approx(4 * 6000, rel=0.01)
    assert np.isfinite(p99).all()
    assert np.isnan(spectrum.timeline(samples(500), (0, 10 * SECOND), 1)[2]).all()


def test_a_run_that_kept_counts_only_has_the_same_percentiles() -> None:
    from loadgen.histogram import Tally

    made = samples(60_000)
    counted = Tally(0, 10 * SECOND)
    counted.add(made)
    shares, latency = spectrum.spectrum([(made, (0, 10 * SECOND))])
    same, about = spectrum.spectrum([(counted, (0, 10 * SECOND))])
    assert np.array_equal(shares, same)
    assert np.allclose(latency, about, rtol=0.001)
    assert spectrum.timeline(counted, (0, 10 * SECOND), 1)[1].mean() == pytest.approx(6000, rel=0.01)


# --- tables ---------------------------------------------------------------------------------------------------------


def test_the_verdict_table_says_how_much_and_how_many_rounds_would_settle_it() -> None:
    rows = study_tables.verdict_table(WHOLE)
    assert len(rows) == 33
    assert rows[0]["Verdict"] == "better"
    assert rows[-1]["Verdict"] == "worse"
    open_one = next(row for row in rows if row["Verdict"] == "no difference shown")
    assert open_one["To settle it"] == "about 14 more rounds"
    assert [row["Place"] for row in rows if row["Place"]] == ["≈ not told from the best", "★ best"]
    assert [row["Load"] for row in study_tables.verdict_table(WHOLE, number=4)] == [
        "8 clients",
        "32 clients",
        "1 client",
    ]


def test_batching_is_shown_as_asked_in_effect_and_formed_with_the_reason() -> None:
    rows = study_tables.batching_table(WHOLE, 0)
    assert rows[0]["Asked"] == "off, at most 32"
    assert rows[5]["Formed"] == "average 1.00, largest 1, 0 % merged"
    assert "averaged 1" in rows[5]["Reason"]
    assert "1 client with 1 sample each can never fill the smallest preferred size, 4." in rows[11]["Reason"]
    loaded = study_tables.batching_table(WHOLE, 1)
    assert loaded[2]["In effect"] == "any size within 100 µs, at most 32"
    assert loaded[2]["Formed"] == "average 4.20, largest 8, 95 % merged"
    assert loaded[2]["Reason"] == ""
    assert list(study_tables.reasons(rows).values())[-1] == [rows[10]["Configuration"], rows[11]["Configuration"]]
    assert study_tables.several(["a", "b", "c"], 2) == "a; b and 1 more"


def test_progress_says_what_is_measured_what_runs_and_what_is_left_out() -> None:
    document = study(done=1, state="running")
    document["trials"] += [one_trial(2, 1, 2, "running"), one_trial(4, 2, 2, "failed")]
    rows = study_tables.progress_table(document)
    assert rows[2]["8 clients"].startswith("▶ measuring now · ")
    assert rows[2]["8 clients"].endswith("1/8")
    assert rows[8]["State"] == "left out after round 3: It is slower."
    empty = study(done=0, state="running")
    empty["trials"] = [one_trial(0, 0, 1, "running"), one_trial(1, 0, 1, "failed"), one_trial(2, 0, 1, "waiting")]
    rows = study_tables.progress_table(empty)
    assert [row["1 client"] for row in rows[:3]] == ["▶ measuring now", "failed", "–"]


def test_a_change_says_its_interval_or_that_it_is_a_bound() -> None:
    assert study_tables.change_words({"value": 1.2, "ci95": [0.9, 1.5]}) == "+20.0 % (-10.0 to +50.0)"
    assert study_tables.change_words({"value": 1.2, "ci95": None, "at_least": True}) == "≥ +20.0 %"
    assert study_tables.change_words(None) == "–"


def test_loads_of_different_kinds_stand_in_different_series() -> None:
    document = copy.deepcopy(WHOLE)
    rate = LoadPlan("mnist", rate_rps=100.0).load()
    document["loads"].append({"load": 3, "describe": describe_load(rate), "plan": rate})
    assert study_frames.series(document) == {
        "locust http, clients": [0, 1, 2],
        "locust http, requests/s, constant": [3],
    }


def test_knobs_that_do_not_vary_are_not_offered() -> None:
    assert list(study_frames.varied(WHOLE)) == [
        "preferred_batch_size",
        "max_queue_delay_microseconds",
        "dynamic_batching",
    ]
    assert study_frames.knob_order(WHOLE, "max_queue_delay_microseconds")[:3] == ["no batching", "0", "100"]
