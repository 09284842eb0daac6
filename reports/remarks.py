"""What a reader must know beside the numbers, in sentences: what is missing, incomplete or started elsewhere."""

from collections import defaultdict
from collections.abc import Sequence

from neobert.glue.tasks import TASKS
from reports.cells import Cell
from reports.scores import Group, Row

SMOKE_WARNING = "Pipeline check at smoke scale: these numbers are not evidence about the modifications."
SHORT_LIST = 12


def row_label(row: Row) -> str:
    """The variant, with the checkpoint's context where it has several checkpoints."""
    return row.variant.name if row.is_last_stage and row.stage == 0 else f"{row.variant.name} ({row.context} tokens)"


def absence(cell: Cell, task: str, group: Group) -> str:
    """Why a task has no score."""
    if cell.trials:
        return f"{TASKS[task].title} (none of {cell.trials} trials is done)"
    return f"{TASKS[task].title} ({group.unavailable_tasks.get(task, 'no record')})"


def remarks(group: Group, short: bool) -> tuple[str, ...]:
    """All remarks on a group. `short` cuts long lists of missing points; failed ones are always named in full."""
    lines = [SMOKE_WARNING] if group.scale == "smoke" else []
    lines += _spread(group)
    for row in group.rows:
        lines += _absent(row, group)
    for row in group.rows:
        lines += _grid_gaps(row, short)
        lines += [f"{row_label(row)}: {note}." for note in row.notes]
    return tuple([*lines, *_fallbacks(group)])


def _spread(group: Group) -> list[str]:
    counts = {len(row.average.by_seeds) for row in group.rows if row.average is not None}
    if not counts:
        return []
    if counts == {1}:
        return ["One seed a variant: the spread over seeds is unknown."]
    lines = ["± is the standard deviation over seeds; the best point of a grid has the highest mean over them."]
    repeated = [row.average.by_seeds for row in group.rows if row.average is not None and len(row.average.by_seeds) > 1]
    if all(len({seeds.pretraining for seeds in by_seeds}) == 1 for by_seeds in repeated):
        lines.append("All repetitions share one pre-training seed: ± holds fine-tuning seeds only.")
    return lines


def _absent(row: Row, group: Group) -> list[str]:
    if not any(cell.trials for cell in row.cells.values()):
        what = "pre-trained, but no GLUE record" if row.losses else "no record"
        return [f"{row_label(row)}: {what}."]
    absent = [absence(cell, task, group) for task, cell in row.cells.items() if cell.score is None]
    if absent:
        return [f"{row_label(row)} has no average; missing: {', '.join(absent)}."]
    return [] if row.average else [f"{row_label(row)} has no average: no single seed has all eight tasks."]


def _grid_gaps(row: Row, short: bool) -> list[str]:
    lines = []
    for task, cell in row.cells.items():
        gaps = [("failed", cell.failed, False), ("missing", cell.missing, short), ("pruned", cell.pruned, short)]
        parts = [f"{state} {_listed(points, cut)}" for state, points, cut in gaps if points]
        if cell.trials and parts:
            lines.append(f"{row_label(row)} {TASKS[task].title}, points as batch/rate/decay: {'; '.join(parts)}.")
    return lines


def _listed(points: Sequence[str], cut: bool) -> str:
    if not cut or len(points) <= SHORT_LIST:
        return ", ".join(points)
    return f"{', '.join(points[:SHORT_LIST])} and {len(points) - SHORT_LIST} more (all in the CSV)"


def _fallbacks(group: Group) -> list[str]:
    affected: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in group.rows:
        for task, cell in row.cells.items():
            if cell.fallback and cell.score is not None:
                affected[(task, cell.fallback)].append(row_label(row))
    by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (task, reason), rows in affected.items():
        by_reason[(reason, tuple(rows))].append(TASKS[task].title)
    return [
        f"‡ {', '.join(titles)} of {', '.join(rows)} started from pre-training instead of MNLI: {reason}."
        for (reason, rows), titles in by_reason.items()
    ]
