"""Inference on paired differences over seeds: intervals, family-wise tests, equivalence, collapsed seeds.

The unit is the pre-training seed: a variant and its parent share it, and with it the initialisation, the data order and
the masks, wherever their recipes allow. Seeds are the last axis of arrays, so that simulations can use the same
functions as reports. scipy is imported inside the functions. docs/statistics.md explains the choice of tests.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from ablations.declarations import PROTOCOL

Array = np.ndarray[Any, np.dtype[Any]]
Interval = tuple[float, float]

ALPHA = 0.05
POWER = 0.8
LOOKS = PROTOCOL.looks
"""Numbers of seeds at which differences may be claimed, with the largest family-wise p that claims one; no exact test
reaches these levels below six seeds. docs/statistics.md shows the error of all three looks together."""
EQUIVALENCE_LEVEL = 0.005
"""Largest family-wise p that claims an equivalence at a look: all looks together add 1.5 % at most to the error."""
SEEDS_FOR_A_CLAIM = min(LOOKS)
TINY = 1e-12  # points: smaller spreads are rounding errors
MOST_SEEDS_FLIPPED = 16  # 2^15 patterns; with more seeds, as many patterns are drawn at random
POOLED_QUANTILE = 0.25  # of the mean squares of a family: true effects and outlying arms are above it
COLLAPSE_IN_DEVIATIONS = 6
ARMS_FOR_A_SEED = 8  # with fewer arms, single arms influence the median too much
DRAWS, BISECTIONS, LARGEST_EFFECT = 400, 8, 64.0  # of the search for the detectable effect, the last in deviations
SEEDS_FOR_A_COLLAPSE = 4  # with three seeds, every fifth sound study would have a collapse


def t_test(differences: Array) -> Array:
    """Return the two-sided p of the paired t test, (…)."""
    return 2 * _share_above(np.abs(differences.mean(axis=-1)), differences)


def equivalence_test(differences: Array, margin: float) -> Array:
    """Return the p of the two one-sided tests (TOST) that the mean is within ±margin, (…): the larger of the two."""
    return _share_above(margin - np.abs(differences.mean(axis=-1)), differences)


def _share_above(distance: Array, differences: Array) -> Array:
    """Return the upper tail of Student's t at `distance` over the standard error of the mean, (…). scipy.stats has the
    same test, but takes a second to import."""
    from scipy.special import stdtr

    seeds = differences.shape[-1]
    return np.asarray(stdtr(seeds - 1, -distance * math.sqrt(seeds) / differences.std(axis=-1, ddof=1)))


@cache
def sign_patterns(seeds: int) -> Array:
    """Return sign patterns, (patterns, seeds): all 2^(seeds − 1) that keep the last seed's sign, or 2^15 random ones
    for more than 16 seeds. The first pattern flips nothing. Mirror images are omitted, as their statistics are
    equal."""
    if seeds > MOST_SEEDS_FLIPPED:
        drawn = np.random.default_rng(seeds).choice((-1, 1), (2 ** (MOST_SEEDS_FLIPPED - 1), seeds))
        drawn[0] = 1
        return drawn
    return 1 - 2 * (np.arange(2 ** (seeds - 1))[:, None] >> np.arange(seeds) & 1)


def flip_statistics(differences: Array, pooled: Array | None = None) -> Array:
    """Return the statistic of each delta under each sign pattern, (…, deltas, patterns), for differences (…, deltas,
    seeds), NaN if a delta lacks a seed.

    The statistic is |Σd| / √(Σd² + seeds · c), where c is `pooled`, (…, 1), by default the lower quartile of the mean
    squares of the deltas, so that variances are partly pooled. Flips do not change c and Σd². If c is 0, the order is
    that of the t test.
    """
    values, counts = np.nan_to_num(differences), (~np.isnan(differences)).sum(axis=-1)
    pooled = pooled_variance(differences) if pooled is None else pooled
    scale = np.sqrt((values**2).sum(axis=-1) + counts * pooled)[..., None]
    sums = np.abs(values @ sign_patterns(differences.shape[-1]).T)
    return np.divide(sums, scale, out=np.zeros_like(sums), where=scale > 0)


def pooled_variance(differences: Array) -> Array:
    """Return the lower quartile of the mean squares of deltas, (…, 1), for differences (…, deltas, seeds)."""
    return np.asarray(np.quantile(np.nanmean(differences**2, axis=-1), POOLED_QUANTILE, axis=-1, keepdims=True))


def stepwise_p_values(statistics: Array, wholes: Sequence[int | None] = ()) -> Array:
    """Return family-wise p-values, (…, steps, measures), of the measures of each step in their sequence.

    `statistics` are theirs under joint sign patterns, (…, steps, measures, patterns), NaN for a measure that a step
    lacks; its p, and that of all after it, is 1. `wholes` has for each step the place of the step that it is a part of,
    or None.

    The family holds each step once: in its first measure that is not passed yet. A part joins it once the first measure
    of its whole is passed. Of the family the largest statistic is passed, and its step goes on to its next measure. Its
    p is the share of patterns whose largest statistic in the family is at least as large, and no smaller than the p
    before. With one measure, this is the step-down test of Westfall and Young (1993).
    """
    *batch, steps, measures, patterns = statistics.shape
    known = np.nan_to_num(statistics.reshape(-1, steps, measures, patterns), nan=-np.inf)
    studies, places = np.arange(len(known)), np.zeros((len(known), steps), dtype=int)
    p_values, highest = np.ones((len(known), steps, measures)), np.zeros(len(known))
    parts = [(part, whole) for part, whole in enumerate(wholes) if whole is not None]
    for _ in range(steps * measures):
        family = np.take_along_axis(known, np.minimum(places, measures - 1)[..., None, None], axis=2)[:, :, 0]
        family[places == measures] = -np.inf
        for part, whole in parts:
            family[places[:, whole] == 0, part] = -np.inf
        chosen = family[..., 0].argmax(axis=1)
        observed = family[studies, chosen, 0]
        shares = (family.max(axis=1) >= (observed * (1 - 1e-9))[:, None]).mean(axis=-1)
        highest = np.maximum(highest, shares)
        left = np.flatnonzero(observed > -np.inf)
        p_values[left, chosen[left], places[left, chosen[left]]] = highest[left]
        places[left, chosen[left]] += 1
    return p_values.reshape(*batch, steps, measures)


def joint_sign_flips(differences: Array) -> Array:
    """Return two-sided p-values, (…, deltas), that control the family-wise error of one measure, for differences (…,
    deltas, seeds), NaN if a delta lacks a seed. For a family of one this is the exact sign-flip test.

    A pattern flips the sign of a seed in all deltas at once, since they share seeds and arms. The test is exact for all
    symmetric noise, and stays so if each delta is divided by a number that was fixed before; next to true effects it is
    nearly exact.
    """
    return stepwise_p_values(flip_statistics(differences)[..., None, :])[..., 0]


def shrink_variances(variances: Array, degrees: Array) -> Array:
    """Return variances of arms, (…, arms), with their logarithms shrunk to their mean, by James and Stein's factor: the
    less they differ beyond the noise of variances with these `degrees` of freedom, (arms,), the more. Three arms or
    fewer are not shrunk."""
    from scipy.special import polygamma

    logarithms = np.log(np.maximum(variances, TINY**2))
    centre = logarithms.mean(axis=-1, keepdims=True)
    spread = ((logarithms - centre) ** 2).sum(axis=-1, keepdims=True)
    noise = max(0, logarithms.shape[-1] - 3) * float(np.mean(polygamma(1, np.asarray(degrees) / 2)))
    weight = np.minimum(1, noise / np.maximum(spread, TINY))
    return np.asarray(np.exp(centre + (1 - weight) * (logarithms - centre)))


def holm(p_values: Array) -> Array:
    """Return Holm's adjusted p-values over the last axis, which control the family-wise error.

    statsmodels' `multipletests` gives the same numbers for one family at a time, and runs the garbage collector in each
    call.
    """
    order = np.argsort(p_values, axis=-1, kind="stable")
    steps = np.take_along_axis(p_values, order, axis=-1) * np.arange(p_values.shape[-1], 0, -1)
    adjusted = np.minimum(np.maximum.accumulate(steps, axis=-1), 1.0)
    return np.take_along_axis(adjusted, np.argsort(order, axis=-1, kind="stable"), axis=-1)


def adjust(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm's adjusted p-values, ignoring missing ones."""
    known = iter(holm(np.array([p for p in p_values if p is not None])).tolist())
    return [None if p is None else next(known) for p in p_values]


def detectable(values: Array, signs: Array, others: Array, pooled: float, level: float) -> float:
    """Return the smallest true mean that joint sign flips claim at a level with power 0.8, in the unit of `values`, the
    differences of one delta, (seeds,), under the `signs`, (patterns, seeds).

    Noise is normal with the observed deviation. `others`, (patterns,), are the largest statistics of the rest of the
    family, which stay as observed, as does the `pooled` variance.
    """
    seeds, deviation = len(values), float(values.std(ddof=1))
    noise = np.random.default_rng(0).normal(0, deviation, (DRAWS, seeds))

    def power(mean: float) -> float:
        drawn = noise + mean
        own = np.abs(drawn @ signs.T) / np.sqrt((drawn**2).sum(axis=1, keepdims=True) + seeds * pooled)
        shares = (np.maximum(own, others) >= own[:, :1] * (1 - 1e-9)).mean(axis=1)
        return float((shares <= level).mean())

    low, high = 0.0, deviation
    while power(high) < POWER and high < LARGEST_EFFECT * deviation:
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle) >= POWER else (middle, high)
    return high


@dataclass(frozen=True)
class Comparison:
    """Paired differences of one quantity in the order of seeds, and their statistics; None if undefined. `interval` is
    the 95 % t interval."""

    differences: tuple[float, ...]
    margin: float
    mean: float
    deviation: float | None = None
    interval: Interval | None = None
    p_t: float | None = None

    @property
    def seeds(self) -> int:
        """Number of pairs."""
        return len(self.differences)


def compare(differences: Iterable[float], margin: float) -> Comparison:
    """Compute the statistics of paired differences; for one seed, only the mean.

    If all differences are equal, there is no t test, except if all are 0.
    """
    values = np.asarray(tuple(differences), dtype=np.float64)
    assert values.ndim == 1 and len(values) and np.isfinite(values).all(), values
    pairs, mean = tuple(values.tolist()), float(values.mean())
    if len(values) == 1:
        return Comparison(pairs, margin, mean)
    deviation = float(values.std(ddof=1))
    p_t = (1.0 if abs(mean) < TINY else None) if deviation < TINY else float(t_test(values))
    return Comparison(pairs, margin, mean, deviation, seed_interval(values), p_t)


def p_of_equivalence(values: Array, margin: float) -> float | None:
    """Return the p of TOST; of equal differences 0 if all are 0, else None."""
    if values.std() < TINY:
        return 0.0 if abs(values[0]) < TINY else None
    return float(equivalence_test(values, margin))


def with_examples(differences: Iterable[float], variance: float) -> tuple[Interval, float] | None:
    """Return the 95 % interval of a mean difference over seeds *and* examples, and the two-sided p that it is 0; None
    for a single seed.

    `variance` is the part of the mean's variance due to examples or texts, which all seeds share. The variance of the
    mean is the variance over seeds plus this one. Degrees of freedom follow Welch and Satterthwaite, with the variance
    over examples taken as known. Both variances include the interaction of seed and example, so the sum is too large
    rather than too small.
    """
    from scipy.special import stdtr, stdtrit

    values = np.array(list(differences))
    seeds = len(values)
    if seeds < 2:
        return None
    of_seeds = float(values.var(ddof=1)) / seeds
    total = of_seeds + variance
    if total < TINY**2:
        return None
    degrees = (seeds - 1) * (total / of_seeds) ** 2 if of_seeds > variance / 1e6 else 1e12
    mean, error = float(values.mean()), math.sqrt(total)
    half = float(stdtrit(degrees, 1 - ALPHA / 2)) * error
    return (mean - half, mean + half), float(2 * stdtr(degrees, -abs(mean) / error))


def seed_interval(by_seed: Iterable[float]) -> Interval | None:
    """Return the 95 % t interval of a mean over pre-training seeds, df = seeds − 1; None for a single seed."""
    from scipy.special import stdtrit

    values = np.array(list(by_seed))
    if len(values) < 2:
        return None
    half = stdtrit(len(values) - 1, 1 - ALPHA / 2) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


def collapsed_at_looks(
    arms: Mapping[str, Mapping[int, float]], looks: Iterable[int]
) -> dict[int, dict[str, tuple[int, ...]]]:
    """Return, by look, the collapsed seeds among the first ones of each arm."""
    ordered = {name: sorted(arm.items()) for name, arm in arms.items()}
    return {look: collapsed_seeds({name: dict(own[:look]) for name, own in ordered.items()}) for look in looks}


def collapsed_seeds(arms: Mapping[str, Mapping[int, float]]) -> dict[str, tuple[int, ...]]:
    """Return the seeds of each arm, given as values by seed, that lie far from the arm's other seeds. Arms without such
    seeds, and arms with fewer than four seeds, are left out.

    "Far" means more than six robust standard deviations from the arm's median, after subtracting the effect that a seed
    has on all arms (its median over arms, if there are at least eight). A robust deviation is 1.4826 times the median
    distance, of the arm or the median of all arms, whichever is larger. At most 5 % of sound studies with normal noise
    have such a seed, 7 % of those with four seeds.
    """
    names = [name for name, arm in arms.items() if len(arm) >= SEEDS_FOR_A_COLLAPSE]
    if not names:
        return {}
    seeds = sorted(set[int]().union(*(arms[name] for name in names)))
    values = np.array([[arms[name].get(seed, np.nan) for seed in seeds] for name in names])
    values -= np.nanmedian(values, axis=1, keepdims=True)
    if len(names) >= ARMS_FOR_A_SEED:
        shared = (~np.isnan(values)).sum(axis=0) >= ARMS_FOR_A_SEED
        values[:, shared] -= np.nanmedian(values[:, shared], axis=0)
    distances = np.abs(values - np.nanmedian(values, axis=1, keepdims=True))
    spreads = 1.4826 * np.nanmedian(distances, axis=1)
    far = distances > np.maximum(COLLAPSE_IN_DEVIATIONS * np.maximum(spreads, np.median(spreads)), TINY)[:, None]
    found = {name: tuple(seeds[place] for place in np.flatnonzero(own)) for name, own in zip(names, far, strict=True)}
    return {name: own for name, own in found.items() if own}
