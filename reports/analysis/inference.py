"""Inference on paired differences over seeds: intervals, family-wise tests, equivalence, collapsed seeds, verdicts.

The unit is the pre-training seed: a variant and its parent share it, and with it the initialisation, the data order and
the masks, wherever their recipes allow. Seeds are the last axis of arrays, so that simulations can use the same
functions as reports. scipy is imported inside the functions. docs/statistics.md explains the choice of tests.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Interval = tuple[float, float]

ALPHA = 0.05
POWER = 0.8
LOOKS: Mapping[int, float] = {6: 0.032, 8: 0.016, 10: 0.02}
"""Numbers of seeds at which differences may be claimed, with the largest family-wise p that claims one. Declared before
the study: over all three looks together, a ladder of ten nulls claims something in 3.3 to 5.8 % of 2,000 simulated
studies, whatever the noise (tests/reports/analysis/test_family_oracle.py). No exact test reaches these levels below six
seeds."""
SEEDS_FOR_A_CLAIM = min(LOOKS)
TINY = 1e-12  # points: smaller spreads are rounding errors
MOST_SEEDS_FLIPPED = 16  # 2^15 patterns; with more seeds, as many patterns are drawn at random
POOLED_QUANTILE = 0.25  # of the mean squares of a family: true effects and outlying arms are above it
COLLAPSE_IN_DEVIATIONS = 6
ARMS_FOR_A_SEED = 8  # with fewer arms, single arms influence the median too much
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


def joint_sign_flips(differences: Array) -> Array:
    """Return two-sided p-values, (…, deltas), that control the family-wise error, for differences (…, deltas, seeds),
    NaN if a delta lacks a seed. For a family of one this is the exact sign-flip test.

    A pattern flips the sign of a seed in all deltas at once, since they share seeds and arms. The p is the share of
    patterns whose largest statistic among the remaining deltas is at least the delta's own, stepping down from the
    largest (Westfall and Young 1993). The statistic is |Σd| / √(Σd² + seeds · c), where c is the lower quartile of the
    family's mean squares, so that variances are partly pooled. Flips do not change c and Σd², so the test is exact for
    all symmetric noise, and nearly so beside true effects. If c is 0, the order is that of the t test.
    """
    is_there = ~np.isnan(differences)
    values, counts = np.where(is_there, differences, 0.0), is_there.sum(axis=-1)
    squares = (values**2).sum(axis=-1)
    pooled = np.quantile(squares / counts, POOLED_QUANTILE, axis=-1, keepdims=True)
    scale = np.sqrt(squares + counts * pooled)[..., None]
    sums = np.abs(values @ sign_patterns(differences.shape[-1]).T)
    statistics = np.divide(sums, scale, out=np.zeros_like(sums), where=scale > 0)
    observed = statistics[..., 0]
    order = np.argsort(observed, axis=-1, kind="stable")
    largest = np.maximum.accumulate(np.take_along_axis(statistics, order[..., None], axis=-2), axis=-2)
    ranked = np.take_along_axis(observed, order, axis=-1)[..., None]
    shares = (largest >= ranked * (1 - 1e-9)).mean(axis=-1)
    raised = np.maximum.accumulate(shares[..., ::-1], axis=-1)[..., ::-1]
    return np.take_along_axis(raised, np.argsort(order, axis=-1, kind="stable"), axis=-1)


def last_look(seeds: int) -> int | None:
    """Return the last look reached with this number of seeds; None before the first."""
    return max((look for look in LOOKS if look <= seeds), default=None)


def family_p_values(
    family: Sequence[Mapping[int, float]], collapsed: Sequence[Collection[int]] = ()
) -> list[float | None]:
    """Return the family-wise p of each delta, given by seed, at its last look: over as many first seeds as the look
    has, or over all seeds before the first look. None for deltas with fewer than two seeds, which belong to no family.

    `collapsed` are the seeds of each delta at which one side lies far from its arm's other seeds. If there are any, p
    is the larger of the values with and without them, so that no claim depends on them.
    """
    looked = [dict(sorted(each.items())[: last_look(len(each))]) for each in family]
    p_values = _p_of_family(looked)
    if not any(collapsed):
        return p_values
    kept = [
        {s: value for s, value in each.items() if s not in far} for each, far in zip(looked, collapsed, strict=True)
    ]
    both = zip(p_values, _p_of_family(kept), strict=True)
    return [None if p is None else max(p, 1.0 if without is None else without) for p, without in both]


def _p_of_family(family: Sequence[Mapping[int, float]]) -> list[float | None]:
    tested = [each for each in family if len(each) > 1]
    if not tested:
        return [None] * len(family)
    seeds = sorted(set[int]().union(*tested))
    found = iter(joint_sign_flips(np.array([[each.get(seed, np.nan) for seed in seeds] for each in tested])).tolist())
    return [next(found) if len(each) > 1 else None for each in family]


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


@cache
def detectable_in_deviations(seeds: int) -> float:
    """Return the smallest true mean, in standard deviations of the differences, that the t test detects with power 0.8.
    The solution is exact; statsmodels' `TTestPower` iterates to six digits."""
    from scipy.special import nctdtrinc, stdtrit

    degrees = seeds - 1
    return float(nctdtrinc(degrees, 1 - POWER, stdtrit(degrees, 1 - ALPHA / 2))) / math.sqrt(seeds)


@dataclass(frozen=True)
class Comparison:
    """Paired differences of one quantity in the order of seeds, and their statistics; None if undefined.

    `interval` is the 95 % t interval, `detectable` the smallest effect that as many seeds detect with power 0.8 at the
    observed spread, `p_equivalence` the p of TOST for ±`margin` at the last look.
    """

    differences: tuple[float, ...]
    margin: float
    mean: float
    deviation: float | None = None
    interval: Interval | None = None
    p_t: float | None = None
    p_equivalence: float | None = None
    detectable: float | None = None

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
    pairs, mean, seeds = tuple(values.tolist()), float(values.mean()), len(values)
    if seeds == 1:
        return Comparison(pairs, margin, mean)
    deviation = float(values.std(ddof=1))
    looked = values[: last_look(seeds)]
    p_t = (1.0 if abs(mean) < TINY else None) if deviation < TINY else float(t_test(values))
    if looked.std() < TINY:
        p_equivalence = 0.0 if abs(looked[0]) < TINY else None
    else:
        p_equivalence = float(equivalence_test(looked, margin))
    return Comparison(
        differences=pairs,
        margin=margin,
        mean=mean,
        deviation=deviation,
        interval=seed_interval(values),
        p_t=p_t,
        p_equivalence=p_equivalence,
        detectable=deviation * detectable_in_deviations(seeds),
    )


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


def claims(comparison: Comparison, p_difference: float | None, p_equivalence: float | None) -> tuple[str, bool]:
    """Return what may be claimed at the last look, from p-values corrected over the family: the direction of the
    difference, or an empty text, and whether it is equivalent. Before the first look, neither is claimed."""
    look = last_look(comparison.seeds)
    if look is None:
        return "", False
    direction = "higher" if sum(comparison.differences[:look]) > 0 else "lower"
    equivalent = p_equivalence is not None and p_equivalence <= LOOKS[look]
    return direction if p_difference is not None and p_difference <= LOOKS[look] else "", equivalent


def verdict(comparison: Comparison, p_difference: float | None, p_equivalence: float | None) -> str:
    """Return in words what may be claimed."""
    if last_look(comparison.seeds) is None:
        return "too few seeds"
    direction, is_equivalent = claims(comparison, p_difference, p_equivalence)
    words = f"equivalent within {comparison.margin:g}" if is_equivalent else ""
    return ", yet ".join(filter(None, (direction, words))) or "within noise"


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
