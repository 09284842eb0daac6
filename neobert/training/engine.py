"""One optimizer update from micro-batches: accumulation, precision, clipping, gradients summed over ranks."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from neobert.errors import RunFailed
from neobert.model.attention import send
from neobert.model.encoder import residual_stream
from neobert.recipe import Optimization, PretrainingPrecision
from neobert.training.optimization import (
    build_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
    takes_scale,
)


def on_device(values: Sequence[float], device: torch.device) -> Tensor:
    """Numbers as an fp32 tensor on a device, copied without a sync."""
    return send(torch.tensor(values, dtype=torch.float32), device)


class Phases:
    """Where the time of a step goes, by events of its device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, torch.cuda.Event | float]] = []
        self._mark("")

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count this block, and the time since the last one, as `phase`; traces show its name."""
        with record_function(phase):
            yield
        self._mark(phase)

    def _mark(self, phase: str) -> None:
        event = _event(self._device, timed=True)
        if event is not None:
            event.record()
        self._marks.append((phase, time.perf_counter() if event is None else event))

    def seconds(self) -> dict[str, float]:
        """Seconds of each phase; waits for the device to come to their end."""
        totals: dict[str, float] = defaultdict(float)
        for (_, before), (phase, after) in pairwise(self._marks):
            totals[phase] += _between(before, after)
        return dict(totals)


def _event(device: torch.device, timed: bool = False) -> torch.cuda.Event | None:
    return torch.cuda.Event(enable_timing=timed) if device.type == "cuda" else None


def _between(before: torch.cuda.Event | float, after: torch.cuda.Event | float) -> float:
    if isinstance(before, float) and isinstance(after, float):
        return after - before
    assert isinstance(before, torch.cuda.Event) and isinstance(after, torch.cuda.Event)
    after.synchronize()
    return before.elapsed_time(after) / 1000


MicroBatch = TypeVar("MicroBatch")

CLIP_EPSILON = 1e-6
"""As torch's own clipping adds it to the norm."""


@dataclass(frozen=True)
class StepMetrics:
    """The mean loss over all predicted items of all processes, and the gradient's norm before clipping.

    `stop` is whether any process was asked to stop before the update; all processes get the same answer.
    """

    loss: float
    gradient_norm: float
    stop: bool


class Update:
    """An update under way. `metrics` are its loss, gradient norm and stop: read one step late, they need no sync.

    `explain` finds out where a number that is not finite was first seen. `phases` tells where the time went.
    """

    def __init__(self, metrics: Tensor, explain: Callable[[], str], phases: Phases) -> None:
        self._explain = explain
        self.phases = phases
        self._done = _event(metrics.device)
        if self._done is None:
            self._host = metrics
        else:
            self._host = torch.empty(metrics.shape, dtype=metrics.dtype, pin_memory=True)
            self._host.copy_(metrics, non_blocking=True)
            self._done.record()

    def measured(self) -> StepMetrics:
        """The numbers; waits for the work that computes them alone.

        Raises:
            RunFailed: loss or gradient is not finite; neither this update nor a later one has changed the weights.
        """
        if self._done is not None:
            self._done.synchronize()
        loss, norm, stop = self._host.tolist()
        if math.isfinite(loss) and math.isfinite(norm):
            return StepMetrics(loss, norm, stop > 0)
        what = f"the gradient's norm is {norm}" if math.isfinite(loss) else f"the loss is {loss}"
        raise RunFailed(f"{what}, first seen in {self._explain()}")


@contextmanager
def autocast(device: torch.device, precision: PretrainingPrecision) -> Iterator[None]:
    """bf16 autocast over fp32 weights where the recipe says so, around a residual stream in fp32 or in bf16."""
    stream = residual_stream(torch.bfloat16) if precision == "bf16_residual" else nullcontext()
    with torch.autocast(device.type, torch.bfloat16, enabled=precision != "fp32"), stream:
        yield


class Engine(Generic[MicroBatch]):
    """Holds model and optimizer on one device of one process; with a process group, gradients are summed over it.

    Each process holds the whole optimizer state: with Adam 8 bytes a parameter (two moments in fp32).

    `objective(network, batch)` returns the *sum* of the losses of a micro-batch's items and `count(batch)` how many
    these are, so that the loss is normalised by the global count whatever the split into micro-batches and processes.
    Where the loss of an item needs other micro-batches, `prepare(model, batches)` sees all of a step, of this process,
    and gives those that are then computed one by one.
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
        self.failed = torch.zeros((), device=device)
        self.network = self._shared()

    def _shared(self) -> nn.Module:
        return DistributedDataParallel(self.model) if self.processes > 1 else self.model

    def step(self, batches: Sequence[MicroBatch], learning_rate: float, *, stop: bool = False) -> Update:
        """Accumulate the gradient of all micro-batches, clip it, update the weights; nothing waits for the device.

        All processes must call it together, with equally many micro-batches. `stop` tells the others that this process
        was asked to stop; it travels with the count, so that agreeing costs nothing.
        """
        phases = Phases(self.device)
        mine = on_device([float(sum(map(self.count, batches))), float(stop)], self.device)
        total, stopping = self._over_processes(mine)
        if self.prepare is not None:
            with phases.during("prepare"), autocast(self.device, self.precision):
                batches = self.prepare(self.model, batches)
        loss = torch.zeros((), device=self.device)
        for index, batch in enumerate(batches):
            loss += self._accumulate(batch, total.clamp(min=1), phases, last=index == len(batches) - 1)
        with phases.during("optimizer"):
            set_learning_rate(self.optimizer, learning_rate)
            loss = self._over_processes(loss)
            norm = self._clip_and_update(loss)
        return Update(torch.stack([loss, norm, stopping]), lambda: self._first_non_finite(batches), phases)

    def _accumulate(self, batch: MicroBatch, total: Tensor, phases: Phases, *, last: bool) -> Tensor:
        """Add a micro-batch's gradient; its share of the mean loss."""
        with self._synchronised(last=last), autocast(self.device, self.precision):
            with phases.during("forward"):
                share = self.objective(self.network, batch) / total
            with phases.during("backward"):
                (share * self.processes).backward()  # processes are averaged over; the sum is wanted
        return share.detach()

    def _clip_and_update(self, loss: Tensor) -> Tensor:
        """Update the weights by the accumulated gradient, and never again once something is not finite; its norm
        before clipping.

        The fused kernels take both as a loss scaler gives them to it: a divisor, and a reason to change nothing. For
        other optimizers gradients are divided here, and the device is asked whether to update.
        """
        gradients = [weight.grad for weight in self.model.parameters() if weight.grad is not None]
        norm = nn.utils.get_total_norm(gradients, foreach=True)
        self.failed = torch.maximum(self.failed, 1 - (norm + loss).isfinite().float())
        scale = ((norm + CLIP_EPSILON) / self.recipe.clip_norm).clamp(min=1)
        if takes_scale(self.optimizer):
            self.optimizer.grad_scale, self.optimizer.found_inf = scale, self.failed  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not self.failed:
            torch._foreach_div_(gradients, scale)
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def optimizer_tensors(self, *, wanted: bool = True) -> dict[str, Tensor]:
        """The whole optimizer state by parameter name, the same from every engine; all processes must ask together.

        A process where it is not `wanted` gets none.
        """
        return optimizer_tensors(self.optimizer, self.model) if wanted else {}

    def restore_optimizer(self, optimizer: Mapping[str, Tensor]) -> None:
        """Continue from the model's weights as they are now and from what `optimizer_tensors` gave."""
        restore_optimizer(self.optimizer, self.model, optimizer)

    def optimizer_state_bytes(self) -> int:
        """What this process holds of the optimizer's state."""
        states = self.optimizer.state.values()
        return sum(value.nbytes for state in states for value in state.values() if value.ndim)

    def close(self) -> None:
        """Release what belongs to the process group; the engine cannot be used afterwards."""

    def _over_processes(self, value: Tensor) -> Tensor:
        if self.processes > 1:
            dist.all_reduce(value)
        return value

    def _synchronised(self, *, last: bool) -> AbstractContextManager[object]:
        if isinstance(self.network, DistributedDataParallel) and not last:
            return self.network.no_sync()
        return nullcontext()

    def _first_non_finite(self, batches: Sequence[MicroBatch]) -> str:
        """Compute the gradients of `batches` again, without the other processes and one after the other, which takes no
        more memory than the step did, and look."""
        found: list[str] = []
        handles = [
            module.register_forward_hook(_note_non_finite(name, found))
            for name, module in self.model.named_modules()
            if not list(module.children())
        ]
        try:
            for batch in batches:
                with autocast(self.device, self.precision), torch.compiler.set_stance("force_eager"):
                    loss = self.objective(self.model, batch)
                if found:
                    return f"module {found[0]}"
                if name := self._first_non_finite_gradient(loss):
                    return f"parameter {name}"
        finally:
            for handle in handles:
                handle.remove()
        return "the sum of squares"

    def _first_non_finite_gradient(self, loss: Tensor) -> str | None:
        names, weights = zip(*self.model.named_parameters(), strict=True)
        for name, gradient in zip(names, torch.autograd.grad(loss, weights, allow_unused=True), strict=True):
            if gradient is not None and not gradient.isfinite().all():
                return str(name)
        return None


def _note_non_finite(name: str, found: list[str]) -> Callable[[nn.Module, object, object], None]:
    def hook(module: nn.Module, inputs: object, output: object) -> None:
        if isinstance(output, Tensor) and not output.isfinite().all():
            found.append(name)

    return hook
