"""A trace of a few steps, for Perfetto or chrome://tracing."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from neobert.files import sync_file, temporary_sibling
from neobert.training.loop import Step

WARM_UP_STEPS = 3
"""Steps before the trace begins: the first ones allocate, choose kernels and compile."""


def traced(steps: Iterator[Step], count: int, path: Path, device: torch.device) -> Iterator[Step]:
    """The same steps; `count` of them, behind the first few, are traced into `path`.

    A trace holds the operations of host and GPU under the names of the phases (data, forward, backward, optimizer).
    Where the steps end early it holds fewer of them; where they are broken off in it there is none.
    """
    yield from islice(steps, WARM_UP_STEPS)
    numbers: list[int] = []
    with profile(activities=_activities(device)) as profiler:
        for step in islice(steps, count):
            numbers.append(step.number)
            yield step
    if numbers:
        _write(profiler, path)
        print(f"the trace of steps {numbers[0]} to {numbers[-1]} lies in {path}", file=sys.stderr, flush=True)
    yield from steps


def _activities(device: torch.device) -> list[ProfilerActivity]:
    return [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]


def _write(profiler: profile, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_sibling(path)
    try:
        profiler.export_chrome_trace(str(temporary))
        sync_file(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
