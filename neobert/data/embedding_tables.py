"""The examples of a task of embeddings as tables, and what makes them unusable. Torch-free, mteb-free.

A category says which tables a task has and which columns these need, by mteb's names.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from neobert.result_records import Category

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
