"""Real tokens a core-second of pre-training at a small scale: this checkout against another one, in turns.

python -m benchmarks small_scale --against DIR
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measuring import Benchmark, Goal, Result, take_turns
from neobert.command_line import count
from neobert.processes import REPOSITORY, available_cores, worker_environment

NAME = "small_scale_over_earlier"
VARIANT = "M2"
SCALE = "study"
CHILD = Path(__file__).with_name("small_scale_steps.py")

Burst = dict[str, Any]
"""What a process of `small_scale_steps` printed."""


def burst(checkout: Path, runs: Path, data: str, steps: int) -> Burst:
    """Train in a new process with the code of a checkout, on one thread as a worker does."""
    environment = worker_environment(1) | {"PYTHONPATH": str(checkout)}
    command = [sys.executable, "-P", str(CHILD), VARIANT, SCALE, data, str(runs), str(steps)]
    ended = subprocess.run(command, check=True, env=environment, cwd=checkout, stdout=subprocess.PIPE, text=True)
    printed: Burst = json.loads(ended.stdout.splitlines()[-1])
    return printed


def side_by_side(workers: int, *arguments: Any) -> list[Burst]:
    """Run the same burst in several processes at once."""
    with ThreadPoolExecutor(workers) as executor:
        return [future.result() for future in [executor.submit(burst, *arguments) for _ in range(workers)]]


def speed(taken: Burst) -> float:
    """Return the real tokens per second of processor time: of one core, while no other process has it."""
    return float(taken["real_tokens"] / taken["processor_seconds"])


def commit_of(checkout: Path) -> str:
    """Return the commit of a checkout."""
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def figures_of(bursts: Sequence[Burst]) -> dict[str, Any]:
    """Return the figures of one side, and check that its runs are equal bit by bit.

    Raises:
        ValueError: they are not.
    """
    weights = {taken["weights_sha256"] for taken in bursts}
    if len(weights) > 1:
        raise ValueError(f"equal runs have {len(weights)} different weights: something other than the run decides them")
    first = bursts[0]
    return {
        "id": first["id"],
        "precision": first["precision"],
        "loss": first["loss"],
        "weights_sha256": weights.pop(),
        "real tokens per core-second": [round(speed(taken)) for taken in bursts],
        "wall_seconds": [round(taken["wall_seconds"], 2) for taken in bursts],
        "processor_seconds": [round(taken["processor_seconds"], 2) for taken in bursts],
    }


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Real tokens a core-second of a step at study scale, by processor time: this checkout / another one. One run that
    uses each core at once shows what runs lose beside each other, and that their weights are equal bit by bit."""
    if options.against is None:
        print("not measured: --against names no other checkout")
        return
    checkouts = {"this": REPOSITORY, "other": options.against.resolve()}
    with tempfile.TemporaryDirectory() as folder:
        arguments = (Path(folder), options.data, options.steps)
        burst(REPOSITORY, Path(folder), options.data, 1)  # tokenises the corpus, which both sides share
        sides = {name: partial(burst, checkout, *arguments) for name, checkout in checkouts.items()}
        bursts = take_turns(sides, options.rounds)
        cores = available_cores()
        beside = side_by_side(cores, REPOSITORY, *arguments)
    own, other = bursts["this"], bursts["other"]
    ratio = statistics.median(speed(ours) / speed(theirs) for ours, theirs in zip(own, other, strict=True))
    sides_figures = {
        name: {"commit": commit_of(checkout), **figures_of(bursts[name])} for name, checkout in checkouts.items()
    }
    figures = {
        "scale": SCALE,
        "variant": VARIANT,
        "data": "synthetic" if options.data == "synthetic" else "a folder",
        "steps of a burst": options.steps,
        **sides_figures,
        f"this, {cores} at once": figures_of([*own[:1], *beside]),
    }
    yield Result(NAME, ratio, figures)


SMALL_SCALE = Benchmark(
    measure,
    {
        NAME: Goal(
            1.5,
            "at least",
            "real tokens a core-second at study scale (M2): this commit / one in bf16",
        )
    },
    {
        "--against": {"type": Path, "metavar": "DIR", "help": "the other checkout"},
        "--data": {"default": "synthetic", "metavar": "SOURCE", "help": "as of ablations/run.py"},
        "--rounds": {"type": count, "default": 5, "help": "bursts of each side"},
        "--steps": {"type": count, "default": 30, "help": "timed steps of a burst"},
    },
)
