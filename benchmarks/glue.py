"""Speed of a small fine-tuning grid with this project's worker and with transformers' Trainer, on a CPU."""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from ablations.api import train, variants
from ablations.recipe_runs import variant_studies
from ablations.scales import execution_at, scaled_variant, vocabulary_of
from benchmarks.measuring import Result, in_new_process, median_ratio, seconds_of, time_in_turns
from benchmarks.trainer_peer import train_point
from neobert.data.preparation import open_specified, specify
from neobert.export.publishing import export
from neobert.kinds.glue import GlueStudy
from neobert.processes import worker_environment
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import SourceSpecification, write_run_file

NAME = "glue_over_trainer"
VARIANT, PRETRAINING_STEPS, TRAIN_EXAMPLES, EPOCHS = "M10", 20, 256, 3
TASKS = ("cola", "mrpc")
POINTS = tuple(Point(batch_size=size, learning_rate=3e-4, weight_decay=1e-2) for size in (4, 8))
OURS, THEIRS = "one worker", "Trainer, one process a point"


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Grid points on CoLA and MRPC: one worker process for all of them, against transformers' Trainer in a fresh
    process a point. Same weights, examples, batch sizes, rates, steps and numbers of evaluations."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES=""):
        contest = Contest.prepare(Path(folder), options.data or "synthetic")
        sides = {OURS: contest.train_by_worker, THEIRS: contest.train_by_trainer}
        timings = time_in_turns(sides, options.repetitions or 1)
    for point, outcome in timings[THEIRS][0].returned.items():
        losses = outcome["losses"]
        assert losses[-1] < losses[0], f"{point}: the training loss of Trainer did not go down: {losses}"
    ratio = median_ratio(timings[THEIRS], timings[OURS])
    figures = {side: {**seconds_of(found), "trials": found[0].returned} for side, found in timings.items()}
    yield Result(NAME, ratio["processor"], {"points an hour, ratio": ratio, **figures})


@dataclass(frozen=True)
class Contest:
    """A folder of runs with a pre-trained model, its export, and a GLUE study for each task."""

    runs: Path
    model: Path
    source: SourceSpecification
    studies: tuple[GlueStudy, ...]

    @classmethod
    def prepare(cls, runs: Path, data: str) -> "Contest":
        """Pre-train at smoke scale and export the model. Shapes and tasks are those of the scale. Both tasks start from
        pre-training (in the study, MRPC starts from MNLI)."""
        trained = train(VARIANT, "smoke", steps=PRETRAINING_STEPS, data=data, runs=runs, workers=1)
        export(trained.folder, "hf", runs / "exported", None, with_code=False)
        specification = specify(data, 2000)
        source = open_specified(specification)
        recipe, _ = scaled_variant(variants()[VARIANT], "smoke", vocabulary_of(source))
        planned = {study.task: study for study in variant_studies(recipe, trained.stages, 0, source)}
        protocol = planned[TASKS[0]].protocol.model_copy(update={"train_examples": TRAIN_EXAMPLES, "epochs": EPOCHS})
        changes = {"protocol": protocol, "starts_from": planned[TASKS[0]].starts_from, "points": POINTS}
        studies = tuple(planned[task].model_copy(update=changes) for task in TASKS)
        return cls(runs, runs / "exported", specification, studies)

    def train_by_worker(self) -> dict[str, Any]:
        """Train all points anew in one worker; return steps and seconds of each."""
        shutil.rmtree(self.runs / "glue", ignore_errors=True)
        layout, execution = Layout(self.runs), execution_at("smoke")
        for study in self.studies:
            write_run_file(layout, study, self.source, execution, {"variants": [VARIANT]})
        references = (f"glue/{study.task}/studies/{study.id}" for study in self.studies)
        command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(self.runs), *references]
        subprocess.run(command, check=True, env=worker_environment(execution.threads))
        records = {
            f"{study.task}, batch {point.batch_size}": read_record(study.trial(layout, point).record)
            for study in self.studies
            for point in POINTS
        }
        return {name: {key: record[key] for key in ("steps", "seconds")} for name, record in records.items()}

    def train_by_trainer(self) -> dict[str, Any]:
        """Train each point with Trainer in a process of its own, one after the other."""
        with mock.patch.dict(os.environ, worker_environment(1) | {"TRANSFORMERS_VERBOSITY": "error"}):
            return {
                f"{study.task}, batch {point.batch_size}": in_new_process(
                    train_point, str(self.model), study, self.source, point
                )
                for study in self.studies
                for point in POINTS
            }
