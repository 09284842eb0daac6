"""Fair timing where others compute too, and result files: {name, ratio, goal, met, figures, machine, versions, date}.

Contenders take turns, and medians of paired ratios count.
"""

import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from neobert.command_line import guarded
from neobert.files import json_bytes, read_json, replace_file
from neobert.runs.records import PACKAGES, code_state

FOLDER = Path(__file__).parent / "results"
KEYS = ("name", "ratio", "goal", "met", "figures", "machine", "versions", "date")


@dataclass(frozen=True)
class Timing:
    """Seconds of one run: on the clock, and on processors (its child processes included)."""

    wall: float
    processor: float

    def per(self, tokens: float) -> "Timing":
        """The time of one of `tokens`."""
        return Timing(self.wall / tokens, self.processor / tokens)


def time_call(run: Callable[[], None]) -> Timing:
    """How long a call takes."""
    wall, processor = time.perf_counter(), _processor_seconds()
    run()
    return Timing(time.perf_counter() - wall, _processor_seconds() - processor)


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def time_in_turns(contenders: Mapping[str, Callable[[], None]], repetitions: int) -> dict[str, list[Timing]]:
    """Time every contender once a repetition; the order turns round each time, so that none always goes first."""
    timings: dict[str, list[Timing]] = {name: [] for name in contenders}
    for name in turns(list(contenders), repetitions):
        timings[name].append(time_call(contenders[name]))
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


def seconds_of(timings: Sequence[Timing]) -> dict[str, list[float]]:
    """All of the timings, for a result file."""
    return {
        "wall_seconds": [round(timing.wall, 2) for timing in timings],
        "processor_seconds": [round(timing.processor, 2) for timing in timings],
    }


def load_averages() -> list[float]:
    """The load averages of the machine over 1, 5 and 15 minutes."""
    return [round(value, 2) for value in os.getloadavg()]


def wait_passively() -> None:
    """Start this command anew, so that its threads sleep where they wait for each other, unless they do.

    On shared cores threads that spin instead keep out the one that they wait for, and both clocks tell of that alone.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"}
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks", *sys.argv[1:]], environment)


@dataclass(frozen=True)
class Goal:
    """What a ratio should be, and in words what the ratio is."""

    bound: float
    side: Literal["at least", "at most"]
    of: str

    def is_met(self, ratio: float | None) -> bool | None:
        """Whether a ratio reaches the goal; None where it was not measured."""
        if ratio is None:
            return None
        return ratio >= self.bound if self.side == "at least" else ratio <= self.bound


def write_result(name: str, ratio: float | None, goal: Goal, figures: dict[str, Any], folder: Path = FOLDER) -> None:
    """Write results/<name>.json whole and print it; a `ratio` of None says that it was not measured here."""
    state = code_state()
    commit = state["commit"] and state["commit"][:12] + ("+" if state["dirty"] else "")
    packages = {package: metadata.version(package) for package in PACKAGES}
    content = {
        "name": name,
        "ratio": None if ratio is None else round(ratio, 3),
        "goal": asdict(goal),
        "met": goal.is_met(ratio),
        "figures": figures,
        "machine": describe_machine(),
        "versions": {"python": platform.python_version(), "commit": commit, **packages},
        "date": datetime.now(UTC).date().isoformat(),
    }
    replace_file(folder / f"{name}.json", json_bytes(content))
    print(json_bytes(content).decode(), flush=True)


def write_unmeasured(name: str, goal: Goal, folder: Path = FOLDER) -> None:
    """Note that something was not measured; a measurement that is there already stays."""
    if not (folder / f"{name}.json").exists():
        write_result(name, None, goal, {}, folder)


Measured = tuple[dict[str, float], dict[str, Any]]
"""A ratio by wall clock and by processor time, and the figures behind it."""


def measure_devices(
    name: str, goal: Goal, gpu_goal: Goal, measure: Callable[[str], Measured], *, command: str, package: str
) -> int:
    """Write the results `name` (a CPU, by processor time) and `name`_gpu (a GPU, by wall clock); return an exit code.

    measure: called with "cpu", and with "cuda" where there is a GPU. package: what the peer needs; without it neither
        is measured.
    """
    import torch

    gpu_name = f"{name}_gpu"
    if find_spec(package) is None:
        print(f"not measured: {package} is not installed; pip install -e '.[export]'", file=sys.stderr)
        write_unmeasured(name, goal)
        write_unmeasured(gpu_name, gpu_goal)
        return 0

    def write_both() -> int:
        ratio, figures = measure("cpu")
        write_result(name, ratio["processor"], goal, figures)
        if not torch.cuda.is_available():
            write_unmeasured(gpu_name, gpu_goal)
            return 0
        ratio, figures = measure("cuda")
        write_result(gpu_name, ratio["wall"], gpu_goal, figures)
        return 0

    return guarded(f"benchmarks {command}", write_both, FOLDER)


def read_results(folder: Path = FOLDER) -> list[dict[str, Any]]:
    """All result files, by name."""
    return [read_json(path) for path in sorted(folder.glob("*.json"))]


def describe_machine() -> dict[str, Any]:
    """What decides speed, and nothing that tells one machine from an equal one."""
    import torch

    known = Path("/proc/cpuinfo")
    lines = known.read_text().splitlines() if known.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.machine(),
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "system": platform.system(),
    }
