"""Embedding tasks: the 56 of MTEB(eng, v1) and the 41 of MTEB(eng, v2) (25 are in both), and where their data are.

Names, metrics, splits, repositories and members are those of mteb 2.26.24, which plans and reports do without: a test
compares them with the installed mteb.
mteb_tasks.csv has a row for each task, with its benchmarks and its instruction in three wordings: the paper's (Tables 8
and 9; in v1 7 and 8), mteb's own, and the released code's (conf/mteb_task_to_instruction_{query,corpus}.json), which
end in the name of a field and differ for documents. The paper and the code have no instructions for tasks of v2 alone,
which use mteb's own. The two forums of CQADupstack in v2 use the wordings of CQADupstack as a whole.
mteb_repositories.csv has the dataset and commit of each mteb task, and the v1 task that it is part of if several count
as one. A folder contains these datasets as prefetched repositories, which mteb itself loads.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast, get_args

from neobert.data.catalog import require_known
from neobert.errors import MissingData
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
        ValueError: a task or benchmark is unknown.
        MissingData: an mteb task, or every task of a benchmark, is not available, or no task is left.
    """
    require_benchmarks(benchmarks)
    wanted = () if names is None or "all" in names else tuple(names)
    known = [task.name for task in available]
    here = f"here are {', '.join(known) or 'none'}"
    for name in wanted:
        if require_known(name, [*known, *OFFICIAL_TASKS], "task") not in known:
            raise MissingData(f"task {name} of {OFFICIAL_TASKS[name].suite} is not in this data: {here}")

    def is_chosen(task: EmbeddingTask) -> bool:
        if benchmarks and not set(benchmarks).intersection(suites_of(task.name, task.suite)):
            return False
        return task.name in wanted if wanted else bool(benchmarks) or task.suite != ENGLISH_SUITE_V2

    chosen = tuple(filter(is_chosen, available))
    suites = {suite for task in available for suite in suites_of(task.name, task.suite)}
    absent = [each for each in benchmarks or () if each not in suites]
    if absent or not chosen:
        benchmark = absent[0] if absent else (benchmarks or (ENGLISH_SUITE,))[0]
        raise MissingData(
            f"no task of {', '.join(absent or benchmarks or wanted) or 'any suite'} is in this data ({here}): download "
            f"it with `python ablations/prefetch.py … --stages mteb --benchmark '{benchmark}'`"
        )
    return chosen


Table = Mapping[str, Sequence[Any]]
"""The columns of a table of a task of our own, named as in mteb's data sets."""


@dataclass(frozen=True)
class PublishedTask:
    """A task whose data are stored as on the hub: one folder for each of its mteb tasks."""

    folders: Mapping[str, Path]


class CategoryFacts(NamedTuple):
    """mteb's name of a category, which is also that of a prompt for all its tasks, and its usual main score."""

    task_type: str
    metric: str


CATEGORY_FACTS: Mapping[Category, CategoryFacts] = {
    "classification": CategoryFacts("Classification", "accuracy"),
    "clustering": CategoryFacts("Clustering", "v_measure"),
    "pair_classification": CategoryFacts("PairClassification", "max_ap"),
    "reranking": CategoryFacts("Reranking", "map_at_1000"),
    "retrieval": CategoryFacts("Retrieval", "ndcg_at_10"),
    "sts": CategoryFacts("STS", "cosine_spearman"),
    "summarization": CategoryFacts("Summarization", "cosine_spearman"),
}
