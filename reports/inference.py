"""Paired differences over seeds → interval, tests, correction for many tests, equivalence and a verdict in words.

The unit is the seed of pre-training: a variant and its parent share it, and with it the initialisation, the order of
the data and the masks, wherever their recipes allow. Arrays have seeds as their last axis: simulations use what
reports use.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.special import nctdtrinc, stdtr, stdtrit

Array = np.ndarray[Any, np.dtype[Any]]

ALPHA = 0.05
POWER = 0.8
SEEDS_FOR_A_CLAIM = 6  # 2/2^5 = 0.0625: with five seeds no exact sign-flip test can reach 0.05, with six it can
TINY = 1e-12  # points: below it a spread is rounding
MOST_SEEDS_FLIPPED = 16  # 2^15 sums; beyond it the exact test is left out


def t_interval(differences: Array) -> tuple[Array, Array]:
    """The two ends of the 95 % t interval of the mean, (…), over seeds (…, seeds); df = seeds − 1."""
    seeds = differences.shape[-1]
    half = stdtrit(seeds - 1, 1 - ALPHA / 2) * differences.std(axis=-1, ddof=1) / math.sqrt(seeds)
    mean = differences.mean(axis=-1)
    return mean - half, mean + half


def t_test(differences: Array) -> Array:
    """Two-sided p of the paired t test, (…); 1 where all differences are 0, NaN where they are equal and not 0."""
    return 2 * stdtr(differences.shape[-1] - 1, -np.abs(_t(differences, 0.0)))


def equivalence_test(differences: Array, margin: float) -> Array:
    """p of the two one-sided tests (TOST) that the mean lies within ±margin, (…): the larger of the two."""
    degrees = differences.shape[-1] - 1
    return np.maximum(stdtr(degrees, -_t(differences, -margin)), stdtr(degrees, _t(differences, margin)))


def _t(differences: Array, mean: float) -> Array:
    """Student's t of a supposed mean. Without any spread it is 0 or infinite where all differences are 0, else NaN:
    equal differences tell nothing about other seeds."""
    average = differences.mean(axis=-1)
    distance = average - mean
    error = differences.std(axis=-1, ddof=1) / math.sqrt(differences.shape[-1])
    identical, all_zero = error < TINY, np.abs(average) < TINY
    t = distance / np.where(identical, 1, error)
    at_zero = np.where(np.abs(distance) < TINY, 0.0, np.copysign(np.inf, distance))
    return np.where(identical, np.where(all_zero, at_zero, np.nan), t)


def sign_flip_test(differences: Array) -> Array:
    """Two-sided p of the exact sign-flip test, (…): the share of all 2^seeds sign patterns with as large a mean."""
    seeds = differences.shape[-1]
    assert seeds <= MOST_SEEDS_FLIPPED, seeds
    patterns = np.arange(2 ** (seeds - 1))[:, None] >> np.arange(seeds) & 1  # the last sign stays: halves are mirrored
    sums = np.abs(differences @ (1 - 2 * patterns).T)
    largest = np.abs(differences).sum(axis=-1, keepdims=True)
    return (sums >= np.abs(differences.sum(axis=-1, keepdims=True)) - 1e-9 * largest).mean(axis=-1)


def holm(p_values: Array) -> Array:
    """Holm's adjusted p-values over the last axis: compared with 0.05 they keep the family-wise error at 5 %."""
    order = np.argsort(p_values, axis=-1, kind="stable")
    tests = p_values.shape[-1]
    steps = np.take_along_axis(p_values, order, axis=-1) * np.arange(tests, 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0)
    back = np.argsort(order, axis=-1, kind="stable")
    return np.take_along_axis(adjusted, back, axis=-1)


@cache
def detectable_in_deviations(seeds: int) -> float:
    """The smallest true mean, in standard deviations of the differences, that the t test finds with power 0.8."""
    degrees = seeds - 1
    return float(nctdtrinc(degrees, 1 - POWER, stdtrit(degrees, 1 - ALPHA / 2))) / math.sqrt(seeds)


@dataclass(frozen=True)
class Comparison:
    """Paired differences of one quantity, and what they say; None for what these seeds cannot say.

    `interval` is the 95 % t interval, `detectable` the smallest effect that as many seeds find with power 0.8 where the
    spread is the observed one, `p_equivalence` that of TOST for ±`margin`.
    """

    differences: tuple[float, ...]
    margin: float
    mean: float
    deviation: float | None
    interval: tuple[float, float] | None
    p_t: float | None
    p_sign_flip: float | None
    p_equivalence: float | None
    detectable: float | None

    @property
    def seeds(self) -> int:
        """How many pairs there are."""
        return len(self.differences)


def compared(differences: Sequence[float], margin: float) -> Comparison:
    """What paired differences say; with one seed their mean alone."""
    values = np.asarray(differences, dtype=np.float64)
    assert values.ndim == 1 and len(values) and np.isfinite(values).all(), differences
    mean, seeds = float(values.mean()), len(values)
    if seeds == 1:
        return Comparison(tuple(differences), margin, mean, None, None, None, None, None, None)
    deviation = float(values.std(ddof=1))
    low, high = t_interval(values)
    return Comparison(
        differences=tuple(differences),
        margin=margin,
        mean=mean,
        deviation=deviation,
        interval=(float(low), float(high)),
        p_t=_known(t_test(values)),
        p_sign_flip=_known(sign_flip_test(values)) if seeds <= MOST_SEEDS_FLIPPED else None,
        p_equivalence=_known(equivalence_test(values, margin)),
        detectable=deviation * detectable_in_deviations(seeds),
    )


def _known(value: Array) -> float | None:
    return None if np.isnan(value) else float(value)


def adjusted(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment over the tests that there are."""
    known = holm(np.array([p for p in p_values if p is not None]))
    numbers = iter(known.tolist())
    return [None if p is None else next(numbers) for p in p_values]


def verdict(comparison: Comparison, p_difference: float | None, p_equivalence: float | None) -> str:
    """What may be claimed, from adjusted p-values. Below six seeds that is no difference and no equivalence."""
    direction = "higher" if comparison.mean > 0 else "lower"
    if p_difference is None:
        return "too few seeds"
    if comparison.seeds < SEEDS_FOR_A_CLAIM:
        return f"too few seeds (t test: {direction})" if p_difference <= ALPHA else "within noise"
    equivalent = p_equivalence is not None and p_equivalence <= ALPHA
    if p_difference <= ALPHA:
        return f"{direction}, yet equivalent within {comparison.margin:g}" if equivalent else direction
    return f"equivalent within {comparison.margin:g}" if equivalent else "within noise"
