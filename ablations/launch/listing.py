"""Listings of a plan: the ladder, and runs with costs and ids."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from rich.markup import escape

from ablations.launch.costs import Cost, PlanCosts, stage_flops
from ablations.launch.request import gpus_in_words
from ablations.plan import PlannedRun, VariantRow, unfinished
from neobert.console import output, quantity, table
from neobert.kinds.pretraining import PretrainingRun
from neobert.runs.index import State

COST_COLUMNS = ("GB per GPU", "GPU-hours", "disk GB")
UNKNOWN_HOURS = "GPU-hours are not known: give --gpu NAME, or tokens_per_second_per_gpu in a cluster profile"


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
    if as_json:
        print(json.dumps([_summary(row, costs) for row in rows], indent=1))
        return
    if len(rows) == 1:
        _print_runs(rows[0], costs)
    else:
        _print_rows(rows, costs)
    absences = [f"left out: {task}: {reason}" for row in rows for task, reason in row.skipped.items()]
    absences += [
        f"not represented at this scale (equal to the parent's): {row.name}: {', '.join(row.unrepresented)}"
        for row in rows
        if row.unrepresented
    ]
    for line in dict.fromkeys(absences):
        output().print(escape(f"  {line}"))
    _print_total(rows, costs)


def _print_rows(rows: Sequence[VariantRow], costs: PlanCosts) -> None:
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
    output().print(table(title, ("variant", "seed", "parameters", "runs", *COST_COLUMNS), cells))


def _summary(row: VariantRow, costs: PlanCosts) -> dict[str, Any]:
    cost = costs.row(row)
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
        "memory_gb_per_gpu": None if cost.memory_gb is None else round(cost.memory_gb, 3),
        "gpu_hours": None if cost.gpu_hours is None else round(cost.gpu_hours, 3),
        "gpu_hours_source": costs.machine.source,
        "gpu_hours_without": list(cost.uncounted),
        "disk_gb": round(cost.disk_gb, 3),
    }


def _print_runs(row: VariantRow, costs: PlanCosts) -> None:
    console, summary = output(), _summary(row, costs)
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
    stages = PretrainingRun.among(unfinished(rows))
    tokens = quantity(sum(stage.recipe.stages[-1].tokens for stage in stages))
    gpus = f"{gpus_in_words(machine.gpus)} (engine {machine.engine})"
    console.print(
        f"to do, each run once: {tokens} tokens and {quantity(sum(map(stage_flops, stages)))} FLOPs of pre-training, "
        f"GPU-hours {hours}, disk {disk} GB; on each of {gpus} up to {memory} GB with {machine.micro_batch_tokens} "
        "tokens in a micro-batch"
    )
    if total.uncounted:
        console.print(
            f"GPU-hours without {', '.join(total.uncounted)}: how many texts its tasks have is not known before"
        )
    console.print(escape(f"GPU-hours at most, {machine.source}" if machine.source else UNKNOWN_HOURS))


def _digits(value: float | None) -> str | None:
    """Return a number in three digits; None if it is unknown."""
    return None if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
