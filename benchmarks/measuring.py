"""Fair timing where others compute too, goals, and a result file for each goal.

Contenders take turns, and medians of paired ratios count.
"""

import argparse
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from neobert.files import json_bytes, replace_file
from neobert.runs.records import cpu_model, provenance

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode

Returned = TypeVar("Returned")


@dataclass(frozen=True)
class Timing(Generic[Returned]):
    """Wall-clock and processor seconds of one run (child processes included), and its returned value."""

    wall: float
    processor: float
    returned: Returned

    def per(self, tokens: float) -> "Timing[Returned]":
        return Timing(self.wall / tokens, self.processor / tokens, self.returned)


def time_call(run: Callable[[], Returned]) -> Timing[Returned]:
    wall, processor = time.perf_counter(), _processor_seconds()
    returned = run()
    return Timing(time.perf_counter() - wall, _processor_seconds() - processor, returned)


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def take_turns(contenders: Mapping[str, Callable[[], Returned]], repetitions: int) -> dict[str, list[Returned]]:
    """Call every contender once per repetition; the order reverses each time, so that none always goes first."""
    returned: dict[str, list[Returned]] = {name: [] for name in contenders}
    for repetition in range(repetitions):
        for name in list(contenders)[:: 1 if repetition % 2 == 0 else -1]:
            call = time_call(contenders[name])
            returned[name].append(call.returned)
            print(f"  {name}: {call.wall:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    return returned


def time_in_turns(
    contenders: Mapping[str, Callable[[], Returned]], repetitions: int
) -> dict[str, list[Timing[Returned]]]:
    """Time every contender once per repetition, in turns."""
    return take_turns({name: partial(time_call, run) for name, run in contenders.items()}, repetitions)


def median_ratio(own: Sequence[Timing[Any]], other: Sequence[Timing[Any]]) -> dict[str, float]:
    """Return the medians of the paired ratios own / other, by clock and by processor time."""
    pairs = list(zip(own, other, strict=True))
    return {
        "wall": round(statistics.median(a.wall / b.wall for a, b in pairs), 3),
        "processor": round(statistics.median(a.processor / b.processor for a, b in pairs), 3),
    }


def seconds_of(timings: Sequence[Timing[Any]]) -> dict[str, list[float]]:
    """Return all timings, for a result file."""
    return {
        "wall_seconds": [round(timing.wall, 2) for timing in timings],
        "processor_seconds": [round(timing.processor, 2) for timing in timings],
    }


@dataclass(frozen=True)
class Goal:
    """The bound of a ratio, and a description `of` the ratio."""

    bound: float
    of: str
    side: Literal["at least", "at most"] = "at least"

    def is_met(self, ratio: float | None) -> bool | None:
        """Return whether a ratio reaches the goal, or None if it was not measured."""
        if ratio is None:
            return None
        return ratio >= self.bound if self.side == "at least" else ratio <= self.bound


class Result(NamedTuple):
    """A measurement under the name of a goal; `ratio` is None if a side did not run."""

    name: str
    ratio: float | None
    figures: dict[str, Any]


class Benchmark(NamedTuple):
    """`measure` yields a result for each of the `goals` that can be measured here."""

    measure: Callable[[argparse.Namespace], Iterator[Result]]
    goals: Mapping[str, Goal]


def write_result(result: Result, goal: Goal, folder: Path) -> None:
    """Write <name>.json atomically and print it."""
    made = provenance()
    commit = made["commit"] and made["commit"][:12] + ("+" if made["dirty"] else "")
    content = {
        "name": result.name,
        "ratio": None if result.ratio is None else round(result.ratio, 3),
        "goal": asdict(goal),
        "met": goal.is_met(result.ratio),
        "figures": result.figures,
        "machine": describe_machine(),
        "versions": {"python": made["machine"]["python"], "commit": commit, **made["packages"]},
        "date": datetime.now(UTC).date().isoformat(),
    }
    replace_file(folder / f"{result.name}.json", json_bytes(content))
    print(json_bytes(content).decode(), flush=True)


def devices_with(package: str) -> list[str]:
    """Return the devices of this machine, "cpu" and possibly "cuda"; none if the peer's package is not installed."""
    import torch

    if find_spec(package) is None:
        print(f"not measured: {package} is not installed; pip install -e '.[export]'", file=sys.stderr)
        return []
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def describe_machine() -> dict[str, Any]:
    """Describe the hardware that determines speed, without anything that identifies this machine."""
    import torch

    return {
        "processor": cpu_model() or platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
    }


OPERATIONS_RATIO = "operations, theirs / ours"
"""Figure of a result: at a speed of this ratio, both sides compute as many operations a second."""


def operation_counter() -> "FlopCounterMode":
    """Return a context that counts the floating-point operations of matrix products and attention, those under a mask
    included. Attention of the package flash-attn is not seen."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    # torch counts its attention kernels for GPUs, but not these
    forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    counted = {
        forward: lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value),
        backward: lambda gradient, query, key, value, *_, **__: sdpa_backward_flop_count(gradient, query, key, value),
    }
    return FlopCounterMode(display=False, custom_mapping=counted)
