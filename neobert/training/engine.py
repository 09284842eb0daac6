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


class Phases:
    """Time of a step by phase, measured with events of its device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, torch.cuda.Event | float]] = []
        self._mark("")

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count the time of this block, and since the previous one, as `phase`; its name appears in traces."""
        with record_function(phase):
            yield
        self._mark(phase)

    def _mark(self, phase: str) -> None:
        event = _event(self._device, timed=True)
        if event is not None:
            event.record()
        self._marks.append((phase, time.perf_counter() if event is None else event))

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each phase; waits for the device to finish them."""
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


@dataclass(frozen=True)
class StepMetrics:
    """Mean loss over all predicted items of all processes, and the gradient's norm before clipping.

    `stop` is whether any process was asked to stop before the update; it is the same in all processes.
    """

    loss: float
    gradient_norm: float
    stop: bool


class Update:
    """A launched update. `metrics` are its loss, gradient norm and stop, read one step late to avoid a sync.

    `explain` finds where a number that is not finite first appeared. `phases` has the time by phase.
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
        """Return the metrics; waits only for the work that computes them.

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
        """Add a micro-batch's gradient; return its share of the mean loss."""
        with self._synchronised(last=last), autocast(self.device, self.precision):
            with phases.during("forward"):
                share = self.objective(self.network, batch) / total
            with phases.during("backward"):
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

    def _first_non_finite(self, batches: Sequence[MicroBatch]) -> str:
        """Compute the gradients of `batches` again to find the first module or parameter that is not finite.

        It runs without the other processes, one micro-batch at a time, so it needs no more memory than the step."""
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
