"""Carry a plan out on this machine: write what is to be run, start workers, show how far they are."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from ablations.checks import require_data
from ablations.ladder import variants
from ablations.plan import NamedRun, Row, sharing
from ablations.scales import (
    Scale,
    Vocabulary,
    groups_here,
    scaled_variant,
    sharing_cores,
    synthetic_documents,
    vocabulary_of,
    workers_here,
)
from ablations.submit import Dispatch, execution_on, pieces_of, print_submissions, profile_of
from ablations.variant import Variant
from neobert import processes
from neobert.console import Watch, duration, logs
from neobert.data.preparation import open_specified, specify
from neobert.data.sources import Source
from neobert.errors import EXIT_DONE, EXIT_REQUEUE, EXIT_RUN_FAILED, DamagedFile
from neobert.identity import difference
from neobert.model.size import parameter_count
from neobert.processes import start_child, visible_gpus, wait_for, worker_environment
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
        return processes.work_here(
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


@dataclass(frozen=True)
class Workplace:
    """A command's flags, its folder of runs, and the data that it opened, with what run files say of them. `execution`
    is how the scale executes on this machine."""

    options: argparse.Namespace
    layout: Layout
    specification: SourceSpecification
    source: Source
    execution: Execution


class Work(Protocol):
    """A plan that can be carried out."""

    def unfinished(self, layout: Layout) -> Sequence[Run]:
        """What is left to do, in the order in which it is begun."""

    def named_runs(self) -> Sequence[NamedRun]:
        """All runs with words for the names of jobs."""

    def write(self, layout: Layout, source: Source, specification: SourceSpecification, execution: Execution) -> None:
        """Write the run.json of every run, before anything starts."""


def open_workplace(options: argparse.Namespace, execution: Execution, unseen: Sequence[str] = ()) -> Workplace:
    """The folder and the data that the flags name; `unseen` are the places of `--without-texts-of`.

    Raises:
        MissingData, ValueError: as `open_source`.
    """
    layout = Layout(options.runs.resolve())
    options.data = _chosen_data(options)
    specification = specify(options.data, synthetic_documents(options.scale), unseen)
    return Workplace(options, layout, specification, open_specified(specification), execution)


def _chosen_data(options: argparse.Namespace) -> str:
    """The word or folder of `--data`; synthetic text where none was given, and never so at the paper's scale."""
    if options.data is not None:
        if not options.data.strip():
            raise ValueError("--data is empty: give synthetic, hub or a folder")
        return str(options.data)
    only_shows = options.dry_run or any(vars(options).get(flag) for flag in ("list", "cancel"))
    if options.scale == "paper" and not only_shows:
        raise ValueError(
            "--scale paper needs --data, for synthetic text would be no reproduction: bring the paper's with `python "
            "ablations/prefetch.py --variant NAME --scale paper --data-dir DIR`, then run this with --data DIR (or say "
            "--data synthetic)"
        )
    return "synthetic"


def work_here(
    workplace: Workplace,
    work: Work,
    runs: Sequence[Run],
    *,
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> int:
    """Work on the runs that are left with processes of this machine; the exit code.

    What trains in several processes comes first, so that thereafter each worker has a GPU of its own.
    """
    if not runs:
        return EXIT_DONE
    gpus = visible_gpus()
    execution = execution_on(profile_of(workplace.options), workplace.execution)
    workers = workers_here(workplace.options.workers, execution, len(gpus))
    groups = groups_here(workers, execution, len(gpus))
    execution = sharing_cores(execution, max(workers, groups * execution.processes))
    work.write(workplace.layout, workplace.source, workplace.specification, execution)
    together = [run for run in runs if execution.processes > 1 and isinstance(run, PretrainingRun | ContrastiveRun)]
    alone = [run for run in runs if run not in together]
    if together and not gpus:
        logs().print(f"no GPU here: {execution.processes} processes train together on its cores", markup=False)
    codes = [EXIT_DONE]
    for part, count, size in ((together, groups, execution.processes), (alone, workers, 1)):
        if part and codes[-1] != EXIT_REQUEUE:
            code = carry_out(
                workplace.layout,
                part,
                workers=count,
                threads=execution.threads,
                gpus=gpus[: count * size],
                flags=flags,
                environment=environment,
            )
            codes.append(code)
    return next((code for code in codes if code != EXIT_DONE), EXIT_DONE)


def send(workplace: Workplace, work: Work, dispatch: Dispatch, execution: Execution) -> int:
    """Send what is missing to SLURM, to execute so there, and return at once; the exit code."""
    work.write(workplace.layout, workplace.source, workplace.specification, execution)
    pieces = pieces_of(workplace.layout, work.named_runs(), dispatch.profile)
    print_submissions(dispatch.send(pieces) if pieces else [], as_json=workplace.options.json)
    return EXIT_DONE


COMMAND = "neobert.evaluation.pseudo_perplexity"
STDERR = 2


def pretraining_ids(rows: Sequence[Row]) -> list[str]:
    """The stages of pre-training of a plan, each once."""
    return list(
        dict.fromkeys(unit.run.id for row in rows for unit in row.units if isinstance(unit.run, PretrainingRun))
    )


def perplexity_flags(options: argparse.Namespace) -> list[str]:
    """The same as flags of the command."""
    positions = "all" if options.perplexity_sample is None else str(options.perplexity_sample)
    text = options.perplexity_text
    return ["--sample", positions, *(["--text", str(text.resolve())] if text is not None else [])]


def measure_perplexity(
    layout: Layout, run_ids: Sequence[str], *, threads: int, as_json: bool, flags: Sequence[str] = ()
) -> int:
    """Measure every finished stage with the command's own defaults but `flags`, one after the other; the worst exit
    code.

    With `as_json` its tables go to stderr, so that stdout stays what it is.
    """
    command = [sys.executable, "-m", COMMAND, "--runs", str(layout.root), *flags, "--run"]
    where = STDERR if as_json else None
    codes = [
        code
        for run_id in run_ids
        for code in wait_for([start_child([*command, run_id], worker_environment(threads), stdout=where)])
    ]
    return max(codes, default=0)
