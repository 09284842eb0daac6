"""Count the trials of a row: a cell for each task, and a sentence for each trial or seed that does not count.

With several seeds, the best point of a grid is the one with the highest mean over seeds. Only seeds with equal progress
are counted together, so that a half-finished repetition changes no score.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product

import pandas as pd

from ablations.ladders import Ladder
from neobert.glue.selection import best_point
from neobert.glue.tasks import TASKS, Task
from neobert.recipe import Point
from reports.basis import describe_difference, split_by_basis
from reports.evidence import split_repeats
from reports.scores import ABSENCES, POINTS_OF_SCORE, Cell, Estimate, point_name
from reports.searches import Tried

Notes = list[str]


def count_trials(
    ladder: Ladder, trials: pd.DataFrame, grid: Sequence[Point]
) -> tuple[dict[str, Cell], dict[str, Cell], tuple[str, ...]]:
    """Return a cell for each task of GLUE, one for each of the ladder's own, and the notes. `trials` are those of one
    row on its grid, with their `seeds`."""
    notes: Notes = []
    if len(trials):
        for keep in (_of_one_basis, _without_fallbacks_beside_transfers, _without_repetitions):
            trials = keep(trials, notes)
        trials = _of_furthest_seeds(trials, len(grid), len(all_tasks(ladder)), notes)
    by_task, none = dict(list(trials.groupby("task"))), trials.iloc[:0]
    glue, own = ({task: _cell(grid, by_task.get(task, none)) for task in each} for each in (TASKS, ladder.own_tasks))
    return glue, own, tuple(notes)


def prefer_searches(
    cells: Mapping[str, Cell], trials: pd.DataFrame, searches: Sequence[Tried]
) -> tuple[dict[str, Cell], tuple[str, ...]]:
    """Return the cells of a row, with the largest search of a task in the place of a grid that is not whole, and a note
    on each search or trial that does not count for it. `trials` have their `seeds`."""
    chosen, notes = dict(cells), Notes()
    order = sorted(
        searches, key=lambda each: (each.study.starts_from.study is None, -each.search.trials, each.study.id)
    )
    for tried in order:
        task, name = tried.study.task, f"{tried.study.task}: search {tried.study.id}"
        if task not in cells or not tried.points:
            continue
        if cells[task].is_best_of_whole_grid:
            notes.append(f"{name} is left out beside the whole grid")
        elif (counted := chosen[task].tried) is not None:
            notes.append(f"{name} is left out beside {counted.study.id}")
        else:
            cell = _cell(tried.points, _of_one_basis(trials[trials.id.isin(tried.scored)], notes))
            if cell.score is not None:
                left_out = set(cells[task].recorded.id) - tried.trials
                if left_out:
                    notes.append(f"{task}: {len(left_out)} trial(s) of a part of the grid are left out beside a search")
                chosen[task] = replace(cell, tried=tried)
    return chosen, tuple(notes)


def all_tasks(ladder: Ladder) -> dict[str, Task]:
    """Return GLUE's tasks and those of a ladder, by name."""
    return {**TASKS, **ladder.tasks}


def _of_one_basis(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Keep, per task, the trials on the data and numerics that most trials have. Trials without a record have no known
    basis and are kept."""
    trials = trials.reset_index(drop=True)
    recorded = trials[trials.basis.notna()]
    are_counted, basis = split_by_basis(recorded, ("task",), recorded.score.notna().astype(int))
    for (task, own), left_out in recorded[~are_counted].groupby(["task", "basis"]):
        difference = describe_difference(own, basis[left_out.index[0]])
        notes.append(f"{task}: {len(left_out)} trial(s) on other data or numerics are left out ({difference})")
    return trials.drop(index=recorded.index[~are_counted])


def _without_fallbacks_beside_transfers(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    transfers = trials.start.notna()
    are_left_out = ~transfers & transfers.groupby(trials.task).transform("any")
    for task, count in trials[are_left_out].groupby("task").size().items():
        notes.append(f"{task}: {count} trial(s) from pre-training are left out beside transferred ones")
    return trials[~are_left_out]


def _without_repetitions(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Keep one trial per point and seeds, preferring done trials, then the smallest id."""
    trials = trials.assign(is_open=trials.state != "done").sort_values(["is_open", "id"])
    kept, repeats = split_repeats(trials, ["task", "seeds", "point"])
    notes += [f"{each.task}: trial {each.id} repeats {each.kept} and is left out" for each in repeats.itertuples()]
    return kept


def _of_furthest_seeds(trials: pd.DataFrame, points: int, tasks: int, notes: Notes) -> pd.DataFrame:
    """Keep the trials of the repetitions with most progress: most tasks with a whole grid of `points` or, where no
    repetition has one, most tasks with a score. Of these, tasks without a whole grid count if all repetitions have
    begun them. `tasks` is the number of all tasks."""
    of_task = trials.groupby(["seeds", "task"])
    scored, whole = of_task.score.count() > 0, of_task.size() == points
    counts = scored & whole if (scored & whole).any() else scored
    progress = pd.DataFrame({"scored": scored, "counts": counts}).groupby("seeds").sum()
    behind = progress[progress.counts < progress.counts.max()]
    for seeds, scores in behind.scored.items():
        notes.append(f"seed {seeds} is unfinished ({scores} of {tasks} tasks with a score) and not counted yet")
    kept = trials[~trials.seeds.isin(behind.index)]
    is_whole = kept.groupby(["seeds", "task"]).id.transform("size") == points
    is_ahead = ~is_whole & (kept.groupby("task").seeds.transform("nunique") < kept.seeds.nunique())
    for seeds, task in sorted(set(zip(kept.seeds[is_ahead], kept.task[is_ahead], strict=True))):
        notes.append(f"{task} of seed {seeds} is unfinished and not counted yet")
    return kept[~is_ahead]


def _cell(grid: Sequence[Point], trials: pd.DataFrame) -> Cell:
    if trials.empty:
        return Cell(None, None, {}, dict.fromkeys(ABSENCES, ()), None, trials)
    decisive = trials.decisive.astype(object).where(trials.decisive.notna(), None)
    best = best_point(grid, zip(trials.point, decisive, strict=True))
    chosen = trials[(trials.point == best) & trials.score.notna()].sort_values("seeds")
    states = dict(zip(zip(trials.seeds, trials.point, strict=True), trials.state, strict=True))
    absent: dict[str, list[str]] = {state: [] for state in ABSENCES}
    for seeds, point in product(sorted(set(trials.seeds)), grid):
        state = states.get((seeds, point), "missing")
        if state != "done":
            absent[state].append(f"{point_name(point)} (seed {seeds})")
    points = (chosen.score * POINTS_OF_SCORE).tolist()
    return Cell(
        score=None if best is None else Estimate(dict(zip(chosen.seeds, points, strict=True))),
        point=best,
        ids=dict(zip(chosen.seeds, chosen.id, strict=True)),
        absent={state: tuple(names) for state, names in absent.items()},
        fallback="; ".join(sorted({reason for reason in trials.fallback if reason})) or None,
        recorded=trials,
    )
