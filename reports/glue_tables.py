"""Tables 2, 3 and 5: the modifications, GLUE development scores, and the best points of grids, beside the paper's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Recipe, Variant
from neobert.glue.tasks import TASKS
from neobert.identity import plain
from neobert.recipe import Point
from reports import published
from reports.notes import INCOMPLETE, notes, warnings
from reports.scores import Cell, Estimate, Group, Row, point_name
from reports.tables import DASH, PAPER, THIS_STUDY, Columns, Table, frame_of, number, tabulate, with_deviation

LISTS = ("mixture", "batch_sizes", "learning_rates", "weight_decays")


@dataclass(frozen=True)
class Change:
    """One field that a variant changes, with its values before and after at paper scale and at another."""

    variant: Variant
    row: str
    field: str
    paper: tuple[str, str]
    scale: Scale
    at_scale: tuple[str, str]


def changes(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> Iterator[Change]:
    """Every changed field of a variant, by row of the paper's Table 2; lists are one field."""
    if variant.parent is None:
        return
    before, after = variant.parent.recipe, variant.recipe
    small_before, small_after = (scaled(recipe, scale, vocabulary) for recipe in (before, after))
    for row, delta in variant.delta_by_row().items():
        for path in dict.fromkeys(map(_field, delta)):
            yield Change(
                variant=variant,
                row=row,
                field=path.removeprefix("pretraining."),
                paper=(_value(before, path), _value(after, path)),
                scale=scale,
                at_scale=(_value(small_before, path), _value(small_after, path)),
            )


def _field(path: str) -> str:
    """The field that a leaf belongs to: a list and what is in it are one."""
    parts = path.split(".")
    for index, part in enumerate(parts):
        if part in LISTS:
            return ".".join(parts[: index + 1])
    return path


def _value(recipe: Recipe, path: str) -> str:
    node: Any = plain(recipe)
    for part in path.split("."):
        index: Any = int(part) if isinstance(node, list) else part
        if isinstance(node, list) and index >= len(node):
            return DASH
        node = node[index]
    return _text(node)


def _text(value: Any) -> str:
    if isinstance(value, dict):  # a subset of a mixture
        minimum = value["minimum_tokens"]
        return f"{value['share']:.0%} of " + (f"documents ≥ {minimum:,} tokens" if minimum else "all documents")
    if isinstance(value, list):
        return ", ".join(map(_text, value))
    if isinstance(value, float):
        return f"{value:g}"
    return f"{value:,}" if isinstance(value, int) else str(value).replace("_", " ")


FACTS_OF_TABLE_2: Columns[Change] = {
    "variant": lambda change: change.variant.name,
    "parent": lambda change: change.variant.parent.name if change.variant.parent else "",
    "kept": lambda change: "yes" if change.variant.kept else "no",
    "row": lambda change: change.row,
    "field": lambda change: change.field,
    "paper_before": lambda change: change.paper[0],
    "paper_after": lambda change: change.paper[1],
    "scale": lambda change: change.scale,
    "scale_before": lambda change: change.at_scale[0],
    "scale_after": lambda change: change.at_scale[1],
    "source": lambda change: change.variant.source,
}


def table2(group: Group) -> Table:
    """The modifications: one line a changed field, from the parent's value to the variant's."""
    shown = {row.name: row.variant for row in group.rows if row.variant is not None}
    listed = [change for variant in shown.values() for change in changes(variant, group.scale, group.vocabulary)]
    is_first = [index == 0 or listed[index - 1].variant is not each.variant for index, each in enumerate(listed)]
    header = ["Variant", "Parent", "Row of Table 2", "Field", "Paper scale"]
    header += [f"Scale {group.scale}"] if group.scale != "paper" else []
    rows = []
    for change, first in zip(listed, is_first, strict=True):
        variant = change.variant
        name, parent = (variant.name if variant.kept else f"({variant.name})"), variant.parent
        names = (name, parent.name if parent else DASH) if first else ("", "")
        cells = [*names, change.row, change.field, _arrow(change.paper), _arrow(change.at_scale)]
        rows.append(cells[: len(header)])
    lines = ["Variants in parentheses are discarded: nothing continues them. M0 is the baseline."]
    if any("@" in change.variant.name for change in listed):
        lines.append("Those with an @ are another reading of the paper or its code.")
    return Table(
        title=f"Table 2: the modifications (scale {group.scale}, data {group.data})",
        shown=frame_of(rows, header),
        facts=tabulate(listed, FACTS_OF_TABLE_2),
        alignment="l" * len(header),
        notes=tuple(lines),
        rules=frozenset(index for index, first in enumerate(is_first) if first and index),
    )


def _arrow(values: tuple[str, str]) -> str:
    before, after = values
    return f"{after} (unchanged)" if before == after else f"{before} → {after}"


def table3(group: Group) -> Table:
    """The paper's rows, the ladder, and external models: scores in points, ± standard deviation over several seeds."""
    paper = published.table3()
    rules = {len(paper), len(paper) + len(group.rows)} if group.external else {len(paper)}
    title = f"Table 3: GLUE development scores (scale {group.scale}, data {group.data})"
    return _score_table(title, group, paper, group.all_rows, rules, notes(group, short=True))


def score_table(group: Group) -> Table:
    """Everything that has records: the ladder, variants of designs and external models."""
    rows = group.recorded_rows
    lines = ["± is one standard deviation (sd) over seeds."]
    if any("‡" in cell.marks for row in rows for cell in row.cells.values() if cell.score is not None):
        lines.append("‡ started from pre-training instead of MNLI.")
    table = _score_table("GLUE development scores and held-out losses", group, (), rows, set(), lines)
    return replace(table, shown=table.shown.drop(columns="Source"), alignment=table.alignment[1:])


def _score_table(
    title: str,
    group: Group,
    paper: Sequence[published.PublishedScores],
    ours: Sequence[Row],
    rules: set[int],
    more_notes: Sequence[str],
) -> Table:
    corpora = sorted({corpus for row in ours for corpus in row.losses})
    complete = all(row.average is not None for row in group.rows if row.scored_tasks)
    shared = () if complete else group.shared_tasks
    header = ["Source", "Model", *(task.title for task in TASKS.values()), "Average", "Seeds"]
    header += [f"Mean of {len(shared)} shared"] if shared else []
    header += [f"Loss ({corpus})" for corpus in corpora]
    facts = ["source", "model", "variant", "stage", "context", *TASKS, "average", "average_sd", "seeds", "shared_mean"]
    facts += ["shared_tasks", *(f"{task}_sd" for task in TASKS), *(f"{task}_point" for task in TASKS)]
    facts += [*(f"heldout_loss_{corpus}" for corpus in corpora), "reference"]
    facts += [*(f"{task}_records" for task in TASKS), "loss_records"]
    return Table(
        title=title,
        shown=frame_of(
            [*(_paper_cells(row, header) for row in paper), *(_cells(row, shared, corpora) for row in ours)], header
        ),
        facts=frame_of(
            [*(_paper_facts(row, facts) for row in paper), *(_facts(row, shared, corpora) for row in ours)], facts
        ),
        alignment="ll" + "r" * (len(header) - 2),
        notes=(*_legend(group, ours, shared, corpora), *more_notes),
        rules=frozenset(rules),
        records=(*(row.source for row in paper), *(_records(row, header, shared, corpora) for row in ours)),
    )


def _paper_cells(row: published.PublishedScores, header: Sequence[str]) -> list[str]:
    cells = [PAPER, row.name, *(number(row.scores[task]) for task in TASKS), number(row.average)]
    return cells + [""] * (len(header) - len(cells))


def _cells(row: Row, shared: tuple[str, ...], corpora: Sequence[str]) -> list[str]:
    average = row.average
    cells = [THIS_STUDY, row.label, *(_print_cell(row.cells[task]) for task in TASKS), print_estimate(average)]
    cells.append(DASH if average is None else str(len(average.by_seeds)))
    cells += [print_estimate(row.mean_over(shared))] if shared else []
    return cells + [print_estimate(row.losses.get(corpus), 3) for corpus in corpora]


def print_estimate(estimate: Estimate | None, digits: int = 1) -> str:
    """A mean, ± the standard deviation over seeds."""
    return with_deviation(estimate.mean, estimate.spread, digits) if estimate else DASH


def _print_cell(cell: Cell) -> str:
    return DASH if cell.score is None else f"{print_estimate(cell.score)}{cell.marks}"


def _records(
    row: Row, header: Sequence[str], shared: tuple[str, ...], corpora: Sequence[str]
) -> dict[str, Sequence[str]]:
    """The ids behind each column."""
    by_header: dict[str, Sequence[str]] = {
        task.title: tuple(row.cells[name].ids.values()) for name, task in TASKS.items()
    }
    by_header |= {"Average": row.mean_ids(tuple(TASKS)), f"Mean of {len(shared)} shared": row.mean_ids(shared)}
    for corpus in corpora:
        by_header[f"Loss ({corpus})"] = sorted(set(row.heldout[row.heldout.corpus == corpus].run))
    return {name: ids for name, ids in by_header.items() if name in header}


def _legend(group: Group, ours: Sequence[Row], shared: tuple[str, ...], corpora: Sequence[str]) -> list[str]:
    lines = [
        "Rows of the paper are as printed there; rows of this study come from records alone. "
        f"Scores are in points; the average is the flat mean of all eight tasks, {DASH} where one is missing."
    ]
    if group.external:
        lines.append(
            "Rows below the last rule are models that were pre-trained elsewhere, under this study's protocol and grid."
        )
    marked = [cell for row in ours for cell in row.cells.values() if cell.score is not None]
    if any(not cell.is_best_of_whole_grid for cell in marked):
        lines.append(INCOMPLETE)
    if shared:
        titles = ", ".join(TASKS[task].title for task in shared)
        lines.append(f"Mean of {len(shared)} shared: over the tasks that all scored rows have ({titles}); no average.")
    if corpora:
        lines.append("Loss: held-out MLM loss in nats a token; not comparable between tokenizers or corpora.")
    return lines


def _paper_facts(row: published.PublishedScores, columns: Sequence[str]) -> list[str | None]:
    values = {task: f"{score:.1f}" for task, score in row.scores.items()}
    values |= {"source": PAPER, "model": row.name, "average": f"{row.average:.1f}", "reference": row.source}
    return [values.get(column) for column in columns]


def _facts(row: Row, shared: tuple[str, ...], corpora: Sequence[str]) -> list[Any]:
    """Every number, with the chosen points, the spread and the ids of the records behind it."""
    average, shared_mean = row.average, row.mean_over(shared)
    scores, losses = [row.cells[task].score for task in TASKS], [row.losses.get(corpus) for corpus in corpora]
    points = [row.cells[task].point for task in TASKS]
    return [
        *(THIS_STUDY, row.label, row.variant.name if row.variant else "", row.stage, row.context),
        *(score.mean if score else None for score in scores),
        *((average.mean, average.spread, " ".join(map(str, average.by_seeds))) if average else (None, None, "")),
        *(shared_mean.mean if shared_mean else None, " ".join(shared)),
        *(score.spread if score else None for score in scores),
        *(point_name(point) if point else "" for point in points),
        *(loss.mean if loss else None for loss in losses),
        row.source,
        *(" ".join(row.trial_ids([task])) for task in TASKS),
        " ".join(row.run_ids),
    ]


FACTS_OF_TABLE_5 = (
    *("source", "model", "task", "batch_size", "learning_rate", "weight_decay", "score", "seeds", "points"),
    *("whole_grid", "reference", "records"),
)


def table5(group: Group) -> Table:
    """The best point of the grid for each task, as batch/rate/decay."""
    ours = [row for row in group.recorded_rows if row.scored_tasks]
    printed = [[PAPER, row.model, *map(point_name, row.points.values())] for row in published.table5()]
    shown = [[THIS_STUDY, row.label, *(_print_point(row.cells[task]) for task in TASKS)] for row in ours]
    lines = [
        "Points as batch size/learning rate/weight decay. The paper's rows are as printed there, from its own grid.",
        "Ours is the point with the highest mean over seeds; of equal ones the first in the grid.",
    ]
    if group.scale != "paper":
        lines.append(
            f"Scale {group.scale} has rates and batch sizes of its own: its points say nothing about the paper's."
        )
    if any(not row.is_best_of_whole_grid for row in ours):
        lines.append(INCOMPLETE)
    return Table(
        title=f"Table 5: optimal hyper-parameters (scale {group.scale}, data {group.data})",
        shown=frame_of([*printed, *shown], ("Source", "Model", *(task.title for task in TASKS.values()))),
        facts=frame_of(
            [*_published_points(), *(facts for row in ours for facts in _best_points(row))], FACTS_OF_TABLE_5
        ),
        alignment="ll" + "r" * len(TASKS),
        notes=(*warnings(group), *lines),
        rules=frozenset({len(printed)} if ours else ()),
    )


def _print_point(cell: Cell) -> str:
    return DASH if cell.point is None else point_name(cell.point) + ("" if cell.is_best_of_whole_grid else "†")


def _published_points() -> Iterator[list[Any]]:
    for row in published.table5():
        for task, point in row.points.items():
            yield [PAPER, row.model, task, *_axes_of(point), None, None, None, None, row.source, ""]


def _best_points(row: Row) -> Iterator[list[Any]]:
    for task, cell in row.cells.items():
        if cell.point is not None and cell.score is not None:
            counts = cell.score.mean, len(cell.score.by_seeds), cell.recorded.point.nunique()
            whole = "yes" if cell.is_best_of_whole_grid else "no"
            ids = " ".join(row.trial_ids([task]))
            yield [THIS_STUDY, row.label, task, *_axes_of(cell.point), *counts, whole, row.source, ids]


def _axes_of(point: Point) -> tuple[int, str, str]:
    return point.batch_size, f"{point.learning_rate:g}", f"{point.weight_decay:g}"
