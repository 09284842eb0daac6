"""Readings, diagnoses and checks, on arms whose truth is known."""

import numpy as np
import pytest
from ablations.arm_seeds import (
    LATEST_SHARE,
    LEAST_SEEDS,
    SPREAD_LEVEL,
    ArmSeeds,
    check_spread,
    check_transition,
    diagnose,
)
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from reports.analysis.plateau import LEVEL, WAITING, timing_word

MARGIN = 0.05
NOISE = (-0.004, 0.003, 0.001, -0.002, 0.002, 0.0)
EARLY = (0.15, 0.16, 0.14, 0.15, 0.17, 0.16)


def arm(name: str, losses: tuple[float, ...], shares: tuple[float, ...] = EARLY) -> ArmSeeds:
    return ArmSeeds(name, dict(enumerate(losses)), dict(enumerate(shares)))


def around(mean: float, spread: float = 1.0) -> tuple[float, ...]:
    return tuple(mean + spread * each for each in NOISE)


CALM = arm("M4", around(5.2, 2))


def test_a_difference_that_equal_time_since_leaves_is_one_of_level() -> None:
    assert timing_word(around(0.4), around(0.2), around(40, 1000)) == LEVEL
    assert timing_word(around(-0.4), around(-0.2), around(0, 1000)) == LEVEL


def test_a_difference_that_equal_time_since_takes_away_is_one_of_waiting() -> None:
    assert timing_word(around(-0.2), around(0.001), around(-1000, 1000)) == WAITING
    assert timing_word(around(-0.2), around(0.1), around(-1000, 1000)) == WAITING, "it even turns around"


def test_without_waiting_noise_is_not_called_waiting() -> None:
    assert timing_word(around(-0.2), around(0.001), around(0, 1e5)) == ""


def test_one_seed_or_no_losses_tell_nothing() -> None:
    assert timing_word((0.4,), (0.4,), (300.0,)) == timing_word((), (), around(-1000)) == ""
    assert timing_word(around(0.4), (), around(-1000)) == ""


def test_an_arm_that_spreads_with_its_transition_gets_a_diagnosis_and_no_verdict() -> None:
    late = arm("M5", (5.1, 5.1, 5.3, 5.1, 5.35, 5.25), (0.2, 0.21, 0.28, 0.2, 0.3, 0.27))
    assert diagnose(late, MARGIN) == (
        "not measurable: the seeds of M5 differ by when they leave the plateau (r² = 0.99 with their loss, sd 0.114)"
    )


def test_an_arm_that_spreads_for_another_reason_is_not_said_to_wait() -> None:
    wild = arm("M5", (5.1, 5.3, 5.05, 5.35, 5.0, 5.2), (0.16, 0.15, 0.14, 0.15, 0.17, 0.16))
    assert diagnose(wild, MARGIN) == "" and check_spread(wild, CALM).fails


def test_the_first_seeds_of_an_arm_are_the_declared_ones_in_their_order() -> None:
    losses = {seed: 5.0 + seed / 10 for seed in (7, 5, 3, 1, 0)}
    own = ArmSeeds("M1", losses, dict.fromkeys((5, 3), 0.1))
    assert own.first(3, None) == ArmSeeds("M1", {0: 5.0, 1: 5.1, 3: 5.3}, {3: 0.1})
    assert own.first(3, (9, 7, 5, 3, 1)) == ArmSeeds("M1", {1: 5.1, 3: 5.3, 5: 5.5}, {3: 0.1, 5: 0.1})


def test_a_transition_that_decides_less_than_the_margin_is_no_reason() -> None:
    shares = tuple(0.15 + each for each in NOISE)
    assert ArmSeeds("M2", dict(enumerate(NOISE)), dict(enumerate(shares))).shared_variance == pytest.approx(1)
    assert diagnose(arm("M2", around(5.0, 5), shares), MARGIN) == ""
    assert diagnose(arm("M2", around(5.0, 60), shares), MARGIN).startswith("not measurable")


def test_a_few_seeds_may_spread_by_chance() -> None:
    ours, theirs = arm("M1", (5.0, 5.1, 5.2)), arm("M0", (5.0, 5.02, 5.04))
    check = check_spread(ours, theirs)
    assert check.number == pytest.approx(5) and check.holds and not check.fails
    assert stats.f.sf(25, 2, 2) > SPREAD_LEVEL and f"p = {stats.f.sf(25, 2, 2):.2g}" in check.words


@given(ratio=st.floats(0.1, 30), seeds=st.integers(3, 10))
def test_the_spread_fails_exactly_beyond_both_bounds(ratio: float, seeds: int) -> None:
    assume(abs(ratio - 3) > 1e-9)  # the ratio of the two sds is rounded
    noise = np.random.default_rng(seeds).normal(size=seeds)
    ours, theirs = (arm("M1", tuple(5 + factor * noise)) for factor in (0.01 * ratio, 0.01))
    check = check_spread(ours, theirs)
    assert check.number == pytest.approx(ratio)
    assert check.fails == (ratio > 3 and stats.f.sf(ratio**2, seeds - 1, seeds - 1) < SPREAD_LEVEL)


def test_what_is_not_known_does_not_fail() -> None:
    for check in (check_spread(arm("M1", (5.0, 5.1)), CALM), check_transition(ArmSeeds("M1", {}, {}))):
        assert check.number is None and not check.fails and "not known" in check.words
    assert arm("M1", NOISE[: LEAST_SEEDS - 1]).shared_variance is None


def test_a_late_transition_fails_with_number_and_bound() -> None:
    early, late = (
        check_transition(arm("M0", NOISE, shares)) for shares in (EARLY, (0.15, 0.16, 0.14, 0.15, 0.17, 1.0))
    )
    assert early.holds and early.number is not None and early.number < LATEST_SHARE
    assert late.fails and late.number == pytest.approx(np.percentile((0.15, 0.16, 0.14, 0.15, 0.17, 1.0), 95))
    assert late.words == "it leaves the plateau after 79% of the run (95th percentile of seeds; bound: ≤ 20%)"
