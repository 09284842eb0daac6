"""Trials of one row → one cell a task: the best point of the grid, seed by seed, and what is missing from it."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.trials import Trial

POINTS_OF_SCORE = 100  # records hold 0..1, the paper prints points


@dataclass(frozen=True, order=True)
class Seeds:
    """One repetition: the seed of pre-training and the seed of fine-tuning."""

    pretraining: int
    finetuning: int

    def __str__(self) -> str:
        same = self.pretraining == self.finetuning
        return str(self.pretraining) if same else f"{self.pretraining}/{self.finetuning}"


@dataclass(frozen=True)
class Estimate:
    """A number measured with one or several seeds."""

    by_seeds: Mapping[Seeds, float]

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return statistics.fmean(self.by_seeds.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for a single one."""
        return statistics.stdev(self.by_seeds.values()) if len(self.by_seeds) > 1 else None


@dataclass(frozen=True)
class Cell:
    """One task of one row, in points. Points of the grid without a score are named, seed by seed.

    `score` is None where no trial has one; `trials` counts all that ran, so 0 means that the task was never run.
    A point is undefined where the metric has no value (a constant prediction has no correlation). `ids` are the trials
    that the score comes from, `recorded` all trials of the seeds that count.
    """

    score: Estimate | None
    point: Point | None
    ids: Mapping[Seeds, str]
    trials: int
    failed: tuple[str, ...]
    undefined: tuple[str, ...]
    pruned: tuple[str, ...]
    missing: tuple[str, ...]
    fallback: str | None
    recorded: Mapping[Seeds, Mapping[Point, Trial]]

    @property
    def is_best_of_whole_grid(self) -> bool:
        """Whether the score was chosen among all points of the grid."""
        return self.score is not None and not (self.failed or self.missing)


@dataclass(frozen=True)
class Scored:
    """Something with a cell for each task."""

    cells: Mapping[str, Cell]

    @property
    def scored_tasks(self) -> tuple[str, ...]:
        """The tasks that have a score, in the paper's order."""
        return tuple(task for task, cell in self.cells.items() if cell.score is not None)

    @property
    def average(self) -> Estimate | None:
        """The flat mean of the eight tasks; None unless some seed has all of them."""
        return self.mean_over(tuple(TASKS))

    @property
    def is_best_of_whole_grid(self) -> bool:
        """Whether every score was chosen among all points of the grid."""
        return all(cell.is_best_of_whole_grid for cell in self.cells.values() if cell.score is not None)

    def mean_over(self, tasks: Sequence[str]) -> Estimate | None:
        """The flat mean of some tasks over the seeds that have all of them; None where there is no such seed."""
        scores = [cell.score.by_seeds for cell in map(self.cells.__getitem__, tasks) if cell.score is not None]
        if not tasks or len(scores) < len(tasks):
            return None
        complete = sorted(set.intersection(*(set(by_seeds) for by_seeds in scores)))
        means = {seeds: statistics.fmean(by_seeds[seeds] for by_seeds in scores) for seeds in complete}
        return Estimate(means) if means else None


Grid = Sequence[Point]
Repetition = dict[Point, Trial]
Recorded = dict[str, dict[Seeds, Repetition]]


def cells_of(grid: Grid, trials: Iterable[tuple[int, Trial]]) -> tuple[dict[str, Cell], list[str]]:
    """A cell for every task, and one sentence for everything recorded that does not count.

    Each trial comes with the seed of the pre-training that it is on.

    With several seeds the best point is the one with the highest mean over them. Only seeds that are equally far
    are counted together, so that a half-finished repetition changes no score.
    """
    notes: list[str] = []
    recorded = _recorded(trials, notes)
    seeds = _counted_seeds(grid, recorded, notes)
    return {task: _cell(grid, recorded[task], seeds) for task in TASKS}, notes


def point_name(point: Point) -> str:
    """A point as batch/rate/decay."""
    return f"{point.batch_size}/{point.learning_rate:g}/{point.weight_decay:g}"


def _recorded(trials: Iterable[tuple[int, Trial]], notes: list[str]) -> Recorded:
    by_task: dict[str, list[tuple[int, Trial]]] = defaultdict(list)
    for seed, trial in trials:
        by_task[trial.task].append((seed, trial))
    return {task: _repetitions(task, by_task[task], notes) for task in TASKS}


def _repetitions(task: str, trials: list[tuple[int, Trial]], notes: list[str]) -> dict[Seeds, Repetition]:
    """Trials by seeds and point: transferred before fallbacks, done before failed, then by id."""
    transferred = [pair for pair in trials if pair[1].start is not None]
    if transferred and len(transferred) < len(trials):
        notes.append(
            f"{task}: {len(trials) - len(transferred)} trial(s) from pre-training are left out beside transferred ones"
        )
    repetitions: dict[Seeds, Repetition] = defaultdict(dict)
    for seed, trial in sorted(transferred or trials, key=lambda pair: (pair[1].state != "done", pair[1].id)):
        points = repetitions[Seeds(seed, trial.seed)]
        if trial.point in points:
            notes.append(f"{task}: trial {trial.id} repeats {points[trial.point].id} and is left out")
        else:
            points[trial.point] = trial
    return dict(repetitions)


def _counted_seeds(grid: Grid, recorded: Recorded, notes: list[str]) -> list[Seeds]:
    """The repetitions that got furthest: most tasks with a score and, among these, every point of the grid."""
    everyone = {seeds for repetitions in recorded.values() for seeds in repetitions}
    if not everyone:
        return []
    progress = {seeds: _progress(grid, recorded, seeds) for seeds in everyone}
    furthest = max(progress.values())
    for seeds in sorted(everyone):
        if progress[seeds] < furthest:
            tasks = progress[seeds][0]
            notes.append(f"seed {seeds} is unfinished ({tasks} of {len(TASKS)} tasks with a score) and not counted yet")
    return sorted(seeds for seeds in everyone if progress[seeds] == furthest)


def _progress(grid: Grid, recorded: Recorded, seeds: Seeds) -> tuple[int, bool]:
    begun = [repetitions[seeds] for repetitions in recorded.values() if seeds in repetitions]
    scored = sum(any(trial.score is not None for trial in points.values()) for points in begun)
    return scored, all(point in points for points in begun for point in grid)


def _cell(grid: Grid, repetitions: Mapping[Seeds, Repetition], counted: Sequence[Seeds]) -> Cell:
    own = {seeds: repetitions[seeds] for seeds in counted if seeds in repetitions}
    best = _best_point(grid, own)
    fallbacks = sorted({trial.fallback for points in own.values() for trial in points.values() if trial.fallback})
    return Cell(
        score=None if best is None else Estimate(_scores_at(best, own)),
        point=best,
        ids={} if best is None else {seeds: own[seeds][best].id for seeds in _scores_at(best, own)},
        trials=sum(map(len, own.values())),
        failed=_points_in_state("failed", grid, own),
        undefined=_points_in_state("undefined", grid, own),
        pruned=_points_in_state("pruned", grid, own),
        missing=_points_in_state(None, grid, own),
        fallback="; ".join(fallbacks) or None,
        recorded=own,
    )


def _scores_at(point: Point, repetitions: Mapping[Seeds, Repetition]) -> dict[Seeds, float]:
    return {
        seeds: trial.score * POINTS_OF_SCORE
        for seeds, trial in _trials_at(point, repetitions).items()
        if trial.score is not None
    }


def _trials_at(point: Point, repetitions: Mapping[Seeds, Repetition]) -> dict[Seeds, Trial]:
    return {seeds: points[point] for seeds, points in repetitions.items() if point in points}


def _best_point(grid: Grid, repetitions: Mapping[Seeds, Repetition]) -> Point | None:
    """The point with most seeds, then the highest mean of what the protocol chooses by, then first in the grid."""
    reached = {point: _trials_at(point, repetitions).values() for point in grid}
    decisive = {point: [each.decisive for each in reached[point] if each.decisive is not None] for point in grid}
    done = [point for point in grid if decisive[point]]
    return max(done, key=lambda point: (len(decisive[point]), statistics.fmean(decisive[point])), default=None)


def _points_in_state(state: str | None, grid: Grid, repetitions: Mapping[Seeds, Repetition]) -> tuple[str, ...]:
    """Names of the points whose trial has a state; None stands for points without a trial."""
    return tuple(
        f"{point_name(point)} (seed {seeds})"
        for seeds, points in repetitions.items()
        for point in grid
        if (points[point].state if point in points else None) == state
    )
