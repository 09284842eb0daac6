"""Scores: estimates over seeds, the best grid point of a task, and rows of tasks.

With several seeds, the best point of a grid is the one with the highest mean over seeds. Only seeds with equal progress
are counted together, so that a half-finished repetition changes no score.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product

import pandas as pd

from ablations.variant import Recipe, Variant
from neobert.glue.selection import best_point
from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.frames import Tried, describe_difference, split_by_version
from reports.statistics import t_interval

POINTS_OF_SCORE = 100  # records hold 0..1, the paper prints points
LEAST_GAIN = 0.1
"""Minimum gain in nats over token frequencies for a model to count as trained: about four standard errors of the
difference on 4,000 predicted tokens."""


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
        return statistics.fmean(self.by_seeds.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.by_seeds.values()) if len(self.by_seeds) > 1 else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % t interval of the mean over seeds of pre-training; None below three."""
        return t_interval([*self.by_pretraining.values()])

    @property
    def by_pretraining(self) -> dict[int, float]:
        """Mean over the fine-tuning seeds of each pre-training seed, as these do not show variation between runs."""
        own: dict[int, list[float]] = {}
        for seeds, value in sorted(self.by_seeds.items()):
            own.setdefault(seeds.pretraining, []).append(value)
        return {seed: statistics.fmean(values) for seed, values in own.items()}

    def at(self, seeds: Iterable[Seeds]) -> "Estimate":
        """Return the estimate restricted to some seeds."""
        return Estimate({each: self.by_seeds[each] for each in seeds})


def estimate_by_seed(seeds: Iterable[int], values: Iterable[float]) -> Estimate:
    """Return an estimate by pre-training seed, with equal fine-tuning seeds."""
    return Estimate({Seeds(seed, seed): value for seed, value in zip(seeds, values, strict=True)})


def flat_mean(estimates: Sequence[Estimate | None]) -> Estimate | None:
    """Average several estimates over their common seeds; None if an estimate is missing or no seed is common."""
    known = [each.by_seeds for each in estimates if each is not None]
    if not known or len(known) < len(estimates):
        return None
    common = sorted(set.intersection(*map(set, known)))
    return Estimate({seeds: statistics.fmean(each[seeds] for each in known) for seeds in common}) if common else None


Notes = list[str]


@dataclass(frozen=True)
class Cell:
    """One task of one row, in points.

    `score` is None if no trial has one. `ids` are the trials behind the score, `recorded` all trials of the counted
    seeds. `absent` has the points without a score, seed by seed, by state: "failed", "missing", or "undefined" if a
    metric has no value, such as the correlation of a constant prediction. `tried` is the search whose best point it is,
    None for a grid.
    """

    score: Estimate | None
    point: Point | None
    ids: Mapping[Seeds, str]
    absent: Mapping[str, Sequence[str]]
    fallback: str | None
    recorded: pd.DataFrame = field(compare=False)
    tried: Tried | None = None

    @property
    def trials(self) -> int:
        """Number of trials that ran; 0 if the task was never run."""
        return len(self.recorded)

    @property
    def is_best_of_whole_grid(self) -> bool:
        """Whether the score was chosen among all points of the grid."""
        return self.score is not None and self.tried is None and not self.absent.keys() & {"failed", "missing"}

    @property
    def marks(self) -> str:
        """§ best of a search; † best of an incomplete grid; ‡ started from pre-training instead of MNLI."""
        return self.choice_mark + ("‡" if self.fallback else "")

    @property
    def choice_mark(self) -> str:
        """§ best of a search; † best of an incomplete grid; empty for the best of a whole one."""
        if self.tried is not None:
            return "§"
        return "" if self.is_best_of_whole_grid else "†"


@dataclass(frozen=True, eq=False)
class ScoreRow:
    """A variant at one checkpoint, or an external model (without `variant` and stage) on its largest grid.

    `source` is the source of a variant's numbers, or the id of an external model. `scaled_recipe` is the variant's
    recipe at the study's scale. `tasks` are the ladder's, and `grid` has the points to try on them. `runs` are the
    variant's pre-training runs, one per seed, `heldout` their losses, `answers` their records of BLiMP. `begun` are
    the studies of the grid, `trials` those of these studies. `searches` are others on the same weights, and
    `all_trials` has the trials of both.
    """

    name: str
    label: str
    source: str
    tasks: tuple[str, ...]
    grid: Sequence[Point]
    runs: pd.DataFrame
    heldout: pd.DataFrame
    answers: pd.DataFrame
    begun: pd.DataFrame
    trials: pd.DataFrame
    searches: Sequence[Tried]
    all_trials: pd.DataFrame
    variant: Variant | None = None
    stage: int | None = None
    scaled_recipe: Recipe | None = None

    @cached_property
    def _counted(self) -> tuple[dict[str, Cell], Notes]:
        cells, notes = count_trials(self.tasks, self.trials, self.grid)
        return cells | _cells_of_searches(cells, self.all_trials, self.searches, notes), notes

    @property
    def cells(self) -> dict[str, Cell]:
        """A cell for each task of the ladder."""
        return self._counted[0]

    @property
    def notes(self) -> Notes:
        """A sentence for each trial or seed that does not count."""
        return self._counted[1]

    @cached_property
    def nested(self) -> Estimate | None:
        """The average of GLUE's nested scores in points, which do not gain from the choice of a point, over the seeds
        that have all tasks."""
        by_task: dict[str, dict[Seeds, float]] = {task: {} for task in self.tasks if task in TASKS}
        own = self.begun[self.begun.nested.notna() & self.begun.task.isin(list(by_task))]
        # a study that starts from MNLI replaces one from pre-training
        for study in own.sort_values(["start", "id"], na_position="first").itertuples():
            by_task[study.task][study.seeds] = POINTS_OF_SCORE * study.nested
        return flat_mean([Estimate(values) if values else None for values in by_task.values()])

    @property
    def recipe(self) -> Recipe:
        """The recipe of a variant at the scale of its study."""
        assert self.scaled_recipe is not None, self.name
        return self.scaled_recipe

    @property
    def is_last(self) -> bool:
        """Whether it is of the variant's last checkpoint."""
        return self.stage == len(self.recipe.pretraining.stages) - 1

    @property
    def context(self) -> int | None:
        return None if self.stage is None else self.recipe.pretraining.stages[self.stage].context

    @property
    def tokens(self) -> tuple[str, int]:
        """Tokenizer and vocabulary size."""
        pretraining = self.recipe.pretraining
        return pretraining.data.tokenizer, pretraining.model.vocabulary_size

    @property
    def kept(self) -> bool:
        """False for discarded variants."""
        return self.variant is None or self.variant.kept

    @property
    def parent(self) -> str:
        """Name of the variant's parent; empty for the baseline and for external models."""
        return self.variant.parent.name if self.variant is not None and self.variant.parent is not None else ""

    @property
    def has_records(self) -> bool:
        """Whether it has pre-training runs; always true for external models."""
        return self.variant is None or len(self.runs) > 0

    @property
    def run_ids(self) -> tuple[str, ...]:
        return tuple(sorted(self.runs.id))

    @cached_property
    def losses(self) -> dict[str, Estimate]:
        """Held-out MLM losses in nats per token by corpus, each in the run's own context."""
        own = self.heldout[self.heldout.context.isna()]
        return {str(corpus): estimate_by_seed(found.seed, found.loss) for corpus, found in own.groupby("corpus")}

    @cached_property
    def bits_per_byte(self) -> dict[tuple[str, int], Estimate]:
        """Held-out losses in bits per byte of text, by corpus and context in tokens."""
        own = self.heldout[self.heldout.context.notna()]
        by_place = own.groupby(["corpus", "context"])
        return {place: estimate_by_seed(found.seed, found.bits_per_byte) for place, found in by_place}

    @cached_property
    def untrained(self) -> str:
        """Reason why the row cannot be compared: on its own corpus its loss is hardly below that of token frequencies.
        Empty if it is, and for older records without frequency losses."""
        corpora = [weights.data.corpus for weights in self.runs.weights]
        own = self.heldout[self.heldout.corpus.isin(corpora) & self.heldout.frequency_loss.notna()]
        if own.empty:
            return ""
        loss, frequencies = own.loss.mean(), own.frequency_loss.mean()
        if frequencies - loss >= LEAST_GAIN:
            return ""
        return f"{self.name} has learned no more than frequencies of tokens: {loss:.3f} nats, they {frequencies:.3f}"

    @property
    def glue(self) -> dict[str, Cell]:
        """The cells of GLUE's tasks."""
        return {task: cell for task, cell in self.cells.items() if task in TASKS}

    @property
    def scored_tasks(self) -> tuple[str, ...]:
        """The tasks of GLUE that have a score."""
        return tuple(task for task, cell in self.glue.items() if cell.score is not None)

    @property
    def is_best_of_whole_grid(self) -> bool:
        """Whether every score of GLUE was chosen among all points of the grid."""
        return all(self.cells[task].is_best_of_whole_grid for task in self.scored_tasks)

    @property
    def is_of_incomplete_grid(self) -> bool:
        """Whether a score of GLUE was chosen among some points of a grid, and not by a search."""
        return any(self.cells[task].choice_mark == "†" for task in self.scored_tasks)

    @property
    def searched(self) -> tuple[Tried, ...]:
        """The searches whose best points the scores are."""
        return tuple(cell.tried for cell in self.cells.values() if cell.tried is not None)

    @property
    def average(self) -> Estimate | None:
        """Flat mean of GLUE's tasks; None unless some seed has all of them."""
        return self.mean_over(tuple(self.glue))

    def mean_over(self, tasks: Sequence[str]) -> Estimate | None:
        """Return the flat mean of some tasks over the seeds that have all of them; None if there is no such seed."""
        return flat_mean([self.cells[task].score for task in tasks])

    def trial_ids(self, tasks: Iterable[str], seeds: Iterable[Seeds] | None = None) -> tuple[str, ...]:
        """Return the trials behind the scores of some tasks, for all seeds or the given ones."""
        own = {task: self.cells[task].ids for task in tasks}
        wanted = {each for ids in own.values() for each in ids} if seeds is None else set(seeds)
        return tuple(sorted({trial for ids in own.values() for each, trial in ids.items() if each in wanted}))

    def mean_ids(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """Return the trials behind the mean over some tasks."""
        mean = self.mean_over(tasks)
        return self.trial_ids(tasks, mean.by_seeds) if mean else ()


def point_name(point: Point) -> str:
    """Format a point as batch/rate/decay."""
    return f"{point.batch_size}/{point.learning_rate:g}/{point.weight_decay:g}"


def count_trials(tasks: Iterable[str], trials: pd.DataFrame, grid: Sequence[Point]) -> tuple[dict[str, Cell], Notes]:
    """Return a cell for each task, and a sentence for each trial or seed that does not count. `trials` are those of one
    row on its grid, with their `seeds`."""
    notes: Notes = []
    if len(trials):
        trials = _of_one_version(trials, notes)
        # Of a task that could not start from another one at first, the trials that do count.
        transfers = trials.start.notna()
        trials = trials[transfers | ~transfers.groupby(trials.task).transform("any")]
        order = trials.assign(is_open=trials.state != "done").sort_values(["is_open", "id"])
        trials = _of_furthest_seeds(order.drop_duplicates(["task", "seeds", "point"]), len(grid), notes)
    by_task = dict(list(trials.groupby("task")))
    return {task: _cell(grid, by_task.get(task, trials.iloc[:0])) for task in tasks}, notes


def _cells_of_searches(
    cells: Mapping[str, Cell], trials: pd.DataFrame, searches: Sequence[Tried], notes: Notes
) -> dict[str, Cell]:
    """Return the cells of the largest search of each task that has no whole grid."""
    found: dict[str, Cell] = {}
    order = sorted(
        searches, key=lambda each: (each.study.starts_from.study is None, -each.search.trials, each.study.id)
    )
    for tried in order:
        task = tried.study.task
        if tried.points and task in cells and task not in found and not cells[task].is_best_of_whole_grid:
            cell = _cell(tried.points, _of_one_version(trials[trials.id.isin(tried.scored)], notes), tried)
            found |= {task: cell} if cell.score is not None else {}
    return found


def _of_one_version(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Keep, per task, the trials on the data and numerics that most trials have. Trials without a record have no known
    version and are kept."""
    trials = trials.reset_index(drop=True)
    recorded = trials[trials.version.notna()]
    are_counted, version = split_by_version(recorded, ("task",), recorded.score.notna().astype(int))
    for (task, own), left_out in recorded[~are_counted].groupby(["task", "version"]):
        difference = describe_difference(own, version[left_out.index[0]])
        notes.append(f"{task}: {len(left_out)} trial(s) on other data or numerics are left out ({difference})")
    return trials.drop(index=recorded.index[~are_counted])


def _of_furthest_seeds(trials: pd.DataFrame, points: int, notes: Notes) -> pd.DataFrame:
    """Keep the trials of the repetitions with most progress: most tasks with a whole grid of `points` or, where no
    repetition has one, most tasks with a score. Of these, tasks without a whole grid count if all repetitions have
    begun them."""
    of_task = trials.groupby(["seeds", "task"])
    scored, whole = of_task.score.count() > 0, of_task.size() == points
    counts = scored & whole if (scored & whole).any() else scored
    progress = pd.DataFrame({"scored": scored, "counts": counts}).groupby("seeds").sum()
    behind = progress[progress.counts < progress.counts.max()]
    for seeds, scores in behind.scored.items():
        notes.append(f"seed {seeds} is unfinished (tasks with a score: {scores}) and not counted yet")
    kept = trials[~trials.seeds.isin(behind.index)]
    is_whole = kept.groupby(["seeds", "task"]).id.transform("size") == points
    is_ahead = ~is_whole & (kept.groupby("task").seeds.transform("nunique") < kept.seeds.nunique())
    for seeds, task in sorted(set(zip(kept.seeds[is_ahead], kept.task[is_ahead], strict=True))):
        notes.append(f"{task} of seed {seeds} is unfinished and not counted yet")
    return kept[~is_ahead]


def _cell(grid: Sequence[Point], trials: pd.DataFrame, tried: Tried | None = None) -> Cell:
    if trials.empty:
        return Cell(None, None, {}, {}, None, trials)
    decisive = trials.decisive.astype(object).where(trials.decisive.notna(), None)
    best = best_point(grid, zip(trials.point, decisive, strict=True))
    chosen = trials[(trials.point == best) & trials.score.notna()].sort_values("seeds")
    states = dict(zip(zip(trials.seeds, trials.point, strict=True), trials.state, strict=True))
    absent = defaultdict(list)
    for seeds, point in product(sorted(set(trials.seeds)), dict.fromkeys(grid)):
        absent[states.get((seeds, point), "missing")].append(f"{point_name(point)} (seed {seeds})")
    absent.pop("done", None)
    points = (chosen.score * POINTS_OF_SCORE).tolist()
    return Cell(
        score=None if best is None else Estimate(dict(zip(chosen.seeds, points, strict=True))),
        point=best,
        ids=dict(zip(chosen.seeds, chosen.id, strict=True)),
        absent=dict(absent),
        fallback="; ".join(sorted({reason for reason in trials.fallback if reason})) or None,
        recorded=trials,
        tried=tried,
    )
