"""GridMaps searches as heat maps: learning rate × batch size a task, one map for each weight decay."""

from dataclasses import dataclass

import pandas as pd

from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.findings import Findings
from reports.page.register import Number, Register
from reports.scores import POINTS_OF_SCORE, Cell, Row, point_name
from reports.tables import count, number

HOW = "mean over the seeds that count at this point of the grid, in points"


@dataclass(frozen=True)
class HeatCell:
    """A point: its mean score, where it stands between the map's lowest (0) and highest (1), or why it has none."""

    number: Number
    share: float
    is_best: bool
    remark: str


@dataclass(frozen=True)
class HeatMap:
    """One task: for each weight decay the rows of a table, learning rate by learning rate."""

    task: str
    batch_sizes: tuple[int, ...]
    panels: tuple[tuple[str, tuple[tuple[str, tuple[HeatCell, ...]], ...]], ...]


@dataclass(frozen=True)
class GridMaps:
    """All maps of one checkpoint of a variant, or of an external model; `is_open` at first sight."""

    label: str
    size: str
    is_open: bool
    maps: tuple[HeatMap, ...]


def draw_grids(findings: Findings, register: Register) -> tuple[GridMaps, ...]:
    """Every row that has trials."""
    rows = [row for row in findings.group.recorded_rows if any(cell.trials for cell in row.cells.values())]
    kept = [row for row in rows if row.variant is not None and row.kept]
    return tuple(_draw_grid(row, row in kept[-1:], register) for row in rows)


def _draw_grid(row: Row, is_open: bool, register: Register) -> GridMaps:
    cells = {task: cell for task, cell in row.cells.items() if cell.trials}
    points = {point for cell in cells.values() for point in cell.recorded.point}
    trials = sum(cell.trials for cell in cells.values())
    size = f"{count(len(points), 'point')} a task, {count(trials, 'trial')}"
    return GridMaps(
        row.label, size, is_open, tuple(_draw_map(row, task, cell, register) for task, cell in cells.items())
    )


def _draw_map(row: Row, task: str, cell: Cell, register: Register) -> HeatMap:
    """A mean stands where every seed that counts has a score: unequal means are not compared."""
    seeds = cell.recorded.seeds.nunique()
    by_point = dict(list(cell.recorded.groupby("point", sort=False)))
    means = {point: own.score.mean() * POINTS_OF_SCORE for point, own in by_point.items() if own.score.count() == seeds}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)

    def cell_at(point: Point) -> HeatCell:
        own = by_point.get(point, cell.recorded.iloc[:0])
        title, ids = f"{row.label}, {TASKS[task].title} at {point_name(point)}", list(own.id)
        if point not in means:
            remark = _why_no_mean(own, seeds)
            return HeatCell(register.number(remark, title, remark, ids), 0.0, False, remark)
        share = (means[point] - low) / (high - low) if high > low else 1.0
        shown = register.number(number(means[point]), title, HOW, ids)
        return HeatCell(shown, round(share, 2), point == cell.point, "")

    sizes = sorted({point.batch_size for point in by_point})
    rates = sorted({point.learning_rate for point in by_point})
    panels = tuple(
        (
            f"{decay:g}",
            tuple(
                (
                    f"{rate:g}",
                    tuple(cell_at(Point(batch_size=size, learning_rate=rate, weight_decay=decay)) for size in sizes),
                )
                for rate in rates
            ),
        )
        for decay in sorted({point.weight_decay for point in by_point}, reverse=True)
    )
    return HeatMap(TASKS[task].title, tuple(sizes), panels)


def _why_no_mean(trials: pd.DataFrame, seeds: int) -> str:
    """The state of the trials that have no score, or that some are not there."""
    without = sorted(set(trials.state) - {"done"})
    return ", ".join(without) or (f"{len(trials)} of {seeds} seeds" if len(trials) else "missing")
