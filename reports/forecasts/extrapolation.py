"""Extrapolate differences measured at small budgets to a distribution of the difference at a larger budget.

A difference may start anywhere and moves with the logarithm of compute. The size of movements is estimated from all
differences of a family and, with at least three budgets, also how straight they are. A family whose differences hardly
moved between two small budgets is expected to stay so; one that moved gets wide intervals. docs/statistics.md reports
their coverage.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from reports.analysis.inference import TINY, Interval

Array = np.ndarray[Any, np.dtype[Any]]

COVERAGE = 0.8
STRAIGHT_SHARES = {0.0: 0.5, 0.5: 0.25, 1.0: 0.25}
"""Shares of a movement's variance that continue in a straight line, with prior probabilities. Two budgets cannot
determine the share, so 0 is used. The intervals then hold for straight lines too, since a movement is as large as the
one before it."""
MOVEMENTS = 20
"""Number of grid values of the typical movement per octave, from 0.001 to 10 times the family's scale."""
TAIL_DEGREES = 3
"""Degrees of freedom of the movements in a family: a single difference may move much further than the others."""
TAIL_FACTORS = (0.25, 256.0, 7)
"""Smallest and largest factor on the variance of a movement, and the number of grid values."""
PRIOR_DEGREES = 4
"""Weight of the family's variance over seeds in that of one difference, as additional degrees of freedom."""
NODES = 5
Measured = Mapping[float, Mapping[int, float]]
"""One difference: {octaves of compute relative to the forecast budget, below 0: {seed: difference}}."""


@dataclass(frozen=True)
class Outlook:
    """Predictive distribution of the mean of a difference over seeds: a mixture of normal distributions."""

    weights: Array
    means: Array
    deviations: Array

    @property
    def mean(self) -> float:
        return float(self.weights @ self.means)

    @property
    def probability_above_zero(self) -> float:
        """Probability that the difference at the larger budget is above 0."""
        return min(max(1 - self.share_below(0.0), 0.0), 1.0)

    @property
    def interval(self) -> Interval:
        """The central 80 % interval."""
        tail = (1 - COVERAGE) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def share_below(self, value: float) -> float:
        """Return the probability of a difference below a value."""
        from scipy.special import ndtr

        return float(self.weights @ ndtr((value - self.means) / self.deviations))

    def quantile(self, share: float) -> float:
        """Return the quantile of the difference."""
        from scipy.optimize import brentq
        from scipy.special import ndtri

        ends = self.means + ndtri(share) * self.deviations
        low, high = float(ends.min()), float(ends.max())
        if high - low <= TINY:
            return low
        return float(brentq(lambda value: self.share_below(value) - share, low, high, xtol=1e-9))


def extrapolate(family: Sequence[Measured], seeds: int) -> list[Outlook]:
    """Return the outlook for each difference of a family, as a mean over this many new seeds.

    Raises:
        ValueError: a difference has fewer than two budgets, or no budget has two seeds, so the noise is unknown.
    """
    for each in family:
        if len(each) < 2 or not all(octaves < 0 and own for octaves, own in each.items()):
            raise ValueError("a forecast needs every difference at two smaller budgets at least")
    variances = _seed_variances(family)
    last = [np.mean(list(each[max(each)].values())) for each in family]
    typical = math.sqrt(max(float(np.mean(np.square(last))), float(np.median(variances))))
    deviations = np.geomspace(1e-3, 10, MOVEMENTS)
    movements = (typical * deviations) ** 2  # variances per octave
    prior = deviations / (1 + deviations**2)  # half a Cauchy density times the width of a step of the grid
    straight = STRAIGHT_SHARES if any(len(each) > 2 for each in family) else {0.0: 1.0}
    fits = [_Fit.of(each, own, movements, list(straight), seeds) for each, own in zip(family, variances, strict=True)]
    total = sum(fit.log_evidence for fit in fits) + np.log(np.outer(prior / prior.sum(), list(straight.values())))
    shared = np.exp(total - total.max())
    return [fit.outlook(shared / shared.sum()) for fit in fits]


def _seed_variances(family: Sequence[Measured]) -> Array:
    """Return equally likely variances over seeds of each difference, given its spread: (family, NODES)."""
    from scipy.special import chdtri

    squares, degrees = np.array([_spread(each) for each in family]).T
    if not degrees.any():
        raise ValueError("a forecast needs a budget with two seeds at least, which tell the noise")
    typical = max(float(np.median(squares[degrees > 0] / degrees[degrees > 0])), TINY**2)
    pooled, total = squares + PRIOR_DEGREES * typical, degrees + PRIOR_DEGREES
    return np.asarray(pooled[:, None] / chdtri(total[:, None], (np.arange(NODES) + 0.5) / NODES))


def _spread(difference: Measured) -> tuple[float, int]:
    """Return the sum of squares of a difference around its mean at each budget, and the degrees of freedom."""
    own = [np.array(list(seeds.values())) for seeds in difference.values()]
    return sum(float(((each - each.mean()) ** 2).sum()) for each in own), sum(len(each) - 1 for each in own)


@cache
def _tails() -> tuple[Array, Array]:
    """Return factors on the variance of a movement and their probabilities, which yield Student's t distribution."""
    factors = np.geomspace(*TAIL_FACTORS)
    inverse = TAIL_DEGREES / factors  # has a chi-square distribution; its density times the width of a step
    density = inverse ** (TAIL_DEGREES / 2) * np.exp(-inverse / 2)
    return factors, density / density.sum()


@dataclass(frozen=True)
class _Fit:
    """Fit of one difference for every (movement, straight share, tail, noise): arrays with these four axes."""

    log_likelihood: Array
    means: Array
    deviations: Array

    @classmethod
    def of(
        cls, difference: Measured, noise: Array, movements: Array, straight_shares: Sequence[float], seeds: int
    ) -> "_Fit":
        """Fit one difference. As it may start anywhere, only the differences to the largest budget's value inform on
        movements; the forecast is this value plus the movement up to the forecast budget."""
        octaves = np.array(sorted(difference))
        values = np.array([np.mean(list(difference[each].values())) for each in octaves])
        counts = np.array([len(difference[each]) for each in octaves])
        places = np.append(octaves[:-1], 0.0) - octaves[-1]  # of the other budgets, and of the forecast one
        moved = values[:-1] - values[-1]
        straight = np.array(straight_shares)[:, None, None]
        same_side = np.sign(places[:, None]) == np.sign(places)
        wandering = np.where(same_side, np.minimum(np.abs(places[:, None]), np.abs(places)), 0.0)
        shape = straight * np.outer(places, places) + (1 - straight) * wandering
        factors, chances = _tails()
        variance = movements[:, None, None] * factors[:, None]
        scaled = (variance[:, None] * np.ones(NODES))[..., None, None] * shape[:, None, None]
        own_noise = np.diag(np.append(1 / counts[:-1], 1 / seeds)) + 1 / counts[-1]
        whole = scaled + noise[:, None, None] * own_noise
        among, across, ahead = whole[..., :-1, :-1], whole[..., :-1, -1], whole[..., -1, -1]
        gains = np.linalg.solve(among, np.stack([np.broadcast_to(moved, across.shape), across], axis=-1))
        residual, weights = gains[..., 0], gains[..., 1]
        log_likelihood = np.log(chances)[:, None] - 0.5 * (np.linalg.slogdet(among)[1] + residual @ moved)
        return cls(
            log_likelihood=log_likelihood,
            means=values[-1] + weights @ moved,
            deviations=np.sqrt(ahead - (weights * across).sum(axis=-1)),
        )

    @property
    def log_evidence(self) -> Array:
        """Log evidence of each (movement, straight share)."""
        from scipy.special import logsumexp

        return np.asarray(logsumexp(self.log_likelihood, axis=(2, 3)))

    def outlook(self, shared: Array) -> Outlook:
        """Return the outlook, given the family's probability of each (movement, straight share)."""
        own = np.exp(self.log_likelihood - self.log_evidence[..., None, None])
        weights = (shared[..., None, None] * own).ravel()
        return Outlook(weights / weights.sum(), self.means.ravel(), self.deviations.ravel())
