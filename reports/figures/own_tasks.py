"""Scores of the tasks that a ladder declares itself."""

from collections.abc import Sequence
from dataclasses import dataclass

from ablations.ladders import Ladder
from reports.figures.glue_tables import print_estimate
from reports.notes import searches_noted, warnings
from reports.scores import Cell, Group, Row, point_name
from reports.tables import Column, Table, make_table

NOTE = (
    "Mean of the metrics on the validation splits, ×100, at the best point of the grid, ± one standard deviation over "
    "seeds († best of an incomplete grid). The table of differences compares arms."
)


@dataclass(frozen=True)
class _Line:
    """A task of a row."""

    ladder: Ladder
    task: str
    row: Row
    cell: Cell

    @property
    def metrics(self) -> str:
        about = self.ladder.own_tasks[self.task]
        return ", ".join(
            about.metric_on(metric, split) for split in about.validation_splits for metric in about.metrics
        )


COLUMNS: Sequence[Column[_Line]] = (
    Column("Task", "task", lambda line: line.task),
    Column("Arm", "variant", lambda line: line.row.label),
    Column("Metrics", "metrics", lambda line: line.metrics),
    Column(
        "Score",
        "score sd",
        lambda line: None if line.cell.score is None else (line.cell.score.mean, line.cell.score.spread),
        lambda _, line: print_estimate(line.cell.score, 2) + line.cell.marks.replace("‡", ""),
        "r",
    ),
    Column("Seeds", "seeds", lambda line: len(line.cell.ids), side="r"),
    Column("Point", "point", lambda line: "" if line.cell.point is None else point_name(line.cell.point), side="r"),
    Column("", "starts_from", lambda line: line.ladder.start_of(line.task) or "pretraining"),
    Column("", "records", lambda line: " ".join(line.cell.ids.values())),
)


def own_tasks_table(group: Group) -> Table | None:
    """Return a table with a line for every task of every row; None without a score."""
    lines: list[_Line] = []
    names: dict[frozenset[str], str] = {}  # an arm of a design may have the trials of a variant
    for task in group.ladder.own_tasks:
        for row in group.recorded_rows:
            cell = row.own_cells.get(task)
            if cell and cell.score and names.setdefault(frozenset(cell.ids.values()), row.name) == row.name:
                lines.append(_Line(group.ladder, task, row, cell))
    if not lines:
        return None
    title, about = (
        f"Own tasks (scale {group.scale}, data {group.data})",
        (*warnings(group), NOTE, *searches_noted(line.row for line in lines)),
    )
    return make_table(title, COLUMNS, lines, about, rule_key=lambda line: line.task)
