"""One optimizer update from micro-batches: accumulation, precision, clipping, gradients summed over ranks."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from neobert.errors import RunFailed
from neobert.model.attention import send
from neobert.recipe import Optimization, PretrainingPrecision
from neobert.training.optimization import (
    build_optimizer,
    clip,
    numbers_beside_state,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
    takes_scale,
)


def on_device(values: Sequence[float], device: torch.device) -> Tensor:
    """Copy numbers to an fp32 tensor on a device, without a sync."""
    return send(torch.tensor(values, dtype=torch.float32), device)


MicroBatch = TypeVar("MicroBatch")


@dataclass(frozen=True)
class StepMetrics:
    """Mean loss over all predicted items of all processes, and the gradient's norm before clipping.

    `stop` is whether any process was asked to stop before the update; it is the same in all processes.
    """

    loss: float
    gradient_norm: float
    stop: bool


class Update:
    """A launched update. `metrics` are its loss, gradient norm and stop, read one step late to avoid a sync."""

    def __init__(self, metrics: Tensor) -> None:
        self._done = torch.cuda.Event() if metrics.is_cuda else None
        if self._done is None:
            self._host = metrics
        else:
            self._host = torch.empty(metrics.shape, dtype=metrics.dtype, pin_memory=True)
            self._host.copy_(metrics, non_blocking=True)
            self._done.record()

    def measured(self) -> StepMetrics:
        """Return the metrics; waits only for the work that computes them.

        Raises:
            RunFailed: loss or gradient is not finite; neither this update nor a later one has changed the weights.
        """
        if self._done is not None:
            self._done.synchronize()
        loss, norm, stop = self._host.tolist()
        if math.isfinite(loss) and math.isfinite(norm):
            return StepMetrics(loss, norm, stop > 0)
        raise RunFailed(f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}")


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


def autocast(device: torch.device, precision: PretrainingPrecision) -> torch.autocast:
    """Return the context of the recipe's precision: bf16 autocast over fp32 weights unless it is fp32. The dtype of the
    residual stream belongs to the encoder."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision != "fp32")


class Engine(Generic[MicroBatch]):
    """Model and optimizer on one device of one process; with a process group, gradients are summed over it.

    Each process keeps the whole optimizer state: with Adam 8 bytes per parameter (two moments in fp32).

    `objective(network, batch)` returns the *sum* of the losses of a micro-batch's items and `count(batch)` the number
    of items, so that the loss is normalised by the global count, however micro-batches and processes split it.
    If the loss of an item depends on other micro-batches, `prepare(model, batches)` receives this process's
    micro-batches of a step and returns those that are then computed one by one.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Callable[[nn.Module, MicroBatch], Tensor],
        count: Callable[[MicroBatch], int],
        recipe: Optimization,
        precision: PretrainingPrecision,
        device: torch.device,
        prepare: Callable[[nn.Module, Sequence[MicroBatch]], Sequence[MicroBatch]] | None = None,
    ) -> None:
        self.model = model.to(device)
        self.objective = objective
        self.count = count
        self.prepare = prepare
        self.recipe = recipe
        self.precision: PretrainingPrecision = precision
        self.device = device
        self.processes = dist.get_world_size() if dist.is_initialized() else 1
        self.optimizer = build_optimizer(self.model, recipe)
        self.numbers = numbers_beside_state(self.optimizer)
        self.failed = torch.zeros((), device=device)
        self.network = self._shared()

    def _shared(self) -> nn.Module:
        if self.processes == 1:
            return self.model
        return DistributedDataParallel(self.model, gradient_as_bucket_view=True)  # else it keeps them twice

    def step(self, batches: Sequence[MicroBatch], learning_rate: float, *, stop: bool = False) -> Update:
        """Accumulate the gradient of all micro-batches, clip it and update the weights, without a sync.

        All processes must call it together, with equally many micro-batches. `stop` tells the others that this process
        was asked to stop; it is reduced together with the count, at no extra cost.
        """
        mine = on_device([float(sum(map(self.count, batches))), float(stop)], self.device)
        total, stopping = self._over_processes(mine)
        if self.prepare is not None:
            with autocast(self.device, self.precision):
                batches = self.prepare(self.model, batches)
        loss = torch.zeros((), device=self.device)
        for index, batch in enumerate(batches):
            loss += self._accumulate(batch, total.clamp(min=1), last=index == len(batches) - 1)
        set_learning_rate(self.optimizer, learning_rate)
        loss = self._over_processes(loss)
        norm = self._clip_and_update(loss)
        return Update(torch.stack([loss, norm, stopping]))

    def _accumulate(self, batch: MicroBatch, total: Tensor, *, last: bool) -> Tensor:
        """Add a micro-batch's gradient; return its share of the mean loss."""
        with self._synchronised(last=last), autocast(self.device, self.precision):
            share = self.objective(self.network, batch) / total
            (share * self.processes).backward()  # DDP averages over processes, but we need the sum
        return share.detach()

    def _clip_and_update(self, loss: Tensor) -> Tensor:
        """Update the weights by the clipped gradient, and never again once loss or gradient is not finite; return its
        norm before clipping.

        Reading the flag needs a sync, which fused kernels do without.
        """
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        self.failed = torch.maximum(self.failed, 1 - (norm + loss).isfinite().float())
        if takes_scale(self.optimizer) or not self.failed:
            clip(self.optimizer, gradients, norm, self.recipe.clip_norm, self.failed)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def optimizer_tensors(self, *, wanted: bool = True) -> dict[str, Tensor]:
        """Return the whole optimizer state by parameter name, the same from every engine.

        All processes must call it together; where it is not `wanted`, it returns an empty dictionary.
        """
        return optimizer_tensors(self.optimizer, self.model, self.numbers) if wanted else {}

    def restore_optimizer(self, optimizer: Mapping[str, Tensor]) -> None:
        """Continue from the model's current weights and from the state that `optimizer_tensors` returned."""
        restore_optimizer(self.optimizer, self.model, optimizer)

    def optimizer_state_bytes(self) -> int:
        states = self.optimizer.state.values()
        return sum(value.nbytes for state in states for value in state.values() if value.ndim)

    def close(self) -> None:
        """Release resources of the process group; the engine cannot be used afterwards."""

    def _over_processes(self, value: Tensor) -> Tensor:
        if self.processes > 1:
            dist.all_reduce(value)
        return value

    def _synchronised(self, *, last: bool) -> AbstractContextManager[object]:
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()
