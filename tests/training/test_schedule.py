"""The learning rate of a step: bounds, pieces, floor, continuity, and equality with transformers' schedule."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_wsd_schedule

from neobert.training.schedule import learning_rate

shapes = st.sampled_from(["linear", "cosine"])
WSD_SHAPES = {"linear": "linear", "cosine": "cosine", "sqrt": "1-sqrt"}
schedules = st.fixed_dictionaries(
    {
        "peak": st.floats(1e-6, 1.0),
        "warmup_steps": st.integers(0, 50),
        "decay_steps": st.integers(51, 200),
        "floor_fraction": st.floats(0, 1),
        "shape": shapes,
    }
)


def rates(schedule, steps=260):
    """The rates of steps 0 … steps - 1."""
    return [learning_rate(step, **schedule) for step in range(steps)]


@given(schedules)
def test_the_rate_rises_to_the_peak_falls_to_the_floor_and_stays(schedule):
    values, peak, warmup, decay = rates(schedule), schedule["peak"], schedule["warmup_steps"], schedule["decay_steps"]
    floor = peak * schedule["floor_fraction"]
    tiny = 1e-12 * peak
    assert values[warmup] == pytest.approx(peak)
    assert all(after >= before - tiny for before, after in pairwise(values[: warmup + 1]))
    assert all(after <= before + tiny for before, after in pairwise(values[warmup:]))
    assert values[decay:] == [floor] * len(values[decay:])
    assert all(-tiny <= value <= peak + tiny for value in values)
    assert all(value >= floor - tiny for value in values[warmup:])


@given(peak=st.floats(1e-6, 1), warmup=st.integers(0, 20), floor=st.floats(0, 1), shape=shapes)
def test_without_decay_steps_the_rate_is_the_floor_after_the_warm_up(peak, warmup, floor, shape):
    schedule = {"peak": peak, "warmup_steps": warmup, "decay_steps": 0, "floor_fraction": floor, "shape": shape}
    assert rates(schedule, 40)[warmup:] == [peak * floor] * (40 - warmup)
    assert rates(schedule, 40)[:warmup] == pytest.approx([peak * floor * step / warmup for step in range(warmup)])


@pytest.mark.parametrize(("warmup", "floor"), [(10, 0.0), (0, 0.1)])
@pytest.mark.parametrize("shape", WSD_SHAPES)
def test_warm_up_stable_decay_is_transformers_schedule(shape, warmup, floor):
    """Whose warm-up begins at its floor."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2e-3)
    told = {"num_stable_steps": 50, "decay_type": WSD_SHAPES[shape], "min_lr_ratio": floor}
    theirs = get_wsd_schedule(optimizer, warmup, 30, **told)
    ours = {"peak": 2e-3, "warmup_steps": warmup, "stable_steps": 50, "decay_steps": warmup + 80, "shape": shape}
    for rate in rates({**ours, "floor_fraction": floor}, 100):
        assert rate == pytest.approx(theirs.get_last_lr()[0], abs=1e-12)
        optimizer.step()
        theirs.step()
