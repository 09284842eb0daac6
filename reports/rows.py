"""Rows: runs and trials are joined to the variants that they belong to, and a sentence tells each that belongs to none.

A variant has every run with its recipe up to a stage, and every trial on such a run with its fine-tuning protocol and a
point of its grid, whatever their labels are, so variants with equal recipes share records. Missing trials are never
averaged away, and different recipes are never paired.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import pandas as pd

from ablations.ladders import Ladder
from ablations.names import variants_in
from ablations.recipe_runs import protocol_on
from ablations.scales import Scale, Vocabulary
from ablations.scaling import scaled
from ablations.variant import Recipe, Variant
from neobert.errors import name_first
from neobert.glue.tasks import TASKS, Task, task_title
from neobert.identity import canonical
from neobert.kinds.glue import GlueStudy
from reports.embeddings import EmbeddingRow, find_embeddings
from reports.facts import weights_up_to
from reports.frames import (
    Frames,
    Tried,
    describe_difference,
    grid_key,
    select_group,
    split_by_version,
    why_of_another,
)
from reports.rates import PilotSweep, find_sweeps
from reports.scores import (
    POINTS_OF_SCORE,
    Estimate,
    ScoreRow,
    Seeds,
    count_trials,
    flat_mean,
    prefer_searches,
)


@dataclass(frozen=True)
class Study:
    """All rows of one scale and data source. `rows` are the variants of the ladder and the alternatives with records,
    `external` the external models, `design_rows` the variants of designs and at other rates at their last checkpoint,
    by name, if they have records. `sweeps` are peak-rate sweeps, by variant of the ladder. `left_out` has a sentence
    for every run and trial that is in no row."""

    frames: Frames = field(repr=False)
    scale: Scale
    data: str
    vocabulary: Vocabulary
    rows: tuple[ScoreRow, ...]
    external: tuple[ScoreRow, ...]
    design_rows: Mapping[str, ScoreRow]
    sweeps: Mapping[str, PilotSweep]
    unavailable_tasks: Mapping[str, str]
    left_out: tuple[str, ...]

    @property
    def ladder(self) -> Ladder:
        return self.frames.ladder

    @property
    def where(self) -> str:
        """The scale and data source, as titles name them."""
        return f"scale {self.scale}, data {self.data}"

    @property
    def all_rows(self) -> tuple[ScoreRow, ...]:
        """The variants, followed by external models."""
        return (*self.rows, *self.external)

    @property
    def table_rows(self) -> tuple[ScoreRow, ...]:
        """The ladder's rows, those of designs and other rates with records, and external models."""
        return (*self.rows, *self.design_rows.values(), *self.external)

    @property
    def shared_tasks(self) -> tuple[str, ...]:
        """Tasks that all rows with scores have in common."""
        scored = [set(row.scored_tasks) for row in self.rows if row.scored_tasks]
        own = self.ladder.glue_tasks
        return tuple(task for task in own if scored and all(task in tasks for tasks in scored))

    @cached_property
    def averaged_tasks(self) -> tuple[str, ...]:
        """The tasks of GLUE's mean: the ladder's, or the shared ones if no variant has a score in all of them."""
        has_average = any(row.average for row in self.last_rows.values())
        return self.ladder.glue_tasks if has_average or not self.shared_tasks else self.shared_tasks

    @property
    def is_average_of_eight(self) -> bool:
        """Whether GLUE's mean is over all eight tasks, as published averages are."""
        return set(self.averaged_tasks) == set(TASKS)

    @property
    def quantity(self) -> str:
        """Name of GLUE's mean."""
        if self.is_average_of_eight:
            return "GLUE average"
        titles = ", ".join(map(task_title, self.averaged_tasks))
        if len(self.averaged_tasks) == 1:
            return titles
        return (
            f"mean of {titles}" if self.averaged_tasks == self.ladder.glue_tasks else f"mean of shared tasks: {titles}"
        )

    @cached_property
    def last_rows(self) -> dict[str, ScoreRow]:
        """The row of each variant's last checkpoint."""
        return {row.name: row for row in self.rows if row.is_last}

    @cached_property
    def compared_rows(self) -> dict[str, ScoreRow]:
        """Rows compared by designs: last checkpoints of the ladder and of designs, by name."""
        return {**self.design_rows, **self.last_rows}

    def row_at_best_rate(self, name: str) -> ScoreRow | None:
        """Return the row of a ladder variant at its sweep's best rate; None if it has no records there."""
        sweep = self.sweeps.get(name)
        row = None if sweep is None else self.compared_rows.get(sweep.best)
        return row if row is not None and row.has_records else None

    @cached_property
    def run_labels(self) -> dict[str, str]:
        """A label per run: its row labels, or else the variants that it was planned for."""
        labels: dict[str, list[str]] = {}
        for row in self.rows:
            for run in row.run_ids:
                labels.setdefault(run, []).append(row.label)
        runs = self.frames.runs
        for run, names, stage in zip(runs.id, runs.variants, runs.stage, strict=True):
            labels.setdefault(run, [f"{', '.join(names) or run} after stage {stage + 1}"])
        return {run: ", ".join(names) for run, names in labels.items()}

    @cached_property
    def seeds(self) -> dict[str, int]:
        """The seed of each run."""
        return dict(zip(self.frames.runs.id, self.frames.runs.seed, strict=True))

    @cached_property
    def _embeddings(self) -> tuple[tuple[EmbeddingRow, ...], tuple[str, ...]]:
        results = select_group(self.frames.by_kind["mteb"], self.scale, self.data)
        return find_embeddings(results, self.run_labels, self.seeds)

    @property
    def embeddings(self) -> tuple[EmbeddingRow, ...]:
        return self._embeddings[0]

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for everything that is not counted."""
        return (*self.left_out, *self._embeddings[1])


def read_study(frames: Frames, scale: Scale, data: str) -> Study:
    """Return the rows of one (scale, data): every variant of the ladder, and alternatives (@) with records."""
    ladder, vocabulary = frames.ladder, frames.vocabulary(scale, data)
    trials, runs = select_group(frames.trials, scale, data), frames.runs_of(scale, data)
    is_named = trials.task.isin(list(ladder.tasks))
    others, trials = _other_tasks(trials[~is_named]), trials[is_named]
    is_external = trials.model.notna()
    recipes = {name: scaled(ladder, variant.recipe, scale, vocabulary) for name, variant in ladder.variants.items()}
    pretraining = {name: recipes[name].pretraining for name in ladder.steps}
    labels = dict.fromkeys(name for names in runs.variants for name in names)
    variants = ladder.variants | variants_in(ladder, labels)
    for name in variants:
        with suppress(ValueError):  # a variant of a design may be impossible at this scale
            recipes.setdefault(name, scaled(ladder, variants[name].recipe, scale, vocabulary))
    join = _Join(frames, variants, recipes, runs, trials[~is_external])
    rows = [row for row in join.rows if row.name in ladder.variants]
    shown = [row for row in rows if row.name in ladder.steps or join.has_own_records(row)]
    lineages = {name for row in shown if row.variant for name in row.variant.lineage()}
    designs = [row for row in join.rows if row.name not in ladder.variants and row.is_last and row.has_records]
    return Study(
        frames=frames,
        scale=scale,
        data=data,
        vocabulary=vocabulary,
        rows=tuple(join.with_scores(row) for row in rows if row.name in lineages),
        external=tuple(_external_rows(frames, trials[is_external])),
        design_rows={row.name: join.with_scores(row) for row in designs},
        sweeps=find_sweeps(frames, pretraining, scale, data),
        unavailable_tasks={task: reason for own in runs.unavailable_tasks for task, reason in sorted(own.items())},
        left_out=tuple(sorted([*join.left_out, *others])),
    )


def _other_tasks(trials: pd.DataFrame) -> list[str]:
    """Return sentences about trials on tasks that the ladder does not name."""
    counts = trials.groupby("task").size().items()
    return [f"{count} trial(s) on {task_title(task)}, which is not among the ladder's TASKS" for task, count in counts]


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint that a variant evaluates: its row without cells, the grids that were begun on its runs, the trials
    that count for these, and the searches on its runs."""

    row: ScoreRow
    begun: pd.DataFrame
    counted: pd.DataFrame
    searches: Sequence[Tried]


class _Join:
    """Runs, grids, searches and trials, joined to the checkpoints of variants.

    Trials that transfer must start from a grid of the same protocol and points; those of a smaller grid do not count as
    a start of a larger one.
    """

    def __init__(
        self,
        frames: Frames,
        variants: Mapping[str, Variant],
        recipes: Mapping[str, Recipe],
        runs: pd.DataFrame,
        trials: pd.DataFrame,
    ) -> None:
        self._frames, self._ladder, self._recipes = frames, frames.ladder, recipes
        self._runs, twins = _without_twins(runs, trials)
        self._trials = _with_seeds(trials[~trials.run.isin(set(twins))], "run", runs)
        self._checkpoints: dict[tuple[str, int | None], _Checkpoint] = {}
        known: set[str] = set()
        for name, recipe in recipes.items():
            last = len(recipe.pretraining.stages) - 1
            for stage in range(last + 1):
                weights = weights_up_to(recipe.pretraining, stage).model_dump_json()
                own = self._runs[(self._runs.recipe == weights) & (self._runs.stage == stage)]
                known.update(own.id)
                if stage == last or recipe.checkpoints == "every_stage":
                    self._checkpoints[name, stage] = self._checkpoint(variants[name], stage, own)
        strange = self._runs[~self._runs.id.isin(known)]
        self.rows = [each.row for each in self._checkpoints.values()]
        self.left_out = [*twins.values(), *self._strange_runs(strange), *self._lost_trials(strange, set(runs.id))]

    def _checkpoint(self, variant: Variant, stage: int, runs: pd.DataFrame) -> _Checkpoint:
        recipe, ids, frames = self._recipes[variant.name], set(runs.id), self._frames
        heldout, answers = frames.heldout, frames.readouts_of("blimp")
        row = ScoreRow(
            name=variant.name,
            label=_label(self._ladder, variant, recipe.pretraining.stages[stage].context),
            source=variant.source,
            variant=variant,
            stage=stage,
            runs=runs,
            heldout=heldout[heldout.run.isin(ids)],
            answers=answers[answers.run.isin(ids)],
            scaled_recipe=recipe,
        )
        begun = self._begun(recipe, runs)
        trials = self._trials[self._trials.run.isin(ids if len(begun) else ())]
        starts_right = trials.start.isna() | trials.start.isin(set(begun.id))
        fits = self._has_protocol(trials, recipe) & trials.point.isin(recipe.grid.points()) & starts_right
        searches = [
            tried
            for tried in frames.searches.values()
            if tried.study.weights in ids and _is_under(self._ladder, tried.study, recipe)
        ]
        return _Checkpoint(row, begun, trials[fits & _is_declared(self._ladder, trials)], searches)

    def _begun(self, recipe: Recipe, runs: pd.DataFrame) -> pd.DataFrame:
        """Return the grids of a recipe's protocol and points that were begun on runs."""
        studies = self._frames.studies
        grids = studies[studies.weights.isin(set(runs.id)) & (studies.grid == grid_key(recipe.grid.points()))]
        return _with_seeds(grids[self._has_protocol(grids, recipe)], "weights", runs)

    def _has_protocol(self, frame: pd.DataFrame, recipe: Recipe) -> pd.Series:
        """Whether each study or trial has a recipe's protocol for its task, with or without transfer."""
        protocols = {
            (name, transfers): protocol_on(task, recipe.finetuning, transfers=transfers).model_dump_json()
            for name, task in self._ladder.tasks.items()
            for transfers in (False, True)
        }
        wanted = [protocols.get((task, start is not None)) for task, start in zip(frame.task, frame.start, strict=True)]
        return frame.protocol == pd.Series(wanted, index=frame.index, dtype=object)

    def _strange_runs(self, runs: pd.DataFrame) -> list[str]:
        """Return sentences about runs that match no variant."""
        is_of_other = runs.ladder != self._ladder.name
        others = runs[is_of_other].groupby("ladder").size().items()
        told = [f"{count} pre-training run(s) {why_of_another(ladder)}" for ladder, count in others]
        return told + [
            f"pre-training run {run.id} (stage {run.stage + 1}) has the recipe of no declared variant"
            for run in runs[~is_of_other].itertuples()
        ]

    def _lost_trials(self, strange: pd.DataFrame, known: set[str]) -> list[str]:
        """Return sentences about trials that match no variant, but for those on runs of another ladder."""
        counted = set[str]()
        for each in self._checkpoints.values():
            counted = counted.union(each.counted.id, *(tried.trials for tried in each.searches))
        of_others = set(strange.id[strange.ladder != self._ladder.name])
        lost = self._trials[~self._trials.id.isin(counted) & ~self._trials.run.isin(of_others)]
        told = []
        for run, own in lost.groupby("run"):
            why = "match no variant's protocol, grid and study" if run in known else "have no run record"
            told.append(f"{len(own)} trial(s) on pre-training run {run} {why}: {name_first(sorted(own.id))}")
        return told

    def has_own_records(self, row: ScoreRow) -> bool:
        """Whether an alternative has records that no variant of the ladder shows already."""
        others = [self._recipes[name] for name in self._ladder.steps]
        twins = [other for other in others if other.pretraining == row.recipe.pretraining]
        own = set(self._begun(row.recipe, row.runs).id).difference(*(self._begun(each, row.runs).id for each in twins))
        return row.recipe not in others and bool(own or (not twins and row.losses))

    def with_scores(self, row: ScoreRow) -> ScoreRow:
        """Return a row with its cells."""
        own = self._checkpoints[row.name, row.stage]
        cells, notes = count_trials(self._ladder, own.counted, row.recipe.grid.points())
        nested = _nested(own.begun, self._ladder.glue_tasks)
        on_runs = self._trials[self._trials.run.isin(set(row.runs.id))]
        return _with_searches(replace(row, cells=cells, notes=tuple(notes), nested=nested), on_runs, own.searches)


def _without_twins(runs: pd.DataFrame, trials: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the runs that count, and a sentence for each of the others by its id: of a recipe, the runs on the data
    and numerics with most trials (then most runs) count."""
    twins = {}
    runs = runs.assign(trials=runs.id.map(trials.run.value_counts()).fillna(0).astype(int))
    is_counted, version = split_by_version(runs, ("recipe", "stage"), runs.trials)
    for run in runs.assign(kept=version)[~is_counted].itertuples():
        twins[run.id] = (
            f"run {run.id} (seed {run.seed}) rests on other data or numerics than most runs of its recipe "
            f"({describe_difference(run.version, run.kept)}): it and its {run.trials} trial(s) are left out"
        )
    return runs[~runs.id.isin(set(twins))], twins


def _is_under(ladder: Ladder, study: GlueStudy, recipe: Recipe) -> bool:
    """Whether a study follows a recipe's protocol on a task of the ladder."""
    task, transfers = ladder.tasks.get(study.task), study.starts_from.study is not None
    if task is None or (study.own_task is not None and canonical(study.own_task) != canonical(task)):
        return False
    return study.protocol == protocol_on(task, recipe.finetuning, transfers=transfers)


def _is_declared(ladder: Ladder, trials: pd.DataFrame) -> pd.Series:
    """Whether each trial is of a task as the ladder declares it, or of GLUE."""
    declared = {name: canonical(task) for name, task in ladder.own_tasks.items()}
    pairs = zip(trials.task, trials.own_task, strict=True)
    same = [not isinstance(own, Task) or canonical(own) == declared.get(task) for task, own in pairs]
    return pd.Series(same, index=trials.index, dtype=bool)


def _label(ladder: Ladder, variant: Variant, context: int) -> str:
    """Return a row's name: the paper's name for the checkpoints it prints, with the context at this scale."""
    if (printed := ladder.printed_as.get(variant.name)) is not None:
        return f"{printed}-{context} ({variant.name})"
    return f"{variant.name} ({context} tokens)" if variant.recipe.checkpoints == "every_stage" else variant.name


def _with_seeds(frame: pd.DataFrame, column: str, runs: pd.DataFrame) -> pd.DataFrame:
    """Add the `seeds` of trials or studies: that of the run in a column (0 for one without a record), and their own."""
    of_runs = dict(zip(runs.id, runs.seed, strict=True))
    pairs = zip(frame[column], frame.seed, strict=True)
    return frame.assign(seeds=[Seeds(of_runs.get(run, 0), seed) for run, seed in pairs])


def _nested(grids: pd.DataFrame, tasks: Sequence[str]) -> Estimate | None:
    """Return the average of the nested scores in points, over the seeds that have all tasks."""
    by_task: dict[str, dict[Seeds, float]] = {task: {} for task in tasks}
    own = grids[grids.nested.notna() & grids.task.isin(list(tasks))]
    # a study that starts from MNLI replaces one from pre-training
    for study in own.sort_values(["start", "id"], na_position="first").itertuples():
        by_task[study.task][study.seeds] = POINTS_OF_SCORE * study.nested
    return flat_mean([Estimate(values) if values else None for values in by_task.values()])


def _with_searches(row: ScoreRow, trials: pd.DataFrame, searches: Sequence[Tried]) -> ScoreRow:
    """Return a row with the scores of searches where it has none of a whole grid."""
    if not searches:
        return row
    cells, notes = prefer_searches(row.cells, trials, searches)
    return replace(row, cells=cells, notes=(*row.notes, *notes))


def _external_rows(frames: Frames, trials: pd.DataFrame) -> list[ScoreRow]:
    """Return a row per external model with trials, sorted by name, on the largest grid begun on it. Models with the
    same name and different bytes are distinguished by id."""
    trials, studies = _with_seeds(trials, "run", frames.runs.iloc[:0]), frames.studies
    names = trials.groupby("run").model.first()
    rows = []
    for model_id, own in trials.groupby("run"):
        name = names[model_id] if (names == names[model_id]).sum() == 1 else f"{names[model_id]} {model_id}"
        searches = [tried for tried in frames.searches.values() if tried.study.weights == model_id]
        searched = frozenset[str]().union(*(tried.trials for tried in searches))
        recorded = tuple(dict.fromkeys(own.point[~own.id.isin(searched)]))
        grid = max(studies.points[studies.weights == model_id], key=len, default=recorded)
        on_others = set(studies.id[studies.grid != grid_key(grid)])
        fitting = own[own.point.isin(grid) & ~own.start.isin(on_others)]
        cells, notes = count_trials(frames.ladder, fitting, grid)
        row = ScoreRow(
            name=name,
            label=name,
            source=str(model_id),
            runs=frames.runs.iloc[:0],
            heldout=frames.heldout.iloc[:0],
            answers=frames.readouts.iloc[:0],
            cells=cells,
            notes=tuple(notes),
        )
        rows.append(_with_searches(row, own, searches))
    return sorted(rows, key=lambda row: (row.name, row.source))
