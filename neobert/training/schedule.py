"""What happens at which step: learning rate, milestones, evaluations. Pure functions, without torch."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from neobert.recipe import FineTuning

MILESTONES = 4
NEWEST_KEPT = 2
"""The newest checkpoints of a run, which keep their optimizer state whether they are milestones or not."""


def milestones(steps: int) -> frozenset[int]:
    """The steps whose checkpoints stay: the start, the end and equal parts between."""
    return frozenset(steps * part // MILESTONES for part in range(MILESTONES + 1))


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    decay_steps: int,
    floor_fraction: float,
    shape: Literal["linear", "cosine", "sqrt"],
    stable_steps: int = 0,
) -> float:
    """The rate of update number `step`, counted from 1; the same rule for all training (paper §3.3).

    It rises linearly from 0 to `peak` at `warmup_steps`, stays there for `stable_steps`, falls to `floor_fraction` ×
    `peak` at `decay_steps`, and stays there. With `decay_steps` 0 there is no fall: the rate rises to the floor and
    stays (the paper's second stage). `sqrt` falls as 1 − √ of the way (Hägele et al. 2024).

    Raises:
        ValueError: `decay_steps` is neither 0 nor behind the rise and the stable steps.
    """
    if 0 < decay_steps <= warmup_steps + stable_steps:
        raise ValueError(f"decay_steps {decay_steps} must lie behind warmup_steps {warmup_steps} or be 0")
    floor = peak * floor_fraction
    if step < warmup_steps:
        return (peak if decay_steps else floor) * step / warmup_steps
    if step >= decay_steps:
        return floor
    begin = warmup_steps + stable_steps
    if step < begin:
        return peak
    return floor + (peak - floor) * SHARES_LEFT[shape]((step - begin) / (decay_steps - begin))


SHARES_LEFT: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - progress,
    "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    "sqrt": lambda progress: 1 - math.sqrt(progress),
}
"""Of the way from the peak to the floor, by the share of the steps between."""


@dataclass(frozen=True)
class FineTuningSchedule:
    """The numbers of a run that follow from protocol, examples and batch size."""

    steps: int
    evaluation_interval: int
    warmup_steps: int
    decay_steps: int
    floor_fraction: float

    @classmethod
    def of(cls, protocol: FineTuning, examples: int, batch_size: int) -> "FineTuningSchedule":
        """Fractions of a protocol count all updates."""
        steps_per_epoch = -(-examples // batch_size)
        steps = steps_per_epoch * protocol.epochs
        interval = min(protocol.evaluation_interval_steps, _share_of_epoch(protocol, examples, batch_size))
        warmup_steps = round(protocol.warmup_fraction * steps)
        decay_steps = max(warmup_steps + 1, round(protocol.decay_fraction * steps))
        return cls(steps, max(1, interval), warmup_steps, decay_steps, protocol.floor_fraction)

    def evaluates_after(self, step: int) -> bool:
        """At every interval and at the end."""
        return step % self.evaluation_interval == 0 or step == self.steps

    def learning_rate(self, step: int, peak: float) -> float:
        """The rate of update number `step`: up to `peak`, down a straight line, then the floor."""
        return learning_rate(
            step,
            peak=peak,
            warmup_steps=self.warmup_steps,
            decay_steps=self.decay_steps,
            floor_fraction=self.floor_fraction,
            shape="linear",
        )


def _share_of_epoch(protocol: FineTuning, examples: int, batch_size: int) -> int:
    """Updates between evaluations by the epoch's length.

    App. C divides an epoch's updates by ten. The released code divides its examples, counted in whole batches, and
    evaluates after each epoch where that is sooner: with ten or more examples in a batch it always is.
    """
    batches = -(-examples // batch_size)
    if protocol.epoch_counted_in == "steps":
        return batches // protocol.evaluations_per_epoch
    return min(examples // batch_size, batches * batch_size // protocol.evaluations_per_epoch)
