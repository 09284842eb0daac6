"""Table 4: embeddings after contrastive fine-tuning beside the paper's rows; what is incomplete says so."""

from collections.abc import Iterator, Sequence
from itertools import chain

from neobert.runs.records import ENGLISH_SUITE, TASKS_IN_SUITE, Category
from reports import published
from reports.cells import Estimate
from reports.embeddings import ALL_TASKS, CategoryMean, EmbeddingRow, Embeddings, shared_tasks
from reports.formats import DASH, Table, csv_text, number, raw, with_deviation
from reports.remarks import warnings
from reports.scores import Group
from reports.table3 import PAPER, THIS_STUDY

TITLES: dict[Category, str] = {
    "classification": "Class.",
    "clustering": "Clust.",
    "pair_classification": "PairClass.",
    "reranking": "Rerank.",
    "retrieval": "Retr.",
    "sts": "STS",
    "summarization": "Summ.",
}


def table4(embeddings: Embeddings, group: Group) -> Table:
    """The printed table: means over categories, and the flat mean where all 56 tasks have a score."""
    title = "Table 4: embeddings after contrastive fine-tuning"
    return embedding_table(embeddings.of("contrastive"), group, title, published.table4())


def embedding_table(
    rows: Sequence[EmbeddingRow], group: Group, title: str, printed_rows: Sequence[published.PublishedEmbeddings]
) -> Table:
    """Our rows behind those that the paper prints."""
    shared = shared_tasks(rows)
    header = ["Source", "Model", "Suite", *TITLES.values(), "Average", "Tasks", "Seeds"]
    header += [f"Mean of {len(shared)} shared"] if shared else []
    paper = [_paper_cells(row, len(header)) for row in printed_rows]
    return Table(
        title=f"{title} (scale {group.scale}, data {group.data})",
        header=tuple(header),
        alignment="lll" + "r" * (len(header) - 3),
        rows=(*paper, *(_our_cells(row, shared) for row in rows)),
        notes=tuple(_notes(rows, shared, group)),
        rules=frozenset({len(paper)} if paper and rows else ()),
    )


def _paper_cells(row: published.PublishedEmbeddings, columns: int) -> tuple[str, ...]:
    cells = [PAPER, f"{row.model} ({row.size})", ENGLISH_SUITE, *(number(row.categories[name]) for name in TITLES)]
    cells += [number(row.average), f"{ALL_TASKS} of {ALL_TASKS}"]
    return tuple(cells + [""] * (columns - len(cells)))


def _our_cells(row: EmbeddingRow, shared: Sequence[str]) -> tuple[str, ...]:
    tasks = len(row.scores)
    cells = [THIS_STUDY, row.label, row.suite, *(printed_category(row.category(name)) for name in TITLES)]
    cells.append(printed(row.average))
    cells.append(f"{tasks} of {ALL_TASKS}" if row.suite == ENGLISH_SUITE else f"{tasks}, none of the {ALL_TASKS}")
    cells.append(str(len(next(iter(row.scores.values())).by_seeds)))
    return (*cells, *([printed(row.mean_over(shared))] if shared else []))


def printed_category(mean: CategoryMean) -> str:
    """A mean, with how many tasks it is of unless these are all."""
    if mean.score is None or mean.is_whole:
        return printed(mean.score)
    return f"{printed(mean.score)} ({mean.tasks}" + (")" if mean.expected is None else f" of {mean.expected})")


def printed(estimate: Estimate | None) -> str:
    """Points, ± the standard deviation over seeds."""
    return with_deviation(estimate.mean, estimate.spread) if estimate else DASH


def _notes(rows: Sequence[EmbeddingRow], shared: Sequence[str], group: Group) -> Iterator[str]:
    yield from warnings(group)
    yield (
        "Main scores in points. The average is the flat mean of all 56 tasks, "
        f"{DASH} where one is missing; a category that lacks tasks says how many it has."
    )
    if any(score.spread is not None for row in rows for score in row.scores.values()):
        yield "± is one standard deviation (sd) over seeds."
    if any(row.suite != ENGLISH_SUITE for row in rows):
        yield f"Rows of a suite other than {ENGLISH_SUITE} are on other tasks: nothing of them compares with the paper."
    if shared:
        yield f"Mean of {len(shared)} shared: over the tasks that all rows of ours have ({', '.join(shared)})."
    yield from (f"{row.label}: {note}." for row in rows for note in row.notes)


def embeddings_csv(rows: Sequence[EmbeddingRow], with_paper: bool) -> str:
    """Every task, category and average unrounded, with the records behind it."""
    header = ["source", "model", "suite", "protocol", "level", "name", "tasks", "expected", "score", "sd", "seeds"]
    header += ["reference", "records"]
    paper = [_paper_lines(row) for row in published.table4()] if with_paper else []
    return csv_text(header, chain(*paper, *map(_our_lines, rows)))


def _paper_lines(row: published.PublishedEmbeddings) -> Iterator[list[str]]:
    names = [PAPER, f"{row.model} ({row.size})", ENGLISH_SUITE, "contrastive"]
    for category, score in row.categories.items():
        tasks = str(TASKS_IN_SUITE[category])
        yield [*names, "category", category, tasks, tasks, f"{score:.1f}", "", "", row.source, ""]
    yield [*names, "average", "all", *[str(ALL_TASKS)] * 2, f"{row.average:.1f}", "", "", row.source, ""]


def _our_lines(row: EmbeddingRow) -> Iterator[list[str]]:
    names = [THIS_STUDY, row.label, row.suite, row.protocol]
    for task, score in row.scores.items():
        yield [*names, "task", task, "1", "1", *_numbers(score), "", " ".join(row.ids[task])]
    for category in TITLES:
        mean, own = row.category(category), [task for task in row.scores if row.categories[task] == category]
        counts = [str(mean.tasks), "" if mean.expected is None else str(mean.expected)]
        yield [*names, "category", category, *counts, *_numbers(mean.score), "", " ".join(row.records(own))]
    counts = [str(len(row.scores)), str(ALL_TASKS) if row.suite == ENGLISH_SUITE else ""]
    ids = " ".join(row.records(row.scores)) if row.average else ""
    yield [*names, "average", "all", *counts, *_numbers(row.average), "", ids]


def _numbers(estimate: Estimate | None) -> list[str]:
    if estimate is None:
        return ["", "", "0"]
    return [raw(estimate.mean), raw(estimate.spread), str(len(estimate.by_seeds))]
