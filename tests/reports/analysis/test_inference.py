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
from reports.analysis.inference import adjust, compare, holm, verdict

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
    looked = values[: inference.last_look(len(values))]
    if np.std(looked) < 1e-12:
        assert found.p_equivalence == (0.0 if abs(looked[0]) < 1e-12 else None)
        return
    assert found.p_equivalence == pytest.approx(DescrStatsW(looked).ttost_mean(-0.5, 0.5)[0], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seeds", [2, 3, 6, 16])
def test_the_detectable_effect_has_the_power_that_statsmodels_finds(seeds: int) -> None:
    effect = inference.detectable_in_deviations(seeds)
    assert TTestPower().power(effect, seeds, inference.ALPHA) == pytest.approx(inference.POWER, abs=1e-6)


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


def test_between_looks_the_first_seeds_of_the_last_one_are_tested() -> None:
    first = dict(enumerate([0.3, 0.1, 0.4, 0.1, 0.5, 0.9]))
    later = first | {6: -2.0}
    assert inference.family_p_values([later, {0: 1.0}, {}]) == [2 / 64, None, None]
    assert inference.family_p_values([first]) == [2 / 64]
    assert (inference.last_look(5), inference.last_look(7), inference.last_look(30)) == (None, 6, 10)


def test_with_collapsed_seeds_the_larger_p_counts_of_all_seeds_at_the_look_and_of_those_that_are_left() -> None:
    delta = dict(enumerate([0.3, 0.1, 0.4, 0.1, 0.5, 0.9, 0.2, 40.0]))
    assert inference.family_p_values([delta]) == [2 / 256]
    assert inference.family_p_values([delta], [{7}]) == [2 / 128], "not cut to a lower look again"
    six = {seed: delta[seed] for seed in range(6)}
    assert inference.family_p_values([six], [{5}]) == [1 / 16], "more than any look allows"
    assert inference.family_p_values([delta], [set(range(1, 8))]) == [1.0]


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
    assert found.interval is found.p_t is found.p_equivalence is found.detectable is None
    assert verdict(found, None, None) == "too few seeds"


def test_equal_differences_have_no_t_test_but_signs() -> None:
    """RTE has 277 examples: two seeds often differ by the very same number, and that tells nothing about the spread."""
    found = compare([0.361] * 7, margin=0.5)
    (p_value,) = inference.family_p_values([dict(enumerate(found.differences))])
    assert found.p_t is found.p_equivalence is None and p_value == 2 / 64
    assert verdict(found, p_value, None) == "higher"


def test_no_difference_at_all_is_equivalence() -> None:
    found = compare([0.0] * 6, margin=0.5)
    (p_value,) = inference.family_p_values([dict.fromkeys(range(6), 0.0)])
    assert (found.p_t, found.p_equivalence, p_value) == (1.0, 0.0, 1.0)
    assert verdict(found, p_value, found.p_equivalence) == "equivalent within 0.5"


@pytest.mark.parametrize(
    ("p_difference", "p_equivalence", "words"),
    [
        (0.01, 0.9, "higher"),
        (0.01, 0.01, "higher, yet equivalent within 0.5"),
        (0.3, 0.01, "equivalent within 0.5"),
        (0.3, 0.3, "within noise"),
    ],
)
def test_words_of_six_seeds(p_difference: float, p_equivalence: float, words: str) -> None:
    found = compare([0.1, 0.2, 0.3, 0.1, 0.2, 0.3], margin=0.5)
    assert verdict(found, p_difference, p_equivalence) == words


def test_below_six_seeds_nothing_is_claimed() -> None:
    found = compare([-1.0, -1.1, -0.9], margin=0.5)
    assert inference.family_p_values([dict(enumerate(found.differences))]) == [0.25]
    assert verdict(found, 0.001, 0.001) == "too few seeds"
