"""What survives of the gains of a session: the winner's curse corrected by empirical Bayes.

A kept run was kept because its value was good, so its value flatters it, and so does the sum of all recorded gains.
Here the effects of all changes that were tried, kept or not, come from one mixture, whose weights are learned from the
log itself. The true value of the current best is tracked by a Kalman filter whose mixtures are collapsed to one normal
distribution after each run. Unsuccessful changes inform it too: a best value that nothing comes near was lucky.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from neobert.referee.evidence import Array

SIZES = np.array([0.0, 1, 3, 10, 40, 160, -1, -3, -10, -40, -160])
"""Centres of the components, in spreads of single runs: no effect, gains and losses of five sizes."""
WIDTHS = np.where(SIZES == 0, 0.05, np.abs(SIZES) / 2)
PASSES = 8
PRIOR_TRIES = 5.0
"""The weight of the starting mixture, in tries: half no effect, a sixth gains, a third losses."""
START = np.where(SIZES == 0, 0.5, np.where(SIZES > 0, 1 / 30, 1 / 15))
Flags = np.ndarray[Any, np.dtype[np.bool_]]
_erf = np.vectorize(math.erf, otypes=[float])


@dataclass(frozen=True)
class Survival:
    """Posterior means of the gains of kept changes, (…, tries), and probabilities that they are no gain; zero where a
    change was not kept. `total`, (…,), is the gain of the last state over the baseline."""

    gains: Array
    false: Array
    total: Array


def survival(start: Array, start_runs: Array, values: Array, runs: Array, moves: Flags) -> Survival:
    """Return what survives of gains. All arrays may have leading axes of sessions.

    `start` is the mean of the baseline, of `start_runs` runs; `values`, (…, tries), are those of the changes in their
    order, each the mean of `runs`, and `moves` tells which became the best. Values are in spreads of single runs, lower
    is better; NaN is no run.
    """
    weights = np.broadcast_to(START, (*values.shape[:-1], len(SIZES)))
    known = (~np.isnan(values)).sum(axis=-1)[..., None]
    for _ in range(PASSES):
        counts, found = _filter(start, start_runs, values, runs, moves, weights)
        weights = (counts + PRIOR_TRIES * START) / (known + PRIOR_TRIES)
    return found


def _filter(
    start: Array, start_runs: Array, values: Array, runs: Array, moves: Flags, weights: Array
) -> tuple[Array, Survival]:
    """Return the expected number of tries of each component, and what survives under these weights.

    The state is the true value of the best and that of the baseline, with their covariance: a later run that tells that
    the best was lucky tells it of the baseline too, as far as no change lies between them.
    """
    best, variance = np.asarray(start, float), 1 / np.asarray(start_runs, float)
    base, base_variance, covariance = best, variance, variance
    counts, gains, false = np.zeros_like(weights), np.zeros(values.shape), np.zeros(values.shape)
    for place in range(values.shape[-1]):
        value, noise = values[..., place], 1 / runs[..., place]
        known, move = ~np.isnan(value), moves[..., place]
        total = (variance + noise)[..., None] + WIDTHS**2
        surprise = np.where(known, best - value, 0.0)[..., None] - SIZES
        logarithms = np.log(weights) - (surprise**2 / total + np.log(total)) / 2
        share = np.exp(logarithms - logarithms.max(axis=-1, keepdims=True))
        share /= share.sum(axis=-1, keepdims=True)
        counts = counts + np.where(known[..., None], share, 0)
        effect, deviation = SIZES + WIDTHS**2 / total * surprise, WIDTHS * np.sqrt(1 - WIDTHS**2 / total)
        real = np.where(SIZES == 0, 0.0, 0.5 * (1 + _erf(effect / deviation / math.sqrt(2))))
        gains[..., place] = np.where(move, (share * effect).sum(axis=-1), 0)
        false[..., place] = np.where(move, np.maximum(0, 1 - (share * real).sum(axis=-1)), 0)
        before = np.where(move[..., None], variance[..., None] + WIDTHS**2, variance[..., None])
        bests = best[..., None] - np.where(move[..., None], SIZES, 0) - before / total * surprise
        bases = base[..., None] - covariance[..., None] / total * surprise
        moments = (
            (share * bests).sum(axis=-1),
            (share * bases).sum(axis=-1),
            before * (1 - before / total),
            base_variance[..., None] - covariance[..., None] ** 2 / total,
            covariance[..., None] * (1 - before / total),
        )
        new = (
            *moments[:2],
            (share * (moments[2] + (bests - moments[0][..., None]) ** 2)).sum(axis=-1),
            (share * (moments[3] + (bases - moments[1][..., None]) ** 2)).sum(axis=-1),
            (share * (moments[4] + (bests - moments[0][..., None]) * (bases - moments[1][..., None]))).sum(axis=-1),
        )
        old = (best, base, variance, base_variance, covariance)
        best, base, variance, base_variance, covariance = (
            np.where(known, after, earlier) for after, earlier in zip(new, old, strict=True)
        )
    return counts, Survival(gains, false, base - best)
