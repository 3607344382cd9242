"""log y = candidate + block + error: the least-squares fit of a two-way table with empty cells (pure, in batches).

A block is a round of one load: what all measurements in it share (a slower machine) is in none of the differences.
Belongs here: the fit and the variances of what comes out of it. Never: levels, verdicts, what the rows are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

NOISIER = 0.05
"""A candidate whose own errors are larger than the others' at this level (F test) has a variance of its own."""
FAR_NOISIER = 0.001
"""At this level it is in nobody else's variance either."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The fit of tables (..., candidates, blocks); every field has the leading axes of the tables.

    `variance` is of one error, pooled over all cells, with `freedom` degrees of freedom; NaN with 0. `variances` and
    `freedoms` (..., candidates) are the same, but for candidates that are noisier than the rest. `levels` (...,
    candidates) are plain means, `effects` those with the block effects removed. `level_variance` is of one cell
    around its candidate's level, block effects included, with `level_freedom`.
    """

    counts: Floats
    levels: Floats
    effects: Floats
    weights: Floats
    inverse: Floats
    variance: Floats
    freedom: Floats
    variances: Floats
    freedoms: Floats
    level_variance: Floats
    level_freedom: Floats

    def difference(self, reference: NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
        """Every candidate's effect minus that of the reference (...), its variance and degrees of freedom.

        In units of `variance` 1/n + 1/n' + q L⁺ q with q the difference of the two rows of averaging weights: 2/n where
        no cell is empty. NaN where no chain of shared blocks connects the two.
        """
        at = np.asarray(reference)[..., None]
        value = self.effects - np.take_along_axis(self.effects, at, axis=-1)
        q = self.weights - np.take_along_axis(self.weights, at[..., None], axis=-2)
        solved = q @ self.inverse
        extra = np.maximum(np.sum(solved * q, axis=-1), 0.0) * self.variance[..., None]
        parts, freedoms = self._parts()
        other, others = np.take_along_axis(parts, at, axis=-1), np.take_along_axis(freedoms, at, axis=-1)
        total, freedom = parts + other + extra, self.freedom[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            spread = parts**2 / freedoms + other**2 / others + extra**2 / freedom
            is_raised = (freedoms < freedom) | (others < freedom)
            degrees = np.where(is_raised, np.minimum(total**2 / spread, freedom), freedom)
        connected = np.all(np.abs(_laplacian(self.weights, self.counts) @ _last(solved) - _last(q)) < 1e-6, axis=-2)
        connected &= np.isfinite(value)
        np.put_along_axis(total, at, 0.0, axis=-1)
        return np.where(connected, value, np.nan), np.where(connected, total, np.nan), np.nan_to_num(degrees)

    def _parts(self) -> tuple[Floats, Floats]:
        """What each candidate's own errors add to the variance of its mean."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.variances / self.counts, self.freedoms


def fit(table: Floats) -> Fit:
    """The fit of tables (..., candidates, blocks) of logarithms, NaN where nothing was measured."""
    there = np.isfinite(table)
    y = np.where(there, table, 0.0)
    counts = there.sum(axis=-1).astype(np.float64)
    safe = np.maximum(counts, 1.0)
    weights = there / safe[..., None]
    levels = np.where(counts > 0, y.sum(axis=-1) / safe, np.nan)
    centred = np.where(there, y - np.nan_to_num(levels)[..., None], 0.0)
    laplacian = _laplacian(weights, counts)
    values, vectors = np.linalg.eigh(laplacian)
    kept = values > 1e-9
    inverse = (vectors * np.where(kept, 1 / np.where(kept, values, 1.0), 0.0)[..., None, :]) @ np.swapaxes(
        vectors, -1, -2
    )
    blocks = (inverse @ centred.sum(axis=-2)[..., None])[..., 0]
    effects = levels - (weights @ blocks[..., None])[..., 0]
    residuals = np.where(there, y - np.nan_to_num(effects)[..., None] - blocks[..., None, :], 0.0)
    rank = kept.sum(axis=-1)
    freedom = (counts.sum(axis=-1) - (counts > 0).sum(axis=-1) - rank).astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.where(freedom > 0, np.square(residuals).sum(axis=(-2, -1)) / freedom, np.nan)
    variances, freedoms, variance, freedom = _variances(
        there, weights, inverse, np.square(residuals).sum(axis=-1), variance, freedom
    )
    level_variance, level_freedom = _level_variance(there, blocks, rank, variance, freedom)
    return Fit(
        counts,
        levels,
        effects,
        weights,
        inverse,
        variance,
        freedom,
        variances,
        freedoms,
        level_variance,
        level_freedom,
    )


def _laplacian(weights: Floats, counts: Floats) -> Floats:
    """The blocks' normal equations after the candidates are eliminated: diag(cells per block) - sum of m m' / n."""
    there = weights * counts[..., None]
    totals = there.sum(axis=-2)
    found: Floats = totals[..., None] * np.eye(totals.shape[-1]) - _last(there) @ weights
    return found


def _last(rows: Floats) -> Floats:
    turned: Floats = np.swapaxes(rows, -1, -2)
    return turned


def _variances(
    there: NDArray[np.bool_], weights: Floats, inverse: Floats, squares: Floats, variance: Floats, freedom: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Each candidate's variance of one error: the pooled one, or its own where that is larger by an F test; and the
    pooled one of those that are not far noisier than the rest.

    The squares of a candidate's residuals have n - 1 - sum L⁺ + n w L⁺ w degrees of freedom (1 minus the leverages).
    """
    from scipy.special import fdtrc

    counts = there.sum(axis=-1).astype(np.float64)
    diagonal = np.diagonal(inverse, axis1=-2, axis2=-1)
    quadratic = np.sum((weights @ inverse) * weights, axis=-1)
    own = np.maximum(counts - 1 - (there @ diagonal[..., None])[..., 0] + counts * quadratic, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        mine = squares / own
        rest = freedom[..., None] - own
        ratio = mine / ((squares.sum(axis=-1)[..., None] - squares) / rest)
        chance = fdtrc(counts - 1, rest, ratio)
        noisier = (own > 0.5) & (rest > 0.5) & (ratio > 1) & (chance < NOISIER)
        far = noisier & (chance < FAR_NOISIER)
        some = far.any(axis=-1)
        left = np.where(some, np.where(far, 0.0, own).sum(axis=-1), freedom)
        variance = np.where(some, np.where(far, 0.0, squares).sum(axis=-1) / left, variance)
    pooled = np.broadcast_to(variance[..., None], counts.shape)
    degrees = np.broadcast_to(left[..., None], counts.shape)
    variances = np.where(noisier, np.maximum(mine, pooled), pooled)
    return variances, np.where(noisier, np.minimum(counts - 1, degrees), degrees), variance, left


def _level_variance(
    there: NDArray[np.bool_], blocks: Floats, rank: NDArray[np.intp], variance: Floats, freedom: Floats
) -> tuple[Floats, Floats]:
    """The variance of one cell, block effect and error together, and its degrees of freedom by Satterthwaite (1946).

    The blocks' own variance holds 1 / (cells per block) of the errors' already.
    """
    sizes = there.sum(axis=-2)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(sizes > 0, 1 / sizes, 0.0).sum(axis=-1) / np.maximum((sizes > 0).sum(axis=-1), 1)
        between = np.where(rank > 0, np.square(blocks).sum(axis=-1) / rank, np.nan)
        within = np.where(freedom > 0, np.maximum(1 - share, 0.0) * np.nan_to_num(variance), 0.0)
        total = between + within
        spread = np.square(between) / rank + np.where(freedom > 0, np.square(within) / np.maximum(freedom, 1), 0.0)
        degrees = np.where(spread > 0, np.square(total) / spread, rank.astype(np.float64))
    return total, np.where(np.isfinite(total), degrees, 0.0)
