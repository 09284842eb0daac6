"""Rows of embeddings: one per encoder, suite and protocol. Averages exist only if no task is missing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from neobert.data.mteb_tasks import BENCHMARKS, ENGLISH_SUITE_V2, Category, count_by_category, suites_of
from neobert.kinds.mteb import TASKS_IN_SUITE, Protocol
from reports.scores import POINTS_OF_SCORE, Estimate, Seeds, flat_mean

CATEGORIES = tuple(TASKS_IN_SUITE)
EXPECTED = {suite: count_by_category(tasks) for suite, tasks in BENCHMARKS.items()}


@dataclass(frozen=True)
class CategoryMean:
    """Mean over the tasks of a category, in points; `expected` is the number of tasks in the suite, None if unknown."""

    score: Estimate | None
    tasks: tuple[str, ...]
    expected: int | None

    @property
    def is_whole(self) -> bool:
        """Whether no task of the category is missing."""
        return self.score is not None and len(self.tasks) == self.expected


@dataclass(frozen=True)
class EmbeddingRow:
    """One encoder in one suite under one protocol, in points. All tasks have the same seeds; `runs` are those of
    pre-training; `notes` list seeds and tasks that are not counted."""

    label: str
    suite: str
    protocol: Protocol
    scores: Mapping[str, Estimate]
    categories: Mapping[str, Category]
    ids: Mapping[str, tuple[str, ...]]
    runs: frozenset[str]
    notes: tuple[str, ...]

    def category(self, category: Category) -> CategoryMean:
        """Return the mean over a category's tasks, even if some are missing; callers print the number of tasks."""
        own = tuple(task for task in self.scores if self.categories[task] == category)
        expected = EXPECTED[self.suite][category] if self.suite in EXPECTED else None
        return CategoryMean(self.mean_over(own), own, expected)

    @property
    def expected(self) -> int | None:
        """Number of tasks in the suite; None if unknown."""
        return sum(EXPECTED[self.suite].values()) if self.suite in EXPECTED else None

    @property
    def is_whole(self) -> bool:
        """Whether all tasks of an mteb benchmark have a score."""
        return all(self.category(category).is_whole for category in CATEGORIES)

    @property
    def average(self) -> Estimate | None:
        """Flat mean of all tasks; None if one is missing."""
        return self.mean_over(list(self.scores)) if self.is_whole else None

    def mean_over(self, tasks: Sequence[str]) -> Estimate | None:
        """Return the flat mean of some tasks; None if a task has no score or `tasks` is empty."""
        return flat_mean([self.scores.get(task) for task in tasks])

    def records(self, tasks: Iterable[str]) -> tuple[str, ...]:
        """Return the records behind a mean over some tasks."""
        return tuple(sorted(each for task in tasks for each in self.ids[task]))


def find_embeddings(
    results: pd.DataFrame, labels: Mapping[str, str], seeds: Mapping[str, int]
) -> tuple[tuple[EmbeddingRow, ...], tuple[str, ...]]:
    """Return a row for every encoder, suite and protocol with a score, and a sentence for every result without a row.
    `labels` and `seeds` are those of the runs. There is a row for MTEB(eng, v2) if a task that only v2 has is scored;
    it includes the tasks shared with v1."""
    is_known = results.run.isin(set(seeds)) | results.model.notna()
    strangers = results[~is_known].run.value_counts()
    results = results[is_known].sort_values("id")
    results = results.assign(
        # variants evaluated by another protocol than the ladder's keep their own names
        label=[
            each.model or ", ".join(each.variants) * all("@" in name for name in each.variants) or labels[each.run]
            for each in results.itertuples()
        ],
        seeds=[Seeds(seeds.get(each.run, each.seed), each.seed) for each in results.itertuples()],
    )
    order = {label: place for place, label in enumerate(dict.fromkeys([*labels.values(), *sorted(results.label)]))}
    by_row = _count_in_v2(results).groupby(["label", "suite", "protocol"])
    found = [_row(label, suite, protocol, own) for (label, suite, protocol), own in by_row]
    rows = sorted(found, key=lambda row: (order[row.label], row.label, row.suite, row.protocol))
    lost = [f"{count} embedding result(s) on {run}, which has no run record" for run, count in strangers.items()]
    suites = {ENGLISH_SUITE_V2: f" in {ENGLISH_SUITE_V2}"}
    noted = [f"embeddings of {row.label}{suites.get(row.suite, '')}: {note}" for row in rows for note in row.notes]
    return tuple(row for row in rows if row.scores), (*sorted(lost), *noted)


def _count_in_v2(results: pd.DataFrame) -> pd.DataFrame:
    """Repeat results on tasks of both benchmarks as v2 results, if their encoder has any v2 result."""
    is_v2 = results.suite == ENGLISH_SUITE_V2
    if not is_v2.any():
        return results
    row = ["label", "protocol"]
    names = zip(results.task, results.suite, strict=True)
    counts = pd.Series([ENGLISH_SUITE_V2 in suites_of(*name) for name in names], index=results.index)
    shared = results[counts & ~is_v2].merge(results.loc[is_v2, row].drop_duplicates(), on=row)
    return pd.concat([results, shared.assign(suite=ENGLISH_SUITE_V2)], ignore_index=True)


def _row(label: str, suite: str, protocol: Protocol, results: pd.DataFrame) -> EmbeddingRow:
    """Make a row from the seeds with most tasks, and the tasks that all of these have; of results with equal task and
    seeds, the first id counts."""
    first = results[results.score.notna()].drop_duplicates(["seeds", "task"])
    points = first.pivot(index="seeds", columns="task", values="score") * POINTS_OF_SCORE
    tasks = points.notna().sum(axis=1)
    behind = tasks[tasks < tasks.max()]
    notes = [
        f"seed {seeds} has {count} of {tasks.max()} tasks and is not counted yet" for seeds, count in behind.items()
    ]
    whole = points[tasks == tasks.max()].dropna(axis=1)
    missing = sorted(set(results.task[~results.seeds.isin(set(behind.index))]) - set(whole.columns))
    notes += [f"{task} lacks a score at some seed and is left out" for task in missing]
    kept = first[first.seeds.isin(set(whole.index)) & first.task.isin(set(whole.columns))]
    return EmbeddingRow(
        label=label,
        suite=suite,
        protocol=protocol,
        scores={task: Estimate(whole[task].to_dict()) for task in whole.columns},
        categories=dict(zip(kept.task, kept.category, strict=True)),
        ids={str(task): tuple(sorted(own.id)) for task, own in kept.groupby("task")},
        runs=frozenset(kept.run),
        notes=tuple(notes),
    )
