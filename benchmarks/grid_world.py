"""A finished smoke-scale run of a few steps and GLUE studies on it: what the benchmarks of the grid start from."""

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ablations.ladder import variants
from ablations.plan import scaled_variant, vocabulary_of
from ablations.runs import glue_studies, measured_checkpoints, pretraining_runs
from ablations.scales import execution_at
from neobert.data.preparation import open_specified
from neobert.launching.here import worker_environment
from neobert.layout import Layout
from neobert.progress import TrialFiles
from neobert.recipe import Grid, Point
from neobert.specifications import GlueStudy, PretrainingRun, Source, write_run_file

VARIANT = "M10"
TASK = "cola"
PRETRAINING_STEPS = 10
SOURCE = Source(name="synthetic", synthetic_documents=2000)
WIDE_GRID = Grid(
    batch_sizes=(32, 64), learning_rates=(4e-4, 6e-4, 8e-4, 1e-3, 1.5e-3, 2e-3), weight_decays=(1e-2, 1e-5)
)
"""The shape of the paper's sixty points with two batch sizes in place of five: 24 points."""


@dataclass(frozen=True)
class World:
    """A folder with a pre-trained model of the smoke scale, and its GLUE `studies` by task; one of them is at work."""

    root: Path
    run: PretrainingRun
    source: Source
    studies: Mapping[str, GlueStudy]
    task: str = TASK

    @property
    def study(self) -> GlueStudy:
        """That of the task, over the variant's own grid."""
        return self.studies[self.task]

    def on(self, task: str) -> "World":
        """The same with another task at work."""
        return replace(self, task=task)

    @property
    def reference(self) -> str:
        """How a worker is told about the pre-training."""
        return f"pretraining/{self.run.id}"

    def copied_to(self, root: Path) -> "World":
        """The same without any GLUE trial, in another folder."""
        shutil.copytree(self.root, root, ignore=shutil.ignore_patterns("glue", "claims"))
        return replace(self, root=root)

    def write_study(self, points: Sequence[Point]) -> str:
        """Put a study of these points into the folder; returns how a worker is told about it."""
        study = self.study.model_copy(update={"points": tuple(points)})
        write_run_file(Layout(self.root), study, self.source, execution_at("smoke"), {"variants": [VARIANT]})
        return f"glue/{study.task}/studies/{study.id}"

    def work(self, *references: str, variables: Mapping[str, str] | None = None) -> None:
        """Run the real worker in a process of its own; `variables` join its environment."""
        command = [sys.executable, "-m", "neobert.work", "--runs", str(self.root), *references]
        environment = worker_environment(execution_at("smoke").threads) | dict(variables or {})
        subprocess.run(command, check=True, env=environment)

    def forget_encoded_tasks(self) -> None:
        """Remove the cached token ids of the tasks."""
        shutil.rmtree(self.root / "data" / "glue", ignore_errors=True)

    def outcomes(self, points: Sequence[Point]) -> dict[Point, tuple[str, bytes]]:
        """What each point gave: scores and curve as text, and the bytes of the stored predictions."""
        files = {point: TrialFiles(Layout(self.root), self.study, point) for point in points}
        return {point: (_scores(file.record), file.predictions.read_bytes()) for point, file in files.items()}

    def seconds_of_trials(self, points: Sequence[Point]) -> float:
        """Seconds that the records of the points tell."""
        records = [TrialFiles(Layout(self.root), self.study, point).record for point in points]
        return float(sum(json.loads(record.read_bytes())["seconds"] for record in records))


def _scores(record: Path) -> str:
    return json.dumps(json.loads(record.read_bytes())["scores"], sort_keys=True)


def pretrained_world(root: Path, specification: Source = SOURCE) -> World:
    """Pre-train a few steps at smoke scale in `root` with the real worker: the weights are those of no paper, the
    shapes and the task those of the smoke scale."""
    source = open_specified(specification)
    recipe, _ = scaled_variant(variants()[VARIANT], "smoke", vocabulary_of(source))
    short = {"steps": PRETRAINING_STEPS, "warmup_steps": 1, "decay_steps": PRETRAINING_STEPS}
    stage = recipe.pretraining.stages[0].model_copy(update=short)
    (run,) = pretraining_runs(recipe.pretraining.model_copy(update={"stages": (stage,)}), 0, source)
    (checkpoint,) = measured_checkpoints(recipe, [run], 0)
    studies = {study.task: study for study in glue_studies(checkpoint, source)}
    write_run_file(Layout(root), run, specification, execution_at("smoke"), {"variants": [VARIANT]})
    world = World(root, run, specification, studies)
    world.work(world.reference)
    return world
