"""Paired differences over seeds → interval, tests, correction for many tests, equivalence and a verdict in words.

The unit is the seed of pre-training: a variant and its parent share it, and with it the initialisation, the order of
the data and the masks, wherever their recipes allow. Arrays have seeds as their last axis: simulations use what
reports use. scipy is imported where it computes.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Interval = tuple[float, float]

ALPHA = 0.05
POWER = 0.8
SEEDS_FOR_A_CLAIM = 6  # 2/2^5 = 0.0625: with five seeds no exact sign-flip test can reach 0.05, with six it can
TINY = 1e-12  # points: below it a spread is rounding
MOST_SEEDS_FLIPPED = 16  # 2^15 sums; beyond it the exact test is left out


def t_interval(differences: Array) -> tuple[Array, Array]:
    """The two ends of the 95 % t interval of the mean, (…), over seeds (…, seeds); df = seeds − 1."""
    from scipy.special import stdtrit

    seeds = differences.shape[-1]
    half = stdtrit(seeds - 1, 1 - ALPHA / 2) * differences.std(axis=-1, ddof=1) / math.sqrt(seeds)
    mean = differences.mean(axis=-1)
    return mean - half, mean + half


def t_test(differences: Array) -> Array:
    """Two-sided p of the paired t test, (…)."""
    from scipy.stats import ttest_1samp

    return np.asarray(ttest_1samp(differences, 0.0, axis=-1).pvalue)


def equivalence_test(differences: Array, margin: float) -> Array:
    """p of the two one-sided tests (TOST) that the mean lies within ±margin, (…): the larger of the two."""
    from scipy.stats import ttest_1samp

    above = ttest_1samp(differences, -margin, axis=-1, alternative="greater").pvalue
    return np.maximum(above, ttest_1samp(differences, margin, axis=-1, alternative="less").pvalue)


def sign_flip_test(differences: Array) -> Array:
    """Two-sided p of the exact sign-flip test, (…): the share of all 2^seeds sign patterns with as large a mean.

    scipy's `permutation_test` gives the same numbers for one array at a time, and takes seconds for 16 seeds.
    """
    seeds = differences.shape[-1]
    assert seeds <= MOST_SEEDS_FLIPPED, seeds
    patterns = np.arange(2 ** (seeds - 1))[:, None] >> np.arange(seeds) & 1  # the last sign stays: halves are mirrored
    sums = np.abs(differences @ (1 - 2 * patterns).T)
    largest = np.abs(differences).sum(axis=-1, keepdims=True)
    return (sums >= np.abs(differences.sum(axis=-1, keepdims=True)) - 1e-9 * largest).mean(axis=-1)


def holm(p_values: Array) -> Array:
    """Holm's adjusted p-values over the last axis: compared with 0.05 they keep the family-wise error at 5 %.

    statsmodels' `multipletests` gives the same numbers for one family at a time, and collects garbage in each call.
    """
    order = np.argsort(p_values, axis=-1, kind="stable")
    steps = np.take_along_axis(p_values, order, axis=-1) * np.arange(p_values.shape[-1], 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0)
    return np.take_along_axis(adjusted, np.argsort(order, axis=-1, kind="stable"), axis=-1)


def adjust(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjustment over the tests that there are."""
    known = iter(holm(np.array([p for p in p_values if p is not None])).tolist())
    return [None if p is None else next(known) for p in p_values]


@cache
def detectable_in_deviations(seeds: int) -> float:
    """The smallest true mean, in standard deviations of the differences, that the t test finds with power 0.8. It is
    solved exactly; statsmodels' `TTestPower` iterates to six digits."""
    from scipy.special import nctdtrinc, stdtrit

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
    deviation: float | None = None
    interval: Interval | None = None
    p_t: float | None = None
    p_sign_flip: float | None = None
    p_equivalence: float | None = None
    detectable: float | None = None

    @property
    def seeds(self) -> int:
        """How many pairs there are."""
        return len(self.differences)


def compare(differences: Iterable[float], margin: float) -> Comparison:
    """What paired differences say; with one seed their mean alone.

    Equal differences tell nothing about other seeds: no t test can be made of them, unless all of them are 0.
    """
    values = np.asarray(tuple(differences), dtype=np.float64)
    assert values.ndim == 1 and len(values) and np.isfinite(values).all(), values
    pairs, mean, seeds = tuple(values.tolist()), float(values.mean()), len(values)
    if seeds == 1:
        return Comparison(pairs, margin, mean)
    deviation = float(values.std(ddof=1))
    low, high = t_interval(values)
    p_t: float | None
    p_equivalence: float | None
    if deviation / math.sqrt(seeds) >= TINY:
        p_t, p_equivalence = float(t_test(values)), float(equivalence_test(values, margin))
    else:
        p_t, p_equivalence = (1.0, 0.0) if abs(mean) < TINY else (None, None)
    return Comparison(
        differences=pairs,
        margin=margin,
        mean=mean,
        deviation=deviation,
        interval=(float(low), float(high)),
        p_t=p_t,
        p_sign_flip=float(sign_flip_test(values)) if seeds <= MOST_SEEDS_FLIPPED else None,
        p_equivalence=p_equivalence,
        detectable=deviation * detectable_in_deviations(seeds),
    )


def seed_interval(by_seed: Iterable[float]) -> Interval | None:
    """The 95 % t interval of a mean over seeds of pre-training; None for a single one."""
    values = np.array(list(by_seed))
    if len(values) < 2:
        return None
    low, high = t_interval(values)
    return float(low), float(high)


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
