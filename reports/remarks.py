"""Remarks on the numbers: what is missing, incomplete, or started from other weights."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from ablations.scales import Scale
from ablations.scaling import scaled, unrepresented
from ablations.variant import change_label
from neobert.errors import name_first
from neobert.glue.tasks import TASKS
from reports.rows import Study
from reports.scores import ScoreRow

_SMALL = "small models on little text: what differs here need not differ at the paper's scale, nor the other way round."
WARNINGS: Mapping[Scale, str] = {
    "smoke": "Pipeline check at smoke scale: these numbers are not evidence about the modifications.",
    "study": f"Study scale: {_SMALL}",
    "proxy": f"Proxy scale: {_SMALL}",
}
"""Warnings for the numbers of each scale; the paper's scale needs none."""
SHORT_LIST = 12
INCOMPLETE = "† best of an incomplete grid: some points failed or are not recorded yet."


def warnings(study: Study) -> list[str]:
    """Return the warning of the study's scale, if any."""
    return [WARNINGS[study.scale]] if study.scale in WARNINGS else []


def describe_change(row: ScoreRow, study: Study) -> str:
    """Describe the change of a row's variant at the study's scale and data."""
    assert row.variant is not None
    parent = row.variant.parent
    of_parent = scaled(study.ladder, parent.recipe, study.scale, study.vocabulary) if parent else None
    origins = (run for each in (row, *study.rows, *study.design_rows.values()) for run in each.runs.origins)
    return change_label(row.variant, row.recipe, of_parent, next(origins, {}))


def remarks(study: Study) -> tuple[str, ...]:
    """Return all remarks on a study."""
    lines: list[str] = [*warnings(study), *_spread(study), *searches_noted(study.all_rows)]
    without: dict[str, list[str]] = defaultdict(list)
    for row in study.all_rows:
        without[why_no_average(row, study)].append(row.label)
    lines += [f"{', '.join(labels)}: {why}." for why, labels in without.items() if why]
    for row in study.all_rows:
        if row.variant is not None and row.has_records:
            fields = unrepresented(study.ladder, row.variant, study.scale, study.vocabulary)
            said = f"{row.label}: not represented at scale {study.scale}, where its parent has the same value: "
            lines += [f"{said}{', '.join(fields)}."] if fields else []
        lines += _grid_gaps(row)
        if row.untrained:
            lines.append(f"{row.untrained}. No difference to it is shown as an effect.")
        lines += [f"{row.label}: {note}." for note in row.notes]
    return (*lines, *_fallbacks(study))


def _spread(study: Study) -> list[str]:
    estimates = [cell.score for row in study.all_rows for cell in row.glue.values() if cell.score is not None]
    estimates += [loss for row in study.all_rows for loss in row.losses.values()]
    if not estimates:
        return []
    repeated = [estimate.by_seeds for estimate in estimates if estimate.spread is not None]
    if not repeated:
        return ["One seed a variant: the spread over seeds is unknown."]
    lines = ["± is one standard deviation (sd) over seeds; the best point of a grid has the highest mean over them."]
    if all(len({seeds.pretraining for seeds in by_seeds}) == 1 for by_seeds in repeated):
        lines.append("All repetitions share one pre-training seed: ± holds fine-tuning seeds only.")
    return lines


def searches_noted(rows: Iterable[ScoreRow], mark: str = "§ ") -> list[str]:
    """Return a sentence for each kind of search whose scores some rows have, behind the mark of such scores."""
    labels: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for tried in row.searched:
            labels[tried.sentence].append(row.label)
    return [f"{mark}{sentence} ({', '.join(dict.fromkeys(own))})." for sentence, own in labels.items()]


def why_no_average(row: ScoreRow, study: Study) -> str:
    """Return why a row has no average of GLUE; empty if it has one, or if the ladder has none of its tasks."""
    if not study.ladder.glue_tasks:
        return ""
    if not any(cell.trials for cell in row.glue.values()):
        return "pre-trained, but no GLUE record of its own grid" if len(row.runs) else "no record"
    absent: dict[str, list[str]] = defaultdict(list)
    for task, cell in row.glue.items():
        if cell.score is None:
            reason = "no trial has a score" if cell.trials else study.unavailable_tasks.get(task, "no record")
            absent[reason].append(TASKS[task].title)
    if absent:
        return "no average; " + "; ".join(f"{', '.join(titles)}: {reason}" for reason, titles in absent.items())
    return "" if row.average else "no average: no single seed has all tasks"


def _grid_gaps(row: ScoreRow) -> Iterator[str]:
    gaps: dict[str, list[str]] = defaultdict(list)
    for task, cell in row.glue.items():
        listed = (f"{state} {name_first(points, SHORT_LIST)}" for state, points in sorted(cell.absent.items()))
        gaps["; ".join(listed)].append(TASKS[task].title)
    for text in filter(None, gaps):
        yield f"{row.label} {', '.join(gaps[text])}, points as batch/rate/decay: {text}."


def _fallbacks(study: Study) -> Iterator[str]:
    affected: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in study.all_rows:
        for task, cell in row.glue.items():
            if cell.fallback and cell.score is not None:
                affected[task, cell.fallback].append(row.label)
    by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (task, reason), rows in affected.items():
        by_reason[reason, tuple(rows)].append(TASKS[task].title)
    for (reason, labels), titles in by_reason.items():
        yield f"‡ {', '.join(titles)} of {', '.join(labels)} started from pre-training instead of MNLI: {reason}."
