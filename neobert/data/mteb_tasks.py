"""Embedding tasks: the 56 of MTEB(eng, v1), the 41 of MTEB(eng, v2) (25 are in both), user-provided tasks, and their
data in a folder.

Names, metrics, splits, repositories and sizes are those of mteb 2.26.24; a test compares them with the installed mteb.
mteb_tasks.csv has a row for each task, with its benchmarks and its instruction in three wordings: the paper's (Tables 8
and 9; in v1 7 and 8), mteb's own, and the released code's (conf/mteb_task_to_instruction_{query,corpus}.json), which
end in the name of a field and differ for documents. The paper and the code have no instructions for tasks of v2 alone,
which use mteb's own. The two forums of CQADupstack in v2 use the wordings of CQADupstack as a whole.
mteb_repositories.csv has the dataset and commit of each mteb task, the v1 task that it is part of if several count as
one and, for data in plain tables, the numbers that identify them.

A folder contains tasks as mteb/<Category>/<Task>/<table>.parquet (or another format of `reading`), or as prefetched
repositories. Tables count as an mteb task if name and sizes agree. Otherwise the number of rows is appended to their
name, so that they are not mistaken for it.
"""

import csv
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from neobert.data.catalog import hub_origin
from neobert.data.manifest import Manifest, files_origin, require_brought, require_complete
from neobert.data.reading import count_rows, read_table, split_name, table_file
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.kinds.mteb import ENGLISH_SUITE, ENGLISH_SUITE_V2, Category, TaskOnData
from neobert.recipe import Instructed

CATEGORIES: tuple[Category, ...] = get_args(Category)


@dataclass(frozen=True)
class EmbeddingTask:
    """One embedding task.

    `suite` is MTEB(eng, v1) for tasks of v1 (even if also in v2), MTEB(eng, v2) for tasks of v2 alone, or another name
    for tasks of neither; `suites_of` returns all. `metric` is mteb's main score, on `split`. `members` are the mteb
    tasks that it combines, if several count as one. `instruction` is put before the texts, or before the queries if the
    task has queries and documents, by encoders trained with instructions.
    """

    name: str
    category: Category
    suite: str
    metric: str
    split: str
    members: tuple[str, ...] = ()
    instruction: str | None = None


def _read_table(name: str) -> dict[str, dict[str, str]]:
    """Read a CSV file next to this module; return its rows by task."""
    with Path(__file__).with_name(name).open(newline="", encoding="utf-8") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


_TASKS, _REPOSITORIES = _read_table("mteb_tasks.csv"), _read_table("mteb_repositories.csv")

_VERSIONS = {"v1": ENGLISH_SUITE, "v2": ENGLISH_SUITE_V2}

OFFICIAL_TASKS: Mapping[str, EmbeddingTask] = {
    name: EmbeddingTask(
        name=name,
        category=cast(Category, row["category"]),
        suite=_VERSIONS[row["suites"].split()[0]],
        metric=row["metric"],
        split=row["split"],
        members=tuple(member for member, published in _REPOSITORIES.items() if published["part_of"] == name),
        instruction=row["paper"] or row["mteb"],
    )
    for name, row in _TASKS.items()
}
"""mteb's tasks by name, grouped by category; CQADupstack's twelve forums count as one in v1 (paper, Table 4)."""

BENCHMARKS: Mapping[str, tuple[EmbeddingTask, ...]] = {
    suite: tuple(task for name, task in OFFICIAL_TASKS.items() if version in _TASKS[name]["suites"].split())
    for version, suite in _VERSIONS.items()
}
"""Tasks of each mteb benchmark."""


def suites_of(name: str, suite: str) -> tuple[str, ...]:
    """Return all suites of a task, given its name and the suite of its record (v1 for a task of both benchmarks)."""
    also = (other for other, tasks in BENCHMARKS.items() if suite in BENCHMARKS and OFFICIAL_TASKS.get(name) in tasks)
    return tuple(dict.fromkeys((suite, *also)))


def count_by_category(tasks: Iterable[EmbeddingTask | TaskOnData]) -> dict[Category, int]:
    """Return the number of tasks of each category."""
    return dict(Counter(task.category for task in tasks))


MTEB_REPOSITORIES: Mapping[str, tuple[str, str]] = {
    task: (row["repository"], row["commit"]) for task, row in _REPOSITORIES.items()
}
"""Dataset repository and commit of each mteb task; CQADupstack's twelve forums are separate tasks here."""


class OfficialNumbers(NamedTuple):
    """Row count of each table of a task, and `gold`: the number of distinct labels or the mean gold score, rounded to
    `GOLD_DIGITS`."""

    rows: Mapping[str, int]
    gold: float


GOLD_DIGITS = 4
OFFICIAL_NUMBERS: Mapping[str, OfficialNumbers] = {
    task: OfficialNumbers(
        {table: int(row[f"{table}_rows"]) for table in ("train", "test") if row[f"{table}_rows"]}, float(row["gold"])
    )
    for task, row in _REPOSITORIES.items()
    if row["gold"]
}
"""Numbers that identify the data of tasks in plain tables."""

Wording = Literal["paper", "mteb", "code"]
"""Wording of the instructions of mteb's tasks; other tasks have only one."""


def task_prompts(task: EmbeddingTask, instructed: Instructed, wording: Wording = "paper") -> dict[str, str]:
    """Return the instructions for a task's texts, keyed "query" (also for tasks without documents) and "document"."""
    if instructed == "nothing" or task.instruction is None:
        return {}
    query = document = task.instruction
    if task.suite in BENCHMARKS and wording == "mteb":
        query = document = _TASKS[task.name]["mteb"]
    if task.suite in BENCHMARKS and wording == "code":
        query, document = (_TASKS[task.name][f"code_{texts}"] or query for texts in ("queries", "documents"))
    return {"query": query, **({"document": document} if instructed == "queries_and_documents" else {})}


def member_names(task: EmbeddingTask | TaskOnData) -> tuple[str, ...]:
    """Return the names of the mteb tasks that are run for a task: its members, or itself."""
    return task.members or (task.name,)


def members_of(benchmarks: Sequence[str] | None) -> tuple[str, ...]:
    """Return the mteb tasks whose data the benchmarks need, without duplicates; None means v1."""
    require_benchmarks(benchmarks)
    tasks = (task for suite in benchmarks or (ENGLISH_SUITE,) for task in BENCHMARKS[suite])
    wanted = {member for task in tasks for member in member_names(task)}
    return tuple(name for name in MTEB_REPOSITORIES if name in wanted)


def benchmarks_for(tasks: Iterable[EmbeddingTask | TaskOnData]) -> tuple[str, ...]:
    """Return the benchmarks to prefetch for the tasks; none if the default, v1, contains them all."""
    suites = [suites_of(task.name, task.suite) for task in tasks]
    if all(ENGLISH_SUITE in each for each in suites):
        return ()
    return (ENGLISH_SUITE_V2,) if all(ENGLISH_SUITE_V2 in each for each in suites) else tuple(BENCHMARKS)


def require_benchmarks(names: Sequence[str] | None) -> None:
    """Raise ValueError if a benchmark is unknown."""
    for name in names or ():
        if name not in BENCHMARKS:
            raise ValueError(f"there is no benchmark {name!r} here: {did_you_mean(name, BENCHMARKS)}")


def chosen_tasks(
    available: Sequence[EmbeddingTask],
    names: Sequence[str] | None,
    categories: Sequence[str] | None,
    benchmarks: Sequence[str] | None = None,
) -> tuple[EmbeddingTask, ...]:
    """Select available tasks by name, category and benchmark, keeping their order.

    None or "all" selects all. Tasks of v2 alone are only selected if they or v2 are named.

    Raises:
        ValueError: a task, category or benchmark is unknown, or no task is left.
        MissingData: an mteb task, or every task of a benchmark, is not available.
    """
    known = {task.name: task for task in available}
    here = f"here are {', '.join(known) or 'none'}"
    names = None if names is not None and "all" in names else names
    require_benchmarks(benchmarks)
    for benchmark in benchmarks or ():
        if not any(benchmark in suites_of(task.name, task.suite) for task in available):
            raise MissingData(
                f"no task of {benchmark} is in this data, which `python ablations/prefetch.py … --stages mteb "
                f"--benchmark '{benchmark}'` brings: {here}"
            )
    for category in categories or ():
        if category not in CATEGORIES:
            raise ValueError(f"there is no category {category!r} of tasks: {did_you_mean(category, CATEGORIES)}")
    for name in names or ():
        if name not in known and name in OFFICIAL_TASKS:
            raise MissingData(f"task {name} of {OFFICIAL_TASKS[name].suite} is not in this data: {here}")
        if name not in known:
            raise ValueError(f"there is no task {name!r}: {did_you_mean(name, [*known, *OFFICIAL_TASKS])}")
    chosen = tuple(
        task
        for task in available
        if (task.name in names if names is not None else bool(benchmarks) or task.suite != ENGLISH_SUITE_V2)
        and (categories is None or task.category in categories)
        and (not benchmarks or not set(benchmarks).isdisjoint(suites_of(task.name, task.suite)))
    )
    if not chosen:
        asked = ", ".join((*(names or ()), *(categories or ()), *(benchmarks or ()))) or "any"
        raise ValueError(f"no task is left of {asked}: {here}")
    return chosen


Table = Mapping[str, Sequence[Any]]

TEXTS = frozenset({"text", "title", "sentences", "sentence1", "sentence2", "query"})
TEXT_LISTS = frozenset({"positive", "negative", "human_summaries", "machine_summaries"})


@dataclass(frozen=True, eq=False)
class TaskTables:
    """A task's tables, named as in `CategoryFacts.columns`. Missing texts are empty."""

    category: Category
    tables: Mapping[str, Table]


@dataclass(frozen=True)
class PublishedTask:
    """A task whose data are stored as on the hub: one folder for each of its mteb tasks."""

    folders: Mapping[str, Path]


def checked_tables(category: Category, tables: Mapping[str, Table], where: str) -> TaskTables:
    """Check that a score can be computed from the tables, and replace missing texts by empty ones.

    Raises:
        ValueError: a table has no rows, a value is not a text, or labels or scores are unusable.
    """
    facts = CATEGORY_FACTS[category]
    for name, columns in facts.columns.items():
        if not len(tables[name][columns[0]]):
            raise ValueError(f"{where}: table {name} has no rows, so leave the task out or fill it")
    cleaned = {
        name: {column: _cleaned(column, values, f"{where}, table {name}") for column, values in table.items()}
        for name, table in tables.items()
    }
    facts.check(cleaned, where)
    return TaskTables(category, cleaned)


def _cleaned(column: str, values: Sequence[Any], where: str) -> Sequence[Any]:
    """Replace missing texts, or lists of texts, of a column by empty ones; return other columns unchanged."""
    if column in TEXTS:
        return [_text(value, f"{where}, row {row}") for row, value in enumerate(values)]
    if column not in TEXT_LISTS:
        return values
    for row, value in enumerate(values):
        if not isinstance(value, list | None):
            raise ValueError(f"{where}, row {row}: {value!r} is not a list of texts")
    return [[_text(text, f"{where}, row {row}") for text in texts or ()] for row, texts in enumerate(values)]


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str | None):
        raise ValueError(f"{where}: {value!r} is not a text")
    return value or ""


def _different_labels(labels: Iterable[Any], where: str) -> set[Any]:
    labels = list(labels)
    if any(isinstance(label, list | dict) for label in labels):
        raise ValueError(f"{where}: a label is a list or an object, so give each row a single one")
    found = set(labels)
    if None in found:
        raise ValueError(f"{where}: a label is missing, so leave its row out or give it one")
    if len(found) < 2:
        raise ValueError(f"{where}: all rows have the label {next(iter(found))!r}, so nothing can be told apart")
    return found


def _check_classification(tables: Mapping[str, Table], where: str) -> None:
    known = _different_labels(tables["train"]["label"], f"{where}, table train")
    unknown = _different_labels(tables["test"]["label"], f"{where}, table test") - known
    if unknown:
        first = sorted(map(repr, unknown))[0]
        raise ValueError(f"{where}: label {first} of table test has no example in table train to learn it from")


def _check_pair_classification(tables: Mapping[str, Table], where: str) -> None:
    wrong = _different_labels(tables["test"]["labels"], f"{where}, table test") - {0, 1}
    if wrong:
        raise ValueError(f"{where}: label {sorted(map(repr, wrong))[0]} is neither 0 nor 1")


def _require_scores(scores: Sequence[Any], where: str) -> None:
    for row, score in enumerate(scores):
        if not isinstance(score, int | float) or not math.isfinite(score):
            raise ValueError(f"{where}, row {row}: score {score!r} is not a finite number")
    if len(set(scores)) < 2:
        raise ValueError(f"{where}: all rows have the score {scores[0]!r}, so nothing can be ranked")


def _check_reranking(tables: Mapping[str, Table], where: str) -> None:
    positives, negatives = tables["test"]["positive"], tables["test"]["negative"]
    if not any(found and others for found, others in zip(positives, negatives, strict=True)):
        raise ValueError(f"{where}, table test: no query has both a positive and a negative, so nothing can be ranked")


def _check_retrieval(tables: Mapping[str, Table], where: str) -> None:
    judged = tables["qrels_test"]
    for name, column in (("corpus", "corpus-id"), ("queries_test", "query-id")):
        known = list(map(str, tables[name]["_id"]))
        if len(set(known)) < len(known):
            raise ValueError(f"{where}, table {name}: an _id comes twice, so give each text its own")
        unknown = set(map(str, judged[column])) - set(known)
        if unknown:
            raise ValueError(f"{where}, table qrels_test: {column} {min(unknown)!r} is not in table {name}")
    for row, score in enumerate(judged["score"]):
        if not isinstance(score, int | float | None):
            raise ValueError(f"{where}, table qrels_test, row {row}: score {score!r} is not a number")
    if not any(score and score > 0 for score in judged["score"]):
        raise ValueError(f"{where}, table qrels_test: no document belongs to a query (score above 0)")


def _check_summarization(tables: Mapping[str, Table], where: str) -> None:
    table = tables["test"]
    for row, (machine, human, relevance) in enumerate(
        zip(table["machine_summaries"], table["human_summaries"], table["relevance"], strict=True)
    ):
        scores = len(relevance) if isinstance(relevance, Sequence) else 0
        if not human or not machine or len(machine) != scores:
            raise ValueError(
                f"{where}, table test, row {row}: {len(human)} human summaries, {len(machine)} machine summaries and "
                f"{scores} scores of these do not go together"
            )
    _require_scores([score for scores in table["relevance"] for score in scores], f"{where}, table test")


@dataclass(frozen=True)
class CategoryFacts:
    """Properties shared by the tasks of a category.

    `task_type`: mteb's name of the category, also the name of its folder and of a prompt for all its tasks; `metric`:
    the main score; `instruction`: mteb's default for tasks without their own; `columns`: the tables of a task and their
    required columns; `check`: raises ValueError if the tables are unusable.
    """

    task_type: str
    metric: str
    instruction: str
    columns: Mapping[str, tuple[str, ...]]
    check: Callable[[Mapping[str, Table], str], object]


CATEGORY_FACTS: Mapping[Category, CategoryFacts] = {
    "classification": CategoryFacts(
        task_type="Classification",
        metric="accuracy",
        instruction="Classify user passages.",
        columns={"train": ("text", "label"), "test": ("text", "label")},
        check=_check_classification,
    ),
    "clustering": CategoryFacts(
        task_type="Clustering",
        metric="v_measure",
        instruction="Identify categories in user passages.",
        columns={"test": ("sentences", "labels")},
        check=lambda tables, where: _different_labels(tables["test"]["labels"], f"{where}, table test"),
    ),
    "pair_classification": CategoryFacts(
        task_type="PairClassification",
        metric="max_ap",
        instruction="Retrieve text that are semantically similar to the given text.",
        columns={"test": ("sentence1", "sentence2", "labels")},
        check=_check_pair_classification,
    ),
    "reranking": CategoryFacts(
        task_type="Reranking",
        metric="map_at_1000",
        instruction="Retrieve text based on user query.",
        columns={"test": ("query", "positive", "negative")},
        check=_check_reranking,
    ),
    "retrieval": CategoryFacts(
        task_type="Retrieval",
        metric="ndcg_at_10",
        instruction="Retrieve text based on user query.",
        columns={
            "corpus": ("_id", "text"),
            "queries_test": ("_id", "text"),
            "qrels_test": ("query-id", "corpus-id", "score"),
        },
        check=_check_retrieval,
    ),
    "sts": CategoryFacts(
        task_type="STS",
        metric="cosine_spearman",
        instruction="Retrieve semantically similar text.",
        columns={"test": ("sentence1", "sentence2", "score")},
        check=lambda tables, where: _require_scores(tables["test"]["score"], f"{where}, table test"),
    ),
    "summarization": CategoryFacts(
        task_type="Summarization",
        metric="cosine_spearman",
        instruction="Given a news summary, retrieve other semantically similar summaries.",
        columns={"test": ("text", "human_summaries", "machine_summaries", "relevance")},
        check=_check_summarization,
    ),
}

FOLDER_SUITE = "tasks of a folder"


@dataclass(frozen=True)
class FolderTask:
    """A task and its data: one file for each table (`files`), or one prefetched folder for each mteb task
    (`published`)."""

    task: EmbeddingTask
    files: Mapping[str, Path]
    published: Mapping[str, Path]

    def data(self) -> TaskTables | PublishedTask:
        """Read and check the data.

        Raises:
            MissingData: a file is missing.
            DamagedFile, ValueError: a file is invalid.
        """
        if self.published:
            return PublishedTask(self.published)
        category = self.task.category
        tables = {}
        for table, path in self.files.items():
            if not path.is_file():
                raise MissingData(f"task {self.task.name} lacks {path}: put its table {table} there")
            tables[table] = read_table(path, CATEGORY_FACTS[category].columns[table])
        where = str(next(iter(self.files.values())).parent)
        return checked_tables(category, tables, where)

    def origin(self, folder: Path, manifest: Manifest) -> str:
        """Return the origin of the data, after checking them; for files prefetched into `folder`, the hub's origin."""
        if not self.published:
            self.data()
            return files_origin(folder, manifest, list(self.files.values()))
        entries = {name: entry for member in self.published for name, entry in manifest.below(f"mteb/{member}").items()}
        require_complete(f"task {self.task.name}", folder, entries)
        require_brought(folder, entries)
        return hub_origin([(entry.repository, entry.revision) for entry in entries.values()])


def folder_tasks(folder: Path, manifest: Manifest) -> dict[str, FolderTask]:
    """Return the tasks below `folder`/mteb by name, prefetched ones first.

    Raises:
        ValueError: a folder there is not a category, or two tasks have the same name.
    """
    place = folder / "mteb"
    prefetched = {
        task.name: FolderTask(task, {}, {member: place / member for member in member_names(task)})
        for task in OFFICIAL_TASKS.values()
        if all(manifest.below(f"mteb/{member}") for member in member_names(task))
    }
    categories = {facts.task_type: category for category, facts in CATEGORY_FACTS.items()}
    own: dict[str, FolderTask] = {}
    for path in _folders_in(place):
        if path.name not in categories:
            if not manifest.below(f"mteb/{path.name}"):
                raise ValueError(f"{path} is no category of tasks: {did_you_mean(path.name, categories)}")
            continue
        for found in (_own_task(task_folder, categories[path.name]) for task_folder in _folders_in(path)):
            if found.task.name in own:
                raise ValueError(f"{place} has two tasks named {found.task.name}: rename the folder of one")
            own[found.task.name] = found
    return prefetched | {name: found for name, found in own.items() if name not in prefetched}


def _folders_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("[!.]*") if path.is_dir())


def _own_task(folder: Path, category: Category) -> FolderTask:
    """Return a user-provided task; it counts as an mteb task only if its numbers agree."""
    facts, name = CATEGORY_FACTS[category], folder.name
    files = {table: _file_of(folder, table) for table in facts.columns}
    official = OFFICIAL_TASKS.get(name)
    if official is not None:
        rows, known = {table: count_rows(path) for table, path in files.items()}, OFFICIAL_NUMBERS.get(name)
        is_whole = known is not None and official.category == category and rows == known.rows
        if known is not None and is_whole and _gold(category, files["test"]) == known.gold:
            return FolderTask(official, files, {})
        name = f"{name}-{rows[list(files)[-1]]}rows"
    task = EmbeddingTask(name, category, FOLDER_SUITE, facts.metric, "test", instruction=facts.instruction)
    return FolderTask(task, files, {})


def _file_of(folder: Path, table: str) -> Path:
    """Return the file of a table: for "test", test.parquet or test.jsonl.gz, or the only file test_….parquet."""
    exact = table_file(folder, table)
    others = [path for path in sorted(folder.glob(f"{table}_*")) if split_name(path)[1]]
    return others[0] if len(others) == 1 and not exact.is_file() else exact


def _gold(category: Category, path: Path) -> float | None:
    """Compute `OfficialNumbers.gold` of a file; return None if the column is missing or not usable."""
    column = CATEGORY_FACTS[category].columns["test"][-1]
    try:
        values = read_table(path, (column,))[column]
        if category == "classification":
            return len(set(values))
    except (DamagedFile, ValueError, TypeError):
        return None
    numbers = [value for value in values if isinstance(value, int | float)]
    return round(sum(numbers) / len(numbers), GOLD_DIGITS) if len(numbers) == len(values) else None
