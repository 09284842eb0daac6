"""Match records to rows: which trials belong to a variant, which of them count, and a sentence for each that does not.

A variant's row takes every trial with the variant's pre-training recipe, fine-tuning protocol and grid point, whatever
its labels are, so variants with equal recipes share records. Missing trials are never averaged away, and different
recipes are never paired.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ablations.budgets import shorter_ladder
from ablations.designs import variants_of_designs
from ablations.ladders import current, ladder, variants
from ablations.readings import readings_in
from ablations.recipe_runs import protocol_on
from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Recipe, Variant
from neobert.errors import name_first
from neobert.glue.selection import best_point
from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.basis import describe_difference, split_by_basis
from reports.evidence import Evidence, make_frame, select_group, split_repeats, weights_up_to
from reports.labels import why_of_another
from reports.rates import find_sweeps, variants_at_rates
from reports.scores import ABSENCES, POINTS_OF_SCORE, Cell, Estimate, Group, Row, Seeds, point_name
from reports.tables import frame_of


def group_of(evidence: Evidence, scale: Scale, data: str) -> Group:
    """Return the rows of one (scale, data): every variant of the ladder, and alternatives (@) with records."""
    everything = select_group(evidence.trials, scale, data)
    trials = everything[everything.model.isna()]
    runs = evidence.runs_of(scale, data)
    matcher = _Matcher(evidence, runs, trials, scale, evidence.vocabulary(scale, data))
    of_ladder = [row for variant in variants().values() for row in matcher.rows(variant)]
    own = [row for row in of_ladder if row.name in ladder() or matcher.has_own_records(row)]
    lineages = {name for row in own if row.variant for name in row.variant.lineage()}
    shown = [row for row in of_ladder if row.name in lineages]
    labels = {name for names in runs.variants for name in names}
    of_designs = variants_of_designs(labels) | shorter_ladder(labels) | readings_in(labels)
    of_designs |= variants_at_rates(runs, scale, matcher.vocabulary)
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
        sweeps=find_sweeps(evidence, scale, data, matcher.vocabulary),
        unavailable_tasks={task: reason for own in runs.unavailable_tasks for task, reason in sorted(own.items())},
        problems=tuple(matcher.problems()),
    )


Places = np.ndarray[tuple[int], np.dtype[np.intp]]


@dataclass(frozen=True)
class _Draft:
    """A row before its trials are counted, with its grid points and its trials with their `seeds`."""

    row: Row
    grid: tuple[Point, ...]
    trials: pd.DataFrame


@dataclass(frozen=True)
class _Measurement:
    """Records of one protocol and grid: the ids of its studies, the weights that they fine-tune, and the matching
    trials, with their positions by run. A trial that transfers must start from one of these studies."""

    studies: frozenset[str]
    weights: frozenset[str]
    trials: pd.DataFrame
    places: Mapping[str, Places]


class _Matcher:
    """Assigns trials to variants and remembers those that match no variant."""

    def __init__(
        self, evidence: Evidence, runs: pd.DataFrame, trials: pd.DataFrame, scale: Scale, vocabulary: Vocabulary
    ) -> None:
        self.scale, self.vocabulary = scale, vocabulary
        self._run_ids = set(runs.id)
        self._twins: dict[str, str] = {}
        self._runs = self._one_run_per_seed(self._of_one_basis(runs, trials), trials)
        self._by_recipe = dict(list(self._runs.groupby(["recipe", "stage"])))
        self._heldout, self._heldout_places = evidence.heldout, evidence.heldout.groupby("run").indices
        self._answers, self._answers_places = evidence.readouts, evidence.readouts.groupby("run").indices
        self._trials = trials[~trials.run.isin(set(self._twins))]
        self._studies = _frame_of_studies(evidence)
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
        of_others = unknown[unknown.ladder != current().name]
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
            self._recipes[variant.name] = scaled(variant.recipe, self.scale, self.vocabulary)
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
        of_tasks = set(self._studies[self._studies.weights.isin(set(runs.id))].task_origin)
        return Row(
            name=variant.name,
            label=_label(variant, recipe.pretraining.stages[stage].context),
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

    def draft(self, row: Row) -> _Draft:
        """Return a row with its grid and trials; trials of a smaller grid do not count as a start of a larger one."""
        measured, seeds = self._measurement(row.recipe), dict(zip(row.runs.id, row.runs.seed, strict=True))
        trials = _select(measured.trials, measured.places, seeds if row.is_started else ())
        both = [Seeds(seeds[run], seed) for run, seed in zip(trials.run, trials.seed, strict=True)]
        return _Draft(row, row.recipe.grid.points(), trials.assign(seeds=both))

    def has_own_records(self, row: Row) -> bool:
        """Whether an alternative has records that no variant of the ladder shows already."""
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
    """Return one row per study; `start` is the study it starts from, `grid` identifies its points in any order."""
    columns = ("id", "task", "weights", "task_origin", "start", "protocol", "grid")
    rows = [
        (
            *(study_id, each.task, each.weights, each.task_origin, each.starts_from.study),
            *(each.protocol.model_dump_json(), _grid_key(each.points)),
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


def _label(variant: Variant, context: int) -> str:
    """Return a row's name: the paper's name for the checkpoints it prints, with the context at this scale."""
    if (printed := current().printed_as.get(variant.name)) is not None:
        return f"{printed}-{context} ({variant.name})"
    return f"{variant.name} ({context} tokens)" if variant.recipe.checkpoints == "every_stage" else variant.name


def _select(frame: pd.DataFrame, places: Mapping[str, Places], keys: Iterable[str]) -> pd.DataFrame:
    """Select the rows at the positions of some keys."""
    found = [places[key] for key in keys if key in places]
    return frame.iloc[np.concatenate(found)] if found else frame.iloc[:0]


def _external_drafts(trials: pd.DataFrame, evidence: Evidence) -> list[_Draft]:
    """Return a row per external model with trials, sorted by name, on the largest grid begun on it. Models with the
    same name and different bytes are distinguished by id."""
    names = trials.groupby("run").model.first()
    drafts = []
    for model_id, own in trials.groupby("run"):
        grids = [study.points for study in evidence.studies.values() if study.weights == model_id]
        grid = max(grids, key=len, default=tuple(dict.fromkeys(own.point)))
        on_others = {name for name, study in evidence.studies.items() if _grid_key(study.points) != _grid_key(grid)}
        fitting = own[own.point.isin(grid) & ~own.start.isin(on_others)]
        name = names[model_id] if (names == names[model_id]).sum() == 1 else f"{names[model_id]} {model_id}"
        row = Row(
            name=name,
            label=name,
            source=str(model_id),
            runs=evidence.runs.iloc[:0],
            heldout=evidence.heldout.iloc[:0],
            answers=evidence.readouts.iloc[:0],
        )
        drafts.append(_Draft(row, grid, fitting.assign(seeds=[Seeds(0, seed) for seed in fitting.seed])))
    return sorted(drafts, key=lambda draft: (draft.row.name, draft.row.source))


def _count_trials(drafts: Sequence[_Draft]) -> list[Row]:
    """Return the rows with a cell per task, and a note for each trial or seed that does not count.

    With several seeds, the best point is the one with the highest mean over seeds. Only seeds with equal progress are
    counted together, so that a half-finished repetition changes no score.
    """
    notes: dict[int, list[str]] = {number: [] for number in range(len(drafts))}
    own = [draft.trials.assign(row=number, points=len(draft.grid)) for number, draft in enumerate(drafts)]
    trials = pd.concat(own) if own else make_frame([], ["row", "task"])
    if len(trials):
        trials = _of_one_basis(trials, notes)
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


Notes = Mapping[int, list[str]]  # by row number


def _without_fallbacks_beside_transfers(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    transfers = trials.start.notna()
    are_left_out = ~transfers & transfers.groupby([trials.row, trials.task]).transform("any")
    for (row, task), count in trials[are_left_out].groupby(["row", "task"]).size().items():
        notes[row].append(f"{task}: {count} trial(s) from pre-training are left out beside transferred ones")
    return trials[~are_left_out]


def _of_one_basis(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Keep, per task, the trials on the data and numerics that most trials have. Trials without a record have no known
    basis and are kept."""
    trials = trials.reset_index(drop=True)
    recorded = trials[trials.basis.notna()]
    are_counted, basis = split_by_basis(recorded, ("row", "task"), recorded.score.notna().astype(int))
    for (row, task, own), left_out in recorded[~are_counted].groupby(["row", "task", "basis"]):
        difference = describe_difference(own, basis[left_out.index[0]])
        notes[row].append(f"{task}: {len(left_out)} trial(s) on other data or numerics are left out ({difference})")
    return trials.drop(index=recorded.index[~are_counted])


def _without_repetitions(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Keep one trial per point and seeds, preferring done trials, then the smallest id."""
    trials = trials.assign(is_open=trials.state != "done").sort_values(["is_open", "id"])
    kept, repeats = split_repeats(trials, ["row", "task", "seeds", "point"])
    for each in repeats.itertuples():
        notes[each.row].append(f"{each.task}: trial {each.id} repeats {each.kept} and is left out")
    return kept


def _of_furthest_seeds(trials: pd.DataFrame, notes: Notes) -> pd.DataFrame:
    """Keep the trials of the repetitions with most progress: most tasks with a whole grid or, where no repetition of
    the row has one, most tasks with a score. Of these, tasks without a whole grid count if all repetitions have begun
    them."""
    of_task = trials.groupby(["row", "seeds", "task"])
    begun = pd.DataFrame({"scored": of_task.score.count() > 0, "whole": of_task.size() == of_task.points.first()})
    whole = begun.scored & begun.whole
    begun["counts"] = whole.where(whole.groupby("row").transform("any"), begun.scored)
    progress = begun.groupby(["row", "seeds"])[["scored", "counts"]].sum()
    is_behind = progress.counts < progress.counts.groupby("row").transform("max")
    for row, seeds in sorted(is_behind[is_behind].index):
        tasks = progress.scored[row, seeds]
        notes[row].append(
            f"seed {seeds} is unfinished ({tasks} of {len(TASKS)} tasks with a score) and not counted yet"
        )
    behind = set(is_behind[is_behind].index)
    kept = trials[[place not in behind for place in zip(trials.row, trials.seeds, strict=True)]]
    is_whole = kept.groupby(["row", "seeds", "task"]).id.transform("size") == kept.points
    begun_by = kept.groupby(["row", "task"]).seeds.transform("nunique")
    is_ahead = ~is_whole & (begun_by < kept.groupby("row").seeds.transform("nunique"))
    ahead = kept[is_ahead]
    for row, seeds, task in sorted(set(zip(ahead.row, ahead.seeds, ahead.task, strict=True))):
        notes[row].append(f"{task} of seed {seeds} is unfinished and not counted yet")
    return kept[~is_ahead]


def _cell(grid: Sequence[Point], trials: pd.DataFrame) -> Cell:
    if trials.empty:
        return Cell(None, None, {}, dict.fromkeys(ABSENCES, ()), None, trials)
    decisive = trials.decisive.astype(object).where(trials.decisive.notna(), None)
    best = best_point(grid, zip(trials.point, decisive, strict=True))
    chosen = trials[(trials.point == best) & trials.score.notna()].sort_values("seeds")
    states = dict(zip(zip(trials.seeds, trials.point, strict=True), trials.state, strict=True))
    absent: dict[str, list[str]] = {state: [] for state in ABSENCES}
    for seeds in sorted(set(trials.seeds)):
        for point in grid:
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
