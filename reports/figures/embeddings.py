"""Embedding results: means over tasks, Table 4 next to the paper's, a table for MTEB(eng, v2), and Figure 4.

Averages are shown only if no task is missing; incomplete results are marked.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pandas as pd

from ablations.ladders import Ladder
from neobert.data.mteb_tasks import BENCHMARKS, ENGLISH_SUITE, ENGLISH_SUITE_V2, Category, count_by_category, suites_of
from neobert.kinds.mteb import TASKS_IN_SUITE, Protocol
from reports import published
from reports.evidence import Evidence, select_group, split_repeats
from reports.figures.drawing import INK, KEPT, describe_data, format_axes, rendered, single_axes
from reports.figures.glue_tables import print_estimate
from reports.notes import warnings
from reports.scores import POINTS_OF_SCORE, Estimate, Group, Seeds, flat_mean
from reports.tables import DASH, THIS_STUDY, Table, capitalized, frame_of, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_TASKS = sum(TASKS_IN_SUITE.values())
EXPECTED = {suite: count_by_category(tasks) for suite, tasks in BENCHMARKS.items()}
TITLES: dict[Category, str] = {
    "classification": "Class.",
    "clustering": "Clust.",
    "pair_classification": "PairClass.",
    "reranking": "Rerank.",
    "retrieval": "Retr.",
    "sts": "STS",
    "summarization": "Summ.",
}


@dataclass(frozen=True)
class CategoryMean:
    """Mean over the tasks of a category, in points; `expected` is the number of tasks in the suite, None if unknown."""

    score: Estimate | None
    tasks: int
    expected: int | None

    @property
    def is_whole(self) -> bool:
        """Whether no task of the category is missing."""
        return self.score is not None and self.tasks == self.expected


@dataclass(frozen=True)
class EmbeddingRow:
    """One encoder in one suite under one protocol, in points. All tasks have the same seeds; `runs` are those of
    pre-training; `notes` list results that are not counted and tasks that failed at every seed."""

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
        own = [task for task in self.scores if self.categories[task] == category]
        expected = EXPECTED[self.suite][category] if self.suite in EXPECTED else None
        return CategoryMean(self.mean_over(own), len(own), expected)

    @property
    def is_v2(self) -> bool:
        return self.suite == ENGLISH_SUITE_V2

    @property
    def expected(self) -> int | None:
        """Number of tasks in the suite; None if unknown."""
        return sum(EXPECTED[self.suite].values()) if self.suite in EXPECTED else None

    @property
    def is_whole(self) -> bool:
        """Whether all tasks of an mteb benchmark have a score."""
        return all(self.category(category).is_whole for category in TITLES)

    @property
    def average(self) -> Estimate | None:
        """Flat mean of all tasks; None if one is missing."""
        return self.mean_over(list(self.scores)) if self.is_whole else None

    @property
    def average_of_types(self) -> Estimate | None:
        """Mean of the category means, with equal weights; None if a task is missing."""
        return flat_mean([self.category(category).score for category in TITLES]) if self.is_whole else None

    def mean_over(self, tasks: Sequence[str]) -> Estimate | None:
        """Return the flat mean of some tasks; None if a task has no score or `tasks` is empty."""
        return flat_mean([self.scores.get(task) for task in tasks])

    def records(self, tasks: Iterable[str] | None = None) -> tuple[str, ...]:
        """Return the records behind a mean over some tasks, or over all."""
        return tuple(sorted(each for task in (self.scores if tasks is None else tasks) for each in self.ids[task]))


@dataclass(frozen=True)
class Embeddings:
    """The rows of one scale and data source, and a sentence for every result without a row."""

    rows: tuple[EmbeddingRow, ...]
    problems: tuple[str, ...]

    def of(self, protocol: Protocol, *, are_v2: bool = False) -> tuple[EmbeddingRow, ...]:
        """Return the rows under one protocol: of MTEB(eng, v2), which has a separate table, or of all other suites."""
        return tuple(row for row in self.rows if row.protocol == protocol and row.is_v2 == are_v2)


def shared_tasks(rows: Sequence[EmbeddingRow]) -> tuple[str, ...]:
    """Return the tasks that all rows share, sorted; empty if every row has an average or suites differ."""
    if len({row.suite for row in rows}) != 1 or all(row.is_whole for row in rows):
        return ()
    return tuple(sorted(set.intersection(*(set(row.scores) for row in rows))))


def find_embeddings(group: Group, evidence: Evidence) -> Embeddings:
    """Return a row for every encoder, suite and protocol with a score. There is a row for MTEB(eng, v2) if a task that
    only v2 has is scored; it includes the tasks shared with v1."""
    results = select_group(evidence.embeddings, group.scale, group.data)
    seeds, labels = evidence.seeds, label_runs(group, evidence.runs)
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
    return Embeddings(tuple(row for row in rows if row.scores), (*sorted(lost), *noted))


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


def label_runs(group: Group, runs: pd.DataFrame) -> dict[str, str]:
    """Return a label per run: its row labels, or else the variants that it was planned for."""
    labels: dict[str, list[str]] = {}
    for row in group.rows:
        for run in row.run_ids:
            labels.setdefault(run, []).append(row.label)
    for run, names, stage in zip(runs.id, runs.variants, runs.stage, strict=True):
        labels.setdefault(run, [f"{', '.join(names) or run} after stage {stage + 1}"])
    return {run: ", ".join(names) for run, names in labels.items()}


def _row(label: str, suite: str, protocol: Protocol, results: pd.DataFrame) -> EmbeddingRow:
    """Make a row from the seeds with most tasks; of results with equal task and seeds, the first id counts."""
    scored = results[results.score.notna()]
    first, repeats = split_repeats(scored, ["seeds", "task"])
    notes = [f"{each.task}: result {each.id} repeats {each.kept} and is left out" for each in repeats.itertuples()]
    points = first.pivot(index="seeds", columns="task", values="score") * POINTS_OF_SCORE
    tasks = points.notna().sum(axis=1)
    for seeds, count in tasks[tasks < tasks.max()].items():
        notes.append(f"seed {seeds} has {count} of {tasks.max()} tasks and is not counted yet")
    counted = points[tasks == tasks.max()].dropna(axis=1, how="all")
    whole = counted.dropna(axis=1)
    notes += [
        f"{task} has no score at every seed and is left out" for task in counted.columns.difference(whole.columns)
    ]
    failed = sorted(set(results[results.score.isna()].task) - set(whole.columns))
    kept = first[first.seeds.isin(set(whole.index)) & first.task.isin(set(whole.columns))]
    return EmbeddingRow(
        label=label,
        suite=suite,
        protocol=protocol,
        scores={task: Estimate(whole[task].to_dict()) for task in whole.columns},
        categories=dict(zip(kept.task, kept.category, strict=True)),
        ids={str(task): tuple(sorted(own.id)) for task, own in kept.groupby("task")},
        runs=frozenset(kept.run),
        notes=(*notes, *(f"{task} failed" for task in failed)),
    )


FACTS = (
    *("source", "model", "suite", "protocol", "level", "name", "tasks", "expected", "score", "sd", "seeds"),
    *("reference", "records"),
)


def embedding_table(rows: Sequence[EmbeddingRow], group: Group, title: str) -> Table:
    """Return the table of rows under one protocol, of MTEB(eng, v2) or of other suites, after the paper's rows: means
    over categories, and averages if no task is missing. The CSV file also has every task."""
    shared, are_v2 = shared_tasks(rows), rows[0].is_v2
    paper = published.table4(group.ladder) if rows[0].protocol == "contrastive" and not are_v2 else ()
    averages = ["Mean (task)", "Mean (type)"] if are_v2 else ["Average"]
    header = ["Source", "Model", "Suite", *TITLES.values(), *averages, "Tasks", "Seeds"]
    header += [f"Mean of {len(shared)} shared"] if shared else []
    printed = [_paper_cells(group.ladder, row, header) for row in paper]
    facts_of_paper = [line for row in paper for line in _paper_facts(group.ladder, row)]
    return Table(
        title=f"{title} (scale {group.scale}, data {group.data})",
        shown=frame_of([*printed, *(_cells(row, shared) for row in rows)], header),
        facts=frame_of([*facts_of_paper, *chain.from_iterable(map(_facts, rows))], FACTS),
        alignment="lll" + "r" * (len(header) - 3),
        notes=tuple(_notes(rows, shared, group)),
        rules=frozenset({len(paper)} if paper and rows else ()),
    )


def _paper_cells(ladder: Ladder, row: published.PublishedScores, header: Sequence[str]) -> list[str]:
    cells = [ladder.published_source, row.name, ENGLISH_SUITE, *(number(row.scores[name]) for name in TITLES)]
    cells += [number(row.average), f"{ALL_TASKS} of {ALL_TASKS}"]
    return cells + [""] * (len(header) - len(cells))


def _cells(row: EmbeddingRow, shared: Sequence[str]) -> list[str]:
    tasks = len(row.scores)
    cells = [THIS_STUDY, row.label, row.suite, *(_print_category(row.category(name)) for name in TITLES)]
    cells.append(print_estimate(row.average))
    cells += [print_estimate(row.average_of_types)] if row.is_v2 else []
    cells.append(f"{tasks} of {row.expected}" if row.expected else f"{tasks}, none of the {ALL_TASKS}")
    cells.append(str(len(next(iter(row.scores.values())).by_seeds)))
    return cells + ([print_estimate(row.mean_over(shared))] if shared else [])


def _print_category(mean: CategoryMean) -> str:
    """Format a mean, with the number of its tasks if some are missing."""
    if mean.score is None or mean.is_whole:
        return print_estimate(mean.score)
    return f"{print_estimate(mean.score)} ({mean.tasks}" + (")" if mean.expected is None else f" of {mean.expected})")


def _notes(rows: Sequence[EmbeddingRow], shared: Sequence[str], group: Group) -> Iterator[str]:
    yield from warnings(group)
    average = f"The average is the flat mean of all {ALL_TASKS} tasks"
    if rows[0].is_v2:
        average = (
            f"Tasks and means are those of mteb's leaderboard for {ENGLISH_SUITE_V2}: over all "
            f"{rows[0].expected} tasks, and over the means of the {len(TITLES)} types"
        )
    lacking = f"{DASH} where one is missing; a category that lacks tasks says how many it has"
    yield f"Main scores in points. {average}, {lacking}."
    if any(score.spread is not None for row in rows for score in row.scores.values()):
        yield "± is one standard deviation (sd) over seeds."
    published_as = group.ladder.published_as
    if rows[0].is_v2:
        yield f"A task that is in v1, too, is measured once. {capitalized(published_as)} has no scores of v2."
    elif any(row.suite != ENGLISH_SUITE for row in rows):
        others = f"Rows of a suite other than {ENGLISH_SUITE} are on other tasks"
        yield f"{others}: nothing of them compares with {published_as}."
    if shared:
        yield f"Mean of {len(shared)} shared: over the tasks that all rows of ours have ({', '.join(shared)})."
    yield from (f"{row.label}: {note}." for row in rows for note in row.notes)


def _paper_facts(ladder: Ladder, row: published.PublishedScores) -> Iterator[list[Any]]:
    names = [ladder.published_source, row.name, ENGLISH_SUITE, "contrastive"]
    for category, score in row.scores.items():
        tasks = TASKS_IN_SUITE[category]  # type: ignore[index]
        yield [*names, "category", category, tasks, tasks, f"{score:.1f}", "", "", row.source, ""]
    yield [*names, "average", "all", ALL_TASKS, ALL_TASKS, f"{row.average:.1f}", "", "", row.source, ""]


def _facts(row: EmbeddingRow) -> Iterator[list[Any]]:
    names = [THIS_STUDY, row.label, row.suite, row.protocol]
    for task, score in row.scores.items():
        yield [*names, "task", task, 1, 1, *_numbers(score), "", " ".join(row.ids[task])]
    for category in TITLES:
        mean, own = row.category(category), [task for task in row.scores if row.categories[task] == category]
        numbers = mean.tasks, mean.expected, *_numbers(mean.score)
        yield [*names, "category", category, *numbers, "", " ".join(row.records(own))]
    ids = " ".join(row.records()) if row.average else ""
    yield [*names, "average", "all", len(row.scores), row.expected, *_numbers(row.average), "", ids]
    if row.is_v2:
        yield [*names, "average", "types", len(row.scores), row.expected, *_numbers(row.average_of_types), "", ids]


def _numbers(estimate: Estimate | None) -> tuple[float | None, float | None, int]:
    return (estimate.mean, estimate.spread, len(estimate.by_seeds)) if estimate else (None, None, 0)


@rendered
def figure4(rows: Sequence[EmbeddingRow], group: Group) -> "Figure":
    """Draw zero-shot means of all 56 tasks, or of the tasks that all rows share."""
    shared = shared_tasks(rows)
    means = [row.mean_over(shared) if shared else row.average for row in rows]
    figure, axes = single_axes(max(4.4, 1.1 + 0.8 * len(rows)), 3.4)
    for place, mean in enumerate(means):
        if mean is None:
            axes.text(place, 0, "no shared tasks", rotation=90, ha="center", va="bottom", color=INK)
            continue
        axes.bar(place, mean.mean, 0.7, color=KEPT, yerr=mean.spread, ecolor=INK, capsize=2, zorder=3)
        axes.text(place, 0, number(mean.mean), ha="center", va="bottom", color="white", weight="bold", zorder=4)
    axes.set_xticks(range(len(rows)), [row.label.replace(", ", ",\n") for row in rows], fontsize=6)
    what = f"mean of {len(shared)} shared tasks" if shared else f"average of {ALL_TASKS} tasks"
    format_axes(axes, ("Zero-shot embeddings", describe_data(group)), "", f"{what} (points)")
    return figure
