"""The statistics of differences: every number against scipy and statsmodels, the words, and simulated ladders."""

import math
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from reports.statistics import (
    ALPHA,
    BETTER,
    NO_CLEAR_DIFFERENCE,
    NOT_TRAINED,
    TOO_FEW_SEEDS,
    UNEQUAL_SPREAD,
    WORSE,
    Difference,
    holm,
    judge,
    t_interval,
)

STEPS = 9
SEEDS = 6
LADDERS = 2000
values = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


def difference(ours, theirs, margin=0.5, higher_is_better=True, **fields) -> Difference:
    return Difference(dict(enumerate(ours)), dict(enumerate(theirs)), margin, higher_is_better, **fields)


def word(ours, theirs, **fields) -> str:
    return judge([difference(ours, theirs, **fields)])[0].word


@given(st.lists(st.tuples(values, values), min_size=5, max_size=12), st.floats(0.01, 10))
def test_numbers_equal_those_of_scipy_and_statsmodels(pairs, margin):
    ours, theirs = (np.array(arm) for arm in zip(*pairs, strict=True))
    found = difference(ours, theirs, margin)
    if np.std(ours - theirs) < 1e-9:  # the references divide by a rounding error there
        return
    expected = stats.ttest_rel(ours, theirs)
    low, high = expected.confidence_interval(0.95)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-300)
    assert found.interval == pytest.approx((low, high), rel=1e-9, abs=1e-9)
    assert found.mean == pytest.approx(np.mean(ours - theirs), rel=1e-9, abs=1e-9)
    assert found.p_equivalence == pytest.approx(ttost_paired(ours, theirs, -margin, margin)[0], rel=1e-9, abs=1e-300)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_holm_equals_that_of_statsmodels(p_values):
    with patch("gc.collect"):  # a quarter of a second in each call of statsmodels'
        expected = multipletests(p_values, method="holm")[1]
    assert holm(p_values) == pytest.approx(expected)


def test_only_seeds_of_both_arms_are_compared_and_each_with_its_own():
    ours, theirs = {0: 1.0, 1: 5.0, 2: 9.0, 7: 100.0}, {2: 8.0, 1: 3.0, 0: 0.0, 5: -100.0}
    found = replace(difference([], []), ours=ours, theirs=theirs)
    assert found.by_seed == {0: 1.0, 1: 2.0, 2: 1.0}
    assert found.mean == pytest.approx(4 / 3)


def test_intervals_begin_with_three_seeds_and_words_with_five():
    assert t_interval([1.0, 2.0]) is None
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx(stats.t.interval(0.95, 2, 2.0, stats.sem([1.0, 2.0, 3.0])))
    for seeds in range(5):
        ours = [10 + seed / 10 for seed in range(seeds)]
        found = difference(ours, [0.0] * seeds)
        judged = judge([found])[0]
        assert (judged.word, judged.p, judged.p_equivalence) == (TOO_FEW_SEEDS, None, None)
        assert (found.interval is None) == (seeds < 3)
    assert math.isnan(difference([], []).mean)


def test_the_word_says_the_direction_in_the_sense_of_the_measure():
    low, high = [1.0, 1.1, 0.9, 1.2, 1.0], [5.0, 5.3, 4.9, 5.2, 5.1]
    assert word(high, low) == BETTER
    assert word(low, high) == WORSE
    assert word(high, low, higher_is_better=False) == WORSE
    assert word(low, high, higher_is_better=False) == BETTER


def test_equivalence_is_shown_within_the_margin_alone():
    theirs = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    ours = [value + noise for value, noise in zip(theirs, (0.1, -0.1, 0.05, -0.05, 0.1, 0.0), strict=True)]
    assert word(ours, theirs, margin=0.5) == "equivalent within 0.5"
    assert word(ours, theirs, margin=0.05) == NO_CLEAR_DIFFERENCE
    shifted = [value + 0.2 for value in ours]  # clear, but too small to matter
    assert difference(shifted, theirs).p < ALPHA
    assert word(shifted, theirs, margin=0.5) == "equivalent within 0.5"
    assert word(shifted, theirs, margin=0.1) == BETTER


def test_arms_that_have_not_trained_or_spread_too_much_get_no_word():
    low = [1.0, 1.1, 0.9, 1.2, 1.0, 1.1]
    high = [5.0, 5.1, 4.9, 5.2, 5.1, 5.0]
    wide = [9.0, 1.0, 15.0, 3.0, 12.0, 8.0]
    assert word(high, low, trained=False) == NOT_TRAINED
    assert word(wide, low) == UNEQUAL_SPREAD
    assert word(low, wide) in {WORSE, NO_CLEAR_DIFFERENCE}, "a parent may spread more than its child"
    assert word(wide, [1.0] * 6) == UNEQUAL_SPREAD
    slightly = [value * 2 for value in low]
    assert not difference(slightly, low).spreads_differ


def test_the_same_difference_at_every_seed_has_no_spread_to_test_against():
    arm = [1.0, 2.0, 3.0, 4.0, 5.0]
    judged = judge([difference(arm, arm)])[0]
    assert (judged.word, judged.p, judged.p_equivalence) == (NO_CLEAR_DIFFERENCE, None, None)


def test_every_tested_step_counts_in_the_family_of_its_measure():
    low, high = [1.0, 1.4, 0.9, 1.2, 1.0], [2.0, 1.6, 1.9, 2.6, 1.5]
    alone = judge([difference(high, low)])[0]
    steps = [difference(high, low), difference(low, low[::-1], trained=False), difference(low[:3], high[:3])]
    first, second, third = judge(steps)
    assert first.p == pytest.approx(2 * alone.p), "two of three steps are tested"
    assert second.p is not None and second.word == NOT_TRAINED
    assert third.p is None


def simulated_ladders(spreads, effect_of_last_step=0.0, heavy_tails=False, ladders=LADDERS):
    """Yield the judged steps of ladders in which neighbours share an arm and every seed its data order."""
    random = np.random.default_rng(0)
    shape = ladders, STEPS + 1, SEEDS
    noise = random.standard_t(3, size=shape) if heavy_tails else random.normal(size=shape)
    arms = noise * np.asarray(spreads)[:, None] + random.normal(0, 2, (ladders, 1, SEEDS))
    arms[:, -1] += effect_of_last_step
    for ladder in arms:
        steps = [difference(ours, theirs, margin=1e-9) for theirs, ours in pairwise(ladder)]
        yield judge(steps)


EQUAL = [1.0] * (STEPS + 1)
TWELVEFOLD = [12.0, 3.0, 6.0, 2.0, 9.0, 1.0, 4.0, 12.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("spreads", "heavy_tails"), [(EQUAL, False), (TWELVEFOLD, False), (EQUAL, True)], ids=["equal", "unequal", "tails"]
)
def test_a_ladder_without_effects_rarely_gets_a_claim(spreads, heavy_tails):
    claims = sum(any(step.p < ALPHA for step in steps) for steps in simulated_ladders(spreads, heavy_tails=heavy_tails))
    assert claims / LADDERS <= 0.055


def test_a_precise_step_is_found_beside_noisy_ones():
    found = sum(steps[-1].word == BETTER for steps in simulated_ladders(TWELVEFOLD, 5.0, ladders=500))
    assert found / 500 >= 0.8
