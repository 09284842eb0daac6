"""Notes on the numbers: what is missing, incomplete, or started from other weights."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from ablations.scales import Scale
from ablations.scaling import scaled, unrepresented
from ablations.variant import change_label
from neobert.errors import name_first
from neobert.glue.tasks import TASKS
from reports.basis import describe_code
from reports.scores import Group, Row
from reports.tables import escape_markdown

_SMALL = "small models on little text: what differs here need not differ at the paper's scale, nor the other way round."
WARNINGS: Mapping[Scale, str] = {
    "smoke": "Pipeline check at smoke scale: these numbers are not evidence about the modifications.",
    "study": f"Study scale: {_SMALL}",
    "proxy": f"Proxy scale: {_SMALL}",
}
"""Warnings for the numbers of each scale; the paper's scale needs none."""
INCOMPLETE = "† best of an incomplete grid: some points failed or are not recorded yet."
SHORT_LIST = 12


def warnings(group: Group) -> list[str]:
    """Return the warning of the group's scale, if any, and notes on differing code or versions of torch."""
    return [*([WARNINGS[group.scale]] if group.scale in WARNINGS else []), *describe_code(group)]


def describe_change(row: Row, group: Group) -> str:
    """Describe the change of a row's variant at the group's scale and data."""
    assert row.variant is not None
    parent = (
        scaled(group.ladder, row.variant.parent.recipe, group.scale, group.vocabulary) if row.variant.parent else None
    )
    origins = (run for each in (row, *group.rows, *group.design_rows.values()) for run in each.runs.origins)
    return change_label(row.variant, row.recipe, parent, next(origins, {}))


def notes(group: Group, short: bool) -> tuple[str, ...]:
    """Return all notes on a group. `short` cuts long lists of missing points; failed ones are always listed
    in full."""
    lines = [*warnings(group), *_spread(group), *searches_noted(group.all_rows)]
    without: dict[str, list[str]] = defaultdict(list)
    for row in group.all_rows:
        without[why_no_average(row, group)].append(row.label)
    lines += [f"{', '.join(labels)}: {why}." for why, labels in without.items() if why]
    for row in group.all_rows:
        if row.variant is not None and row.has_records:
            fields = unrepresented(group.ladder, row.variant, group.scale, group.vocabulary)
            said = f"{row.label}: not represented at scale {group.scale}, where its parent has the same value: "
            lines += [f"{said}{', '.join(fields)}."] if fields else []
        lines += _grid_gaps(row, short)
        if row.untrained:
            lines.append(f"{row.untrained}. No difference to it is shown as an effect.")
        lines += [f"{row.label}: {note}." for note in row.notes]
    return (*lines, *_fallbacks(group))


def notes_page(group: Group) -> str:
    """Return all notes in full, as a Markdown page."""
    title = f"# Remarks (scale {group.scale}, data {escape_markdown(group.data)})"
    return "\n".join([title, "", *(f"- {escape_markdown(line)}" for line in notes(group, short=False))]) + "\n"


def _spread(group: Group) -> list[str]:
    estimates = [cell.score for row in group.all_rows for cell in row.cells.values() if cell.score is not None]
    estimates += [loss for row in group.all_rows for loss in row.losses.values()]
    if not estimates:
        return []
    repeated = [estimate.by_seeds for estimate in estimates if estimate.spread is not None]
    if not repeated:
        return ["One seed a variant: the spread over seeds is unknown."]
    lines = ["± is one standard deviation (sd) over seeds; the best point of a grid has the highest mean over them."]
    if all(len({seeds.pretraining for seeds in by_seeds}) == 1 for by_seeds in repeated):
        lines.append("All repetitions share one pre-training seed: ± holds fine-tuning seeds only.")
    return lines


def searches_noted(rows: Iterable[Row], mark: str = "§ ") -> list[str]:
    """Return a sentence for each kind of search whose scores some rows have, behind the mark of such scores."""
    labels: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for tried in row.searched:
            labels[tried.sentence].append(row.label)
    return [f"{mark}{sentence} ({', '.join(dict.fromkeys(own))})." for sentence, own in labels.items()]


def why_no_average(row: Row, group: Group) -> str:
    """Return why a row has no average of GLUE; empty if it has one, or if the ladder has none of its tasks."""
    if not group.ladder.fine_tunes_on_glue:
        return ""
    if not any(cell.trials for cell in row.cells.values()):
        return "pre-trained, but no GLUE record of its own grid" if len(row.runs) else "no record"
    absent: dict[str, list[str]] = defaultdict(list)
    for task, cell in row.cells.items():
        if cell.score is None:
            reason = "no trial has a score" if cell.trials else group.unavailable_tasks.get(task, "no record")
            absent[reason].append(TASKS[task].title)
    if absent:
        return "no average; " + "; ".join(f"{', '.join(titles)}: {reason}" for reason, titles in absent.items())
    return "" if row.average else "no average: no single seed has all eight tasks"


def _grid_gaps(row: Row, short: bool) -> list[str]:
    gaps: dict[str, list[str]] = defaultdict(list)
    for task, cell in row.cells.items():
        parts = [
            f"{state} {_listed(points, cut=short and state == 'missing')}"
            for state, points in cell.absent.items()
            if points
        ]
        if cell.trials and parts:
            gaps["; ".join(parts)].append(TASKS[task].title)
    return [f"{row.label} {', '.join(titles)}, points as batch/rate/decay: {text}." for text, titles in gaps.items()]


def _listed(points: Sequence[str], cut: bool) -> str:
    if not cut or len(points) <= SHORT_LIST:
        return ", ".join(points)
    return f"{name_first(points, SHORT_LIST)} (all in remarks.md)"


def _fallbacks(group: Group) -> list[str]:
    affected: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in group.all_rows:
        for task, cell in row.cells.items():
            if cell.fallback and cell.score is not None:
                affected[(task, cell.fallback)].append(row.label)
    by_reason: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (task, reason), rows in affected.items():
        by_reason[(reason, tuple(rows))].append(TASKS[task].title)
    return [
        f"‡ {', '.join(titles)} of {', '.join(rows)} started from pre-training instead of MNLI: {reason}."
        for (reason, rows), titles in by_reason.items()
    ]
