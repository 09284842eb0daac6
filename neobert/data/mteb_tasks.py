"""Embedding tasks: the 56 of MTEB(eng, v1), tasks of a person's own, and their data in a folder.

Names, metrics, splits, repositories and sizes are those of mteb 2.26.24; a test compares them with the installed mteb.
mteb_tasks.csv has the instruction of each of the 56 tasks in three wordings: the paper's (Tables 8 and 9; in v1 7 and
8), mteb's own, and the released code's (conf/mteb_task_to_instruction_{query,corpus}.json), which end in the name of a
field and differ for documents. mteb_repositories.csv has the dataset of each of mteb's own tasks and its commit.

A folder holds tasks as mteb/<Category>/<Task>/<table>.parquet (or another format of `reading`), or as repositories
that prefetch brought. The former count as one of the 56 where name and sizes agree; otherwise their name says how many
rows they have, so that nobody takes them for it.
"""

import csv
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from neobert.data.catalog import hub_origin
from neobert.data.manifest import MANIFEST, Manifest, missing_files, require_brought
from neobert.data.reading import count_rows, read_table, split_name, table_file
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.recipe import Instructed
from neobert.runs.records import ENGLISH_SUITE, Category

CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True)
class EmbeddingTask:
    """One task of embeddings.

    `suite` is MTEB(eng, v1), or an honest name for tasks that are none of it. `metric` is mteb's main score of it on
    `split`. `members` are mteb's own tasks where several count as one. `instruction` tells an encoder that was trained
    with instructions what to do with the texts, or with the queries where a task has queries and documents.
    """

    name: str
    category: Category
    suite: str
    metric: str
    split: str
    members: tuple[str, ...] = ()
    instruction: str | None = None


METRICS: Mapping[Category, str] = {
    "classification": "accuracy",
    "clustering": "v_measure",
    "pair_classification": "max_ap",
    "reranking": "map_at_1000",
    "retrieval": "ndcg_at_10",
    "sts": "cosine_spearman",
    "summarization": "cosine_spearman",
}
"""The main score of the tasks of a category."""

INSTRUCTIONS: Mapping[Category, str] = {
    "classification": "Classify user passages.",
    "clustering": "Identify categories in user passages.",
    "pair_classification": "Retrieve text that are semantically similar to the given text.",
    "reranking": "Retrieve text based on user query.",
    "retrieval": "Retrieve text based on user query.",
    "sts": "Retrieve semantically similar text.",
    "summarization": "Given a news summary, retrieve other semantically similar summaries.",
}
"""What mteb tells an encoder to do in a task that has no instruction of its own."""

_FORUMS = tuple(
    f"CQADupstack{forum}Retrieval"
    for forum in (
        *("Android", "English", "Gaming", "Gis", "Mathematica", "Physics"),
        *("Programmers", "Stats", "Tex", "Unix", "Webmasters", "Wordpress"),
    )
)
_MEMBERS: Mapping[str, tuple[str, ...]] = {"CQADupstackRetrieval": _FORUMS}
_SPLITS: Mapping[str, str] = {"MSMARCO": "dev"}
_METRICS: Mapping[str, str] = {"MindSmallReranking": "max_over_subqueries_map_at_1000"}


def _read_table(name: str) -> dict[str, dict[str, str]]:
    """The rows of a table beside this file, by task."""
    with Path(__file__).with_name(name).open(newline="", encoding="utf-8") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


_INSTRUCTED: Mapping[str, Mapping[str, str]] = _read_table("mteb_tasks.csv")

MTEB_ENGLISH_V1: tuple[EmbeddingTask, ...] = tuple(
    EmbeddingTask(
        name=name,
        category=category,
        suite=ENGLISH_SUITE,
        metric=_METRICS.get(name, METRICS[category]),
        split=_SPLITS.get(name, "test"),
        members=_MEMBERS.get(name, ()),
        instruction=row["paper"],
    )
    for category in CATEGORIES
    for name, row in _INSTRUCTED.items()
    if row["category"] == category
)
"""The 56 tasks of Table 4, category by category; CQADupstack's twelve forums count as one (paper, Table 4)."""

Wording = Literal["paper", "mteb", "code"]
"""Whose instructions the 56 tasks are measured with; other tasks have one of their own."""

OFFICIAL_TASKS: Mapping[str, EmbeddingTask] = {task.name: task for task in MTEB_ENGLISH_V1}


def task_prompts(task: EmbeddingTask, instructed: Instructed, wording: Wording = "paper") -> dict[str, str]:
    """What an encoder is told of a task's texts, by "query" (also where it has no documents) and "document"."""
    if instructed == "nothing" or task.instruction is None:
        return {}
    query = document = task.instruction
    if task.suite == ENGLISH_SUITE and wording == "mteb":
        query = document = _INSTRUCTED[task.name]["mteb"]
    if task.suite == ENGLISH_SUITE and wording == "code":
        query, document = (_INSTRUCTED[task.name][f"code_{texts}"] for texts in ("queries", "documents"))
    return {"query": query, **({"document": document} if instructed == "queries_and_documents" else {})}


def member_names(task: EmbeddingTask) -> tuple[str, ...]:
    """mteb's own tasks that are measured for a task: its members, or itself."""
    return task.members or (task.name,)


def chosen_tasks(
    available: Sequence[EmbeddingTask], names: Sequence[str] | None, categories: Sequence[str] | None
) -> tuple[EmbeddingTask, ...]:
    """The available tasks that are named, of the categories that are named, in their own order; None or "all" stands
    for all.

    Raises:
        ValueError: no suite has such a task, there is no such category, or nothing is left.
        MissingData: one of the 56 is not among the available ones.
    """
    known = {task.name: task for task in available}
    names = None if names is not None and "all" in names else names
    for category in categories or ():
        if category not in CATEGORIES:
            raise ValueError(f"there is no category {category!r} of tasks: {did_you_mean(category, CATEGORIES)}")
    for name in names or ():
        if name not in known:
            _refuse(name, known)
    chosen = tuple(
        task
        for task in available
        if (names is None or task.name in names) and (categories is None or task.category in categories)
    )
    if not chosen:
        asked = ", ".join((*(names or ()), *(categories or ()))) or "any"
        raise ValueError(f"no task is left of {asked}: here are {', '.join(known) or 'none'}")
    return chosen


def _refuse(name: str, known: Mapping[str, EmbeddingTask]) -> None:
    if name in OFFICIAL_TASKS:
        raise MissingData(f"task {name} of {ENGLISH_SUITE} is not in this data: here are {', '.join(known) or 'none'}")
    raise ValueError(f"there is no task {name!r}: {did_you_mean(name, [*known, *OFFICIAL_TASKS])}")


_PUBLISHED: Mapping[str, Mapping[str, str]] = _read_table("mteb_repositories.csv")

MTEB_REPOSITORIES: Mapping[str, tuple[str, str]] = {
    task: (row["repository"], row["commit"]) for task, row in _PUBLISHED.items()
}
"""The dataset repository and its commit of each of mteb's own tasks; CQADupstack's twelve forums are tasks here."""

OFFICIAL_ROWS: Mapping[str, Mapping[str, int]] = {
    task: {table: int(row[f"{table}_rows"]) for table in ("train", "test") if row[f"{table}_rows"]}
    for task, row in _PUBLISHED.items()
    if row["gold"]
}
"""Rows of each table of the tasks whose data are plain tables."""

OFFICIAL_GOLD: Mapping[str, float] = {task: float(row["gold"]) for task, row in _PUBLISHED.items() if row["gold"]}
"""Their different labels, or the mean of their gold scores, to `GOLD_DIGITS` digits."""

GOLD_DIGITS = 4


Table = Mapping[str, Sequence[Any]]

COLUMNS: Mapping[Category, Mapping[str, tuple[str, ...]]] = {
    "classification": {"train": ("text", "label"), "test": ("text", "label")},
    "clustering": {"test": ("sentences", "labels")},
    "pair_classification": {"test": ("sentence1", "sentence2", "labels")},
    "reranking": {"test": ("query", "positive", "negative")},
    "retrieval": {
        "corpus": ("_id", "text"),
        "queries_test": ("_id", "text"),
        "qrels_test": ("query-id", "corpus-id", "score"),
    },
    "sts": {"test": ("sentence1", "sentence2", "score")},
    "summarization": {"test": ("text", "human_summaries", "machine_summaries", "relevance")},
}
"""The tables of a task of each category, and the columns that each must have."""

TEXTS = frozenset({"text", "title", "sentences", "sentence1", "sentence2", "query"})
TEXT_LISTS = frozenset({"positive", "negative", "human_summaries", "machine_summaries"})


@dataclass(frozen=True, eq=False)
class TaskTables:
    """A task's tables by their names in `COLUMNS`; a text that was missing is empty."""

    category: Category
    tables: Mapping[str, Table]


@dataclass(frozen=True)
class PublishedTask:
    """A task whose data lie as on the hub: the folder of each of mteb's own tasks that belong to it."""

    folders: Mapping[str, Path]


def checked_tables(category: Category, tables: Mapping[str, Table], where: str) -> TaskTables:
    """Tables that a score can be computed from, missing texts made empty.

    Raises:
        ValueError: there are no rows, a text is none, or labels or scores do not serve.
    """
    for name, columns in COLUMNS[category].items():
        if not len(tables[name][columns[0]]):
            raise ValueError(f"{where}: table {name} has no rows, so leave the task out or fill it")
    cleaned = {
        name: {column: _cleaned(column, values, f"{where}, table {name}") for column, values in table.items()}
        for name, table in tables.items()
    }
    _CHECKS[category](cleaned, where)
    return TaskTables(category, cleaned)


def _cleaned(column: str, values: Sequence[Any], where: str) -> Sequence[Any]:
    if column in TEXTS:
        return [_text(value, f"{where}, row {row}") for row, value in enumerate(values)]
    if column in TEXT_LISTS:
        return [_texts(value, f"{where}, row {row}") for row, value in enumerate(values)]
    return values


def _text(value: Any, where: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{where}: {value!r} is not a text")
    return value


def _texts(value: Any, where: str) -> list[str]:
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{where}: {value!r} is not a list of texts")
    return [_text(text, where) for text in value or ()]


def _different_labels(labels: Iterable[Any], where: str) -> set[Any]:
    found = set(labels)
    if None in found:
        raise ValueError(f"{where}: a label is missing, so leave its row out or give it one")
    if len(found) < 2:
        raise ValueError(f"{where}: all rows have the label {next(iter(found))!r}, so nothing can be told apart")
    return found


def _classification(tables: Mapping[str, Table], where: str) -> None:
    known = _different_labels(tables["train"]["label"], f"{where}, table train")
    unknown = _different_labels(tables["test"]["label"], f"{where}, table test") - known
    if unknown:
        first = sorted(map(repr, unknown))[0]
        raise ValueError(f"{where}: label {first} of table test has no example in table train to learn it from")


def _clustering(tables: Mapping[str, Table], where: str) -> None:
    _different_labels(tables["test"]["labels"], f"{where}, table test")


def _pair_classification(tables: Mapping[str, Table], where: str) -> None:
    wrong = _different_labels(tables["test"]["labels"], f"{where}, table test") - {0, 1}
    if wrong:
        raise ValueError(f"{where}: label {sorted(map(repr, wrong))[0]} is neither 0 nor 1")


def _require_scores(scores: Sequence[Any], where: str) -> None:
    for row, score in enumerate(scores):
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise ValueError(f"{where}, row {row}: score {score!r} is not a finite number")
    if len(set(scores)) < 2:
        raise ValueError(f"{where}: all rows have the score {scores[0]!r}, so nothing can be ranked")


def _sts(tables: Mapping[str, Table], where: str) -> None:
    _require_scores(tables["test"]["score"], f"{where}, table test")


def _reranking(tables: Mapping[str, Table], where: str) -> None:
    positives, negatives = tables["test"]["positive"], tables["test"]["negative"]
    if not any(found and others for found, others in zip(positives, negatives, strict=True)):
        raise ValueError(f"{where}, table test: no query has both a positive and a negative, so nothing can be ranked")


def _retrieval(tables: Mapping[str, Table], where: str) -> None:
    judged = tables["qrels_test"]
    for name, column in (("corpus", "corpus-id"), ("queries_test", "query-id")):
        known = list(map(str, tables[name]["_id"]))
        if len(set(known)) < len(known):
            raise ValueError(f"{where}, table {name}: an _id comes twice, so give each text its own")
        unknown = set(map(str, judged[column])) - set(known)
        if unknown:
            raise ValueError(f"{where}, table qrels_test: {column} {min(unknown)!r} is not in table {name}")
    if not any(score and score > 0 for score in judged["score"]):
        raise ValueError(f"{where}, table qrels_test: no document belongs to a query (score above 0)")


def _summarization(tables: Mapping[str, Table], where: str) -> None:
    table = tables["test"]
    for row, (machine, human, relevance) in enumerate(
        zip(table["machine_summaries"], table["human_summaries"], table["relevance"], strict=True)
    ):
        if not human or not machine or len(machine) != len(relevance):
            raise ValueError(
                f"{where}, table test, row {row}: {len(human)} human summaries, {len(machine)} machine summaries and "
                f"{len(relevance)} scores of these do not go together"
            )
    _require_scores([score for scores in table["relevance"] for score in scores], f"{where}, table test")


_CHECKS: Mapping[Category, Callable[[Mapping[str, Table], str], None]] = {
    "classification": _classification,
    "clustering": _clustering,
    "pair_classification": _pair_classification,
    "reranking": _reranking,
    "retrieval": _retrieval,
    "sts": _sts,
    "summarization": _summarization,
}


FOLDER_SUITE = "tasks of a folder"
FOLDERS: Mapping[str, Category] = {
    "Classification": "classification",
    "Clustering": "clustering",
    "PairClassification": "pair_classification",
    "Reranking": "reranking",
    "Retrieval": "retrieval",
    "STS": "sts",
    "Summarization": "summarization",
}
"""The folders of categories, by mteb's names for them."""


@dataclass(frozen=True)
class FolderTask:
    """A task and its data: a file for each table, or what prefetch brought, a folder for each of mteb's own tasks."""

    task: EmbeddingTask
    files: Mapping[str, Path] = field(default_factory=dict)
    published: Mapping[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class FolderTasks:
    """The tasks below `folder`/mteb; `origin_of` identifies files by their contents."""

    folder: Path
    manifest: Manifest
    origin_of: Callable[[Sequence[Path]], str]

    @cached_property
    def tasks(self) -> dict[str, FolderTask]:
        """The tasks by name, those that were prefetched first.

        Raises:
            ValueError: a folder there is no category, or two tasks have one name.
        """
        found = {task.task.name: task for task in _prefetched(self.folder, self.manifest)}
        for task in _laid_out(self.folder / "mteb", self.manifest):
            earlier = found.get(task.task.name)
            if earlier is not None and not earlier.published:
                raise ValueError(
                    f"{self.folder / 'mteb'} has two tasks named {task.task.name}: rename the folder of one"
                )
            found.setdefault(task.task.name, task)
        return found

    @cached_property
    def _origins(self) -> dict[str, str]:
        """Origins found so far: to check a task's data takes time."""
        return {}

    def origin(self, name: str) -> str:
        """What identifies a task's data, which are checked.

        Raises:
            MissingData: the task or a file of it is not here.
            DamagedFile, ValueError: a file is not what it should be.
        """
        if name not in self._origins:
            self._origins[name] = self._checked_origin(self._task(name))
        return self._origins[name]

    def data(self, name: str) -> TaskTables | PublishedTask:
        """A task's data, checked.

        Raises:
            MissingData, DamagedFile, ValueError: as `origin`.
        """
        return _data(self._task(name))

    def _task(self, name: str) -> FolderTask:
        if name not in self.tasks:
            hint = did_you_mean(name, [*self.tasks, *OFFICIAL_TASKS])
            raise MissingData(f"there is no task {name} in {self.folder / 'mteb'} ({hint})")
        return self.tasks[name]

    def _checked_origin(self, found: FolderTask) -> str:
        if found.published:
            return self._published_origin(found)
        _data(found)
        return self.origin_of(list(found.files.values()))

    def _published_origin(self, found: FolderTask) -> str:
        """The hub's identity of what prefetch brought."""
        manifest = self.manifest
        entries = {
            name: entry for member in found.published for name, entry in manifest.below(f"mteb/{member}").items()
        }
        missing = missing_files(self.folder, entries)
        if missing:
            raise MissingData(
                f"task {found.task.name} lacks {len(missing)} of the {len(entries)} files that "
                f"{self.folder / MANIFEST} lists (first: {missing[0]}): run ablations/prefetch.py again"
            )
        require_brought(self.folder, entries)
        return hub_origin([(entry.repository, entry.revision) for entry in entries.values()])


def _prefetched(folder: Path, manifest: Manifest) -> Iterator[FolderTask]:
    for task in MTEB_ENGLISH_V1:
        members = member_names(task)
        if all(manifest.below(f"mteb/{member}") for member in members):
            yield FolderTask(task, published={member: folder / "mteb" / member for member in members})


def _laid_out(folder: Path, manifest: Manifest) -> Iterator[FolderTask]:
    present = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    for path in present:
        if path.name in FOLDERS:
            tasks = sorted(task for task in path.iterdir() if task.is_dir())
            yield from (_own_task(task, FOLDERS[path.name]) for task in tasks)
        elif not manifest.below(f"mteb/{path.name}"):
            raise ValueError(f"{path} is no category of tasks: {did_you_mean(path.name, FOLDERS)}")


def _own_task(folder: Path, category: Category) -> FolderTask:
    files = {table: _file_of(folder, table) for table in COLUMNS[category]}
    return FolderTask(_described(folder.name, category, files), files)


def _file_of(folder: Path, table: str) -> Path:
    """test.parquet or test.jsonl.gz, or the one file test_….parquet."""
    exact = table_file(folder, table)
    others = [path for path in sorted(folder.glob(f"{table}_*")) if split_name(path)[1]]
    return others[0] if len(others) == 1 and not exact.is_file() else exact


def _described(name: str, category: Category, files: Mapping[str, Path]) -> EmbeddingTask:
    official = OFFICIAL_TASKS.get(name)
    if official is not None:
        rows = {table: count_rows(path) for table, path in files.items()}
        is_whole = official.category == category and rows == OFFICIAL_ROWS.get(name)
        if is_whole and _gold(category, files["test"]) == OFFICIAL_GOLD[name]:
            return official
        name = f"{name}-{rows[list(files)[-1]]}rows"
    return EmbeddingTask(name, category, FOLDER_SUITE, METRICS[category], "test", instruction=INSTRUCTIONS[category])


def _gold(category: Category, path: Path) -> float | None:
    """What `OFFICIAL_GOLD` says of a file; None where it has no such column."""
    column = COLUMNS[category]["test"][-1]
    try:
        values = read_table(path, (column,))[column]
    except (DamagedFile, ValueError):
        return None
    if category == "classification":
        return len(set(values))
    numbers = [value for value in values if isinstance(value, int | float)]
    return round(sum(numbers) / len(numbers), GOLD_DIGITS) if len(numbers) == len(values) else None


def _data(found: FolderTask) -> TaskTables | PublishedTask:
    if found.published:
        return PublishedTask(found.published)
    where = str(next(iter(found.files.values())).parent)
    for table, path in found.files.items():
        if not path.is_file():
            raise MissingData(f"task {found.task.name} lacks {path}: put its table {table} there")
    category = found.task.category
    tables = {table: read_table(path, COLUMNS[category][table]) for table, path in found.files.items()}
    return checked_tables(category, tables, where)
