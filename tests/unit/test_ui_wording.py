"""Numbers and text as a page says them."""

from __future__ import annotations

import math
import time

import pytest

from tritune.errors import InputError
from tritune.plan import Configuration, TuneChange
from tritune.ui import load_view, tune_view, wording


@pytest.mark.parametrize(
    ("value", "said"),
    [(3213.0, "3,210 ms"), (0.012345, "0.0123 ms"), (1.0, "1.00 ms"), (0.0, "0 ms"), (None, "–"), (math.nan, "–")],
)
def test_numbers_have_three_significant_digits_and_their_unit(value: float | None, said: str) -> None:
    assert wording.figure(value, "ms") == said


@pytest.mark.parametrize(("seconds", "said"), [(8.4, "8 s"), (125, "2 min 05 s"), (4200, "1 h 10 min")])
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    assert wording.duration(seconds) == said


def test_times_are_said_relative_to_now() -> None:
    now = time.time()
    assert wording.ago(None) == ""
    assert wording.ago(now) == "just now"
    assert wording.ago(now - 125) == "2 min ago"
    assert "-" in wording.ago(now - 7200)


def test_text_reads_exactly_as_written_and_code_stays_code() -> None:
    assert wording.plain("[4, 8] costs $5 *now* in INPUT__0") == r"\[4, 8\] costs \$5 \*now\* in INPUT\_\_0"
    assert wording.plain("Use `tritune tune m_1`.") == "Use `tritune tune m_1`."
    assert wording.plain("one ` alone_") == r"one \` alone\_"
    assert wording.plain(r"\*a\* \[x](y)") == r"\\\*a\\\* \\\[x\](y)"


@pytest.mark.parametrize(("text", "sizes"), [("", ()), ("4, 8", (4, 8)), ("4 8", (4, 8)), (" 16 ,", (16,))])
def test_preferred_sizes_are_read_as_typed(text: str, sizes: tuple[int, ...]) -> None:
    assert tune_view.parse_sizes(text) == sizes


def test_only_what_differs_is_asked_for() -> None:
    before = Configuration(16, True, (4,), 100, None)
    same = {"batching": True, "sizes": "4", "delay_us": 100, "max_batch": 16, "instances": None}
    assert tune_view.change(before, **same).is_empty
    assert tune_view.change(before, **(same | {"delay_us": 0})) == TuneChange(max_queue_delay_microseconds=0)
    assert tune_view.change(before, **(same | {"batching": False})) == TuneChange(dynamic_batching=False)
    assert tune_view.change(before, **(same | {"sizes": ""})) == TuneChange(preferred_batch_size=())


def test_shapes_ranges_and_labels_are_read() -> None:
    assert load_view.parse_shapes(["IDS:12,8", "MASK:3"]) == ({"IDS": (12, 8), "MASK": (3,)}, ())
    assert load_view.parse_ranges(["IDS:-5:99"]) == {"IDS": (-5, 99)}
    assert load_view.parse_labels("machine=laptop, run = 2,") == {"machine": "laptop", "run": "2"}
    with pytest.raises(InputError, match="NAME:lowest:highest"):
        load_view.parse_ranges(["IDS:1"])
