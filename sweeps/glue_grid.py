# PYTHON_ARGCOMPLETE_OK
"""Run the GLUE grid of a pre-trained variant: every grid point once, MNLI before the tasks that start from it.

python sweeps/glue_grid.py --task cola                       on the newest finished run
python sweeps/glue_grid.py --task all --variant M5 --workers 2
python sweeps/glue_grid.py --task rte --variant M9 --grid extended --seed 0 1 2
python sweeps/glue_grid.py --task all --model DIR --scale paper    any encoder that AutoModel loads, same protocol
optuna-dashboard runs/optuna.journal                         to watch the studies while they run
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.ladders import on_ladder
from neobert.command_line import guarded, parser_from
from neobert.errors import DamagedFile, MissingData
from sweeps.encoder import add_encoder_flags, measure, variant_row

if TYPE_CHECKING:
    from ablations.launch.execute import Workspace
    from ablations.plan import PlanRow
    from neobert.kinds.glue import GlueStudy

POINT_COLUMNS = ("task", "context", "seed", "batch_size", "learning_rate", "weight_decay", "trial", "state", "score")
SCORE_COLUMNS = frozenset({"score", "mean", "sd", "nested"})
BEST_COLUMNS = ("task", "context", "batch_size", "learning_rate", "weight_decay", "seeds", "mean", "sd", "nested")


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python sweeps/glue_grid.py", __doc__)
    add = parser.add_argument
    add(
        "--task",
        nargs="+",
        action="extend",
        required=True,
        metavar="NAME",
        help="GLUE tasks or tasks of the ladder, or all",
    )
    add(
        "--grid",
        choices=("limited", "extended"),
        help="six or sixty grid points at scale paper (default: the variant's grid; for --model, limited)",
    )
    add("--storage", metavar="WHERE", help="storage of the Optuna studies: journal (default), sqlite, or a URL")
    add("--retry-failed", action="store_true", help="run failed points again")
    add_encoder_flags(parser, "points")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 a trial failed, 2 refused, 3 missing data or run)."""
    options = build_parser().parse_args(arguments)
    return guarded("glue_grid.py", on_ladder(options, _run), options.runs)


def _run(options: argparse.Namespace) -> int:
    from ablations.ladders import current
    from neobert.errors import did_you_mean

    known = list(current().tasks)
    if unknown := [name for name in options.task if name not in (*known, "all")]:
        raise ValueError(f"{unknown[0]!r} is no task of this study: {did_you_mean(unknown[0], known)}")
    tasks = known if "all" in options.task else options.task
    return measure(options, lambda workspace, pretrains: _sweep(workspace, tasks, pretrains=pretrains))


def _sweep(workspace: "Workspace", tasks: Sequence[str], *, pretrains: bool) -> int:
    from ablations.launch.execute import retry_failed, run_or_submit
    from ablations.plan import with_tasks
    from neobert.kinds.glue import GlueStudy

    row = with_tasks(_plan(workspace, tasks, pretrains=pretrains), tasks)
    studies = GlueStudy.among(row.runs)

    def prepare() -> dict[str, str]:
        environment = _open_studies(workspace, studies)
        retry_failed(workspace.layout, row.runs, retry=workspace.options.retry_failed)
        return environment

    return run_or_submit(
        workspace,
        [row],
        lambda: print_outcome(workspace, row.heading, studies),
        leave_failed=True,
        environment=prepare,
    )


def _plan(workspace: "Workspace", tasks: Sequence[str], *, pretrains: bool) -> "PlanRow":
    """Plan all studies of the encoder, and its pre-training if it has to be done first."""
    from ablations.ladders import current
    from ablations.plan import plan_model
    from ablations.recipe_runs import missing_tasks

    options, source = workspace.options, workspace.source
    missing = missing_tasks(source)
    if unavailable := [f"{task}: {missing[task]}" for task in tasks if task in missing and "all" not in options.task]:
        raise MissingData(f"cannot fine-tune on {source.label} data: {'; '.join(unavailable)}")
    grid = current().grids[options.grid] if options.grid else None
    if options.model is not None:
        seeds, model = options.seed or [0], workspace.external_model()
        return plan_model(model, seeds, options.scale, source, workspace.layout, ["glue"], grid=grid)
    return variant_row(workspace, ["pretraining", "glue"], pretrains=pretrains, grid=grid)


def _open_studies(workspace: "Workspace", studies: "Sequence[GlueStudy]") -> dict[str, str]:
    """Open the storage of the Optuna studies before anything is written, and make those agree that have begun. Returns
    the variable that names the storage for workers and jobs.

    Raises ValueError if the storage cannot be used, or if SQLite is to serve jobs on several nodes.
    """
    from ablations.launch.submit import place_of
    from neobert.console import logs
    from neobert.glue.sweep import STORAGE_VARIABLE, address_of_environment, open_studies, storage_address

    options, layout = workspace.options, workspace.layout
    address = storage_address(options.storage, layout.root) if options.storage else address_of_environment(layout.root)
    if address.startswith("sqlite:") and place_of(options) == "slurm":
        raise ValueError("--storage sqlite cannot serve jobs on several nodes: leave it out for a journal")
    open_studies(layout, studies, address)
    if address.startswith("journal:"):
        logs().print(f"watch the studies with: optuna-dashboard {address.removeprefix('journal:')}", markup=False)
    return {STORAGE_VARIABLE: address}


def print_outcome(workspace: "Workspace", heading: str, studies: "Sequence[GlueStudy]") -> None:
    """Print every point with its state, then the best of each grid with its nested score.

    In JSON `best` is set for the best point of each grid and null for the others.
    """
    from neobert.console import output, table

    grids: dict[tuple[str, str], list[GlueStudy]] = {}  # groups studies that only differ in the seed
    for study in studies:
        grids.setdefault((study.task, study.weights), []).append(study)
    by_grid = [_entries(workspace, seeds) for seeds in grids.values()]
    entries = [entry for grid in by_grid for entry in grid]
    if workspace.options.json:
        print(json.dumps(entries, indent=1))
        return
    title = f"{heading}: scores on the validation sets, ×100"
    output().print(table(title, POINT_COLUMNS, [_in_points(entry, POINT_COLUMNS) for entry in entries]))
    chosen = [next((entry | entry["best"] for entry in grid if entry["best"]), None) for grid in by_grid]
    if best := [entry for entry in chosen if entry is not None]:
        title = "best of the grid, ×100 (nested: chosen on one half of the validation examples, reported on the other)"
        output().print(table(title, BEST_COLUMNS, [_in_points(entry, BEST_COLUMNS) for entry in best]))


def _in_points(entry: Mapping[str, Any], columns: Sequence[str]) -> list[object]:
    """Return the cells of an entry, with scores ×100."""
    return [
        f"{100 * entry[column]:.1f}" if column in SCORE_COLUMNS and entry[column] is not None else entry[column]
        for column in columns
    ]


def _entries(workspace: "Workspace", studies: "Sequence[GlueStudy]") -> list[dict[str, Any]]:
    from ablations.launch.outcomes import part_entry
    from neobert.identity import plain

    layout = workspace.layout
    trials = [(study, trial, part_entry(layout, trial)) for study in studies for trial in study.trials(layout)]
    is_recorded = any(trial.is_done for _, trial, _ in trials)
    best = _best(workspace, studies) if is_recorded else None
    entries = []
    for study, trial, entry in trials:
        point = plain(trial.point)
        is_best = best is not None and point.items() <= best.items()
        named = {"task": study.task, "context": study.context, "seed": study.seed, **point, "trial": trial.id}
        entries.append({**named, **entry, "score": _rounded(entry["score"]), "best": best if is_best else None})
    return entries


def _best(workspace: "Workspace", studies: "Sequence[GlueStudy]") -> dict[str, Any] | None:
    """Return the best point of a grid and its scores; None if no point has a score yet.

    Damaged predictions are set aside, but not by a dry run. Without whole predictions there is no nested score.
    """
    from neobert.console import logs
    from neobert.data.preparation import require_origin
    from neobert.glue.encoding import true_labels
    from neobert.glue.selection import best_of_grid, redo_damaged
    from neobert.glue.task_data import data_origin, read_examples
    from neobert.identity import plain

    layout, source = workspace.layout, workspace.source
    if not workspace.options.dry_run and True in [redo_damaged(layout, study) for study in studies]:
        logs().print("run the same command again: it makes what was set aside anew", markup=False)
    task = studies[0].about
    require_origin(f"task {task.name}", studies[0].task_origin, data_origin(task, source))
    splits = {split: read_examples(task, split, source) for split in task.validation_splits}
    labels = {split: true_labels(task, f"{task.title} {split}", examples) for split, examples in splits.items()}
    try:
        best = best_of_grid(layout, studies, labels)
    except (DamagedFile, FileNotFoundError) as error:
        logs().print(f"{task.name} has no nested score: {error}", markup=False)
        best = best_of_grid(layout, studies)
    if best is None:
        return None
    numbers = {"mean": _rounded(best.mean), "sd": _rounded(best.spread), "nested": _rounded(best.nested)}
    return {**plain(best.point), "seeds": sorted(best.by_seed), **numbers}


def _rounded(score: float | None) -> float | None:
    return None if score is None else round(score, 4)


if __name__ == "__main__":
    sys.exit(main())
