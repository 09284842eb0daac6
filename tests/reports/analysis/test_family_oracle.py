"""Whole studies simulated where the truth is known: what a family of deltas claims over all looks, for every noise.

Neighbouring deltas share an arm, as in the paper's tree; every arm has noise of its own and of the seed. Rates are held
within one point of what is declared, over 2,000 studies.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from ablations.ladders import ladder
from reports.analysis import inference
from reports.analysis.inference import LOOKS
from reports.analysis.verdicts import Candidate, judge

pytestmark = pytest.mark.usefixtures("papers_ladder")

Array = np.ndarray[Any, np.dtype[Any]]
Noise = Callable[[np.random.Generator, tuple[int, ...]], Array]
STUDIES = 2000
POINT = 0.01
WILD = (1, 0.2, 0.1, 0.7, 3, 0.5, 0.1, 0.3, 0.5, 0.2, 0.4)  # spreads as unequal as those that were recorded

NOISE: Mapping[str, Noise] = {
    "normal": lambda random, shape: random.normal(size=shape),
    "t3": lambda random, shape: random.standard_t(3, size=shape),
    "outlier": lambda random, shape: random.normal(size=shape) * np.where(random.random(shape) < 0.05, 10, 1),
    "log-normal": lambda random, shape: random.lognormal(size=shape),
    "bimodal": lambda random, shape: np.where(random.random(shape) < 0.5, 1, -1) + random.normal(0, 0.1, shape),
    "unequal": lambda random, shape: random.normal(size=shape) * np.array(WILD)[:, None],
}
NULL = dict.fromkeys((f"M{number}" for number in range(1, 11)), 0.0)


def arms(noise: str, steps: Mapping[str, float], key: int, studies: int = STUDIES) -> Array:
    """Values of simulated studies, (studies, 11 arms, 10 seeds); a step is what an arm differs from its parent by."""
    random = np.random.default_rng(key)
    levels = {"M0": 0.0}
    for name, variant in ladder().items():
        if variant.parent is not None:
            levels[name] = levels[variant.parent.name] + steps[name]
    shape = (studies, len(levels), max(LOOKS))
    shared = random.normal(0, 2, (studies, 1, shape[2]))
    return NOISE[noise](random, shape) + np.array(list(levels.values()))[:, None] + shared


def deltas(values: Array) -> Array:
    """Each variant less its parent, (studies, ten deltas, seeds)."""
    names = list(ladder())
    parents = [names.index(variant.parent.name) for variant in ladder().values() if variant.parent]
    return np.asarray(values[:, 1:] - values[:, parents])


def p_values(differences: Array) -> Array:
    """(studies, deltas); in parts, for there are 512 patterns."""
    return np.concatenate([inference.joint_sign_flips(part) for part in np.array_split(differences, 20)])


def claims(differences: Array) -> dict[int, Array]:
    """What is claimed at each look, (studies, deltas)."""
    return {look: p_values(differences[..., :look]) <= level for look, level in LOOKS.items()}


def by_holm(differences: Array) -> Array:
    """What t tests with Holm's correction claim at 5 %: what was used before."""
    return inference.holm(inference.t_test(differences)) <= inference.ALPHA


@pytest.mark.parametrize("noise", NOISE)
def test_a_ladder_of_nulls_claims_something_in_five_percent_of_studies_over_all_looks(noise: str) -> None:
    claimed = claims(deltas(arms(noise, NULL, key=1)))
    wrong = np.any([each.any(axis=1) for each in claimed.values()], axis=0).mean()
    assert wrong <= 0.05 + POINT
    assert wrong >= 0.05 - POINT or noise == "log-normal"
    for look, each in claimed.items():
        assert each.any(axis=1).mean() <= LOOKS[look] + POINT, look


@pytest.mark.parametrize("noise", NOISE)
def test_true_effects_open_no_door_for_nulls(noise: str) -> None:
    """Effects of two to forty deviations beside six nulls."""
    steps = NULL | {"M1": 40.0, "M2": 3.0, "M6": 4.0, "M9": 2.0}
    claimed = claims(deltas(arms(noise, steps, key=2)))
    nulls = [place for place, step in enumerate(steps.values()) if not step]
    assert np.any([each[:, nulls].any(axis=1) for each in claimed.values()], axis=0).mean() <= 0.05 + POINT


@pytest.mark.parametrize("noise", ["normal", "unequal", "bimodal"])
def test_parts_behind_a_true_step_are_no_door_for_nulls(noise: str) -> None:
    """M1 differs, and six parts of it do not; nor does any other step. 6,000 studies."""
    wholes, wrong = [*[None] * len(NULL), *[0] * 6], []
    for key in (21, 22, 23):
        values = arms(noise, NULL | {"M1": 40.0}, key)
        shared = np.random.default_rng(key).normal(0, 2, (STUDIES, 1, max(LOOKS)))
        parts = NOISE[noise](np.random.default_rng(100 + key), values.shape)[:, 1:7] + shared - values[:, :1]
        claimed = [
            np.concatenate(
                [
                    inference.stepwise_p_values(
                        inference.flip_statistics(own, inference.pooled_variance(own[:, : len(NULL)]))[:, :, None],
                        wholes,
                    )[..., 0]
                    for own in np.array_split(np.concatenate([deltas(values), parts], axis=1)[..., :look], 20)
                ]
            )
            <= level
            for look, level in LOOKS.items()
        ]
        wrong.append(np.any([each[:, 1:].any(axis=1) for each in claimed], axis=0).mean())
    assert np.mean(wrong) <= 0.05 + POINT


@pytest.mark.parametrize(("look", "gain"), [(6, 0.1), (8, -0.01), (10, -0.01)])
def test_effects_are_found_more_often_than_by_t_tests_with_holm(look: int, gain: float) -> None:
    """At six seeds by far, although the levels of the looks add up to the 5 % that Holm's test spends on one."""
    steps = NULL | {"M5": 3.0, "M8": 3.0}
    differences = deltas(arms("normal", steps, key=3))[..., :look]
    found, before = p_values(differences) <= LOOKS[look], by_holm(differences)
    assert found[:, [4, 7]].mean() >= before[:, [4, 7]].mean() + gain


def test_a_t_test_at_four_seeds_breaks_where_noise_has_two_modes() -> None:
    """Why there is no look at four seeds: exact tests cannot reach their level there, and this one misses it."""
    first = deltas(arms("bimodal", NULL, key=5))[..., :4]
    assert (inference.holm(inference.t_test(first)) <= 0.01).any(axis=1).mean() > 0.05
    assert p_values(first).min() == 1 / 8


def test_equal_patterns_for_all_deltas_keep_their_correlation() -> None:
    """Ten copies of one delta are one test: nothing is lost to the correction."""
    one = deltas(arms("normal", NULL, key=6, studies=200))[:, :1, :8]
    copies = np.repeat(one, 10, axis=1)
    assert inference.joint_sign_flips(copies) == pytest.approx(np.repeat(inference.joint_sign_flips(one), 10, axis=1))


def collapsing(probability: float, key: int) -> tuple[Array, Array]:
    """Arms whose M4 sometimes loses a seed, (500, 11, 10), and where it did, (500, 10)."""
    values = arms("normal", NULL, key, studies=500)
    collapses = np.random.default_rng([key, 1]).random((len(values), values.shape[2])) < probability
    values[:, 4] += 10 * collapses
    return values, collapses


def named_arms(study: Array, look: int) -> dict[str, dict[int, float]]:
    """The arms of one study at a look, (11, seeds), as reports have them."""
    return {name: dict(enumerate(arm)) for name, arm in zip(ladder(), study[:, :look].tolist(), strict=True)}


def claimed_of(study: Array, look: int) -> tuple[list[bool], dict[str, tuple[int, ...]]]:
    """What is claimed of one study at a look, as reports do it: (11, seeds)."""
    named = named_arms(study, look)
    collapsed = inference.collapsed_seeds(named)
    steps = []
    for name, parent in ((name, variant.parent.name) for name, variant in ladder().items() if variant.parent):
        differences = {seed: named[name][seed] - named[parent][seed] for seed in named[name]}
        far = {*collapsed.get(name, ()), *collapsed.get(parent, ())}
        steps.append([Candidate(differences, margin=0.1, collapsed={look: far})])
    return [bool(own.claimed[0]) for (own,) in judge(steps, {look: LOOKS[look]}, with_detectable=False)], collapsed


@pytest.mark.parametrize("look", LOOKS)
def test_an_arm_whose_seeds_sometimes_collapse_is_no_effect(look: int) -> None:
    """Its typical seed is as good as its parent's: collapses are named, and hardly ever carry a claim."""
    values, collapses = collapsing(0.15, key=7)
    wrong, named = [], []
    for study, where in zip(values, collapses[:, :look], strict=True):
        claimed, collapsed = claimed_of(study, look)
        wrong.append(any(claimed))
        if where.sum() == 1:
            named.append(collapsed.get("M4") == tuple(np.flatnonzero(where)))
    assert np.mean(wrong) <= 0.05 + POINT
    assert np.mean(named) > 0.8


@pytest.mark.parametrize("look", LOOKS)
def test_sound_arms_have_no_collapse(look: int) -> None:
    values, _ = collapsing(0.0, key=8)
    assert np.mean([bool(inference.collapsed_seeds(named_arms(study, look))) for study in values]) <= 0.05
