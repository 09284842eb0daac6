"""Learning rates, milestones and evaluations by step: pure functions, without torch."""

import math
from dataclasses import dataclass

from neobert.own_code import Parts
from neobert.recipe import Contrastive, FineTuning, Optimization, Settings, Stage

MILESTONES = 4
NEWEST_KEPT = 2
"""Number of a run's newest checkpoints that keep their optimizer state, whether they are milestones or not."""


def milestones(steps: int) -> frozenset[int]:
    """Return the steps whose checkpoints are kept: the start, the end and equal parts between."""
    return frozenset(steps * part // MILESTONES for part in range(MILESTONES + 1))


def learning_rate(
    step: int,
    *,
    peak: float,
    warmup_steps: int,
    decay_steps: int,
    floor_fraction: float,
    shape: str,
    stable_steps: int = 0,
    settings: Settings | None = None,
) -> float:
    """Return the learning rate of update number `step`, counted from 1; the same rule for all training (paper §3.3).

    It rises linearly from 0 to `peak` at `warmup_steps`, stays there for `stable_steps`, decays to `floor_fraction` ×
    `peak` at `decay_steps`, and stays there. With `decay_steps` 0 there is no decay: the rate rises to the floor and
    stays (the paper's second stage). `sqrt` decays as 1 − √progress (Hägele et al. 2024). An own `shape` may rise again
    or leave the range: it is the learning rate as a share, 1 at the peak and 0 at the floor. `settings` are its own.
    """
    assert decay_steps == 0 or decay_steps > warmup_steps + stable_steps, "recipes refuse this"
    floor = peak * floor_fraction
    if step < warmup_steps:
        return (peak if decay_steps else floor) * step / warmup_steps
    if step >= decay_steps:
        return floor
    begin = warmup_steps + stable_steps
    if step < begin:
        return peak
    progress = (step - begin) / (decay_steps - begin)
    return floor + (peak - floor) * SHARES_LEFT.make(shape, progress, settings=settings or {}, field="decay")


def scheduled_rate(step: int, optimization: Optimization, stage: Stage | Contrastive) -> float:
    """Return the learning rate of update number `step` of a stage, counted from 1."""
    return learning_rate(
        step,
        peak=optimization.peak_learning_rate,
        warmup_steps=stage.warmup_steps,
        decay_steps=stage.decay_steps,
        stable_steps=stage.stable_steps,
        floor_fraction=optimization.floor_fraction,
        shape=optimization.decay,
        settings=optimization.settings,
    )


SHARES_LEFT = Parts[float](
    "decay",
    "the share of its steps that is done",
    {
        "linear": lambda progress: 1 - progress,
        "cosine": lambda progress: (1 + math.cos(math.pi * progress)) / 2,
        "sqrt": lambda progress: 1 - math.sqrt(progress),
    },
)
"""Remaining share of the decay from peak to floor, as a function of the share of decay steps done."""


@dataclass(frozen=True)
class FineTuningSchedule:
    """Schedule of a fine-tuning run, derived from protocol, number of examples and batch size."""

    steps: int
    evaluation_interval: int
    warmup_steps: int
    decay_steps: int
    floor_fraction: float

    @classmethod
    def of(cls, protocol: FineTuning, examples: int, batch_size: int) -> "FineTuningSchedule":
        """Derive the schedule; the protocol's fractions are of all updates."""
        steps_per_epoch = -(-examples // batch_size)
        steps = steps_per_epoch * protocol.epochs
        interval = min(protocol.evaluation_interval_steps, _share_of_epoch(protocol, examples, batch_size))
        warmup_steps = round(protocol.warmup_fraction * steps)
        decay_steps = max(warmup_steps + 1, round(protocol.decay_fraction * steps))
        return cls(steps, max(1, interval), warmup_steps, decay_steps, protocol.floor_fraction)

    def evaluates_after(self, step: int) -> bool:
        """Whether to evaluate after `step`: at every interval and at the end."""
        return step % self.evaluation_interval == 0 or step == self.steps

    def learning_rate(self, step: int, peak: float) -> float:
        """Return the rate of update number `step`: warm-up to `peak`, linear decay, then the floor."""
        return learning_rate(
            step,
            peak=peak,
            warmup_steps=self.warmup_steps,
            decay_steps=self.decay_steps,
            floor_fraction=self.floor_fraction,
            shape="linear",
        )


def _share_of_epoch(protocol: FineTuning, examples: int, batch_size: int) -> int:
    """Return the updates between evaluations that follow from the epoch's length.

    App. C divides an epoch's updates by ten. The released code divides its examples, counted in whole batches, and
    evaluates after each epoch if that is sooner, which it always is with ten or more examples per batch.
    """
    batches = -(-examples // batch_size)
    if protocol.epoch_counted_in == "steps":
        return batches // protocol.evaluations_per_epoch
    return min(examples // batch_size, batches * batch_size // protocol.evaluations_per_epoch)
