"""One task of embeddings on one encoder: measured by mteb, kept in the layout of mteb's own cache of results.

The one door to mteb, with its siblings. mteb is imported when something is measured.
"""

import json
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from neobert.data.corpora import Source
from neobert.embeddings.encoding import TextCounts
from neobert.embeddings.tasks import EmbeddingTask
from neobert.errors import RunFailed
from neobert.files import replace_file

if TYPE_CHECKING:
    from mteb import TaskResult
    from mteb.abstasks import AbsTask
    from mteb.models import ModelMeta
    from mteb.types import EncodeKwargs

    from neobert.embeddings.suite_model import SuiteModel

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
        from neobert.embeddings.suite_data import joined_result, mteb_tasks
        from neobert.embeddings.suite_model import SuiteModel

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

    from neobert.embeddings.suite_data import fresh_tables, load_published

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
