"""What the commands print: the ladder, a plan with its costs and ids, and what came out."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.markup import escape

from ablations.designs import ScaledDesign
from ablations.ladders import current, ladder
from ablations.launch.costs import Cost, PlanCosts, stage_flops
from ablations.plan import ModelRow, PlannedRun, PlanRow, VariantRow
from ablations.scales import scaled
from neobert.console import output, quantity, table
from neobert.data.mteb_tasks import BENCHMARKS, CATEGORIES, EmbeddingTask, count_by_category, suites_of
from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json
from neobert.identity import canonical, leaves, plain
from neobert.processes import available_cores
from neobert.runs.claims import is_claimed
from neobert.runs.index import State, state_of
from neobert.runs.kinds import KINDS
from neobert.runs.layout import Layout
from neobert.runs.records import Category, read_record
from neobert.runs.run_file import RUN_FILE_WORDS, read_run_file
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    GlueStudy,
    PretrainingRun,
    ReadoutEvaluation,
    Run,
    TaskOnData,
    only,
)
from neobert.runs.work import Kind, Part

CORE_FLOPS_PER_SECOND = 5e10
"""What smoke runs reached on a core in bf16 (reports/pipeline_check)."""

COST_COLUMNS = ("GB a GPU", "GPU-hours", "disk GB")
DIFFS_SHOWN = 10
UNKNOWN_HOURS = (
    "GPU-hours are not known: name the gpu or its tokens_per_second_per_gpu in a cluster profile, or finish a run of "
    "the same shape on a GPU"
)


def change_text(path: str, change: Sequence[Any]) -> str:
    """A changed leaf as people read it; what a new stage brings has no value before."""
    name = path.removeprefix("pretraining.")
    before, after = change
    return f"{name} = {after}" if before is None else f"{name}: {before} → {after}"


# The ladder and designs

WORST_FIRST: tuple[State, ...] = ("failed", "running", "waiting", "missing", "done")


def state_of_all(planned: Sequence[PlannedRun]) -> State:
    """One word for several runs: done only when all are, failed when any is."""
    states = {each.state for each in planned}
    if "done" in states and len(states) > 1 and "failed" not in states:
        return "running" if "running" in states else "waiting"
    return next((state for state in WORST_FIRST if state in states), "missing")


def print_ladder(rows: Sequence[VariantRow], *, as_json: bool) -> None:
    """The ladder with lineage, source and state."""
    entries: list[dict[str, Any]] = [
        {
            "name": row.variant.name,
            "parent": row.variant.parent.name if row.variant.parent else None,
            "kept": row.variant.kept,
            "title": row.title,
            "source": row.variant.source,
            "delta": {path: list(change) for path, change in row.delta.items()},
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
            escape(entry["title"]),
            escape("\n".join(change_text(path, change) for path, change in entry["delta"].items())),
            escape(entry["source"]),
            f"{entry['glue_grid']} point{'s' * (entry['glue_grid'] > 1)}",
            entry["state"],
        )
        for entry in entries
    ]
    columns = ("variant", "parent", "title", "delta", "source", "GLUE grid", "state")
    output().print(table(f"The ladder at {rows[0].scale} scale", columns, cells))


def design_lines(planned: ScaledDesign, rows: Sequence[VariantRow]) -> list[str]:
    """What a design needs and has, what it shares with the ladder, and which claims it supports."""
    design = planned.design
    runs, needs = {each.run.id: each for row in rows for each in row.planned}, []
    for kind, what in (("pretraining", "pre-training stage(s)"), ("glue", "GLUE studies")):
        states = [each.state for each in runs.values() if each.run.kind == kind]
        needs += [f"{len(states)} {what} ({_state_counts(states)})"] if states or kind == "pretraining" else []
    seeds = len({row.seed for row in rows})
    lines = [f"design: {design.title}: {len(design.variants)} variants, {seeds} seed(s) need {' and '.join(needs)}"]
    shared = [f"{name} = {other}" for name, other in _equal_on_ladder(rows).items()]
    lines += [f"trained once, as their recipes are equal: {', '.join(shared)}"] if shared else []
    return [*lines, *(f"left out: {sentence}" for sentence in planned.left_out), *design.notes]


def _state_counts(states: Iterable[str]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(Counter(states).items()))


def _equal_on_ladder(rows: Sequence[VariantRow]) -> dict[str, str]:
    """Variants of a design whose pre-training is that of one of the ladder under another name."""
    scale, vocabulary = rows[0].scale, rows[0].vocabulary
    recipes = {name: scaled(variant.recipe, scale, vocabulary) for name, variant in reversed(ladder().items())}
    return {
        row.name: name
        for row in rows
        for name, recipe in recipes.items()
        if row.name not in recipes and recipe.pretraining == row.recipe.pretraining
    }


# A plan


def print_plan(rows: Sequence[VariantRow], costs: PlanCosts, *, as_json: bool) -> None:
    """The runs of each variant with ids, sizes, states, folders and costs, and the total of the plan.

    Raises:
        ValueError: the machine names a GPU that is not known.
    """
    diffs = id_diffs(rows, costs.layout)
    if as_json:
        summaries = [
            {**_summary(row), **costs.row(row).summary(), "near_misses": [vars(diff) for diff in found]}
            for row, found in zip(rows, diffs, strict=True)
        ]
        print(json.dumps(summaries, indent=1))
        return
    console, data = output(), costs.source.label
    if len(rows) == 1:
        _print_runs(rows[0], costs)
    else:
        cells = [
            (
                row.name,
                row.seed,
                quantity(row.parameters),
                _state_counts(each.state for each in row.planned),
                *_numbers(costs.row(row)),
            )
            for row in rows
        ]
        title = f"{rows[0].scale} scale, {data} data (one variant alone shows every run with its id and folder)"
        console.print(table(escape(title), ("variant", "seed", "parameters", "runs", *COST_COLUMNS), cells))
    shown = [diff for found in diffs for diff in found]
    most = DIFFS_SHOWN if len(rows) > 1 else len(shown)
    for diff in shown[:most]:
        console.print(escape(f"  {diff.kind}: {diff.sentence()}"))
    if shown[most:]:
        console.print(f"  and {len(shown) - most} more runs that are nearly there (--json has them)")
    for reason in dict.fromkeys(f"{task}: {reason}" for row in rows for task, reason in row.skipped.items()):
        console.print(escape(f"  left out: {reason}"))
    _print_total(rows, costs)


def _summary(row: VariantRow) -> dict[str, Any]:
    return {
        "variant": row.name,
        "seed": row.seed,
        "scale": row.scale,
        "parameters": row.parameters,
        "tokens": row.recipe.pretraining.tokens,
        "flops": float(sum(map(stage_flops, row.stages))),
        "delta": {path: list(change) for path, change in row.delta.items()},
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
        (each.run.title, each.run.id, each.state, *_numbers(costs.of(each.run)), each.folder) for each in row.planned
    ]
    total = ("all, data included", None, None, *_numbers(costs.row(row)), None)
    console.print(table("", ("run", "id", "state", *COST_COLUMNS, "folder"), [*cells, total]))


def _numbers(cost: Cost) -> tuple[str | None, str | None, str | None]:
    """Memory, hours and disk with three digits; None, which prints as a dash, if unknown."""
    hours = None if cost.uncounted and not cost.gpu_hours else cost.gpu_hours
    memory, hours_text, disk = (
        None if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        for value in (cost.memory_gb, hours, cost.disk_gb)
    )
    return memory, hours_text, disk


def _print_total(rows: Sequence[VariantRow], costs: PlanCosts) -> None:
    console, total, machine = output(), costs.total, costs.machine
    console.print(_state_counts(each.state for row in rows for each in row.planned))
    memory, hours, disk = (number or "unknown" for number in _numbers(total))
    gpus = f"{machine.gpus} GPU{'s' if machine.gpus > 1 else ''} (engine {machine.engine})"
    console.print(
        f"to do, each run once: GPU-hours {hours}, disk {disk} GB; on each of {gpus} up to {memory} GB with "
        f"{machine.micro_batch_tokens} tokens in a micro-batch"
    )
    if total.pretended_gb is not None:
        console.print(f"the same steps on a pretended GPU keep up to {total.pretended_gb:.3g} GB")
    if total.uncounted:
        console.print(
            f"GPU-hours without {', '.join(total.uncounted)}: how many texts its tasks have is not known before"
        )
    console.print(escape(f"GPU-hours at most, {'; '.join(total.sources)}" if total.sources else UNKNOWN_HOURS))
    if rows[0].scale in ("smoke", "laptop"):
        minutes = costs.pretraining_flops / (CORE_FLOPS_PER_SECOND * available_cores()) / 60
        console.print(
            f"on the {available_cores()} cores of this machine pre-training takes about {max(1, round(minutes))} min, "
            "at the 50 GFLOP/s of a core that runs of this size reached; fine-tuning comes on top"
        )


# Why a planned run is not one that exists

MOST_LEAVES = 5
Leaves = frozenset[tuple[str, str]]
"""The leaves of a specification: dotted paths, and values as JSON."""


@dataclass(frozen=True)
class IdDiff:
    """An existing run that is nearly the planned one. `differs`: {path: (there, planned)}, empty where only the
    numerics version of a mechanism differs; `newer_numerics`: whether it does, or cannot be known."""

    kind: str
    planned: str
    existing: str
    state: str
    differs: Mapping[str, tuple[Any, Any]]
    newer_numerics: bool

    def sentence(self) -> str:
        """For people."""
        changes = [f"{path.removeprefix('recipe.')}: {old} → {new}" for path, (old, new) in self.differs.items()]
        changes += ["numerics version"] if self.newer_numerics else []
        return f"{self.planned} differs from {self.existing} ({self.state}) in {'; '.join(changes)}"


def id_diffs(rows: Sequence[PlanRow], layout: Layout) -> list[list[IdDiff]]:
    """For each row the nearest existing run of each of its missing ones; each run is named once.

    Runs on other weights are not compared, as the difference is that of the pre-training.
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


def _existing(parent: Path, kind: Kind) -> list[tuple[Path, str | None, Leaves]]:
    """The folders of one kind with what their runs are compared by, as far as this version knows the fields."""
    found = []
    for path in sorted(parent.glob("*/run.json")):
        with suppress(DamagedFile, KeyError, TypeError):
            specification = read_json(path)[RUN_FILE_WORDS[kind][1]]
            with suppress(ValueError):  # another version wrote it
                specification = plain(KINDS[kind].specification.read(specification))
            found.append((path.parent, *_compared(specification)))
    return found


def _compared(specification: Mapping[str, Any]) -> tuple[str | None, Leaves]:
    """The weights that a run starts from, None for pre-training, and the leaves of its specification; the points of a
    grid are one leaf, so that another grid is one difference."""
    found = leaves({key: value for key, value in specification.items() if key != "points"})
    if points := specification.get("points"):
        axes = {name: sorted({point[name] for point in points}) for name in points[0]}
        values_by_axis = (f"{name} {'/'.join(f'{value:g}' for value in values)}" for name, values in axes.items())
        found["points"] = f"{len(points)} points {', '.join(values_by_axis)}"
    weights = found.get("weights") or found.get("encoder.weights")
    return weights, frozenset((path, canonical(leaf)) for path, leaf in found.items())


def _id_diff(layout: Layout, planned: Run, folder: Path, there: Leaves, wanted: Leaves) -> IdDiff:
    old, new = dict(there - wanted), dict(wanted - there)
    differs = {
        path: (json.loads(old.get(path, "null")), json.loads(new.get(path, "null"))) for path in sorted(old | new)
    }
    try:
        run = read_run_file(folder).run
    except (DamagedFile, MissingData):
        return IdDiff(planned.title, planned.id, folder.name, "of another version", differs, newer_numerics=True)
    is_closed = any((folder / name).exists() for name in ("done.json", "selection.json"))
    state = "done" if is_closed else state_of(layout, run)
    newer = run.id != folder.name or not differs
    return IdDiff(planned.title, planned.id, folder.name, state, differs, newer)


# What came out


def print_outcome(layout: Layout, rows: Sequence[VariantRow], *, as_json: bool) -> None:
    """Held-out loss, best GLUE scores and those of embeddings of each variant and checkpoint, as far as they exist."""
    outcomes = [_outcome(layout, row, stage) for row in rows for stage in only(row.runs, PretrainingRun)]
    if as_json:
        print(json.dumps(outcomes, indent=1))
        return
    tasks = list(dict.fromkeys(task for outcome in outcomes for task in outcome["glue"]))
    columns = ("variant", "seed", "context", "held-out loss", *tasks)
    cells = [
        (
            outcome["variant"],
            outcome["seed"],
            outcome["context"],
            _number(outcome["heldout_loss"]),
            *(in_points(outcome["glue"].get(task)) for task in tasks),
        )
        for outcome in outcomes
    ]
    output().print(table("Best of grid on the validation sets, ×100", columns, cells))
    _print_embeddings(outcomes)
    _print_readouts(outcomes)


def _outcome(layout: Layout, row: VariantRow, stage: PretrainingRun) -> dict[str, Any]:
    """What became of a checkpoint; contrastive, mteb and readouts only where the plan has them."""
    studies = [study for study in only(row.runs, GlueStudy) if study.weights == stage.id]
    tuned = [run for run in only(row.runs, ContrastiveRun) if run.weights == stage.id]
    measured = [each for each in only(row.runs, EmbeddingEvaluation) if each.encoder.pretraining == stage.id]
    asked = [each for each in only(row.runs, ReadoutEvaluation) if each.weights == stage.id]
    return {
        "variant": row.name,
        "seed": row.seed,
        "context": stage.recipe.stages[-1].context,
        "pretraining": stage.id,
        "state": state_of(layout, stage),
        "heldout_loss": _result(layout, stage).get("heldout_loss"),
        "glue": {study.task: _result(layout, study).get("score") for study in studies},
        **({"contrastive": [_tuned(layout, run) for run in tuned]} if tuned else {}),
        **({"mteb": [_measured(layout, evaluation) for evaluation in measured]} if measured else {}),
        **({"readouts": [_read_out(layout, evaluation) for evaluation in asked]} if asked else {}),
    }


def _result(layout: Layout, run: Run) -> Mapping[str, Any]:
    """What the closing record of a run says; nothing where there is none yet, or it is damaged."""
    closing = run.closing(layout)
    return run.result(closing.read(closing.record)) if closing is not None and closing.is_done else {}


def _heldout(layout: Layout, run: ContrastiveRun) -> tuple[dict[str, float] | None, dict[str, float] | None]:
    """Loss and accuracy on held-out pairs by data set; None as long as there is no record."""
    part = run.closing(layout)
    scores = read_record(part.record)["scores"] if part.is_done else {}
    return scores.get("heldout_loss"), scores.get("heldout_accuracy")


def _mean(by_set: Mapping[str, float] | None) -> float | None:
    return statistics.fmean(by_set.values()) if by_set else None


def _tuned(layout: Layout, run: ContrastiveRun) -> dict[str, Any]:
    loss, accuracy = map(_mean, _heldout(layout, run))
    state = state_of(layout, run)
    return {"id": run.id, "seed": run.seed, "state": state, "heldout_loss": loss, "heldout_accuracy": accuracy}


def _measured(layout: Layout, evaluation: EmbeddingEvaluation) -> dict[str, Any]:
    return {
        "id": evaluation.id,
        "seed": evaluation.seed,
        "protocol": evaluation.encoder.protocol,
        "state": state_of(layout, evaluation),
        "means": means_of(task_entries(layout, evaluation), evaluation.tasks),
    }


def _read_out(layout: Layout, evaluation: ReadoutEvaluation) -> dict[str, Any]:
    """The value of each readout that has a record, by readout and corpus."""
    parts = zip(evaluation.readouts, evaluation.parts(layout), strict=True)
    records = {readout: read_record(part.record) for readout, part in parts if part.is_done}
    scores = {
        readout: {corpus: score["value"] for corpus, score in record["scores"].items()}
        for readout, record in records.items()
    }
    return {"id": evaluation.id, "state": state_of(layout, evaluation), "scores": scores}


def _print_readouts(outcomes: Sequence[Mapping[str, Any]]) -> None:
    asked = [(outcome, entry) for outcome in outcomes for entry in outcome.get("readouts", ())]
    if not asked:
        return
    measured = dict.fromkeys(
        (readout, corpus) for _, entry in asked for readout, own in entry["scores"].items() for corpus in own
    )
    columns = ("variant", "seed", "state", *(f"{readout} {corpus}" for readout, corpus in measured))
    rows = [
        (
            outcome["variant"],
            outcome["seed"],
            entry["state"],
            *(_number(entry["scores"].get(readout, {}).get(corpus)) for readout, corpus in measured),
        )
        for outcome, entry in asked
    ]
    title = "Readouts: losses in nats a token, words in bits a byte, cloze and pairs as accuracies"
    output().print(table(title, columns, rows))


def _print_embeddings(outcomes: Sequence[Mapping[str, Any]]) -> None:
    tuned = [(outcome, entry) for outcome in outcomes for entry in outcome.get("contrastive", ())]
    if tuned:
        columns = ("variant", "seed", "run", "state", "held-out loss", "partner found first, %")
        rows = [
            (
                outcome["variant"],
                entry["seed"],
                entry["id"],
                entry["state"],
                _number(entry["heldout_loss"]),
                in_points(entry["heldout_accuracy"]),
            )
            for outcome, entry in tuned
        ]
        output().print(table("Contrastive fine-tuning, on held-out pairs", columns, rows))
    measured = [(outcome, entry) for outcome in outcomes for entry in outcome.get("mteb", ())]
    if measured:
        names = list(dict.fromkeys(mean["category"] for _, entry in measured for mean in entry["means"]))
        suite_rows = []
        for outcome, entry in measured:
            for suite in dict.fromkeys(mean["suite"] for mean in entry["means"]):
                means = {mean["category"]: mean for mean in entry["means"] if mean["suite"] == suite}
                shown = {
                    name: f"{in_points(mean['score']) or '—'} ({mean['tasks']} of {mean['expected']})"
                    for name, mean in means.items()
                }
                cells = (outcome["variant"], entry["seed"], entry["protocol"], suite, entry["state"])
                suite_rows.append((*cells, *(shown.get(name) for name in names)))
        all_columns = ("variant", "seed", "protocol", "suite", "state", *(name or "all tasks" for name in names))
        output().print(table("Tasks of embeddings: means of main scores, ×100 (tasks)", all_columns, suite_rows))


def print_model_outcome(layout: Layout, row: ModelRow, *, as_json: bool) -> None:
    """Each contrastive run of an external model with its state and, when it is done, its scores on held-out pairs."""
    columns = ("model", "seed", "run", "state", "heldout_loss", "heldout_accuracy")
    entries: list[dict[str, Any]] = []
    for run in only(row.runs, ContrastiveRun):
        loss, accuracy = _heldout(layout, run)
        entries.append(
            {
                "model": row.model.name,
                "weights": row.model.id,
                "seed": run.seed,
                "run": run.id,
                "state": state_of(layout, run),
                "folder": str(layout.root / run.folder),
                "heldout_loss": loss,
                "heldout_accuracy": accuracy,
            }
        )
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    cells = [
        [*(entry[name] for name in columns[:4]), *(_number(_mean(entry[name])) for name in columns[4:])]
        for entry in entries
    ]
    output().print(table(f"Contrastive fine-tuning of {row.heading}", columns, cells))


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:.3f}"


def in_points(score: float | None) -> str | None:
    """A score as tables print it, ×100."""
    return None if score is None else f"{100 * score:.1f}"


def part_entry(layout: Layout, part: Part) -> dict[str, Any]:
    """State, score and error of a part: a trial or a task. Scores are None where there is no record yet."""
    if part.is_done:
        record = read_record(part.record)
        return {"state": record["state"], "score": record["scores"].get("score"), "error": None}
    error = read_json(part.error)["error"] if part.error.exists() else None
    state = "running" if is_claimed(layout.claims(part.id)) else "failed" if error else "missing"
    return {"state": state, "score": None, "error": error}


# Tasks of embeddings


def task_entries(layout: Layout, evaluation: EmbeddingEvaluation) -> list[dict[str, Any]]:
    """One entry a task; scores are −1..1, None where there is no record yet."""
    encoder, entries = evaluation.encoder, []
    for task, part in zip(evaluation.tasks, evaluation.parts(layout), strict=True):
        texts = read_record(part.record)["texts"] if part.is_done else {}
        entries.append(
            {
                "weights": encoder.weights,
                "protocol": encoder.protocol,
                "seed": encoder.seed,
                "task": task.name,
                "category": task.category,
                "suite": task.suite,
                "metric": task.metric,
                "id": part.id,
                **{name: texts.get(name) for name in ("texts", "empty", "cut")},
                **part_entry(layout, part),
            }
        )
    return entries


def means_of(
    entries: Sequence[dict[str, Any]], available: Sequence[EmbeddingTask | TaskOnData]
) -> list[dict[str, Any]]:
    """The flat mean of main scores, −1..1, of each category and of each suite of one evaluation; a task counts in all
    of its suites.

    `tasks` of the `expected` tasks are in it; `available` are all tasks of the suites. `category` None stands for the
    whole suite, whose mean is None where a task is missing.
    """
    means = []
    for suite in dict.fromkeys(suite for task in available for suite in suites_of(task.name, task.suite)):
        scored = [
            entry
            for entry in entries
            if suite in suites_of(entry["task"], entry["suite"]) and entry["score"] is not None
        ]
        expected = expected_tasks(suite, available)
        by_category: list[tuple[Category | None, int]] = [
            (name, expected[name]) for name in CATEGORIES if name in expected
        ]
        for category, count in [*by_category, (None, sum(expected.values()))]:
            scores = [entry["score"] for entry in scored if category in (None, entry["category"])]
            is_known = bool(scores) and (category is not None or len(scores) == count)
            mean = statistics.fmean(scores) if is_known else None
            means.append({"suite": suite, "category": category, "score": mean, "tasks": len(scores), "expected": count})
    return means


def expected_tasks(suite: str, available: Iterable[EmbeddingTask | TaskOnData]) -> dict[Category, int]:
    """How many tasks each category of a suite has: mteb's benchmarks as published, any other as many as there are."""
    return count_by_category(BENCHMARKS.get(suite) or (task for task in available if task.suite == suite))
