"""What `run.py --dry-run` prints: the units of a plan, what they cost, and why they are not runs that are there."""

import json
from collections import Counter
from collections.abc import Sequence

from rich.markup import escape

from ablations.cost import Cost
from ablations.costs import Costs, Machine
from ablations.listing import change_text
from ablations.near_misses import NearMiss, NearMisses
from ablations.plan import Row
from neobert.console import output, quantity, table
from neobert.data.sources import Source
from neobert.processes import available_cores
from neobert.runs.layout import Layout

CORE_FLOPS_PER_SECOND = 5e10
"""What smoke runs reached on a core in bf16 (reports/pipeline_check)."""

ROW_COLUMNS = ("variant", "seed", "parameters", "units", "GB a GPU", "GPU-hours", "disk GB")
MISSES_SHOWN = 10
COLUMNS = ("unit", "id", "state", "GB a GPU", "GPU-hours", "disk GB", "folder")
UNKNOWN_HOURS = (
    "GPU-hours are not known: name the gpu or its tokens_per_second_per_gpu in a cluster profile, or finish a run of "
    "the same shape on a GPU"
)


def print_plan(rows: Sequence[Row], layout: Layout, source: Source, machine: Machine, *, as_json: bool) -> None:
    """The units of each variant with ids, sizes, states, folders and costs, and the total of the selection.

    Raises:
        ValueError: the machine names a GPU that is not known.
    """
    costs, near_misses = Costs(layout, rows, source, machine), near_misses_of(rows, layout)
    if as_json:
        summaries = [
            {**row.summary(), **costs.row(row).summary(), "near_misses": [miss.summary() for miss in misses]}
            for row, misses in zip(rows, near_misses, strict=True)
        ]
        print(json.dumps(summaries, indent=1))
        return
    if len(rows) == 1:
        _print_row(rows[0], costs, near_misses[0], source.label)
    else:
        _print_rows(rows, costs, near_misses, source.label)
    _print_total(rows, costs)


def near_misses_of(rows: Sequence[Row], layout: Layout) -> list[list[NearMiss]]:
    """For each row what is nearly there of its missing units; each unit is told once."""
    search, told = NearMisses(layout), set[str]()
    planned = {unit.run.id for row in rows for unit in row.units}
    found = []
    for row in rows:
        missing = [unit for unit in row.units if unit.state == "missing" and unit.run.id not in told]
        told |= {unit.run.id for unit in missing}
        nearest = [search.nearest(unit.kind, unit.run, planned) for unit in missing]
        found.append([miss for miss in nearest if miss is not None])
    return found


def _print_row(row: Row, costs: Costs, near_misses: Sequence[NearMiss], data: str) -> None:
    console, summary = output(), row.summary()
    sizes = ", ".join(f"{quantity(summary[key])} {key}" for key in ("parameters", "tokens", "flops"))
    title = f"{row.variant.name} ({row.title}), seed {row.seed}, {row.scale} scale, {data} data: {sizes}"
    console.print(escape(title), style="bold")
    for path, change in row.delta.items():
        console.print(f"  {escape(change_text(path, change))}")
    cells = [(unit.kind, unit.run.id, unit.state, *_numbers(costs.unit(unit.run)), unit.folder) for unit in row.units]
    console.print(table("", COLUMNS, [*cells, ("all, data included", None, None, *_numbers(costs.row(row)), None)]))
    for miss in near_misses:
        console.print(escape(f"  {miss.kind}: {miss.sentence()}"))
    for task, reason in row.skipped.items():
        console.print(escape(f"  left out: {task}: {reason}"))


def _print_rows(rows: Sequence[Row], costs: Costs, near_misses: Sequence[Sequence[NearMiss]], data: str) -> None:
    """A line for each variant and seed."""
    cells = []
    for row in rows:
        states = Counter(unit.state for unit in row.units)
        told = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        size = quantity(row.summary()["parameters"])
        cells.append((row.variant.name, row.seed, size, told, *_numbers(costs.row(row))))
    console = output()
    title = f"{rows[0].scale} scale, {data} data (one variant alone shows every unit with its id and folder)"
    console.print(table(escape(title), ROW_COLUMNS, cells))
    misses = [miss for each in near_misses for miss in each]
    for miss in misses[:MISSES_SHOWN]:
        console.print(escape(f"  {miss.kind}: {miss.sentence()}"))
    if len(misses) > MISSES_SHOWN:
        console.print(f"  and {len(misses) - MISSES_SHOWN} more runs that are nearly there (--json has them)")
    skipped = dict.fromkeys(f"{task}: {reason}" for row in rows for task, reason in row.skipped.items())
    for reason in skipped:
        console.print(escape(f"  left out: {reason}"))


def _numbers(cost: Cost) -> tuple[str | None, str | None, str | None]:
    hours = None if cost.uncounted and not cost.gpu_hours else cost.gpu_hours
    return _short(cost.memory_gb), _short(hours), _short(cost.disk_gb)


def _short(value: float | None) -> str | None:
    """Three digits; None, which prints as a dash, where nobody knows."""
    if value is None:
        return None
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _print_total(rows: Sequence[Row], costs: Costs) -> None:
    console, total, machine = output(), costs.total, costs.machine
    states = Counter(unit.state for row in rows for unit in row.units)
    console.print(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    memory, hours, disk = (number or "unknown" for number in _numbers(total))
    gpus = f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''} (engine {machine.engine})"
    console.print(
        f"to do, each unit once: GPU-hours {hours}, disk {disk} GB; on each of {gpus} up to {memory} GB with "
        f"{machine.micro_batch_tokens} tokens in a micro-batch"
    )
    if total.uncounted:
        console.print(
            f"GPU-hours without {', '.join(total.uncounted)}: nobody knows before how many texts its tasks have"
        )
    console.print(escape(f"GPU-hours at most, {'; '.join(total.sources)}" if total.sources else UNKNOWN_HOURS))
    if rows[0].scale in ("smoke", "laptop"):
        minutes = costs.pretraining_flops / (CORE_FLOPS_PER_SECOND * available_cores()) / 60
        console.print(
            f"on the {available_cores()} cores of this machine pre-training takes about {max(1, round(minutes))} min, "
            "reckoned at the 50 GFLOP/s of a core that runs of this size reached; fine-tuning comes on top"
        )
