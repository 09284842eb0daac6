"""Embedding tasks: the 56 of MTEB(eng, v1), the 41 of MTEB(eng, v2) (25 are in both), user-provided tasks, and their
data in a folder.

Names, metrics, splits, repositories and members are those of mteb 2.26.24, which plans and reports do without: a test
compares them with the installed mteb.
mteb_tasks.csv has a row for each task, with its benchmarks and its instruction in three wordings: the paper's (Tables 8
and 9; in v1 7 and 8), mteb's own, and the released code's (conf/mteb_task_to_instruction_{query,corpus}.json), which
end in the name of a field and differ for documents. The paper and the code have no instructions for tasks of v2 alone,
which use mteb's own. The two forums of CQADupstack in v2 use the wordings of CQADupstack as a whole.
mteb_repositories.csv has the dataset and commit of each mteb task, and the v1 task that it is part of if several count
as one.

A folder contains mteb's tasks as prefetched repositories, which mteb itself loads, and tasks of a user as
mteb/<Category>/<Task>/<table>.parquet (or another format of `reading`).
"""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from neobert.data.catalog import hub_origin, require_known
from neobert.data.manifest import Manifest, files_origin, require_complete, require_unchanged
from neobert.data.reading import as_number, read_table, split_name, table_file
from neobert.errors import MissingData, did_you_mean
from neobert.recipe import Instructed, Value

ENGLISH_SUITE = "MTEB(eng, v1)"
ENGLISH_SUITE_V2 = "MTEB(eng, v2)"
Category = Literal[
    "classification", "clustering", "pair_classification", "reranking", "retrieval", "sts", "summarization"
]
MECHANISMS = ("tokenization", "model")
"""What decides a score besides weights and data, see `neobert.identity.NUMERICS`."""

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


class TaskOnData(Value):
    """Embedding task with its data (see `EmbeddingTask`).

    `origin` identifies the data. `prompts` are the texts put before an encoder's inputs ("query", "document"); it may
    be empty.
    """

    name: str
    category: Category
    suite: str
    metric: str
    split: str
    members: tuple[str, ...]
    origin: str
    prompts: dict[str, str]


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
    return dict(Counter(task.category for task in tasks))


MTEB_REPOSITORIES: Mapping[str, tuple[str, str]] = {
    task: (row["repository"], row["commit"]) for task, row in _REPOSITORIES.items()
}
"""Dataset repository and commit of each mteb task; CQADupstack's twelve forums are separate tasks here."""


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
        require_known(name, BENCHMARKS, "benchmark")


def chosen_tasks(
    available: Sequence[EmbeddingTask],
    names: Sequence[str] | None,
    benchmarks: Sequence[str] | None = None,
) -> tuple[EmbeddingTask, ...]:
    """Select available tasks by name and benchmark, keeping their order.

    None or "all" selects all. Tasks of v2 alone are only selected if they or v2 are named.

    Raises:
        ValueError: a task or benchmark is unknown, or no task is left.
        MissingData: an mteb task, or every task of a benchmark, is not available.
    """
    wanted_names = () if names is None or "all" in names else tuple(names)
    wanted_suites = tuple(benchmarks or ())
    _require_available(available, wanted_names, wanted_suites)

    def is_chosen(task: EmbeddingTask) -> bool:
        suites = suites_of(task.name, task.suite)
        is_of_suite = any(suite in suites for suite in wanted_suites)
        if not wanted_suites:
            is_of_suite = bool(wanted_names) or task.suite != ENGLISH_SUITE_V2
        return is_of_suite and (not wanted_names or task.name in wanted_names)

    chosen = tuple(filter(is_chosen, available))
    if not chosen:
        asked = ", ".join((*wanted_names, *wanted_suites)) or "any"
        raise ValueError(f"no task is left of {asked}: {_named(available)}")
    return chosen


def _require_available(available: Sequence[EmbeddingTask], names: Sequence[str], benchmarks: Sequence[str]) -> None:
    require_benchmarks(benchmarks)
    known, here = {task.name for task in available}, _named(available)
    for name in names:
        if name not in known and name in OFFICIAL_TASKS:
            raise MissingData(f"task {name} of {OFFICIAL_TASKS[name].suite} is not in this data: {here}")
        require_known(name, [*(task.name for task in available), *OFFICIAL_TASKS], "task")
    for benchmark in benchmarks:
        if not any(benchmark in suites_of(task.name, task.suite) for task in available):
            raise MissingData(
                f"no task of {benchmark} is in this data ({here}): download it with "
                f"`python ablations/prefetch.py … --stages mteb --benchmark '{benchmark}'`"
            )


def _named(available: Sequence[EmbeddingTask]) -> str:
    return f"here are {', '.join(task.name for task in available) or 'none'}"


Table = Mapping[str, Sequence[Any]]

Text = Annotated[str, BeforeValidator(lambda value: "" if value is None else value)]
Texts = Annotated[list[Text], BeforeValidator(lambda value: [] if value is None else value)]
"""Types of cells. A missing text is an empty one."""
Label = int | str | float | bool
Score = Annotated[float, Field(allow_inf_nan=False), BeforeValidator(as_number)]
IsMatch = Annotated[Literal[0, 1] | bool, BeforeValidator(as_number)]


def _as_text(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Id = Annotated[str, BeforeValidator(_as_text)]
"""Ids are texts: 0007 of a table is not 7, and the number 7 of JSON is the id "7" of a table."""


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
    """Check the types of the cells that mteb reads, and replace missing texts by empty ones. Raises ValueError if a
    table has no rows, or a cell is of a wrong type."""
    checked: dict[str, Table] = {}
    for name, columns in CATEGORY_FACTS[category].columns.items():
        title = {"title": Text} if "title" in tables[name] else {}
        place = f"{where}, table {name}"
        checked[name] = {
            column: _cells(cell, tables[name][column], place, column) for column, cell in (columns | title).items()
        }
    return TaskTables(category, checked)


def _cells(cell: Any, values: Sequence[Any], where: str, column: str) -> Sequence[Any]:
    if not len(values):
        raise ValueError(f"{where} has no rows, so leave the task out or fill it")
    try:
        checked: Sequence[Any] = TypeAdapter(list[cell]).validate_python(list(values), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        row, value = int(first["loc"][0]), first["input"]
        raise ValueError(f"{where}, row {row}, {column}: {first['msg']}, not {value!r}") from error
    return checked


@dataclass(frozen=True)
class CategoryFacts:
    """Properties shared by the tasks of a category.

    `task_type`: mteb's name of the category, also the name of its folder and of a prompt for all its tasks; `metric`:
    the main score; `instruction`: mteb's default for tasks without their own; `columns`: the required columns of each
    table with the type of a cell.
    """

    task_type: str
    metric: str
    instruction: str
    columns: dict[str, dict[str, Any]]


CATEGORY_FACTS: Mapping[Category, CategoryFacts] = {
    "classification": CategoryFacts(
        task_type="Classification",
        metric="accuracy",
        instruction="Classify user passages.",
        columns={"train": {"text": Text, "label": Label}, "test": {"text": Text, "label": Label}},
    ),
    "clustering": CategoryFacts(
        task_type="Clustering",
        metric="v_measure",
        instruction="Identify categories in user passages.",
        columns={"test": {"sentences": Text, "labels": Label}},
    ),
    "pair_classification": CategoryFacts(
        task_type="PairClassification",
        metric="max_ap",
        instruction="Retrieve text that are semantically similar to the given text.",
        columns={"test": {"sentence1": Text, "sentence2": Text, "labels": IsMatch}},
    ),
    "reranking": CategoryFacts(
        task_type="Reranking",
        metric="map_at_1000",
        instruction="Retrieve text based on user query.",
        columns={"test": {"query": Text, "positive": Texts, "negative": Texts}},
    ),
    "retrieval": CategoryFacts(
        task_type="Retrieval",
        metric="ndcg_at_10",
        instruction="Retrieve text based on user query.",
        columns={
            "corpus": {"_id": Id, "text": Text},
            "queries_test": {"_id": Id, "text": Text},
            "qrels_test": {"query-id": Id, "corpus-id": Id, "score": Score},
        },
    ),
    "sts": CategoryFacts(
        task_type="STS",
        metric="cosine_spearman",
        instruction="Retrieve semantically similar text.",
        columns={"test": {"sentence1": Text, "sentence2": Text, "score": Score}},
    ),
    "summarization": CategoryFacts(
        task_type="Summarization",
        metric="cosine_spearman",
        instruction="Given a news summary, retrieve other semantically similar summaries.",
        columns={
            "test": {"text": Text, "human_summaries": Texts, "machine_summaries": Texts, "relevance": list[Score]},
        },
    ),
}

FOLDER_SUITE = "tasks of a folder"
OWN = "-own"
"""Ending of the name of a user's task that is named like one of mteb's."""


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
            tables[table] = read_table(path, list(CATEGORY_FACTS[category].columns[table]))
        where = str(next(iter(self.files.values())).parent)
        return checked_tables(category, tables, where)

    def origin(self, folder: Path, manifest: Manifest) -> str:
        """Return the origin of the data, after checking them; for files prefetched into `folder`, the hub's origin."""
        if not self.published:
            self.data()
            return files_origin(folder, manifest, list(self.files.values()))
        entries = {name: entry for member in self.published for name, entry in manifest.below(f"mteb/{member}").items()}
        require_complete(f"task {self.task.name}", folder, entries)
        require_unchanged(folder, entries)
        return hub_origin([(entry.repository, entry.revision) for entry in entries.values()])


def folder_tasks(folder: Path, manifest: Manifest) -> dict[str, FolderTask]:
    """Return the tasks below `folder`/mteb by name, prefetched ones first. Raises ValueError if a folder there is not a
    category, or two tasks have the same name."""
    root = folder / "mteb"
    prefetched = {
        task.name: FolderTask(task, {}, {member: root / member for member in member_names(task)})
        for task in OFFICIAL_TASKS.values()
        if all(manifest.below(f"mteb/{member}") for member in member_names(task))
    }
    categories = {facts.task_type: category for category, facts in CATEGORY_FACTS.items()}
    own: dict[str, FolderTask] = {}
    for path in _folders_in(root):
        if path.name not in categories:
            if not manifest.below(f"mteb/{path.name}"):
                raise ValueError(f"{path} is no category of tasks: {did_you_mean(path.name, categories)}")
            continue
        for found in (_own_task(task_folder, categories[path.name]) for task_folder in _folders_in(path)):
            if found.task.name in own:
                raise ValueError(f"{root} has two tasks named {found.task.name}: rename the folder of one")
            own[found.task.name] = found
    return prefetched | {name: found for name, found in own.items() if name not in prefetched}


def _folders_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("[!.]*")) if path.is_dir()]


def _own_task(folder: Path, category: Category) -> FolderTask:
    """Return a user's task. It never counts as mteb's task of that name."""
    facts = CATEGORY_FACTS[category]
    name = f"{folder.name}{OWN}" if folder.name in OFFICIAL_TASKS else folder.name
    task = EmbeddingTask(name, category, FOLDER_SUITE, facts.metric, "test", instruction=facts.instruction)
    return FolderTask(task, {table: _file_of(folder, table) for table in facts.columns}, {})


def _file_of(folder: Path, table: str) -> Path:
    """Return the file of a table: for "test" test.parquet, or the only file test_….parquet."""
    exact = table_file(folder, table)
    others = [path for path in sorted(folder.glob(f"{table}_*")) if split_name(path)[1]]
    return others[0] if len(others) == 1 and not exact.is_file() else exact
