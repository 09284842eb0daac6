"""Numbers and times of a step on their way from the device: read a step later, they make nobody wait."""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import torch
from torch import Tensor
from torch.profiler import record_function


def on_device(values: Sequence[float], device: torch.device) -> Tensor:
    """Numbers as an fp32 tensor on a device, which does not wait for what it computes."""
    host = torch.tensor(values, dtype=torch.float32)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


class Reading:
    """A small tensor's values, copied behind the work that computes them; the host waits for that work alone."""

    def __init__(self, values: Tensor) -> None:
        self._done = _event(values.device)
        if self._done is None:
            self._host = values.detach().clone()
            return
        self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._host.copy_(values.detach(), non_blocking=True)
        self._done.record()

    def values(self) -> list[float]:
        """The numbers, as soon as they are there."""
        if self._done is not None:
            self._done.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers


class Phases:
    """Where the time of a step goes, as its device sees it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[tuple[str, torch.cuda.Event | float]] = []
        self._mark("")

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What comes until the end of this, and came since the last end, belongs to `phase`; traces show its name."""
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
