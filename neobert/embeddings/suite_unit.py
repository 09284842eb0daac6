"""Tasks of embeddings on one encoder as units of work: a claim before, mteb's result and one record after, for each."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from neobert.data.corpora import Source
from neobert.data.preparation import open_specified, require_origin
from neobert.embeddings.encoding import TextCounts
from neobert.embeddings.measured import is_there, open_measured
from neobert.embeddings.suite import EncoderIdentity, Measured, SupportsEncode, measure_task
from neobert.embeddings.suite_specification import EmbeddingRun, TaskOnData
from neobert.embeddings.tasks import EmbeddingTask
from neobert.grid.claims import Claim, ClaimLost
from neobert.grid.points import Report
from neobert.identity import plain
from neobert.layout import Layout
from neobert.progress import TaskFiles, task_files
from neobert.records import provenance, publish_record
from neobert.result_records import EmbeddingConfig, EmbeddingScores
from neobert.specifications import RunFile, read_checked_run_file
from neobert.stopping import Stopped, StopRequest
from neobert.training.device import default_device

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class StoppableEncoder:
    """An encoder that is asked between calls whether to go on."""

    encoder: SupportsEncode
    stop: StopRequest

    @property
    def counts(self) -> TextCounts:
        """What was encoded since it was last set."""
        return self.encoder.counts

    @counts.setter
    def counts(self, counts: TextCounts) -> None:
        self.encoder.counts = counts

    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> Array:
        """As the encoder does.

        Raises:
            Stopped: the process was asked to stop.
        """
        if self.stop.requested:
            raise Stopped("asked to stop in the middle of a task, which is measured anew")
        return self.encoder.encode(texts, instruction=instruction)


@dataclass(frozen=True)
class EmbeddingTaskUnit:
    """One task on one encoder that a worker may take."""

    files: TaskFiles
    run_file: RunFile

    @property
    def specification(self) -> EmbeddingRun:
        """What is measured on what."""
        return self.files.run

    @property
    def id(self) -> str:
        return self.files.id

    @property
    def name(self) -> str:
        encoder = self.specification.encoder
        return f"{self.specification.task.name} on {encoder.weights} ({encoder.protocol})"

    @property
    def error_path(self) -> Path:
        return self.files.error

    @property
    def grid_point(self) -> None:
        """None: a task is no point of a grid."""

    def is_finished(self) -> bool:
        return self.files.is_recorded

    def is_ready(self) -> bool:
        """Whether the weights are there."""
        return is_there(self.files.layout, self.specification.encoder)

    def run(self, claim: Claim, stop: StopRequest, report: Report) -> None:
        """Measure the task, or take what mteb's cache has of it, then publish the record."""
        task, results = self.specification.task, self.files.layout.embedding_results
        opened = _opened(self.files.layout, self.run_file.id)
        require_same_data(opened.source, task)
        encoder = StoppableEncoder(opened.encoder, stop)
        measured = measure_task(encoder, opened.identity, task_of(task), opened.source, results, task.prompts)
        claim.check()
        if not publish_record(self.files.record, self._record(measured, opened.identity)):
            raise ClaimLost(f"task {self.id} was recorded by another process; this result is dropped")

    def _record(self, measured: Measured, identity: EncoderIdentity) -> dict[str, Any]:
        encoder, task = self.specification.encoder, self.specification.task
        return {
            "kind": "mteb",
            "id": self.id,
            "state": "done",
            "inputs": {
                "pretraining": encoder.pretraining,
                "weights": encoder.weights,
                "evaluation": self.run_file.id,
                "task": task.origin,
                "tokenizer": encoder.tokenizer_origin,
            },
            "config": plain(self._config(measured)),
            "labels": self.run_file.labels,
            "scores": plain(EmbeddingScores(score=measured.score, metrics=measured.metrics)),
            "seed": encoder.seed,
            "prompts": task.prompts,
            "pooling": identity.pooling,
            "normalized": identity.normalized,
            "precision": encoder.precision,
            "context": encoder.context,
            "parameters": identity.parameters,
            "texts": asdict(measured.counts),
            "seconds": round(measured.seconds, 3),
            "threads": torch.get_num_threads(),
            "device": default_device().type,
            **provenance(),
        }

    def _config(self, measured: Measured) -> EmbeddingConfig:
        task = self.specification.task
        return EmbeddingConfig(
            task=task.name,
            category=task.category,
            suite=task.suite,
            protocol=self.specification.encoder.protocol,
            metric=task.metric,
            split=measured.split,
            revision=measured.revision,
        )


def units_of_evaluation(layout: Layout, evaluation_id: str) -> list[EmbeddingTaskUnit]:
    """The units of an evaluation."""
    run_file = read_checked_run_file(layout.embedding_evaluation(evaluation_id))
    assert run_file.mteb is not None
    return [EmbeddingTaskUnit(files, run_file) for files in task_files(layout, run_file.mteb)]


def task_of(task: TaskOnData) -> EmbeddingTask:
    """The task without its data."""
    return EmbeddingTask(
        name=task.name,
        category=task.category,
        suite=task.suite,
        metric=task.metric,
        split=task.split,
        members=task.members,
        instruction=task.prompts.get("query"),
    )


def require_same_data(source: Source, task: TaskOnData) -> None:
    """Check that a task's data are those that the evaluation was planned on.

    Raises:
        MissingData: they are others now, or gone.
    """
    require_origin(f"task {task.name} of {source.label}", task.origin, source.embedding_task_origin(task.name))


@dataclass(frozen=True)
class _Opened:
    """An encoder, what mteb is told of it, and where the tasks' data are."""

    encoder: SupportsEncode
    identity: EncoderIdentity
    source: Source


@lru_cache(maxsize=1)
def _opened(layout: Layout, evaluation_id: str) -> _Opened:
    """What an evaluation needs, opened once a process and used for all of its tasks."""
    run_file = read_checked_run_file(layout.embedding_evaluation(evaluation_id))
    return _Opened(*open_measured(layout, run_file, default_device()), open_specified(run_file.source))
