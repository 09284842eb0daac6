"""Embedding results → rows: a score a task, means a category, and an average where not one task is missing."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from neobert.runs.records import ENGLISH_SUITE, TASKS_IN_SUITE, Category, Protocol
from reports.cells import POINTS_OF_SCORE, Estimate, Seeds
from reports.measurements import EmbeddingResult
from reports.remarks import row_label
from reports.scores import Group
from reports.trials import Evidence, Run

ALL_TASKS = sum(TASKS_IN_SUITE.values())
Key = tuple[str, str, Protocol]  # label, suite, protocol
BySeed = Mapping[Seeds, Mapping[str, EmbeddingResult]]


@dataclass(frozen=True)
class CategoryMean:
    """The mean over the tasks of a category, in points; `expected` is how many the suite has, None where unknown."""

    score: Estimate | None
    tasks: int
    expected: int | None

    @property
    def is_whole(self) -> bool:
        """Whether no task of the category is missing."""
        return self.score is not None and self.tasks == self.expected


@dataclass(frozen=True)
class EmbeddingRow:
    """One encoder in one suite under one protocol, in points. All tasks have the same seeds; `notes` name what is not
    counted, `failed` the tasks that have no score at any seed."""

    label: str
    suite: str
    protocol: Protocol
    scores: Mapping[str, Estimate]
    categories: Mapping[str, Category]
    ids: Mapping[str, tuple[str, ...]]
    failed: tuple[str, ...]
    notes: tuple[str, ...]

    def category(self, category: Category) -> CategoryMean:
        """The mean over a category's tasks, however many there are: who prints it says how many."""
        own = [task for task in self.scores if self.categories[task] == category]
        expected = TASKS_IN_SUITE[category] if self.suite == ENGLISH_SUITE else None
        return CategoryMean(self.mean_over(own), len(own), expected)

    @property
    def is_whole(self) -> bool:
        """Whether all 56 tasks of the paper's suite have a score."""
        return all(self.category(category).is_whole for category in TASKS_IN_SUITE)

    @property
    def average(self) -> Estimate | None:
        """The flat mean of all 56 tasks; None where one is missing."""
        return self.mean_over(list(self.scores)) if self.is_whole else None

    def mean_over(self, tasks: Sequence[str]) -> Estimate | None:
        """The flat mean of some tasks; None where one has no score, or where there are none."""
        if not tasks or not set(tasks) <= set(self.scores):
            return None
        seeds = self.scores[tasks[0]].by_seeds
        return Estimate({each: statistics.fmean(self.scores[task].by_seeds[each] for task in tasks) for each in seeds})

    def records(self, tasks: Iterable[str]) -> tuple[str, ...]:
        """The records behind a mean over tasks."""
        return tuple(sorted(each for task in tasks for each in self.ids[task]))


@dataclass(frozen=True)
class Embeddings:
    """The rows of one scale and source of data, and a sentence for every result that is in none."""

    rows: tuple[EmbeddingRow, ...]
    problems: tuple[str, ...]

    def of(self, protocol: Protocol) -> tuple[EmbeddingRow, ...]:
        """The rows under one protocol."""
        return tuple(row for row in self.rows if row.protocol == protocol)


def shared_tasks(rows: Sequence[EmbeddingRow]) -> tuple[str, ...]:
    """The tasks that every row has, by name; empty where every row has its average or suites differ."""
    if len({row.suite for row in rows}) != 1 or all(row.is_whole for row in rows):
        return ()
    return tuple(sorted(set.intersection(*(set(row.scores) for row in rows))))


def embeddings_of(group: Group, evidence: Evidence) -> Embeddings:
    """A row for every encoder, suite and protocol that has a score."""
    results = [r for r in evidence.measurements.embeddings if (r.scale, r.data) == (group.scale, group.data)]
    runs, labels = {run.id: run for run in evidence.runs}, labels_of_runs(group, evidence.runs)
    strangers: dict[str, int] = defaultdict(int)
    grouped: dict[Key, list[tuple[Seeds, EmbeddingResult]]] = defaultdict(list)
    for result in results:
        run = runs.get(result.run_id)
        if run is None and result.model is None:
            strangers[result.run_id] += 1
            continue
        label = result.model or _alternative(result) or labels[result.run_id]
        seeds = Seeds(run.seed if run else result.seed, result.seed)
        grouped[label, result.config.suite, result.config.protocol].append((seeds, result))
    order = [*labels.values(), *sorted(label for label, _, _ in grouped)]
    rows = [_row(key, grouped[key]) for key in sorted(grouped, key=lambda key: (order.index(key[0]), key))]
    lost = [f"{count} embedding result(s) on {run}, which has no run record" for run, count in strangers.items()]
    noted = [f"embeddings of {row.label}: {note}" for row in rows for note in row.notes]
    return Embeddings(tuple(row for row in rows if row.scores), (*sorted(lost), *noted))


def _alternative(result: EmbeddingResult) -> str:
    """The variants that measure by another protocol than the ladder's; empty where it is the ladder's."""
    return ", ".join(result.variants) if all("@" in name for name in result.variants) else ""


def labels_of_runs(group: Group, runs: Iterable[Run]) -> dict[str, str]:
    """What to call a run: the checkpoints of variants that it is, or the variants that it was planned for."""
    labels: dict[str, list[str]] = {}
    for row in group.rows:
        for run_id in row.run_ids:
            labels.setdefault(run_id, []).append(row_label(row))
    for run in runs:
        labels.setdefault(run.id, [f"{', '.join(run.labelled) or run.id} after stage {run.stage + 1}"])
    return {run_id: ", ".join(names) for run_id, names in labels.items()}


def _row(key: Key, results: Sequence[tuple[Seeds, EmbeddingResult]]) -> EmbeddingRow:
    notes: list[str] = []
    by_seed = _by_seed(results, notes)
    most = max(map(len, by_seed.values()), default=0)
    counted = {seeds: own for seeds, own in sorted(by_seed.items()) if len(own) == most}
    for seeds in sorted(by_seed.keys() - counted.keys()):
        notes.append(f"seed {seeds} has {len(by_seed[seeds])} of {most} tasks and is not counted yet")
    tasks = sorted(set.intersection(*(set(own) for own in counted.values()))) if counted else []
    notes += [
        f"{task} has no score at every seed and is left out"
        for task in sorted({task for own in counted.values() for task in own} - set(tasks))
    ]
    failed = {result.config.task for _, result in results if result.score is None} - set(tasks)
    return EmbeddingRow(
        *key,
        scores={task: Estimate({seeds: _points(own[task]) for seeds, own in counted.items()}) for task in tasks},
        categories={task: next(iter(counted.values()))[task].config.category for task in tasks},
        ids={task: tuple(sorted(own[task].id for own in counted.values())) for task in tasks},
        failed=tuple(sorted(failed)),
        notes=(*notes, *(f"{task} failed" for task in sorted(failed))),
    )


def _by_seed(results: Sequence[tuple[Seeds, EmbeddingResult]], notes: list[str]) -> BySeed:
    by_seed: dict[Seeds, dict[str, EmbeddingResult]] = defaultdict(dict)
    for seeds, result in sorted(results, key=lambda pair: (pair[0], pair[1].id)):
        if result.score is None:
            continue
        first = by_seed[seeds].setdefault(result.config.task, result)
        if first is not result:
            notes.append(f"{result.config.task}: result {result.id} repeats {first.id} and is left out")
    return by_seed


def _points(result: EmbeddingResult) -> float:
    assert result.score is not None
    return result.score * POINTS_OF_SCORE
