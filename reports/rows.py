"""Rows: runs and trials are joined to the variants that they belong to, and a sentence tells each that belongs to none.

A variant has every run with its recipe up to a stage, and every trial on such a run with its fine-tuning protocol and a
point of its grid, whatever their labels are, so variants with equal recipes share records. Missing trials are never
averaged away, and different recipes are never paired.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
from reports.embeddings import EmbeddingRow, find_embeddings
from reports.facts import weights_up_to
from reports.frames import Frames, Tried, describe_difference, grid_key, select_group, split_by_version, why_of_another
from reports.rates import PilotSweep, find_sweeps
from reports.scores import ScoreRow, Seeds


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

    @cached_property
    def searches(self) -> dict[str, Tried]:
        """The searches of this scale and data in which some trial has a score, by the name of their picture."""
        trials = self.frames.trials
        scored = set(trials.id[trials.score.notna()])
        own = [
            each
            for each in self.frames.searches.tried
            if (each.labels.scale, each.labels.data) == (self.scale, self.data) and scored & each.scored
        ]
        return {f"search-{each.study.task}-{each.study.id}": each for each in own}


def read_study(frames: Frames, scale: Scale, data: str) -> Study:
    """Return the rows of one (scale, data): every variant of the ladder, and alternatives (@) with records."""
    ladder, vocabulary = frames.ladder, frames.vocabulary(scale, data)
    trials, runs = select_group(frames.trials, scale, data), frames.runs_of(scale, data)
    is_named = trials.task.isin(list(ladder.tasks))
    others = [
        f"{count} trial(s) on {task_title(task)}, which is not among the ladder's TASKS"
        for task, count in trials[~is_named].groupby("task").size().items()
    ]
    trials = trials[is_named]
    is_external = trials.model.notna()
    recipes = {name: scaled(ladder, variant.recipe, scale, vocabulary) for name, variant in ladder.variants.items()}
    pretraining = {name: recipes[name].pretraining for name in ladder.steps}
    variants = ladder.variants | variants_in(ladder, dict.fromkeys(name for names in runs.variants for name in names))
    for name in variants:
        with suppress(ValueError):  # a variant of a design may be impossible at this scale
            recipes.setdefault(name, scaled(ladder, variants[name].recipe, scale, vocabulary))
    counted, twins = _without_twins(runs, trials[~is_external])
    own_trials = _with_seeds(trials[~is_external & ~trials.run.isin(set(twins))], "run", runs)
    rows, known = {}, set[str]()
    for name, recipe in recipes.items():
        last = len(recipe.pretraining.stages) - 1
        for stage in range(last + 1):
            own = counted[counted.recipe == weights_up_to(recipe.pretraining, stage).model_dump_json()]
            known.update(own.id)
            if stage == last or recipe.checkpoints == "every_stage":
                rows[name, stage] = _row(frames, variants[name], recipe, stage, own, own_trials)
    shown = [row for row in rows.values() if row.name in ladder.steps or _has_own_records(row, rows, recipes, ladder)]
    lineages = {name for row in shown if row.variant and row.name in ladder.variants for name in row.variant.lineage()}
    designs = [row for row in rows.values() if row.name not in ladder.variants and row.is_last and row.has_records]
    strange = counted[~counted.id.isin(known)]
    lost = _lost_trials(ladder, own_trials, rows.values(), strange, set(runs.id))
    return Study(
        frames=frames,
        scale=scale,
        data=data,
        vocabulary=vocabulary,
        rows=tuple(row for row in rows.values() if row.name in ladder.variants and row.name in lineages),
        external=tuple(_external_rows(frames, trials[is_external])),
        design_rows={row.name: row for row in designs},
        sweeps=find_sweeps(frames, pretraining, scale, data),
        unavailable_tasks={task: reason for own in runs.unavailable_tasks for task, reason in sorted(own.items())},
        left_out=tuple(sorted([*twins.values(), *_strange_runs(ladder, strange), *lost, *others])),
    )


def _row(
    frames: Frames, variant: Variant, recipe: Recipe, stage: int, runs: pd.DataFrame, trials: pd.DataFrame
) -> ScoreRow:
    """Return the row of a checkpoint with the studies, trials and searches on its runs that follow its recipe.

    Trials that transfer must start from a grid of the same protocol and points; those of a smaller grid do not count as
    a start of a larger one.
    """
    ladder, ids, points = frames.ladder, set(runs.id), recipe.grid.points()
    follows, heldout, answers = _follows(ladder, recipe), frames.heldout, frames.readouts_of("blimp")
    begun = frames.studies[frames.studies.weights.isin(ids) & (frames.studies.grid == grid_key(points))]
    begun = _with_seeds(begun[follows(begun)], "weights", runs)
    on_runs = trials[trials.run.isin(ids)]
    of_grid = on_runs[on_runs.run.isin(ids if len(begun) else ())]
    starts_right = of_grid.start.isna() | of_grid.start.isin(set(begun.id))
    searches = frames.searches[frames.searches.weights.isin(ids)]
    return ScoreRow(
        name=variant.name,
        label=_label(ladder, variant, recipe.pretraining.stages[stage].context),
        source=variant.source,
        tasks=tuple(ladder.tasks),
        grid=points,
        runs=runs,
        heldout=heldout[heldout.run.isin(ids)],
        answers=answers[answers.run.isin(ids)],
        begun=begun,
        trials=of_grid[starts_right & of_grid.point.isin(points) & follows(of_grid)],
        searches=searches.tried[follows(searches)].tolist(),
        all_trials=on_runs,
        variant=variant,
        stage=stage,
        scaled_recipe=recipe,
    )


def _follows(ladder: Ladder, recipe: Recipe) -> Callable[[pd.DataFrame], pd.Series]:
    """Return which rows of studies or trials have a recipe's protocol for their task, with or without transfer, and the
    task as the ladder declares it."""
    protocols = {
        (name, transfers): protocol_on(task, recipe.finetuning, transfers=transfers).model_dump_json()
        for name, task in ladder.tasks.items()
        for transfers in (False, True)
    }
    declared = {name: canonical(task) for name, task in ladder.own_tasks.items()}

    def follows(frame: pd.DataFrame) -> pd.Series:
        facts = zip(frame.task, frame.start, frame.protocol, frame.own_task, strict=True)
        fits = [
            protocol == protocols.get((task, start is not None))
            and (not isinstance(own, Task) or canonical(own) == declared.get(task))
            for task, start, protocol, own in facts
        ]
        return pd.Series(fits, index=frame.index, dtype=bool)

    return follows


def _has_own_records(
    row: ScoreRow,
    rows: Mapping[tuple[str, int], ScoreRow],
    recipes: Mapping[str, Recipe],
    ladder: Ladder,
) -> bool:
    """Return whether an alternative has records that no variant of the ladder shows already."""
    assert row.stage is not None
    twins = [name for name in ladder.steps if recipes[name].pretraining == row.recipe.pretraining]
    shown = {study for name in twins if (name, row.stage) in rows for study in rows[name, row.stage].begun.id}
    is_other = all(recipes[name] != row.recipe for name in twins)
    return is_other and bool(set(row.begun.id) - shown or (not twins and row.losses))


def _strange_runs(ladder: Ladder, runs: pd.DataFrame) -> list[str]:
    """Return sentences about runs that match no variant."""
    is_of_other = runs.ladder != ladder.name
    others = runs[is_of_other].groupby("ladder").size().items()
    return [f"{count} pre-training run(s) {why_of_another(name)}" for name, count in others] + [
        f"pre-training run {run.id} (stage {run.stage + 1}) has the recipe of no declared variant"
        for run in runs[~is_of_other].itertuples()
    ]


def _lost_trials(
    ladder: Ladder, trials: pd.DataFrame, rows: Iterable[ScoreRow], strange: pd.DataFrame, known: set[str]
) -> list[str]:
    """Return sentences about trials that match no variant, but for those on runs of another ladder."""
    counted = set[str]()
    for row in rows:
        counted = counted.union(row.trials.id, *(tried.trials for tried in row.searches))
    of_others = set(strange.id[strange.ladder != ladder.name])
    lost = trials[~trials.id.isin(counted) & ~trials.run.isin(of_others)]
    told = []
    for run, own in lost.groupby("run"):
        why = "match no variant's protocol, grid and study" if run in known else "have no run record"
        told.append(f"{len(own)} trial(s) on pre-training run {run} {why}: {name_first(sorted(own.id))}")
    return told


def _without_twins(runs: pd.DataFrame, trials: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the runs that count, and a sentence for each of the others by its id: of a recipe, the runs on the data
    and numerics with most trials (then most runs) count."""
    runs = runs.assign(trials=runs.id.map(trials.run.value_counts()).fillna(0).astype(int))
    is_counted, version = split_by_version(runs, ["recipe"], runs.trials)
    twins = {
        run.id: f"run {run.id} (seed {run.seed}) rests on other data or numerics than most runs of its recipe "
        f"({describe_difference(run.version, run.kept)}): it and its {run.trials} trial(s) are left out"
        for run in runs.assign(kept=version)[~is_counted].itertuples()
    }
    return runs[is_counted], twins


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


def _external_rows(frames: Frames, trials: pd.DataFrame) -> list[ScoreRow]:
    """Return a row per external model with trials, sorted by name, on the largest grid begun on it. Models with the
    same name and different bytes are distinguished by id."""
    trials, no_runs = _with_seeds(trials, "run", frames.runs.iloc[:0]), frames.runs.iloc[:0]
    names = trials.groupby("run").model.first()
    rows = []
    for model_id, own in trials.groupby("run"):
        name = names[model_id] if (names == names[model_id]).sum() == 1 else f"{names[model_id]} {model_id}"
        studies, searches = (each[each.weights == model_id] for each in (frames.studies, frames.searches))
        searched = frozenset[str]().union(*(tried.trials for tried in searches.tried))
        recorded = tuple(dict.fromkeys(own.point[~own.id.isin(searched)]))
        grid = max(studies.points, key=len, default=recorded)
        on_others = set(studies.id[studies.grid != grid_key(grid)])
        rows.append(
            ScoreRow(
                name=name,
                label=name,
                source=str(model_id),
                tasks=tuple(frames.ladder.tasks),
                grid=grid,
                runs=no_runs,
                heldout=frames.heldout.iloc[:0],
                answers=frames.readouts.iloc[:0],
                begun=frames.studies.iloc[:0],
                trials=own[own.point.isin(grid) & ~own.start.isin(on_others)],
                searches=searches.tried.tolist(),
                all_trials=own,
            )
        )
    return sorted(rows, key=lambda row: (row.name, row.source))
