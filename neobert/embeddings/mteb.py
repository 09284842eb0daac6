"""Adapters of tasks and encoders for mteb. Its results are written to a cache of its own, which its tools read."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Unpack, cast

import datasets
import mteb
import numpy as np
from datasets import Dataset, DatasetDict
from datasets.exceptions import DatasetsError
from mteb.abstasks import (
    AbsTask,
    AbsTaskClassification,
    AbsTaskClusteringLegacy,
    AbsTaskPairClassification,
    AbsTaskRetrieval,
    AbsTaskSTS,
    AbsTaskSummarization,
)
from mteb.abstasks.aggregated_task import AbsTaskAggregate
from mteb.abstasks.task_metadata import TaskMetadata, TaskType
from mteb.models import ModelMeta
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ScoringFunction
from mteb.results import TaskResult
from mteb.types import BatchedInput, EncodeKwargs, PromptType
from torch.utils.data import DataLoader

from neobert.data.mteb_tasks import (
    BENCHMARKS,
    CATEGORY_FACTS,
    Category,
    EmbeddingTask,
    PublishedTask,
    Table,
    TaskOnData,
)
from neobert.data.sources import Source
from neobert.data.tokenizers import Array
from neobert.embeddings.encoders import NamedEncoder, TextCounts
from neobert.errors import DamagedFile, RunFailed
from neobert.files import replace_file
from neobert.identity import identity
from neobert.processes import Stopped, StopRequest

TASK_CLASSES: Mapping[Category, type[AbsTask]] = {
    "classification": AbsTaskClassification,
    "clustering": AbsTaskClusteringLegacy,
    "pair_classification": AbsTaskPairClassification,
    "reranking": AbsTaskRetrieval,
    "retrieval": AbsTaskRetrieval,
    "sts": AbsTaskSTS,
    "summarization": AbsTaskSummarization,
}
"""mteb's task class of each category in MTEB(eng, v1)."""

NO_PROMPTS: Mapping[str, str] = {}

LOADED_TEXTS = 1024
"""Batch size of mteb's loaders in texts; all batches of a call are encoded together."""

KEPT_DIGITS = 6
"""Digits to which mteb rounds scores. A perfect score may exceed 1 by a rounding error."""


def mteb_tasks(
    task: EmbeddingTask | TaskOnData, data: Mapping[str, Table] | PublishedTask, origin: str
) -> Iterator[AbsTask]:
    """Yield the mteb task of `task`, or its members: mteb's own, which load the folders of `data`, or one that has
    loaded its tables."""
    if not isinstance(data, PublishedTask):
        yield _declare(task, data, origin)
        return
    for name, folder in data.folders.items():
        found = official_task(name)
        dataset = {**found.metadata.dataset, "path": str(folder)}
        found.metadata = found.metadata.model_copy(update={"dataset": dataset})
        yield found


@contextmanager
def _temporary_datasets_cache() -> Iterator[None]:
    """Use a temporary cache of `datasets`, which identifies a local folder by its name alone. A shared cache could
    return tables of another folder with that name, or outdated ones."""
    usual = datasets.config.HF_DATASETS_CACHE
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        datasets.config.HF_DATASETS_CACHE = Path(folder)
        try:
            yield
        finally:
            datasets.config.HF_DATASETS_CACHE = usual


def official_task(name: str) -> AbsTask:
    """Return a copy of a task of mteb's benchmarks, or of a member of one, with their splits and languages."""
    tasks = [task for suite in BENCHMARKS for task in mteb.get_benchmark(suite).tasks]
    members = [member for task in tasks if isinstance(task, AbsTaskAggregate) for member in task.metadata.tasks]
    found = copy(next(task for task in (*tasks, *members) if task.metadata.name == name))
    # Clustering tasks of v2 draw texts from a generator that copies would otherwise share.
    found.rng_state, found.np_rng = Random(found.seed), np.random.default_rng(found.seed)
    return found


def _declare(task: EmbeddingTask | TaskOnData, tables: Mapping[str, Table], origin: str) -> AbsTask:
    task_class = TASK_CLASSES[task.category]
    metadata = TaskMetadata(
        name=task.name,
        description=f"{task.name} ({task.suite}), no task of mteb",
        type=cast(TaskType, CATEGORY_FACTS[task.category].task_type),
        category="t2c" if task.category in ("classification", "clustering") else "t2t",
        main_score=task.metric,
        eval_splits=[task.split],
        eval_langs=["eng-Latn"],
        dataset={"path": task.suite, "revision": origin},
    )
    gold_range = {"min_score": 0, "max_score": 5}  # without effect, because the metric is a correlation
    found: AbsTask = type(task_class.__name__, (task_class,), {"metadata": metadata, **gold_range})()
    found.dataset = _CONVERTERS.get(task.category, _rows)(tables)
    found.data_loaded = True
    return found


def _rows(tables: Mapping[str, Table]) -> Any:
    return DatasetDict({name: Dataset.from_dict({**table}) for name, table in tables.items()})


def _retrieval(tables: Mapping[str, Table]) -> Any:
    judged, relevant = tables["qrels_test"], dict[str, dict[str, int]]()
    for query, document, score in zip(judged["query-id"], judged["corpus-id"], judged["score"], strict=True):
        relevant.setdefault(query, {})[document] = score
    corpus, queries = (
        dict(zip(tables[name]["_id"], tables[name]["text"], strict=True)) for name in ("corpus", "queries_test")
    )
    return _search(corpus, queries, relevant, None)


def _reranking(tables: Mapping[str, Table]) -> Any:
    """Return each query with its own candidates; repeated texts are one document."""
    test = tables["test"]
    documents: dict[str, str] = {}
    relevant: dict[str, dict[str, int]] = {}
    candidates: dict[str, list[str]] = {}
    for number, (positives, negatives) in enumerate(zip(test["positive"], test["negative"], strict=True)):
        names = [documents.setdefault(text, f"d{len(documents)}") for text in (*positives, *negatives)]
        relevant[f"q{number}"] = dict.fromkeys(names[: len(positives)], 1)
        candidates[f"q{number}"] = list(dict.fromkeys(names))
    corpus = {name: text for text, name in documents.items()}
    return _search(corpus, dict(zip(candidates, test["query"], strict=True)), relevant, candidates)


def _search(
    corpus: Mapping[str, str],
    queries: Mapping[str, str],
    relevant: dict[str, dict[str, int]],
    candidates: dict[str, list[str]] | None,
) -> Any:
    corpus_of, queries_of = (
        Dataset.from_dict({"id": list(texts), "text": list(texts.values())}) for texts in (corpus, queries)
    )
    parts = {"corpus": corpus_of, "queries": queries_of, "relevant_docs": relevant, "top_ranked": candidates}
    return {"default": {"test": parts}}


_CONVERTERS: Mapping[Category, Callable[[Mapping[str, Table]], Any]] = {
    "clustering": lambda tables: _rows({"test": {name: [list(own)] for name, own in tables["test"].items()}}),
    "reranking": _reranking,
    "retrieval": _retrieval,
}
"""Converters of tables to mteb's data: all texts of clustering are one set; other categories are taken as they are."""


class MtebModel(AbsEncoder):
    """Adapter of an encoder for mteb. Each call of `encode` gets all texts of one part of a task, so that they can be
    sorted by length. Results with prompts are an experiment of the model, with a separate folder."""

    mteb_model_meta: ModelMeta

    def __init__(self, named: NamedEncoder, prompts: Mapping[str, str], stop: StopRequest) -> None:
        self.named = named
        self.prompts = prompts
        self.stop = stop
        self.mteb_model_meta = ModelMeta.create_empty(
            {
                "name": named.name,
                "revision": named.revision,
                "n_parameters": named.encoder.parameters,
                "max_tokens": named.encoder.context,
                "embed_dim": named.encoder.width,
                "languages": ["eng-Latn"],
                "open_weights": True,
                "framework": ["PyTorch"],
                "similarity_fn_name": ScoringFunction.COSINE,
                "use_instructions": bool(prompts),
                "experiment_kwargs": {"prompts": identity(dict(prompts))} if prompts else None,
            }
        )

    def encode(
        self,
        inputs: DataLoader[BatchedInput],
        *,
        task_metadata: TaskMetadata,
        hf_split: str,
        hf_subset: str,
        prompt_type: PromptType | None = None,
        **kwargs: Unpack[EncodeKwargs],
    ) -> Array:
        """Return the vectors (texts, width) of all texts of a loader.

        Raises:
            Stopped: the process was asked to stop.
            RunFailed: a vector is not finite.
        """
        if self.stop.requested:
            raise Stopped("asked to stop in the middle of a task, which is measured anew")
        texts = [text for batch in inputs for text in batch["text"]]
        role = "document" if prompt_type == PromptType.document else "query"
        return self.named.encoder.encode(texts, instruction=self.prompts.get(role))


@dataclass(frozen=True)
class TaskScore:
    """Main score, −1..1, other metrics and the revision of the data as mteb returns them, the duration in seconds, and
    the counts of the encoded texts."""

    score: float
    metrics: dict[str, float]
    revision: str | None
    seconds: float
    counts: TextCounts


def measure_task(
    named: NamedEncoder,
    task: EmbeddingTask | TaskOnData,
    source: Source,
    results: Path,
    prompts: Mapping[str, str] = NO_PROMPTS,
    stop: StopRequest | None = None,
) -> TaskScore:
    """Measure one task.

    mteb's result is written to `results`, a folder that mteb.ResultCache reads. `prompts` are the instructions before
    texts, by "query" (also for tasks without documents) and "document"; `task_prompts` returns those of a task.

    Raises:
        MissingData, DamagedFile, ValueError: the task's data are missing or not as expected.
        RunFailed: a score is not a number in −1..1.
        Stopped: a stop was requested.
    """
    origin = source.embedding_task_origin(task.name)
    data = source.embedding_task_data(task.name)
    model = MtebModel(named, prompts, stop or StopRequest())
    named.encoder.counts = TextCounts()
    parts = [_measure_part(model, part) for part in mteb_tasks(task, data, origin)]
    result = parts[0]
    if task.members:
        aggregate = official_task(task.name)
        assert isinstance(aggregate, AbsTaskAggregate)
        result = aggregate.combine_task_results(parts)
    score = round(float(result.get_score()), KEPT_DIGITS)
    if not -1 <= score <= 1:
        raise RunFailed(
            f"task {task.name} has the score {score}, which is outside [−1, 1]: the encoder gives all texts the same "
            "vector, or the gold scores of the task do not differ"
        )
    _publish(result, model.mteb_model_meta, results)
    (entries,) = result.scores.values()
    numbers = {name: float(value) for name, value in entries[0].items() if isinstance(value, int | float)}
    del numbers["main_score"]
    metrics = {name: round(value, KEPT_DIGITS) for name, value in numbers.items() if math.isfinite(value)}
    return TaskScore(
        score, metrics, result.dataset_revision, float(result.evaluation_time or 0.0), named.encoder.counts
    )


def _measure_part(model: MtebModel, task: AbsTask) -> TaskResult:
    options: EncodeKwargs = {"batch_size": LOADED_TEXTS, "show_progress_bar": False}
    with _temporary_datasets_cache():
        try:
            task.load_data()  # from its folder, unless they are loaded
        except (DatasetsError, OSError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise DamagedFile(
                f"{task.metadata.name} in {task.metadata.dataset['path']} cannot be read ({reason}): prefetch it "
                "again, or set TMPDIR to a folder with more room"
            ) from error
        try:
            found = mteb.evaluate(
                model, task, cache=None, encode_kwargs=options, co2_tracker=False, show_progress_bar=False
            )
        except ValueError as error:
            raise ValueError(f"task {task.metadata.name}: {error}") from error
    return found.task_results[0]


def _publish(result: TaskResult, model: ModelMeta, results: Path) -> None:
    """Write a result where mteb's tools look for it; atomically, as tasks of other workers share the folder."""
    path = mteb.ResultCache(results).get_task_result_path(result.task_name, model)
    with TemporaryDirectory() as scratch:
        written = Path(scratch) / path.name
        result.to_disk(written)
        replace_file(path, written.read_bytes())
    replace_file(path.parent / "model_meta.json", json.dumps(model.to_dict(), indent=2, default=str).encode())
