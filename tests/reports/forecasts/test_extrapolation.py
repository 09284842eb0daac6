"""Forecasts of simulated families whose truth is known: intervals that hold as often as they say, signs that beat the
smallest budget's, and distributions that add up."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.forecasts.extrapolation import COVERAGE, Measured, Outlook, extrapolate

Array = np.ndarray[Any, np.dtype[Any]]
DIFFERENCES, NEW_SEEDS = 10, 6
NOISE, SIZE = 0.03, 0.15  # nats: of a paired seed, and of differences at the smallest budget


@dataclass(frozen=True)
class World:
    """How differences move over octaves: `straight` is the share of their variance that goes on in a straight line,
    `movement` their standard deviation an octave; `is_even` gives all the same, else one in some moves far."""

    straight: float
    movement: float
    octaves: tuple[float, ...] = (-2.0, -1.0)
    seeds: int = 3
    is_even: bool = True

    def study(self, random: np.random.Generator) -> tuple[list[Measured], Array, Array]:
        """A family as measured at the budgets, what the larger one measures, and the signs at the smallest."""
        places = np.array([*self.octaves, 0.0]) - self.octaves[0]
        tails = np.ones(DIFFERENCES) if self.is_even else np.sqrt(4 / random.chisquare(4, DIFFERENCES))
        steps = random.normal(size=(DIFFERENCES, len(places) - 1)) * np.sqrt(np.diff(places))
        wandering = np.concatenate([np.zeros((DIFFERENCES, 1)), steps.cumsum(axis=1)], axis=1)
        line = random.normal(size=(DIFFERENCES, 1)) * places
        moved = np.sqrt(1 - self.straight) * wandering + np.sqrt(self.straight) * line
        truth = random.normal(0, SIZE, (DIFFERENCES, 1)) + self.movement * tails[:, None] * moved
        deviations = NOISE * np.exp(random.normal(0, 0.4, DIFFERENCES))
        seen = truth[:, :-1, None] + deviations[:, None, None] * random.normal(
            size=(DIFFERENCES, len(self.octaves), self.seeds)
        )
        family = [
            {at: dict(enumerate(own.tolist())) for at, own in zip(self.octaves, each, strict=True)} for each in seen
        ]
        outcome = truth[:, -1] + deviations / np.sqrt(NEW_SEEDS) * random.normal(size=DIFFERENCES)
        return family, outcome, seen[:, 0].mean(axis=1) > 0


@cache
def simulate(world: World, studies: int) -> tuple[float, float, float]:
    """Coverage of the 80 % interval, and the Brier scores of the sign and of the smallest budget's."""
    random = np.random.default_rng(0)
    inside, errors, naive = [], [], []
    tail = (1 - COVERAGE) / 2
    for _ in range(studies):
        family, outcomes, signs = world.study(random)
        for outlook, outcome in zip(extrapolate(family, NEW_SEEDS), outcomes.tolist(), strict=True):
            inside.append(tail <= outlook.share_below(outcome) <= 1 - tail)
            errors.append((outlook.probability_above_zero - (outcome > 0)) ** 2)
        naive.append((signs != (outcomes > 0)).mean())
    return float(np.mean(inside)), float(np.mean(errors)), float(np.mean(naive))


NOMINAL = (
    World(straight=0.0, movement=0.05, is_even=False),
    World(straight=0.5, movement=0.1),
)


@pytest.mark.parametrize("world", NOMINAL, ids=str)
@pytest.mark.parametrize(("studies", "tolerance"), [(150, 0.05), pytest.param(2000, 0.02, marks=pytest.mark.drill)])
def test_intervals_hold_as_often_as_they_say(world: World, studies: int, tolerance: float) -> None:
    """Simulated studies of ten differences, whose noise differs between them."""
    coverage, brier, naive = simulate(world, studies)
    assert abs(coverage - COVERAGE) <= tolerance
    assert brier < naive, "the sign is better told than by the smallest budget's"


@pytest.mark.drill
@pytest.mark.parametrize("world", [World(straight=1.0, movement=0.2), World(straight=0.0, movement=0.0)], ids=str)
def test_where_two_budgets_cannot_tell_intervals_hold_more_often(world: World) -> None:
    """Straight lines go on as far as they came, and a family that does not move might have."""
    coverage, brier, naive = simulate(world, 500)
    assert COVERAGE <= coverage <= 0.93 and brier < naive


@pytest.mark.drill
def test_three_budgets_tell_straight_lines_and_are_nearly_nominal() -> None:
    """That lines go on is learnt where they do; a family that wanders pays for it with two points."""
    wandering = simulate(World(straight=0.0, movement=0.1, octaves=(-3.0, -2.0, -1.0)), 300)
    line = simulate(World(straight=1.0, movement=0.1, octaves=(-3.0, -2.0, -1.0)), 300)
    assert abs(wandering[0] - COVERAGE) <= 0.04 and abs(line[0] - COVERAGE) <= 0.04
    assert line[1] < wandering[1] and line[1] < 0.1 * line[2]


@pytest.mark.parametrize("flipped", [False, True])
def test_a_sign_is_told_with_the_frequency_of_its_probability(flipped: bool) -> None:
    """Of differences that are higher with a probability of 0.6 to 0.8, seven of ten are; and so for lower ones."""
    random, hits = np.random.default_rng(1), []
    for _ in range(150):
        family, outcomes, _ = NOMINAL[0].study(random)
        for outlook, outcome in zip(extrapolate(family, NEW_SEEDS), outcomes.tolist(), strict=True):
            probability = outlook.probability_above_zero
            if 0.6 <= (1 - probability if flipped else probability) <= 0.8:
                hits.append((outcome > 0) != flipped)
    assert len(hits) > 50 and abs(np.mean(hits) - 0.7) < 0.1


DIFFERENCE = st.lists(st.floats(-2, 2).map(lambda value: round(value, 3)), min_size=2, max_size=4, unique=True)


@given(st.lists(st.tuples(DIFFERENCE, DIFFERENCE), min_size=1, max_size=4), st.integers(1, 10))
def test_the_opposite_differences_have_the_opposite_outlook(
    pairs: Sequence[tuple[list[float], ...]], seeds: int
) -> None:
    def of(sign: int) -> list[Outlook]:
        family = [
            {at: dict(enumerate(sign * v for v in own)) for at, own in zip((-2.0, -1.0), pair, strict=True)}
            for pair in pairs
        ]
        return extrapolate(family, seeds)

    for ours, theirs in zip(of(1), of(-1), strict=True):
        low, high = ours.interval
        assert theirs.interval == pytest.approx((-high, -low), abs=1e-6)
        assert ours.mean == pytest.approx(-theirs.mean, abs=1e-9)
        assert ours.probability_above_zero == pytest.approx(1 - theirs.probability_above_zero, abs=1e-9)
        assert ours.share_below(low) == pytest.approx(0.1, abs=1e-6)
        assert ours.share_below(high) == pytest.approx(0.9, abs=1e-6)


def family_of(*movements: float) -> list[Measured]:
    """Differences of 0.1 at a quarter that move by so much to a half, each with three seeds."""
    return [{-2.0: {0: 0.09, 1: 0.1, 2: 0.11}, -1.0: {s: 0.09 + s / 100 + m for s in range(3)}} for m in movements]


def width(outlook: Outlook) -> float:
    low, high = outlook.interval
    return high - low


def test_what_a_family_does_is_learnt_from_all_of_it() -> None:
    """A difference that did not move is less certain among others that did, and one that moved far widens the others'
    intervals less than its own."""
    quiet, moving = extrapolate(family_of(*[0.0] * 8), 6), extrapolate(family_of(0.0, *[0.2, -0.2] * 4), 6)
    assert width(moving[0]) > 2 * width(quiet[0])
    one = extrapolate(family_of(*[0.0] * 7, 1.0), 6)
    assert width(one[-1]) > 8 * width(one[0]) and one[-1].mean == pytest.approx(1.1, abs=0.1)


def test_more_seeds_and_nearer_budgets_narrow_the_interval() -> None:
    widths = [width(extrapolate(family_of(0.02, -0.01, 0.01), seeds)[0]) for seeds in (1, 3, 10)]
    assert widths == sorted(widths, reverse=True)
    far = [{2 * at - 1: own for at, own in each.items()} for each in family_of(0.2, -0.2, 0.1, -0.1)]
    near = family_of(0.2, -0.2, 0.1, -0.1)
    assert width(extrapolate(far, 6)[0]) > width(extrapolate(near, 6)[0])


def test_three_budgets_in_a_line_are_continued() -> None:
    """From two the last difference is expected again; a line through three goes on a part of its way."""
    lines = list(accumulate([0.1] * 3))
    family = [
        {
            at: {s: sign * value + s / 1000 for s in range(3)}
            for at, value in zip((-3.0, -2.0, -1.0), lines, strict=True)
        }
        for sign in (1, -1, 2, -2)
    ]
    assert 0.32 < extrapolate(family, 6)[0].mean < 0.42
    two = [{at: own for at, own in each.items() if at > -3} for each in family]
    assert extrapolate(two, 6)[0].mean == pytest.approx(0.3, abs=0.01)


def test_what_cannot_be_forecast_is_refused() -> None:
    with pytest.raises(ValueError, match="two smaller budgets at least"):
        extrapolate([{-1.0: {0: 0.1, 1: 0.2}}], 6)
    with pytest.raises(ValueError, match="two smaller budgets at least"):
        extrapolate([{-1.0: {0: 0.1, 1: 0.2}, 0.0: {0: 0.1}}], 6)
    with pytest.raises(ValueError, match="two seeds at least"):
        extrapolate([{-2.0: {0: 0.1}, -1.0: {0: 0.2}}], 6)


def test_the_noise_of_the_larger_runs_own_seeds_is_in_the_forecast() -> None:
    """Between one seed and very many, the variance of each component falls by that component's variance of a seed."""
    random = np.random.default_rng(0)
    family: list[Measured] = [
        {octaves: dict(enumerate(random.normal(0.1, 0.03, 40))) for octaves in (-2.0, -1.0)} for _ in range(4)
    ]
    for one, many in zip(extrapolate(family, 1), extrapolate(family, 10**9), strict=True):
        lost = one.deviations**2 - many.deviations**2
        nodes = np.unique(lost.round(10))
        assert len(nodes) == 5 and nodes.min() > 0
        assert 0.7 * 0.03**2 < np.median(nodes) < 1.4 * 0.03**2, "the noise of a seed"
    first, sixth = (extrapolate(family, seeds)[0].interval for seeds in (1, 6))
    assert first[1] - first[0] > 1.3 * (sixth[1] - sixth[0])


def test_the_noise_of_a_difference_is_drawn_towards_that_of_its_family() -> None:
    """Two seeds that agree by chance do not make a difference certain where all others are noisy."""
    noisy: list[Measured] = [{-2.0: {0: 0.0, 1: 0.1}, -1.0: {0: 0.1, 1: 0.0}} for _ in range(5)]
    quiet: Measured = {-2.0: {0: 0.05, 1: 0.0501}, -1.0: {0: 0.05, 1: 0.0501}}
    widths = [high - low for low, high in (each.interval for each in extrapolate([*noisy, quiet], 6))]
    assert widths[-1] > 0.5 * widths[0]
