"""Adapters of tasks and encoders for mteb. Its results are kept in the layout of its own cache, so that its tools can
read them."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import asdict, dataclass
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
    MECHANISMS,
    Category,
    EmbeddingTask,
    PublishedTask,
    Table,
    TaskOnData,
    TaskTables,
)
from neobert.data.sources import Source
from neobert.data.tokenizers import Array
from neobert.embeddings.encoders import NamedEncoder, TextCounts
from neobert.errors import DamagedFile, RunFailed
from neobert.files import replace_file
from neobert.identity import NUMERICS, chosen, identity
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

LOADED_TEXTS = 1024
"""Batch size of mteb's loaders in texts; all batches of a call are encoded together."""

KEPT_DIGITS = 6
"""Digits to which mteb rounds scores. A perfect score may exceed 1 by a rounding error."""

COUNTS = "encoded"
"""Key of our text counts in mteb's result files."""

VERSIONS = "numerics"
"""Key of our numerics versions in mteb's result files."""

FIRST_VERSIONS = {"tokenization": 2, "model": 1}
"""The versions of result files without this key."""


def mteb_tasks(task: EmbeddingTask | TaskOnData, data: TaskTables | PublishedTask, origin: str) -> Iterator[AbsTask]:
    """Yield the mteb task of `task`, or its members: mteb's own, which load the folders of `data`, or one that has
    loaded its tables."""
    if isinstance(data, TaskTables):
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


def _load(task: AbsTask) -> None:
    """Load the data of a task from its folder, unless they are loaded. Raises DamagedFile if they cannot be read."""
    try:
        task.load_data()
    except (DatasetsError, OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise DamagedFile(
            f"{task.metadata.name} in {task.metadata.dataset['path']} cannot be read ({reason}): prefetch it again, or "
            "set TMPDIR to a folder with more room"
        ) from error


def official_task(name: str) -> AbsTask:
    """Return a copy of a task of mteb's benchmarks, or of a member of one, with their splits and languages."""
    tasks = [task for suite in BENCHMARKS for task in mteb.get_benchmark(suite).tasks]
    members = [member for task in tasks if isinstance(task, AbsTaskAggregate) for member in task.metadata.tasks]
    found = copy(next(task for task in (*tasks, *members) if task.metadata.name == name))
    # Clustering tasks of v2 draw texts from a generator that copies would otherwise share.
    found.rng_state, found.np_rng = Random(found.seed), np.random.default_rng(found.seed)
    return found


def _declare(task: EmbeddingTask | TaskOnData, data: TaskTables, origin: str) -> AbsTask:
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
    found.dataset = _CONVERTERS.get(task.category, _rows)(data.tables)
    found.data_loaded = True
    return found


def _rows(tables: Mapping[str, Table]) -> Any:
    return DatasetDict({name: Dataset.from_dict({**table}) for name, table in tables.items()})


def _classification(tables: Mapping[str, Table]) -> Any:
    """Return the rows; of two labels without 1, which mteb takes for the positive one, the greater becomes 1."""
    labels = sorted(set(tables["train"]["label"]))
    if len(labels) > 2 or 1 in labels:
        return _rows(tables)
    numbered = {name: [labels.index(label) for label in table["label"]] for name, table in tables.items()}
    return _rows({name: {**table, "label": numbered[name]} for name, table in tables.items()})


def _one_set(tables: Mapping[str, Table]) -> Any:
    """Return all texts of the task as one set."""
    return DatasetDict(test=Dataset.from_dict({name: [list(values)] for name, values in tables["test"].items()}))


def _retrieval(tables: Mapping[str, Table]) -> Any:
    corpus, queries, judged = (tables[name] for name in ("corpus", "queries_test", "qrels_test"))
    relevant: dict[str, dict[str, int]] = {}
    for query, document, score in zip(judged["query-id"], judged["corpus-id"], judged["score"], strict=True):
        relevant.setdefault(str(query), {})[str(document)] = int(score)
    titles = corpus.get("title") or [""] * len(corpus["_id"])
    return _search(_texts_by_id(corpus, title=titles), _texts_by_id(queries), relevant, None)


def _texts_by_id(table: Table, **others: Sequence[str]) -> Dataset:
    return Dataset.from_dict({"id": list(map(str, table["_id"])), "text": list(table["text"]), **others})


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
    corpus = Dataset.from_dict({"id": list(documents.values()), "text": list(documents)})
    queries = Dataset.from_dict({"id": list(candidates), "text": list(test["query"])})
    return _search(corpus, queries, relevant, candidates)


def _search(
    corpus: Dataset, queries: Dataset, relevant: dict[str, dict[str, int]], candidates: dict[str, list[str]] | None
) -> Any:
    parts = {"corpus": corpus, "queries": queries, "relevant_docs": relevant, "top_ranked": candidates}
    return {"default": {"test": parts}}


_CONVERTERS: Mapping[Category, Callable[[Mapping[str, Table]], Any]] = {
    "classification": _classification,
    "clustering": _one_set,
    "reranking": _reranking,
    "retrieval": _retrieval,
}
"""Converters of tables to mteb's data; those of other categories are taken as they are."""


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
    """mteb's result of a task, and the counts of the encoded texts."""

    result: TaskResult
    counts: TextCounts

    @property
    def score(self) -> float:
        """The main score, −1..1."""
        return float(self.result.get_score())

    @property
    def metrics(self) -> dict[str, float]:
        """All numeric metrics but the main score."""
        (entries,) = self.result.scores.values()
        numbers = {name: float(value) for name, value in entries[0].items() if isinstance(value, int | float)}
        return {name: value for name, value in numbers.items() if name != "main_score"}

    @property
    def revision(self) -> str | None:
        return self.result.dataset_revision

    @property
    def seconds(self) -> float:
        """Duration of the measurement in seconds."""
        return float(self.result.evaluation_time or 0.0)


def measure_with_mteb(
    named: NamedEncoder,
    task: EmbeddingTask | TaskOnData,
    source: Source,
    results: Path,
    prompts: Mapping[str, str],
    stop: StopRequest,
) -> TaskScore:
    """Implement `neobert.embeddings.evaluation.measure_task`."""
    origin = source.embedding_task_origin(task.name)
    data = source.embedding_task_data(task.name)
    model = MtebModel(named, prompts, stop)
    parts = [_measure_part(model, part, results) for part in mteb_tasks(task, data, origin)]
    if not task.members:
        return parts[0]
    aggregate = official_task(task.name)
    assert isinstance(aggregate, AbsTaskAggregate)
    joined = aggregate.combine_task_results([part.result for part in parts])
    counts = sum((part.counts for part in parts), TextCounts())
    return _publish(TaskScore(joined, counts), model.mteb_model_meta, results)


def _measure_part(model: MtebModel, task: AbsTask, results: Path) -> TaskScore:
    """Read the result of one mteb task from the cache, or measure it."""
    if kept := _read_result(model.mteb_model_meta, task, results):
        return kept
    encoder = model.named.encoder
    encoder.counts = TextCounts()
    options: EncodeKwargs = {"batch_size": LOADED_TEXTS, "show_progress_bar": False}
    with _temporary_datasets_cache():
        _load(task)
        try:
            found = mteb.evaluate(
                model, task, cache=None, encode_kwargs=options, co2_tracker=False, show_progress_bar=False
            )
        except ValueError as error:
            raise ValueError(f"task {task.metadata.name}: {error}") from error
    return _publish(TaskScore(found.task_results[0], encoder.counts), model.mteb_model_meta, results)


def _read_result(model: ModelMeta, task: AbsTask, results: Path) -> TaskScore | None:
    """Return the cached result, or None if it is absent, damaged, or from other data, another version of mteb or other
    numerics versions."""
    path = mteb.ResultCache(results).get_task_result_path(task.metadata.name, model)
    try:
        result = TaskResult.from_disk(path, load_historic_data=False)
        content = json.loads(path.read_bytes())
        counts = TextCounts(**content[COUNTS])
        _require_score(result)
    except (FileNotFoundError, ValueError, KeyError, TypeError, RecursionError, RunFailed):
        return None
    is_same = result.is_mergeable(task, criteria=("mteb_version", "dataset_revision"))
    is_same = is_same and content.get(VERSIONS, FIRST_VERSIONS) == _versions()
    return TaskScore(result, counts) if is_same and not result.get_missing_evaluations(task) else None


def _versions() -> dict[str, int]:
    """Return the numerics versions that decide a result. Those of weights that a run made are part of their id, those
    of an external model's are not."""
    return chosen(NUMERICS, MECHANISMS)


def _require_score(result: TaskResult) -> None:
    score = result.get_score()
    if not -1 <= round(score, KEPT_DIGITS) <= 1:
        raise RunFailed(
            f"task {result.task_name} has the score {score}, which is outside [−1, 1]: the encoder gives all "
            "texts the same vector, or the gold scores of the task do not differ"
        )


def _publish(scored: TaskScore, model: ModelMeta, results: Path) -> TaskScore:
    """Write a result atomically where mteb's tools look for it, and return it as it is read back."""
    _require_score(scored.result)
    path = mteb.ResultCache(results).get_task_result_path(scored.result.task_name, model)
    with TemporaryDirectory() as scratch:
        written = Path(scratch) / path.name
        scored.result.to_disk(written)
        # NaN becomes null: some metrics do not apply to a task, such as precision with many classes.
        content = json.loads(written.read_bytes(), parse_constant=lambda _: None)
    content |= {COUNTS: asdict(scored.counts), VERSIONS: _versions()}
    replace_file(path.parent / "model_meta.json", _json(model.to_dict()))
    replace_file(path, _json(content))
    return TaskScore(TaskResult.from_disk(path, load_historic_data=False), scored.counts)


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2, default=str, allow_nan=False).encode()
