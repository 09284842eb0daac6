"""Grid searches as heat maps: learning rate × batch size a task, one map for each weight decay."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.baselines import BaselineRow
from reports.cells import POINTS_OF_SCORE, Cell, point_name
from reports.findings import Findings
from reports.formats import number
from reports.page.costs import counted
from reports.page.numbers import Number, Register
from reports.remarks import row_label
from reports.scores import Row

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
class Grid:
    """All maps of one checkpoint of a variant, or of a model from elsewhere; `is_open` at first sight."""

    label: str
    size: str
    is_open: bool
    maps: tuple[HeatMap, ...]


def grids(findings: Findings, register: Register) -> tuple[Grid, ...]:
    """Every row that has trials."""
    rows = [row for row in findings.group.recorded_rows if any(cell.recorded for cell in row.cells.values())]
    kept = [row for row in rows if isinstance(row, Row) and row.variant.kept]
    return tuple(_grid(row, row in kept[-1:], register) for row in rows)


def _grid(row: Row | BaselineRow, is_open: bool, register: Register) -> Grid:
    cells = {task: cell for task, cell in row.cells.items() if cell.recorded}
    maps = tuple(_map(row_label(row), task, cell, register) for task, cell in cells.items())
    points = {point for cell in cells.values() for trials in cell.recorded.values() for point in trials}
    trials = sum(cell.trials for cell in cells.values())
    size = f"{counted(len(points), 'point')} a task, {counted(trials, 'trial')}"
    return Grid(row_label(row), size, is_open, maps)


def _map(label: str, task: str, cell: Cell, register: Register) -> HeatMap:
    points = {point for trials in cell.recorded.values() for point in trials}
    sizes, rates, decays = (
        sorted({point.batch_size for point in points}),
        sorted({point.learning_rate for point in points}),
        sorted({point.weight_decay for point in points}, reverse=True),
    )
    means = [score for point in points if (score := _mean(cell, point)) is not None]
    ends = min(means, default=0.0), max(means, default=0.0)

    def cell_at(size: int, rate: float, decay: float) -> HeatCell:
        point = Point(batch_size=size, learning_rate=rate, weight_decay=decay)
        return _heat_cell(f"{label}, {TASKS[task].title}", cell, point, ends, register)

    panels = tuple(
        (f"{decay:g}", tuple((f"{rate:g}", tuple(cell_at(size, rate, decay) for size in sizes)) for rate in rates))
        for decay in decays
    )
    return HeatMap(TASKS[task].title, tuple(sizes), panels)


def _mean(cell: Cell, point: Point) -> float | None:
    """The mean over seeds; None where a seed that counts has no score here: unequal means are not compared."""
    scores = [trials[point].score if point in trials else None for trials in cell.recorded.values()]
    known = [score for score in scores if score is not None]
    return statistics.fmean(known) * POINTS_OF_SCORE if len(known) == len(scores) else None


def _heat_cell(label: str, cell: Cell, point: Point, ends: tuple[float, float], register: Register) -> HeatCell:
    mean, (low, high) = _mean(cell, point), ends
    title = f"{label} at {point_name(point)}"
    trials = [trials[point] for trials in cell.recorded.values() if point in trials]
    ids = [trial.id for trial in trials]
    if mean is None:
        remark = _absence([trial.state for trial in trials], len(cell.recorded))
        return HeatCell(register.number(remark, title, remark, ids), 0.0, False, remark)
    share = (mean - low) / (high - low) if high > low else 1.0
    return HeatCell(register.number(number(mean), title, HOW, ids), round(share, 2), point == cell.point, "")


def _absence(states: Sequence[str], seeds: int) -> str:
    """Why a point has no mean: the state of the trials that have no score, or that some are not there."""
    without = sorted({state for state in states if state != "done"})
    return ", ".join(without) or ("missing" if not states else f"{len(states)} of {seeds} seeds")
