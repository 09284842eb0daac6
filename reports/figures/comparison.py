"""Compare our numbers with the paper's: difference, tolerance and verdict.

Nothing is tuned to these numbers. A number can only be reproduced, or not, at the paper's scale on the paper's data;
anything else is not comparable.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ablations.ladders import Ladder
from ablations.scales import UNSCALED
from neobert.data.catalog import is_from_hub
from neobert.glue.tasks import TASKS
from reports.differences import relative_change
from reports.figures import published
from reports.rows import Study
from reports.scores import ScoreRow
from reports.tables import Column, Table, capitalized, make_table, rounded, signed

ROUNDING = 0.05  # points: the paper prints one digit
DEVIATIONS = 1.96  # normal quantile: covers 95 % of differences between two equally good models
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
    "Tolerances: {published} prints one seed and no spread, so the only noise that both numbers surely have is that of "
    "the development examples. A task's standard error is √(p(1−p)/n) at the printed score (correlations: (1−r²)/√n), "
    "the average's follows from the eight of {model}; the tolerance is 1.96·√2 times that, plus 0.05 "
    "for rounding. The two models of a relative change are taken as independent: its tolerance is √2 times that of an "
    "average, which is at most too wide, as both were scored on the same examples. A printed change that is no larger "
    "than its tolerance is not resolvable: no change, or one of the opposite sign, would agree with it too. Noise "
    "between seeds comes on top and is not in it."
)
OFF = "not reproduced"
NOT_RESOLVABLE = "the printed change is within its tolerance of zero"


def task_error(task: str, score: float) -> float:
    """Return the standard error of a score (in points) over the development examples of its task."""
    share, examples = score / 100, DEVELOPMENT_EXAMPLES[task]
    if task in CORRELATIONS:
        return 100 * (1 - share**2) / math.sqrt(examples)
    return 100 * math.sqrt(share * (1 - share) / examples)


def tolerance_of(error: float) -> float:
    """Return how far two equally good models with this standard error may differ, in points."""
    return DEVIATIONS * math.sqrt(2) * error + ROUNDING


def tolerance_reason(ladder: Ladder) -> str:
    printed = [f"{row.model} in Table 3" for _, row in published.printed_checkpoints(ladder)]
    return TOLERANCE_REASON.format(
        published=ladder.published_as,
        model=printed[-1] if printed else "a model that has the average in each task",
    )


def average_tolerance(ladder: Ladder, average: float) -> float:
    """Return the tolerance of an average of the eight tasks, in points, computed from the scores of the last printed
    checkpoint if there is one."""
    printed = [row.scores for _, row in published.printed_checkpoints(ladder)]
    scores = printed[-1] if printed else dict.fromkeys(TASKS, average)
    return tolerance_of(math.sqrt(sum(task_error(task, score) ** 2 for task, score in scores.items())) / len(scores))


@dataclass(frozen=True)
class PublishedNumber:
    """A published number with its counterpart, in `unit` (points, or percent for a relative change). `obstacle` says
    why they cannot be compared, if they cannot."""

    published_in: str
    name: str
    unit: str
    ours: float
    paper: float
    tolerance: float
    obstacle: str
    records: Sequence[str]

    @property
    def difference(self) -> float:
        return self.ours - self.paper

    @property
    def verdict(self) -> str:
        if self.obstacle:
            return f"not comparable{' at this scale' if self.obstacle.startswith('scale') else ''}"
        return judge(self.ours, self.paper, self.tolerance, self.unit)

    @property
    def why(self) -> str:
        """The explanation of the verdict, if it needs one."""
        return self.obstacle or (NOT_RESOLVABLE if self.verdict == "not resolvable" else "")


def compare_numbers(study: Study) -> tuple[PublishedNumber, ...]:
    """Return every number of Figure 1 and Table 3 with a counterpart among the records, in the paper's order. Its
    averages are over all eight tasks."""
    averages = (*_averages(study), *_printed_changes(study)) if study.is_average_of_eight else ()
    return (*averages, *_checkpoints(study))


def judge(ours: float, paper: float, tolerance: float, unit: str) -> str:
    """Return the verdict on two comparable numbers. A printed change within its tolerance is not resolvable, as a
    change of the opposite sign would agree with it as well."""
    if abs(ours - paper) > tolerance:
        return OFF
    return "reproduced" if unit != "percent" or abs(paper) > tolerance else "not resolvable"


def count_published(ladder: Ladder) -> int:
    """Count the paper's numbers for which this study could have a counterpart."""
    changes = published.read(ladder, "figure1").printed_delta_percent.count()
    rows = len(published.printed_checkpoints(ladder))
    return int(len(published.figure1(ladder)) + changes + rows * (len(TASKS) + 1))


def _averages(study: Study) -> Iterator[PublishedNumber]:
    for name, bar in published.figure1(study.ladder).items():
        row = study.last_rows[name]
        if row.average is not None:
            numbers = row.average.mean, bar.average, average_tolerance(study.ladder, bar.average)
            yield PublishedNumber(bar.source, name, "points", *numbers, _obstacle(row, study), row.trial_ids(TASKS))


def _printed_changes(study: Study) -> Iterator[PublishedNumber]:
    """Yield the paper's relative changes, in percent of the parent's average; ours are over the common seeds."""
    for name, bar in published.figure1(study.ladder).items():
        if bar.printed_delta_percent is None:
            continue
        row, parent = study.last_rows[name], study.last_rows[bar.parent]
        change = relative_change(row, parent, tuple(TASKS))
        if change is None:
            continue
        printed = published.figure1(study.ladder)[parent.name].average
        tolerance = 100 * math.sqrt(2) * average_tolerance(study.ladder, printed) / printed
        names, numbers = (bar.source, f"{name} against {bar.parent}"), (change, bar.printed_delta_percent, tolerance)
        obstacle = _obstacle(row, study) or _obstacle(parent, study)
        ids = sorted({*row.trial_ids(TASKS), *parent.trial_ids(TASKS)})
        yield PublishedNumber(*names, "percent", *numbers, obstacle, ids)


def _checkpoints(study: Study) -> Iterator[PublishedNumber]:
    """Yield the numbers of Table 3's rows that are checkpoints of a variant, whose stages are in the same order
    (NeoBERT's have 1,024 and 4,096 tokens)."""
    printed = published.printed_checkpoints(study.ladder)
    ours = [row for name in study.ladder.printed_as for row in study.rows if row.name == name]
    for (_, paper), row in zip(printed, ours, strict=False):
        found = [
            (TASKS[task].title, row.cells[task].score, score, tolerance_of(task_error(task, score)), [task])
            for task, score in paper.scores.items()
        ]
        if study.is_average_of_eight:
            tolerance = average_tolerance(study.ladder, paper.average)
            found.append(("average", row.average, paper.average, tolerance, list(TASKS)))
        for name, score, theirs, tolerance, tasks in found:
            if score is not None:
                names, numbers = (paper.source, f"{paper.model} {name}"), (score.mean, theirs, tolerance)
                yield PublishedNumber(*names, "points", *numbers, _obstacle(row, study), row.trial_ids(tasks))


def _obstacle(row: ScoreRow, study: Study) -> str:
    """Return why a row cannot be compared with the paper's number; empty if it can."""
    if study.scale not in UNSCALED:
        return f"scale {study.scale}"
    other = [origin for origin in row.origins if not is_from_hub(origin) or "#" in origin]
    if other or not row.origins:
        return f"other data: {', '.join(other) or 'its origin is not recorded'}"
    if row.searched:
        return f"{row.label} has scores of searches, not of the whole grid"
    if not row.is_best_of_whole_grid:
        return f"the grid of {row.label} is incomplete"
    fallbacks = [TASKS[task].title for task, cell in row.glue.items() if cell.fallback]
    return f"{', '.join(fallbacks)} did not start from MNLI" if fallbacks else ""


def table(study: Study, numbers: Sequence[PublishedNumber]) -> Table:
    """Return a table with one line per published number that has a counterpart."""
    counts = sorted(Counter(number.verdict for number in numbers).items())
    listed = ", ".join(f"{count} {verdict}" for verdict, count in counts) or "none"
    ladder, source = study.ladder, capitalized(study.ladder.published_source)
    columns: Sequence[Column[PublishedNumber]] = (
        Column("Published in", "published_in", lambda number: number.published_in),
        Column("Number", "number", lambda number: number.name),
        Column("Unit", "unit", lambda number: number.unit),
        Column("Ours", "ours", lambda number: number.ours, rounded(1), "r"),
        Column(source, "paper", lambda number: number.paper, rounded(1), "r"),
        Column("Difference", "difference", lambda number: number.difference, lambda value, _: signed(value, 1), "r"),
        Column("Tolerance", "tolerance", lambda number: number.tolerance, rounded(1), "r"),
        Column("Verdict", "verdict", lambda number: number.verdict),
        Column("Why", "why", lambda number: number.why),
        Column("", "records", lambda number: " ".join(number.records)),
    )
    notes = (
        f"{len(numbers)} of {count_published(ladder)} published numbers have a counterpart: {listed}. Only paper scale "
        f"on {ladder.published_as}'s data is comparable; nothing in this study is tuned to these numbers.",
        tolerance_reason(ladder),
        f"Not compared: rows of Table 3 that {ladder.published_as} copied from others (other protocols), and "
        "Tables 4, 5 and 9.",
    )
    return make_table(
        f"Beside {ladder.published_as} ({study.where})",
        columns,
        numbers,
        notes,
        rule_key=lambda number: number.published_in,
    )
