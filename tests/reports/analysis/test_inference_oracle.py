"""The statistics of single deltas, simulated where the truth is known: every promised rate within its own error.

Where a rate is exact in theory, it must be hit from both sides: a test that rejects too seldom is as wrong as one that
rejects too often. `test_inference_mutants.py` shows that faults of a few percent do not pass.
"""

from typing import Any

import numpy as np
import pytest

from reports.analysis import inference
from reports.analysis.inference import ALPHA, POWER, compare

Array = np.ndarray[Any, np.dtype[Any]]
STUDIES = 20_000
PAIRS = 200_000  # of single differences: an error of 0.2 points is four standard errors of a rate of 5 %
SEEDS = (3, 5, 10)
SEED_NOISE, SHARED_NOISE = 0.4, 0.7  # points: of a variant by itself, and of a seed in all variants alike
DEVIATION = SEED_NOISE * np.sqrt(2)  # of a paired difference: what both share is gone


def rate(hits: Array) -> tuple[float, float]:
    """A share and four standard errors of it."""
    share = float(hits.mean())
    return share, 4 * float(np.sqrt(max(share * (1 - share), 1e-4) / len(hits)))


def is_rate(hits: Array, expected: float) -> bool:
    """Whether events happen as often as they should, within the error of the simulation."""
    share, _ = rate(hits)
    return abs(share - expected) <= 4 * float(np.sqrt(expected * (1 - expected) / len(hits)))


def arms(seeds: int, effects: Array, key: int, studies: int = STUDIES) -> Array:
    """Scores of simulated studies, (studies, arms, seeds): an effect an arm, noise of each run and of each seed."""
    random = np.random.default_rng(key)
    own = random.normal(0, SEED_NOISE, (studies, len(effects), seeds))
    return effects[:, None] + own + random.normal(0, SHARED_NOISE, (studies, 1, seeds))


def paired(seeds: int, effect: float, key: int) -> Array:
    """Differences of a child with an effect to its parent, (PAIRS, seeds)."""
    scores = arms(seeds, np.array([50.0, 50.0 + effect]), key, PAIRS)
    return np.asarray(scores[:, 1] - scores[:, 0])


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("effect", [0.0, 0.8])
def test_the_interval_covers_the_true_effect_as_often_as_it_says(seeds: int, effect: float) -> None:
    low, high = inference.t_interval(paired(seeds, effect, key=seeds))
    assert is_rate((low <= effect) & (effect <= high), 1 - ALPHA)
    assert is_rate(high < effect, ALPHA / 2) and is_rate(low > effect, ALPHA / 2)


@pytest.mark.parametrize("seeds", SEEDS)
def test_the_t_test_rejects_a_null_at_every_level_as_often_as_it_says(seeds: int) -> None:
    differences = paired(seeds, 0.0, key=seeds)
    for level in (0.01, ALPHA, 0.5):
        assert is_rate(inference.t_test(differences) <= level, level)
    above = differences.mean(axis=1) > 0
    assert is_rate((inference.t_test(differences) <= ALPHA) & above, ALPHA / 2), "two-sided"


@pytest.mark.parametrize("tests", [1, 2, 10])
@pytest.mark.parametrize("real", [0, 1])
def test_holm_over_independent_tests_errs_as_often_as_theory_says(tests: int, real: int) -> None:
    """Beside effects that are certain, Holm's correction is over the nulls that are left; Bonferroni's is not."""
    p_values = np.random.default_rng(tests).uniform(size=(PAIRS, tests + real))
    p_values[:, tests:] = 1e-9
    claimed = inference.holm(p_values) <= ALPHA
    assert is_rate(claimed[:, :tests].any(axis=1), 1 - (1 - ALPHA / tests) ** tests)
    assert claimed[:, tests:].all()


def test_holm_stops_at_the_first_test_that_fails() -> None:
    """Of ten half of which hold an effect, 5 % of studies claim a null; a false discovery rate of 5 % allows more."""
    p_values = np.random.default_rng(0).uniform(size=(PAIRS, 10))
    p_values[:, 5:] *= 0.02
    wrong, error = rate((inference.holm(p_values) <= ALPHA)[:, :5].any(axis=1))
    assert wrong <= ALPHA + error


def one_delta(differences: Array) -> Array:
    """p of sign flips of differences (PAIRS, seeds), each a family by itself."""
    parts = np.array_split(differences[:, None], 20)  # 16 MB of patterns each
    return np.concatenate([inference.joint_sign_flips(part)[:, 0] for part in parts])


@pytest.mark.parametrize("seeds", (5, 8))
def test_sign_flips_reject_a_null_as_often_as_they_say(seeds: int) -> None:
    """Of 2^seeds patterns 2k have a p of at most 2k/2^seeds: the test is exact at these levels."""
    p = one_delta(paired(seeds, 0.0, key=seeds))
    for patterns in (1, 3, 2 ** (seeds - 2)):
        level = 2 * patterns / 2**seeds
        assert is_rate(p <= level + 1e-9, level)
    assert p.min() == 2 / 2**seeds


def test_sign_flips_find_effects_nearly_as_often_as_the_t_test() -> None:
    differences = paired(8, 1.4 * DEVIATION, key=1)
    flips, t = (float((test(differences) <= ALPHA).mean()) for test in (one_delta, inference.t_test))
    assert t - 0.03 < flips < t


@pytest.mark.parametrize("seeds", SEEDS)
def test_equivalence_is_claimed_at_the_margin_in_five_percent(seeds: int) -> None:
    """Where one of the two tests is certain, the other decides: with a margin of many deviations the rate is exact."""
    wide = 10 * DEVIATION
    for effect in (wide, -wide):
        assert is_rate(inference.equivalence_test(paired(seeds, effect, key=seeds), wide) <= ALPHA, ALPHA)
    margin = 0.5
    for effect in (margin, -margin, 1.5 * margin):
        claimed, error = rate(inference.equivalence_test(paired(seeds, effect, key=seeds), margin) <= ALPHA)
        assert claimed <= ALPHA + error, effect


def test_equivalence_is_found_where_there_is_no_effect_and_little_noise() -> None:
    random = np.random.default_rng(0)
    differences = random.normal(0, 0.2, (STUDIES, 10))
    assert rate(inference.equivalence_test(differences, 0.5) <= ALPHA)[0] > 0.99


@pytest.mark.parametrize("seeds", (2, *SEEDS))
def test_the_smallest_detectable_effect_is_found_with_the_power_it_promises(seeds: int) -> None:
    effect = DEVIATION * inference.detectable_in_deviations(seeds)
    assert is_rate(inference.t_test(paired(seeds, effect, key=seeds)) <= ALPHA, POWER)


def verdicts(seeds: int, effect: float, deviation: float, margin: float) -> Array:
    """What is said of 800 simulated pairs."""
    random = np.random.default_rng(seeds)
    said = []
    for values in random.normal(effect, deviation, (800, seeds)).tolist():
        found = compare(values, margin)
        (p_value,) = inference.family_p_values([dict(enumerate(values))])
        said.append(inference.verdict(found, p_value, found.p_equivalence))
    return np.array(said)


@pytest.mark.parametrize("seeds", (3, 6, 7, 10))
def test_verdicts_of_nulls_claim_what_the_tests_allow(seeds: int) -> None:
    """With three seeds nothing is claimed; seven seeds are at the look of six."""
    said = verdicts(seeds, effect=0.0, deviation=1.0, margin=0.5)
    claims = np.char.startswith(said, "higher") | np.char.startswith(said, "lower")
    if seeds == 3:
        assert set(said) == {"too few seeds"}
    else:
        assert is_rate(claims, {6: 2 / 64, 7: 2 / 64, 10: 20 / 1024}[seeds])


@pytest.mark.parametrize("effect", [2.0, -2.0])
def test_verdicts_of_large_effects_name_their_direction(effect: float) -> None:
    assert set(verdicts(6, effect, deviation=0.2, margin=0.5)) == {"higher" if effect > 0 else "lower"}


@pytest.mark.parametrize("seeds", (6, 9))
def test_verdicts_of_equivalence_err_at_the_margin_as_often_as_the_look_allows(seeds: int) -> None:
    said = verdicts(seeds, effect=0.5, deviation=0.05, margin=0.5)
    assert is_rate(np.char.find(said, "equivalent") >= 0, inference.LOOKS[6 if seeds == 6 else 8])
    assert set(verdicts(seeds, effect=0.0, deviation=0.05, margin=0.5)) >= {"equivalent within 0.5"}
