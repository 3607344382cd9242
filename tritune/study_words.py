"""What a study found, in sentences that a page, a report and the command line share (pure).

Belongs here: words for comparisons, the best, drift. Never: numbers that are not given, documents, widgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritune import verdicts
from tritune.analysis import significant
from tritune.doubts import MeasurementWarning
from tritune.study_plan import Metric
from tritune.verdicts import Comparison, Drift, Ratio, Verdict

DRIFT_SHARE = 0.05
"""A machine that changes by so much within a round is warned of, even where the noise could explain it."""


def ratio_words(ratio: Ratio, metric: Metric) -> str:
    """`12.4 % more throughput (95 % 9.1 to 15.8 %)`, `8.2 % lower P99 (95 % 3.1 to 13.0 %)`, `6.1 times the P99 (…)`.

    Ends of an interval on the other side of "equal" carry a minus sign.
    """
    if 0.5 < ratio.value < 2:
        sign = 1 if ratio.value >= 1 else -1
        more, less = (
            ("more throughput", "less throughput") if metric is Metric.THROUGHPUT else ("higher P99", "lower P99")
        )
        ends = sorted(_percent(end, sign) for end in (ratio.low, ratio.high) if 0 < end < math.inf)
        amount = _digits(_percent(ratio.value, sign), ends)
        what, unit = (more if sign > 0 else less), " %"
        shown = [_digits(end, ends) for end in ends]
    else:
        what, unit = f"the {'throughput' if metric is Metric.THROUGHPUT else 'P99'}", " times"
        ends = [end for end in (ratio.low, ratio.high) if 0 < end < math.inf]
        amount, shown = significant(ratio.value), [significant(end) for end in ends]
    if ratio.at_least or ratio.at_most:
        return f"{amount}{unit} {what} or {'more' if ratio.at_least else 'less'}"
    interval = f" (95 % {shown[0]} to {shown[1]}{unit})" if len(shown) == 2 else ""
    return f"{amount}{unit} {what}{interval}"


def _percent(ratio: float, sign: int) -> float:
    return (ratio - 1) * 100 * sign


def _digits(value: float, ends: Sequence[float]) -> str:
    """With one decimal, or two where the interval is narrower than 1 %; a true minus sign."""
    decimals = 2 if len(ends) == 2 and abs(ends[1] - ends[0]) < 1 else 1
    return f"{value:.{decimals}f}".replace("-", "−")


def comparison_sentence(found: Comparison) -> str:
    """A comparison with the baseline in one sentence, such as `12.4 % more throughput (95 % 9.1 to 15.8 %) than the
    baseline: better.`"""
    ratio = found.ratio
    words = ratio_words(ratio, found.metric) if ratio else ""
    if found.verdict in (Verdict.BETTER, Verdict.WORSE) and ratio:
        than = "than the baseline" if 0.5 < ratio.value < 2 else "of the baseline"
        return f"{words} {than}: {found.verdict}."
    if found.verdict is Verdict.NO_DIFFERENCE and ratio:
        amount = f"{abs(ratio.value - 1) * 100:.2g} %"
        more = found.more_rounds
        ending = (
            f"about {more} more round{'s' if more != 1 else ''} would settle {amount}" if more else found.reason or ""
        )
        return f"No difference shown: {words}; {ending}."
    seen = f" Seen so far: {words}." if words else ""
    return f"No verdict: {found.reason or 'not measured yet'}.{seen}"


def drift_warnings(drifts: Sequence[Drift]) -> list[MeasurementWarning]:
    """A warning where a round's first cell, measured again at its end, came out systematically different."""
    found = []
    for name, ratios in (
        ("throughput", [row.throughput_ratio for row in drifts if row.throughput_ratio]),
        ("P99", [row.p99_ratio for row in drifts if row.p99_ratio]),
    ):
        ratio = verdicts.drift_ratio(ratios)
        if ratio is None:
            continue
        is_shown = ratio.low > 1 or ratio.high < 1
        is_large = name == "throughput" and abs(ratio.value - 1) > DRIFT_SHARE
        if is_shown or is_large:
            value, low, high = ((part - 1) * 100 for part in (ratio.value, ratio.low, ratio.high))
            percent = f"{value:+.1f} % (95 % {low:+.1f} to {high:+.1f} %)"
            found.append(
                MeasurementWarning(
                    "drift",
                    f"The machine changed within the rounds: the first measurement of a round, made again at its end, "
                    f"had {percent.replace('-', '−')} {name} over {len(ratios)} rounds. The random order keeps that "
                    "out of the verdicts on average; it widens the intervals. End other work on the machine, or "
                    "measure longer.",
                )
            )
    return found
