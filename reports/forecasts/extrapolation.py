"""Differences measured at small budgets → a distribution of what a larger budget will measure, from their trends.

A difference starts anywhere and moves with the logarithm of compute. How far the differences of one family move is
learnt from all of them, and from three budgets on also how straight. So a family whose differences hardly moved
between two small budgets is expected to go on so, and one that moved gets wide intervals. docs/statistics.md says how
often they hold.
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
"""Of a movement's variance, what goes on in a straight line, with prior probabilities. Two budgets cannot tell it, so
that none is taken to: then intervals hold for straight lines too, since a movement is as large as the one before it."""
MOVEMENTS = 20
"""Typical movements an octave that are weighed, from a thousandth of the family's scale to ten times it."""
TAIL_DEGREES = 3
"""Degrees of freedom of the movements in a family: one difference may move much further than the others."""
TAIL_FACTORS = (0.25, 256.0, 7)
"""The smallest and the largest factor on the variance of a movement, and how many are weighed."""
PRIOR_DEGREES = 4
"""Seeds' variances of one difference are drawn towards the family's as if it had so many more degrees of freedom."""
NODES = 5
Measured = Mapping[float, Mapping[int, float]]
"""One difference: {octaves of compute to the budget that is forecast, below 0: {seed: difference}}."""


@dataclass(frozen=True)
class Outlook:
    """What is expected of the mean of a difference over seeds: a mixture of normal distributions."""

    weights: Array
    means: Array
    deviations: Array

    @property
    def mean(self) -> float:
        return float(self.weights @ self.means)

    @property
    def probability_above_zero(self) -> float:
        """The probability that the larger budget measures a difference above 0."""
        return min(max(1 - self.share_below(0.0), 0.0), 1.0)

    @property
    def interval(self) -> Interval:
        """The 80 % interval, which leaves out as much on each side."""
        tail = (1 - COVERAGE) / 2
        return self.quantile(tail), self.quantile(1 - tail)

    def share_below(self, value: float) -> float:
        """The probability of a difference below a value."""
        from scipy.special import ndtr

        return float(self.weights @ ndtr((value - self.means) / self.deviations))

    def quantile(self, share: float) -> float:
        """The difference that has this probability below it."""
        from scipy.optimize import brentq
        from scipy.special import ndtri

        ends = self.means + ndtri(share) * self.deviations
        low, high = float(ends.min()), float(ends.max())
        if high - low <= TINY:
            return low
        return float(brentq(lambda value: self.share_below(value) - share, low, high, xtol=1e-9))


def extrapolate(family: Sequence[Measured], seeds: int) -> list[Outlook]:
    """The outlook on each difference of a family, as the mean over so many new seeds will measure it.

    Raises:
        ValueError: a difference has fewer than two budgets, or no budget has two seeds: then nothing tells the noise.
    """
    for each in family:
        if len(each) < 2 or not all(octaves < 0 and own for octaves, own in each.items()):
            raise ValueError("a forecast needs every difference at two smaller budgets at least")
    variances = _seed_variances(family)
    last = [np.mean(list(each[max(each)].values())) for each in family]
    typical = math.sqrt(max(float(np.mean(np.square(last))), float(np.median(variances))))
    deviations = np.geomspace(1e-3, 10, MOVEMENTS)
    movements = (typical * deviations) ** 2  # variances an octave
    prior = deviations / (1 + deviations**2)  # half a Cauchy density times the width of a step of the grid
    straight = STRAIGHT_SHARES if any(len(each) > 2 for each in family) else {0.0: 1.0}
    fits = [_Fit.of(each, own, movements, list(straight), seeds) for each, own in zip(family, variances, strict=True)]
    total = sum(fit.log_evidence for fit in fits) + np.log(np.outer(prior / prior.sum(), list(straight.values())))
    shared = np.exp(total - total.max())
    return [fit.outlook(shared / shared.sum()) for fit in fits]


def _seed_variances(family: Sequence[Measured]) -> Array:
    """Variances of each difference over seeds that its own spread makes equally likely, (family, NODES)."""
    from scipy.special import chdtri

    squares, degrees = np.array([_spread(each) for each in family]).T
    if not degrees.any():
        raise ValueError("a forecast needs a budget with two seeds at least, which tell the noise")
    typical = max(float(np.median(squares[degrees > 0] / degrees[degrees > 0])), TINY**2)
    pooled, total = squares + PRIOR_DEGREES * typical, degrees + PRIOR_DEGREES
    return np.asarray(pooled[:, None] / chdtri(total[:, None], (np.arange(NODES) + 0.5) / NODES))


def _spread(difference: Measured) -> tuple[float, int]:
    """The sum of squares of a difference around its mean at each budget, and the degrees of freedom."""
    own = [np.array(list(seeds.values())) for seeds in difference.values()]
    return sum(float(((each - each.mean()) ** 2).sum()) for each in own), sum(len(each) - 1 for each in own)


@cache
def _tails() -> tuple[Array, Array]:
    """Factors on the variance of a movement and their probabilities, which give it Student's t distribution."""
    factors = np.geomspace(*TAIL_FACTORS)
    inverse = TAIL_DEGREES / factors  # has a chi-square distribution; its density times the width of a step
    density = inverse ** (TAIL_DEGREES / 2) * np.exp(-inverse / 2)
    return factors, density / density.sum()


@dataclass(frozen=True)
class _Fit:
    """One difference under every (movement, share that is straight, tail, noise): arrays with these four axes."""

    log_likelihood: Array
    means: Array
    deviations: Array

    @classmethod
    def of(
        cls, difference: Measured, noise: Array, movements: Array, straight_shares: Sequence[float], seeds: int
    ) -> "_Fit":
        """Differences to the largest budget's value hold all that is known of movements, since where a difference
        starts may be anywhere; the forecast is that value with what moves until then."""
        octaves = np.array(sorted(difference))
        values = np.array([np.mean(list(difference[each].values())) for each in octaves])
        counts = np.array([len(difference[each]) for each in octaves])
        places = np.append(octaves[:-1], 0.0) - octaves[-1]  # of the others, and of what is forecast
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
        """Of each (movement, share that is straight)."""
        from scipy.special import logsumexp

        return np.asarray(logsumexp(self.log_likelihood, axis=(2, 3)))

    def outlook(self, shared: Array) -> Outlook:
        """The outlook, given the probability of each (movement, share that is straight) in the family."""
        own = np.exp(self.log_likelihood - self.log_evidence[..., None, None])
        weights = (shared[..., None, None] * own).ravel()
        return Outlook(weights / weights.sum(), self.means.ravel(), self.deviations.ravel())
