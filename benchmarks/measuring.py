"""Fair timing where others compute too: contenders take turns, and medians of paired ratios count."""

import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: on the clock, and on processors (its child processes included)."""

    wall: float
    processor: float


def timed(run: Callable[[], None]) -> Timing:
    """How long a call takes."""
    wall, processor = time.perf_counter(), _processor_seconds()
    run()
    return Timing(time.perf_counter() - wall, _processor_seconds() - processor)


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def wait_passively(module: str) -> None:
    """Start the command `module` anew, so that its threads sleep where they wait for each other, unless they do.

    On shared cores threads that spin instead keep out the one that they wait for, and both clocks tell of that alone.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], environment)


def in_turns(contenders: Mapping[str, Callable[[], None]], repetitions: int) -> dict[str, list[Timing]]:
    """Time every contender once a repetition; the order turns round each time, so that none always goes first."""
    timings: dict[str, list[Timing]] = {name: [] for name in contenders}
    for name in turns(list(contenders), repetitions):
        timings[name].append(timed(contenders[name]))
        print(f"  {name}: {timings[name][-1].wall:.2f} s, load {os.getloadavg()[0]:.1f}", flush=True)
    return timings


def turns(names: Sequence[str], repetitions: int) -> Iterator[str]:
    """Every name once a repetition, forwards and backwards in turn."""
    for repetition in range(repetitions):
        yield from names if repetition % 2 == 0 else names[::-1]


def median_ratio(own: Sequence[Timing], other: Sequence[Timing]) -> dict[str, float]:
    """The medians of the paired ratios own / other, by clock and by processor."""
    pairs = list(zip(own, other, strict=True))
    return {
        "wall": round(statistics.median(a.wall / b.wall for a, b in pairs), 3),
        "processor": round(statistics.median(a.processor / b.processor for a, b in pairs), 3),
    }


def seconds(timings: Sequence[Timing]) -> dict[str, Any]:
    """All of the timings, for a result file."""
    return {
        "wall_seconds": [round(timing.wall, 2) for timing in timings],
        "processor_seconds": [round(timing.processor, 2) for timing in timings],
    }


def load() -> list[float]:
    """The load averages of the machine over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]
