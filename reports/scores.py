"""Scores: estimates over seeds, the best grid point of a task, rows of tasks, and the rows of one figure."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from ablations.ladders import Ladder
from ablations.rates import are_same, without_rate
from ablations.scales import Scale, Vocabulary
from ablations.variant import Recipe, Variant
from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.rates import Sweep
from reports.searches import Tried
from reports.statistics import t_interval

POINTS_OF_SCORE = 100  # records hold 0..1, the paper prints points
LEAST_GAIN = 0.1
"""Minimum gain in nats over token frequencies for a model to count as trained: about four standard errors of the
difference on 4,000 predicted tokens."""
ABSENCES = ("failed", "undefined", "missing")


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


@dataclass(frozen=True)
class Cell:
    """One task of one row, in points.

    `score` is None if no trial has one. `ids` are the trials behind the score, `recorded` all trials of the counted
    seeds. `absent` lists the grid points without a score, seed by seed, by state (`ABSENCES`): a point is undefined if
    its metric has no value, such as the correlation of a constant prediction. `tried` is the search whose best point it
    is, None for a grid.
    """

    score: Estimate | None
    point: Point | None
    ids: Mapping[Seeds, str]
    absent: Mapping[str, tuple[str, ...]]
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
        has_all = not (self.absent["failed"] or self.absent["missing"])
        return self.score is not None and self.tried is None and has_all

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


@dataclass(frozen=True)
class Row:
    """A variant at one checkpoint, or an external model (without `variant` and stage) on its largest grid.

    `source` is the source of a variant's numbers, or the id of an external model. `recipe` is the variant's recipe at
    the group's scale. `cells` are GLUE's tasks, `own_cells` those that a ladder declares. `is_started` is true if a
    study with the row's grid was begun. `runs` are the variant's pre-training runs, one per seed, `heldout` their held-
    out losses, `answers` their records of BLiMP; `origins` identifies all data used for training and evaluation.
    `nested` is GLUE's average of nested scores, which do not gain from the choice of a point.
    """

    name: str
    label: str
    source: str
    runs: pd.DataFrame
    heldout: pd.DataFrame
    answers: pd.DataFrame
    variant: Variant | None = None
    stage: int | None = None
    is_started: bool = True
    origins: tuple[str, ...] = ()
    scaled_recipe: Recipe | None = None
    cells: Mapping[str, Cell] = field(default_factory=dict)
    own_cells: Mapping[str, Cell] = field(default_factory=dict)
    nested: Estimate | None = None
    notes: tuple[str, ...] = ()

    @property
    def recipe(self) -> Recipe:
        """The recipe of a variant at the scale of its group."""
        assert self.scaled_recipe is not None, self.name
        return self.scaled_recipe

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
    def scored_tasks(self) -> tuple[str, ...]:
        return tuple(task for task, cell in self.cells.items() if cell.score is not None)

    @property
    def is_best_of_whole_grid(self) -> bool:
        """Whether every score was chosen among all points of the grid."""
        return all(cell.is_best_of_whole_grid for cell in self.cells.values() if cell.score is not None)

    @property
    def is_of_incomplete_grid(self) -> bool:
        """Whether a score was chosen among some points of a grid, and not by a search."""
        return any(cell.choice_mark == "†" for cell in self.cells.values() if cell.score is not None)

    @property
    def searched(self) -> tuple[Tried, ...]:
        """The searches whose best points the scores are."""
        cells = (*self.cells.values(), *self.own_cells.values())
        return tuple(cell.tried for cell in cells if cell.tried is not None)

    @property
    def average(self) -> Estimate | None:
        """Flat mean of the eight tasks; None unless some seed has all of them."""
        return self.mean_over(tuple(TASKS))

    def mean_over(self, tasks: Sequence[str]) -> Estimate | None:
        """Return the flat mean of some tasks over the seeds that have all of them; None if there is no such seed."""
        return flat_mean([self.cells[task].score for task in tasks])

    def trial_ids(self, tasks: Iterable[str], seeds: Iterable[Seeds] | None = None) -> tuple[str, ...]:
        """Return the trials behind the scores of some tasks, for all seeds or the given ones."""
        cells = {**self.cells, **self.own_cells}
        own = {task: cells[task].ids for task in tasks}
        wanted = {each for ids in own.values() for each in ids} if seeds is None else set(seeds)
        return tuple(sorted({trial for ids in own.values() for each, trial in ids.items() if each in wanted}))

    def mean_ids(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """Return the trials behind the mean over some tasks."""
        mean = self.mean_over(tasks)
        return self.trial_ids(tasks, mean.by_seeds) if mean else ()


@dataclass(frozen=True)
class Group:
    """All rows of one scale and data source: one figure. `rows` are the variants of `ladder` and the alternatives with
    records, `external` the external models, `design_rows` the variants of designs and at other rates at their last
    checkpoint, by name, if they have records. `sweeps` are peak-rate sweeps, by variant of the ladder."""

    ladder: Ladder
    scale: Scale
    data: str
    vocabulary: Vocabulary
    rows: tuple[Row, ...]
    external: tuple[Row, ...]
    design_rows: Mapping[str, Row]
    sweeps: Mapping[str, Sweep]
    unavailable_tasks: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The variants, followed by external models."""
        return (*self.rows, *self.external)

    @property
    def recorded_rows(self) -> tuple[Row, ...]:
        """Every row with records: the ladder's, those of designs outside the ladder, and external models."""
        own = {row.name for row in self.rows}
        designs = [row for name, row in self.design_rows.items() if name not in own]
        return tuple(row for row in (*self.rows, *designs, *self.external) if row.has_records)

    @property
    def shared_tasks(self) -> tuple[str, ...]:
        """Tasks that all rows with scores have in common."""
        scored = [set(row.scored_tasks) for row in self.rows if row.scored_tasks]
        return tuple(task for task in TASKS if scored and all(task in tasks for tasks in scored))

    @cached_property
    def last_rows(self) -> dict[str, Row]:
        """The row of each variant's last checkpoint."""
        return {row.name: row for row in self.rows if row.stage == len(row.recipe.pretraining.stages) - 1}

    @cached_property
    def compared_rows(self) -> dict[str, Row]:
        """Rows compared by designs: last checkpoints of the ladder and of designs, by name."""
        return {**self.design_rows, **self.last_rows}

    def row_at_best_rate(self, name: str) -> Row | None:
        """Return the row of a ladder variant at its sweep's best rate, or at the nearest rate that counts as the same;
        None if there is no optimum or no record at that rate."""
        sweep = self.sweeps.get(name)
        if sweep is None or sweep.optimum is None:
            return None
        best = sweep.optimum.exact
        own = {
            row.recipe.pretraining.optimization.peak_learning_rate: row
            for row in self.compared_rows.values()
            if row.has_records and without_rate(row.name) == name
        }
        near = [rate for rate in own if are_same(rate, best)]
        return own[min(near, key=lambda rate: abs(math.log(rate / best)))] if near else None


def point_name(point: Point) -> str:
    """Format a point as batch/rate/decay."""
    return f"{point.batch_size}/{point.learning_rate:g}/{point.weight_decay:g}"
