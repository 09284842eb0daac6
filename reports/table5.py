"""Table 5: the best point of the grid that was found for each task, beside the paper's."""

from collections.abc import Iterator

from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports import published
from reports.baselines import BaselineRow
from reports.cells import Cell, point_name
from reports.formats import DASH, Table, csv_text, raw
from reports.remarks import row_label, warnings
from reports.scores import Group, Row
from reports.table3 import PAPER, THIS_STUDY

CSV_HEADER = (
    "source",
    "model",
    "task",
    "batch_size",
    "learning_rate",
    "weight_decay",
    "score",
    "seeds",
    "points",
    "whole_grid",
    "reference",
    "records",
)


def table5(group: Group) -> Table:
    """The printed table: points as batch/rate/decay."""
    paper = [(PAPER, row.model, *map(point_name, row.points.values())) for row in published.table5()]
    ours = [(THIS_STUDY, row_label(row), *(_printed(row.cells[task]) for task in TASKS)) for row in _rows(group)]
    return Table(
        title=f"Table 5: optimal hyper-parameters (scale {group.scale}, data {group.data})",
        header=("Source", "Model", *(task.title for task in TASKS.values())),
        alignment="ll" + "r" * len(TASKS),
        rows=(*paper, *ours),
        notes=tuple(_notes(group)),
        rules=frozenset({len(paper)} if ours else ()),
    )


def table5_csv(group: Group) -> str:
    """One line a model and task, with the records behind each of ours."""
    return csv_text(CSV_HEADER, [*_paper_lines(), *(line for row in _rows(group) for line in _our_lines(row))])


def _rows(group: Group) -> list[Row | BaselineRow]:
    return [row for row in group.recorded_rows if row.scored_tasks]


def _printed(cell: Cell) -> str:
    if cell.point is None:
        return DASH
    return point_name(cell.point) + ("" if cell.is_best_of_whole_grid else "†")


def _notes(group: Group) -> Iterator[str]:
    yield from warnings(group)
    yield "Points as batch size/learning rate/weight decay. The paper's rows are as printed there, from its own grid."
    yield "Ours is the point with the highest mean over seeds; of equal ones the first in the grid."
    if group.scale != "paper":
        yield f"Scale {group.scale} has rates and batch sizes of its own: its points say nothing about the paper's."
    cells = [cell for row in _rows(group) for cell in row.cells.values() if cell.score is not None]
    if any(not cell.is_best_of_whole_grid for cell in cells):
        yield "† best of an incomplete grid: some points failed or are not recorded yet."


def _paper_lines() -> Iterator[list[str]]:
    for row in published.table5():
        for task, point in row.points.items():
            yield [PAPER, row.model, task, *_values(point), "", "", "", "", row.source, ""]


def _our_lines(row: Row | BaselineRow) -> Iterator[list[str]]:
    reference = row.id if isinstance(row, BaselineRow) else row.variant.source
    for task, cell in row.cells.items():
        if cell.point is None or cell.score is None:
            continue
        points = len({point for trials in cell.recorded.values() for point in trials})
        counts = [raw(cell.score.mean), str(len(cell.score.by_seeds)), str(points)]
        whole = "yes" if cell.is_best_of_whole_grid else "no"
        ids = " ".join(sorted(cell.ids.values()))
        yield [THIS_STUDY, row_label(row), task, *_values(cell.point), *counts, whole, reference, ids]


def _values(point: Point) -> list[str]:
    return [str(point.batch_size), f"{point.learning_rate:g}", f"{point.weight_decay:g}"]
