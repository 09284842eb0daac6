"""A stage of pre-training as a unit of work: claim, resume from the newest checkpoint, train, publish."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from neobert.data.preparation import measured_runs, tokenized_corpus
from neobert.grid.claims import Claim
from neobert.grid.points import Report
from neobert.identity import plain
from neobert.layout import Layout
from neobert.records import is_published, provenance, publish_record
from neobert.specifications import Execution, PretrainingRun, RunFile, read_checked_run_file
from neobert.stopping import StopRequest
from neobert.training.accounting import accounts
from neobert.training.attempt import Outcome
from neobert.training.device import default_device
from neobert.training.trainer import Trainer
from neobert.training.units import merge_metrics, train, training_loss, with_processes_here


@dataclass(frozen=True)
class PretrainingUnit:
    """A stage of pre-training that a worker may take."""

    layout: Layout
    run_file: RunFile

    @classmethod
    def open(cls, layout: Layout, run_id: str) -> "PretrainingUnit":
        """The unit of a folder with run.json."""
        return cls(layout, read_checked_run_file(layout.pretraining(run_id)))

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
        return is_published(self.folder / "done.json")

    def is_ready(self) -> bool:
        """Whether the stage before it is done."""
        previous = self.run_specification.previous
        return previous is None or (self.layout.pretraining(previous) / "done.json").exists()

    @property
    def grid_point(self) -> None:
        """None: pre-training is no point of a grid."""

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        """Train from wherever the stage stands to its end, then publish done.json."""
        run_file = with_processes_here(self.run_file)
        corpus, *_ = [tokenized_corpus(self.layout, each, run_file.source) for each in measured_runs(run_file)]
        outcome = train(
            self.layout,
            run_file,
            lambda process: Trainer(self.layout, run_file, process, corpus),
            self.folder,
            claim,
            stop,
        )
        metrics = merge_metrics(self.folder)
        publish_record(self.folder / "done.json", self._record(outcome, run_file.execution, metrics))

    def _record(self, outcome: Outcome, execution: Execution, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        run = self.run_specification
        stage = run.recipe.stages[-1]
        totals = outcome.totals
        hours = totals.seconds / 3600 * execution.processes
        measured = [line for line in metrics if "heldout_losses" in line][-1]
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
            "scores": {
                "heldout_loss": measured["heldout_losses"],
                "heldout": measured["heldout"],
                "training_loss": training_loss(metrics, stage.steps),
            },
            "seed": run.recipe.seed,
            "steps": stage.steps,
            "tokens": stage.tokens,
            "real_tokens": totals.real_tokens,
            **accounts(totals, run.recipe, execution.processes, default_device(), metrics),
            "compiled": outcome.compiled,
            "gpu_hours": hours if torch.cuda.is_available() else 0.0,
            "threads": torch.get_num_threads(),
            "processes": execution.processes,
            "engine": execution.engine,
            "optimizer_state_bytes": outcome.optimizer_state_bytes,
            **provenance(),
        }
