"""Carry a plan out on this machine: write what is to be run, start workers, show how far they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ablations.ladder import variants
from ablations.needs import require_data
from ablations.pieces import NamedRun
from ablations.plan import Row, scaled_variant, sharing, vocabulary_of
from ablations.scales import Scale, Vocabulary
from ablations.variant import Variant
from neobert.console import Watch, duration, logs
from neobert.data.sources import Source
from neobert.errors import EXIT_RUN_FAILED, DamagedFile
from neobert.identity import difference
from neobert.model.size import parameter_count
from neobert.processes import work_here, worker_environment
from neobert.runs.index import errors_of, last_step, state_of, task_files, trial_files
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    Execution,
    GlueStudy,
    PretrainingRun,
    Run,
    read_run_file,
    run_folder,
    write_run_file,
)
from neobert.runs.specifications import Source as SourceSpecification


@dataclass(frozen=True)
class PlannedRows:
    """The rows of a plan as work."""

    rows: Sequence[Row]

    def unfinished(self, layout: Layout) -> list[Run]:
        """Every run once that is not done, costly pre-training first, so that workers end together."""
        runs: dict[str, Run] = {unit.run.id: unit.run for row in self.rows for unit in row.units}
        pending = [run for run in runs.values() if state_of(layout, run) != "done"]
        return sorted(pending, key=lambda run: -_cost(run) if isinstance(run, PretrainingRun) else 0.0)

    def named_runs(self) -> list[NamedRun]:
        """The runs under the names of their variants."""
        return [(row.variant.name, unit.run) for row in self.rows for unit in row.units]

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        """Write run.json for every unit of the rows: who, from what, which commit, before anything starts.

        Raises:
            MissingData: the data is on the hub alone.
        """
        require_data(self.rows, source)
        for row in self.rows:
            names = _names(row, vocabulary_of(source))
            labels = {"variants": names, "scale": row.scale, "data": source.label, "unavailable_tasks": row.skipped}
            origin = _origin(variants().get(names[0], row.variant), row.scale, vocabulary_of(source))
            for unit in row.units:
                told = labels | origin if isinstance(unit.run, PretrainingRun) else labels
                if isinstance(unit.run, ContrastiveRun | EmbeddingEvaluation):
                    told = labels | {"variants": _names(row, vocabulary_of(source), unit.run)}
                write_run_file(layout, unit.run, specification, execution, told)


def _names(row: Row, vocabulary: Vocabulary, run: Run | None = None) -> list[str]:
    """The variants that share a row's pre-training, or a run of it, the row's own among them."""
    names = sharing(row.recipe, row.scale, vocabulary, run)
    return names if row.variant.name in names else [*names, row.variant.name]


def _cost(run: PretrainingRun) -> float:
    recipe = run.recipe
    return float(parameter_count(recipe.model, run.context).body * recipe.stages[-1].tokens)


def _origin(variant: Variant, scale: Scale, vocabulary: Vocabulary) -> dict[str, Any]:
    """The parent of a variant and what its pre-training changes, for whoever reads the run without the ladder."""
    recipe, parent = scaled_variant(variant, scale, vocabulary)
    if variant.parent is None or parent is None:
        return {"parent": None, "delta": {}}
    changes = difference(parent.pretraining, recipe.pretraining)
    return {"parent": variant.parent.name, "delta": {path: list(change) for path, change in changes.items()}}


def carry_out(
    layout: Layout,
    runs: Sequence[Run],
    *,
    workers: int,
    threads: int,
    gpus: Sequence[str] = (),
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Work on runs with processes of this machine until all are done or nothing more can be; the exit code.

    The workers share the `gpus` evenly, so that no two of them see the same. `flags` and `environment` are further ones
    of their command.
    """
    common = worker_environment(threads) | dict(environment or {})
    each = len(gpus) // workers
    shares = [",".join(gpus[index * each : (index + 1) * each]) for index in range(workers)]
    references = [str(run_folder(layout, run).relative_to(layout.root)) for run in runs]
    watch = Watch(lambda: _describe(layout, runs), ("run", "done", "loss or score", "tokens/s", "left"))
    with watch:
        return work_here(
            layout,
            [*flags, *references],
            environments=[common | ({"CUDA_VISIBLE_DEVICES": share} if gpus else {}) for share in shares],
            watch=watch,
            interval_seconds=1.0,
        )


def report_failures(layout: Layout, runs: Sequence[Run]) -> int:
    """One line for each failed unit, with its cause; the exit code that all of them share, else 1."""
    errors = [error for run in runs for error in errors_of(layout, run)]
    for error in errors:
        logs().print(f"failed: {error['name']}: {error['error']}", markup=False)
    codes = {int(error["exit_code"]) for error in errors}
    return codes.pop() if len(codes) == 1 else EXIT_RUN_FAILED


def _describe(layout: Layout, runs: Sequence[Run]) -> tuple[str, list[list[str]]]:
    states = [state_of(layout, run) for run in runs]
    running = [run for run, state in zip(runs, states, strict=True) if state == "running"]
    summary = (
        f"{states.count('done')} of {len(runs)} runs done, {len(running)} running, {states.count('failed')} failed"
    )
    return summary, [_progress_row(layout, run) for run in running]


def _progress_row(layout: Layout, run: Run) -> list[str]:
    name = _shown_name(run_folder(layout, run), run)
    if isinstance(run, GlueStudy):
        files = trial_files(layout, run)
        scores = [_score_of(file.record) for file in files if file.is_recorded]
        return [name, f"{len(scores)}/{len(files)} points", _best_of(scores), "", ""]
    if isinstance(run, EmbeddingEvaluation):
        recorded = [file.is_recorded for file in task_files(layout, run)]
        return [name, f"{sum(recorded)}/{len(recorded)} tasks", "", "", ""]
    steps = run.protocol.steps if isinstance(run, ContrastiveRun) else run.recipe.stages[-1].steps
    line = last_step(layout, run)
    if line is None:
        return [name, f"0/{steps}", "", "", ""]
    left_seconds = (steps - line["step"]) * line["seconds"]
    rate = line["real_tokens"] / line["seconds"]
    return [
        name,
        f"{line['step']}/{steps}",
        f"loss {line['loss']:.3f}",
        f"{rate:,.0f}",
        duration(left_seconds),
    ]


@cache
def _owner(folder: Path) -> str:
    """The first variant, or the model, for which the run of a folder was planned."""
    labels = read_run_file(folder).labels if (folder / "run.json").exists() else {}
    return str(labels.get("model") or next(iter(labels.get("variants", ())), folder.name))


def _shown_name(folder: Path, run: Run) -> str:
    """Whose run it is, and what of it is done."""
    owner = _owner(folder)
    if isinstance(run, PretrainingRun):
        return f"{owner} pre-training, stage {run.stage + 1}, seed {run.recipe.seed}"
    if isinstance(run, GlueStudy):
        return f"{owner} {run.task}, seed {run.seed}"
    if isinstance(run, ContrastiveRun):
        return f"{owner} contrastive, seed {run.protocol.seed}"
    return f"{owner} mteb, seed {run.encoder.seed}"


@cache
def _score_of(record: Path) -> float | None:
    """The score of a published record, which never changes; None where it is undefined or cannot be read."""
    try:
        score: float | None = read_record(record)["scores"].get("score")
    except DamagedFile:
        return None
    return score


def _best_of(scores: Sequence[float | None]) -> str:
    """The best score so far, ×100 as everywhere that people read scores."""
    known = [score for score in scores if score is not None]
    return f"best {100 * max(known):.1f}" if known else ""
