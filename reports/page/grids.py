"""Grid searches of the page, as data for the templates: maps of learning rate × batch size for each task, one for each
weight decay."""

from typing import Any

import pandas as pd

from neobert.glue.tasks import task_title
from neobert.recipe import Point
from reports.findings import Findings
from reports.page.register import Register
from reports.scores import POINTS_OF_SCORE, Cell, Row, point_name
from reports.tables import count, number


def draw_grids(findings: Findings, register: Register) -> list[dict[str, Any]]:
    """Return the maps of every row with trials; those of the last kept variant are initially open."""
    rows = [row for row in findings.group.recorded_rows if _begun(row)]
    kept = [row for row in rows if row.variant is not None and row.kept]
    return [_draw_grid(row, row in kept[-1:], register) for row in rows]


def _begun(row: Row) -> dict[str, Cell]:
    return {task: cell for task, cell in {**row.cells, **row.own_cells}.items() if cell.trials}


def _draw_grid(row: Row, is_open: bool, register: Register) -> dict[str, Any]:
    cells = _begun(row)
    points = {point for cell in cells.values() for point in cell.recorded.point}
    trials = sum(cell.trials for cell in cells.values())
    return {
        "label": row.label,
        "size": f"{count(len(points), 'point')} a task, {count(trials, 'trial')}",
        "is_open": is_open,
        "maps": [_draw_map(row, task, cell, register) for task, cell in cells.items()],
    }


def _draw_map(row: Row, task: str, cell: Cell, register: Register) -> dict[str, Any]:
    """Return the map of one task: `panels` are (weight decay, [(learning rate, cells by batch size), …]). A cell has a
    `number` and its `share`, from 0 for the map's lowest to 1 for its highest, or a `remark` on why there is no number.

    A mean is shown only if every counted seed has a score, so that all means are over the same seeds.
    """
    seeds = cell.recorded.seeds.nunique()
    by_point = dict(list(cell.recorded.groupby("point", sort=False)))
    means = {point: own.score.mean() * POINTS_OF_SCORE for point, own in by_point.items() if own.score.count() == seeds}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)

    def cell_at(decay: float, rate: float, size: int) -> dict[str, Any]:
        point = Point(batch_size=size, learning_rate=rate, weight_decay=decay)
        own = by_point.get(point, cell.recorded.iloc[:0])
        title, ids = f"{row.label}, {task_title(task)} at {point_name(point)}", list(own.id)
        if point not in means:
            remark = _why_no_mean(own, seeds)
            return {"number": register.number(remark, title, remark, ids), "share": 0.0, "remark": remark}
        share = (means[point] - low) / (high - low) if high > low else 1.0
        how = "mean over the seeds that count at this point of the grid, in points"
        shown = register.number(number(means[point]), title, how, ids)
        return {"number": shown, "share": round(share, 2), "is_best": point == cell.point, "remark": ""}

    sizes = sorted({point.batch_size for point in by_point})
    rates = sorted({point.learning_rate for point in by_point})
    decays = sorted({point.weight_decay for point in by_point}, reverse=True)
    panels = [
        (f"{decay:g}", [(f"{rate:g}", [cell_at(decay, rate, size) for size in sizes]) for rate in rates])
        for decay in decays
    ]
    return {"task": task_title(task), "batch_sizes": sizes, "panels": panels}


def _why_no_mean(trials: pd.DataFrame, seeds: int) -> str:
    """Return the states of the trials without a score, or the number of seeds present."""
    without = sorted(set(trials.state) - {"done"})
    return ", ".join(without) or (f"{len(trials)} of {seeds} seeds" if len(trials) else "missing")
