"""Scores of an evaluation as they stand, task by task and as means that say how many tasks they rest on. Torch-free."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from neobert.console import output, table
from neobert.data.mteb_tasks import CATEGORIES, EmbeddingTask
from neobert.files import read_json
from neobert.runs.claims import is_claimed
from neobert.runs.index import TaskFiles, task_files
from neobert.runs.layout import Layout
from neobert.runs.records import ENGLISH_SUITE, TASKS_IN_SUITE, Category, read_record
from neobert.runs.specifications import EmbeddingEvaluation, TaskOnData

TASK_COLUMNS = ("protocol", "seed", "task", "category", "suite", "state", "score", "texts", "empty", "cut")
MEAN_COLUMNS = ("protocol", "seed", "suite", "category", "mean", "tasks")
POINTS = 100


@dataclass(frozen=True)
class Mean:
    """A flat mean of main scores, −1..1, over `tasks` of `expected`; `category` None stands for the whole suite, whose
    mean is None where a task is missing."""

    suite: str
    category: Category | None
    score: float | None
    tasks: int
    expected: int

    def summary(self) -> dict[str, Any]:
        """The entry of `--json`."""
        return dict(vars(self))


def task_entries(layout: Layout, evaluation: EmbeddingEvaluation) -> list[dict[str, Any]]:
    """One entry a task; scores are −1..1, None where there is no record yet."""
    encoder = evaluation.encoder
    common = {"weights": encoder.weights, "protocol": encoder.protocol, "seed": encoder.seed}
    return [common | _entry(layout, files) for files in task_files(layout, evaluation)]


def _entry(layout: Layout, files: TaskFiles) -> dict[str, Any]:
    task = files.run.task
    named = {"task": task.name, "category": task.category, "suite": task.suite, "metric": task.metric, "id": files.id}
    if files.is_recorded:
        record = read_record(files.record)
        texts = {name: record["texts"][name] for name in ("texts", "empty", "cut")}
        return {**named, "state": record["state"], "score": record["scores"].get("score"), **texts, "error": None}
    error = read_json(files.error)["error"] if files.error.exists() else None
    state = "running" if is_claimed(layout.claims(files.id)) else "failed" if error else "missing"
    return {**named, "state": state, "score": None, "texts": None, "empty": None, "cut": None, "error": error}


def means_of(entries: Sequence[dict[str, Any]], available: Sequence[EmbeddingTask | TaskOnData]) -> list[Mean]:
    """The mean of each category and of each suite of one evaluation; `available` are all tasks of the suites."""
    means = []
    for suite in dict.fromkeys(task.suite for task in available):
        own = [entry for entry in entries if entry["suite"] == suite]
        expected = expected_tasks(suite, available)
        for category in CATEGORIES:
            if expected.get(category):
                means.append(_mean(suite, category, _scores(own, category), expected[category]))
        whole, scores = sum(expected.values()), _scores(own, None)
        mean = _mean(suite, None, scores, whole)
        means.append(mean if mean.tasks == whole else Mean(suite, None, None, mean.tasks, whole))
    return means


def expected_tasks(suite: str, available: Iterable[EmbeddingTask | TaskOnData]) -> dict[Category, int]:
    """How many tasks each category of a suite has: MTEB(eng, v1) as published, any other as many as there are."""
    if suite == ENGLISH_SUITE:
        return dict(TASKS_IN_SUITE)
    found = [task.category for task in available if task.suite == suite]
    return {category: found.count(category) for category in dict.fromkeys(found)}


def _scores(entries: Iterable[dict[str, Any]], category: Category | None) -> list[float]:
    return [
        entry["score"]
        for entry in entries
        if entry["score"] is not None and (category is None or entry["category"] == category)
    ]


def _mean(suite: str, category: Category | None, scores: Sequence[float], expected: int) -> Mean:
    return Mean(suite, category, statistics.fmean(scores) if scores else None, len(scores), expected)


def print_tasks(title: str, entries: Sequence[dict[str, Any]]) -> None:
    """A table of tasks, main scores in points."""
    shown = [{**entry, "score": in_points(entry["score"])} for entry in entries]
    output().print(table(title, TASK_COLUMNS, [[entry[column] for column in TASK_COLUMNS] for entry in shown]))


def print_means(cells: Sequence[tuple[str, int, Mean]]) -> None:
    """A table of means with their protocols and seeds, in points."""
    rows = [
        (protocol, seed, mean.suite, mean.category or "all tasks", in_points(mean.score), counted(mean))
        for protocol, seed, mean in cells
    ]
    output().print(table("Means of main scores, ×100", MEAN_COLUMNS, rows))


def counted(mean: Mean) -> str:
    """How many tasks a mean is of."""
    return f"{mean.tasks} of {mean.expected}"


def in_points(score: float | None) -> str | None:
    """A score as tables print it."""
    return None if score is None else f"{score * POINTS:.1f}"
