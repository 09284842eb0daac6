"""Records → rows of scores: best of the grid, average of the eight tasks, spread over seeds, and all that is missing.

A row is a variant at one of its checkpoints. It takes every trial whose pre-training recipe, fine-tuning protocol and
grid point are the variant's own, whatever the record is labelled, so variants with equal recipes share records.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ablations.ladder import ladder, variants
from ablations.modification import Recipe
from ablations.scales import SCALES, Scale, Vocabulary, scaled
from ablations.variant import Variant
from neobert.errors import did_you_mean
from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports.cells import Cell, Estimate, Seeds, cells_of
from reports.trials import Evidence, Run, Trial, weights_up_to


@dataclass(frozen=True)
class Row:
    """A variant at one checkpoint. `context` is in tokens; `losses` are held-out MLM losses by corpus."""

    variant: Variant
    stage: int
    context: int
    is_last_stage: bool
    cells: Mapping[str, Cell]
    losses: Mapping[str, Estimate]
    notes: tuple[str, ...]

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


@dataclass(frozen=True)
class Group:
    """All rows of one scale and source of data: one figure."""

    scale: Scale
    data: str
    vocabulary: Vocabulary
    rows: tuple[Row, ...]
    unavailable_tasks: Mapping[str, str]
    problems: tuple[str, ...]

    @property
    def shared_tasks(self) -> tuple[str, ...]:
        """The tasks that every row with any score has."""
        scored = [set(row.scored_tasks) for row in self.rows if row.scored_tasks]
        return tuple(task for task in TASKS if scored and all(task in tasks for tasks in scored))

    def last_rows(self) -> dict[str, Row]:
        """The row of each variant's last checkpoint."""
        return {row.variant.name: row for row in self.rows if row.is_last_stage}


def group_of(evidence: Evidence, scale: str, data: str) -> Group:
    """The rows of one (scale, data): every variant of the ladder, and alternatives (@) that have records.

    Raises:
        ValueError: the records name a scale that this code does not know.
    """
    known = _known_scale(scale)
    vocabulary: Vocabulary = "trained" if data == "synthetic" else "published"
    trials = tuple(trial for trial in evidence.trials if (trial.scale, trial.data) == (scale, data))
    used_runs = {trial.run_id for trial in trials}
    runs = tuple(run for run in evidence.runs if (run.scale, run.data) == (scale, data) or run.id in used_runs)
    collector = _Collector(runs, trials, evidence.study_points, known, vocabulary)
    all_rows = [row for variant in variants().values() for row in collector.rows(variant)]
    labelled = {name for run in runs for name in run.variants} | {name for trial in trials for name in trial.variants}
    shown = {name for name in variants() if name in ladder() or name in labelled}
    return Group(
        scale=known,
        data=data,
        vocabulary=vocabulary,
        rows=tuple(row for row in all_rows if row.variant.name in shown and (row.is_last_stage or row.scored_tasks)),
        unavailable_tasks={task: run.unavailable_tasks[task] for run in runs for task in sorted(run.unavailable_tasks)},
        problems=tuple(collector.problems()),
    )


def _known_scale(scale: str) -> Scale:
    for known in SCALES:
        if known == scale:
            return known
    raise ValueError(f"records are labelled with the unknown scale {scale!r}: {did_you_mean(scale, SCALES)}")


class _Collector:
    """Gives each variant its trials and remembers what no variant took."""

    def __init__(
        self,
        runs: Sequence[Run],
        trials: Sequence[Trial],
        study_points: Mapping[str, frozenset[Point]],
        scale: Scale,
        vocabulary: Vocabulary,
    ) -> None:
        self._study_points, self._scale, self._vocabulary = study_points, scale, vocabulary
        self._trials: dict[str, list[Trial]] = defaultdict(list)
        for trial in trials:
            self._trials[trial.run_id].append(trial)
        self._twins: list[str] = []
        self._runs = self._one_run_per_seed(runs)
        self._run_ids = {run.id for run in runs}
        self._taken: set[str] = set()

    def _one_run_per_seed(self, runs: Sequence[Run]) -> list[Run]:
        """Of runs that differ only in data or numerics version the one with most trials; the others are named."""
        twins: dict[tuple[str, int, int], list[Run]] = defaultdict(list)
        for run in runs:
            twins[(run.weights.model_dump_json(), run.stage, run.seed)].append(run)
        kept = []
        for same in twins.values():
            best, *others = sorted(same, key=lambda run: (-len(self._trials[run.id]), run.id))
            kept.append(best)
            for run in others:
                count = len(self._trials.pop(run.id, []))
                self._twins.append(
                    f"run {run.id} has the recipe and seed of run {best.id}, which has more trials: it and its "
                    f"{count} trial(s) are left out"
                )
        return kept

    def problems(self) -> list[str]:
        """One sentence for each run whose trials nobody could use."""
        found = list(self._twins)
        for run_id, trials in self._trials.items():
            lost = [trial for trial in trials if trial.id not in self._taken]
            why = (
                "match no variant's protocol, grid and MNLI study" if run_id in self._run_ids else "have no run record"
            )
            if lost:
                found.append(f"{len(lost)} trial(s) on pre-training run {run_id} {why}: {_names(t.id for t in lost)}")
        return sorted(found)

    def rows(self, variant: Variant) -> list[Row]:
        """One row a checkpoint."""
        recipe = scaled(variant.recipe, self._scale, self._vocabulary)
        stages = range(len(recipe.pretraining.stages))
        return [self._row(variant, recipe, stage) for stage in stages]

    def _row(self, variant: Variant, recipe: Recipe, stage: int) -> Row:
        weights = weights_up_to(recipe.pretraining, stage)
        runs = [run for run in self._runs if run.stage == stage and run.weights == weights]
        trials = [(run, trial) for run in runs for trial in self._trials[run.id] if self._fits(trial, recipe)]
        self._taken.update(trial.id for _, trial in trials)
        if self._belongs_to_parent(variant, recipe, [trial for _, trial in trials]):
            trials = []
        cells, notes = cells_of(recipe.grid.points(), trials)
        return Row(
            variant=variant,
            stage=stage,
            context=recipe.pretraining.stages[stage].context,
            is_last_stage=stage == len(recipe.pretraining.stages) - 1,
            cells=cells,
            losses=_losses(runs),
            notes=tuple(notes),
        )

    def _fits(self, trial: Trial, recipe: Recipe) -> bool:
        """Whether a trial is one of the variant's own: a transfer trial must start from the study of the same grid."""
        points = frozenset(recipe.grid.points())
        same_study = trial.mnli_study is None or self._study_points.get(trial.mnli_study) == points
        return trial.protocol == recipe.finetuning and trial.point in points and same_study

    def _belongs_to_parent(self, variant: Variant, recipe: Recipe, trials: Sequence[Trial]) -> bool:
        """Whether a variant with its parent's weights has nothing yet but its parent's trials."""
        if variant.parent is None:
            return False
        parent = scaled(variant.parent.recipe, self._scale, self._vocabulary)
        if (parent.pretraining, parent.finetuning) != (recipe.pretraining, recipe.finetuning):
            return False
        points, parents = set(recipe.grid.points()), set(parent.grid.points())
        return parents < points and {trial.point for trial in trials} <= parents


def _names(names: Iterable[str], most: int = 3) -> str:
    listed = sorted(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")


def _losses(runs: Sequence[Run]) -> dict[str, Estimate]:
    corpora = sorted({corpus for run in runs for corpus in run.heldout_loss})
    measured = {corpus: [run for run in runs if corpus in run.heldout_loss] for corpus in corpora}
    return {
        corpus: Estimate({Seeds(run.seed, run.seed): run.heldout_loss[corpus] for run in own})
        for corpus, own in measured.items()
    }
