"""Match records to rows: which runs and trials belong to a variant, and a sentence for each that belongs to none.

A variant's row takes every trial with the variant's pre-training recipe, fine-tuning protocol and grid point, whatever
its labels are, so variants with equal recipes share records. Missing trials are never averaged away, and different
recipes are never paired.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ablations.ladders import Ladder
from ablations.names import variants_in
from ablations.recipe_runs import protocol_on
from ablations.scales import Scale, Vocabulary
from ablations.scaling import scaled
from ablations.variant import Recipe, Variant
from neobert.errors import name_first
from neobert.glue.tasks import TASKS, Task
from neobert.identity import canonical
from neobert.kinds.glue import GlueStudy
from neobert.recipe import Point
from reports.basis import describe_difference, split_by_basis
from reports.counting import all_tasks, count_trials, prefer_searches
from reports.evidence import Evidence, select_group, split_repeats
from reports.facts import weights_up_to
from reports.labels import why_of_another
from reports.rates import find_sweeps, variants_at_rates
from reports.scores import POINTS_OF_SCORE, Estimate, Group, Row, Seeds, flat_mean
from reports.searches import Tried
from reports.tables import frame_of


def group_of(evidence: Evidence, scale: Scale, data: str) -> Group:
    """Return the rows of one (scale, data): every variant of the ladder, and alternatives (@) with records."""
    ladder = evidence.ladder
    everything = select_group(evidence.trials, scale, data)
    is_external = everything.model.notna()
    runs = evidence.runs_of(scale, data)
    builder = _RowBuilder(evidence, runs, everything[~is_external], scale, evidence.vocabulary(scale, data))
    of_ladder = [row for variant in ladder.variants.values() for row in builder.rows(variant)]
    own = [row for row in of_ladder if row.name in ladder.steps or builder.has_own_records(row)]
    lineages = {name for row in own if row.variant for name in row.variant.lineage()}
    of_designs = filter(None, map(builder.last_row, _designed(ladder, runs, scale, builder.vocabulary)))
    return Group(
        ladder=ladder,
        scale=scale,
        data=data,
        vocabulary=builder.vocabulary,
        rows=tuple(builder.with_scores(row) for row in of_ladder if row.name in lineages),
        external=tuple(_external_rows(everything[is_external], evidence)),
        design_rows={row.name: builder.with_scores(row) for row in of_designs},
        sweeps=find_sweeps(evidence, scale, data, builder.vocabulary),
        unavailable_tasks={task: reason for own in runs.unavailable_tasks for task, reason in sorted(own.items())},
        problems=tuple(builder.problems()),
    )


def _designed(ladder: Ladder, runs: pd.DataFrame, scale: Scale, vocabulary: Vocabulary) -> Iterable[Variant]:
    """Return the variants beside the ladder that labels of runs name, or that have another peak rate."""
    labels = {name for names in runs.variants for name in names}
    return (variants_in(ladder, labels) | variants_at_rates(ladder, runs, scale, vocabulary)).values()


Places = np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True)
class _Measurement:
    """Records of one protocol and grid: the ids of its studies, the weights that they fine-tune, and the matching
    trials, with their positions by run. A trial that transfers must start from one of these studies."""

    studies: frozenset[str]
    weights: frozenset[str]
    trials: pd.DataFrame
    places: Mapping[str, Places]


class _RowBuilder:
    """Builds the rows of variants from runs and trials, and remembers those that match no variant."""

    def __init__(
        self, evidence: Evidence, runs: pd.DataFrame, trials: pd.DataFrame, scale: Scale, vocabulary: Vocabulary
    ) -> None:
        self.ladder, self.scale, self.vocabulary = evidence.ladder, scale, vocabulary
        self._run_ids = set(runs.id)
        self._twins: dict[str, str] = {}
        self._runs = self._one_run_per_seed(self._of_one_basis(runs, trials), trials)
        self._by_recipe = dict(list(self._runs.groupby(["recipe", "stage"])))
        self._heldout, self._heldout_places = evidence.heldout, evidence.heldout.groupby("run").indices
        self._answers, self._answers_places = evidence.readouts, evidence.readouts.groupby("run").indices
        self._trials = trials[~trials.run.isin(set(self._twins))]
        self._studies = _frame_of_studies(evidence)
        self._searches = list(evidence.searches.values())
        self._recipes: dict[str, Recipe] = {}
        self._measurements: dict[str, _Measurement] = {}
        self._taken: set[str] = set()
        self._taken_runs: set[str] = set()

    def _of_one_basis(self, runs: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
        """Keep, per recipe, the runs on the data and numerics with most trials (then most runs); report the others."""
        counts = runs.id.map(trials.run.value_counts()).fillna(0)
        counts_too, basis = split_by_basis(runs, ("recipe", "stage"), counts)
        for number in runs.index[~counts_too]:
            run = runs.loc[number]
            difference = describe_difference(run.basis, basis[number])
            self._twins[run.id] = (
                f"run {run.id} (seed {run.seed}) rests on other data or numerics than most runs of its recipe "
                f"({difference}): it and its {counts[number]:g} trial(s) are left out"
            )
        return runs[counts_too]

    def _one_run_per_seed(self, runs: pd.DataFrame, trials: pd.DataFrame) -> pd.DataFrame:
        """Keep, of runs that differ only in the run they continue, the one with most trials; report the others."""
        counts = runs.id.map(trials.run.value_counts()).fillna(0).astype(int)
        order = runs.assign(trials=counts).sort_values(["trials", "id"], ascending=[False, True])
        for twin in split_repeats(order, ["recipe", "stage", "seed"])[1].itertuples():
            self._twins[twin.id] = (
                f"run {twin.id} has the recipe and seed of run {twin.kept}, which has more trials: it and its "
                f"{twin.trials} trial(s) are left out"
            )
        return runs[~runs.id.isin(set(self._twins))]

    def problems(self) -> list[str]:
        """Return sentences about runs that match no variant and about trials that match none."""
        found = list(self._twins.values())
        unknown = self._runs[~self._runs.id.isin(self._taken_runs)]
        of_others = unknown[unknown.ladder != self.ladder.name]
        found += [f"{len(own)} pre-training run(s) {why_of_another(name)}" for name, own in of_others.groupby("ladder")]
        for run, stage in zip(unknown.id, unknown.stage, strict=True):
            if run not in set(of_others.id):
                found.append(f"pre-training run {run} (stage {stage + 1}) has the recipe of no declared variant")
        lost_trials = self._trials[~self._trials.id.isin(self._taken) & ~self._trials.run.isin(set(of_others.id))]
        for run, lost in lost_trials.groupby("run"):
            why = "match no variant's protocol, grid and study" if run in self._run_ids else "have no run record"
            found.append(f"{len(lost)} trial(s) on pre-training run {run} {why}: {name_first(sorted(lost.id))}")
        return sorted(found)

    def recipe(self, variant: Variant) -> Recipe:
        """Return a variant's recipe at the group's scale."""
        if variant.name not in self._recipes:
            self._recipes[variant.name] = scaled(self.ladder, variant.recipe, self.scale, self.vocabulary)
        return self._recipes[variant.name]

    def rows(self, variant: Variant) -> list[Row]:
        """Return one row, without cells, for each checkpoint that the variant evaluates."""
        recipe = self.recipe(variant)
        stages = range(len(recipe.pretraining.stages))
        return [self._row(variant, stage) for stage in (stages if recipe.checkpoints == "every_stage" else stages[-1:])]

    def last_row(self, variant: Variant) -> Row | None:
        """Return the row of a design's variant at its last checkpoint; None if the variant is impossible at this scale
        or has no records."""
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
        measured = self._measurement(recipe)
        is_started = not measured.weights.isdisjoint(runs.id)
        if is_started:
            self._taken.update(_select(measured.trials, measured.places, runs.id).id)
        searches = self._searches_of(recipe, runs)
        for tried in searches:
            self._taken |= tried.trials
        of_tasks = set(self._studies[self._studies.weights.isin(set(runs.id))].task_origin)
        of_tasks.update(tried.study.task_origin for tried in searches)
        return Row(
            name=variant.name,
            label=_label(self.ladder, variant, recipe.pretraining.stages[stage].context),
            source=variant.source,
            variant=variant,
            stage=stage,
            is_started=is_started,
            runs=runs,
            heldout=_select(self._heldout, self._heldout_places, runs.id),
            answers=_select(self._answers, self._answers_places, runs.id),
            origins=tuple(sorted(of_tasks.union(*(origins.values() for origins in runs.origins)))),
            scaled_recipe=recipe,
        )

    def with_scores(self, row: Row) -> Row:
        """Return a row with its cells; trials of a smaller grid do not count as a start of a larger one."""
        measured, seeds = self._measurement(row.recipe), dict(zip(row.runs.id, row.runs.seed, strict=True))
        trials = _select(measured.trials, measured.places, seeds if row.is_started else ())
        both = [Seeds(seeds[run], seed) for run, seed in zip(trials.run, trials.seed, strict=True)]
        cells, own_cells, notes = count_trials(self.ladder, trials.assign(seeds=both), row.recipe.grid.points())
        nested = self._nested(row, measured, seeds)
        graded = replace(row, cells=cells, own_cells=own_cells, notes=notes, nested=nested)
        return _with_searches(graded, self._trials, self._searches_of(row.recipe, row.runs), seeds)

    def _searches_of(self, recipe: Recipe, runs: pd.DataFrame) -> list[Tried]:
        """Return the searches on some runs under a recipe's protocol, whatever its grid is."""
        on_runs = [tried for tried in self._searches if tried.study.weights in set(runs.id)]
        return [tried for tried in on_runs if _is_under(self.ladder, tried.study, recipe)]

    def _nested(self, row: Row, measured: _Measurement, seeds: Mapping[str, int]) -> Estimate | None:
        """Return the average of the nested scores in points, over the seeds that have all tasks of GLUE."""
        known = self._studies[self._studies.nested.notna() & self._studies.id.isin(measured.studies)]
        own = known[known.weights.isin(set(row.runs.id))].sort_values(["start", "id"], na_position="first")
        by_task: dict[str, dict[Seeds, float]] = {task: {} for task in TASKS}
        for study in own.itertuples():  # a study that starts from MNLI replaces one from pre-training
            if study.task in by_task:
                by_task[study.task][Seeds(seeds[study.weights], study.seed)] = POINTS_OF_SCORE * study.nested
        return flat_mean([Estimate(values) if values else None for values in by_task.values()])

    def has_own_records(self, row: Row) -> bool:
        """Whether an alternative has records that no variant of the ladder shows already."""
        others = [self.recipe(variant) for variant in self.ladder.steps.values()]
        twins = [other for other in others if other.pretraining == row.recipe.pretraining]
        of_twins = frozenset[str]().union(*(self._measurement(twin).studies for twin in twins))
        there = set(self._studies[self._studies.weights.isin(set(row.runs.id))].id)
        own = there & self._measurement(row.recipe).studies - of_twins
        return row.recipe not in others and bool(own or (not twins and row.losses))

    def _measurement(self, recipe: Recipe) -> _Measurement:
        key = f"{recipe.finetuning.model_dump_json()} {recipe.grid.model_dump_json()}"
        if key not in self._measurements:
            protocols = {
                (name, transfers): protocol_on(task, recipe.finetuning, transfers=transfers).model_dump_json()
                for name, task in all_tasks(self.ladder).items()
                for transfers in (False, True)
            }
            points, trials, studies = recipe.grid.points(), self._trials, self._studies
            own = studies[(studies.grid == _grid_key(points)) & _has_protocol(studies, protocols)]
            starts_right = trials.start.isna() | trials.start.isin(set(own.id))
            fits = (
                _has_protocol(trials, protocols)
                & trials.point.isin(points)
                & starts_right
                & _is_declared(self.ladder, trials)
            )
            places = trials[fits].groupby("run").indices
            self._measurements[key] = _Measurement(frozenset(own.id), frozenset(own.weights), trials[fits], places)
        return self._measurements[key]


def _is_under(ladder: Ladder, study: GlueStudy, recipe: Recipe) -> bool:
    """Whether a study follows a recipe's protocol on a task as the ladder declares it, or as GLUE does."""
    task, transfers = all_tasks(ladder).get(study.task), study.starts_from.study is not None
    if task is None or (study.own_task is not None and canonical(study.own_task) != canonical(task)):
        return False
    return study.protocol == protocol_on(task, recipe.finetuning, transfers=transfers)


def _with_searches(row: Row, trials: pd.DataFrame, searches: Sequence[Tried], seeds: Mapping[str, int]) -> Row:
    """Return a row with the scores of searches where it has none of a whole grid. `seeds` are those of pre-training, by
    run."""
    if not searches:
        return row
    own = trials[trials.run.isin(set(seeds))]
    both = [Seeds(seeds[run], seed) for run, seed in zip(own.run, own.seed, strict=True)]
    cells, notes = prefer_searches(row.cells, own.assign(seeds=both), searches)
    own_cells, more = prefer_searches(row.own_cells, own.assign(seeds=both), searches)
    return replace(row, cells=cells, own_cells=own_cells, notes=(*row.notes, *notes, *more))


def _frame_of_studies(evidence: Evidence) -> pd.DataFrame:
    """Return one row per study; `start` is the study it starts from, `grid` identifies its points in any order."""
    columns = ("id", "task", "weights", "task_origin", "start", "protocol", "grid", "seed", "nested")
    rows = [
        (
            *(study_id, each.task, each.weights, each.task_origin, each.starts_from.study),
            *(each.protocol.model_dump_json(), _grid_key(each.points), each.seed, evidence.nested.get(study_id)),
        )
        for study_id, each in evidence.studies.items()
    ]
    return frame_of(rows, columns)


def _grid_key(points: Iterable[Point]) -> str:
    return " ".join(sorted({point.model_dump_json() for point in points}))


def _has_protocol(frame: pd.DataFrame, protocols: Mapping[tuple[str, bool], str]) -> pd.Series:
    """Whether each study or trial has the variant's protocol for its task, with or without transfer."""
    wanted = [protocols.get((task, start is not None)) for task, start in zip(frame.task, frame.start, strict=True)]
    return frame.protocol == pd.Series(wanted, index=frame.index, dtype=object)


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


def _select(frame: pd.DataFrame, places: Mapping[str, Places], keys: Iterable[str]) -> pd.DataFrame:
    """Select the rows at the positions of some keys."""
    found = [places[key] for key in keys if key in places]
    return frame.iloc[np.concatenate(found)] if found else frame.iloc[:0]


def _external_rows(trials: pd.DataFrame, evidence: Evidence) -> list[Row]:
    """Return a row per external model with trials, sorted by name, on the largest grid begun on it. Models with the
    same name and different bytes are distinguished by id."""
    names = trials.groupby("run").model.first()
    rows = []
    for model_id, own in trials.groupby("run"):
        name = names[model_id] if (names == names[model_id]).sum() == 1 else f"{names[model_id]} {model_id}"
        grids = [study.points for study in evidence.studies.values() if study.weights == model_id]
        searches = [tried for tried in evidence.searches.values() if tried.study.weights == model_id]
        searched = frozenset[str]().union(*(tried.trials for tried in searches))
        grid = max(grids, key=len, default=tuple(dict.fromkeys(own.point[~own.id.isin(searched)])))
        on_others = {name for name, study in evidence.studies.items() if _grid_key(study.points) != _grid_key(grid)}
        fitting = own[own.point.isin(grid) & ~own.start.isin(on_others)]
        seeds = [Seeds(0, seed) for seed in fitting.seed]
        cells, own_cells, notes = count_trials(evidence.ladder, fitting.assign(seeds=seeds), grid)
        row = Row(
            name=name,
            label=name,
            source=str(model_id),
            runs=evidence.runs.iloc[:0],
            heldout=evidence.heldout.iloc[:0],
            answers=evidence.readouts.iloc[:0],
            cells=cells,
            own_cells=own_cells,
            notes=notes,
        )
        rows.append(_with_searches(row, own, searches, {str(model_id): 0}))
    return sorted(rows, key=lambda row: (row.name, row.source))
