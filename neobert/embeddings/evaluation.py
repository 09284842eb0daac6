"""One task of embeddings on one encoder: measured by mteb, kept in the layout of mteb's own cache of results.

The one door to mteb, with its siblings. mteb is imported when something is measured.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from neobert.data.mteb_tasks import EmbeddingTask
from neobert.data.preparation import open_specified, require_origin
from neobert.data.sources import Source
from neobert.embeddings.encoders import Embedder, TextCounts, open_contrastive, open_external, open_pretrained
from neobert.embeddings.sentence_modules import SentenceModules, read_sentence_modules
from neobert.errors import RunFailed
from neobert.external import read_model_file
from neobert.files import replace_file
from neobert.identity import plain
from neobert.processes import Stopped, StopRequest
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.index import TaskFiles, task_files
from neobert.runs.layout import Layout
from neobert.runs.optuna_view import Report
from neobert.runs.records import EmbeddingConfig, EmbeddingScores, provenance, publish_record
from neobert.runs.specifications import (
    EXTERNAL_PREFIX,
    EmbeddingRun,
    MeasuredEncoder,
    RunFile,
    TaskOnData,
    read_checked_run_file,
)
from neobert.training.distributed import default_device

if TYPE_CHECKING:
    from mteb import TaskResult
    from mteb.abstasks import AbsTask
    from mteb.models import ModelMeta
    from mteb.types import EncodeKwargs

    from neobert.embeddings.mteb import SuiteModel


Array = np.ndarray[Any, np.dtype[Any]]

NO_PROMPTS: Mapping[str, str] = {}

LOADED_TEXTS = 1024
"""Texts that mteb hands over in a batch; all batches of a call are encoded together."""

KEPT_DIGITS = 6
"""Of scores, as mteb keeps them; a perfect score may come out above 1 by a rounding error."""

COUNTS = "encoded"
"""What mteb's file of a result has beside mteb's own keys."""


class SupportsEncode(Protocol):
    """A function from texts to vectors (texts, width); `counts` adds up what it was given."""

    counts: TextCounts

    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> Array: ...


@dataclass(frozen=True)
class EncoderIdentity:
    """Which encoder is measured. `revision` is the id of its weights, so that no other's scores are taken for its own.

    width: of its vectors; context: tokens that it reads; parameters: all of its weights; pooling: how hidden states
    become a vector, which is of length 1 where it is `normalized`.
    """

    name: str
    revision: str
    width: int
    context: int
    parameters: int
    pooling: str = "mean"
    normalized: bool = False


@dataclass(frozen=True)
class Measured:
    """A task's main score and all metrics, −1..1. `revision` identifies the data; `counts` is what was encoded and
    `seconds` what it took, where it was measured now."""

    score: float
    metrics: dict[str, float]
    split: str
    revision: str | None
    counts: TextCounts
    seconds: float


def measure_task(
    encoder: SupportsEncode,
    identity: EncoderIdentity,
    task: EmbeddingTask,
    source: Source,
    results: Path,
    prompts: Mapping[str, str] = NO_PROMPTS,
) -> Measured:
    """Measure one task, or read what was measured of it before with the same weights, data and prompts.

    `results` is a folder in the layout of mteb's ResultCache. `prompts` has what an encoder is told of texts, by
    "query" (also where a task has no documents) and "document"; `task_prompts` gives a task's own.

    Raises:
        MissingData, DamagedFile, ValueError: the task's data are not there, or not what they should be; or mteb is not.
        RunFailed: a score is not a number of −1..1.
    """
    if find_spec("mteb") is None:
        raise ValueError("tasks of embeddings need mteb: install the extra with pip install -e '.[eval]'")
    origin = source.embedding_task_origin(task.name)
    data = source.embedding_task_data(task.name)
    with _quietly(results):
        from neobert.embeddings.mteb import SuiteModel, joined_result, mteb_tasks

        model = SuiteModel(encoder, identity, prompts)
        parts = [_kept_or_now(model, part, results) for part in mteb_tasks(task, data, origin)]
        counts = sum((part.counts for part in parts), TextCounts())
        if task.members:
            joined = joined_result(task.name, [part.result for part in parts])
            whole = _publish(ScoredTask(joined, counts), model.mteb_model_meta, results)
        else:
            whole = parts[0]
        return _measured(whole, task)


@contextmanager
def _quietly(results: Path) -> Iterator[None]:
    """Without mteb's progress bars, and without what it warns of by its tasks' own protocols: regressions of few steps,
    newer versions of tasks. mteb makes a folder of results when it is imported: it gets the one that is there."""
    os.environ.setdefault("MTEB_CACHE", str(results))
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


@dataclass(frozen=True)
class ScoredTask:
    """mteb's result of one of its tasks, and what was encoded for it."""

    result: "TaskResult"
    counts: TextCounts


def _kept_or_now(model: "SuiteModel", task: "AbsTask", results: Path) -> ScoredTask:
    kept = _kept(model.mteb_model_meta, task, results)
    return kept or _publish(_scored(model, task), model.mteb_model_meta, results)


def _kept(model: "ModelMeta", task: "AbsTask", results: Path) -> ScoredTask | None:
    """What was measured before; None where nothing was, a file is torn, or data or mteb were others."""
    from mteb import ResultCache, TaskResult

    path = ResultCache(results).get_task_result_path(task.metadata.name, model)
    try:
        result = TaskResult.from_disk(path, load_historic_data=False)
        counts = TextCounts(**json.loads(path.read_bytes())[COUNTS])
        _require_score(result)
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError, RunFailed):
        return None
    is_same = result.is_mergeable(task, criteria=("mteb_version", "dataset_revision"))
    return ScoredTask(result, counts) if is_same and not result.get_missing_evaluations(task) else None


def _scored(model: "SuiteModel", task: "AbsTask") -> ScoredTask:
    from mteb import evaluate

    from neobert.embeddings.mteb import fresh_tables, load_published

    model.encoder.counts = TextCounts()
    options: EncodeKwargs = {"batch_size": LOADED_TEXTS, "show_progress_bar": False}
    with fresh_tables():
        load_published(task)
        try:
            found = evaluate(model, task, cache=None, encode_kwargs=options, co2_tracker=False, show_progress_bar=False)
        except ValueError as error:
            raise ValueError(f"task {task.metadata.name}: {error}") from error
    return ScoredTask(found.task_results[0], model.encoder.counts)


def _require_score(result: "TaskResult") -> None:
    score = result.get_score()
    if not -1 <= round(score, KEPT_DIGITS) <= 1:
        raise RunFailed(
            f"task {result.task_name} gives the score {score}, which is none of −1 … 1: look at the vectors, an "
            "encoder that gives all texts the same one cannot be measured"
        )


def _publish(scored: ScoredTask, model: "ModelMeta", results: Path) -> ScoredTask:
    """Put a result where mteb's tools look for it, whole or not at all, and give it as it can be read again."""
    from mteb import ResultCache, TaskResult

    _require_score(scored.result)
    path = ResultCache(results).get_task_result_path(scored.result.task_name, model)
    with TemporaryDirectory() as scratch:
        written = Path(scratch) / path.name
        scored.result.to_disk(written)
        content = {**json.loads(written.read_bytes(), parse_constant=_nothing), COUNTS: asdict(scored.counts)}
    replace_file(path.parent / "model_meta.json", _json(model.to_dict()))
    replace_file(path, _json(content))
    return ScoredTask(TaskResult.from_disk(path, load_historic_data=False), scored.counts)


def _nothing(_: str) -> None:
    """What stands for NaN: a metric that does not apply to a task, as precision to one of many classes."""


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, default=str, allow_nan=False).encode()


def _measured(scored: ScoredTask, task: EmbeddingTask) -> Measured:
    result = scored.result
    (entries,) = result.scores.values()
    metrics = {name: float(value) for name, value in entries[0].items() if isinstance(value, int | float)}
    return Measured(
        score=float(result.get_score()),
        metrics={name: value for name, value in metrics.items() if name != "main_score"},
        split=task.split,
        revision=result.dataset_revision,
        counts=scored.counts,
        seconds=float(result.evaluation_time or 0.0),
    )


OWN = "neobert"
"""The organisation in names of this package's encoders; mteb wants one."""

UNFIT = re.compile(r"[^\w.-]+")


def is_there(layout: Layout, encoder: MeasuredEncoder) -> bool:
    """Whether the weights are done, or were found elsewhere."""
    if encoder.protocol == "contrastive":
        return (layout.contrastive(encoder.weights) / "done.json").exists()
    if is_external(encoder):
        return layout.model(encoder.weights).exists()
    return (layout.pretraining(encoder.weights) / "done.json").exists()


def is_external(encoder: MeasuredEncoder) -> bool:
    """Whether the encoder was pre-trained elsewhere."""
    return encoder.pretraining.startswith(EXTERNAL_PREFIX)


def open_measured(layout: Layout, run_file: RunFile, device: torch.device) -> tuple[SupportsEncode, EncoderIdentity]:
    """The encoder of an evaluation, and what mteb is told of it.

    Raises:
        MissingData, DamagedFile: its files are not there, or not the ones that the evaluation names.
    """
    assert run_file.mteb is not None
    encoder = run_file.mteb.encoder
    opened = _opened(layout, encoder, device)
    name = _name(layout, run_file, encoder)
    identity = EncoderIdentity(name, encoder.revision, opened.width, encoder.context, opened.parameters)
    modules = _modules(layout, encoder)
    return opened, replace(identity, pooling=modules.pooling, normalized=modules.normalize) if modules else identity


def _modules(layout: Layout, encoder: MeasuredEncoder) -> SentenceModules | None:
    """What stands behind the hidden states of a model from elsewhere that is measured as it was published."""
    if encoder.protocol != "zero_shot" or not is_external(encoder):
        return None
    model = read_model_file(layout, encoder.weights)
    return read_sentence_modules(Path(model.folder), model.name)


def _opened(layout: Layout, encoder: MeasuredEncoder, device: torch.device) -> Embedder:
    if encoder.protocol == "contrastive":
        return open_contrastive(layout, encoder.weights, device, encoder.precision)
    if is_external(encoder):
        return open_external(read_model_file(layout, encoder.weights), device, encoder.precision, encoder.context)
    return open_pretrained(layout, encoder.weights, device, encoder.precision, encoder.context)


def _name(layout: Layout, run_file: RunFile, encoder: MeasuredEncoder) -> str:
    if not is_external(encoder):
        return f"{OWN}/{_told(run_file.labels)}"
    name = read_model_file(layout, encoder.pretraining).name
    return name if "/" in name else f"{OWN}/{UNFIT.sub('-', name)}"


def _told(labels: dict[str, Any]) -> str:
    """The variants that the weights are, as a part of a name."""
    return UNFIT.sub("-", "-".join(map(str, labels.get("variants", ())))) or "encoder"


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
        opened = _suite_unit_opened(self.files.layout, self.run_file.id)
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
def _suite_unit_opened(layout: Layout, evaluation_id: str) -> _Opened:
    """What an evaluation needs, opened once a process and used for all of its tasks."""
    run_file = read_checked_run_file(layout.embedding_evaluation(evaluation_id))
    return _Opened(*open_measured(layout, run_file, default_device()), open_specified(run_file.source))
