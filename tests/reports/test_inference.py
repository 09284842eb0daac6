"""The pieces of inference against scipy, by definition, and at the edges: one seed, no spread, too many tests."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.weightstats import DescrStatsW

from reports import inference
from reports.inference import adjust, compare, holm, verdict

DIFFERENCES = st.lists(st.floats(-5, 5), min_size=2, max_size=9).filter(lambda values: np.std(values) > 1e-3)
P_VALUES = st.lists(st.floats(0, 1), min_size=1, max_size=12)


@given(DIFFERENCES)
def test_interval_and_p_are_those_of_scipy_and_statsmodels(values: list[float]) -> None:
    expected = stats.ttest_1samp(values, 0.0)
    found = compare(values, margin=0.5)
    assert found.p_t == pytest.approx(expected.pvalue, rel=1e-6, abs=1e-12)
    interval = expected.confidence_interval(0.95)
    assert found.interval == pytest.approx((interval.low, interval.high))
    assert found.p_equivalence == pytest.approx(DescrStatsW(values).ttost_mean(-0.5, 0.5)[0], rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("seeds", [2, 3, 6, 16])
def test_the_detectable_effect_has_the_power_that_statsmodels_finds(seeds: int) -> None:
    effect = inference.detectable_in_deviations(seeds)
    assert TTestPower().power(effect, seeds, inference.ALPHA) == pytest.approx(inference.POWER, abs=1e-6)


@given(DIFFERENCES)
def test_sign_flips_are_counted_one_by_one(values: list[float]) -> None:
    observed = abs(sum(values))
    flips = [abs(np.dot(values, signs)) for signs in itertools.product((-1, 1), repeat=len(values))]
    share = np.mean([flip >= observed - 1e-9 * sum(map(abs, values)) for flip in flips])
    assert compare(values, margin=0.5).p_sign_flip == pytest.approx(share)


@settings(max_examples=30)  # statsmodels collects garbage in each call
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
    assert found.interval is found.p_t is found.p_sign_flip is found.p_equivalence is found.detectable is None
    assert verdict(found, None, None) == "too few seeds"


def test_equal_differences_that_are_not_zero_claim_nothing() -> None:
    """RTE has 277 examples: two seeds often differ by the very same number, and that tells nothing about the spread."""
    found = compare([0.361] * 7, margin=0.5)
    assert found.p_t is None and verdict(found, *adjust([found.p_t]), found.p_equivalence) == "too few seeds"


def test_no_difference_at_all_is_equivalence() -> None:
    found = compare([0.0] * 6, margin=0.5)
    assert (found.p_t, found.p_equivalence, found.p_sign_flip) == (1.0, 0.0, 1.0)
    assert verdict(found, found.p_t, found.p_equivalence) == "equivalent within 0.5"


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


def test_below_six_seeds_the_words_name_what_is_lacking() -> None:
    found = compare([-1.0, -1.1, -0.9], margin=0.5)
    assert found.p_sign_flip == 0.25
    assert verdict(found, found.p_t, found.p_equivalence) == "too few seeds (t test: lower)"
    assert verdict(found, 0.2, 0.01) == "within noise"
