"""One worker process for a whole grid against a fresh process for every point: same code, points, seed and results.

python -m benchmarks.grid_one_process
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.grid_world import WIDE_GRID, World, pretrained_world
from benchmarks.measuring import in_turns, load, median_ratio, seconds
from benchmarks.results import Goal, write_result
from neobert.launching.here import worker_environment
from neobert.recipe import Point

GOAL = Goal(0.5, "at most", "processor time of one process for the smoke extended grid / of one process a point")
ONE, EACH, UNCACHED = "one process", "one process a point", "one process a point, task tokenised each time"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grid_one_process", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=1, help="of the small grid (default: 1)")
    parser.add_argument("--wide-repetitions", type=int, default=0, help="of the wide grid (default: 0)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        world = pretrained_world(Path(folder) / "pretrained")
        figures: dict[str, Any] = {"load_before": load()}
        small = measured(world, world.study.points, options.repetitions, (ONE, EACH, UNCACHED))
        figures["smoke extended grid"] = small
        if options.wide_repetitions:
            figures["wide grid"] = measured(world, WIDE_GRID.points(), options.wide_repetitions, (ONE, EACH))
        figures["start-up of a process, median seconds"] = start_up(world, Path(folder) / "start", 3)
        figures["load_after"] = load()
    print(write_result("grid_one_process", small["ratio"][EACH]["processor"], GOAL, figures).read_text())
    return 0


def measured(world: World, points: Sequence[Point], repetitions: int, ways: Sequence[str]) -> dict[str, Any]:
    """The ways to run the points in turns. The results of all are equal to the bit, or this fails."""
    print(f"{len(points)} points", flush=True)
    outcomes: list[Any] = []
    trial_seconds: dict[str, list[float]] = {way: [] for way in ways}

    def contender(way: str) -> Callable[[], None]:
        def run() -> None:
            with tempfile.TemporaryDirectory() as folder:
                copy = world.copied_to(Path(folder) / "runs")
                serve(copy, points, way)
                outcomes.append(copy.outcomes(points))
                trial_seconds[way].append(copy.seconds_of_trials(points))

        return run

    timings = in_turns({way: contender(way) for way in ways}, repetitions)
    if any(outcome != outcomes[0] for outcome in outcomes):
        raise AssertionError("the ways to run a grid gave different scores or predictions")
    return {
        "points": len(points),
        "results equal to the bit": True,
        "ratio": {way: median_ratio(timings[ONE], timings[way]) for way in ways if way != ONE},
        **{way: seconds(timings[way]) | {"of which in trials": _rounded(trial_seconds[way])} for way in ways},
    }


def serve(world: World, points: Sequence[Point], way: str) -> None:
    """Run all points in the folder of `world`, in one process or one after the other."""
    if way == ONE:
        world.work(world.write_study(points))
        return
    for point in points:
        if way == UNCACHED:
            world.forget_encoded_tasks()
        world.work(world.write_study([point]))


def start_up(world: World, root: Path, repetitions: int) -> dict[str, float]:
    """Median seconds of the parts of a start."""
    copy = world.copied_to(root)
    reference = copy.write_study(world.study.points[:1])
    copy.work(reference)
    command = [sys.executable, "-m", "benchmarks.start_up", str(root), reference]
    answers = [
        json.loads(subprocess.run(command, check=True, capture_output=True, env=worker_environment(1)).stdout)
        for _ in range(repetitions)
    ]
    return {part: round(statistics.median(answer[part] for answer in answers), 3) for part in answers[0]}


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]


if __name__ == "__main__":
    sys.exit(main())
