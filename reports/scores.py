"""Trials → rows of scores: best of the grid, average of the eight tasks, spread over seeds, and all that is missing.

A row is a variant at one of its checkpoints, or an external model. A variant's row takes every trial whose pre-training
recipe, fine-tuning protocol and grid point are the variant's own, whatever the record is labelled, so variants with
equal recipes share records. What is missing is never averaged away, and different recipes never pair.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from ablations.designs import variants_of_designs
from ablations.ladder import ladder, variants
from ablations.plan import protocol_on
from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Recipe, Variant
from neobert.glue.selection import best_point
from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.evidence import Evidence, make_frame, select_group, weights_up_to

POINTS_OF_SCORE = 100  # records hold 0..1, the paper prints points
PRINTED_AS = {"M10": "NeoBERT"}  # caption of Table 3: the two checkpoints under the larger grid
ABSENCES = ("failed", "undefined", "missing", "pruned")


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

    @property
    def by_pretraining(self) -> dict[int, float]:
        """The mean over the fine-tuning seeds of each pre-training: they tell nothing about other pre-trainings."""
        own: dict[int, list[float]] = {}
        for seeds, value in sorted(self.by_seeds.items()):
            own.setdefault(seeds.pretraining, []).append(value)
        return {seed: statistics.fmean(values) for seed, values in own.items()}

    def at(self, seeds: Iterable[Seeds]) -> "Estimate":
        """The same at some of the seeds."""
        return Estimate({each: self.by_seeds[each] for each in seeds})


@dataclass(frozen=True)
class Cell:
    """One task of one row, in points.

    `score` is None where no trial has one. `ids` are the trials that it comes from, `recorded` all trials of the seeds
    that count. `absent` names the points of the grid without a score, seed by seed, by state (`ABSENCES`): a point is
    undefined where its metric has no value, as a constant prediction has no correlation.
    """

    score: Estimate | None
    point: Point | None
    ids: Mapping[Seeds, str]
    absent: Mapping[str, tuple[str, ...]]
    fallback: str | None
    recorded: pd.DataFrame = field(compare=False)

    @property
    def trials(self) -> int:
        """How many trials ran; 0 means that the task was never run."""
        return len(self.recorded)

    @property
    def is_best_of_whole_grid(self) -> bool:
        """Whether the score was chosen among all points of the grid."""
        return self.score is not None and not (self.absent["failed"] or self.absent["missing"])

    @property
    def marks(self) -> str:
        """† best of an incomplete grid; ‡ started from pre-training instead of MNLI."""
        return ("" if self.is_best_of_whole_grid else "†") + ("‡" if self.fallback else "")


@dataclass(frozen=True)
class Row:
    """A variant at one checkpoint, or an external model (without `variant`, stage and context) on its largest grid.

    `source` is where a variant's numbers come from, of an external model its id. `recipe` is the variant's at the scale
    of the group, `context` is in tokens. `is_started` says that a study with the row's grid was begun. `runs` are the
    variant's pre-training runs, one a seed, `heldout` their held-out losses; `origins` is what identifies all data
    that it was trained and measured on.
    """

    name: str
    label: str
    source: str
    variant: Variant | None
    stage: int | None
    context: int | None
    is_last_stage: bool
    is_started: bool
    cells: Mapping[str, Cell]
    notes: tuple[str, ...]
    runs: pd.DataFrame
    heldout: pd.DataFrame
    origins: tuple[str, ...] = ()
    scaled_recipe: Recipe | None = None

    @property
    def recipe(self) -> Recipe:
        """The recipe of a variant at the scale of its group."""
        assert self.scaled_recipe is not None, self.name
        return self.scaled_recipe

    @property
    def kept(self) -> bool:
        """Whether it is no discarded variant."""
        return self.variant is None or self.variant.kept

    @property
    def parent(self) -> str:
        """The variant that it changes; empty for the baseline and for external models."""
        return self.variant.parent.name if self.variant is not None and self.variant.parent is not None else ""

    @property
    def has_records(self) -> bool:
        """Whether anything at all is known of it."""
        return self.variant is None or len(self.runs) > 0

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The pre-training runs behind its held-out losses."""
        return tuple(sorted(self.runs.id))

    @cached_property
    def losses(self) -> dict[str, Estimate]:
        """Held-out MLM losses in nats a token by corpus, each in the run's own context."""
        own = self.heldout[self.heldout.context.isna()]
        return {str(corpus): _estimate_by_run(found, "loss") for corpus, found in own.groupby("corpus")}

    @cached_property
    def bits_per_byte(self) -> dict[tuple[str, int], Estimate]:
        """Held-out losses in bits per byte of text, by corpus and context in tokens."""
        own = self.heldout[self.heldout.context.notna()]
        return {place: _estimate_by_run(found, "bits_per_byte") for place, found in own.groupby(["corpus", "context"])}

    @property
    def own_loss(self) -> tuple[str, Estimate] | None:
        """The held-out loss on the corpus that the variant was trained on, and that corpus."""
        corpora = sorted({weights.data.corpus for weights in self.runs.weights} & set(self.losses))
        return (corpora[0], self.losses[corpora[0]]) if corpora else None

    @property
    def scored_tasks(self) -> tuple[str, ...]:
        """The tasks that have a score, in the paper's order."""
        return tuple(task for task, cell in self.cells.items() if cell.score is not None)

    @property
    def is_best_of_whole_grid(self) -> bool:
        """Whether every score was chosen among all points of the grid."""
        return all(cell.is_best_of_whole_grid for cell in self.cells.values() if cell.score is not None)

    @property
    def average(self) -> Estimate | None:
        """The flat mean of the eight tasks; None unless some seed has all of them."""
        return self.mean_over(tuple(TASKS))

    def mean_over(self, tasks: Sequence[str]) -> Estimate | None:
        """The flat mean of some tasks over the seeds that have all of them; None where there is no such seed."""
        scores = [cell.score.by_seeds for cell in map(self.cells.__getitem__, tasks) if cell.score is not None]
        if not tasks or len(scores) < len(tasks):
            return None
        complete = sorted(set.intersection(*(set(by_seeds) for by_seeds in scores)))
        means = {seeds: statistics.fmean(by_seeds[seeds] for by_seeds in scores) for seeds in complete}
        return Estimate(means) if means else None

    def trial_ids(self, tasks: Iterable[str], seeds: Iterable[Seeds] | None = None) -> tuple[str, ...]:
        """The trials behind the scores of some tasks, of all seeds or of some."""
        own = {task: self.cells[task].ids for task in tasks}
        wanted = {each for ids in own.values() for each in ids} if seeds is None else set(seeds)
        return tuple(sorted({trial for ids in own.values() for each, trial in ids.items() if each in wanted}))

    def mean_ids(self, tasks: Sequence[str]) -> tuple[str, ...]:
        """The trials behind the mean over some tasks."""
        mean = self.mean_over(tasks)
        return self.trial_ids(tasks, mean.by_seeds) if mean else ()


@dataclass(frozen=True)
class Group:
    """All rows of one scale and source of data: one figure. `rows` are those of the ladder and of alternatives with
    records, `external` those of external models, `design_rows` the variants of designs at their last checkpoint, by
    name, where they have records."""

    scale: Scale
    data: str
    vocabulary: Vocabulary
    rows: tuple[Row, ...]
    external: tuple[Row, ...]
    design_rows: Mapping[str, Row]
    unavailable_tasks: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def all_rows(self) -> tuple[Row, ...]:
        """The variants, and behind them external models."""
        return (*self.rows, *self.external)

    @property
    def recorded_rows(self) -> tuple[Row, ...]:
        """Every row with records: the ladder's, those of designs that are not in it, and external models."""
        own = {row.name for row in self.rows}
        designs = [row for name, row in self.design_rows.items() if name not in own]
        return tuple(row for row in (*self.rows, *designs, *self.external) if row.has_records)

    @property
    def shared_tasks(self) -> tuple[str, ...]:
        """The tasks that every row with any score has."""
        scored = [set(row.scored_tasks) for row in self.rows if row.scored_tasks]
        return tuple(task for task in TASKS if scored and all(task in tasks for tasks in scored))

    @cached_property
    def last_rows(self) -> dict[str, Row]:
        """The row of each variant's last checkpoint."""
        return {row.name: row for row in self.rows if row.is_last_stage}

    @cached_property
    def compared_rows(self) -> dict[str, Row]:
        """The rows that designs compare: last checkpoints of the ladder and of designs, by name."""
        return {**self.design_rows, **self.last_rows}


def point_name(point: Point) -> str:
    """A point as batch/rate/decay."""
    return f"{point.batch_size}/{point.learning_rate:g}/{point.weight_decay:g}"


def group_of(evidence: Evidence, scale: Scale, data: str) -> Group:
    """The rows of one (scale, data): every variant of the ladder, and alternatives (@) that have records."""
    everything = select_group(evidence.trials, scale, data)
    trials = everything[everything.model.isna()]
    in_group = (evidence.runs.scale == scale) & (evidence.runs.data == data)
    runs = evidence.runs[in_group | evidence.runs.id.isin(set(trials.run))]
    matcher = _Matcher(evidence, runs, trials, scale, evidence.vocabulary(scale, data))
    of_ladder = [row for variant in variants().values() for row in matcher.rows(variant)]
    shown = [row for row in of_ladder if row.name in ladder() or matcher.has_own_records(row)]
    of_designs = variants_of_designs({name for names in runs.planned_for for name in names})
    designs = [row for variant in of_designs.values() if (row := matcher.last_row(variant)) is not None]
    drafts = [matcher.draft(row) for row in (*shown, *designs)]
    rows = _count_trials([*drafts, *_external_drafts(everything[everything.model.notna()], evidence)])
    ends = len(shown), len(shown) + len(designs)
    return Group(
        scale=scale,
        data=data,
        vocabulary=matcher.vocabulary,
        rows=tuple(rows[: ends[0]]),
        external=tuple(rows[ends[1] :]),
        design_rows={row.name: row for row in rows[ends[0] : ends[1]]},
        unavailable_tasks={task: reason for own in runs.unavailable_tasks for task, reason in sorted(own.items())},
        problems=tuple(matcher.problems()),
    )


Places = np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True)
class _Draft:
    """A row before its trials are counted: the points of its grid, and its trials with their `seeds`."""

    row: Row
    grid: tuple[Point, ...]
    trials: pd.DataFrame


@dataclass(frozen=True)
class _Measurement:
    """What is recorded of one protocol and grid: its studies by id, the weights that they are on, and the trials that
    fit, with their places by run. A trial that transfers must start from one of these studies."""

    studies: frozenset[str]
    weights: frozenset[str]
    trials: pd.DataFrame
    places: Mapping[str, Places]


class _Matcher:
    """Gives each variant its trials and remembers what no variant took."""

    def __init__(
        self, evidence: Evidence, runs: pd.DataFrame, trials: pd.DataFrame, scale: Scale, vocabulary: Vocabulary
    ) -> None:
        self.scale, self.vocabulary = scale, vocabulary
        self._run_ids = set(runs.id)
        self._twins: dict[str, str] = {}
        self._runs = self._one_run_per_seed(runs, trials)
        self._by_recipe = dict(list(self._runs.groupby(["recipe", "stage"])))
        self._heldout, self._heldout_places = evidence.heldout, evidence.heldout.groupby("run").indices
        self._trials = trials[~trials.run.isin(set(self._twins))]
        self._studies = _frame_of_studies(evidence)
        self._recipes: dict[str, Recipe] = {}
        self._measurements: dict[str, _Measurement] = {}
        self._taken: set[str] = set()
        self._taken_runs: set[str] = set()

    def _one_run_per_seed(self, runs: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
        """Of runs that differ only in data or numerics version the one with most trials; the others are named."""
        counts = runs.id.map(trials.run.value_counts()).fillna(0).astype(int)
        order = runs.assign(trials=counts).sort_values(["trials", "id"], ascending=[False, True])
        first = order.groupby(["recipe", "stage", "seed"]).id.transform("first")
        for twin, best, count in zip(order.id, first, order.trials, strict=True):
            if twin != best:
                self._twins[twin] = (
                    f"run {twin} has the recipe and seed of run {best}, which has more trials: it and its {count} "
                    "trial(s) are left out"
                )
        return runs[~runs.id.isin(set(self._twins))]

    def problems(self) -> list[str]:
        """One sentence for each run that no variant took or whose trials none took."""
        found = list(self._twins.values())
        for run, stage in zip(self._runs.id, self._runs.stage, strict=True):
            if run not in self._taken_runs:
                found.append(f"pre-training run {run} (stage {stage + 1}) has the recipe of no declared variant")
        for run, lost in self._trials[~self._trials.id.isin(self._taken)].groupby("run"):
            why = "match no variant's protocol, grid and study" if run in self._run_ids else "have no run record"
            found.append(f"{len(lost)} trial(s) on pre-training run {run} {why}: {_list_names(lost.id)}")
        return sorted(found)

    def recipe(self, variant: Variant) -> Recipe:
        """A variant's recipe at the scale of the group."""
        if variant.name not in self._recipes:
            self._recipes[variant.name] = scaled(variant.recipe, self.scale, self.vocabulary)
        return self._recipes[variant.name]

    def rows(self, variant: Variant) -> list[Row]:
        """One row for each checkpoint that the variant measures, without its cells."""
        recipe = self.recipe(variant)
        stages = range(len(recipe.pretraining.stages))
        return [self._row(variant, stage) for stage in (stages if recipe.checkpoints == "every_stage" else stages[-1:])]

    def last_row(self, variant: Variant) -> Row | None:
        """The row of a design's variant at its last checkpoint; None where the scale cannot hold the variant, or where
        nothing is recorded of it."""
        try:
            *_, row = self.rows(variant)
        except ValueError:
            return None
        for stage in range(row.stage or 0):
            self._take_runs(variant, stage)
        return row if row.has_records else None

    def _take_runs(self, variant: Variant, stage: int) -> pd.DataFrame:
        key = weights_up_to(self.recipe(variant).pretraining, stage).model_dump_json()
        runs = self._by_recipe.get((key, stage), self._runs.iloc[:0])
        self._taken_runs.update(runs.id)
        return runs

    def _row(self, variant: Variant, stage: int) -> Row:
        recipe, runs = self.recipe(variant), self._take_runs(variant, stage)
        measured, context = self._measurement(recipe), recipe.pretraining.stages[stage].context
        is_started = not measured.weights.isdisjoint(runs.id)
        if is_started:
            self._taken.update(_select(measured.trials, measured.places, runs.id).id)
        of_tasks = set(self._studies[self._studies.weights.isin(set(runs.id))].task_origin)
        return Row(
            name=variant.name,
            label=_label(variant, context),
            source=variant.source,
            variant=variant,
            stage=stage,
            context=context,
            is_last_stage=stage == len(recipe.pretraining.stages) - 1,
            is_started=is_started,
            cells={},
            notes=(),
            runs=runs,
            heldout=_select(self._heldout, self._heldout_places, runs.id),
            origins=tuple(sorted(of_tasks.union(*(origins.values() for origins in runs.origins)))),
            scaled_recipe=recipe,
        )

    def draft(self, row: Row) -> _Draft:
        """A row with its grid and its trials; a larger grid is not begun by the trials of a smaller one."""
        measured, seeds = self._measurement(row.recipe), dict(zip(row.runs.id, row.runs.seed, strict=True))
        trials = _select(measured.trials, measured.places, seeds if row.is_started else ())
        both = [Seeds(seeds[run], seed) for run, seed in zip(trials.run, trials.seed, strict=True)]
        return _Draft(row, row.recipe.grid.points(), trials.assign(seeds=both))

    def has_own_records(self, row: Row) -> bool:
        """Whether an alternative has something to show that no variant of the ladder shows already."""
        others = [self.recipe(variant) for variant in ladder().values()]
        twins = [other for other in others if other.pretraining == row.recipe.pretraining]
        of_twins = frozenset[str]().union(*(self._measurement(twin).studies for twin in twins))
        there = set(self._studies[self._studies.weights.isin(set(row.runs.id))].id)
        own = there & self._measurement(row.recipe).studies - of_twins
        return row.recipe not in others and bool(own or (not twins and row.losses))

    def _measurement(self, recipe: Recipe) -> _Measurement:
        key = f"{recipe.finetuning.model_dump_json()} {recipe.grid.model_dump_json()}"
        if key not in self._measurements:
            protocols = {
                (task, transfers): protocol_on(task, recipe.finetuning, transfers=transfers).model_dump_json()
                for task in TASKS
                for transfers in (False, True)
            }
            points, trials, studies = recipe.grid.points(), self._trials, self._studies
            own = studies[(studies.grid == _grid_key(points)) & _has_protocol(studies, protocols)]
            starts_right = trials.start.isna() | trials.start.isin(set(own.id))
            fits = _has_protocol(trials, protocols) & trials.point.isin(points) & starts_right
            places = trials[fits].groupby("run").indices
            self._measurements[key] = _Measurement(frozenset(own.id), frozenset(own.weights), trials[fits], places)
        return self._measurements[key]


def _frame_of_studies(evidence: Evidence) -> pd.DataFrame:
    """The studies, a row each; `start` is the study that it starts from, `grid` names its points in any order."""
    columns = ("id", "task", "weights", "protocol", "grid", "start", "task_origin")
    return make_frame(
        (
            {
                "id": study_id,
                "task": study.task,
                "weights": study.weights,
                "protocol": study.protocol.model_dump_json(),
                "grid": _grid_key(study.points),
                "start": study.starts_from.study,
                "task_origin": study.task_origin,
            }
            for study_id, study in evidence.studies.items()
        ),
        columns,
    )


def _grid_key(points: Iterable[Point]) -> str:
    return " ".join(sorted({point.model_dump_json() for point in points}))


def _has_protocol(frame: pd.DataFrame, protocols: Mapping[tuple[str, bool], str]) -> pd.Series:
    """Whether each study or trial has a variant's protocol on its task, as it starts from another one or not."""
    wanted = [protocols[task, start is not None] for task, start in zip(frame.task, frame.start, strict=True)]
    return frame.protocol == pd.Series(wanted, index=frame.index, dtype=object)


def _label(variant: Variant, context: int) -> str:
    """The name of a row: the paper's own for the checkpoints it prints, with the context at this scale."""
    if variant.name in PRINTED_AS:
        return f"{PRINTED_AS[variant.name]}-{context} ({variant.name})"
    return f"{variant.name} ({context} tokens)" if variant.recipe.checkpoints == "every_stage" else variant.name


def _list_names(names: Iterable[str], most: int = 3) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _select(frame: pd.DataFrame, places: Mapping[str, Places], keys: Iterable[str]) -> pd.DataFrame:
    """The rows at the places of some keys."""
    found = [places[key] for key in keys if key in places]
    return frame.iloc[np.concatenate(found)] if found else frame.iloc[:0]


def _estimate_by_run(heldout: pd.DataFrame, name: str) -> Estimate:
    return Estimate({Seeds(seed, seed): value for seed, value in zip(heldout.seed, heldout[name], strict=True)})


def _external_drafts(trials: pd.DataFrame, evidence: Evidence) -> list[_Draft]:
    """A row for each external model that has trials, by name, on the largest grid that was begun on it. Equal names of
    different bytes are told apart by id."""
    names = trials.groupby("run").model.first()
    drafts = []
    for model_id, own in trials.groupby("run"):
        grids = [study.points for study in evidence.studies.values() if study.weights == model_id]
        grid = max(grids, key=len, default=tuple(dict.fromkeys(own.point)))
        known = {name: _grid_key(study.points) for name, study in evidence.studies.items()}
        starts_right = [known.get(start, _grid_key(grid)) == _grid_key(grid) for start in own.start]
        fitting = own[own.point.isin(grid) & starts_right]
        name = names[model_id] if (names == names[model_id]).sum() == 1 else f"{names[model_id]} {model_id}"
        row = Row(
            name=name,
            label=name,
            source=str(model_id),
            variant=None,
            stage=None,
            context=None,
            is_last_stage=True,
            is_started=True,
            cells={},
            notes=(),
            runs=evidence.runs.iloc[:0],
            heldout=evidence.heldout.iloc[:0],
        )
        drafts.append(_Draft(row, grid, fitting.assign(seeds=[Seeds(0, seed) for seed in fitting.seed])))
    return sorted(drafts, key=lambda draft: (draft.row.name, draft.row.source))


def _count_trials(drafts: Sequence[_Draft]) -> list[Row]:
    """The rows with a cell for every task, and one sentence for each trial and seed that does not count.

    With several seeds the best point is the one with the highest mean over them. Only seeds that are equally far are
    counted together, so that a half-finished repetition changes no score.
    """
    notes: dict[int, list[str]] = {number: [] for number in range(len(drafts))}
    own = [draft.trials.assign(row=number, points=len(draft.grid)) for number, draft in enumerate(drafts)]
    trials = pd.concat(own) if own else make_frame([], ["row", "task"])
    if len(trials):
        trials = _without_repetitions(_without_fallbacks_beside_transfers(trials, notes), notes)
        trials = _of_furthest_seeds(trials, notes)
    recorded = dict(list(trials.groupby(["row", "task"])))
    return [
        replace(
            draft.row,
            cells={task: _cell(draft.grid, recorded.get((number, task), trials.iloc[:0])) for task in TASKS},
            notes=tuple(notes[number]),
        )
        for number, draft in enumerate(drafts)
    ]


Notes = Mapping[int, list[str]]  # by the number of a row


def _without_fallbacks_beside_transfers(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    transfers = trials.start.notna()
    are_left_out = ~transfers & transfers.groupby([trials.row, trials.task]).transform("any")
    for (row, task), count in trials[are_left_out].groupby(["row", "task"]).size().items():
        notes[row].append(f"{task}: {count} trial(s) from pre-training are left out beside transferred ones")
    return trials[~are_left_out]


def _without_repetitions(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """One trial a point and seeds: done ones before others, then by id."""
    trials = trials.assign(is_open=trials.state != "done").sort_values(["is_open", "id"])
    first = trials.groupby(["row", "task", "seeds", "point"], sort=False).id.transform("first")
    repeats = trials[trials.id != first]
    for row, task, trial, kept in zip(repeats.row, repeats.task, repeats.id, first[trials.id != first], strict=True):
        notes[row].append(f"{task}: trial {trial} repeats {kept} and is left out")
    return trials[trials.id == first]


def _of_furthest_seeds(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """The trials of the repetitions that got furthest: most tasks with a score and, among these, every point of the
    grid."""
    of_task = trials.groupby(["row", "seeds", "task"])
    begun = pd.DataFrame({"scored": of_task.score.count() > 0, "whole": of_task.size() == of_task.points.first()})
    of_seeds = begun.groupby(["row", "seeds"])
    tasks = of_seeds.scored.sum()
    progress = 2 * tasks + of_seeds.whole.all()
    is_behind = progress < progress.groupby("row").transform("max")
    for row, seeds in sorted(is_behind[is_behind].index):
        notes[row].append(
            f"seed {seeds} is unfinished ({tasks[row, seeds]} of {len(TASKS)} tasks with a score) and not counted yet"
        )
    behind = set(is_behind[is_behind].index)
    return trials[[place not in behind for place in zip(trials.row, trials.seeds, strict=True)]]


def _cell(grid: Sequence[Point], trials: pd.DataFrame) -> Cell:
    decisive: dict[Point, dict[int, float]] = {point: {} for point in grid}
    order = {seeds: number for number, seeds in enumerate(sorted(set(trials.seeds)))}
    states, scores, ids = {}, {}, {}
    for point, seeds, state, score, value, trial in zip(
        trials.point, trials.seeds, trials.state, trials.score, trials.decisive, trials.id, strict=True
    ):
        states[seeds, point] = state
        if state == "done":
            scores[point, seeds], ids[point, seeds] = score * POINTS_OF_SCORE, trial
        if not math.isnan(value):
            decisive[point][order[seeds]] = value
    best = best_point(decisive)
    counted = [seeds for seeds in order if (best, seeds) in scores]
    absent: dict[str, list[str]] = {state: [] for state in ABSENCES}
    for seeds in order:
        for point in grid:
            state = states.get((seeds, point), "missing")
            if state != "done":
                absent[state].append(f"{point_name(point)} (seed {seeds})")
    return Cell(
        score=None if best is None else Estimate({seeds: scores[best, seeds] for seeds in counted}),
        point=best,
        ids={} if best is None else {seeds: ids[best, seeds] for seeds in counted},
        absent={state: tuple(names) for state, names in absent.items()},
        fallback="; ".join(sorted({reason for reason in trials.fallback if reason})) or None,
        recorded=trials,
    )
