"""Estimated costs of a plan: memory per GPU, GPU-hours and disk space of every run.

Only unfinished runs count. All hours are upper bounds at the throughput printed with them. Pre-training is counted as
if every slot held a token (packing leaves few empty) and every token attended to a whole context (records count the
documents' lengths). No fine-tuning trial ends early, and every contrastive text has the maximum length. MTEB
evaluations are not counted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ablations.launch.request import Place
from ablations.plan import PlanRow, unfinished
from ablations.scales import UNSCALED, Scale
from neobert.data.catalog import CHARACTERS_PER_TOKEN
from neobert.data.shards import DOCUMENT, MANIFEST, TOKEN
from neobert.data.sources import Source, SyntheticSource
from neobert.errors import did_you_mean
from neobert.execution import Execution
from neobert.glue.task_data import own_files
from neobert.glue.tasks import Task
from neobert.kinds.contrastive import ContrastiveRun
from neobert.kinds.glue import GlueStudy
from neobert.kinds.pretraining import PretrainingRun
from neobert.model.size import (
    PEAK_FLOPS_PER_SECOND,
    MicroBatchShape,
    TrainingMemory,
    parameter_count,
    stage_flops_per_token,
    training_flops_per_token,
    training_memory,
)
from neobert.recipe import EngineWord
from neobert.runs.kinds import Run
from neobert.runs.layout import Layout
from neobert.training.schedule import MILESTONES, NEWEST_KEPT, FineTuningSchedule


@dataclass(frozen=True)
class Cost:
    """Cost of one run or several. Hours are None if they are unknown, memory if nothing is pre-trained.

    uncounted: kinds of work that the hours exclude, because the number of texts they read is not known in advance.
    """

    memory_gb: float | None = None
    gpu_hours: float | None = 0.0
    disk_gb: float = 0.0
    uncounted: tuple[str, ...] = ()


def sum_costs(costs: Iterable[Cost]) -> Cost:
    """Add up costs: the maximum of the memory, the sum of the rest. A sum with unknown hours is unknown."""
    listed = list(costs)
    return Cost(
        max((cost.memory_gb for cost in listed if cost.memory_gb is not None), default=None),
        _sum_known([cost.gpu_hours for cost in listed]),
        sum(cost.disk_gb for cost in listed),
        tuple(dict.fromkeys(name for cost in listed for name in cost.uncounted)),
    )


def _sum_known(values: Collection[float | None]) -> float | None:
    """Return the sum; None if one value is None."""
    return None if None in values else sum((value for value in values if value is not None), 0.0)


STATED_UTILIZATION = 0.38
"""Share of the data sheet's peak that NeoBERT's shape reached when it was compiled, on an H200 at a context of 1,024
tokens (benchmarks/README.md). NeoBERT itself reached 16 % (2.1T tokens in 6,000 H100-hours)."""
ASSUMED_GPU = "H100"
"""The GPU of a plan that names none, at the scales at which nobody trains without one."""


@dataclass(frozen=True)
class TaskSize:
    """Number of examples in the train split and in all validation splits together; mean length in characters."""

    train: int
    validation: int
    characters: float

    def tokens(self, task: Task, most: int) -> float:
        """Return the mean number of tokens of an example, at most `most`."""
        specials = 1 + len(task.columns)  # around one text, or around and between two
        return min(float(most), self.characters / CHARACTERS_PER_TOKEN + specials)


PUBLISHED = {  # dataset card of nyu-mll/glue: num_examples; (num_bytes / num_examples) less label, number and offsets
    "mnli": TaskSize(392_702, 19_647, 170.0),
    "qnli": TaskSize(104_743, 5_463, 224.5),
    "qqp": TaskSize(363_846, 40_430, 119.9),
    "rte": TaskSize(2_490, 277, 320.3),
    "sst2": TaskSize(67_349, 872, 53.5),
    "mrpc": TaskSize(3_668, 408, 237.3),
    "cola": TaskSize(8_551, 1_043, 40.7),
    "stsb": TaskSize(5_749, 1_500, 115.3),
}


WEIGHT_BYTES = 4
OPTIMIZER_BYTES = 8

TRIAL_RECORD_BYTES = 20_000
"""Size of a record with its curve (about 250 evaluations at paper scale)."""

SYNTHETIC_CHARACTERS = 80.0
"""Mean length of a GLUE example of the synthetic world."""


def corpus_bytes(source: Source, corpus: str) -> float:
    """Return the size of a source's tokenised corpus in bytes."""
    tokens, documents = source.corpus_size(corpus)
    return tokens * TOKEN.itemsize + documents * DOCUMENT.itemsize


def checkpoint_bytes(run: PretrainingRun) -> int:
    """Return the bytes that a finished stage keeps: weights at milestones, newest checkpoints with optimizer state."""
    parameters = parameter_count(run.recipe.model, run.context).total
    return parameters * (MILESTONES * WEIGHT_BYTES + NEWEST_KEPT * (WEIGHT_BYTES + OPTIMIZER_BYTES))


def task_size(source: Source, task: Task) -> TaskSize:
    """Return the size of a task. GLUE's tasks in a folder are assumed to be the published ones."""
    if task.is_own:
        return _own_size(task)
    if isinstance(source, SyntheticSource):
        from neobert.data.synthetic.tasks import example_counts

        return TaskSize(*example_counts(task.name), characters=SYNTHETIC_CHARACTERS)
    return PUBLISHED[task.name]


@lru_cache(maxsize=64)
def _own_size(task: Task) -> TaskSize:
    """Count the examples of a ladder's own task. Raises as `own_files`."""
    needed = (task.label_column, *task.columns)
    splits = {split: own_files(task).read(split, needed) for split in task.splits}
    train, *others = splits.values()
    texts = [train[column] for column in task.columns]
    characters = sum(len(str(text)) for column in texts for text in column)
    count = len(train[task.label_column])
    return TaskSize(count, sum(len(other[task.label_column]) for other in others), characters / count)


def study_bytes(study: GlueStudy, run: PretrainingRun, source: Source) -> int:
    """Return the bytes of the records and predictions of all trials, and of the weights of the best one."""
    labels = study.about.labels
    predictions = task_size(source, study.about).validation * labels * 4
    encoder = parameter_count(run.recipe.model, run.context).encoder
    head = run.recipe.model.width * (run.recipe.model.width + 1 + labels) + labels
    return len(study.points) * (TRIAL_RECORD_BYTES + predictions) + WEIGHT_BYTES * (encoder + head)


GIGABYTE = 1e9
SECONDS_PER_UPDATE = 0.008
"""Minimum time of a fine-tuning update, of any batch, as a graph; measured on an H200."""

CACHED_GRADIENTS = 4 / 3
"""Relative work of GradCache: one more forward pass, a third of the work, before forward and backward."""


@dataclass(frozen=True)
class Machine:
    """The machine that costs are computed for: `gpus` GPUs that train one model together under an engine.

    `gpu` is a key of `neobert.model.size.PEAK_FLOPS_PER_SECOND`, stated or assumed; None means unknown.
    """

    gpu_memory_gb: float | None
    gpus: int
    engine: EngineWord
    micro_batch_tokens: int
    tokens_per_second_per_gpu: float | None
    gpu: str | None
    is_assumed: bool = False

    @classmethod
    def of(cls, place: Place, execution: Execution, scale: Scale) -> "Machine":
        """Return the machine of a place: the GPUs of its pre-training job. At the scales without rules H100s are
        assumed if no GPU is named. Raises as `Place.execution`."""
        known, execution = place.profile["pretrain"], place.execution(execution)
        is_assumed = known.gpu is None and scale in UNSCALED
        return cls(
            gpu_memory_gb=known.gpu_memory_gb,
            gpus=execution.processes,
            engine=execution.engine,
            micro_batch_tokens=execution.micro_batch_tokens,
            tokens_per_second_per_gpu=known.tokens_per_second_per_gpu,
            gpu=ASSUMED_GPU if is_assumed else known.gpu,
            is_assumed=is_assumed,
        )

    @property
    def source(self) -> str | None:
        """How hours are determined; None if they are unknown. Raises ValueError if there is no GPU of this name."""
        if (rate := self.tokens_per_second_per_gpu) is not None:
            throughput = f"stated: {rate:,.0f} tokens/s per GPU"
        elif self.gpu is None:
            return None
        else:
            said = "assumed" if self.is_assumed else "stated"
            peak = f"{self.gpu}'s {self._peak / 1e12:,.0f} TFLOP/s bf16"
            throughput = f"{said}: {STATED_UTILIZATION:.0%} of {peak}"
        return f"{throughput}; at least {1000 * SECONDS_PER_UPDATE:.0f} ms a fine-tuning update"

    def hours(self, flops: float, tokens: float) -> float | None:
        """Return the GPU-hours of some work: by tokens per second if they are stated, else by the GPU's name; None if
        neither is known. Raises ValueError if there is no GPU of this name."""
        if self.tokens_per_second_per_gpu is not None:
            return tokens / self.tokens_per_second_per_gpu / 3600
        return None if self.gpu is None else flops / (STATED_UTILIZATION * self._peak) / 3600

    @property
    def _peak(self) -> float:
        if self.gpu not in PEAK_FLOPS_PER_SECOND:
            hint = did_you_mean(str(self.gpu), PEAK_FLOPS_PER_SECOND)
            raise ValueError(f"the peak of gpu {self.gpu!r} is not known: {hint}; or state tokens_per_second_per_gpu")
        return PEAK_FLOPS_PER_SECOND[self.gpu]

    def rows(self, run: PretrainingRun) -> int:
        """Return the number of rows in a micro-batch of a stage."""
        stage = run.recipe.stages[-1]
        return min(max(1, self.micro_batch_tokens // stage.context), stage.tokens_per_step // stage.context)


def stage_memory(run: PretrainingRun, machine: Machine, rows: int | None = None) -> TrainingMemory:
    """Return the memory of each GPU in a stage, with `rows` in a micro-batch (default: the machine's)."""
    recipe, stage = run.recipe, run.recipe.stages[-1]
    batch = MicroBatchShape.of(rows or machine.rows(run), stage.context, recipe.masking.rate)
    return training_memory(recipe, run.context, batch, machine.engine, machine.gpus, stage.tokens_per_step)


@dataclass(frozen=True)
class PlanCosts:
    """The costs of a plan. Work that several rows share is counted in each row, but only once in the total."""

    layout: Layout
    rows: Sequence[PlanRow]
    source: Source
    machine: Machine

    def of(self, run: Run) -> Cost:
        """Return the cost of one run, without the corpus that may still have to be tokenised."""
        return self._costs.get(run.id, Cost())

    def row(self, row: PlanRow) -> Cost:
        """Return the cost of one row, including the corpora that it reads."""
        corpora = {run.data_id for run in PretrainingRun.among(row.runs)}
        return sum_costs([*map(self.of, row.runs), *(self._corpora[data_id] for data_id in corpora)])

    @property
    def total(self) -> Cost:
        """The cost of everything, counted once, including trials that grids share."""
        studies = GlueStudy.among(self._unfinished.values())
        others = [self._costs[run.id] for run in self._unfinished.values() if run.kind != "glue"]
        return sum_costs([*others, *self._corpora.values(), self._studies(studies)])

    @cached_property
    def _costs(self) -> dict[str, Cost]:
        return {
            run.id: COSTS[run.kind](self, run) if run.kind in COSTS else Cost(uncounted=(run.kind,))
            for run in self._unfinished.values()
        }

    @cached_property
    def _unfinished(self) -> dict[str, Run]:
        return {run.id: run for run in unfinished(self.rows)}

    @cached_property
    def _pretraining(self) -> dict[str, PretrainingRun]:
        return {run.id: run for row in self.rows for run in PretrainingRun.among(row.runs)}

    @cached_property
    def _corpora(self) -> dict[str, Cost]:
        """The cost of tokenisation by the id of the tokenised corpus."""
        costs = {}
        read = {run.data_id: run.corpus for run in self._pretraining.values()}
        for data_id, corpus in read.items():
            costs[data_id] = Cost()
            if corpus.run in self._unfinished and not (self.layout.data(data_id) / MANIFEST).exists():
                costs[data_id] = Cost(disk_gb=corpus_bytes(self.source, corpus.corpus) / GIGABYTE)
        return costs

    def _stage(self, run: PretrainingRun) -> Cost:
        return Cost(
            memory_gb=stage_memory(run, self.machine).total / GIGABYTE,
            gpu_hours=self.machine.hours(stage_flops(run), run.recipe.stages[-1].tokens),
            disk_gb=checkpoint_bytes(run) / GIGABYTE,
        )

    def _contrastive(self, run: ContrastiveRun) -> Cost:
        """Return the cost if every text had the maximum length."""
        stage, protocol = self._pretraining[run.weights], run.protocol
        tokens = protocol.steps * protocol.texts_per_step * run.max_tokens * CACHED_GRADIENTS
        hours = self.machine.hours(training_flops_per_token(stage.recipe.model, run.max_tokens, 0) * tokens, tokens)
        return Cost(gpu_hours=hours, disk_gb=checkpoint_bytes(stage) / GIGABYTE)

    def _studies(self, studies: Sequence[GlueStudy]) -> Cost:
        """Cost of studies: shared trials are counted once; each study keeps the weights of its best trial."""
        hours: dict[str, float | None] = {}
        disk = 0.0
        for study in studies:
            stage = self._pretraining[study.weights]
            disk += study_bytes(study, stage, self.source) / GIGABYTE
            sizes = {point.batch_size for point in study.points}
            by_batch = {size: self._trial_hours(study, stage, size) for size in sizes}
            open_trials = (trial for trial in study.trials(self.layout) if not trial.is_recorded)
            hours |= {trial.id: by_batch[trial.point.batch_size] for trial in open_trials}
        return Cost(gpu_hours=_sum_known(hours.values()), disk_gb=disk)

    def _trial_hours(self, study: GlueStudy, stage: PretrainingRun, batch_size: int) -> float | None:
        """Return the hours of a trial without early stopping."""
        size, protocol = task_size(self.source, study.about), study.protocol
        length = size.tokens(study.about, protocol.max_tokens)
        examples = min(size.train, protocol.train_examples or size.train)
        schedule = FineTuningSchedule.of(protocol, examples, batch_size)
        evaluated = length * size.validation * -(-schedule.steps // schedule.evaluation_interval)
        tokens = length * examples * protocol.epochs + evaluated / 3  # a forward pass is a third of the work
        hours = self.machine.hours(training_flops_per_token(stage.recipe.model, length, 0) * tokens, tokens)
        return None if hours is None else max(hours, SECONDS_PER_UPDATE * schedule.steps / 3600)


COSTS: Mapping[str, Callable[[PlanCosts, Any], Cost]] = {
    "pretraining": PlanCosts._stage,
    "glue": lambda costs, study: costs._studies([study]),
    "contrastive": PlanCosts._contrastive,
}
"""The cost function of each kind of work whose costs are estimated, without corpora."""


def stage_flops(run: PretrainingRun) -> float:
    """Return the floating-point operations of a stage, if every slot held a token."""
    return stage_flops_per_token(run.recipe, run.stage) * run.recipe.stages[-1].tokens
