"""The pieces of inference against scipy, by definition, and at the edges: one seed, no spread, too many tests."""

import itertools
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW

from reports.analysis import inference
from reports.analysis.inference import (
    adjust,
    compare,
    detectable,
    flip_statistics,
    holm,
    p_of_equivalence,
    sign_patterns,
)

DIFFERENCES = st.lists(st.floats(-5, 5), min_size=2, max_size=9).filter(lambda values: np.std(values) > 1e-3)
ROUNDED = st.integers(-5000, 5000).map(lambda value: value / 1000)  # ties are ties, and squares do not vanish
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(DIFFERENCES)
def test_interval_and_p_are_those_of_scipy_and_statsmodels(values: list[float]) -> None:
    expected = stats.ttest_1samp(values, 0.0)
    found = compare(values, margin=0.5)
    assert found.p_t == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    interval = expected.confidence_interval(0.95)
    assert found.interval == pytest.approx((interval.low, interval.high))
    expected_p = DescrStatsW(values).ttost_mean(-0.5, 0.5)[0]
    assert p_of_equivalence(np.array(values), 0.5) == pytest.approx(expected_p, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seeds", [6, 8, 10])
def test_the_detectable_effect_is_claimed_in_four_of_five_studies(seeds: int) -> None:
    """By the test of the verdict, beside the rest of the family as it was observed."""
    random = np.random.default_rng(seeds)
    family, level = random.normal(0, (1.0, 3.0, 0.5), (seeds, 3)).T, inference.LOOKS[seeds]
    others = flip_statistics(family)[1:].max(axis=0)
    pooled = float(inference.pooled_variance(family)[0])
    size = detectable(family[0], sign_patterns(seeds), others, pooled, level)
    drawn = random.normal(size, family[0].std(ddof=1), (2000, seeds))
    own = np.abs(drawn @ sign_patterns(seeds).T) / np.sqrt((drawn**2).sum(axis=1)[:, None] + seeds * pooled)
    found = (np.maximum(own, others) >= own[:, :1] * (1 - 1e-9)).mean(axis=1) <= level
    assert found.mean() == pytest.approx(0.8, abs=0.05)
    alone = detectable(family[0], sign_patterns(seeds), np.zeros(len(others)), 0.0, 0.05)
    attained = np.floor(0.05 * 2 ** (seeds - 1)) / 2 ** (seeds - 1)
    of_t = TTestPower().solve_power(None, seeds, attained, 0.8) * family[0].std(ddof=1)
    assert of_t * 0.95 < alone < of_t * 1.25, "a family of one finds little less than the t test of the same level"


@st.composite
def families(draw: st.DrawFn) -> np.ndarray:  # type: ignore[type-arg]
    """Differences (deltas, seeds) with gaps."""
    deltas, seeds = draw(st.integers(1, 4)), draw(st.integers(2, 6))
    rows = st.lists(ROUNDED, min_size=seeds, max_size=seeds)
    values = np.array(draw(st.lists(rows, min_size=deltas, max_size=deltas)))
    for row in range(deltas):
        values[row, draw(st.integers(2, seeds)) :] = np.nan
    return values


@settings(max_examples=60)
@given(families())
def test_joint_sign_flips_are_counted_one_by_one(values: np.ndarray) -> None:  # type: ignore[type-arg]
    """Stepping down: the p of the largest statistic is over all deltas, the next over all but it, and never smaller."""
    filled, counts = np.nan_to_num(values), (~np.isnan(values)).sum(axis=1)
    pooled = np.quantile((filled**2).sum(axis=1) / counts, 0.25)
    scale = np.sqrt((filled**2).sum(axis=1) + counts * pooled)
    patterns = [np.array(signs) for signs in itertools.product((-1, 1), repeat=values.shape[1])]
    flipped = np.array([np.abs(filled @ signs) / np.where(scale > 0, scale, 1) for signs in patterns])
    observed = flipped[-1]
    expected, least = np.zeros(len(values)), 0.0
    left = sorted(range(len(values)), key=lambda delta: -observed[delta])
    while left:
        reached = (flipped[:, left] >= observed[left[0]] * (1 - 1e-9)).any(axis=1).mean()
        least = expected[left[0]] = max(least, reached)
        left = left[1:]
    assert inference.joint_sign_flips(values) == pytest.approx(expected)


@given(st.lists(ROUNDED, min_size=2, max_size=9))
def test_a_family_of_one_has_the_exact_sign_flip_test(values: list[float]) -> None:
    sums = [abs(np.dot(values, signs)) for signs in itertools.product((-1, 1), repeat=len(values))]
    share = np.mean([each >= abs(sum(values)) - 1e-9 * sum(map(abs, values)) for each in sums])
    assert inference.joint_sign_flips(np.array([values]))[0] == pytest.approx(share, abs=1e-6)


def test_of_many_seeds_patterns_are_drawn_and_give_nearly_the_same() -> None:
    random = np.random.default_rng(0)
    values = random.normal(0.3, 1, (3, 18))
    found = inference.joint_sign_flips(values)
    exact = 1 - 2 * (np.arange(2**17)[:, None] >> np.arange(18) & 1)
    share = (np.abs(values[0] @ exact.T) >= abs(values[0].sum())).mean()
    assert inference.joint_sign_flips(values[:1])[0] == pytest.approx(share, abs=0.01)
    assert (found >= inference.joint_sign_flips(values[:1])[0] - 0.01)[0] and len(found) == 3


def test_collapsed_seeds_are_those_far_from_their_own_arm() -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, (8, 6))
    arms = {f"M{arm}": dict(enumerate(5 - arm + own)) for arm, own in enumerate(noise)}
    assert inference.collapsed_seeds(arms) == {}
    arms["M2"][4] += 1.0
    assert inference.collapsed_seeds(arms) == {"M2": (4,)}
    arms["M2"][1] += 1.0
    assert inference.collapsed_seeds(arms) == {"M2": (1, 4)}
    shared = {name: {seed: value + (seed == 3) for seed, value in arm.items()} for name, arm in arms.items()}
    assert inference.collapsed_seeds(shared) == {"M2": (1, 4)}, "a seed that is bad for all arms is no collapse"
    assert inference.collapsed_seeds({"M0": {0: 1.0, 1: 1.0, 2: 9.0}}) == {}, "three seeds cannot tell"
    assert inference.collapsed_seeds({"M0": dict.fromkeys(range(5), 1.0) | {5: 1.5}}) == {"M0": (5,)}


@mock.patch("gc.collect", lambda: 0)  # statsmodels calls it each time
@given(P_VALUES)
def test_holm_is_the_textbooks_step_down_and_statsmodels(p_values: list[float]) -> None:
    """Rejecting at 0.05 is the same as walking up from the smallest p until one exceeds 0.05 over those left."""
    rejected = dict.fromkeys(range(len(p_values)), False)
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        if p_values[index] * (len(p_values) - rank) > inference.ALPHA:
            break
        rejected[index] = True
    adjusted = multipletests(p_values, inference.ALPHA, method="holm")[1]
    assert holm(np.array(p_values)) == pytest.approx(adjusted)
    assert [bool(p <= inference.ALPHA) for p in holm(np.array(p_values))] == list(rejected.values())


def test_tests_that_there_are_not_do_not_count_in_the_family() -> None:
    assert adjust([None, 0.01, None, 0.04]) == [None, 0.02, None, 0.04]
    assert adjust([None]) == [None] and adjust([]) == []


def test_one_seed_has_a_mean_and_nothing_else() -> None:
    found = compare([1.5], margin=0.5)
    assert found.mean == 1.5 and found.seeds == 1
    assert found.interval is found.p_t is found.deviation is None


def test_equal_differences_have_no_t_test() -> None:
    """RTE has 277 examples: two seeds often differ by the very same number, and that tells nothing about the spread."""
    assert compare([0.361] * 7, margin=0.5).p_t is p_of_equivalence(np.full(6, 0.361), 0.5) is None
    assert compare([0.0] * 6, margin=0.5).p_t == 1.0 and p_of_equivalence(np.zeros(6), 0.5) == 0.0


# Measures in sequence


def test_measures_in_sequence_are_passed_one_by_one() -> None:
    """By the definition, on made-up statistics of two steps in two measures, by pattern."""
    statistics = np.array([[[9, 1, 2, 3], [4, 5, 1, 1]], [[3, 8, 2, 1], [9, 9, 9, 9]]], dtype=float)
    p_values = inference.stepwise_p_values(statistics)
    # first 9 against max(first measures); then 4 (second of the first step) against the 3 of the other step
    assert p_values[0] == pytest.approx([1 / 4, 2 / 4])
    # last the 3 alone, with no smaller p than before; its second measure comes after it
    assert p_values[1] == pytest.approx([2 / 4, 1.0])


def test_a_step_without_a_measure_stops_there() -> None:
    statistics = np.full((2, 3, 8), np.nan)
    statistics[0, 0] = np.arange(8.0)[::-1]
    statistics[0, 2] = 9
    statistics[1] = np.arange(24.0).reshape(3, 8)[:, ::-1]
    p_values = inference.stepwise_p_values(statistics)
    assert p_values[0].tolist()[1:] == [1.0, 1.0] and p_values[0, 0] == p_values[1, 0] == 1 / 8


@settings(max_examples=40)
@given(families())
def test_one_measure_in_sequence_is_the_step_down_test_whatever_the_order(values: np.ndarray) -> None:  # type: ignore[type-arg]
    turned = inference.joint_sign_flips(values[::-1])[::-1]
    assert inference.joint_sign_flips(values) == pytest.approx(turned)


# Deviations known from pilot seeds


def test_variances_are_shrunk_as_far_as_they_are_noise() -> None:
    random = np.random.default_rng(0)
    degrees = np.full(8, 3)
    equal = random.chisquare(3, (2000, 8)) / 3
    unequal = equal * np.array([1, 4, 16, 64, 256, 1024, 4096, 16384])

    def errors(variances: np.ndarray, truth: np.ndarray) -> float:  # type: ignore[type-arg]
        off = np.log(variances) - np.log(truth)
        return float(((off - off.mean(axis=1, keepdims=True)) ** 2).mean())

    true = unequal[0] / equal[0]
    assert errors(inference.shrink_variances(equal, degrees), np.ones(8)) < 0.45 * errors(equal, np.ones(8))
    assert errors(inference.shrink_variances(unequal, degrees), true) < errors(unequal, true)
    kept = inference.shrink_variances(unequal[:1], degrees)[0]
    assert np.log(kept).mean() == pytest.approx(np.log(unequal[0]).mean()), "their geometric mean stays"
    few = np.array([1.0, 9.0, 100.0])
    assert inference.shrink_variances(few, np.full(3, 3)) == pytest.approx(few)
    assert inference.shrink_variances(np.ones(5), np.full(5, 3)) == pytest.approx(np.ones(5))
