"""Speed of a small fine-tuning grid with this project's worker and with transformers' Trainer, on a CPU."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from ablations.api import TrainedVariant, train
from ablations.launch.execute import Workspace
from ablations.recipe_runs import variant_studies
from ablations.scaling import scaled_variant, vocabulary_of
from benchmarks.measuring import Result, comparison, in_new_process, time_in_turns
from benchmarks.trainer_peer import train_point
from neobert.export.huggingface import require_packages
from neobert.export.publishing import export
from neobert.kinds.glue import GlueStudy
from neobert.processes import worker_environment
from neobert.recipe import Point
from neobert.runs.records import read_record
from neobert.runs.run_file import write_run_file

VARIANT, PRETRAINING_STEPS, TRAIN_EXAMPLES, EPOCHS = "M10", 20, 256, 3
TASKS = ("cola", "mrpc")
POINTS = tuple(Point(batch_size=size, learning_rate=3e-4, weight_decay=1e-2) for size in (4, 8))
Grid = Mapping[str, tuple[GlueStudy, Point]]
OURS, THEIRS = "one worker", "Trainer, one process a point"


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Grid points on CoLA and MRPC: one worker process for all of them, against transformers' Trainer in a fresh
    process a point. Same weights, examples, batch sizes, rates, steps and numbers of evaluations."""
    require_packages("accelerate")  # without which Trainer refuses to start
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
        trained = train(VARIANT, "smoke", steps=PRETRAINING_STEPS, data=options.data, runs=folder, workers=1)
        model = Path(folder) / "exported"
        export(trained.folder, "hf", model, None, with_code=False)
        studies = few_studies(trained)
        grid = {f"{each.task}, batch {point.batch_size}": (each, point) for each in studies for point in POINTS}
        sides = {
            OURS: partial(train_by_worker, trained.workspace, grid),
            THEIRS: partial(train_by_trainer, trained.workspace, grid, model),
        }
        timings = time_in_turns(sides, options.repetitions or 1)
    for point, outcome in timings[THEIRS][0].returned.items():
        losses = outcome["losses"]
        assert losses[-1] < losses[0], f"{point}: the training loss of Trainer did not go down: {losses}"
    figures = comparison(OURS, THEIRS, timings)
    trials = {f"trials of {side}": found[0].returned for side, found in timings.items()}
    yield Result("glue_over_trainer", figures["ratio"]["processor"], figures | trials)


def few_studies(trained: TrainedVariant) -> list[GlueStudy]:
    """Return the study of each task with few examples and points. Both tasks start from pre-training (in the ladder,
    MRPC starts from MNLI)."""
    ladder, source = trained.workspace.ladder, trained.workspace.source
    recipe, _ = scaled_variant(ladder, ladder.variants[VARIANT], "smoke", vocabulary_of(source))
    planned = {study.task: study for study in variant_studies(ladder, recipe, trained.stages, 0, source)}
    protocol = planned[TASKS[0]].protocol.model_copy(update={"train_examples": TRAIN_EXAMPLES, "epochs": EPOCHS})
    changes = {"protocol": protocol, "starts_from": planned[TASKS[0]].starts_from, "points": POINTS}
    return [planned[task].model_copy(update=changes) for task in TASKS]


def train_by_worker(workspace: Workspace, grid: Grid) -> dict[str, Any]:
    """Train all points anew in one worker; return steps and seconds of each."""
    layout, execution = workspace.layout, workspace.execution
    shutil.rmtree(layout.root / "glue", ignore_errors=True)
    studies = {study.task: study for study, _ in grid.values()}
    for study in studies.values():
        write_run_file(layout, study, workspace.specification, execution, {"variants": [VARIANT]})
    references = (f"glue/{task}/studies/{study.id}" for task, study in studies.items())
    command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(layout.root), *references]
    subprocess.run(command, check=True, env=worker_environment(execution.threads))
    records = {name: read_record(study.trial(layout, point).record) for name, (study, point) in grid.items()}
    return {name: {key: record[key] for key in ("steps", "seconds")} for name, record in records.items()}


def train_by_trainer(workspace: Workspace, grid: Grid, model: Path) -> dict[str, Any]:
    """Train each point with Trainer in a process of its own, one after the other."""
    with mock.patch.dict(os.environ, worker_environment(1) | {"TRANSFORMERS_VERBOSITY": "error"}):
        source = workspace.specification
        return {name: in_new_process(train_point, str(model), source, *each) for name, each in grid.items()}
