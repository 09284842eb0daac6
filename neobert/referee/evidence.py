"""Evidence that a change is an improvement, as e-values, and error control over a whole session.

An e-value is a statistic whose mean is at most 1 if there is no gain, so that it reaches 20 with a probability of at
most 0.05. Here it is a one-sided Bayes factor of Student's t for an unknown spread, with half-normal priors on the gain
in spreads. It stays valid if runs are added after a look. docs/referee.md explains the choice.

Only numpy is imported, as scipy takes a second.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[np.float64]]

PRIOR_SPREADS = (0.5, 2.0, 8.0, 32.0, 128.0)
"""Scales of the half-normal priors on a gain, in spreads of single runs; all have equal weight."""
TAIL_DEGREES = 8.0
"""Most degrees of freedom that a spread from elsewhere counts for, so that noise may have heavier tails than normal."""
POWER = 0.8
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
_FAR_DEGREES, _FAR = 50.0, 12.0  # from so many degrees of freedom on, nothing lies beyond 12 deviations


def student_cdf(t: Array, degrees: Array | float) -> Array:
    """Return P(T ≤ t) of Student's t. scipy has the same, but takes a second to import."""
    t, degrees = np.broadcast_arrays(np.asarray(t, float), np.asarray(degrees, float))
    root = np.sqrt(degrees)
    last = np.where(degrees < _FAR_DEGREES, math.pi / 2, np.arctan(_FAR / root))
    angle = np.minimum(np.arctan(np.abs(t) / root), last)

    def area(upper: Array) -> Array:
        places = upper[..., None] * (_NODES + 1) / 2
        return np.asarray(upper / 2 * (np.cos(places) ** (degrees[..., None] - 1) @ _WEIGHTS))

    half = 0.5 * area(angle) / area(last)
    return np.asarray(0.5 + np.sign(t) * half)


def e_value(t: Array | float, degrees: Array | float, variance: Array | float) -> Array:
    """Return the e-value that a true gain is above 0, for the `t` of an estimated gain.

    `t` is the estimated gain over its standard error, `degrees` are those of the spread in it, and `variance` is the
    variance of the estimated gain in units of the variance of a single run: 2 for one run against one, 1/n + 1/m for n
    against m, 1/n for n paired differences (whose spread is then that of the differences).
    """
    t, degrees, variance = np.broadcast_arrays(*(np.asarray(each, float)[..., None] for each in (t, degrees, variance)))
    share = np.square(PRIOR_SPREADS) / (np.square(PRIOR_SPREADS) + variance)
    left = t**2 * (1 - share)
    log_factor = 0.5 * np.log1p(-share) + (degrees + 1) / 2 * (np.log(degrees + t**2) - np.log(degrees + left))
    above = student_cdf(np.sqrt(share * (degrees + 1) / (degrees + left)) * t, degrees + 1)
    with np.errstate(over="ignore"):
        return np.asarray((2 * above * np.exp(log_factor)).mean(axis=-1))


def e_bh(e_values: Sequence[float] | Array, alpha: float) -> Array:
    """Return which of all hypotheses are rejected at a false discovery rate of at most `alpha`, however the e-values
    depend on each other (Wang and Ramdas 2022). The last axis is the family."""
    values = np.asarray(e_values, float)
    family = values.shape[-1]
    ordered = -np.sort(-values, axis=-1)
    counts = np.where(ordered * np.arange(1, family + 1) >= family / alpha, np.arange(1, family + 1), 0).max(
        axis=-1, initial=0, keepdims=True
    )
    return np.asarray((counts > 0) & (values * counts >= family / alpha))


def share_of_level(number: int, changes: int) -> float:
    """Return the share of the level for change `number`, from 1, of a session in which about `changes` are expected.

    Half of the level is spread evenly over the expected changes, the other half over those after them; all shares sum
    to 1.
    """
    beyond = number - changes
    return 0.5 / changes if beyond <= 0 else 0.5 / (beyond * (beyond + 1))


def online_threshold(number: int, kept: int, alpha: float, changes: int) -> float:
    """Return the e-value at which change `number` is kept, after `kept` earlier ones (e-LOND, Xu and Ramdas 2024): the
    share of false keeps is expected to be at most `alpha`, however the e-values depend on each other."""
    return 1 / (alpha * share_of_level(number, changes) * (kept + 1))


@lru_cache(maxsize=4096)
def critical_t(threshold: float, degrees: float, variance: float) -> float:
    """Return the smallest t whose e-value reaches a threshold; inf if none below 10⁶ does."""
    low, high = 0.0, 1e6
    if e_value(high, degrees, variance) < threshold:
        return math.inf
    for _ in range(60):
        middle = (low * high) ** 0.5 if low > 0.01 else high / 2
        low, high = (low, middle) if e_value(middle, degrees, variance) >= threshold else (middle, high)
        if high < 1.001 * low:
            break
    return high


def power(gain: float, threshold: float, degrees: float, variance: float) -> float:
    """Return the probability that a true gain, in spreads, reaches an e-value. The noncentral t is approximated by a
    normal distribution with its mean and variance."""
    critical = critical_t(threshold, degrees, variance)
    if math.isinf(critical):
        return 0.0
    distance = gain / math.sqrt(variance) - critical * (1 - 1 / (4 * degrees))
    return 0.5 * (1 + math.erf(distance / math.sqrt(1 + critical**2 / (2 * degrees)) / math.sqrt(2)))


def seeds_needed(gain: float, threshold: float, degrees: float, most: int) -> int | None:
    """Return how many fresh runs of parent and child each show a true gain, in spreads, with power 0.8; None if more
    than `most`. `degrees` are those of the spread so far; the fresh runs add theirs."""
    if gain <= 0 or power(gain, threshold, degrees + 2 * most - 2, 2 / most) < POWER:
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        enough = power(gain, threshold, degrees + 2 * middle - 2, 2 / middle) >= POWER
        low, high = (low, middle) if enough else (middle, high)
    return high


_GRID = np.concatenate([np.linspace(0, 20, 401), np.geomspace(20.5, 1e5, 200)])


@lru_cache(maxsize=1024)
def boost(degrees: float, variance: float, family: int, alpha: float) -> float:
    """Return the factor, at least 1, by which `e_bh` may multiply the e-values of a family that were looked at once.

    Only whether an e-value reaches family / (alpha · k) for some k decides anything there, so values are rounded down
    to these numbers; the factor makes the mean of the rounded values 1 if there is no gain (Wang and Ramdas 2022,
    section 4.1). It needs noise with tails no heavier than those of Student's t with these degrees of freedom.
    """
    evidence, tail = np.log(e_value(_GRID, degrees, variance)), 1 - student_cdf(_GRID, degrees)
    logarithms = np.log(family / alpha / np.arange(1, family + 1))  # falling: k = 1 is the highest
    weights = np.diff(np.exp(logarithms), append=0.0) * -1  # E[rounded] = Σ weight_k · P(E ≥ level_k)

    def mean(log_factor: float) -> float:
        places = np.interp(logarithms - log_factor, evidence, _GRID, right=np.inf)
        chances = np.interp(places, _GRID, tail, right=0.0)
        return float(weights @ chances)

    low, high = 0.0, math.log(family / alpha)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) <= 1 else (low, middle)
    return math.exp(low)
