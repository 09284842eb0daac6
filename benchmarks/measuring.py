"""Fair timing where others compute too, goals, and a result file for each goal.

Contenders take turns, and medians of paired ratios count.
"""

import gc
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import ROUND_DOWN, Context
from functools import partial
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from neobert.files import json_bytes, replace_file
from neobert.runs.records import cpu_model, provenance

Returned = TypeVar("Returned")
Step = Callable[[], int]
"""Makes one update or forward pass, and returns its number of real tokens."""


@dataclass(frozen=True)
class Timing(Generic[Returned]):
    """Wall-clock and processor seconds of one run (child processes included), and its returned value."""

    wall: float
    processor: float
    returned: Returned


def time_call(run: Callable[[], Returned]) -> Timing[Returned]:
    wall, processor = time.perf_counter(), _processor_seconds()
    returned = run()
    return Timing(time.perf_counter() - wall, _processor_seconds() - processor, returned)


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def in_new_process(function: Callable[..., Returned], *arguments: object) -> Returned:
    """Call a function of a module in a new process, which starts without its imports."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as child:
        return child.submit(function, *arguments).result()


def time_in_turns(
    contenders: Mapping[str, Callable[[], Returned]], repetitions: int
) -> dict[str, list[Timing[Returned]]]:
    """Time every contender once per repetition; the order reverses each time, so that none always goes first."""
    timings: dict[str, list[Timing[Returned]]] = {name: [] for name in contenders}
    for repetition in range(repetitions):
        for name in list(contenders)[:: 1 if repetition % 2 == 0 else -1]:
            timings[name].append(time_call(contenders[name]))
            print(f"  {name}: {timings[name][-1].wall:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    return timings


Race = Mapping[str, Sequence[Timing[int]]]
"""Time per real token in each round, by contender."""
Pairs = Sequence[tuple[str, str]]
"""How the names of our contenders and of theirs begin; the fastest of both are compared."""


def burst(step: Step, steps: int) -> int:
    """Make `steps` steps; return their real tokens."""
    tokens = sum(step() for _ in range(steps))
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return tokens


def race(contenders: Mapping[str, Callable[[], Step]], *, rounds: int, steps: int) -> Race:
    """Make and warm up every contender, then time a burst of `steps` steps of each in every round. On a GPU one
    contender comes after the other, and has the memory for itself."""
    on_gpu = torch.cuda.is_available()
    timings: dict[str, list[Timing[int]]] = {}
    for group in [{name: make} for name, make in contenders.items()] if on_gpu else [contenders]:
        with torch._dynamo.config.patch(recompile_limit=64):  # beyond 8 forms of a class, it would fall back to eager
            bursts = {name: partial(burst, make()) for name, make in group.items()}
            for run in bursts.values():
                run(2)  # warms up
            timings |= time_in_turns({name: partial(run, steps) for name, run in bursts.items()}, rounds)
        if on_gpu:
            del bursts, run
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()
    return {
        name: [Timing(each.wall / each.returned, each.processor / each.returned, each.returned) for each in own]
        for name, own in timings.items()
    }


def tokens_per_second(found: Race) -> dict[str, int]:
    """Return the median speed of every contender by the clock."""
    return {name: round(statistics.median(1 / timing.wall for timing in own)) for name, own in found.items()}


def fastest(found: Race, beginning: str) -> str:
    """Return which of the contenders whose name begins like this has the highest median speed."""
    speeds = tokens_per_second(found)
    return max((name for name in found if f"{name}, ".startswith(f"{beginning}, ")), key=lambda name: speeds[name])


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median, lowest and highest."""
    found = {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
    return {name: round(value, 3) for name, value in found.items()}


def paired_ratio(own: Sequence[Timing[Any]], other: Sequence[Timing[Any]]) -> dict[str, dict[str, float]]:
    """Return the summary of the paired ratios of speed, which are those of times other / own, by clock ("wall") and by
    processor time ("processor")."""
    pairs = list(zip(other, own, strict=True))
    by_processor = summary([a.processor / b.processor for a, b in pairs])
    return {"wall": summary([a.wall / b.wall for a, b in pairs]), "processor": by_processor}


def lowest_ratio(found: Race, pairs: Pairs) -> tuple[Mapping[str, float], dict[str, Any]]:
    """Return the ratio of the pair with the lowest median, and figures with that of every pair. A ratio is the speed of
    our fastest contender / their fastest one, by the clock."""
    best = [(fastest(found, ours), fastest(found, theirs)) for ours, theirs in pairs]
    ratios = {f"{ours} / {theirs}": paired_ratio(found[ours], found[theirs]) for ours, theirs in best}
    figures = {"speed, ours / theirs": ratios, "real tokens per second": tokens_per_second(found)}
    return min((ratio["wall"] for ratio in ratios.values()), key=itemgetter("median")), figures


class Result(NamedTuple):
    """A measurement under the name of a goal. `ratio` is a `summary`. `open` is why it neither meets nor misses it."""

    name: str
    ratio: Mapping[str, float]
    figures: dict[str, Any]
    open: str | None = None


def three_digits(ratio: float) -> str:
    """Return a ratio with three significant digits, rounded down, so that none below a goal is shown as the goal."""
    return f"{float(Context(prec=3, rounding=ROUND_DOWN).create_decimal(str(ratio))):g}"


def device_name(device: torch.device) -> str:
    """Return the product name of a device, which identifies no machine."""
    return torch.cuda.get_device_name() if device.type == "cuda" else cpu_model() or platform.machine()


def write_result(result: Result, goal: Mapping[str, Any], folder: Path) -> None:
    """Write <name>.json atomically and print it. A goal is the least ratio, its `bound`, and what the ratio is `of`."""
    made = provenance()
    commit = made["commit"] and made["commit"][:12] + ("+" if made["dirty"] else "")
    content = {
        "name": result.name,
        "ratio": result.ratio["median"],
        "range": [result.ratio["lowest"], result.ratio["highest"]],
        "goal": goal,
        "met": None if result.open else result.ratio["median"] >= goal["bound"],
        "open": result.open,
        "figures": result.figures,
        "machine": {
            "processor": device_name(torch.device("cpu")),
            "cores": made["machine"]["cores"],
            "gpu": device_name(torch.device("cuda")) if torch.cuda.is_available() else None,
            "system": made["machine"]["system"],
        },
        "versions": {"python": made["machine"]["python"], "commit": commit, **made["packages"]},
        "date": datetime.now(UTC).date().isoformat(),
    }
    replace_file(folder / f"{result.name}.json", json_bytes(content))
    print(json_bytes(content).decode(), flush=True)


OPERATIONS_RATIO = "operations, theirs / ours"
"""Figure of a result: at a speed of this ratio, both sides compute as many operations a second."""


def count_operations(contenders: Mapping[str, Step], steps: int) -> dict[str, int]:
    """Count the floating-point operations per real token in some steps of every contender: those of matrix products
    and attention, those under a mask included. Attention of the package flash-attn is not seen."""
    counted = {}
    for name, step in contenders.items():
        with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:  # other kernels on a CPU are not
            tokens = burst(step, steps)
        counted[name] = round(counter.get_total_flops() / tokens)
    return counted
