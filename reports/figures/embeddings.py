"""Tables of embeddings, Table 4 next to the paper's, and Figure 4; incomplete results have no average."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from ablations.ladders import Ladder
from neobert.data.mteb_tasks import ENGLISH_SUITE, ENGLISH_SUITE_V2, Category
from neobert.kinds.mteb import TASKS_IN_SUITE, Protocol
from reports.embeddings import CategoryMean, EmbeddingRow
from reports.figures import published
from reports.figures.drawing import INK, KEPT, Picture, describe_data, format_axes, single_axes
from reports.remarks import warnings
from reports.rows import Study
from reports.scores import Estimate
from reports.tables import DASH, PAPER, THIS_STUDY, Table, frame_of, number, print_estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_TASKS = sum(TASKS_IN_SUITE.values())
TITLES: dict[Category, str] = {
    "classification": "Class.",
    "clustering": "Clust.",
    "pair_classification": "PairClass.",
    "reranking": "Rerank.",
    "retrieval": "Retr.",
    "sts": "STS",
    "summarization": "Summ.",
}


def table4(study: Study) -> Table | None:
    return _table(study, "Table 4: embeddings after contrastive fine-tuning", "contrastive")


def table(study: Study) -> Table | None:
    """Return the numbers of Figure 4."""
    return _table(study, "Zero-shot embeddings", "zero_shot")


def _rows_of(study: Study, protocol: Protocol) -> list[EmbeddingRow]:
    """Return the rows under one protocol."""
    return [row for row in study.embeddings if row.protocol == protocol]


def shared_tasks(rows: Sequence[EmbeddingRow]) -> tuple[str, ...]:
    """Return the tasks that all rows but those of v2 share, sorted; empty if each has an average or suites differ."""
    rows = [row for row in rows if row.suite != ENGLISH_SUITE_V2]
    if len({row.suite for row in rows}) != 1 or all(row.is_whole for row in rows):
        return ()
    return tuple(sorted(set.intersection(*(set(row.scores) for row in rows))))


FACTS = (
    *("source", "model", "suite", "protocol", "level", "name", "tasks", "expected", "score", "sd", "seeds"),
    *("reference", "records"),
)


def _table(study: Study, title: str, protocol: Protocol) -> Table | None:
    """Return the table of rows under one protocol, after the paper's rows: means over categories, and averages if no
    task is missing. The CSV file also has every task. None without a row."""
    rows = _rows_of(study, protocol)
    if not rows:
        return None
    shared, ladder = shared_tasks(rows), study.ladder
    paper = published.table4(ladder) if protocol == "contrastive" else ()
    header = ["Source", "Model", "Suite", *TITLES.values(), "Average", "Tasks", "Seeds"]
    header += [f"Mean of {len(shared)} shared"] if shared else []
    printed = [_paper_cells(ladder, row, header) for row in paper]
    facts_of_paper = [line for row in paper for line in _paper_facts(ladder, row)]
    return Table(
        title=f"{title} ({study.where})",
        shown=frame_of([*printed, *(_cells(row, shared) for row in rows)], header),
        facts=frame_of([*facts_of_paper, *chain.from_iterable(map(_facts, rows))], FACTS),
        alignment="lll" + "r" * (len(header) - 3),
        notes=tuple(_notes(rows, shared, study)),
        rules=frozenset({len(paper)} if paper and rows else ()),
    )


def _paper_cells(ladder: Ladder, row: published.PublishedScores, header: Sequence[str]) -> list[str]:
    cells = [PAPER, row.name, ENGLISH_SUITE, *(number(row.scores[name]) for name in TITLES)]
    cells += [number(row.average), f"{ALL_TASKS} of {ALL_TASKS}"]
    return cells + [""] * (len(header) - len(cells))


def _cells(row: EmbeddingRow, shared: Sequence[str]) -> list[str]:
    tasks = len(row.scores)
    cells = [THIS_STUDY, row.label, row.suite, *(_print_category(row.category(name)) for name in TITLES)]
    cells.append(print_estimate(row.average))
    cells.append(f"{tasks} of {row.expected}" if row.expected else f"{tasks}, none of the {ALL_TASKS}")
    cells.append(str(len(next(iter(row.scores.values())).by_seeds)))
    return cells + ([print_estimate(row.mean_over(shared))] if shared else [])


def _print_category(mean: CategoryMean) -> str:
    """Format a mean, with the number of its tasks if some are missing."""
    if mean.score is None or mean.is_whole:
        return print_estimate(mean.score)
    suffix = "" if mean.expected is None else f" of {mean.expected}"
    return f"{print_estimate(mean.score)} ({len(mean.tasks)}{suffix})"


def _notes(rows: Sequence[EmbeddingRow], shared: Sequence[str], study: Study) -> Iterator[str]:
    yield from warnings(study)
    average = f"The average is the flat mean of all {ALL_TASKS} tasks, {DASH} where one is missing"
    yield f"Main scores in points. {average}; a category that lacks tasks says how many it has."
    if any(score.spread is not None for row in rows for score in row.scores.values()):
        yield "± is one standard deviation (sd) over seeds."
    if any(row.suite != ENGLISH_SUITE for row in rows):
        others = f"Rows of a suite other than {ENGLISH_SUITE} are on other tasks"
        yield f"{others}: nothing of them compares with the paper."
    if shared:
        yield f"Mean of {len(shared)} shared: over the tasks that all rows of ours have ({', '.join(shared)})."
    yield from (f"{row.label}: {note}." for row in rows for note in row.notes)


def _paper_facts(ladder: Ladder, row: published.PublishedScores) -> Iterator[list[Any]]:
    names = [PAPER, row.name, ENGLISH_SUITE, "contrastive"]
    for category, score in row.scores.items():
        tasks = TASKS_IN_SUITE[category]  # type: ignore[index]
        yield [*names, "category", category, tasks, tasks, f"{score:.1f}", "", "", row.source, ""]
    yield [*names, "average", "all", ALL_TASKS, ALL_TASKS, f"{row.average:.1f}", "", "", row.source, ""]


def _facts(row: EmbeddingRow) -> Iterator[list[Any]]:
    names = [THIS_STUDY, row.label, row.suite, row.protocol]
    for task, score in row.scores.items():
        yield [*names, "task", task, 1, 1, *_numbers(score), "", " ".join(row.ids[task])]
    for category in TITLES:
        mean = row.category(category)
        numbers = len(mean.tasks), mean.expected, *_numbers(mean.score)
        yield [*names, "category", category, *numbers, "", " ".join(row.records(mean.tasks))]
    ids = " ".join(row.records(row.scores)) if row.average else ""
    yield [*names, "average", "all", len(row.scores), row.expected, *_numbers(row.average), "", ids]


def _numbers(estimate: Estimate | None) -> tuple[float | None, float | None, int]:
    return (estimate.mean, estimate.spread, len(estimate.by_seeds)) if estimate else (None, None, 0)


def draw(study: Study) -> Picture | None:
    """Draw zero-shot means of all 56 tasks, or of the tasks that all rows share; None without a row."""
    rows = [row for row in _rows_of(study, "zero_shot") if row.suite != ENGLISH_SUITE_V2]
    return Picture(lambda: _draw(rows, describe_data(study))) if rows else None


def _draw(rows: Sequence[EmbeddingRow], data: str) -> "Figure":
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
    format_axes(axes, ("Zero-shot embeddings", data), "", f"{what} (points)")
    return figure
