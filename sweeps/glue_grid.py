"""Run the GLUE grid of a pre-trained variant, or a search: every point once, MNLI before the tasks that start from it.

python sweeps/glue_grid.py --task cola                       on the newest finished run
python sweeps/glue_grid.py --task all --variant M5 --workers 2
python sweeps/glue_grid.py --task rte --variant M9 --grid extended --seed 0 1 2
python sweeps/glue_grid.py --task cola --sampler tpe --trials 40 --pruner median
python sweeps/glue_grid.py --task all --model DIR --scale paper    any encoder that AutoModel loads, same protocol
optuna-dashboard runs/optuna.journal                         to watch the studies while they run
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # a script's own folder is on sys.path, the repository with the packages is not
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import Flags, selection_from
from neobert.command_line import Parser, guarded, parser_from
from neobert.errors import DamagedFile, MissingData, did_you_mean
from neobert.search.space import PRUNERS, SAMPLERS, PrunerName, Search, Space, refuse_pruner
from sweeps.encoder import add_encoder_flags, encoder_row, measure
from sweeps.studies import StudyRequest, add_study_flags, open_storage, study_from

if TYPE_CHECKING:
    from ablations.ladders import Ladder
    from ablations.launch.execute import Workspace
    from ablations.plan import PlanRow
    from neobert.kinds.glue import GlueStudy, Trial

POINT_COLUMNS = ("task", "context", "seed", "batch_size", "learning_rate", "weight_decay", "trial", "state", "score")
SCORE_COLUMNS = frozenset({"score", "mean", "sd", "nested"})
BEST_COLUMNS = ("task", "context", "batch_size", "learning_rate", "weight_decay", "seeds", "mean", "sd", "nested")


def build_parser() -> Parser:
    """Return the command's parser."""
    parser = parser_from("python sweeps/glue_grid.py", __doc__)
    add = parser.add_argument
    tasks = "GLUE tasks or tasks of the ladder, or all"
    add("--task", nargs="+", action="extend", required=True, metavar="NAME", help=tasks)
    grids = "limited or extended, six or sixty points at scale paper (default: the variant's; for --model, limited)"
    add("--grid", metavar="NAME", help=f"{grids}, or of the ladder's GRIDS")
    add_study_flags(parser, SAMPLERS, "grid (default), or a sampler of Optuna")
    pruner = "ends bad trials early: median and hyperband by evaluations, wilcoxon by the scores of seeds"
    add("--pruner", choices=PRUNERS, default="none", help=pruner)
    add_encoder_flags(parser, "points")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 done, 1 a trial failed, 2 refused, 3 missing data or run)."""
    flags = vars(build_parser().parse_args(arguments))

    def run() -> int:
        selection = selection_from(flags)
        return measure(flags, selection, partial(_sweep, request_from(flags, selection.ladder)))

    return guarded("glue_grid.py", run, flags["runs"])


@dataclass(frozen=True)
class GridRequest:
    """The tasks, `every` one of the ladder or some by name, and the grid or search of each; None is the usual grid."""

    tasks: tuple[str, ...]
    every: bool
    grid: str | None
    pruner: PrunerName
    study: StudyRequest


def request_from(flags: Flags, ladder: "Ladder") -> GridRequest:
    """Return what the flags request. Raises ValueError if they contradict each other, or a name is unknown."""
    known, grids, spaces = list(ladder.tasks), ladder.grids, ladder.spaces
    grid, study, every = flags["grid"], study_from(flags, SAMPLERS), "all" in flags["task"]
    if unknown := [name for name in flags["task"] if name not in (*known, "all")]:
        raise ValueError(f"{unknown[0]!r} is no task of this study: {did_you_mean(unknown[0], known)}")
    if grid and grid not in (*grids, *spaces):
        raise ValueError(f"--grid {grid!r}: {did_you_mean(grid, (*grids, *spaces))}")
    if study.sampler == "grid" and study.trials is not None:
        raise ValueError("--trials goes with a sampler, as the grid has every point once: leave it out, or add one")
    if study.sampler == "grid" and grid in spaces:
        raise ValueError(f"--grid {grid} has ranges in the place of points: name a sampler and its --trials")
    if flags["pruner"] != "none":
        refuse_pruner(flags["pruner"], len(set(flags["finetuning_seed"] or [0])))
    return GridRequest(tuple(known if every else flags["task"]), every, grid, flags["pruner"], study)


def _search_of(request: GridRequest, workspace: "Workspace", studies: "Sequence[GlueStudy]") -> Search | None:
    """Return the requested search between the ends of the studies' grid; None for the whole grid. Raises ValueError for
    a pruner on the paper's grid."""
    points, sampler = studies[0].points, request.study.sampler
    if sampler == "grid":
        if request.pruner == "none":
            return None
        if workspace.scale == "paper":
            raise ValueError(
                "--pruner cannot end trials of the grid at scale paper: rates decay over the whole course, so early "
                "scores favour high rates and small batches, and the nested score needs every point: leave it out, or "
                "add a sampler"
            )
    assert sampler != "rule"
    return Search(
        sampler=sampler,
        trials=request.study.trials or len(points),
        pruner=request.pruner,
        seeds=tuple(dict.fromkeys(study.seed for study in studies)),
        space=workspace.ladder.spaces.get(request.grid or "") or Space.of_grid(points),
    )


def _sweep(request: GridRequest, workspace: "Workspace", pretrains: bool) -> int:
    from ablations.launch.execute import retry_failed, run_or_submit
    from ablations.plan import with_search, with_tasks
    from neobert.kinds.glue import GlueStudy

    row = with_tasks(_plan(request, workspace, pretrains=pretrains), request.tasks)
    if (search := _search_of(request, workspace, GlueStudy.among(row.runs))) is not None:
        row = with_search(row, search, workspace.layout)
    studies = GlueStudy.among(row.runs)

    def prepare() -> dict[str, str]:
        environment = open_storage(workspace, request.study.storage, studies)
        retry_failed(workspace.layout, row.runs, retry=request.study.retry_failed)
        return environment

    return run_or_submit(
        workspace,
        [row],
        lambda: print_outcome(workspace, row.heading, studies),
        leave_failed=True,
        environment=prepare,
    )


def _plan(request: GridRequest, workspace: "Workspace", *, pretrains: bool) -> "PlanRow":
    """Plan all studies of the encoder, and its pre-training if it has to be done first."""
    from ablations.recipe_runs import missing_tasks

    its, source = workspace.selection, workspace.source
    missing = missing_tasks(its.ladder, source)
    if unavailable := [f"{task}: {missing[task]}" for task in request.tasks if task in missing and not request.every]:
        raise MissingData(f"cannot fine-tune on {source.label} data: {'; '.join(unavailable)}")
    grid = its.ladder.grids.get(request.grid or "")
    return encoder_row(workspace, ["glue"], pretrains=pretrains, grid=grid)


def print_outcome(workspace: "Workspace", heading: str, studies: "Sequence[GlueStudy]") -> None:
    """Print every point with its state, then the best of each grid or search with its nested score.

    In JSON `best` is set for the best point of each grid and null for the others.
    """
    from neobert.console import output, table

    grids: dict[tuple[str, str], list[GlueStudy]] = {}  # groups studies that only differ in the seed
    for study in studies:
        grids.setdefault((study.task, study.weights), []).append(study)
    by_grid = [_entries(workspace, seeds) for seeds in grids.values()]
    entries = [entry for grid in by_grid for entry in grid]
    if workspace.as_json:
        print(json.dumps(entries, indent=1))
        return
    title = f"{heading}: scores on the validation sets, ×100"
    output().print(table(title, POINT_COLUMNS, [_in_points(entry, POINT_COLUMNS) for entry in entries]))
    chosen = [next((entry | entry["best"] for entry in grid if entry["best"]), None) for grid in by_grid]
    if best := [entry for entry in chosen if entry is not None]:
        tried = "grid" if studies[0].search is None else "search"
        nested = "nested: chosen on one half of the validation examples, reported on the other"
        title = f"best of the {tried}, ×100 ({nested})"
        output().print(table(title, BEST_COLUMNS, [_in_points(entry, BEST_COLUMNS) for entry in best]))
    for study in studies:
        if study.search is not None:
            output().print(_footer(workspace, study), markup=False)


def _footer(workspace: "Workspace", study: "GlueStudy") -> str:
    """Return the sentence below the tables of a search: how many points were tried, and that they are not the grid."""
    layout, search = workspace.layout, study.search
    assert search is not None
    pruned = [each for each in study.search_trials(layout) if each.state == "pruned"]
    ended = f", of which the {search.pruner} pruner ended {len(pruned)} early" if search.pruner != "none" else ""
    tried = f"{len(study.asked(layout))} of {search.trials} points chosen by the sampler {search.sampler}{ended}"
    return f"{study.task}: {tried}; a search, not the whole grid, so its best score is not comparable with a grid's"


def _in_points(entry: Mapping[str, Any], columns: Sequence[str]) -> list[object]:
    """Return the cells of an entry, with scores ×100."""
    return [
        f"{100 * entry[column]:.1f}" if column in SCORE_COLUMNS and entry[column] is not None else entry[column]
        for column in columns
    ]


def _entries(workspace: "Workspace", studies: "Sequence[GlueStudy]") -> list[dict[str, Any]]:
    """Return an entry for each trial, with state, score and error. Without a record of its own, a trial of a search has
    what is known of the search at its point."""
    from ablations.launch.outcomes import part_entry
    from neobert.identity import plain

    layout, trials = workspace.layout, list[tuple["Trial", dict[str, Any]]]()
    for study in studies:
        if study.search is None:
            trials += [(trial, part_entry(layout, trial)) for trial in study.trials(layout)]
        for each in study.search_trials(layout) if study.search is not None else ():
            trials += [(trial, part_entry(layout, trial if trial.is_done else each)) for trial in each.trials]
    best = _best(workspace, studies) if any(trial.is_done for trial, _ in trials) else None
    entries = []
    for trial, entry in trials:
        point, study = plain(trial.point), trial.study
        is_best = best is not None and point.items() <= best.items()
        named = {"task": study.task, "context": study.context, "seed": study.seed, **point, "trial": trial.id}
        entries.append({**named, **entry, "score": _rounded(entry["score"]), "best": best if is_best else None})
    return entries


def _best(workspace: "Workspace", studies: "Sequence[GlueStudy]") -> dict[str, Any] | None:
    """Return the best point of a grid and its scores; None if no point has a score yet.

    Damaged predictions are set aside, but not by a dry run. Without whole predictions there is no nested score.
    """
    from neobert.console import logs
    from neobert.executors.preparation import require_origin
    from neobert.executors.selection import best_of_grid, redo_damaged
    from neobert.glue.encoding import true_labels
    from neobert.glue.task_data import data_origin, read_examples
    from neobert.identity import plain

    layout, source = workspace.layout, workspace.source
    if not workspace.dry_run and True in [redo_damaged(layout, study) for study in studies]:
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
