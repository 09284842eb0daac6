"""Evaluation of encoders on embedding tasks by mteb: one task is a unit of work with one record.

Results are also kept in the layout of mteb's own cache, where its tools read them. mteb is imported when a task is
measured.
"""

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
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
from neobert.embeddings.encoders import TextCounts, load_encoder
from neobert.errors import RunFailed
from neobert.external import read_model_file
from neobert.files import replace_file
from neobert.identity import plain
from neobert.processes import StopRequest
from neobert.runs.claims import Claim, ClaimLost
from neobert.runs.layout import Layout
from neobert.runs.records import EmbeddingConfig, EmbeddingScores, provenance, publish_record
from neobert.runs.run_file import RunFile, read_checked_run_file
from neobert.runs.specifications import EXTERNAL_PREFIX, TaskOnData, TaskPart
from neobert.runs.work import Part
from neobert.training.distributed import default_device

if TYPE_CHECKING:
    from mteb import TaskResult
    from mteb.abstasks import AbsTask
    from mteb.models import ModelMeta
    from mteb.types import EncodeKwargs

    from neobert.embeddings.mteb import MtebModel


Array = np.ndarray[Any, np.dtype[Any]]

NO_PROMPTS: Mapping[str, str] = {}

LOADED_TEXTS = 1024
"""Texts that mteb hands over in a batch; all batches of a call are encoded together."""

KEPT_DIGITS = 6
"""mteb rounds scores to these; a perfect score may come out above 1 by a rounding error."""

COUNTS = "encoded"
"""Our key in mteb's file of a result."""


class SupportsEncode(Protocol):
    """What mteb needs of an encoder; `counts` adds up what was encoded."""

    counts: TextCounts

    @property
    def width(self) -> int: ...
    @property
    def context(self) -> int: ...
    @property
    def parameters(self) -> int: ...
    @property
    def pooling(self) -> str: ...
    @property
    def normalized(self) -> bool: ...
    def encode(self, texts: Sequence[str], *, instruction: str | None = None) -> Array: ...


@dataclass(frozen=True)
class NamedEncoder:
    """An encoder under the `name` ("organisation/model") that mteb knows it by. `revision` is the id of its weights, so
    that results of other weights are not taken for its own."""

    name: str
    revision: str
    encoder: SupportsEncode


@dataclass(frozen=True)
class TaskScore:
    """mteb's result of a task, and what was encoded for it."""

    result: "TaskResult"
    counts: TextCounts

    @property
    def score(self) -> float:
        """The main score, −1..1."""
        return float(self.result.get_score())

    @property
    def metrics(self) -> dict[str, float]:
        """All metrics that are numbers."""
        (entries,) = self.result.scores.values()
        numbers = {name: float(value) for name, value in entries[0].items() if isinstance(value, int | float)}
        return {name: value for name, value in numbers.items() if name != "main_score"}

    @property
    def revision(self) -> str | None:
        """Identifies the data."""
        return self.result.dataset_revision

    @property
    def seconds(self) -> float:
        """What the measurement took."""
        return float(self.result.evaluation_time or 0.0)


def measure_task(
    named: NamedEncoder,
    task: EmbeddingTask | TaskOnData,
    source: Source,
    results: Path,
    prompts: Mapping[str, str] = NO_PROMPTS,
    stop: StopRequest | None = None,
) -> TaskScore:
    """Measure one task, or read what was measured of it before with the same weights, data and prompts.

    `results` is a folder in the layout of mteb's ResultCache. `prompts` are the instructions before texts, by "query"
    (also where a task has no documents) and "document"; `task_prompts` gives those of a task.

    Raises:
        MissingData, DamagedFile, ValueError: the task's data are not there, or not what they should be; or mteb is not.
        RunFailed: a score is not a number of −1..1.
        Stopped: `stop` asked to.
    """
    if find_spec("mteb") is None:
        raise ValueError("tasks of embeddings need mteb: install the extra with pip install -e '.[eval]'")
    origin = source.embedding_task_origin(task.name)
    data = source.embedding_task_data(task.name)
    with _quietly(results):
        from neobert.embeddings.mteb import MtebModel, join_results, mteb_tasks

        model = MtebModel(named, prompts, stop or StopRequest())
        parts = [_measure_part(model, part, results) for part in mteb_tasks(task, data, origin)]
        if not task.members:
            return parts[0]
        joined = join_results(task.name, [part.result for part in parts])
        counts = sum((part.counts for part in parts), TextCounts())
        return _publish(TaskScore(joined, counts), model.mteb_model_meta, results)


@contextmanager
def _quietly(results: Path) -> Iterator[None]:
    """Without mteb's progress bars, and without its warnings about its own tasks (regressions of few steps, newer
    versions). mteb creates a folder of results when it is imported: it is given the one that is there."""
    os.environ.setdefault("MTEB_CACHE", str(results))
    with warnings.catch_warnings(), redirect_stderr(StringIO()):
        warnings.simplefilter("ignore")
        yield


def _measure_part(model: "MtebModel", task: "AbsTask", results: Path) -> TaskScore:
    """The result of one of mteb's tasks: read, or measured now."""
    if kept := _read_result(model.mteb_model_meta, task, results):
        return kept
    from mteb import evaluate

    from neobert.embeddings.mteb import load_published, temporary_datasets_cache

    encoder = model.named.encoder
    encoder.counts = TextCounts()
    options: EncodeKwargs = {"batch_size": LOADED_TEXTS, "show_progress_bar": False}
    with temporary_datasets_cache():
        load_published(task)
        try:
            found = evaluate(model, task, cache=None, encode_kwargs=options, co2_tracker=False, show_progress_bar=False)
        except ValueError as error:
            raise ValueError(f"task {task.metadata.name}: {error}") from error
    return _publish(TaskScore(found.task_results[0], encoder.counts), model.mteb_model_meta, results)


def _read_result(model: "ModelMeta", task: "AbsTask", results: Path) -> TaskScore | None:
    """What was measured before; None where nothing was, the file is torn, or it was with other data or another mteb."""
    from mteb import ResultCache, TaskResult

    path = ResultCache(results).get_task_result_path(task.metadata.name, model)
    try:
        result = TaskResult.from_disk(path, load_historic_data=False)
        counts = TextCounts(**json.loads(path.read_bytes())[COUNTS])
        _require_score(result)
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError, RunFailed):
        return None
    is_same = result.is_mergeable(task, criteria=("mteb_version", "dataset_revision"))
    return TaskScore(result, counts) if is_same and not result.get_missing_evaluations(task) else None


def _require_score(result: "TaskResult") -> None:
    score = result.get_score()
    if not -1 <= round(score, KEPT_DIGITS) <= 1:
        raise RunFailed(
            f"task {result.task_name} gives the score {score}, which is none of −1 … 1: look at the vectors, an "
            "encoder that gives all texts the same one cannot be measured"
        )


def _publish(scored: TaskScore, model: "ModelMeta", results: Path) -> TaskScore:
    """Put a result where mteb's tools look for it, whole or not at all, and give it as it can be read again."""
    from mteb import ResultCache, TaskResult

    _require_score(scored.result)
    path = ResultCache(results).get_task_result_path(scored.result.task_name, model)
    with TemporaryDirectory() as scratch:
        written = Path(scratch) / path.name
        scored.result.to_disk(written)
        # NaN becomes null: a metric that does not apply to a task, as precision to one of many classes
        content = {**json.loads(written.read_bytes(), parse_constant=lambda _: None), COUNTS: asdict(scored.counts)}
    replace_file(path.parent / "model_meta.json", _json(model.to_dict()))
    replace_file(path, _json(content))
    return TaskScore(TaskResult.from_disk(path, load_historic_data=False), scored.counts)


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, default=str, allow_nan=False).encode()


ORGANISATION = "neobert"
"""Of models without one in their name, which mteb requires."""

UNFIT = re.compile(r"[^\w.-]+")
"""Characters that a model's name may not have."""


def load_named_encoder(layout: Layout, run_file: RunFile, device: torch.device) -> NamedEncoder:
    """The encoder of an evaluation.

    Raises:
        MissingData, DamagedFile: its files are not there, or not the ones that the evaluation names.
    """
    assert run_file.mteb is not None
    measured = run_file.mteb.encoder
    if measured.pretraining.startswith(EXTERNAL_PREFIX):
        name = read_model_file(layout, measured.pretraining).name
        name = name if "/" in name else f"{ORGANISATION}/{UNFIT.sub('-', name)}"
    else:
        variants = UNFIT.sub("-", "-".join(map(str, run_file.labels.get("variants", ()))))
        name = f"{ORGANISATION}/{variants or 'encoder'}"
    encoder = load_encoder(layout, measured.weights, device, measured.precision, measured.context)
    return NamedEncoder(name, measured.revision, encoder)


def execute(layout: Layout, run_file: RunFile, part: Part, claim: Claim, stop: StopRequest) -> None:
    """Measure one task of an evaluation, or take its score from mteb's cache, then publish the record.

    Raises:
        MissingData, DamagedFile: the weights or the task's data are not there, or not what the evaluation names.
        RunFailed: vectors or the score are not finite.
        Stopped: `stop` was requested; the task is measured anew.
        ClaimLost: another process recorded the task.
    """
    assert isinstance(part, TaskPart)
    encoder, task = part.run.encoder, part.run.task
    named, source = _open_evaluation(layout, run_file.id)
    require_origin(f"task {task.name} of {source.label}", task.origin, source.embedding_task_origin(task.name))
    score = measure_task(named, task, source, layout.embedding_results, task.prompts, stop)
    claim.check()
    config = EmbeddingConfig(
        task=task.name,
        category=task.category,
        suite=task.suite,
        protocol=encoder.protocol,
        metric=task.metric,
        split=task.split,
        revision=score.revision,
    )
    record = {
        "kind": "mteb",
        "id": part.id,
        "state": "done",
        "inputs": {
            "pretraining": encoder.pretraining,
            "weights": encoder.weights,
            "evaluation": run_file.id,
            "task": task.origin,
            "tokenizer": encoder.tokenizer_origin,
        },
        "config": plain(config),
        "labels": run_file.labels,
        "scores": plain(EmbeddingScores(score=score.score, metrics=score.metrics)),
        "seed": encoder.seed,
        "prompts": task.prompts,
        "pooling": named.encoder.pooling,
        "normalized": named.encoder.normalized,
        "precision": encoder.precision,
        "context": encoder.context,
        "parameters": named.encoder.parameters,
        "texts": asdict(score.counts),
        "seconds": round(score.seconds, 3),
        "threads": torch.get_num_threads(),
        "device": default_device().type,
        **provenance(),
    }
    if not publish_record(part.record, record):
        raise ClaimLost(f"task {part.id} was recorded by another process; this result is dropped")


@lru_cache(maxsize=1)
def _open_evaluation(layout: Layout, evaluation_id: str) -> tuple[NamedEncoder, Source]:
    """The encoder of an evaluation and where the data of its tasks are, opened once a process for all of its tasks."""
    run_file = read_checked_run_file(layout.embedding_evaluation(evaluation_id))
    return load_named_encoder(layout, run_file, default_device()), open_specified(run_file.source)
