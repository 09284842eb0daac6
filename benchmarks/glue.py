"""Speed of a small fine-tuning grid with this project's worker and with transformers' Trainer."""

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
VARIANT, PRETRAINING_STEPS, TRAIN_EXAMPLES, EPOCHS = "M10", 10, 256, 3
TASKS = ("cola", "mrpc")
POINTS = tuple(Point(batch_size=size, learning_rate=3e-4, weight_decay=1e-2) for size in (4, 8))
OURS, THEIRS = "one worker", "Trainer, one process a point"


def measure(options: argparse.Namespace) -> Iterator[Result]:
    """Grid points on CoLA and MRPC: one worker process for all of them, against transformers' Trainer in a fresh
    process a point. Same weights, examples, batch sizes, rates, steps and numbers of evaluations."""
    for device in devices_with("accelerate"):
        on_cpu = device == "cpu"
        with tempfile.TemporaryDirectory() as folder:
            contest = Contest.prepare(Path(folder), options.data or "synthetic")
            visible = "" if on_cpu else visible_gpus()[0]  # Trainer would split a batch over several GPUs
            figures = contest.measure(options.repetitions or 1, {"CUDA_VISIBLE_DEVICES": visible})
        ratio = figures["points an hour, ratio"]["processor" if on_cpu else "wall"]
        yield Result(NAME if on_cpu else f"{NAME}_gpu", ratio, figures)


GLUE = Benchmark(
    measure,
    {
        NAME: Goal(2.0, "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (CPU)"),
        f"{NAME}_gpu": Goal(
            4.0, "grid points an hour on CoLA and MRPC, one worker / one Trainer process a point (GPU)"
        ),
    },
)


@dataclass(frozen=True)
class Contest:
    """A pre-trained model in a folder of runs and as an export, with a GLUE study for each task."""

    runs: Path
    root: Path
    source: SourceSpecification
    studies: Mapping[str, GlueStudy]

    @classmethod
    def prepare(cls, root: Path, data: str) -> "Contest":
        """Pre-train a few steps at smoke scale and export the model. Shapes and tasks are those of the scale. Both
        tasks start from pre-training (in the study, MRPC starts from MNLI)."""
        specification = specify(data, 2000)
        source = open_specified(specification)
        recipe, _ = scaled_variant(variants()[VARIANT], "smoke", vocabulary_of(source))
        steps = {"steps": PRETRAINING_STEPS, "warmup_steps": 1, "decay_steps": PRETRAINING_STEPS}
        stage = recipe.pretraining.stages[0].model_copy(update=steps)
        (run,) = pretraining_runs(recipe.pretraining.model_copy(update={"stages": (stage,)}), 0, source)
        planned = {study.task: study for study in variant_studies(recipe, [run], 0, source)}
        protocol = planned[TASKS[0]].protocol.model_copy(update={"train_examples": TRAIN_EXAMPLES, "epochs": EPOCHS})
        changes = {"protocol": protocol, "starts_from": planned[TASKS[0]].starts_from, "points": POINTS}
        studies = {task: planned[task].model_copy(update=changes) for task in TASKS}
        contest = cls(root / "pretrained", root, specification, studies)
        contest._write(run)
        contest._work(f"pretraining/{run.id}", variables={})
        with redirect_stdout(sys.stderr):
            folder = Layout(contest.runs).pretraining(run.id)
            export(folder, "hf", root / "exported", None, with_code=False)
        return contest

    def _write(self, specification: PretrainingRun | GlueStudy) -> None:
        execution = execution_at("smoke")
        write_run_file(Layout(self.runs), specification, self.source, execution, {"variants": [VARIANT]})

    def _work(self, *references: str, variables: Mapping[str, str]) -> None:
        """Run the real worker in a separate process; `variables` are added to its environment."""
        command = [sys.executable, "-m", "neobert.runs.worker", "--runs", str(self.runs), *references]
        subprocess.run(command, check=True, env=worker_environment(execution_at("smoke").threads) | dict(variables))

    def measure(self, repetitions: int, variables: Mapping[str, str]) -> dict[str, Any]:
        """Time both sides in turn; `variables` are added to the environment of every process."""
        sides = {OURS: partial(self.train_by_worker, variables), THEIRS: partial(self.train_by_trainer, variables)}
        timings = time_in_turns(sides, repetitions)
        for point, outcome in timings[THEIRS][0].returned.items():
            losses = outcome["losses"]
            assert losses[-1] < losses[0], f"{point}: the training loss of Trainer did not go down: {losses}"
        return {
            "points an hour, ratio": median_ratio(timings[THEIRS], timings[OURS]),
            **{side: {**seconds_of(found), "trials": found[0].returned} for side, found in timings.items()},
        }

    def train_by_worker(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Train all points in one worker, in a copy of the folder of runs; return steps and seconds of each."""
        with tempfile.TemporaryDirectory(dir=self.root) as folder:
            copy = replace(self, runs=Path(folder) / "runs")
            shutil.copytree(self.runs, copy.runs, ignore=shutil.ignore_patterns("glue", "claims"))
            for study in self.studies.values():
                copy._write(study)
            references = (f"glue/{task}/studies/{study.id}" for task, study in self.studies.items())
            copy._work(*references, variables=variables)
            records = {
                f"{task}, batch {point.batch_size}": read_record(study.trial(Layout(copy.runs), point).record)
                for task, study in self.studies.items()
                for point in POINTS
            }
        return {name: {key: record[key] for key in ("steps", "seconds")} for name, record in records.items()}

    def train_by_trainer(self, variables: Mapping[str, str]) -> dict[str, Any]:
        """Train each point with Trainer in a separate process, one after the other."""
        path, outcomes = self.root / "job.json", {}
        environment = worker_environment(1) | {"TRANSFORMERS_VERBOSITY": "error"} | dict(variables)
        for task, study in self.studies.items():
            for point in POINTS:
                model = str(self.root / "exported")
                job = TrainerJob(
                    model=model, task=task, source=self.source, protocol=study.protocol, point=point, seed=study.seed
                )
                path.write_text(job.model_dump_json(), encoding="utf-8")
                command = [sys.executable, "-m", "benchmarks.trainer_peer", str(path)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment, text=True)
                outcomes[f"{task}, batch {point.batch_size}"] = json.loads(done.stdout.splitlines()[-1])
        return outcomes
