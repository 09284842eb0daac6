"""The training loop: a generator of steps for every objective; the caller logs and saves."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch

from neobert.errors import RunFailed
from neobert.processes import StopRequest
from neobert.training.engine import Engine, StepMetrics, Update

MicroBatch = TypeVar("MicroBatch")


@dataclass(frozen=True)
class StepBatches(Generic[MicroBatch]):
    """A process's share of one optimizer step.

    `real_tokens`, `slots` (including those without a token) and `attended_tokens` (tokens that the real ones attend
    to, summed) count the step over all processes; `state` is the data's state after it.
    """

    micro_batches: Sequence[MicroBatch]
    real_tokens: int
    slots: int
    attended_tokens: int
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One update. `number` counts from 1; `seconds` is the time of its loop iteration.

    `stop` is whether all processes have agreed to end after this step.
    """

    number: int
    learning_rate: float
    real_tokens: int
    slots: int
    attended_tokens: int
    data: Mapping[str, Any]
    seconds: float
    stop: bool
    update: Update

    def measured(self) -> StepMetrics:
        """Return loss and gradient norm; waits for the device to compute them.

        Raises:
            RunFailed: one of them is not finite; the weights are those of the step before.
        """
        try:
            return self.update.measured()
        except RunFailed as error:
            raise RunFailed(f"step {self.number}: {error}") from error


def seed_step(seed: int, step: int, process: int) -> None:
    """Seed dropout as a pure function of seed, step and process, so that no generator state needs saving."""
    torch.manual_seed(((seed * 1_000_003 + step) * 1_009 + process) % 2**64)


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
    """Yield updates number `first` to `last` (inclusive).

    A step's metrics are read once the next one has been launched, so that the device always has work. A `stop`
    requested in any process is agreed on within two steps; the caller then saves and ends.

    Raises:
        RunFailed: a loss or gradient is not finite; names step and module, the weights are those of the step before.
    """
    engine.model.train()
    agreed = False
    previous: Step | None = None
    for number in range(first, last + 1):
        started = time.perf_counter()
        batches = next(data)
        seed_step(seed, number, process)
        rate = learning_rate(number)
        update = engine.step(batches.micro_batches, rate, stop=stop is not None and stop.requested)
        if previous is not None:
            agreed = previous.measured().stop
        previous = Step(
            number=number,
            learning_rate=rate,
            real_tokens=batches.real_tokens,
            slots=batches.slots,
            attended_tokens=batches.attended_tokens,
            data=batches.state,
            seconds=time.perf_counter() - started,
            stop=agreed,
            update=update,
        )
        yield previous
    if previous is not None:
        previous.measured()
