"""What `--prune` costs and saves on real data: the pruned grid and the full one on the same model, both recorded.

python -m benchmarks.pruning_real --data DIR --runs RUNS --seeds 0 1

DIR is a data folder with glue/cola and glue/rte. An interrupted measurement goes on where it was, in the same RUNS.
"""

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ablations.ladder import variants
from ablations.plan import scaled_variant, vocabulary_of
from ablations.protocol import EXTENDED_GRID, PRUNING
from ablations.runs import glue_studies, measured_checkpoints, pretraining_runs
from ablations.scales import execution_at, scaled, synthetic_documents
from benchmarks.measuring import load
from benchmarks.results import Goal, write_result
from neobert.data.preparation import open_specified, specify
from neobert.glue.competition import savings
from neobert.launching.here import REPOSITORY, worker_environment
from neobert.layout import Layout
from neobert.progress import trial_files
from neobert.recipe import Grid
from neobert.records import read_record
from neobert.specifications import GlueStudy, Source, Start, write_run_file

VARIANT = "M5"
TASKS = ("cola", "rte")
GOAL = Goal(0.26, "at most", "steps of the pruned grid / of the full grid ({points} points, CoLA and RTE, smoke scale)")
GRIDS = {
    "wide": Grid(
        batch_sizes=(8, 16, 32), learning_rates=(2e-4, 4e-4, 7e-4, 1e-3, 1.5e-3, 2.5e-3), weight_decays=(1e-2,)
    ),
    "extended at smoke scale": EXTENDED_GRID,
}
FROM_PRETRAINING = Start(
    kind="pretraining", task=None, study=None, rule=None, reason="one task alone is measured, without transfer"
)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pruning_real", description=__doc__)
    parser.add_argument("--data", required=True, help="data folder")
    parser.add_argument("--runs", type=Path, required=True, help="folder of runs")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of fine-tuning (default: 0)")
    options = parser.parse_args()
    pretrain(options.data, options.runs)
    specification = specify(options.data, synthetic_documents("smoke"))
    figures: dict[str, Any] = {"load_before": load(), "pruning": PRUNING.model_dump(), "variant": VARIANT}
    shares: dict[str, list[float]] = {name: [] for name in GRIDS}
    for name, grid in GRIDS.items():
        rows, layout = [], folder_of_grid(options.runs.resolve(), name)
        for study in studies(specification, grid, options.seeds):
            rows.append(compared(layout, study, specification))
            shares[name].append(rows[-1]["share of the full grid's steps"])
            print(name, rows[-1], flush=True)
        figures[name] = {"studies": rows, **summary(rows)}
    figures["extended at smoke scale"]["note"] = "four points a grid: there is nothing to halve"
    figures["load_after"] = load()
    points = len(GRIDS["wide"].points())
    goal = Goal(GOAL.bound, GOAL.side, GOAL.of.format(points=points))
    print(write_result("pruning_real", statistics.fmean(shares["wide"]), goal, figures).read_text())
    return 0


def pretrain(data: str, runs: Path) -> None:
    """The real command; at once where the run is done."""
    command = [sys.executable, str(REPOSITORY / "ablations" / "run.py"), "--variant", VARIANT, "--data", data]
    command += ["--scale", "smoke", "--stages", "pretrain", "--runs", str(runs), "--cluster", "here", "--workers", "1"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def folder_of_grid(runs: Path, name: str) -> Layout:
    """A folder of runs for one grid on the same weights: grids share trials, and here none may profit from another."""
    root = runs / "grids" / name.replace(" ", "-")
    root.mkdir(parents=True, exist_ok=True)
    for shared in ("pretraining", "data"):
        if not (root / shared).exists():
            (root / shared).symlink_to(runs / shared, target_is_directory=True)
    return Layout(root)


def studies(specification: Source, grid: Grid, seeds: Sequence[int]) -> Iterator[GlueStudy]:
    """The pruned study of each seed and task, from the pre-trained weights."""
    source, variant = open_specified(specification), variants()[VARIANT]
    vocabulary = vocabulary_of(source)
    recipe, _ = scaled_variant(variant, "smoke", vocabulary)
    if grid is EXTENDED_GRID:
        grid = scaled(variant.recipe.model_copy(update={"grid": grid}), "smoke", vocabulary).grid
    run = pretraining_runs(recipe.pretraining, 0, source)[-1]
    for seed in seeds:
        (checkpoint,) = measured_checkpoints(recipe, [run], seed)
        for study in glue_studies(checkpoint, source, PRUNING):
            if study.task in TASKS:
                yield study.model_copy(update={"points": grid.points(), "starts_from": FROM_PRETRAINING})


def compared(layout: Layout, pruned: GlueStudy, specification: Source) -> dict[str, Any]:
    """Run the pruned study, then the full one: what went to its end in the first is not run again in the second."""
    for study in (pruned, pruned.model_copy(update={"pruning": None})):
        write_run_file(layout, study, specification, execution_at("smoke"), {"variants": [VARIANT]})
        reference = f"glue/{study.task}/studies/{study.id}"
        command = [sys.executable, "-m", "neobert.work", "--runs", str(layout.root), reference]
        subprocess.run(command, check=True, env=worker_environment(execution_at("smoke").threads))
    saved = savings(layout, pruned)
    full = [read_record(files.record)["scores"]["score"] for files in trial_files(layout, pruned)]
    assert saved.full_steps is not None and saved.full_best is not None and saved.best is not None
    return {
        "task": pruned.task,
        "seed": pruned.seed,
        **asdict(saved),
        "share of the full grid's steps": round(saved.steps / saved.full_steps, 4),
        "regret": round(saved.full_best - saved.best, 4),
        "scores of the full grid": full,
    }


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Share, regret and, to measure the regret by, the standard deviation that the seed alone makes, by task."""
    answer = {}
    for task in TASKS:
        own = [row for row in rows if row["task"] == task]
        shares, regrets = ([row[key] for row in own] for key in ("share of the full grid's steps", "regret"))
        by_point = list(zip(*(row["scores of the full grid"] for row in own), strict=True))
        deviations = [statistics.stdev(scores) for scores in by_point] if len(own) > 1 else []
        answer[task] = {
            "mean share of the full grid's steps": round(statistics.fmean(shares), 4),
            "mean regret": round(statistics.fmean(regrets), 4),
            "largest regret": max(regrets),
            "seed standard deviation of a point, mean": round(statistics.fmean(deviations), 4) if deviations else None,
        }
    return {"by task": answer}


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
