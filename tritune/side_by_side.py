"""Whether configurations may be served side by side: an A/A of the baseline served alone and among all the others.

Belongs here: when it would help, its rows, what they say. Never: serving (turns, variants), the rounds (study).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tritune import verdicts
from tritune.plan import TrialState
from tritune.store import Cell, Trial
from tritune.study_plan import StudyPlan, Switching

ALONE, TOGETHER = "alone", "together"
PAIRS = 4
LARGEST_SHARE = 0.03
"""A loss or gain beyond this, or an interval that reaches twice as far, is a difference."""
TYPICAL_RELOAD_S = 1.5
"""What a reload of MNIST on the embedded server took (1.4 to 1.6 s seen)."""
HELPS_FROM = 24
"""Below so many turns the A/A costs more than it can save."""
CODE = "side_by_side"


def wanted(plan: StudyPlan, candidates: int) -> bool:
    """Whether it is asked for, or (AUTO) a turn would cost more than the measurement."""
    if candidates < 2 or plan.switching is Switching.RELOAD:
        return False
    if plan.switching is Switching.SIDE_BY_SIDE:
        return True
    return plan.warmup_s + plan.duration_s < TYPICAL_RELOAD_S and candidates * plan.rounds >= HELPS_FROM


def rows(baseline: int) -> list[Cell]:
    """The A/A's trials in order: A B, B A, … under the first load."""
    pairs = [(ALONE, TOGETHER), (TOGETHER, ALONE)] * PAIRS
    return [Cell(baseline, 0, role) for pair in pairs[:PAIRS] for role in pair]


def judge(trials: Sequence[Trial]) -> tuple[bool, str]:
    """Whether no difference was shown, and the sentence that says so: throughput of the pairs, ratio by ratio."""
    found: dict[str, list[float]] = {ALONE: [], TOGETHER: []}
    for made in trials:
        if made.cell is None or made.cell.role not in found or made.state is not TrialState.FINISHED:
            continue
        value = ((made.measurement or {}).get("throughput_ips") or {}).get("value")
        if value:
            found[made.cell.role].append(float(value))
    ratios = [loaded / alone for alone, loaded in zip(found[ALONE], found[TOGETHER], strict=False)]
    ratio = verdicts.drift_ratio(ratios) if len(ratios) >= PAIRS else None
    if ratio is None:
        return False, "The A/A of side by side could not be measured, so configurations are reloaded in turn."
    said = f"{100 * (ratio.value - 1):+.1f} % (95 % {100 * (ratio.low - 1):+.1f} to {100 * (ratio.high - 1):+.1f} %)"
    near = max(abs(math.log(ratio.low)), abs(math.log(ratio.high))) <= 2 * LARGEST_SHARE
    good = ratio.low <= 1 <= ratio.high and abs(ratio.value - 1) <= LARGEST_SHARE and near
    if good:
        return True, f"Served among the others the baseline's throughput differs by {said}: side by side is fair here."
    return False, f"Served among the others the baseline's throughput differs by {said}: configurations are reloaded."
