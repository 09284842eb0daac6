"""One optimizer update from micro-batches: accumulation, precision, clipping, and processes that share the work."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from neobert.errors import RunFailed
from neobert.recipe import Optimization, Precision
from neobert.training.optimization import build_optimizer, optimizer_tensors, restore_optimizer, set_learning_rate

MicroBatch = TypeVar("MicroBatch")


@dataclass(frozen=True)
class Update:
    """What an update measured: the mean loss over all predicted items of all processes, and the gradient's norm.

    `stop` is whether any process was asked to stop before the update; all processes get the same answer.
    """

    loss: float
    gradient_norm: float
    stop: bool


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[object]:
    """Compute in bf16 over fp32 weights where the recipe says so."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


class Engine(Generic[MicroBatch]):
    """Holds model and optimizer on one device of one process; with a process group, gradients are summed over it.

    Each process holds the whole optimizer state: with Adam 8 bytes a parameter (two moments in fp32).

    `objective(network, batch)` returns the *sum* of the losses of a micro-batch's items and `count(batch)` how many
    these are, so that the loss is normalised by the global count whatever the split into micro-batches and processes.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Callable[[nn.Module, MicroBatch], Tensor],
        count: Callable[[MicroBatch], int],
        recipe: Optimization,
        precision: Precision,
        device: torch.device,
    ) -> None:
        self.model = model.to(device)
        self.objective = objective
        self.count = count
        self.recipe = recipe
        self.precision: Precision = precision
        self.device = device
        self.processes = dist.get_world_size() if dist.is_initialized() else 1
        self.optimizer = build_optimizer(self.model.parameters(), recipe)
        self.network = self._shared()

    def _shared(self) -> nn.Module:
        return DistributedDataParallel(self.model) if self.processes > 1 else self.model

    def step(self, batches: Sequence[MicroBatch], learning_rate: float, *, stop: bool = False) -> Update:
        """Accumulate the gradient of all micro-batches, clip it, update the weights.

        All processes must call it together, with equally many micro-batches. `stop` tells the others that this process
        was asked to stop; it travels with the count, so that agreeing costs nothing.

        Raises:
            RunFailed: loss or gradient is not finite; the weights are left as they were.
        """
        mine = torch.tensor([float(sum(map(self.count, batches))), float(stop)], device=self.device)
        total, stopping = self._over_processes(mine)
        loss = torch.zeros((), device=self.device)
        for index, batch in enumerate(batches):
            loss += self._accumulate(batch, total.clamp(min=1), last=index == len(batches) - 1)
        mean_loss = self._over_processes(loss).item()
        if not math.isfinite(mean_loss):
            raise RunFailed(f"the loss is {mean_loss}, first seen in {self._first_non_finite_module(batches)}")
        set_learning_rate(self.optimizer, learning_rate)
        return Update(mean_loss, self._clip_and_update(), stopping.item() > 0)

    def _accumulate(self, batch: MicroBatch, total: Tensor, *, last: bool) -> Tensor:
        """Add a micro-batch's gradient; its share of the mean loss."""
        with self._synchronised(last=last), autocast(self.device, self.precision):
            share = self.objective(self.network, batch) / total
            (share * self.processes).backward()  # processes are averaged over; the sum is wanted
        return share.detach()

    def _clip_and_update(self) -> float:
        """Update the weights by the accumulated gradient; its norm before clipping."""
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm).item()
        if not math.isfinite(norm):
            raise RunFailed(f"the gradient's norm is {norm}, first seen in {self._first_non_finite_gradient()}")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def optimizer_tensors(self, *, wanted: bool = True) -> dict[str, Tensor]:
        """The whole optimizer state by parameter name, the same from every engine; all processes must ask together.

        A process where it is not `wanted` gets none.
        """
        return optimizer_tensors(self.optimizer, self.model) if wanted else {}

    def adopt(self, optimizer: Mapping[str, Tensor]) -> None:
        """Go on from the model's weights as they are now and from what `optimizer_tensors` gave."""
        restore_optimizer(self.optimizer, self.model, optimizer)

    def optimizer_state_bytes(self) -> int:
        """What this process holds of the optimizer's state."""
        states = self.optimizer.state.values()
        return sum(value.nbytes for state in states for value in state.values() if value.ndim)

    def close(self) -> None:
        """Let go of what belongs to the group; the engine is of no use afterwards."""

    def _over_processes(self, value: Tensor) -> Tensor:
        if self.processes > 1:
            dist.all_reduce(value)
        return value

    def _synchronised(self, *, last: bool) -> AbstractContextManager[object]:
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()

    @torch.no_grad()
    def _first_non_finite_module(self, batches: Sequence[MicroBatch]) -> str:
        found: list[str] = []
        handles = [
            module.register_forward_hook(_note_non_finite(name, found))
            for name, module in self.model.named_modules()
            if not list(module.children())
        ]
        for batch in batches:
            self.objective(self.model, batch)
        for handle in handles:
            handle.remove()
        return f"module {found[0]}" if found else "the loss itself"

    def _first_non_finite_gradient(self) -> str:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not parameter.grad.isfinite().all():
                return f"parameter {name}"
        return "the sum of squares"


def _note_non_finite(name: str, found: list[str]) -> Callable[[nn.Module, object, object], None]:
    def hook(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not output.isfinite().all():
            found.append(name)

    return hook
