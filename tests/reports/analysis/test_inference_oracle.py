"""Sign flips and verdicts of single deltas, simulated where the truth is known: every rate within its own error.

Where a rate is exact in theory, it must be hit from both sides: a test that rejects too seldom is as wrong as one that
rejects too often. Intervals, t tests, TOST, Holm's correction and power are scipy's and statsmodels' own numbers
(`test_inference.py`).
"""

from typing import Any

import numpy as np
import pytest

from reports.analysis import inference
from reports.analysis.inference import ALPHA, EQUIVALENCE_LEVEL
from reports.analysis.verdicts import Candidate, judge

Array = np.ndarray[Any, np.dtype[Any]]
PAIRS = 200_000  # of single differences: an error of 0.2 points is four standard errors of a rate of 5 %


def is_rate(hits: Array, expected: float) -> bool:
    """Whether events happen as often as they should, within four standard errors of the simulation."""
    return abs(float(hits.mean()) - expected) <= 4 * float(np.sqrt(expected * (1 - expected) / len(hits)))


def paired(seeds: int, effect: float) -> Array:
    """Normal differences with an effect in standard deviations, (PAIRS, seeds)."""
    return np.asarray(np.random.default_rng(seeds).normal(effect, 1, (PAIRS, seeds)))


def one_delta(differences: Array) -> Array:
    """p of sign flips of differences (PAIRS, seeds), each a family by itself."""
    parts = np.array_split(differences[:, None], 20)  # 16 MB of patterns each
    return np.concatenate([inference.joint_sign_flips(part)[:, 0] for part in parts])


@pytest.mark.parametrize("seeds", (5, 8))
def test_sign_flips_reject_a_null_as_often_as_they_say(seeds: int) -> None:
    """Of 2^seeds patterns 2k have a p of at most 2k/2^seeds: the test is exact at these levels."""
    p = one_delta(paired(seeds, 0.0))
    for patterns in (1, 3, 2 ** (seeds - 2)):
        level = 2 * patterns / 2**seeds
        assert is_rate(p <= level + 1e-9, level)
    assert p.min() == 2 / 2**seeds


def test_sign_flips_find_effects_nearly_as_often_as_the_t_test() -> None:
    differences = paired(8, 1.4)
    flips, t = (float((test(differences) <= ALPHA).mean()) for test in (one_delta, inference.t_test))
    assert t - 0.03 < flips < t


def verdicts(seeds: int, effect: float, deviation: float, margin: float) -> Array:
    """What is said of 800 simulated pairs."""
    random = np.random.default_rng(seeds)
    said = []
    for values in random.normal(effect, deviation, (800, seeds)).tolist():
        ((found,),) = judge([[Candidate(dict(enumerate(values)), margin)]], with_detectable=False)
        said.append(found.words)
    return np.array(said)


@pytest.mark.parametrize(("seeds", "rate"), [(3, 0.0), (6, 2 / 64), (7, 2 / 64)])
def test_verdicts_of_nulls_claim_what_the_tests_allow(seeds: int, rate: float) -> None:
    """With three seeds nothing is claimed; seven seeds are at the look of six."""
    said = verdicts(seeds, effect=0.0, deviation=1.0, margin=0.5)
    assert is_rate(np.char.startswith(said, "higher") | np.char.startswith(said, "lower"), rate)


@pytest.mark.parametrize("effect", [2.0, -2.0])
def test_verdicts_of_large_effects_name_their_direction(effect: float) -> None:
    direction = "higher" if effect > 0 else "lower"
    assert set(verdicts(6, effect, deviation=0.2, margin=0.5)) == {f"{direction} (claimed at 6 seeds)"}


def test_verdicts_of_equivalence_err_at_the_margin_as_often_as_the_level_allows() -> None:
    said = verdicts(6, effect=0.5, deviation=0.05, margin=0.5)
    assert is_rate(np.char.find(said, "equivalent") >= 0, EQUIVALENCE_LEVEL)
    assert set(verdicts(6, effect=0.0, deviation=0.05, margin=0.5)) >= {"equivalent within 0.5 (claimed at 6 seeds)"}
