"""Simple forecasts that a forecast has to beat, made from its own budgets, and the scores of all of them.

Persistence expects the difference at the largest budget again; the straight line goes through the differences at the
budgets over the logarithm of compute, which is that of tokens within a step. Both are normal distributions with the
variance over seeds that is pooled over the budgets of a quantity and corpus. So is the forecast where a score needs a
whole distribution: its sealed file has the mean and the 80 % interval.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from reports.analysis.inference import Interval
from reports.forecasts.extrapolation import COVERAGE
from reports.forecasts.sealed import Forecast, Predicted

FORECAST, PERSISTENCE, LINE = "forecast", "persistence", "straight line"


@dataclass(frozen=True)
class Normal:
    """A normal predictive distribution of the mean difference over the seeds of the larger runs."""

    mean: float
    deviation: float

    @property
    def interval(self) -> Interval:
        """The central 80 % interval."""
        half = _deviations_of_interval() * self.deviation
        return self.mean - half, self.mean + half

    @property
    def probability_above_zero(self) -> float:
        return _share_below(self.mean / self.deviation)

    def crps(self, measured: float) -> float:
        """Return the continuous ranked probability score of a measurement, in its unit; lower is better.

        It is the integral of (F(x) − [x ≥ measured])², in the closed form of the normal distribution (Gneiting and
        Raftery 2007, equation 21); for a distribution without width it is the absolute error.
        """
        z = (measured - self.mean) / self.deviation
        density = math.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        return self.deviation * (z * (2 * _share_below(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))


@dataclass(frozen=True)
class Score:
    """The scores of one forecast of one difference: absolute error and CRPS in the unit of the difference, the Brier
    score of its sign, and whether the 80 % interval holds what was measured."""

    error: float
    crps: float
    brier: float
    is_covered: bool


def _share_below(z: float) -> float:
    """Return the distribution function of the standard normal distribution."""
    return math.erfc(-z / math.sqrt(2)) / 2


def _deviations_of_interval() -> float:
    """Return the end of the central 80 % interval of the standard normal distribution."""
    from scipy.special import ndtri

    return float(ndtri((1 + COVERAGE) / 2))


def score(expected: Normal, measured: float) -> Score:
    """Score a distribution by what was measured."""
    low, high = expected.interval
    return Score(
        error=abs(expected.mean - measured),
        crps=expected.crps(measured),
        brier=(expected.probability_above_zero - (measured > 0)) ** 2,
        is_covered=low <= measured <= high,
    )


def as_normal(predicted: Predicted) -> Normal | None:
    """Return a forecast as a normal distribution with its mean and the width of its interval; None for a sign."""
    if predicted.mean is None or predicted.interval is None:
        return None
    low, high = predicted.interval
    return Normal(predicted.mean, (high - low) / (2 * _deviations_of_interval()))


def persistence(predicted: Predicted, variance: float, seeds: int) -> Normal:
    """Return the difference at the largest budget as the forecast of a mean over so many seeds. `variance` is that of
    one seed."""
    largest = predicted.budgets[-1]
    return Normal(largest.mean, math.sqrt(variance * (1 / largest.seeds + 1 / seeds)))


def straight_line(predicted: Predicted, variance: float, seeds: int) -> Normal:
    """Return the least-squares line over octaves of compute, at the compute of what is forecast."""
    octaves = np.array([at.octaves for at in predicted.budgets])
    weights = np.linalg.pinv(np.stack([np.ones_like(octaves), octaves], axis=1))[0]  # of each mean in the intercept
    mean = float(weights @ [at.mean for at in predicted.budgets])
    of_budgets = float(weights**2 @ [1 / at.seeds for at in predicted.budgets])
    return Normal(mean, math.sqrt(variance * (of_budgets + 1 / seeds)))


def simple_forecasts(predicted: Predicted, variance: float, seeds: int) -> dict[str, Normal]:
    """Return the simple forecasts of a difference by name."""
    return {
        PERSISTENCE: persistence(predicted, variance, seeds),
        LINE: straight_line(predicted, variance, seeds),
    }


def pooled_variances(forecast: Forecast) -> dict[tuple[str, str], float]:
    """Return the variance of one seed's difference by quantity and corpus, pooled over steps and budgets. A family in
    which no budget has two seeds is left out."""
    squares: dict[tuple[str, str], float] = defaultdict(float)
    degrees: dict[tuple[str, str], int] = defaultdict(int)
    for predicted in forecast.predictions:
        for at in predicted.budgets:
            if at.deviation is not None:
                family = predicted.quantity, predicted.corpus
                squares[family] += (at.seeds - 1) * at.deviation**2
                degrees[family] += at.seeds - 1
    return {family: squares[family] / degrees[family] for family in squares if squares[family] > 0}


def mean_over_steps(scores: Iterable[tuple[tuple[str, str], float]]) -> list[float]:
    """Return the mean of a score over the quantities and corpora of each step (variant, base): these are measured on
    the same runs, so a step counts once."""
    by_step: dict[tuple[str, str], list[float]] = defaultdict(list)
    for step, value in scores:
        by_step[step].append(value)
    return [float(np.mean(values)) for values in by_step.values()]
