"""What a plan costs before anything is spent: memory of a GPU, GPU-hours and disk of every unit. Torch-free.

Only what is not done counts. Hours of pre-training take every slot for a token, where packing leaves none empty, and
let each token see a whole context, where the record of a run counts its documents' lengths; hours of fine-tuning let no
trial end early; those of contrastive fine-tuning take every text to be as long as texts may be. All are upper bounds at
the throughput that is named beside them. Tasks of embeddings are not counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ablations.cost import Cost, sum_of_known, together
from ablations.disk import checkpoint_bytes, corpus_bytes, study_bytes, task_size
from ablations.plan import Row
from ablations.throughput import (
    Record,
    Throughput,
    finished_runs,
    measured_rate,
    measured_throughput,
    stated_throughput,
)
from neobert.data.sources import Source
from neobert.glue.sizes import TrialWork
from neobert.glue.tasks import TASKS
from neobert.model.size import MicroBatch, TrainingMemory, training_flops_per_token, training_memory
from neobert.recipe import Point
from neobert.runs.layout import Layout
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    EngineWord,
    Execution,
    GlueStudy,
    PretrainingRun,
    Run,
)

GIGABYTE = 1e9
SECONDS_PER_UPDATE = 0.03
"""What a fine-tuning update takes at least: small batches wait for some 1,200 kernel launches (estimated)."""

CACHED_GRADIENTS = 4 / 3
"""Work on a text whose gradients are cached: a forward pass, a third of the work, comes before forward and backward."""


@dataclass(frozen=True)
class Machine:
    """What a plan reckons with: `gpus` that train one model together under an engine, and what is known of each.

    `gpu` names one of `neobert.model.size.PEAK_FLOPS_PER_SECOND`. None stands for unknown.
    """

    gpu_memory_gb: float | None
    gpus: int
    engine: EngineWord
    micro_batch_tokens: int
    tokens_per_second_per_gpu: float | None
    gpu: str | None

    @classmethod
    def of(cls, execution: Execution) -> "Machine":
        """A machine of which nothing is known but how it will run."""
        return cls(None, execution.processes, execution.engine, execution.micro_batch_tokens, None, None)

    def rows(self, run: PretrainingRun) -> int:
        """Rows of a micro-batch of a stage."""
        stage = run.recipe.stages[-1]
        return min(max(1, self.micro_batch_tokens // stage.context), stage.tokens_per_step // stage.context)


def stage_memory(run: PretrainingRun, machine: Machine, rows: int | None = None) -> TrainingMemory:
    """What each GPU holds in a stage, with `rows` in a micro-batch (default: the machine's)."""
    recipe, stage = run.recipe, run.recipe.stages[-1]
    batch = MicroBatch.of(rows or machine.rows(run), stage.context, recipe.masking.rate)
    return training_memory(recipe, run.context, batch, machine.engine, machine.gpus, stage.tokens_per_step)


@dataclass(frozen=True)
class Costs:
    """The costs of a selection. Units that several rows share are counted in each row, and once in the total."""

    layout: Layout
    rows: Sequence[Row]
    source: Source
    machine: Machine

    def unit(self, run: Run) -> Cost:
        """One unit; a corpus that is still to be tokenised comes on top."""
        return self._units[run.id]

    def row(self, row: Row) -> Cost:
        """One variant and seed."""
        runs = [unit.run for unit in row.units]
        corpora = {run.data_id for run in runs if isinstance(run, PretrainingRun)}
        return together([*(self._units[run.id] for run in runs), *(self._corpora[data_id] for data_id in corpora)])

    @property
    def total(self) -> Cost:
        """Everything once: trials that grids share too."""
        studies = [run for run in self._missing.values() if isinstance(run, GlueStudy)]
        trained = [self._units[run.id] for run in self._pretraining.values()]
        embedded = [
            self._units[run.id]
            for run in self._missing.values()
            if isinstance(run, ContrastiveRun | EmbeddingEvaluation)
        ]
        return together([*trained, *embedded, *self._corpora.values(), self._studies_together(studies)])

    @property
    def pretraining_flops(self) -> float:
        """Floating-point operations of all pre-training that is not done, if every slot held a token."""
        missing = [run for run in self._missing.values() if isinstance(run, PretrainingRun)]
        return float(sum(self._flops(run) for run in missing))

    @cached_property
    def _missing(self) -> dict[str, Run]:
        return {unit.run.id: unit.run for row in self.rows for unit in row.units if unit.state != "done"}

    @cached_property
    def _pretraining(self) -> dict[str, PretrainingRun]:
        runs = (unit.run for row in self.rows for unit in row.units)
        return {run.id: run for run in runs if isinstance(run, PretrainingRun)}

    @cached_property
    def _units(self) -> dict[str, Cost]:
        costs: dict[str, Cost] = {}
        for unit in (unit for row in self.rows for unit in row.units):
            if unit.run.id in costs:
                continue
            if unit.run.id not in self._missing:
                costs[unit.run.id] = Cost()
            elif isinstance(unit.run, PretrainingRun):
                costs[unit.run.id] = self._stage(unit.run)
            elif isinstance(unit.run, GlueStudy):
                costs[unit.run.id] = self._studies_together([unit.run])
            elif isinstance(unit.run, ContrastiveRun):
                costs[unit.run.id] = self._contrastive(unit.run)
            else:
                costs[unit.run.id] = Cost(uncounted=("mteb",))
        return costs

    @cached_property
    def _corpora(self) -> dict[str, Cost]:
        """What tokenising takes, by the name of the tokenised corpus."""
        missing = {run.data_id: run for run in self._pretraining.values()}
        return {data_id: self._corpus(run) for data_id, run in missing.items()}

    def _corpus(self, run: PretrainingRun) -> Cost:
        if run.id not in self._missing or (self.layout.data(run.data_id) / "manifest.json").exists():
            return Cost()
        size = corpus_bytes(self.source, run.recipe.data.corpus)
        return Cost(disk_gb=None if size is None else size / GIGABYTE)

    @cached_property
    def _finished(self) -> list[Record]:
        return finished_runs(self.layout)

    @cached_property
    def _stated(self) -> Throughput:
        return stated_throughput(self.machine.gpu, self.machine.tokens_per_second_per_gpu)

    def _stage(self, run: PretrainingRun) -> Cost:
        stage = run.recipe.stages[-1]
        throughput = measured_throughput(run, self._finished) or self._stated
        seconds = throughput.seconds(self._flops(run), stage.tokens)
        return Cost(
            memory_gb=stage_memory(run, self.machine).total / GIGABYTE,
            gpu_hours=None if seconds is None else seconds / 3600,
            sources=_named(throughput),
            disk_gb=checkpoint_bytes(run) / GIGABYTE,
        )

    def _flops(self, run: PretrainingRun) -> float:
        recipe, stage = run.recipe, run.recipe.stages[-1]
        return training_flops_per_token(recipe.model, stage.context, recipe.masking.rate) * stage.tokens

    def _contrastive(self, run: ContrastiveRun) -> Cost:
        """As if every text were as long as texts may be; of an encoder outside the plan nobody knows anything."""
        stage, protocol = self._pretraining.get(run.weights), run.protocol
        if stage is None:
            return Cost(gpu_hours=None, disk_gb=None)
        throughput = measured_rate(stage, self._finished) or self._stated
        tokens = protocol.steps * protocol.texts_per_step * run.max_tokens * CACHED_GRADIENTS
        seconds = throughput.seconds(training_flops_per_token(stage.recipe.model, run.max_tokens, 0) * tokens, tokens)
        hours = None if seconds is None else seconds / 3600
        return Cost(gpu_hours=hours, sources=_named(throughput), disk_gb=checkpoint_bytes(stage) / GIGABYTE)

    def _studies_together(self, studies: Sequence[GlueStudy]) -> Cost:
        """Studies whose trials are counted once; the weights of each one's best trial stay."""
        hours: dict[tuple[str, Point], float | None] = {}
        sources: dict[str, None] = {}
        disk = 0.0
        for study in studies:
            throughput = self._throughput_of(study)
            sources.update(dict.fromkeys(_named(throughput)))
            disk += study_bytes(study, self._pretraining[study.weights], self.source) / GIGABYTE
            key = study.model_copy(update={"points": ()}).model_dump_json()
            by_batch = {size: self._trial_hours(study, size, throughput) for size in _batch_sizes(study)}
            hours.update({(key, point): by_batch[point.batch_size] for point in self._open_points(study)})
        return Cost(gpu_hours=sum_of_known(hours.values()), sources=tuple(sources), disk_gb=disk)

    def _throughput_of(self, study: GlueStudy) -> Throughput:
        return measured_rate(self._pretraining[study.weights], self._finished) or self._stated

    def _trial_hours(self, study: GlueStudy, batch_size: int, throughput: Throughput) -> float | None:
        model = self._pretraining[study.weights].recipe.model
        size = task_size(self.source, study.task).capped(study.protocol)
        work = TrialWork.of(study.task, size, study.protocol, batch_size)
        length = size.tokens(study.task, study.protocol.max_tokens)
        tokens = work.trained_tokens + work.evaluated_tokens / 3  # a forward pass is a third of the work
        seconds = throughput.seconds(training_flops_per_token(model, length, 0) * tokens, tokens)
        return None if seconds is None else max(seconds, SECONDS_PER_UPDATE * work.updates) / 3600

    def _open_points(self, study: GlueStudy) -> list[Point]:
        """The points of a grid that no record closes yet."""
        recorded = self._recorded[study.task]
        return [point for point in study.points if not recorded or study.trial_id(point) not in recorded]

    @cached_property
    def _recorded(self) -> dict[str, frozenset[str]]:
        """The trials of each task that have a record."""
        root = self.layout.root / "glue"
        return {task: frozenset(path.stem for path in (root / task).glob("*.json")) for task in TASKS}


def _named(throughput: Throughput) -> tuple[str, ...]:
    return () if throughput.source is None else (throughput.source,)


def _batch_sizes(study: GlueStudy) -> set[int]:
    return {point.batch_size for point in study.points}
