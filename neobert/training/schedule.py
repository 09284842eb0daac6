"""The learning rate as a pure function of the step, the same for pre-training and fine-tuning (paper §3.3)."""

import math
from typing import Literal


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    decay_steps: int,
    floor_fraction: float,
    shape: Literal["linear", "cosine"],
) -> float:
    """The rate of update number `step`, counted from 1 (0 is where the schedule starts from).

    It rises linearly from 0 to `peak` at `warmup_steps`, falls to `floor_fraction` × `peak` at `decay_steps`, and stays
    there. With `decay_steps` 0 there is no fall: the rate rises to the floor and stays (the paper's second stage).

    Raises:
        ValueError: `decay_steps` is neither 0 nor behind `warmup_steps`.
    """
    if 0 < decay_steps <= warmup_steps:
        raise ValueError(f"decay_steps {decay_steps} must lie behind warmup_steps {warmup_steps} or be 0")
    floor = peak * floor_fraction
    if step < warmup_steps:
        return (peak if decay_steps else floor) * step / warmup_steps
    if step >= decay_steps:
        return floor
    progress = (step - warmup_steps) / (decay_steps - warmup_steps)
    share_left = 1 - progress if shape == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return floor + (peak - floor) * share_left
