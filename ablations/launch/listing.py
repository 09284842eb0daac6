"""Listings of a plan: the ladder, designs, runs with costs and ids, and existing runs that are similar."""

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

from ablations.designs import Design
from ablations.ladders import current, ladder
from ablations.launch.core_time import CoreTime
from ablations.launch.costs import Cost, PlanCosts, stage_flops
from ablations.plan import PlannedRun, PlanRow, VariantRow
from ablations.recipe_runs import ENDS_CAUSAL
from ablations.regime import Check, checks_of, describe_checks, pilot_records
from ablations.scales import scaled_recipes, uses_one_thread
from neobert.console import Listing, output, quantity, table
from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json
from neobert.identity import leaves, plain
from neobert.processes import available_cores, visible_gpus
from neobert.runs.index import State, state_of
from neobert.runs.kinds import KINDS, Run
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file

COST_COLUMNS = ("GB per GPU", "GPU-hours", "disk GB")
CORE_COST_COLUMNS = ("core-hours", "disk GB")
"""Columns of small scales on a machine without a GPU; core-hours are those of pre-training."""
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


# The ladder and designs

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
    not_kept = current().not_kept
    cells = [
        (
            entry["name"] + ("" if entry["kept"] else f" ({'another reading' if '@' in entry['name'] else not_kept})"),
            entry["parent"],
            entry["title"],
            "\n".join(
                [
                    *(change_text(path, change) for path, change in entry["delta"].items()),
                    *(f"not represented: {field}" for field in entry["unrepresented"]),
                    *(["ends causal"] if row.recipe.pretraining.ends_causal else []),
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


def design_lines(design: Design, rows: Sequence[VariantRow]) -> list[str]:
    """Return lines with the runs of a design and their states, what it shares with the ladder, and its claims."""
    runs, needs = {each.run.id: each for row in rows for each in row.planned}, []
    for kind, what in (("pretraining", "pre-training stage(s)"), ("glue", "GLUE studies")):
        states = [each.state for each in runs.values() if each.run.kind == kind]
        needs += [f"{len(states)} {what} ({_state_counts(states)})"] if states or kind == "pretraining" else []
    seeds = len({row.seed for row in rows})
    lines = [f"design: {design.title}: {len(design.variants)} variants, {seeds} seed(s) need {' and '.join(needs)}"]
    shared = [f"{name} = {other}" for name, other in _equal_on_ladder(rows).items()]
    lines += [f"trained once, as their recipes are equal: {', '.join(shared)}"] if shared else []
    return [*lines, *(f"left out: {sentence}" for sentence in design.left_out), *design.notes]


def _state_counts(states: Iterable[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))


def _equal_on_ladder(rows: Sequence[VariantRow]) -> dict[str, str]:
    """Return {design's variant: ladder's variant} for equal pre-training under another name."""
    scale, vocabulary = rows[0].scale, rows[0].vocabulary
    recipes = scaled_recipes(dict(reversed(ladder().items())), scale, vocabulary)
    return {
        row.name: name
        for row in rows
        for name, recipe in recipes.items()
        if row.name not in recipes and recipe.pretraining == row.recipe.pretraining
    }


# A plan


def print_plan(rows: Sequence[VariantRow], costs: PlanCosts, time: CoreTime, *, as_json: bool) -> None:
    """Print the runs of each variant with ids, sizes, states, folders and costs, the total, and the regime checks."""
    diffs, pilots = id_diffs(rows, costs.layout), pilot_records(costs.layout)
    checks = {row.name: checks_of(row.stages[-1], pilots) for row in rows}
    if as_json:
        summaries = [_summary(row, checks[row.name]) | costs.row(row).summary() for row in rows]
        near = [{"near_misses": [vars(diff) for diff in found]} for found in diffs]
        print(json.dumps([{**summary, **found} for summary, found in zip(summaries, near, strict=True)], indent=1))
        return
    console, shown = output(), _Costs(costs, time if _is_for_cores(rows, costs) else None)
    if len(rows) == 1:
        _print_runs(rows[0], shown, checks[rows[0].name])
    else:
        console.print(_table_of_rows(rows, shown))
    for line in (*_near_misses(rows, diffs), *_absences(rows)):
        console.print(escape(f"  {line}"))
    shown.print_total(rows)
    for line in describe_checks(checks):
        console.print(escape(line))


def _table_of_rows(rows: Sequence[VariantRow], shown: "_Costs") -> Listing:
    cells = [
        (
            row.name,
            row.seed,
            quantity(row.parameters),
            _state_counts(each.state for each in row.planned),
            *shown.cells(shown.costs.row(row), row.runs),
        )
        for row in rows
    ]
    source = shown.costs.source.label
    title = f"{rows[0].scale} scale, {source} data (one variant alone shows all runs, ids and folders)"
    return table(title, ("variant", "seed", "parameters", "runs", *shown.columns), cells)


def _near_misses(rows: Sequence[VariantRow], diffs: "Sequence[Sequence[IdDiff]]") -> list[str]:
    """Return a line for each existing run that nearly is a planned one; of several rows the first ones alone."""
    near = [f"{diff.kind}: {diff.sentence()}" for found in diffs for diff in found]
    if len(rows) == 1 or len(near) <= DIFFS_SHOWN:
        return near
    rest = f"and {len(near) - DIFFS_SHOWN} more runs that are nearly there (--json has them)"
    return [*near[:DIFFS_SHOWN], rest]


def _absences(rows: Sequence[VariantRow]) -> list[str]:
    """Return a line for each task that the data lacks, for each change that the scale erases, and for each variant that
    ends causal."""
    skipped = [f"left out: {task}: {reason}" for row in rows for task, reason in row.skipped.items()]
    erased = [
        f"not represented at this scale (equal to the parent's): {row.name}: {', '.join(row.unrepresented)}"
        for row in rows
        if row.unrepresented
    ]
    causal = [f"{row.name} {ENDS_CAUSAL}" for row in rows if row.recipe.pretraining.ends_causal]
    return list(dict.fromkeys([*skipped, *erased, *causal]))


def _summary(row: VariantRow, checks: Sequence[Check]) -> dict[str, Any]:
    return {
        "variant": row.name,
        "seed": row.seed,
        "scale": row.scale,
        "parameters": row.parameters,
        "tokens": row.recipe.pretraining.tokens,
        "flops": float(sum(map(stage_flops, row.stages))),
        "delta": {path: list(change) for path, change in row.delta.items()},
        "unrepresented": list(row.unrepresented),
        "regime": [_check_entry(check) for check in checks],
        "stages": [
            {"kind": each.run.title, "id": each.run.id, "state": each.state, "folder": str(each.folder)}
            for each in row.planned
        ],
        "skipped": row.skipped,
    }


def _check_entry(check: Check) -> dict[str, Any]:
    return {**vars(check), "number": None if check.number is None else float(f"{check.number:.4g}")}


def _print_runs(row: VariantRow, shown: "_Costs", checks: Sequence[Check]) -> None:
    console, summary, costs = output(), _summary(row, checks), shown.costs
    sizes = ", ".join(f"{quantity(summary[key])} {key}" for key in ("parameters", "tokens", "flops"))
    title = f"{row.name} ({row.title}), seed {row.seed}, {row.scale} scale, {costs.source.label} data: {sizes}"
    console.print(escape(title), style="bold")
    for path, change in row.delta.items():
        console.print(f"  {escape(change_text(path, change))}")
    cells = [
        (each.run.title, each.run.id, each.state, *shown.cells(costs.of(each.run), [each.run]), each.folder)
        for each in row.planned
    ]
    total = ("all, data included", None, None, *shown.cells(costs.row(row), row.runs), None)
    console.print(table("", ("run", "id", "state", *shown.columns, "folder"), [*cells, total]))


def _is_for_cores(rows: Sequence[VariantRow], costs: PlanCosts) -> bool:
    """Return whether a plan is for the cores of this machine: a small scale or a ladder of one's own as it is written,
    no GPU here, and none in the profile."""
    machine, scale = costs.machine, rows[0].scale
    named = machine.gpu or machine.tokens_per_second_per_gpu or machine.gpu_memory_gb
    return (uses_one_thread(scale) or scale == "as-written") and not named and not visible_gpus()


@dataclass(frozen=True)
class _Costs:
    """The costs of a plan as they are printed: of GPUs, or with `time` of the cores of this machine."""

    costs: PlanCosts
    time: CoreTime | None

    @property
    def columns(self) -> tuple[str, ...]:
        return CORE_COST_COLUMNS if self.time else COST_COLUMNS

    def cells(self, cost: Cost, runs: Sequence[Run]) -> tuple[str | None, ...]:
        """Return the numbers of the columns with three digits; None (printed as a dash) if unknown."""
        if self.time:
            return _digits(self.time.core_hours(runs)), _digits(cost.disk_gb)
        hours = None if cost.uncounted and not cost.gpu_hours else cost.gpu_hours
        return _digits(cost.memory_gb), _digits(hours), _digits(cost.disk_gb)

    def print_total(self, rows: Sequence[VariantRow]) -> None:
        """Print the states of all runs, and the costs of what is left to do."""
        console, total, machine = output(), self.costs.total, self.costs.machine
        console.print(_state_counts(each.state for row in rows for each in row.planned))
        if self.time:
            console.print(_core_total(self.time, _digits(total.disk_gb) or "unknown"))
            return
        memory, hours, disk = (number or "unknown" for number in self.cells(total, ()))
        gpus = f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''} (engine {machine.engine})"
        console.print(
            f"to do, each run once: GPU-hours {hours}, disk {disk} GB; on each of {gpus} up to {memory} GB with "
            f"{machine.micro_batch_tokens} tokens in a micro-batch"
        )
        if total.uncounted:
            console.print(
                f"GPU-hours without {', '.join(total.uncounted)}: how many texts its tasks have is not known before"
            )
        console.print(escape(f"GPU-hours at most, {'; '.join(total.sources)}" if total.sources else UNKNOWN_HOURS))
        for line in self.costs.proposal.lines():
            console.print(line)


def _core_total(time: CoreTime, disk_gb: str) -> str:
    """Return the line with the time of what is left to do on the cores of this machine."""
    without = f" without {', '.join(time.uncounted)}" if time.uncounted else ""
    minutes = 60 * time.hours()
    return (
        f"to do, each run once: disk {disk_gb} GB; about {max(1, round(minutes)):,} min{without} with {time.workers} "
        f"worker{'s' * (time.workers > 1)} on the {available_cores()} cores of this machine, {time.basis}"
    )


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
