"""The learning rate of a step: bounds, pieces, floor, continuity, and equality with torch's schedulers."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR
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


@given(schedules)
def test_no_jump_is_larger_than_the_steepest_slope(schedule):
    """Continuity: a cosine is at most π/2 times as steep as the straight line."""
    values, peak = rates(schedule), schedule["peak"]
    rise = 1 / max(1, schedule["warmup_steps"])
    fall = torch.pi / 2 / (schedule["decay_steps"] - schedule["warmup_steps"])
    limit = peak * max(rise if schedule["warmup_steps"] else 0, fall) * (1 + 1e-9)
    assert max(abs(after - before) for before, after in pairwise(values)) <= limit


@given(peak=st.floats(1e-6, 1), warmup=st.integers(0, 20), floor=st.floats(0, 1), shape=shapes)
def test_without_decay_steps_the_rate_is_the_floor_after_the_warm_up(peak, warmup, floor, shape):
    schedule = {"peak": peak, "warmup_steps": warmup, "decay_steps": 0, "floor_fraction": floor, "shape": shape}
    assert rates(schedule, 40)[warmup:] == [peak * floor] * (40 - warmup)
    assert rates(schedule, 40)[:warmup] == pytest.approx([peak * floor * step / warmup for step in range(warmup)])


def torch_rates(scheduler, optimizer, steps):
    """What a torch scheduler gives for steps 0 … steps - 1."""
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return values


@pytest.mark.parametrize("shape", ["linear", "cosine"])
def test_the_decay_equals_torchs_own_schedulers(shape):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    decay = (
        LinearLR(optimizer, start_factor=1.0, end_factor=0.1, total_iters=90)
        if shape == "linear"
        else CosineAnnealingLR(optimizer, T_max=90, eta_min=3e-5)
    )
    schedule = {"peak": 3e-4, "warmup_steps": 0, "decay_steps": 90, "floor_fraction": 0.1, "shape": shape}
    assert torch_rates(decay, optimizer, 91) == pytest.approx(rates(schedule, 91), rel=1e-6)


def test_the_warm_up_equals_torchs_linear_scheduler():
    """Apart from the start: the released code starts at 1e-4 of the peak, this one at 0."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=3e-4)
    warmup = LinearLR(optimizer, start_factor=1e-4, end_factor=1.0, total_iters=20)
    schedule = {"peak": 3e-4, "warmup_steps": 20, "decay_steps": 90, "floor_fraction": 0.1, "shape": "linear"}
    assert torch_rates(warmup, optimizer, 21) == pytest.approx(rates(schedule, 21), abs=1e-4 * 3e-4)


@pytest.mark.parametrize("decay", [5, 10])
def test_a_decay_that_ends_within_the_warm_up_is_refused(decay):
    with pytest.raises(ValueError, match="must lie behind warmup_steps 10"):
        learning_rate(1, peak=1.0, warmup_steps=10, decay_steps=decay, floor_fraction=0.1, shape="linear")


@pytest.mark.parametrize("shape", WSD_SHAPES)
def test_warm_up_stable_decay_is_transformers_schedule(shape):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=2e-3)
    theirs = get_wsd_schedule(optimizer, 10, 30, num_stable_steps=50, decay_type=WSD_SHAPES[shape], min_lr_ratio=0.0)
    ours = {"peak": 2e-3, "warmup_steps": 10, "stable_steps": 50, "decay_steps": 90, "floor_fraction": 0.0}
    for step in range(100):
        assert learning_rate(step, shape=shape, **ours) == pytest.approx(theirs.get_last_lr()[0], abs=1e-12), step
        optimizer.step()
        theirs.step()
