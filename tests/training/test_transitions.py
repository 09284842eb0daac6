"""Transitions of curves whose truth is known: shifted, interpolated, never reached, and left before measuring began."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from neobert.kinds.pretraining import CurvePoint, Transition
from neobert.training.transitions import (
    FIRST_SHARE,
    MARGIN_NATS,
    POINTS,
    crossing,
    curve_steps,
    find_transition,
)

FREQUENCIES = 6.5
TOKENS_PER_STEP = 900
NEVER = 1e9


def loss_at(step: float, leaves: float, slope: float = 1.5) -> float:
    """Frequencies are learned within 100 steps; from `leaves` on the loss falls by `slope` nats per log step."""
    return FREQUENCIES + 2 * max(0.0, math.log(100 / step)) - slope * max(0.0, math.log(step / leaves))


def curve_of(leaves: float, steps: int = 6000, slope: float = 1.5) -> list[CurvePoint]:
    return [
        CurvePoint(step=step, tokens=step * TOKENS_PER_STEP, loss=max(0.0, loss_at(step, leaves, slope)))
        for step in sorted(curve_steps(steps))
    ]


@given(steps=st.integers(1, 2_000_000))
def test_measurements_are_few_and_in_equal_ratios_and_the_last_step_is_one(steps: int) -> None:
    measured = sorted(curve_steps(steps))
    assert measured[-1] == steps and 1 <= measured[0] <= max(1, steps / FIRST_SHARE + 0.5)
    assert len(measured) <= POINTS and measured == sorted(set(measured))
    ratio = FIRST_SHARE ** (1 / (POINTS - 1))
    assert all(after - 0.5 <= (before + 0.5) * ratio for before, after in pairwise(measured)), "but for rounding"


def test_a_long_stage_has_all_measurements() -> None:
    assert len(curve_steps(6000)) == len(curve_steps(1_000_000)) == POINTS


@given(leaves=st.floats(200, 3000), slope=st.floats(0.5, 3))
def test_the_crossing_of_a_straight_line_in_log_tokens_is_exact(leaves: float, slope: float) -> None:
    """But in the interval in which the line begins, where the loss is not straight."""
    found = find_transition(curve_of(leaves, slope=slope), FREQUENCIES)
    truth = leaves * math.exp(MARGIN_NATS / slope)
    if truth > 5500:
        return
    assert found.tokens is not None and found.step is not None and found.reason is None
    assert found.tokens == pytest.approx(found.step * TOKENS_PER_STEP, rel=1e-9)
    ratio = FIRST_SHARE ** (1 / (POINTS - 1))
    if truth > leaves * ratio * 1.01:
        assert found.step == pytest.approx(truth, rel=1e-6)
    assert truth / ratio < found.step < truth * ratio


def test_the_steepest_descent_is_that_from_the_plateau_and_not_that_to_it() -> None:
    """The loss falls faster in the first 100 steps than ever again."""
    found = find_transition(curve_of(1000, slope=1.0), FREQUENCIES)
    assert found.steepest_step is not None and found.steepest_step > 1000
    assert find_transition(curve_of(NEVER), FREQUENCIES).steepest_step is None


def test_a_transition_that_is_not_there_has_a_reason() -> None:
    never = find_transition(curve_of(NEVER), FREQUENCIES)
    assert (never.tokens, never.step) == (None, None)
    assert never.reason == "the loss never falls below 6.000 nats"
    assert len(never.curve) == POINTS
    before = find_transition([CurvePoint(step=6, tokens=100, loss=3.0)], FREQUENCIES)
    assert before.tokens is None
    assert before.reason == "the loss is below 6.000 nats at the first measurement, after step 6"
    assert find_transition([], FREQUENCIES).reason == "the loss never falls below 6.000 nats"
    with pytest.raises(ValidationError, match="tokens and a step, or else a reason"):
        Transition.read(never.model_dump() | {"reason": None})
    with pytest.raises(ValidationError, match="tokens and a step, or else a reason"):
        Transition.read(never.model_dump() | {"tokens": 1.0, "step": 1.0})


def test_the_first_crossing_counts() -> None:
    points = [(0.0, 7.0), (1.0, 5.0), (2.0, 7.0), (3.0, 4.0)]
    assert crossing(points, 6.0) == 0.5
    assert crossing(points, 8.0) == 0.0 and crossing(points, 4.0) is None
