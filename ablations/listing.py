"""What run.py prints: the ladder, and what came out."""

import json
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape

from ablations.costs import Cost, Costs, Machine
from ablations.plan import PlannedUnit, Row
from neobert.console import output, quantity, table
from neobert.data.mteb_tasks import CATEGORIES, EmbeddingTask
from neobert.data.sources import Source
from neobert.errors import DamagedFile, MissingData
from neobert.files import read_json
from neobert.identity import canonical, leaves, plain
from neobert.processes import available_cores
from neobert.runs.claims import is_claimed
from neobert.runs.index import State, TaskFiles, read_selection, selection_path, state_of, task_files
from neobert.runs.layout import Layout
from neobert.runs.records import ENGLISH_SUITE, TASKS_IN_SUITE, Category, is_published, read_record
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    GlueStudy,
    PretrainingRun,
    Run,
    TaskOnData,
    read_run_file,
    run_folder,
)

TASK_COLUMNS = ("protocol", "seed", "task", "category", "suite", "state", "score", "texts", "empty", "cut")
MEAN_COLUMNS = ("protocol", "seed", "suite", "category", "mean", "tasks")
POINTS = 100


@dataclass(frozen=True)
class Mean:
    """A flat mean of main scores, −1..1, over `tasks` of `expected`; `category` None stands for the whole suite, whose
    mean is None where a task is missing."""

    suite: str
    category: Category | None
    score: float | None
    tasks: int
    expected: int

    def summary(self) -> dict[str, Any]:
        """The entry of `--json`."""
        return dict(vars(self))


def task_entries(layout: Layout, evaluation: EmbeddingEvaluation) -> list[dict[str, Any]]:
    """One entry a task; scores are −1..1, None where there is no record yet."""
    encoder = evaluation.encoder
    common = {"weights": encoder.weights, "protocol": encoder.protocol, "seed": encoder.seed}
    return [common | _entry(layout, files) for files in task_files(layout, evaluation)]


def _entry(layout: Layout, files: TaskFiles) -> dict[str, Any]:
    task = files.run.task
    named = {"task": task.name, "category": task.category, "suite": task.suite, "metric": task.metric, "id": files.id}
    if files.is_recorded:
        record = read_record(files.record)
        texts = {name: record["texts"][name] for name in ("texts", "empty", "cut")}
        return {**named, "state": record["state"], "score": record["scores"].get("score"), **texts, "error": None}
    error = read_json(files.error)["error"] if files.error.exists() else None
    state = "running" if is_claimed(layout.claims(files.id)) else "failed" if error else "missing"
    return {**named, "state": state, "score": None, "texts": None, "empty": None, "cut": None, "error": error}


def means_of(entries: Sequence[dict[str, Any]], available: Sequence[EmbeddingTask | TaskOnData]) -> list[Mean]:
    """The mean of each category and of each suite of one evaluation; `available` are all tasks of the suites."""
    means = []
    for suite in dict.fromkeys(task.suite for task in available):
        own = [entry for entry in entries if entry["suite"] == suite]
        expected = expected_tasks(suite, available)
        for category in CATEGORIES:
            if expected.get(category):
                means.append(_mean(suite, category, _scores(own, category), expected[category]))
        whole, scores = sum(expected.values()), _scores(own, None)
        mean = _mean(suite, None, scores, whole)
        means.append(mean if mean.tasks == whole else Mean(suite, None, None, mean.tasks, whole))
    return means


def expected_tasks(suite: str, available: Iterable[EmbeddingTask | TaskOnData]) -> dict[Category, int]:
    """How many tasks each category of a suite has: MTEB(eng, v1) as published, any other as many as there are."""
    if suite == ENGLISH_SUITE:
        return dict(TASKS_IN_SUITE)
    found = [task.category for task in available if task.suite == suite]
    return {category: found.count(category) for category in dict.fromkeys(found)}


def _scores(entries: Iterable[dict[str, Any]], category: Category | None) -> list[float]:
    return [
        entry["score"]
        for entry in entries
        if entry["score"] is not None and (category is None or entry["category"] == category)
    ]


def _mean(suite: str, category: Category | None, scores: Sequence[float], expected: int) -> Mean:
    return Mean(suite, category, statistics.fmean(scores) if scores else None, len(scores), expected)


def print_tasks(title: str, entries: Sequence[dict[str, Any]]) -> None:
    """A table of tasks, main scores in points."""
    shown = [{**entry, "score": in_points(entry["score"])} for entry in entries]
    output().print(table(title, TASK_COLUMNS, [[entry[column] for column in TASK_COLUMNS] for entry in shown]))


def print_means(cells: Sequence[tuple[str, int, Mean]]) -> None:
    """A table of means with their protocols and seeds, in points."""
    rows = [
        (protocol, seed, mean.suite, mean.category or "all tasks", in_points(mean.score), counted(mean))
        for protocol, seed, mean in cells
    ]
    output().print(table("Means of main scores, ×100", MEAN_COLUMNS, rows))


def counted(mean: Mean) -> str:
    """How many tasks a mean is of."""
    return f"{mean.tasks} of {mean.expected}"


def in_points(score: float | None) -> str | None:
    """A score as tables print it."""
    return None if score is None else f"{score * POINTS:.1f}"


TUNING_COLUMNS = ("variant", "seed", "run", "state", "held-out loss", "partner found first, %")
SUITE_COLUMNS = ("variant", "seed", "protocol", "suite", "state")


def embedding_outcome(layout: Layout, row: Row, run: PretrainingRun) -> dict[str, list[dict[str, Any]]]:
    """What became of a checkpoint's vectors; empty where the plan has nothing of the kind."""
    runs = [unit.run for unit in row.units]
    tuned = [each for each in runs if isinstance(each, ContrastiveRun) and each.weights == run.id]
    measured = [each for each in runs if isinstance(each, EmbeddingEvaluation) and each.encoder.pretraining == run.id]
    return {
        **({"contrastive": [_tuned(layout, each) for each in tuned]} if tuned else {}),
        **({"mteb": [_measured(layout, each) for each in measured]} if measured else {}),
    }


def _tuned(layout: Layout, run: ContrastiveRun) -> dict[str, Any]:
    """Held-out loss and accuracy are means over data sets of pairs."""
    path = layout.contrastive(run.id) / "done.json"
    scores = read_record(path)["scores"] if is_published(path) else {}
    losses, accuracies = (scores.get(name, {}).values() for name in ("heldout_loss", "heldout_accuracy"))
    return {
        "id": run.id,
        "seed": run.protocol.seed,
        "state": state_of(layout, run),
        "heldout_loss": statistics.fmean(losses) if losses else None,
        "heldout_accuracy": statistics.fmean(accuracies) if accuracies else None,
    }


def _measured(layout: Layout, evaluation: EmbeddingEvaluation) -> dict[str, Any]:
    means = means_of(task_entries(layout, evaluation), evaluation.tasks)
    return {
        "id": evaluation.id,
        "seed": evaluation.encoder.seed,
        "protocol": evaluation.encoder.protocol,
        "state": state_of(layout, evaluation),
        "means": [mean.summary() for mean in means],
    }


def print_embeddings(outcomes: Sequence[Mapping[str, Any]]) -> None:
    """A table of contrastive fine-tuning and one of means over tasks, where there are any."""
    tuned = [(outcome, entry) for outcome in outcomes for entry in outcome.get("contrastive", ())]
    if tuned:
        rows = [_tuning_cells(outcome, entry) for outcome, entry in tuned]
        output().print(table("Contrastive fine-tuning, on held-out pairs", TUNING_COLUMNS, rows))
    measured = [(outcome, entry) for outcome in outcomes for entry in outcome.get("mteb", ())]
    if measured:
        names = list(dict.fromkeys(mean["category"] for _, entry in measured for mean in entry["means"]))
        columns = (*SUITE_COLUMNS, *(name or "all tasks" for name in names))
        rows = [cells for outcome, entry in measured for cells in _suite_cells(outcome, entry, names)]
        output().print(table("Tasks of embeddings: means of main scores, ×100 (tasks)", columns, rows))


def _tuning_cells(outcome: Mapping[str, Any], entry: Mapping[str, Any]) -> tuple[Any, ...]:
    loss = entry["heldout_loss"]
    cells = (entry["id"], entry["state"], None if loss is None else f"{loss:.3f}", in_points(entry["heldout_accuracy"]))
    return outcome["variant"], entry["seed"], *cells


def _suite_cells(
    outcome: Mapping[str, Any], entry: Mapping[str, Any], names: Sequence[str | None]
) -> list[tuple[Any, ...]]:
    """A row of cells for each suite of an evaluation."""
    rows = []
    for suite in dict.fromkeys(mean["suite"] for mean in entry["means"]):
        means = {mean["category"]: mean for mean in entry["means"] if mean["suite"] == suite}
        shown = [
            f"{in_points(mean['score']) or '—'} ({mean['tasks']} of {mean['expected']})" for mean in means.values()
        ]
        by_name = dict(zip(means, shown, strict=True))
        cells = (outcome["variant"], entry["seed"], entry["protocol"], suite, entry["state"])
        rows.append((*cells, *(by_name.get(name) for name in names)))
    return rows


WORST_FIRST: tuple[State, ...] = ("failed", "running", "waiting", "missing", "done")


def state_of_units(units: Sequence[PlannedUnit]) -> State:
    """One word for several units: done only when all are, failed when any is."""
    states = {unit.state for unit in units}
    if "done" in states and len(states) > 1 and "failed" not in states:
        return "running" if "running" in states else "waiting"
    return next((state for state in WORST_FIRST if state in states), "missing")


def change_text(path: str, change: Sequence[Any]) -> str:
    """A changed leaf as people read it; what a new stage brings has no value before."""
    name = path.removeprefix("pretraining.")
    before, after = change
    return f"{name} = {after}" if before is None else f"{name}: {before} → {after}"


def print_ladder(rows: Sequence[Row], *, as_json: bool) -> None:
    """The ladder with lineage, source and state."""
    entries = [_ladder_entry(row) for row in rows]
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    cells = [
        (
            entry["name"] + _standing(entry),
            entry["parent"],
            escape(entry["title"]),
            escape("\n".join(change_text(path, change) for path, change in entry["delta"].items())),
            escape(entry["source"]),
            f"{entry['glue_grid']} points",
            entry["state"],
        )
        for entry in entries
    ]
    columns = ("variant", "parent", "title", "delta", "source", "GLUE grid", "state")
    output().print(table(f"The ladder at {rows[0].scale} scale", columns, cells))


def _standing(entry: Mapping[str, Any]) -> str:
    if entry["kept"]:
        return ""
    return " (another reading)" if "@" in entry["name"] else " (discarded)"


def _ladder_entry(row: Row) -> dict[str, Any]:
    variant = row.variant
    trained = [unit for unit in row.units if isinstance(unit.run, PretrainingRun)]
    return {
        "name": variant.name,
        "parent": variant.parent.name if variant.parent else None,
        "kept": variant.kept,
        "title": row.title,
        "source": variant.source,
        "delta": {path: list(change) for path, change in row.delta.items()},
        "pretraining_id": trained[-1].run.id,
        "stages": len(trained),
        "glue_grid": len(row.recipe.grid.points()),
        "state": state_of_units(row.units),
    }


def print_outcome(layout: Layout, rows: Sequence[Row], *, as_json: bool) -> None:
    """Held-out loss, best GLUE scores and those of embeddings of each variant and checkpoint, as far as they exist."""
    outcomes = [outcome for row in rows for outcome in _outcomes(layout, row)]
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
            _number(outcome["heldout_loss"], 3),
            *(_number(outcome["glue"].get(task), 1, 100) for task in tasks),
        )
        for outcome in outcomes
    ]
    output().print(table("Best of grid on the validation sets, ×100", columns, cells))
    print_embeddings(outcomes)


def _number(value: float | None, digits: int, factor: float = 1) -> str | None:
    return None if value is None else f"{value * factor:.{digits}f}"


def _outcomes(layout: Layout, row: Row) -> list[dict[str, Any]]:
    outcomes = []
    for unit in row.units:
        if not isinstance(unit.run, PretrainingRun):
            continue
        studies = [
            other.run for other in row.units if isinstance(other.run, GlueStudy) and other.run.weights == unit.run.id
        ]
        outcomes.append(
            {
                "variant": row.variant.name,
                "seed": row.seed,
                "context": unit.run.recipe.stages[-1].context,
                "pretraining": unit.run.id,
                "state": state_of(layout, unit.run),
                "heldout_loss": _heldout_loss(layout, unit.run),
                "glue": {study.task: _best_score(layout, study) for study in studies if study.weights == unit.run.id},
                **embedding_outcome(layout, row, unit.run),
            }
        )
    return outcomes


def _heldout_loss(layout: Layout, run: PretrainingRun) -> float | None:
    path = run_folder(layout, run) / "done.json"
    if not is_published(path):
        return None
    losses: dict[str, float] = read_record(path)["scores"]["heldout_loss"]
    return losses[run.recipe.data.corpus]


def _best_score(layout: Layout, study: GlueStudy) -> float | None:
    path = selection_path(layout, study)
    try:
        score: float | None = read_selection(path)["score"] if path.exists() else None
    except DamagedFile:
        return None
    return score


MOST_LEAVES = 5
NUMERICS = "numerics version"
PARTS: Mapping[str, type[Run]] = {
    "pretraining": PretrainingRun,
    "study": GlueStudy,
    "contrastive": ContrastiveRun,
    "mteb": EmbeddingEvaluation,
}
"""The keys of run.json under which a specification may lie, and what it is."""

Items = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class NearMiss:
    """A run on disk that is nearly the planned one. `differs`: {path: (there, planned)}, empty where only the numerics
    version of a mechanism differs; `newer_numerics`: whether it does, or nobody can say."""

    kind: str
    planned: str
    existing: str
    state: str
    differs: Mapping[str, tuple[Any, Any]]
    newer_numerics: bool

    def summary(self) -> dict[str, Any]:
        """The entry of `--dry-run --json`."""
        return {**vars(self), "differs": {path: list(change) for path, change in self.differs.items()}}

    def sentence(self) -> str:
        """For people."""
        changes = [f"{path.removeprefix('recipe.')}: {old} → {new}" for path, (old, new) in self.differs.items()]
        if self.newer_numerics:
            changes.append(NUMERICS)
        return f"{self.planned} differs from {self.existing} ({self.state}) in {'; '.join(changes)}"


@dataclass(frozen=True)
class _Existing:
    folder: Path
    specification: Mapping[str, Any]
    items: Items


class NearMisses:
    """The runs that are there, read once when somebody first asks."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self._read: dict[str, list[_Existing]] = {}

    def nearest(self, kind: str, run: Run, planned: Iterable[str]) -> NearMiss | None:
        """The run with the fewest differing leaves, at most `MOST_LEAVES`; those of the plan itself are left out.

        Studies and evaluations are compared on the same weights: that these differ is told of the pre-training.
        """
        wanted, left_out = _items(plain(run)), set(planned) | {run.id}
        best: tuple[int, _Existing] | None = None
        for existing in self._existing(run):
            if existing.folder.name in left_out:
                continue
            if _weights(existing.specification) != _weights(plain(run)):
                continue
            count = len({path for path, _ in wanted ^ existing.items})
            if count <= MOST_LEAVES and (best is None or count < best[0]):
                best = count, existing
        return None if best is None else self._described(kind, run, best[1])

    def _existing(self, run: Run) -> Sequence[_Existing]:
        pattern = str(run_folder(Layout(Path()), run).with_name("*") / "run.json")
        if pattern not in self._read:
            self._read[pattern] = list(_read(sorted(self.layout.root.glob(pattern))))
        return self._read[pattern]

    def _described(self, kind: str, run: Run, existing: _Existing) -> NearMiss:
        there, planned = _leaves(existing.specification), _leaves(plain(run))
        paths = sorted(path for path in there.keys() | planned.keys() if there.get(path) != planned.get(path))
        differs = {path: (there.get(path), planned.get(path)) for path in paths}
        state, same_numerics = self._state(existing.folder)
        return NearMiss(kind, run.id, existing.folder.name, state, differs, not same_numerics or not differs)

    def _state(self, folder: Path) -> tuple[str, bool]:
        """The state of a run, and whether its name is what this version would give it."""
        try:
            file = read_run_file(folder)
        except (DamagedFile, MissingData):
            return "of another version", False
        run = file.run
        return ("done" if _closed(folder) else state_of(self.layout, run)), run.id == folder.name


def _closed(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("done.json", "selection.json"))


def _read(paths: Iterable[Path]) -> Iterable[_Existing]:
    for path in paths:
        try:
            content = read_json(path)
        except DamagedFile:
            continue
        part = next((part for part in PARTS if content.get(part)), None)
        if part is not None:
            specification = _specification(content[part], PARTS[part])
            yield _Existing(path.parent, specification, _items(specification))


def _specification(content: Mapping[str, Any], part: type[Run]) -> Mapping[str, Any]:
    """A specification with the fields that this version knows; as it stands where this version cannot read it."""
    try:
        known: Mapping[str, Any] = plain(part.read(content))
    except ValueError:
        return content
    return known


def _weights(specification: Mapping[str, Any]) -> str | None:
    """The weights that a run starts from; None for pre-training."""
    return specification.get("weights") or specification.get("encoder", {}).get("weights")


def _leaves(specification: Mapping[str, Any]) -> dict[str, Any]:
    """The leaves of a specification; the points of a grid are one, so that another grid is one difference."""
    points = specification.get("points")
    whole = {} if points is None else {"points": f"{len(points)} points {_axes(points)}"}
    return leaves({key: value for key, value in specification.items() if key != "points"}) | whole


def _axes(points: Sequence[Mapping[str, Any]]) -> str:
    """The values on each axis of a grid."""
    axes = {name: sorted({point[name] for point in points}) for name in (points[0] if points else ())}
    return ", ".join(f"{name} {'/'.join(f'{value:g}' for value in values)}" for name, values in axes.items())


def _items(specification: Mapping[str, Any]) -> Items:
    return frozenset((path, canonical(leaf)) for path, leaf in _leaves(specification).items())


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
