"""How much error each look at a running study may spend, so that all looks together spend no more than 5 %.

Belongs here: group sequential boundaries (docs/measurement.md), pure. Never: readings, verdicts, what a study is.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tritune.study_plan import FIRST_LOOK

ALPHA = 0.05
"""All statements of one kind in one study are right together in 95 % of studies."""
SPENDING_POWER = 2.0
"""alpha(t) = ALPHA * t ** 2 (Kim & DeMets 1987): between Pocock's even spending and O'Brien and Fleming's late one."""


def level(look: int, rounds: int, family: int) -> float:
    """The two-sided nominal level of one of `family` comparisons after round `look` of `rounds` planned.

    Bonferroni over the family, spending over the looks. A look past the plan has the last look's level.
    """
    levels = _levels(max(rounds, FIRST_LOOK), max(family, 1))
    return levels[min(max(look, FIRST_LOOK), max(rounds, FIRST_LOOK)) - FIRST_LOOK]


def critical(look: int, rounds: int, family: int, freedom: float) -> float:
    """The t value that an estimate must exceed, in its standard errors, at this look; infinite without a variance."""
    from scipy.special import stdtrit

    if freedom <= 0:
        return math.inf
    return float(-stdtrit(freedom, level(look, rounds, family) / 2))


@lru_cache(maxsize=256)
def _levels(rounds: int, family: int) -> tuple[float, ...]:
    """The nominal levels of the looks after rounds FIRST_LOOK, …, `rounds`.

    The sum of k rounds is a Brownian motion at t = k / rounds. Each boundary is where the probability to cross it
    first equals what this look may spend (Armitage, McPherson & Rowe 1969; Lan & DeMets 1983), by quadrature. As the
    variance is estimated, the boundary is used as a level of the t distribution ("significance level approach",
    Jennison & Turnbull 2000, 3.8).
    """
    from scipy.special import ndtr, ndtri

    times = np.arange(FIRST_LOOK, rounds + 1) / rounds
    spent = ALPHA / family * times**SPENDING_POWER
    bound = float(-ndtri(spent[0] / 2)) * math.sqrt(times[0])
    levels = [float(spent[0])]
    step = math.sqrt(1 / rounds)
    points, weights = _nodes(bound, step)
    density = np.exp(-(points**2) / (2 * times[0])) / math.sqrt(2 * math.pi * times[0])
    for place in range(1, times.size):
        mass = density * weights
        wanted = float(spent[place] - spent[place - 1])

        def crossing(edge: float, mass: NDArray[np.float64] = mass, points: NDArray[np.float64] = points) -> float:
            return float(mass @ (ndtr((points - edge) / step) + ndtr((-points - edge) / step)))

        bound = _root(crossing, wanted, 0.0, 12.0)
        levels.append(float(2 * ndtr(-bound / math.sqrt(times[place]))))
        following, weights = _nodes(bound, step)
        kernel = np.exp(-((following[:, None] - points[None, :]) ** 2) / (2 * step**2)) / (
            math.sqrt(2 * math.pi) * step
        )
        density, points = kernel @ mass, following
    return tuple(levels)


def _nodes(bound: float, step: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gauss-Legendre points and weights over [-bound, bound], fine enough for normal densities of this step."""
    points, weights = _legendre(max(64, 2 ** math.ceil(math.log2(5 * bound / step))))
    return points * bound, weights * bound


@lru_cache(maxsize=64)
def _legendre(count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    return np.polynomial.legendre.leggauss(count)


def _root(falling, wanted: float, low: float, high: float) -> float:  # type: ignore[no-untyped-def]
    """Where a falling function has the wanted value, by bisection."""
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if falling(middle) > wanted else (low, middle)
    return (low + high) / 2
