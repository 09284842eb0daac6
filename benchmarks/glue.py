"""Speed of a small fine-tuning grid with this project's worker and with transformers' Trainer.

python -m benchmarks glue [--data DIR]      DIR/glue holds the tasks; else synthetic ones
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ablations.ladders import variants
from ablations.recipe_runs import pretraining_runs, variant_studies
from ablations.scales import execution_at, scaled_variant, vocabulary_of
from benchmarks.measuring import Benchmark, Goal, Result, devices_with, median_ratio, seconds_of, time_in_turns
from benchmarks.trainer_peer import TrainerJob
from neobert.command_line import count
from neobert.data.preparation import open_specified, specify
from neobert.export.publishing import export
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import visible_gpus, worker_environment
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.run_file import SourceSpecification, write_run_file

NAME = "glue_over_trainer"
VARIANT = "M10"
PRETRAINING_STEPS = 10
SYNTHETIC_DOCUMENTS = 2000
TASKS = ("cola", "mrpc")
POINTS = tuple(Point(batch_size=size, learning_rate=3e-4, weight_decay=1e-2) for size in (4, 8))
EPOCHS = 3
OURS, THEIRS = "one worker", "Trainer, one process a point"


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Grid points on CoLA and MRPC: one worker process for all of them, against transformers' Trainer in a fresh
    process a point. Same weights, examples, batch sizes, rates, steps and numbers of evaluations."""
    for device in devices_with("accelerate"):
        on_cpu = device == "cpu"
        with tempfile.TemporaryDirectory() as folder:
            contest = Contest.prepare(Path(folder), options.data, options.train_examples)
            visible = "" if on_cpu else visible_gpus()[0]  # Trainer would split a batch over several GPUs
            figures = contest.measure(options.repetitions, {"CUDA_VISIBLE_DEVICES": visible})
        ratio = figures["points an hour, ratio"]["processor" if on_cpu else "wall"]
        yield Result(NAME if on_cpu else f"{NAME}_gpu", ratio, figures)


GLUE = Benchmark(
    measure,
    {
        NAME: Goal(
            2.0, "at least", "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (CPU)"
        ),
        f"{NAME}_gpu": Goal(
            4.0, "at least", "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (GPU)"
        ),
    },
    {
        "--data": {"default": "synthetic", "help": "data folder with glue, corpora and tokenizers"},
        "--repetitions": {"type": count, "default": 1, "help": "of the grid"},
        "--train-examples": {"type": count, "default": 256, "help": "of each task"},
    },
)


@dataclass(frozen=True)
class Contest:
    """A pre-trained model in a folder of runs and as an export, with a GLUE study for each task."""

    runs: Path
    exported: Path
    scratch: Path
    source: SourceSpecification
    studies: Mapping[str, GlueStudy]

    @classmethod
    def prepare(cls, root: Path, data: str, train_examples: int) -> "Contest":
        """Pre-train a few steps at smoke scale and export the model. Shapes and tasks are those of the scale. Both
        tasks start from pre-training (in the study, MRPC starts from MNLI)."""
        specification = specify(data, SYNTHETIC_DOCUMENTS)
        source = open_specified(specification)
        recipe, _ = scaled_variant(variants()[VARIANT], "smoke", vocabulary_of(source))
        steps = {"steps": PRETRAINING_STEPS, "warmup_steps": 1, "decay_steps": PRETRAINING_STEPS}
        stage = recipe.pretraining.stages[0].model_copy(update=steps)
        (run,) = pretraining_runs(recipe.pretraining.model_copy(update={"stages": (stage,)}), 0, source)
        planned = {study.task: study for study in variant_studies(recipe, [run], 0, source)}
        protocol = planned[TASKS[0]].protocol.model_copy(update={"train_examples": train_examples, "epochs": EPOCHS})
        changes = {"protocol": protocol, "starts_from": planned[TASKS[0]].starts_from, "points": POINTS}
        studies = {task: planned[task].model_copy(update=changes) for task in TASKS}
        contest = cls(root / "pretrained", root / "exported", root, specification, studies)
        contest._write(contest.runs, run)
        contest._work(f"pretraining/{run.id}", variables={})
        with redirect_stdout(sys.stderr):
            export(Layout(contest.runs).pretraining(run.id), "hf", contest.exported, None, with_code=False)
        return contest

    def _write(self, runs: Path, specification: PretrainingRun | GlueStudy) -> None:
        write_run_file(Layout(runs), specification, self.source, execution_at("smoke"), {"variants": [VARIANT]})

    def _work(self, *references: str, variables: Mapping[str, str]) -> None:
        """Run the real worker in a separate process; `variables` are added to its environment."""
        command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(self.runs), *references]
        environment = worker_environment(execution_at("smoke").threads) | dict(variables)
        subprocess.run(command, check=True, env=environment)

    def measure(self, repetitions: int, variables: Mapping[str, str]) -> dict[str, Any]:
        """Time both sides in turn; `variables` are added to the environment of every process."""
        sides = {OURS: partial(self.train_by_worker, variables), THEIRS: partial(self.train_by_trainer, variables)}
        timings = time_in_turns(sides, repetitions)
        ours, theirs = (timings[side][0].returned for side in (OURS, THEIRS))
        for point, outcome in theirs.items():
            losses = outcome["losses"]
            assert losses[-1] < losses[0], f"{point}: the training loss of Trainer did not go down: {losses}"
        return {
            "points": len(TASKS) * len(POINTS),
            "train examples": self.studies[TASKS[0]].protocol.train_examples,
            "epochs": EPOCHS,
            "points an hour, ratio": median_ratio(timings[THEIRS], timings[OURS]),
            OURS: {**seconds_of(timings[OURS]), "trials": ours},
            THEIRS: {**seconds_of(timings[THEIRS]), "trials": theirs},
        }

    def train_by_worker(self, variables: Mapping[str, str]) -> dict[str, Any]:
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
        """Train each point with Trainer in a separate process, one after the other."""
        path, outcomes = self.scratch / "job.json", {}
        environment = worker_environment(1) | {"TRANSFORMERS_VERBOSITY": "error"} | dict(variables)
        for task, study in self.studies.items():
            for point in POINTS:
                job = TrainerJob(
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


def _name(task: str, point: Point) -> str:
    return f"{task}, batch {point.batch_size}"
