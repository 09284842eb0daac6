"""Speed of a small fine-tuning grid with this project's worker and with transformers' Trainer."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import torch

from ablations.api import TrainedVariant, train
from ablations.launch.execute import Workspace
from ablations.names import one_variant
from ablations.recipe_runs import variant_studies
from ablations.scaling import scaled_variant, vocabulary_of
from benchmarks.measuring import Result, in_new_process, paired_ratio, time_in_turns
from benchmarks.trainer_peer import train_points
from neobert.export.huggingface import require_packages
from neobert.export.publishing import export
from neobert.kinds.glue import GlueStudy
from neobert.processes import REPOSITORY, worker_environment
from neobert.recipe import Point
from neobert.runs.run_file import write_run_file

SPEED_LADDER, TURNS = REPOSITORY / "benchmarks" / "speed.py", 3
OURS, THEIRS, TOGETHER = "one worker", "Trainer, one process a point", "Trainer, one process for all points"
Grid = Sequence[tuple[GlueStudy, Point]]


class GridSetting(NamedTuple):
    """A grid on a variant that was pre-trained at a scale."""

    variant: str
    scale: str
    tasks: tuple[str, ...]
    points: tuple[Point, ...]
    train_examples: int | None
    epochs: int


def points_at(rate: float, *batch_sizes: int) -> tuple[Point, ...]:
    return tuple(Point(batch_size=size, learning_rate=rate, weight_decay=1e-2) for size in batch_sizes)


CPU_SETTING = GridSetting(
    "M9@steps0.004", "smoke", ("cola", "mrpc"), points_at(3e-4, 4, 8), train_examples=256, epochs=3
)
GPU_SETTING = GridSetting(
    "M8", "initial", ("rte", "mrpc", "cola"), points_at(1e-5, 16, 32), train_examples=None, epochs=1
)
"""Whole tasks at 28 × 768, with initial weights."""


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Grid points on tasks of GLUE: one worker process for all of them, against transformers' Trainer in a fresh
    process a point, and in one for all. Same weights, examples, batch sizes, rates, steps and numbers of
    evaluations. On a GPU whole tasks at 28 × 768, else parts of two at smoke scale."""
    require_packages("accelerate")  # without which Trainer refuses to start
    on_gpu = torch.cuda.is_available()
    setting = GPU_SETTING if on_gpu else CPU_SETTING
    with tempfile.TemporaryDirectory() as folder:
        place = {"data": options.data, "runs": Path(folder) / "runs", "workers": 1, "ladder": SPEED_LADDER}
        trained = train(setting.variant, setting.scale, **place)
        model = Path(folder) / "exported"
        export(trained.folder, "hf", model, None)
        grid = [(study, point) for study in few_studies(trained, setting) for point in study.points]
        sides = {
            OURS: partial(train_by_worker, trained.workspace, grid, setting.variant),
            THEIRS: partial(train_by_trainer, trained.workspace, [[each] for each in grid], model),
            TOGETHER: partial(train_by_trainer, trained.workspace, [grid], model),
        }
        timings = time_in_turns(sides, TURNS)
    ratios = {side: paired_ratio(timings[OURS], timings[side]) for side in (THEIRS, TOGETHER)}
    figures = {"ratios": ratios, "seconds": {side: [each.wall for each in found] for side, found in timings.items()}}
    ratio = ratios[THEIRS]["wall" if on_gpu else "processor"]
    yield Result(f"glue_over_trainer{'_gpu' if on_gpu else ''}", ratio, figures)


def few_studies(trained: TrainedVariant, setting: GridSetting) -> list[GlueStudy]:
    """Return the study of each task with the points of the setting. All start from pre-training, as CoLA does in the
    ladder (other tasks start from MNLI)."""
    ladder, source = trained.workspace.ladder, trained.workspace.source
    recipe, _ = scaled_variant(ladder, one_variant(ladder, setting.variant), setting.scale, vocabulary_of(source))
    planned = {study.task: study for study in variant_studies(ladder, recipe, trained.stages, 0, source)}
    cola, size = planned["cola"], {"train_examples": setting.train_examples, "epochs": setting.epochs}
    changes = {"protocol": cola.protocol.model_copy(update=size), "starts_from": cola.starts_from}
    return [planned[task].model_copy(update=changes | {"points": setting.points}) for task in setting.tasks]


def train_by_worker(workspace: Workspace, grid: Grid, variant: str) -> None:
    """Train all points anew in one worker."""
    layout, execution = workspace.layout, workspace.execution
    shutil.rmtree(layout.root / "glue", ignore_errors=True)
    studies = {study.task: study for study, _ in grid}
    for study in studies.values():
        write_run_file(layout, study, workspace.specification, execution, {"variants": [variant]})
    references = (f"glue/{task}/studies/{study.id}" for task, study in studies.items())
    command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(layout.root), *references]
    subprocess.run(command, check=True, env=worker_environment(execution.threads))


def train_by_trainer(workspace: Workspace, grids: Sequence[Grid], model: Path) -> None:
    """Train each grid with Trainer in a process of its own, one after the other."""
    environment = worker_environment(workspace.execution.threads) | {"TRANSFORMERS_VERBOSITY": "error"}
    with mock.patch.dict(os.environ, environment):
        for grid in grids:
            in_new_process(train_points, str(model), workspace.specification, grid)
