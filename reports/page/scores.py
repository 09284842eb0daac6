"""The page's table of scores: every task with its spread over seeds, the average, and held-out losses beside them."""

from collections.abc import Sequence
from dataclasses import dataclass

from neobert.glue.tasks import TASKS
from reports.baselines import BaselineRow
from reports.cells import Cell, Estimate, point_name
from reports.findings import Findings
from reports.formats import number
from reports.intervals import trial_ids
from reports.page.ladder import loss_number
from reports.page.numbers import NO_NUMBER, Number, Register
from reports.remarks import row_label
from reports.scores import Row


@dataclass(frozen=True)
class Measured:
    """A number, its standard deviation over seeds as printed (empty for one seed), and marks."""

    number: Number
    deviation: str
    marks: str


@dataclass(frozen=True)
class ScoreRow:
    """One checkpoint of a variant, or a model from elsewhere."""

    label: str
    kept: bool
    cells: tuple[Measured, ...]
    average: Measured
    seeds: str
    losses: tuple[Measured, ...]


@dataclass(frozen=True)
class ScoreTable:
    """The rows that have records; `mean_title` says what the last score is the mean of."""

    tasks: tuple[str, ...]
    mean_title: str
    corpora: tuple[str, ...]
    rows: tuple[ScoreRow, ...]
    has_incomplete: bool
    has_fallback: bool


NOTHING = Measured(NO_NUMBER, "", "")


def score_table(findings: Findings, register: Register) -> ScoreTable:
    """Scores of the ladder, of designs and of models from elsewhere, task by task."""
    group, bars = findings.group, findings.bars
    corpora = tuple(sorted({corpus for row in group.recorded_rows for corpus in row.losses}))
    maker = _Scores(register, bars.tasks, corpora)
    shown = [maker.row(row) for row in group.recorded_rows]
    marks = {mark for row in shown for cell in row.cells for mark in cell.marks}
    mean_title = "Average" if bars.is_average else f"Mean of {len(bars.tasks)} shared"
    titles = tuple(task.title for task in TASKS.values())
    return ScoreTable(titles, mean_title, corpora, tuple(shown), "†" in marks, "‡" in marks)


class _Scores:
    """Makes rows; remembers what all of them share."""

    def __init__(self, register: Register, tasks: Sequence[str], corpora: Sequence[str]) -> None:
        self._register, self._tasks, self._corpora = register, tasks, corpora

    def row(self, row: Row | BaselineRow) -> ScoreRow:
        label, mean = row_label(row), row.mean_over(self._tasks)
        return ScoreRow(
            label=label,
            kept=isinstance(row, BaselineRow) or row.variant.kept,
            cells=tuple(self._cell(label, task, row.cells[task]) for task in TASKS),
            average=self._mean(label, row, mean),
            seeds="" if mean is None else str(len(mean.by_seeds)),
            losses=tuple(self._loss(row, corpus) for corpus in self._corpora),
        )

    def _cell(self, label: str, task: str, cell: Cell) -> Measured:
        if cell.score is None or cell.point is None:
            return NOTHING
        how = f"best point of the grid ({point_name(cell.point)}), mean over seeds, in points"
        ids = list(cell.ids.values())
        printed = self._register.number(number(cell.score.mean), f"{label}: {TASKS[task].title}", how, ids)
        marks = ("" if cell.is_best_of_whole_grid else "†") + ("‡" if cell.fallback else "")
        return Measured(printed, _deviation(cell.score), marks)

    def _mean(self, label: str, row: Row | BaselineRow, mean: Estimate | None) -> Measured:
        if mean is None:
            return NOTHING
        how = f"flat mean of {', '.join(TASKS[task].title for task in self._tasks)}, then mean over seeds, in points"
        ids = trial_ids(row, self._tasks)
        return Measured(self._register.number(number(mean.mean), f"{label}: GLUE", how, ids), _deviation(mean), "")

    def _loss(self, row: Row | BaselineRow, corpus: str) -> Measured:
        loss = row.losses.get(corpus)
        if isinstance(row, BaselineRow) or loss is None:
            return NOTHING
        return Measured(loss_number(self._register, row, corpus, loss), _deviation(loss, 3), "")


def _deviation(estimate: Estimate, digits: int = 1) -> str:
    return "" if estimate.spread is None else f"± {number(estimate.spread, digits)}"
