"""The statistics against simulated studies in which the truth is known: every promised rate within its own error."""

from typing import Any

import numpy as np
import pytest

from ablations.ladder import ladder
from reports import inference
from reports.inference import ALPHA, POWER, compare, detectable_in_deviations, holm, verdict

pytestmark = pytest.mark.usefixtures("papers_ladder")

Array = np.ndarray[Any, np.dtype[Any]]
STUDIES = 20_000
SEEDS = (3, 5, 10)
SEED_NOISE, SHARED_NOISE = 0.4, 0.7  # points: of a variant by itself, and of a seed in all variants alike


def rate(hits: Array) -> tuple[float, float]:
    """A share and three standard errors of it."""
    share = float(hits.mean())
    return share, 3 * float(np.sqrt(max(share * (1 - share), 1e-4) / len(hits)))


def arms(seeds: int, effects: Array, key: int) -> Array:
    """Scores of simulated studies, (studies, arms, seeds): an effect an arm, noise of each run and of each seed."""
    random = np.random.default_rng(key)
    own = random.normal(0, SEED_NOISE, (STUDIES, len(effects), seeds))
    return effects[:, None] + own + random.normal(0, SHARED_NOISE, (STUDIES, 1, seeds))


def ladder_deltas(scores: Array) -> Array:
    """Each variant less its parent in the paper's tree, (studies, ten deltas, seeds)."""
    names = list(ladder())
    parents = [names.index(variant.parent.name) for variant in ladder().values() if variant.parent]
    return scores[:, 1:] - scores[:, parents]


@pytest.mark.parametrize("seeds", SEEDS)
@pytest.mark.parametrize("effect", [0.0, 0.8])
def test_the_interval_covers_the_true_effect_as_often_as_it_says(seeds: int, effect: float) -> None:
    scores = arms(seeds, np.array([50.0, 50.0 + effect]), key=seeds)
    low, high = inference.t_interval(scores[:, 1] - scores[:, 0])
    covered, _ = rate((low <= effect) & (effect <= high))
    assert 0.93 <= covered <= 0.97


@pytest.mark.parametrize("seeds", SEEDS)
def test_family_wise_error_over_a_ladder_of_ten_nulls_is_at_most_five_percent(seeds: int) -> None:
    deltas = ladder_deltas(arms(seeds, np.full(11, 50.0), key=seeds))
    wrong, error = rate((holm(inference.t_test(deltas)) <= ALPHA).any(axis=1))
    assert wrong <= ALPHA + error
    uncorrected, error = rate((inference.t_test(deltas) <= ALPHA).any(axis=1))
    assert uncorrected > 0.2, "without the correction the same ladder claims something every fourth time"


@pytest.mark.parametrize("seeds", SEEDS)
def test_family_wise_error_holds_beside_true_effects(seeds: int) -> None:
    """Steps that are real must not open the door for those that are not."""
    names, steps = list(ladder()), np.array([0, 2, 3, 0, 0, 0, 0, 2, 0, 1, 0], dtype=float)
    levels = dict.fromkeys(names, 50.0)
    for name, step in zip(names[1:], steps[1:], strict=True):
        parent = ladder()[name].parent
        assert parent is not None
        levels[name] = levels[parent.name] + step
    deltas = ladder_deltas(arms(seeds, np.array([levels[name] for name in names]), key=seeds))
    claimed = holm(inference.t_test(deltas)) <= ALPHA
    wrong, error = rate(claimed[:, steps[1:] == 0].any(axis=1))
    assert wrong <= ALPHA + error


@pytest.mark.parametrize("seeds", SEEDS)
def test_sign_flips_reject_a_null_at_most_as_often_as_they_say(seeds: int) -> None:
    scores = arms(seeds, np.array([50.0, 50.0]), key=seeds)
    p = inference.sign_flip_test(scores[:, 1] - scores[:, 0])
    rejected, error = rate(p <= ALPHA)
    assert rejected <= ALPHA + error
    if seeds < inference.SEEDS_FOR_A_CLAIM:
        assert rejected == 0 and p.min() == 2 / 2**seeds > ALPHA


@pytest.mark.parametrize("seeds", SEEDS)
def test_equivalence_is_claimed_at_the_margin_in_at_most_five_percent(seeds: int) -> None:
    margin = 0.5
    for effect in (margin, -margin, 1.5 * margin):
        scores = arms(seeds, np.array([50.0, 50.0 + effect]), key=seeds)
        claimed, error = rate(inference.equivalence_test(scores[:, 1] - scores[:, 0], margin) <= ALPHA)
        assert claimed <= ALPHA + error, effect


def test_equivalence_is_found_where_there_is_no_effect_and_little_noise() -> None:
    random = np.random.default_rng(0)
    differences = random.normal(0, 0.2, (STUDIES, 10))
    assert rate(inference.equivalence_test(differences, 0.5) <= ALPHA)[0] > 0.99


@pytest.mark.parametrize("seeds", (2, *SEEDS))
def test_the_smallest_detectable_effect_is_found_with_the_power_it_promises(seeds: int) -> None:
    deviation = SEED_NOISE * np.sqrt(2)
    effect = deviation * detectable_in_deviations(seeds)
    scores = arms(seeds, np.array([50.0, 50.0 + effect]), key=seeds)
    found, error = rate(inference.t_test(scores[:, 1] - scores[:, 0]) <= ALPHA)
    assert abs(found - POWER) <= error


@pytest.mark.parametrize("seeds", (3, 6))
def test_verdicts_claim_what_the_tests_allow(seeds: int) -> None:
    """Of simulated nulls at most five percent are called higher or lower; with three seeds none ever is."""
    random = np.random.default_rng(seeds)
    differences = random.normal(0, 1, (800, seeds))
    said = []
    for values in differences.tolist():
        found = compare(values, margin=0.5)
        said.append(verdict(found, found.p_t, found.p_equivalence))
    claims = np.array([words.startswith(("higher", "lower")) for words in said])
    wrong, error = rate(claims)
    assert wrong <= ALPHA + error
    if seeds < inference.SEEDS_FOR_A_CLAIM:
        assert wrong == 0 and set(said) <= {
            "within noise",
            "too few seeds (t test: higher)",
            "too few seeds (t test: lower)",
        }
