"""Contrastive fine-tuning as a unit of work: claim, resume from the newest checkpoint, train, publish."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from neobert.data.preparation import open_specified
from neobert.embeddings.contrast import ContrastiveCourse
from neobert.embeddings.pairs import open_pairs
from neobert.embeddings.preparation import prepared_pairs
from neobert.embeddings.specification import ContrastiveRun
from neobert.embeddings.starting import is_there, starting_point
from neobert.grid.claims import Claim
from neobert.grid.points import Report
from neobert.identity import plain
from neobert.layout import Layout
from neobert.records import is_published, provenance, publish_record
from neobert.specifications import Execution, RunFile, read_checked_run_file
from neobert.stopping import StopRequest
from neobert.training.attempt import Outcome
from neobert.training.units import merge_metrics, train, training_loss, with_processes_here


@dataclass(frozen=True)
class ContrastiveUnit:
    """A run of contrastive fine-tuning that a worker may take."""

    layout: Layout
    run_file: RunFile

    @classmethod
    def open(cls, layout: Layout, run_id: str) -> "ContrastiveUnit":
        """The unit of a folder with run.json."""
        return cls(layout, read_checked_run_file(layout.contrastive(run_id)))

    @property
    def run_specification(self) -> ContrastiveRun:
        assert self.run_file.contrastive is not None
        return self.run_file.contrastive

    @property
    def id(self) -> str:
        return self.run_file.id

    @property
    def name(self) -> str:
        return f"contrastive fine-tuning {self.id} of {self.run_specification.weights}"

    @property
    def folder(self) -> Path:
        return self.layout.contrastive(self.id)

    @property
    def error_path(self) -> Path:
        return self.folder / "error.json"

    @property
    def grid_point(self) -> None:
        """None: contrastive fine-tuning is no point of a grid."""

    def is_finished(self) -> bool:
        return is_published(self.folder / "done.json")

    def is_ready(self) -> bool:
        """Whether the encoder is there."""
        return is_there(self.layout, self.run_specification)

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        """Train from wherever the run stands to its end, then publish done.json."""
        run_file = with_processes_here(self.run_file)
        self._prepare(stop)
        outcome = train(
            self.layout,
            run_file,
            lambda process: ContrastiveCourse(self.layout, run_file, process, stop),
            self.folder,
            claim,
            stop,
        )
        record = self._record(outcome, run_file.execution, merge_metrics(self.folder))
        publish_record(self.folder / "done.json", record)

    def _prepare(self, stop: StopRequest) -> None:
        """Encode the pairs before any other process waits for this one."""
        run, source = self.run_specification, self.run_file.source
        if not all(self.layout.pairs(run.pairs_id(pairs)).exists() for pairs in run.sets):
            framing = starting_point(self.layout, run, source, torch.device("cpu")).framing
            prepared_pairs(self.layout, run, open_specified(source), framing, stop)

    def _record(self, outcome: Outcome, execution: Execution, metrics: list[dict[str, Any]]) -> dict[str, Any]:
        run, totals = self.run_specification, outcome.totals
        hours = totals.seconds / 3600 * execution.processes
        heldout = [line for line in metrics if "heldout_loss" in line][-1]
        counts = {pairs.name: open_pairs(self.layout.pairs(run.pairs_id(pairs))).counts for pairs in run.sets}
        return {
            "kind": "contrastive",
            "id": self.id,
            "state": "done",
            "inputs": {"weights": run.weights, "pairs": [run.pairs_id(pairs) for pairs in run.sets]},
            "config": {"protocol": plain(run.protocol), "sets": plain(run.sets), "max_tokens": run.max_tokens},
            "labels": self.run_file.labels,
            "scores": {
                "heldout_loss": heldout["heldout_losses"],
                "heldout_accuracy": heldout["heldout_accuracies"],
                "training_loss": training_loss(metrics, run.protocol.steps),
            },
            "pairs": {name: asdict(count) for name, count in counts.items()},
            "seed": run.protocol.seed,
            "steps": run.protocol.steps,
            "real_tokens": totals.real_tokens,
            "slots": totals.slots,
            "seconds": round(totals.seconds, 3),
            "gpu_hours": hours if torch.cuda.is_available() else 0.0,
            "threads": torch.get_num_threads(),
            "processes": execution.processes,
            "engine": execution.engine,
            "optimizer_state_bytes": outcome.optimizer_state_bytes,
            **provenance(),
        }
