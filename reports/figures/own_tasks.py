"""Scores of the tasks that a ladder declares itself."""

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ablations.ladders import current
from reports.analysis.inference import seed_interval
from reports.analysis.transitions import steps_of
from reports.basis import why_scores_not_paired
from reports.figures.glue_tables import print_estimate
from reports.notes import warnings
from reports.scores import Cell, Group, Row, point_name
from reports.tables import DASH, Column, Table, make_table, printed_range, signed


@dataclass(frozen=True)
class _Line:
    """A task of a row, and the row of its parent, if that has a score on the same data and grid."""

    task: str
    row: Row
    cell: Cell
    parent: Row | None

    @property
    def metrics(self) -> str:
        about = current().own_tasks[self.task]
        return ", ".join(
            about.metric_on(metric, split) for split in about.validation_splits for metric in about.metrics
        )

    @property
    def differences(self) -> Mapping[int, float]:
        """The score minus the parent's by pre-training seed, in points; empty without a parent."""
        base = None if self.parent is None else self.parent.own_cells[self.task].score
        if base is None or self.cell.score is None:
            return {}
        ours, theirs = self.cell.score.by_pretraining, base.by_pretraining
        return {seed: ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())}


def own_tasks_table(group: Group) -> Table | None:
    """Return a table with a line for every task of every row; None without a score."""
    lines: list[_Line] = []
    names: dict[frozenset[str], str] = {}  # an arm of a design may have the trials of a variant
    bases: dict[str, list[str]] = defaultdict(list)
    for variant, base in steps_of(group):
        bases[variant.name].append(base.name)
    for task in current().own_tasks:
        scored = {row.name: row for row in group.recorded_rows if (cell := row.own_cells.get(task)) and cell.score}
        for row in scored.values():
            cell = row.own_cells[task]
            if names.setdefault(frozenset(cell.ids.values()), row.name) != row.name:
                continue
            parents = [_comparable(row, scored.get(name), task) for name in bases[row.name] or [row.parent]]
            lines += [_Line(task, row, cell, parent) for parent in parents if parent is not None] or [
                _Line(task, row, cell, None)
            ]
    return _table(group, lines) if lines else None


def _comparable(row: Row, parent: Row | None, task: str) -> Row | None:
    """Return the parent if both have the same grid, as the best of more points scores higher, and data of the task."""
    if parent is None or row.recipe is None or parent.recipe is None:
        return None
    is_same_grid = set(row.recipe.grid.points()) == set(parent.recipe.grid.points())
    return parent if is_same_grid and not why_scores_not_paired(row, parent, [task]) else None


def _mean_difference(line: _Line) -> float | None:
    return statistics.fmean(line.differences.values()) if line.differences else None


def _table(group: Group, lines: Sequence[_Line]) -> Table:
    columns: list[Column[_Line]] = [
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
        Column(
            "Against",
            "against",
            lambda line: "" if line.parent is None else line.parent.name,
            lambda name, _: name or DASH,
        ),
        Column("Difference", "difference", _mean_difference, lambda mean, _: signed(mean, 2), "r"),
        Column(
            "95 % over seeds",
            "difference_low difference_high",
            lambda line: seed_interval(line.differences.values()),
            lambda interval, _: printed_range(interval, 2),
            "r",
        ),
        Column("Seeds", "seeds", lambda line: len(line.cell.ids), side="r"),
        Column("Point", "point", lambda line: "" if line.cell.point is None else point_name(line.cell.point), side="r"),
        Column("", "starts_from", lambda line: current().start_of(line.task) or "pretraining"),
        Column("", "records", lambda line: " ".join(line.cell.ids.values())),
    ]
    notes = (
        "Mean of the metrics on the validation splits, ×100, at the best point of the grid, ± one standard deviation "
        "over seeds († best of an incomplete grid).",
        "Differences are to a parent on the same data and grid (at own rates, to the parent at its own) at paired "
        "seeds, with an uncorrected 95 % t interval; own tasks are in no family of tests, and nothing is claimed.",
    )
    return make_table(
        f"Own tasks (scale {group.scale}, data {group.data})",
        columns,
        lines,
        (*warnings(group), *notes),
        records=lambda line: tuple(line.cell.ids.values()),
        rule_key=lambda line: line.task,
    )
