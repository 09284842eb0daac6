"""Grid points an hour on CoLA and MRPC: one worker process for all of them, against transformers' Trainer in a fresh
process a point. Same weights, examples, batch sizes, rates, steps and numbers of evaluations.

python -m benchmarks.glue_trainer [--data DIR]      DIR/glue holds the tasks; else synthetic ones
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from benchmarks.grid_world import SOURCE, World, pretrained_world
from benchmarks.measuring import in_turns, load, median_ratio, seconds
from benchmarks.results import FOLDER, Goal, write_result, write_unmeasured
from benchmarks.trainer_peer import Job
from neobert.command_line import guarded
from neobert.data.preparation import open_specified, specify, text_tokenizer
from neobert.export.__main__ import export
from neobert.glue.encoding import EncodedTask, encode_task
from neobert.glue.finetuning import FineTuner
from neobert.glue.tasks import task_named
from neobert.launching.here import worker_environment
from neobert.layout import Layout
from neobert.model.build import build_classifier
from neobert.progress import TrialFiles
from neobert.recipe import Point
from neobert.records import read_record
from neobert.specifications import GlueStudy
from neobert.training import checkpoints

NAME = "glue_over_trainer"
GOAL = Goal(2.0, "at least", "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (CPU)")
GPU_GOAL = Goal(4.0, "at least", "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (GPU)")
TASKS = ("cola", "mrpc")
POINTS = tuple(Point(batch_size=size, learning_rate=3e-4, weight_decay=1e-2) for size in (4, 8))
TRAIN_EXAMPLES, EPOCHS = 256, 3
OURS, THEIRS = "one worker", "Trainer, one process a point"
ON_CPU = {"CUDA_VISIBLE_DEVICES": ""}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.glue_trainer", description=__doc__)
    parser.add_argument("--data", help="data folder with glue, corpora and tokenizers (default: synthetic)")
    parser.add_argument("--repetitions", type=int, default=1, help="of the grid (default: 1)")
    parser.add_argument("--train-examples", type=int, default=TRAIN_EXAMPLES, help=f"default: {TRAIN_EXAMPLES}")
    options = parser.parse_args(arguments)
    if find_spec("accelerate") is None:
        print("not measured: Trainer needs accelerate; pip install -e '.[export]'", file=sys.stderr)
        write_unmeasured(NAME, GOAL)
        write_unmeasured(f"{NAME}_gpu", GPU_GOAL)
        return 0
    return guarded("benchmarks.glue_trainer", lambda: measure(options), FOLDER)


def measure(options: argparse.Namespace) -> int:
    """Write both results."""
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest.prepared(Path(folder), options.data, options.train_examples)
        figures = contest.measured(options.repetitions, ON_CPU)
        ratio = figures["points an hour, ratio"]["processor"]
        print(write_result(NAME, ratio, GOAL, figures).read_text())
        if not torch.cuda.is_available():
            write_unmeasured(f"{NAME}_gpu", GPU_GOAL)
            return 0
        figures = contest.measured(options.repetitions, {})
        write_result(f"{NAME}_gpu", figures["points an hour, ratio"]["wall"], GPU_GOAL, figures)
    return 0


@dataclass
class Contest:
    """A pre-trained model in a folder of runs and as exported files, and what came out of both sides, by repetition."""

    world: World
    exported: Path
    scratch: Path

    @classmethod
    def prepared(cls, root: Path, data: str | None, train_examples: int) -> "Contest":
        """Pre-train a few steps and export them."""
        source = SOURCE if data is None else specify(data, SOURCE.synthetic_documents)
        world = pretrained_world(root / "pretrained", source)
        short = {"train_examples": train_examples, "epochs": EPOCHS}
        alone = world.study.starts_from  # CoLA's: pre-training. MRPC would come from MNLI
        studies = {task: shortened(world.studies[task], short, {"starts_from": alone}) for task in TASKS}
        with redirect_stdout(sys.stderr):
            export(Layout(world.root).pretraining(world.run.id), "hf", root / "exported", None)
        return cls(World(world.root, world.run, source, studies), root / "exported", root)

    def measured(self, repetitions: int, variables: Mapping[str, str]) -> dict[str, Any]:
        """Both sides in turns; `variables` join the environment of every process."""
        before, ours, theirs = load(), [], []
        sides = {
            OURS: lambda: ours.append(self.worked(variables)),
            THEIRS: lambda: theirs.append(self.trained_by_trainer(variables)),
        }
        timings = in_turns(sides, repetitions)
        require_training(OURS, losses := self.training_losses())
        require_training(THEIRS, {point: outcome["losses"] for point, outcome in theirs[0].items()})
        return {
            "points": len(TASKS) * len(POINTS),
            "train examples": self.world.study.protocol.train_examples,
            "epochs": EPOCHS,
            "points an hour, ratio": median_ratio(timings[THEIRS], timings[OURS]),
            OURS: {**seconds(timings[OURS]), "trials": ours[0], "mean losses of training": losses},
            THEIRS: {**seconds(timings[THEIRS]), "trials": theirs[0]},
            "load_before": before,
            "load_after": load(),
        }

    def worked(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """The real worker in one process for the studies of all tasks."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
            copy = self.world.copied_to(Path(folder) / "runs")
            copy.work(*(copy.on(task).write_study(POINTS) for task in TASKS), variables=variables)
            records = {
                _name(task, point): read_record(TrialFiles(Layout(copy.root), copy.on(task).study, point).record)
                for task in TASKS
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

    def trained_by_trainer(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """A process a point, one after the other."""
        return {
            _name(task, point): self._one_process(self._job(task, point), variables)
            for task in TASKS
            for point in POINTS
        }

    def _one_process(self, job: Job, variables: Mapping[str, str]) -> dict[str, Any]:
        path = self.scratch / "job.json"
        path.write_text(job.model_dump_json(), encoding="utf-8")
        command = [sys.executable, "-m", "benchmarks.trainer_peer", str(path)]
        environment = worker_environment(1) | {"TRANSFORMERS_VERBOSITY": "error"} | dict(variables)
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
        outcome: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return outcome

    def _job(self, task: str, point: Point) -> Job:
        study = self.world.studies[task]
        return Job(
            model=str(self.exported),
            task=task,
            source=self.world.source,
            protocol=study.protocol,
            point=point,
            seed=study.seed,
        )

    def training_losses(self) -> dict[str, list[float]]:
        """Mean training losses between evaluations, which records do not hold: the last point of each task again."""
        return {_name(task, POINTS[-1]): self._losses(self.world.studies[task], POINTS[-1]) for task in TASKS}

    def _losses(self, study: GlueStudy, point: Point) -> list[float]:
        run, protocol, task = self.world.run, study.protocol, self._encoded(study)
        newest = checkpoints.newest(Layout(self.world.root).pretraining(run.id) / "checkpoints")
        assert newest is not None
        start = {name: tensor for name, tensor in newest.weights().items() if name.startswith("model.")}
        labels = task.task.labels
        classifier = build_classifier(run.recipe.model, run.context, labels, protocol.pooling, protocol.dropout)
        tuner = FineTuner(classifier, start, task, protocol, torch.device("cpu"))
        return [round(evaluation.loss, 4) for evaluation in tuner.evaluations(point, study.seed)]

    def _encoded(self, study: GlueStudy) -> EncodedTask:
        source, task, recipe = open_specified(self.world.source), task_named(study.task), self.world.run.recipe
        layout, size = Layout(self.world.root), recipe.model.vocabulary_size
        tokenizer = text_tokenizer(layout, source, recipe.data.tokenizer, size, self.world.run.tokenizer_origin)
        splits = {split: source.task_examples(study.task, split) for split in task.splits}
        return encode_task(task, splits, tokenizer, study.protocol.max_tokens)


def shortened(study: GlueStudy, protocol: Mapping[str, Any], changes: Mapping[str, Any]) -> GlueStudy:
    """A study with another protocol."""
    return study.model_copy(update={"protocol": study.protocol.model_copy(update=protocol), **changes})


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


if __name__ == "__main__":
    sys.exit(main())
