"""A stage of pre-training as a unit of work: claim, resume from the newest checkpoint, train, publish."""

import gc
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neobert.files import append_line, clear_temporaries, read_lines, replace_file
from neobert.grid.claims import Claim
from neobert.grid.points import Report
from neobert.identity import plain
from neobert.layout import Layout
from neobert.model.size import training_flops_per_token
from neobert.records import provenance, publish_record
from neobert.specifications import PretrainingRun, RunFile, read_run_file
from neobert.stopping import Stopped, StopRequest
from neobert.training.loop import Step
from neobert.training.processes import Process, group, helpers
from neobert.training.trainer import Totals, Trainer

LOGGED_STEPS = 2000


@dataclass(frozen=True)
class PretrainingUnit:
    """A stage of pre-training that a worker may take."""

    layout: Layout
    run_file: RunFile

    @classmethod
    def open(cls, layout: Layout, run_id: str) -> "PretrainingUnit":
        """The unit of a folder with run.json."""
        return cls(layout, read_run_file(layout.pretraining(run_id)))

    @property
    def run_specification(self) -> PretrainingRun:
        assert self.run_file.pretraining is not None
        return self.run_file.pretraining

    @property
    def id(self) -> str:
        return self.run_file.id

    @property
    def name(self) -> str:
        names = ", ".join(self.run_file.labels.get("variants", []))
        return f"pre-training {self.id} ({names}, stage {self.run_specification.stage + 1})"

    @property
    def folder(self) -> Path:
        return self.layout.pretraining(self.id)

    @property
    def error_path(self) -> Path:
        return self.folder / "error.json"

    def is_finished(self) -> bool:
        return (self.folder / "done.json").exists()

    def is_ready(self) -> bool:
        """Whether the stage before it is done."""
        previous = self.run_specification.previous
        return previous is None or (self.layout.pretraining(previous) / "done.json").exists()

    @property
    def grid_point(self) -> None:
        """None: pre-training is no point of a grid."""

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        """Train from wherever the stage stands to its end, then publish done.json."""
        count = self.run_file.execution.processes
        attempt = self.folder / "attempts" / claim.token
        attempt.mkdir(parents=True, exist_ok=True)
        (self.folder / "checkpoints").mkdir(exist_ok=True)
        clear_temporaries(self.folder / "checkpoints")
        meeting = attempt / "meeting"
        process = Process(0, count)
        with helpers(self.layout.root, self.id, meeting, count), group(process, meeting):
            totals = self._train(Trainer(self.layout, self.run_file, process), attempt, claim, stop)
            gc.collect()  # a group must not be destroyed while a wrapped model still refers to it
        claim.check()
        metrics = self._merge_metrics()
        publish_record(self.folder / "done.json", self._record(totals, metrics))

    def _train(self, trainer: Trainer, attempt: Path, claim: Claim, stop: StopRequest) -> Totals:
        done = trainer.restore()
        steps, interval = trainer.stage.steps, self.run_file.execution.checkpoint_interval_steps
        logged_every = max(1, steps // LOGGED_STEPS)
        metrics = attempt / "metrics.jsonl"
        if done == 0:
            trainer.save(0, claim)
        for step in trainer.steps(done):
            if step.number % logged_every == 0 or step.number in (done + 1, steps):
                append_line(metrics, _line(step))
            if step.number in trainer.milestones and step.number < steps:
                append_line(metrics, {"step": step.number, "heldout_loss": trainer.heldout_loss()})
            if step.number % interval == 0 or step.number in trainer.milestones or stop.requested:
                trainer.save(step.number, claim)
            if stop.requested and step.number < steps:
                raise Stopped(f"asked to stop; saved after step {step.number} of {steps}", progressed=True)
        append_line(metrics, {"step": steps, "heldout_loss": trainer.heldout_loss()})
        return trainer.totals

    def _merge_metrics(self) -> list[dict[str, Any]]:
        """One metrics.jsonl of all attempts: of lines for the same step the last attempt's counts."""
        lines: dict[tuple[int, bool], Any] = {}
        for attempt in sorted((self.folder / "attempts").glob("*/metrics.jsonl")):
            for line in read_lines(attempt):
                lines[line["step"], "loss" in line] = line
        ordered = [lines[key] for key in sorted(lines)]
        replace_file(self.folder / "metrics.jsonl", "".join(json.dumps(line) + "\n" for line in ordered).encode())
        return ordered

    def _record(self, totals: Totals, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        run = self.run_specification
        stage = run.recipe.stages[-1]
        hours = totals.seconds / 3600 * self.run_file.execution.processes
        flops = training_flops_per_token(run.recipe.model, stage.context, run.recipe.masking.rate)
        heldout = [line["heldout_loss"] for line in metrics if "heldout_loss" in line][-1]
        training = [line["loss"] for line in metrics if "loss" in line][-1]
        return {
            "kind": "pretraining",
            "id": self.id,
            "state": "done",
            "inputs": {"data": run.data_id, "previous": run.previous},
            "config": {
                "recipe": plain(run.recipe),
                "stage": run.stage,
                "origins": {"corpus": run.corpus_origin, "tokenizer": run.tokenizer_origin},
            },
            "labels": self.run_file.labels,
            "scores": {"heldout_loss": {run.recipe.data.corpus: heldout}, "training_loss": training},
            "seed": run.recipe.seed,
            "steps": stage.steps,
            "tokens": stage.tokens,
            "real_tokens": totals.real_tokens,
            "flops": flops * totals.real_tokens,
            "seconds": round(totals.seconds, 3),
            "gpu_hours": hours if torch.cuda.is_available() else 0.0,
            "threads": torch.get_num_threads(),
            "processes": self.run_file.execution.processes,
            **provenance(),
        }


def _line(step: Step) -> dict[str, Any]:
    return {
        "step": step.number,
        "loss": step.loss,
        "learning_rate": step.learning_rate,
        "gradient_norm": step.gradient_norm,
        "real_tokens": step.real_tokens,
        "seconds": round(step.seconds, 6),
    }


def main(runs: str, run_id: str, meeting: str) -> None:
    """A helper process: the same steps with its share of the data; it publishes nothing."""
    process = Process(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    layout = Layout(Path(runs))
    with group(process, Path(meeting)):
        trainer = Trainer(layout, read_run_file(layout.pretraining(run_id)), process)
        for _ in trainer.steps(trainer.restore()):
            pass


if __name__ == "__main__":
    main(*sys.argv[1:])
