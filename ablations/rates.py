"""Peak learning rates: the grid of a sweep, and the best rate by its losses.

Sweeps train on pilot seeds, which are excluded from comparisons of variants. `ablations.names` has variants at a rate.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ablations.ladders import Ladder
from ablations.names import at_rate
from ablations.scales import Scale
from ablations.scaling import scaled
from ablations.variant import Variant
from neobert.rates import rate_text, rounded

PILOT_SEEDS = range(1000, 1100)
"""Seeds of pre-training for choosing rates. A rate chosen on a seed would look better on that seed than it is."""
MARK = "@rate"
SAME_RATE = 1.1
"""Rates within this factor count as one: a tenth moves the loss by a fiftieth of what a factor of two does."""
ROUNDING = 1e-12
"""Relative to the loss: a parabola with a smaller leading coefficient is only rounding error."""


# Variants at a rate


def shared_rate(ladder: Ladder, variant: Variant, scale: Scale) -> float:
    """Return the peak rate of a variant at a scale without a rate in its name."""
    return scaled(ladder, variant.recipe, scale, "published").pretraining.optimization.peak_learning_rate


def grid_rate(ladder: Ladder, variant: Variant, scale: Scale, factor: float, step: int) -> float:
    """Return the rate `step` steps of a factor above a variant's shared rate, in two digits."""
    shared = shared_rate(ladder, variant, scale)
    return shared if step == 0 else rounded(shared * factor**step)


# Losses over rates


@dataclass(frozen=True)
class Optimum:
    """The peak rate with the lowest loss of a variant.

    `exact` is the rate and `loss` the value of the parabola there, in nats per token. `fitted` are the rates that the
    parabola goes through. If there are none, the optimum is the best rate that was tried, and `reason` says why.
    """

    exact: float
    loss: float
    fitted: tuple[float, ...] = ()
    curvature: float = 0.0
    reason: str = ""

    @property
    def rate(self) -> float:
        """The rate rounded to two digits, as in names of variants."""
        return rounded(self.exact)

    def fitted_loss(self, rate: float) -> float:
        """Evaluate the parabola at a rate, in nats per token; `curvature` is its leading coefficient (nats/octave²)."""
        return self.loss + self.curvature * math.log2(rate / self.exact) ** 2


@dataclass(frozen=True)
class RateCurve:
    """Held-out losses of one variant over peak rates: {rate: {pilot seed: nats per token}}.

    `failures` has the reasons of runs that ended without a loss, in the same form.
    """

    losses: Mapping[float, Mapping[int, float]]
    failures: Mapping[float, Mapping[int, str]]

    @cached_property
    def rates(self) -> tuple[float, ...]:
        """The rates that were tried, in ascending order."""
        return tuple(sorted({*self.losses, *self.failures}))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds tried at the largest number of rates, so that an unfinished seed changes nothing."""
        tried = [seed for rate in self.rates for seed in {*self.losses.get(rate, ()), *self.failures.get(rate, ())}]
        most = max(map(tried.count, tried), default=0)
        return tuple(sorted({seed for seed in tried if tried.count(seed) == most}))

    @cached_property
    def means(self) -> dict[float, float]:
        """The mean loss over the seeds, for each rate at which all of them have a finite loss."""
        own = {rate: [self.losses.get(rate, {}).get(seed, math.nan) for seed in self.seeds] for rate in self.rates}
        return {rate: statistics.fmean(values) for rate, values in own.items() if all(map(math.isfinite, values))}

    def has_failed(self, rate: float) -> bool:
        """Return whether a run at the rate ended without a finite loss; the rate then has no mean."""
        found = self.losses.get(rate, {}).values()
        return bool(self.failures.get(rate)) or not all(map(math.isfinite, found))

    def optimum(self) -> Optimum | None:
        """Return the vertex of the parabola through the best rate and its neighbours, in the logarithm of the rate.

        The vertex lies within half a step of the best rate. If the three best rates are all on one side of it, because
        the loss jumps at the next rate or the run failed there, the optimum is the best rate that was tried. Returns
        None if no rate has a loss, or if the best one is at the edge of the tried rates.
        """
        if not self.means:
            return None
        best = min(self.means, key=lambda rate: self.means[rate])
        ended = [rate for rate in self.rates if rate in self.means or self.has_failed(rate)]
        lower = max((rate for rate in ended if rate < best), default=None)
        upper = min((rate for rate in ended if rate > best), default=None)
        if lower is None or upper is None:
            return None
        for beyond in (lower, upper):
            if beyond not in self.means:
                return Optimum(best, self.means[best], reason=f"the next rate, {rate_text(beyond)}, failed")
        nearest = sorted(self.means, key=lambda rate: self.means[rate])[:3]
        if not min(nearest) < best < max(nearest):
            beyond = upper if max(nearest) == best else lower
            return Optimum(best, self.means[best], reason=f"the loss jumps at the next rate, {rate_text(beyond)}")
        return self._vertex((lower, best, upper))

    def _vertex(self, fitted: tuple[float, float, float]) -> Optimum:
        import numpy as np

        best = fitted[1]
        octaves = np.log2(np.array(fitted) / best)
        losses = np.array([[self.losses[rate][seed] for seed in self.seeds] for rate in fitted])
        weights = np.polyfit(octaves, np.eye(3), 2)  # weights of the three losses in each coefficient
        square, linear, level = (float(each) for each in weights @ losses.mean(axis=1))
        if square < ROUNDING * level:
            return Optimum(best, self.means[best], reason="its neighbours have the same loss")
        place = -linear / (2 * square)
        return Optimum(best * 2**place, level - square * place**2, fitted, square)


def best_variant(ladder: Ladder, variant: Variant, optimum: Optimum, scale: Scale) -> Variant:
    """Return a variant at its best rate; the variant itself if its shared rate counts as the same."""
    shared = shared_rate(ladder, variant, scale)
    is_same = max(shared, optimum.exact) <= SAME_RATE * min(shared, optimum.exact)
    return variant if is_same else at_rate(variant, optimum.rate)
