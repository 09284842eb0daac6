"""The training loop: a generator of steps, the same for every objective; logging and saving are the caller's."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from neobert.errors import RunFailed
from neobert.stopping import StopRequest
from neobert.training.engine import Engine

MicroBatch = TypeVar("MicroBatch")


@dataclass(frozen=True)
class StepBatches(Generic[MicroBatch]):
    """A process's share of one optimizer step; `real_tokens` counts the step over all processes."""

    micro_batches: Sequence[MicroBatch]
    real_tokens: int


@dataclass(frozen=True)
class Step:
    """One finished update. `number` counts from 1; `real_tokens` leaves padding out.

    `stop` is whether all processes have agreed to end after this step.
    """

    number: int
    loss: float
    learning_rate: float
    gradient_norm: float
    real_tokens: int
    seconds: float
    stop: bool = False


def seed_step(seed: int, step: int, process: int) -> None:
    """Dropout's randomness is a pure function of seed, step and process, so no generator state needs saving."""
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + process)


def training_steps(
    engine: Engine[MicroBatch],
    data: Iterator[StepBatches[MicroBatch]],
    learning_rate: Callable[[int], float],
    *,
    first: int,
    last: int,
    seed: int,
    process: int = 0,
    stop: StopRequest | None = None,
) -> Iterator[Step]:
    """Updates number `first` to `last` (inclusive).

    A `stop` requested in any process is agreed on within a step; ending there, after saving, is the caller's.

    Raises:
        RunFailed: a loss or gradient is not finite; names step and module, the weights are those of the step before.
    """
    engine.model.train()
    for number in range(first, last + 1):
        started = time.perf_counter()
        batches = next(data)
        seed_step(seed, number, process)
        rate = learning_rate(number)
        try:
            update = engine.step(batches.micro_batches, rate, stop=stop is not None and stop.requested)
        except RunFailed as error:
            raise RunFailed(f"step {number}: {error}") from error
        seconds = time.perf_counter() - started
        yield Step(number, update.loss, rate, update.gradient_norm, batches.real_tokens, seconds, update.stop)
