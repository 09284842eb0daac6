"""Pre-training in one process and in two, one thread each, through the worker's own command; and what they exchange.

python -m benchmarks.scaling_processes [--repetitions N]
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.runs import pretraining_runs
from benchmarks.contenders import neobert_recipe
from benchmarks.measuring import load
from benchmarks.results import Goal, write_result
from neobert.data.preparation import open_specified, tokenized_corpus
from neobert.files import read_lines
from neobert.launching.here import available_cores, worker_environment
from neobert.layout import Layout
from neobert.model.size import parameter_count
from neobert.recipe import Pretraining, Subset
from neobert.specifications import Execution, PretrainingRun, Source, write_run_file

SOURCE = Source(name="synthetic", synthetic_documents=2000)
LOOPBACK = Path("/sys/class/net/lo/statistics/tx_bytes")
CONTEXT = 96
ROWS_PER_STEP = (8, 64)
"""Rows of a step at smoke scale, and enough of them to compute for longer than to exchange gradients."""

GOAL = Goal(
    1.6, "at least", f"real tokens a second: two processes / one (one thread each, {ROWS_PER_STEP[-1]} rows a step)"
)

STEPS = 24
WARM_UP_STEPS = 4
PROCESSES = 2


@dataclass(frozen=True)
class Speed:
    """Median real tokens a second, and the bytes a step that anyone on this machine sent to it."""

    tokens_per_second: float
    loopback_bytes_per_step: float | None


def recipe_with(rows: int) -> Pretraining:
    """NeoBERT at the smoke scale's shape on full rows, `rows` of them a step."""
    recipe = neobert_recipe("bf16", layers=6, width=120, heads=4, feedforward_width=480, vocabulary_size=1024)
    whole = {"context": CONTEXT, "tokens_per_step": rows * CONTEXT, "mixture": (Subset(minimum_tokens=0, share=1.0),)}
    short = {"steps": STEPS, "warmup_steps": 0, "decay_steps": 0}
    stage = recipe.stages[0].model_copy(update=whole | short)
    return recipe.model_copy(update={"stages": (stage,), "packing": "packed"})


def speed_of(root: Path, run: PretrainingRun, processes: int) -> Speed:
    """Train `run` in the folder with the real worker; it must not have been trained there."""
    rows_each = run.recipe.stages[0].tokens_per_step // CONTEXT // PROCESSES
    execution = Execution(
        threads=1, processes=processes, micro_batch_tokens=rows_each * CONTEXT, checkpoint_interval_steps=STEPS
    )
    folder = write_run_file(Layout(root), run, SOURCE, execution, {"variants": ["M10"]})
    before = _loopback_bytes()
    command = [sys.executable, "-m", "neobert.work", "--runs", str(root), f"pretraining/{run.id}"]
    subprocess.run(command, check=True, env=worker_environment(1))
    after = _loopback_bytes()
    lines = [line for line in read_lines(folder / "metrics.jsonl") if "loss" in line][WARM_UP_STEPS:]
    speed = statistics.median(line["real_tokens"] / line["seconds"] for line in lines)
    return Speed(speed, None if before is None or after is None else (after - before) / STEPS)


def _loopback_bytes() -> int | None:
    return int(LOOPBACK.read_text()) if LOOPBACK.exists() else None


def ring_bytes(parameters: int, processes: int) -> float:
    """What one process sends a step where fp32 gradients are summed around a ring (Patarasuk and Yuan 2009)."""
    return 4 * parameters * 2 * (processes - 1) / processes


def compared(corpora: Path, rows: int, repetitions: int) -> dict[str, Any]:
    """Both numbers of processes in turns on the tokenised corpora of one folder."""
    (run,) = pretraining_runs(recipe_with(rows), 0, open_specified(SOURCE))
    speeds: dict[int, list[Speed]] = {1: [], PROCESSES: []}
    for repetition in range(repetitions):
        for processes in sorted(speeds, reverse=repetition % 2 == 1):
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "data").symlink_to(corpora / "data")
                speeds[processes].append(speed_of(Path(folder), run, processes))
            print(f"  {rows} rows a step, {processes} processes: {speeds[processes][-1]}", flush=True)
    return _figures(run, rows, speeds)


def _figures(run: PretrainingRun, rows: int, speeds: dict[int, list[Speed]]) -> dict[str, Any]:
    parameters = parameter_count(run.recipe.model, CONTEXT).total
    pairs = zip(speeds[1], speeds[PROCESSES], strict=True)
    observed = {count: [speed.loopback_bytes_per_step for speed in found] for count, found in speeds.items()}
    return {
        "rows per step": rows,
        "ratio": round(statistics.median(both.tokens_per_second / one.tokens_per_second for one, both in pairs), 3),
        "real tokens per second": {
            f"{count} processes": [round(speed.tokens_per_second) for speed in found] for count, found in speeds.items()
        },
        "parameters": parameters,
        "bytes per step that all processes send, computed": PROCESSES * ring_bytes(parameters, PROCESSES),
        "bytes per step seen on the loopback device": {
            f"{count} processes": [None if value is None else round(value) for value in found]
            for count, found in observed.items()
        },
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling_processes", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2, help="of each number of processes (default: 2)")
    options = parser.parse_args(arguments)
    if available_cores() < PROCESSES:
        write_result("scaling_processes", None, GOAL, {"reason": f"fewer than {PROCESSES} cores"})
        return 0
    figures: dict[str, Any] = {"load_before": load()}
    with tempfile.TemporaryDirectory() as folder:
        corpora = Path(folder)
        (run,) = pretraining_runs(recipe_with(ROWS_PER_STEP[0]), 0, open_specified(SOURCE))
        tokenized_corpus(Layout(corpora), run, SOURCE)
        measured = [compared(corpora, rows, options.repetitions) for rows in ROWS_PER_STEP]
    figures |= {"load_after": load(), "steps": STEPS, "by rows per step": measured}
    print(write_result("scaling_processes", measured[-1]["ratio"], GOAL, figures).read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
