"""Records → rows of scores: best of the grid, average of the eight tasks, spread over seeds, and all that is missing.

A row is a variant at one of its checkpoints. It takes every trial whose pre-training recipe, fine-tuning protocol and
grid point are the variant's own, whatever the record is labelled, so variants with equal recipes share records.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ablations.designs import variants_of_designs
from ablations.ladder import ladder, variants
from ablations.plan import protocol_on
from ablations.scales import Scale, Vocabulary, scaled
from ablations.variant import Recipe, Variant
from neobert.glue.tasks import TASKS
from neobert.runs.specifications import GlueStudy
from reports.baselines import BaselineRow, baseline_rows
from reports.cells import Estimate, Scored, Seeds, cells_of
from reports.trials import Evidence, Run, Trial, weights_up_to


@dataclass(frozen=True)
class Row(Scored):
    """A variant at one checkpoint. `context` is in tokens; `losses` are held-out MLM losses by corpus.

    `is_started` says that a study with the variant's grid was begun on the checkpoint. `runs` are its pre-training
    runs, one a seed, and `origins` is what identifies all data that it was trained and measured on.
    """

    variant: Variant
    stage: int
    context: int
    is_last_stage: bool
    is_started: bool
    losses: Mapping[str, Estimate]
    notes: tuple[str, ...]
    runs: tuple[Run, ...]
    origins: tuple[str, ...]

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The pre-training runs behind its held-out losses."""
        return tuple(sorted(run.id for run in self.runs))

    @property
    def bits_per_byte(self) -> dict[tuple[str, int], Estimate]:
        """Held-out losses in bits per byte of text, by corpus and context in tokens."""
        measured: dict[tuple[str, int], dict[Seeds, float]] = defaultdict(dict)
        for run in self.runs:
            for score in run.heldout:
                measured[score.corpus, score.context][Seeds(run.seed, run.seed)] = score.bits_per_byte
        return {place: Estimate(by_seeds) for place, by_seeds in sorted(measured.items())}

    @property
    def has_records(self) -> bool:
        """Whether anything at all is known of it."""
        return bool(self.runs)


@dataclass(frozen=True)
class Group:
    """All rows of one scale and source of data: one figure. `baselines` are models that were pre-trained elsewhere,
    `design_rows` the variants of designs at their last checkpoint, by name, where they have records."""

    scale: Scale
    data: str
    vocabulary: Vocabulary
    rows: tuple[Row, ...]
    unavailable_tasks: Mapping[str, str]
    problems: tuple[str, ...]
    baselines: tuple[BaselineRow, ...] = ()
    design_rows: Mapping[str, Row] = field(default_factory=dict)

    @property
    def all_rows(self) -> tuple[Row | BaselineRow, ...]:
        """The variants, and behind them the models from elsewhere."""
        return (*self.rows, *self.baselines)

    @property
    def recorded_rows(self) -> tuple[Row | BaselineRow, ...]:
        """Every row with records: the ladder's, those of designs that are not in it, and models from elsewhere."""
        own = {row.variant.name for row in self.rows}
        designs = [row for name, row in self.design_rows.items() if name not in own]
        return (*(row for row in (*self.rows, *designs) if row.has_records), *self.baselines)

    @property
    def shared_tasks(self) -> tuple[str, ...]:
        """The tasks that every row with any score has."""
        scored = [set(row.scored_tasks) for row in self.rows if row.scored_tasks]
        return tuple(task for task in TASKS if scored and all(task in tasks for tasks in scored))

    def last_rows(self) -> dict[str, Row]:
        """The row of each variant's last checkpoint."""
        return {row.variant.name: row for row in self.rows if row.is_last_stage}


def group_of(evidence: Evidence, scale: Scale, data: str) -> Group:
    """The rows of one (scale, data): every variant of the ladder, and alternatives (@) that have records."""
    vocabulary = evidence.vocabulary(scale, data)
    everything = tuple(trial for trial in evidence.trials if (trial.scale, trial.data) == (scale, data))
    trials = tuple(trial for trial in everything if trial.model is None)
    used_runs = {trial.run_id for trial in trials}
    runs = tuple(run for run in evidence.runs if (run.scale, run.data) == (scale, data) or run.id in used_runs)
    collector = _Collector(runs, trials, evidence.studies, scale, vocabulary)
    rows = [row for variant in variants().values() for row in collector.rows(variant)]
    of_designs = variants_of_designs({name for run in runs for name in run.labelled})
    design_rows = {name: row for name, variant in of_designs.items() if (row := collector.last_row(variant))}
    return Group(
        scale=scale,
        data=data,
        vocabulary=vocabulary,
        rows=tuple(row for row in rows if row.variant.name in ladder() or collector.has_own_records(row)),
        unavailable_tasks={task: run.unavailable_tasks[task] for run in runs for task in sorted(run.unavailable_tasks)},
        problems=tuple(collector.problems()),
        baselines=baseline_rows(everything, evidence.studies),
        design_rows=design_rows,
    )


class _Collector:
    """Gives each variant its trials and remembers what no variant took."""

    def __init__(
        self,
        runs: Sequence[Run],
        trials: Sequence[Trial],
        studies: Mapping[str, GlueStudy],
        scale: Scale,
        vocabulary: Vocabulary,
    ) -> None:
        self._studies, self._scale, self._vocabulary = studies, scale, vocabulary
        self._trials: dict[str, list[Trial]] = defaultdict(list)
        for trial in trials:
            self._trials[trial.run_id].append(trial)
        self._twins: list[str] = []
        self._runs = self._one_run_per_seed(runs)
        self._run_ids = {run.id for run in runs}
        self._taken: set[str] = set()
        self._taken_runs: set[str] = set()

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
        """One sentence for each run that nobody could use or whose trials nobody could use."""
        found = list(self._twins)
        for run in self._runs:
            if run.id not in self._taken_runs:
                found.append(f"pre-training run {run.id} (stage {run.stage + 1}) has the recipe of no declared variant")
        for run_id, trials in self._trials.items():
            lost = [trial for trial in trials if trial.id not in self._taken]
            why = "match no variant's protocol, grid and study" if run_id in self._run_ids else "have no run record"
            if lost:
                found.append(f"{len(lost)} trial(s) on pre-training run {run_id} {why}: {_names(t.id for t in lost)}")
        return sorted(found)

    def rows(self, variant: Variant) -> list[Row]:
        """One row for each checkpoint that the variant measures."""
        recipe = self._scaled(variant)
        stages = range(len(recipe.pretraining.stages))
        return [self._row(variant, recipe, stage) for stage in measured_stages(recipe, stages)]

    def last_row(self, variant: Variant) -> Row | None:
        """The row of a design's variant at its last checkpoint; None where the scale cannot hold the variant, or where
        nothing is recorded of it."""
        try:
            *_, row = self.rows(variant)
        except ValueError:
            return None
        pretraining = self._scaled(variant).pretraining
        earlier = [run for run in self._runs if run.stage < row.stage]
        self._taken_runs.update(run.id for run in earlier if run.weights == weights_up_to(pretraining, run.stage))
        return row if row.has_records else None

    def has_own_records(self, row: Row) -> bool:
        """Whether an alternative has something to show that no variant of the ladder shows already."""
        recipe, others = self._scaled(row.variant), [self._scaled(variant) for variant in ladder().values()]
        twins = [other for other in others if other.pretraining == recipe.pretraining]
        own_study = any(
            _is_study_of(study, recipe) and not any(_is_study_of(study, twin) for twin in twins)
            for study in self._studies_on(row.runs)
        )
        return recipe not in others and (own_study or (not twins and bool(row.losses)))

    def _scaled(self, variant: Variant) -> Recipe:
        return scaled(variant.recipe, self._scale, self._vocabulary)

    def _row(self, variant: Variant, recipe: Recipe, stage: int) -> Row:
        weights = weights_up_to(recipe.pretraining, stage)
        runs = [run for run in self._runs if run.stage == stage and run.weights == weights]
        self._taken_runs.update(run.id for run in runs)
        trials = [(run.seed, trial) for run in runs for trial in self._trials[run.id] if self._fits(trial, recipe)]
        is_started = self._has_study(recipe, runs)
        if is_started:
            self._taken.update(trial.id for _, trial in trials)
        cells, notes = cells_of(recipe.grid.points(), trials if is_started else [])
        return Row(
            variant=variant,
            stage=stage,
            context=recipe.pretraining.stages[stage].context,
            is_last_stage=stage == len(recipe.pretraining.stages) - 1,
            is_started=is_started,
            cells=cells,
            losses=_losses(runs),
            notes=tuple(notes),
            runs=tuple(runs),
            origins=self._origins(runs),
        )

    def _origins(self, runs: Sequence[Run]) -> tuple[str, ...]:
        own = {run.id for run in runs}
        of_tasks = {study.task_origin for study in self._studies.values() if study.weights in own}
        return tuple(sorted(of_tasks.union(*(run.origins.values() for run in runs))))

    def _fits(self, trial: Trial, recipe: Recipe) -> bool:
        """Whether a trial is one of the variant's own: a transfer trial must start from a study of the variant."""
        start = self._studies.get(trial.start) if trial.start is not None else None
        starts_right = trial.start is None or (start is not None and _is_study_of(start, recipe))
        protocol = protocol_on(trial.task, recipe.finetuning, transfers=trial.start is not None)
        return trial.protocol == protocol and trial.point in recipe.grid.points() and starts_right

    def _has_study(self, recipe: Recipe, runs: Sequence[Run]) -> bool:
        """Whether the variant's own grid was begun on a checkpoint: variants with equal weights share trials, and a
        larger grid is not begun by the trials of a smaller one."""
        return any(_is_study_of(study, recipe) for study in self._studies_on(runs))

    def _studies_on(self, runs: Sequence[Run]) -> list[GlueStudy]:
        own = {run.id for run in runs}
        return [study for study in self._studies.values() if study.weights in own]


def measured_stages(recipe: Recipe, stages: Sequence[int]) -> Sequence[int]:
    """The stages whose checkpoints are measured on GLUE."""
    return stages if recipe.checkpoints == "every_stage" else stages[-1:]


def _is_study_of(study: GlueStudy, recipe: Recipe) -> bool:
    """Whether a study has a variant's grid and protocol; which study it starts from is not looked at."""
    protocol = protocol_on(study.task, recipe.finetuning, transfers=study.starts_from.study is not None)
    return study.protocol == protocol and frozenset(study.points) == frozenset(recipe.grid.points())


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
