"""Grid points an hour on CoLA and MRPC: one worker process for all of them, against transformers' Trainer in a fresh
process a point. Same weights, examples, batch sizes, rates, steps and numbers of evaluations.

python -m benchmarks glue [--data DIR]      DIR/glue holds the tasks; else synthetic ones
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ablations.ladder import variants
from ablations.plan import pretraining_runs, variant_studies
from ablations.scales import execution_at, scaled_variant, vocabulary_of
from benchmarks.measuring import Goal, Measured, load_averages, measure_devices, median_ratio, seconds_of, time_in_turns
from benchmarks.trainer_peer import Job
from neobert.data.preparation import open_specified, specify, text_tokenizer
from neobert.export.__main__ import export
from neobert.glue.encoding import encode_task
from neobert.glue.finetuning import FineTuner
from neobert.glue.tasks import task_named
from neobert.model.build import build_classifier
from neobert.processes import worker_environment
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import Source, write_run_file
from neobert.runs.specifications import GlueStudy, PretrainingRun
from neobert.training import checkpoints

NAME = "glue_over_trainer"
GOAL = Goal(2.0, "at least", "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (CPU)")
GPU_GOAL = Goal(4.0, "at least", "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (GPU)")
VARIANT = "M10"
PRETRAINING_STEPS = 10
SOURCE = Source(name="synthetic", synthetic_documents=2000)
TASKS = ("cola", "mrpc")
POINTS = tuple(Point(batch_size=size, learning_rate=3e-4, weight_decay=1e-2) for size in (4, 8))
TRAIN_EXAMPLES, EPOCHS = 256, 3
OURS, THEIRS = "one worker", "Trainer, one process a point"
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


def main(arguments: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks glue", description=__doc__)
    parser.add_argument("--data", help="data folder with glue, corpora and tokenizers (default: synthetic)")
    parser.add_argument("--repetitions", type=int, default=1, help="of the grid (default: 1)")
    parser.add_argument("--train-examples", type=int, default=TRAIN_EXAMPLES, help=f"default: {TRAIN_EXAMPLES}")
    options = parser.parse_args(arguments)
    return measure_devices(NAME, GOAL, GPU_GOAL, partial(measure, options), command="glue", package="accelerate")


def measure(options: argparse.Namespace, device: str) -> Measured:
    """The whole grid on both sides."""
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest.prepare(Path(folder), options.data, options.train_examples)
        figures = contest.measure(options.repetitions, ON_CPU if device == "cpu" else {})
    return figures["points an hour, ratio"], figures


@dataclass(frozen=True)
class Contest:
    """A pre-trained model in a folder of runs and as exported files, and a GLUE study of it by task."""

    runs: Path
    exported: Path
    scratch: Path
    source: Source
    pretraining: PretrainingRun
    studies: Mapping[str, GlueStudy]

    @classmethod
    def prepare(cls, root: Path, data: str | None, train_examples: int) -> "Contest":
        """Pre-train a few steps at smoke scale and export them. The weights are those of no paper, shapes and tasks
        those of the scale; both tasks start from pre-training (in the study, MRPC starts from MNLI)."""
        specification = SOURCE if data is None else specify(data, SOURCE.synthetic_documents)
        source = open_specified(specification)
        recipe, _ = scaled_variant(variants()[VARIANT], "smoke", vocabulary_of(source))
        steps = {"steps": PRETRAINING_STEPS, "warmup_steps": 1, "decay_steps": PRETRAINING_STEPS}
        stage = recipe.pretraining.stages[0].model_copy(update=steps)
        (run,) = pretraining_runs(recipe.pretraining.model_copy(update={"stages": (stage,)}), 0, source)
        planned = {study.task: study for study in variant_studies(recipe, [run], 0, source)}
        protocol = planned[TASKS[0]].protocol.model_copy(update={"train_examples": train_examples, "epochs": EPOCHS})
        changes = {"protocol": protocol, "starts_from": planned[TASKS[0]].starts_from, "points": POINTS}
        studies = {task: planned[task].model_copy(update=changes) for task in TASKS}
        contest = cls(root / "pretrained", root / "exported", root, specification, run, studies)
        contest._write(contest.runs, run)
        contest._work(f"pretraining/{run.id}", variables={})
        with redirect_stdout(sys.stderr):
            export(Layout(contest.runs).pretraining(run.id), "hf", contest.exported, None)
        return contest

    def _write(self, runs: Path, specification: PretrainingRun | GlueStudy) -> None:
        write_run_file(Layout(runs), specification, self.source, execution_at("smoke"), {"variants": [VARIANT]})

    def _work(self, *references: str, variables: Mapping[str, str]) -> None:
        """Run the real worker in a process of its own; `variables` join its environment."""
        command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(self.runs), *references]
        environment = worker_environment(execution_at("smoke").threads) | dict(variables)
        subprocess.run(command, check=True, env=environment)

    def measure(self, repetitions: int, variables: Mapping[str, str]) -> dict[str, Any]:
        """Both sides in turns; `variables` join the environment of every process."""
        before = load_averages()
        ours: list[dict[str, Any]] = []
        theirs: list[dict[str, Any]] = []
        sides = {
            OURS: lambda: ours.append(self.train_by_worker(variables)),
            THEIRS: lambda: theirs.append(self.train_by_trainer(variables)),
        }
        timings = time_in_turns(sides, repetitions)
        losses = {_name(task, POINTS[-1]): self._training_losses(task, POINTS[-1]) for task in TASKS}
        require_training(OURS, losses)
        require_training(THEIRS, {point: outcome["losses"] for point, outcome in theirs[0].items()})
        return {
            "points": len(TASKS) * len(POINTS),
            "train examples": self.studies[TASKS[0]].protocol.train_examples,
            "epochs": EPOCHS,
            "points an hour, ratio": median_ratio(timings[THEIRS], timings[OURS]),
            OURS: {**seconds_of(timings[OURS]), "trials": ours[0], "mean losses of training": losses},
            THEIRS: {**seconds_of(timings[THEIRS]), "trials": theirs[0]},
            "load_before": before,
            "load_after": load_averages(),
        }

    def train_by_worker(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """The real worker in one process for the studies of all tasks."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            copy = replace(self, runs=Path(folder) / "runs")
            shutil.copytree(self.runs, copy.runs, ignore=shutil.ignore_patterns("glue", "claims"))
            for study in self.studies.values():
                copy._write(copy.runs, study)
            copy._work(
                *(f"glue/{task}/studies/{study.id}" for task, study in self.studies.items()), variables=variables
            )
            records = {
                _name(task, point): read_record(study.trial(Layout(copy.runs), point).record)
                for task, study in self.studies.items()
                for point in POINTS
            }
        return {
            name: {
                "scores": [score for _, score in record["scores"]["curve"]],
                "steps": record["steps"],
                "seconds": record["seconds"],
            }
            for name, record in records.items()
        }

    def train_by_trainer(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """A process a point, one after the other."""
        path, outcomes = self.scratch / "job.json", {}
        environment = worker_environment(1) | {"TRANSFORMERS_VERBOSITY": "error"} | dict(variables)
        for task, study in self.studies.items():
            for point in POINTS:
                job = Job(
                    model=str(self.exported),
                    task=task,
                    source=self.source,
                    protocol=study.protocol,
                    point=point,
                    seed=study.seed,
                )
                path.write_text(job.model_dump_json(), encoding="utf-8")
                command = [sys.executable, "-m", "benchmarks.trainer_peer", str(path)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
                outcomes[_name(task, point)] = json.loads(done.stdout.splitlines()[-1])
        return outcomes

    def _training_losses(self, name: str, point: Point) -> list[float]:
        """Mean training losses between evaluations, which records do not hold: a point trained again."""
        run, study, layout = self.pretraining, self.studies[name], Layout(self.runs)
        protocol, task, source = study.protocol, task_named(name), open_specified(self.source)
        newest = checkpoints.newest(layout.pretraining(run.id) / "checkpoints")
        assert newest is not None
        start = {name: tensor for name, tensor in newest.weights().items() if name.startswith("model.")}
        recipe = run.recipe
        tokenizer = text_tokenizer(
            layout, source, recipe.data.tokenizer, recipe.model.vocabulary_size, run.tokenizer_origin
        )
        splits = {split: source.task_examples(name, split) for split in task.splits}
        encoded = encode_task(task, splits, tokenizer, protocol.max_tokens)
        classifier = build_classifier(recipe.model, run.context, task.labels, protocol.pooling, protocol.dropout)
        tuner = FineTuner(classifier, start, encoded, protocol, torch.device("cpu"))
        return [round(evaluation.loss, 4) for evaluation in tuner.evaluations(point, study.seed)]


def require_training(side: str, losses: Mapping[str, Sequence[float]]) -> None:
    """Check that a side really trained.

    Raises:
        AssertionError: a loss did not go down.
    """
    for point, values in losses.items():
        if not values[-1] < values[0]:
            raise AssertionError(f"{side}, {point}: the training loss did not go down: {values}")


def _name(task: str, point: Point) -> str:
    return f"{task}, batch {point.batch_size}"
