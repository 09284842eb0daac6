"""Listings of a plan: the ladder, runs with costs and ids, and existing runs that are similar."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ablations.launch.costs import Cost, PlanCosts, stage_flops
from ablations.plan import PlannedRun, PlanRow, VariantRow
from neobert.console import output, quantity, table
from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json
from neobert.identity import leaves, plain
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.index import State, state_of
from neobert.runs.kinds import KINDS, Run
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file

COST_COLUMNS = ("GB per GPU", "GPU-hours", "disk GB")
DIFFS_SHOWN = 10
UNKNOWN_HOURS = (
    "GPU-hours are not known: name the gpu or its tokens_per_second_per_gpu in a cluster profile, or finish a run of "
    "the same shape on a GPU"
)


def change_text(path: str, change: Sequence[Any]) -> str:
    """Format a changed leaf for people; leaves of a new stage have no value before."""
    name = path.removeprefix("pretraining.")
    before, after = change
    return f"{name} = {after}" if before is None else f"{name}: {before} → {after}"


# The ladder

WORST_FIRST: tuple[State, ...] = ("failed", "running", "waiting", "missing", "done")


def state_of_all(planned: Sequence[PlannedRun]) -> State:
    """Return the common state of several runs: done only if all are, failed if any is."""
    states = {each.state for each in planned}
    if "done" in states and len(states) > 1 and "failed" not in states:
        return "running" if "running" in states else "waiting"
    return next((state for state in WORST_FIRST if state in states), "missing")


def print_ladder(rows: Sequence[VariantRow], *, as_json: bool) -> None:
    """Print the ladder with lineage, source and state."""
    entries: list[dict[str, Any]] = [
        {
            "name": row.variant.name,
            "parent": row.variant.parent.name if row.variant.parent else None,
            "kept": row.variant.kept,
            "title": row.title,
            "source": row.variant.source,
            "delta": {path: list(change) for path, change in row.delta.items()},
            "unrepresented": list(row.unrepresented),
            "pretraining_id": row.stages[-1].id,
            "stages": len(row.stages),
            "glue_grid": len(row.recipe.grid.points()),
            "state": state_of_all(row.planned),
        }
        for row in rows
    ]
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    not_kept = rows[0].ladder.not_kept
    cells = [
        (
            entry["name"] + ("" if entry["kept"] else f" ({'another reading' if '@' in entry['name'] else not_kept})"),
            entry["parent"],
            entry["title"],
            "\n".join(
                [
                    *(change_text(path, change) for path, change in entry["delta"].items()),
                    *(f"not represented: {field}" for field in entry["unrepresented"]),
                ]
            ),
            entry["source"],
            f"{entry['glue_grid']} point{'s' * (entry['glue_grid'] > 1)}",
            entry["state"],
        )
        for row, entry in zip(rows, entries, strict=True)
    ]
    columns = ("variant", "parent", "title", "delta", "source", "GLUE grid", "state")
    output().print(table(f"The ladder at {rows[0].scale} scale", columns, cells))


def _state_counts(states: Iterable[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))


# A plan


def print_plan(rows: Sequence[VariantRow], costs: PlanCosts, *, as_json: bool) -> None:
    """Print the runs of each variant with ids, sizes, states, folders and costs, and the total."""
    diffs = id_diffs(rows, costs.layout)
    if as_json:
        summaries = [_summary(row) | costs.row(row).summary() for row in rows]
        near = [{"near_misses": [vars(diff) for diff in found]} for found in diffs]
        print(json.dumps([{**summary, **found} for summary, found in zip(summaries, near, strict=True)], indent=1))
        return
    console = output()
    if len(rows) == 1:
        _print_runs(rows[0], costs)
    else:
        console.print(_table_of_rows(rows, costs))
    for line in (*_near_misses(rows, diffs), *_absences(rows)):
        console.print(escape(f"  {line}"))
    _print_total(rows, costs)


def _table_of_rows(rows: Sequence[VariantRow], costs: PlanCosts) -> Table:
    cells = [
        (
            row.name,
            row.seed,
            quantity(row.parameters),
            _state_counts(each.state for each in row.planned),
            *_cost_cells(costs.row(row)),
        )
        for row in rows
    ]
    title = f"{rows[0].scale} scale, {costs.source.label} data (one variant alone shows all runs, ids and folders)"
    return table(title, ("variant", "seed", "parameters", "runs", *COST_COLUMNS), cells)


def _near_misses(rows: Sequence[VariantRow], diffs: "Sequence[Sequence[IdDiff]]") -> list[str]:
    """Return a line for each existing run that nearly is a planned one; of several rows the first ones alone."""
    near = [f"{diff.kind}: {diff.sentence()}" for found in diffs for diff in found]
    if len(rows) == 1 or len(near) <= DIFFS_SHOWN:
        return near
    rest = f"and {len(near) - DIFFS_SHOWN} more runs that are nearly there (--json has them)"
    return [*near[:DIFFS_SHOWN], rest]


def _absences(rows: Sequence[VariantRow]) -> list[str]:
    """Return a line for each task that the data lacks, and for each change that the scale erases."""
    skipped = [f"left out: {task}: {reason}" for row in rows for task, reason in row.skipped.items()]
    erased = [
        f"not represented at this scale (equal to the parent's): {row.name}: {', '.join(row.unrepresented)}"
        for row in rows
        if row.unrepresented
    ]
    return list(dict.fromkeys([*skipped, *erased]))


def _summary(row: VariantRow) -> dict[str, Any]:
    return {
        "variant": row.name,
        "seed": row.seed,
        "scale": row.scale,
        "parameters": row.parameters,
        "tokens": row.recipe.pretraining.tokens,
        "flops": float(sum(map(stage_flops, row.stages))),
        "delta": {path: list(change) for path, change in row.delta.items()},
        "unrepresented": list(row.unrepresented),
        "stages": [
            {"kind": each.run.title, "id": each.run.id, "state": each.state, "folder": str(each.folder)}
            for each in row.planned
        ],
        "skipped": row.skipped,
    }


def _print_runs(row: VariantRow, costs: PlanCosts) -> None:
    console, summary = output(), _summary(row)
    sizes = ", ".join(f"{quantity(summary[key])} {key}" for key in ("parameters", "tokens", "flops"))
    title = f"{row.name} ({row.title}), seed {row.seed}, {row.scale} scale, {costs.source.label} data: {sizes}"
    console.print(escape(title), style="bold")
    for path, change in row.delta.items():
        console.print(f"  {escape(change_text(path, change))}")
    cells = [
        (each.run.title, each.run.id, each.state, *_cost_cells(costs.of(each.run)), each.folder) for each in row.planned
    ]
    total = ("all, data included", None, None, *_cost_cells(costs.row(row)), None)
    console.print(table("", ("run", "id", "state", *COST_COLUMNS, "folder"), [*cells, total]))


def _cost_cells(cost: Cost) -> tuple[str | None, ...]:
    """Return the numbers of the columns with three digits; None (printed as a dash) if unknown."""
    hours = None if cost.uncounted and not cost.gpu_hours else cost.gpu_hours
    return _digits(cost.memory_gb), _digits(hours), _digits(cost.disk_gb)


def _print_total(rows: Sequence[VariantRow], costs: PlanCosts) -> None:
    """Print the states of all runs, and the costs of what is left to do."""
    console, total, machine = output(), costs.total, costs.machine
    console.print(_state_counts(each.state for row in rows for each in row.planned))
    memory, hours, disk = (number or "unknown" for number in _cost_cells(total))
    left = {each.run.id: each.run for row in rows for each in row.planned if each.state != "done"}
    stages = PretrainingRun.among(left.values())
    tokens = quantity(sum(stage.recipe.stages[-1].tokens for stage in stages))
    gpus = f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''} (engine {machine.engine})"
    console.print(
        f"to do, each run once: {tokens} tokens and {quantity(sum(map(stage_flops, stages)))} FLOPs of pre-training, "
        f"GPU-hours {hours}, disk {disk} GB; on each of {gpus} up to {memory} GB with {machine.micro_batch_tokens} "
        "tokens in a micro-batch"
    )
    if total.uncounted:
        console.print(
            f"GPU-hours without {', '.join(total.uncounted)}: how many texts its tasks have is not known before"
        )
    console.print(escape(f"GPU-hours at most, {'; '.join(total.sources)}" if total.sources else UNKNOWN_HOURS))


def _digits(value: float | None) -> str | None:
    """Return a number in three digits; None if it is unknown."""
    return None if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# Differences between planned and existing runs

MOST_LEAVES = 5
Leaves = frozenset[tuple[str, Any]]
"""The leaves of a specification, with their dotted paths."""


@dataclass(frozen=True)
class IdDiff:
    """An existing run that is similar to a planned one.

    `differs` is {path: (existing, planned)}, empty if only the numerics version of a mechanism differs.
    `newer_numerics` is True if that version differs or is unknown.
    """

    kind: str
    planned: str
    existing: str
    state: str
    differs: Mapping[str, tuple[Any, Any]]
    newer_numerics: bool

    def sentence(self) -> str:
        """Describe the difference in one sentence."""
        changes = [f"{path.removeprefix('recipe.')}: {old} → {new}" for path, (old, new) in self.differs.items()]
        changes += ["numerics version"] if self.newer_numerics else []
        return f"{self.planned} differs from {self.existing} ({self.state}) in {'; '.join(changes)}"


def id_diffs(rows: Sequence[PlanRow], layout: Layout) -> list[list[IdDiff]]:
    """Find, for each row, the nearest existing run of each missing run; each run is named once.

    Runs on other weights are not compared, because they differ in pre-training.
    """
    planned_ids, named, existing = {run.id for row in rows for run in row.runs}, set[str](), cache(_existing)
    found: list[list[IdDiff]] = []
    for row in rows:
        found.append([])
        for each in row.planned:
            if each.state != "missing" or each.run.id in named:
                continue
            named.add(each.run.id)
            weights, wanted = _compared(plain(each.run))
            differing = [
                (len({path for path, _ in wanted ^ there}), folder, there)
                for folder, its_weights, there in existing(each.folder.parent, each.run.kind)
                if its_weights == weights and folder.name not in planned_ids
            ]
            count, folder, there = min(differing, key=itemgetter(0), default=(MOST_LEAVES + 1, each.folder, wanted))
            if count <= MOST_LEAVES:
                found[-1].append(_id_diff(layout, each.run, folder, there, wanted))
    return found


def _existing(parent: Path, kind: str) -> list[tuple[Path, str | None, Leaves]]:
    """Return the folders of one kind with the fields that runs are compared by, as far as this version knows them."""
    found = []
    for path in sorted(parent.glob("*/run.json")):
        with suppress(DamagedFile, KeyError, TypeError):
            specification = read_json(path)["run"]
            with suppress(ValueError):  # written by another version
                specification = plain(KINDS[kind].read(specification))
            found.append((path.parent, *_compared(specification)))
    return found


def _compared(specification: Mapping[str, Any]) -> tuple[str | None, Leaves]:
    """Return the weights that a run starts from (None for pre-training), and the leaves of its specification.

    The points of a grid are one leaf, so that another grid counts as one difference.
    """
    found = leaves({key: value for key, value in specification.items() if key != "points"})
    if points := specification.get("points"):
        axes = {name: sorted({point[name] for point in points}) for name in points[0]}
        values_by_axis = (f"{name} {'/'.join(f'{value:g}' for value in values)}" for name, values in axes.items())
        found["points"] = f"{len(points)} points {', '.join(values_by_axis)}"
    weights = found.get("weights") or found.get("encoder.weights")
    return weights, frozenset(found.items())


def _id_diff(layout: Layout, planned: Run, folder: Path, there: Leaves, wanted: Leaves) -> IdDiff:
    old, new = dict(there - wanted), dict(wanted - there)
    differs = {path: (old.get(path), new.get(path)) for path in sorted(old | new)}
    try:
        run = read_run_file(folder).run
    except (DamagedFile, MissingData):
        return IdDiff(planned.title, planned.id, folder.name, "of another version", differs, newer_numerics=True)
    is_closed = any((folder / name).exists() for name in ("done.json", "selection.json"))
    state = "done" if is_closed else state_of(layout, run)
    newer = run.id != folder.name or not differs
    return IdDiff(planned.title, planned.id, folder.name, state, differs, newer)
