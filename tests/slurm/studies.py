"""Small studies that go to a cluster the way run.py sends them, and what they must have come to."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ablations.launch.submit import PlannedJob, Submitter
from ablations.loading import papers
from neobert.files import read_lines
from neobert.kinds.pretraining import PretrainingRun
from neobert.processes import REPOSITORY
from neobert.runs.layout import Layout
from neobert.runs.submissions import Submission
from neobert.slurm.profile import JOB_KINDS, Resources
from tests.slurm.cluster import Cluster
from tests.support.tiny_runs import finish, record, tiny_run, tiny_stage, write_tiny_run
from tests.support.waiting import until

STEPS = 600
INTERVAL = 20
SHORT_HOURS = 0.2


def long_run(steps: int = STEPS) -> PretrainingRun:
    """A run of a tiny model that takes some ten seconds, so that it can be hit."""
    return tiny_run(stages=(tiny_stage(steps=steps, decay_steps=steps - 10),))


@dataclass(frozen=True)
class Study:
    """One run on one cluster."""

    cluster: Cluster
    root: Path
    run: PretrainingRun
    resources: Resources

    @classmethod
    def underway(
        cls, cluster: Cluster, root: Path, run: PretrainingRun | None = None, **resources: Any
    ) -> tuple["Study", str]:
        """Submitted, with a checkpoint; and the job."""
        study = cls.prepared(cluster, root, run, **resources)
        job = study.send()
        folder = study.folder / "checkpoints"
        until(
            lambda: study.is_done or len(list(folder.glob("step-????????"))) > 1, 120, "a checkpoint behind the start"
        )
        assert not study.is_done, "the run ended before it could be disturbed: give it more steps"
        return study, job

    @classmethod
    def prepared(cls, cluster: Cluster, root: Path, run: PretrainingRun | None = None, **resources: Any) -> "Study":
        """run.json written, nothing submitted."""
        study = cls(
            cluster, root, run or long_run(), Resources(**{"hours": SHORT_HOURS, "cpus_per_task": 1, **resources})
        )
        write_tiny_run(root, study.run, processes=study.resources.tasks, checkpoint_interval_steps=INTERVAL)
        return study

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @property
    def folder(self) -> Path:
        return self.layout.pretraining(self.run.id)

    def send(self, **shell: str) -> str:
        """Submit the run the way run.py does, with more variables in the shell; the id of its job."""
        (submission,) = self.send_all(**shell)
        return submission.job

    def send_all(self, **shell: str) -> list[Submission]:
        """Submit what is missing."""
        profile = dict.fromkeys(JOB_KINDS, self.resources)
        submitter = Submitter(self.layout, profile, papers(), "smoke", None)
        job = PlannedJob("pretrain", f"pretraining-T-{self.run.id}", (self.run.reference,), (), 1)
        with as_on_login_node(self.cluster), patch.dict(os.environ, shell):
            return submitter.send([] if self.is_done else [job])

    @property
    def is_done(self) -> bool:
        return (self.folder / "done.json").exists()

    @property
    def owners(self) -> int:
        """How many owners the run has had."""
        return len([path for path in self.layout.claims(self.run.id).glob("*") if path.name.isdigit()])

    def wait_until_done(self, seconds: float = 240) -> None:
        """Until the record is there, whatever SLURM says."""
        until(lambda: self.is_done, seconds, f"the record of run {self.run.id}\n{self.logs()}")

    def logs(self) -> str:
        """What the jobs said."""
        return "\n".join(f"--- {path.name}\n{path.read_text()}" for path in sorted(self.root.glob("jobs/*/*log*")))

    def outcome(self) -> dict[str, Any]:
        """All that must not depend on what happened on the way."""
        checkpoint = self.folder / "checkpoints" / f"step-{self.run.recipe.stages[-1].steps:08d}"
        tensors = sorted(checkpoint.glob("*.safetensors"))
        weights = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tensors}
        lines = list(read_lines(self.folder / "metrics.jsonl"))
        steps = [line["step"] for line in lines if "loss" in line]
        assert steps == sorted(set(steps)), "a metric line twice"
        curve = [(line["step"], line["loss"], line["gradient_norm"]) for line in lines if "loss" in line]
        assert weights, sorted(checkpoint.parent.iterdir())
        return {"weights": weights, "curve": curve, "scores": record(self.root, self.run)["scores"]}


def undisturbed(root: Path, run: PretrainingRun) -> dict[str, Any]:
    """What a run comes to when nothing happens to it, on this machine without any scheduler."""
    write_tiny_run(root, run, checkpoint_interval_steps=INTERVAL)
    finish(root, run.reference)
    return Study(None, root, run, Resources()).outcome()  # type: ignore[arg-type]


@contextmanager
def as_on_login_node(cluster: Cluster) -> Iterator[None]:
    """This process sees the cluster."""
    with patch.dict(os.environ, cluster.environment, clear=True):
        yield


def run_command(cluster: Cluster, *arguments: str, script: str = "ablations/run.py") -> "subprocess.Popen[str]":
    """One of the project's commands on the login node."""
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        cwd=REPOSITORY,
        env=cluster.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
