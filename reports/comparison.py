"""The paper's numbers beside ours: difference, tolerance and verdict. Reported, never tuned to.

Only the paper's scale on the paper's data can reproduce a number or fail to; anything else is not comparable.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from neobert.data.catalog import is_from_hub
from neobert.errors import MissingData
from neobert.glue.tasks import TASKS
from reports import published
from reports.cells import Estimate, Seeds
from reports.deltas import resampled
from reports.pairs import by_pretraining_seed, glue_pair
from reports.predictions import StoredPredictions
from reports.remarks import PRINTED_AS, row_label
from reports.scores import Group, Row

ROUNDING = 0.05  # points: the paper prints one digit
DEVIATIONS = 1.96  # of a normal distribution: 95 % of differences between two equally good models
DEVELOPMENT_EXAMPLES = {
    "mnli": 9_815 + 9_832,  # matched and mismatched
    "qnli": 5_463,
    "qqp": 40_430,
    "rte": 277,
    "sst2": 872,
    "mrpc": 408,
    "cola": 1_043,
    "stsb": 1_500,
}
CORRELATIONS = ("cola", "stsb")
TOLERANCE_REASON = (
    "Tolerances: the paper prints one seed and no spread, so the only noise that both numbers surely have is that of "
    "the development examples. A task's standard error is √(p(1−p)/n) at the printed score (correlations: (1−r²)/√n), "
    "the average's follows from the eight of NeoBERT-4096 in Table 3; the tolerance is 1.96·√2 times that, plus 0.05 "
    "for rounding. The two models of a relative change were scored on the same examples: its standard error is that of "
    "our own change over paired resamples of them, and the paper's change is taken to have that of one of our seeds. "
    "Without stored predictions the two models are taken as independent, which is at most too wide. A printed change "
    "that is no larger than its tolerance is not resolvable: no change, or one of the opposite sign, would agree with "
    "it too. Noise between seeds comes on top and is not in it."
)
NOT_RESOLVABLE = "the printed change is within its tolerance of zero"


@dataclass(frozen=True)
class ComparedNumber:
    """One published number with ours. `unit` is points, or percent for a relative change; `obstacle` says why the two
    cannot be compared, `caveat` what the tolerance had to assume."""

    where: str
    name: str
    unit: str
    ours: float
    paper: float
    tolerance: float
    obstacle: str
    ids: tuple[str, ...]
    caveat: str = ""

    @property
    def difference(self) -> float:
        """Ours less the paper's."""
        return self.ours - self.paper

    @property
    def is_off(self) -> bool:
        """Whether a comparable number is further away than the tolerance."""
        return not self.obstacle and abs(self.difference) > self.tolerance

    @property
    def verdict(self) -> str:
        """In words."""
        if self.obstacle:
            return "not comparable at this scale" if self.obstacle.startswith("scale") else "not comparable"
        if self.is_off:
            return "not reproduced"
        return "reproduced" if self.is_resolvable else "not resolvable"

    @property
    def is_resolvable(self) -> bool:
        """Whether agreement says anything: a change within its tolerance agrees with the opposite sign as well."""
        return self.unit != "percent" or abs(self.paper) > self.tolerance

    @property
    def why(self) -> str:
        """What explains the verdict; empty where it needs no explanation."""
        unresolved = NOT_RESOLVABLE if self.verdict == "not resolvable" else ""
        return self.obstacle or "; ".join(filter(None, (unresolved, self.caveat)))


def task_error(task: str, score: float) -> float:
    """The standard error of a score (in points) over the development examples of its task."""
    share, examples = score / 100, DEVELOPMENT_EXAMPLES[task]
    if task in CORRELATIONS:
        return 100 * (1 - share**2) / math.sqrt(examples)
    return 100 * math.sqrt(share * (1 - share) / examples)


def tolerance_of(error: float) -> float:
    """How far two equally good models may differ, in points, where each has this standard error."""
    return DEVIATIONS * math.sqrt(2) * error + ROUNDING


def average_tolerance() -> float:
    """The tolerance of an average of the eight tasks, in points."""
    scores = next(row.scores for row in published.table3() if row.model == "NeoBERT-4096")
    return tolerance_of(math.sqrt(sum(task_error(task, score) ** 2 for task, score in scores.items())) / len(scores))


def compared_numbers(group: Group, stored: StoredPredictions) -> tuple[ComparedNumber, ...]:
    """Every number of Figure 1 and Table 3 that has a counterpart among the records, in the paper's order."""
    return (*_averages(group), *_printed_changes(group, stored), *_checkpoints(group))


def published_numbers() -> int:
    """How many numbers the paper prints where this study could have a counterpart."""
    bars = published.figure1().values()
    rows = [row for row in published.table3() if row.model.startswith("NeoBERT")]
    changes = sum(bar.printed_delta_percent is not None for bar in bars)
    return len(bars) + changes + len(rows) * (len(TASKS) + 1)


def _averages(group: Group) -> Iterator[ComparedNumber]:
    rows, tolerance = group.last_rows(), average_tolerance()
    for name, bar in published.figure1().items():
        ours = rows[name].average
        if ours is not None:
            obstacle = _obstacle(rows[name], group)
            ids = _ids(rows[name], *TASKS)
            yield ComparedNumber(bar.source, name, "points", ours.mean, bar.average, tolerance, obstacle, ids)


def _printed_changes(group: Group, stored: StoredPredictions) -> Iterator[ComparedNumber]:
    """The relative changes that the paper prints, in percent of the parent's average; ours over the seeds that both
    have."""
    rows, bars = group.last_rows(), published.figure1()
    for name, bar in bars.items():
        if bar.printed_delta_percent is None or bar.parent is None:
            continue
        row, parent = rows[name], rows[bar.parent]
        pair = glue_pair(row, parent, tuple(TASKS), group)
        if not pair.differences or row.average is None or parent.average is None:
            continue
        ours = 100 * (_mean(row.average, pair.seeds) / _mean(parent.average, pair.seeds) - 1)
        tolerance, caveat = _tolerance_of_change(row, parent, stored, pair.seeds)
        yield ComparedNumber(
            where=bar.source,
            name=f"{name} against {bar.parent}",
            unit="percent",
            ours=ours,
            paper=bar.printed_delta_percent,
            tolerance=tolerance,
            obstacle=_obstacle(row, group) or _obstacle(parent, group),
            ids=pair.ids,
            caveat=caveat,
        )


def _mean(average: Estimate, seeds: Sequence[Seeds]) -> float:
    return statistics.fmean(by_pretraining_seed({each: average.by_seeds[each] for each in seeds}).values())


def _tolerance_of_change(row: Row, parent: Row, stored: StoredPredictions, seeds: Sequence[Seeds]) -> tuple[float, str]:
    """How far two changes of equally good pairs may differ, in percent, and what had to be assumed for it."""
    try:
        ours = change_error(row, parent, stored, seeds)
        one_seed = [change_error(row, parent, stored, [each]) ** 2 for each in seeds]
    except MissingData as error:
        printed = published.figure1()[parent.variant.name].average
        return 100 * math.sqrt(2) * average_tolerance() / printed, f"taken as independent: {error}"
    return DEVIATIONS * math.sqrt(ours**2 + statistics.fmean(one_seed)) + ROUNDING, ""


def change_error(row: Row, parent: Row, stored: StoredPredictions, seeds: Sequence[Seeds]) -> float:
    """The standard error of a relative change of averages over development examples, in percent: both models are scored
    on the same resamples.

    Raises:
        MissingData: predictions or labels of some trial are not there.
    """
    ours, theirs = (np.mean([resampled(each, task, stored, seeds) for task in TASKS], axis=0) for each in (row, parent))
    return float(np.nanstd(100 * (ours / theirs - 1), ddof=1))


def _checkpoints(group: Group) -> Iterator[ComparedNumber]:
    """Table 3's two rows of NeoBERT: its checkpoints of 1,024 and 4,096 tokens are the stages of one variant."""
    printed = [row for row in published.table3() if row.model.startswith("NeoBERT")]
    ours = [row for row in group.rows if row.variant.name in PRINTED_AS]
    for paper, row in zip(printed, ours, strict=True):
        obstacle = _obstacle(row, group)
        for task, score in paper.scores.items():
            own = row.cells[task].score
            if own is not None:
                names = paper.source, f"{paper.model} {TASKS[task].title}"
                tolerance = tolerance_of(task_error(task, score))
                yield ComparedNumber(*names, "points", own.mean, score, tolerance, obstacle, _ids(row, task))
        average: Estimate | None = row.average
        if average is not None:
            names = paper.source, f"{paper.model} average"
            ids = _ids(row, *TASKS)
            yield ComparedNumber(*names, "points", average.mean, paper.average, average_tolerance(), obstacle, ids)


def _ids(row: Row, *tasks: str) -> tuple[str, ...]:
    return tuple(sorted({trial for task in tasks for trial in row.cells[task].ids.values()}))


def _obstacle(row: Row, group: Group) -> str:
    """Why a row says nothing about the paper's number; empty where it does."""
    if group.scale != "paper":
        return f"scale {group.scale}"
    other = [origin for origin in row.origins if not is_from_hub(origin) or "#" in origin]
    if other or not row.origins:
        return f"other data: {', '.join(other) or 'its origin is not recorded'}"
    if not row.is_best_of_whole_grid:
        return f"the grid of {row_label(row)} is incomplete"
    fallbacks = [TASKS[task].title for task, cell in row.cells.items() if cell.fallback]
    return f"{', '.join(fallbacks)} did not start from MNLI" if fallbacks else ""
