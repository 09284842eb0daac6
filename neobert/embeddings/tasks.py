"""The tasks of embeddings: the 56 of MTEB(eng, v1), and what a task of any suite is. Torch-free, mteb-free.

Names, metrics and splits are those of mteb 2.26.24's own metadata; a test compares them with the installed mteb.
instructions.csv has what an encoder is told in each of the 56 tasks, in three wordings: the paper's (Tables 8 and 9;
in v1 7 and 8), mteb's own, and the released code's (conf/mteb_task_to_instruction_{query,corpus}.json), which end in
the name of a field and differ for documents.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from neobert.errors import MissingData, did_you_mean
from neobert.recipe import Instructed
from neobert.result_records import ENGLISH_SUITE, Category

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


def _read_instructions() -> dict[str, dict[str, str]]:
    """The rows of instructions.csv by task."""
    with (Path(__file__).parent / "instructions.csv").open(newline="", encoding="utf-8") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


_INSTRUCTED: Mapping[str, Mapping[str, str]] = _read_instructions()

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
