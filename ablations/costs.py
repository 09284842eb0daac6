"""What a plan costs before anything is spent: memory of a GPU, GPU-hours and disk of every unit. Torch-free.

Only what is not done counts. Hours of pre-training take every slot for a token, where packing leaves none empty, and
let each token see a whole context, where the record of a run counts its documents' lengths; hours of fine-tuning let no
trial end early; those of contrastive fine-tuning take every text to be as long as texts may be. All are upper bounds at
the throughput that is named beside them. Tasks of embeddings are not counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

from ablations.plan import Row
from neobert.data.shards import DOCUMENT, TOKEN
from neobert.data.sources import DirectorySource, HubSource, Source, SyntheticSource
from neobert.errors import DamagedFile, did_you_mean
from neobert.glue.tasks import TASKS, task_named
from neobert.identity import plain
from neobert.model.size import (
    PEAK_FLOPS_PER_SECOND,
    MicroBatch,
    TrainingMemory,
    parameter_count,
    training_flops_per_token,
    training_memory,
)
from neobert.recipe import EngineWord, FineTuning, Point
from neobert.runs.layout import Layout
from neobert.runs.records import read_record
from neobert.runs.specifications import (
    ContrastiveRun,
    EmbeddingEvaluation,
    Execution,
    GlueStudy,
    PretrainingRun,
    Run,
)
from neobert.training.schedule import MILESTONES, NEWEST_KEPT, FineTuningSchedule


@dataclass(frozen=True)
class Cost:
    """Of one unit or several. None is unknown, 0 nothing to spend; `sources` say where the hours come from, `uncounted`
    names what is in them for nothing, since nobody knows how many texts it reads."""

    memory_gb: float | None = None
    gpu_hours: float | None = 0.0
    sources: tuple[str, ...] = ()
    disk_gb: float | None = 0.0
    uncounted: tuple[str, ...] = ()

    def summary(self) -> dict[str, Any]:
        """The keys of `--dry-run --json`."""
        return {
            "memory_gb_per_gpu": _rounded(self.memory_gb),
            "gpu_hours": _rounded(self.gpu_hours),
            "gpu_hours_source": "; ".join(self.sources) or None,
            "gpu_hours_without": list(self.uncounted),
            "disk_gb": _rounded(self.disk_gb),
        }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def together(costs: Iterable[Cost]) -> Cost:
    """Memory is the most of all, the rest a sum; a sum with something unknown in it is unknown."""
    listed = list(costs)
    memories = [cost.memory_gb for cost in listed if cost.memory_gb is not None]
    sources = dict.fromkeys(source for cost in listed for source in cost.sources)
    return Cost(
        max(memories, default=None),
        sum_of_known(cost.gpu_hours for cost in listed),
        tuple(sources),
        sum_of_known(cost.disk_gb for cost in listed),
        tuple(dict.fromkeys(name for cost in listed for name in cost.uncounted)),
    )


def sum_of_known(values: Iterable[float | None]) -> float | None:
    """The sum; None where one is."""
    known = list(values)
    return None if None in known else float(sum(value for value in known if value is not None))


STATED_UTILIZATION = 0.25
"""Share of the peak that encoders of this size reach on Hopper: NeoBERT itself 16 % (2.1T tokens in 6,000 H100-hours),
ModernBERT-base's shape 24 % (Ettin's published hours), NeoBERT's shape with a compiled model 27 %."""

SHAPE = ("vocabulary_size", "layers", "width", "heads", "feedforward_width", "feedforward", "positions", "norm")

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Throughput:
    """Floating-point operations a second of one GPU, or slots of tokens a second whatever the model, and who says so.

    Both None: nobody knows.
    """

    flops_per_second: float | None
    tokens_per_second: float | None
    source: str | None

    def seconds(self, flops: float, tokens: float) -> float | None:
        """GPU-seconds of some work; None where nobody knows."""
        if self.tokens_per_second is not None:
            return tokens / self.tokens_per_second
        return None if self.flops_per_second is None else flops / self.flops_per_second


UNKNOWN = Throughput(None, None, None)


def stated_throughput(gpu: str | None, tokens_per_second: float | None) -> Throughput:
    """What a person says about a GPU: its tokens a second, else its name.

    Raises:
        ValueError: there is no such GPU.
    """
    if tokens_per_second is not None:
        return Throughput(None, tokens_per_second, f"stated: {tokens_per_second:,.0f} tokens/s a GPU")
    if gpu is None:
        return UNKNOWN
    if gpu not in PEAK_FLOPS_PER_SECOND:
        hint = did_you_mean(gpu, PEAK_FLOPS_PER_SECOND)
        raise ValueError(f"the peak of gpu {gpu!r} is not known: {hint}; or state tokens_per_second_per_gpu")
    peak = PEAK_FLOPS_PER_SECOND[gpu]
    source = f"stated: {STATED_UTILIZATION:.0%} of {gpu}'s {peak / 1e12:,.0f} TFLOP/s bf16"
    return Throughput(STATED_UTILIZATION * peak, None, source)


def finished_runs(layout: Layout) -> list[Record]:
    """The records of pre-training stages that were done on GPUs, newest first; unreadable ones are passed over."""
    paths = list(layout.root.glob("pretraining/*/done.json"))
    records: list[Record] = []
    for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True):
        try:
            record = read_record(path)
        except DamagedFile:
            continue
        if record.get("gpu_hours") and record.get("flops"):
            records.append(record)
    return records


def measured_throughput(run: PretrainingRun, finished: Sequence[Record]) -> Throughput | None:
    """What the newest run of the same shape reached; one with rows of the same kind is taken before others.

    With the same rows the slots that packing leaves empty are in the number, else only the work is compared.
    """
    shape = _shape(plain(run.recipe.model))
    same = [record for record in finished if _shape(record["config"]["recipe"]["model"]) == shape]
    for record in same:
        if _rows(record["config"]["recipe"]) == _rows(plain(run.recipe)):
            return Throughput(None, record["tokens"] / (3600 * record["gpu_hours"]), f"measured by run {record['id']}")
    return measured_rate(run, same)


def measured_rate(run: PretrainingRun, finished: Sequence[Record]) -> Throughput | None:
    """The operations a second of the newest run of the same shape, whatever rows it had."""
    shape = _shape(plain(run.recipe.model))
    for record in finished:
        if _shape(record["config"]["recipe"]["model"]) == shape:
            rate = record["flops"] / (3600 * record["gpu_hours"])
            return Throughput(rate, None, f"measured by run {record['id']}")
    return None


def _shape(model: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(model.get(field) for field in SHAPE)


def _rows(recipe: Mapping[str, Any]) -> tuple[Any, ...]:
    """What decides how full rows are and what a slot costs."""
    stage = recipe["stages"][-1]
    return recipe["data"], recipe["packing"], recipe["precision"], stage["context"], stage["mixture"]


CHARACTERS_PER_TOKEN = 4.5
"""English text in BERT's WordPieces: 2.8 TB of RefinedWeb are 600 G tokens (paper, Table 1 and §3.2), 4.7 each."""

SPECIALS = {1: 2, 2: 3}
"""Special tokens around one text and around a pair."""


@dataclass(frozen=True)
class TaskSize:
    """Examples of the train split and of all validation splits together, and the mean length of one in characters."""

    train: int
    validation: int
    characters: float

    def tokens(self, task: str, most: int) -> float:
        """Mean tokens of an example, at most `most`."""
        specials = SPECIALS[len(task_named(task).text_columns)]
        return min(float(most), self.characters / CHARACTERS_PER_TOKEN + specials)

    def capped(self, protocol: FineTuning) -> "TaskSize":
        """What a protocol trains on."""
        most = protocol.train_examples
        return self if most is None else TaskSize(min(most, self.train), self.validation, self.characters)


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


@dataclass(frozen=True)
class TrialWork:
    """What one fine-tuning trial does if patience does not end it: updates, tokens trained on, and tokens evaluated."""

    updates: int
    trained_tokens: float
    evaluated_tokens: float

    @classmethod
    def of(cls, task: str, size: TaskSize, protocol: FineTuning, batch_size: int) -> "TrialWork":
        """The work of a trial by the protocol."""
        course = FineTuningSchedule.of(protocol, size.train, batch_size)
        evaluations = -(-course.steps // course.evaluation_interval)
        tokens = size.tokens(task, protocol.max_tokens)
        trained = tokens * size.train * protocol.epochs
        return cls(course.steps, trained, tokens * size.validation * evaluations)


WEIGHT_BYTES = 4
OPTIMIZER_BYTES = 8

TRIAL_RECORD_BYTES = 20_000
"""A record with its curve; some 250 evaluations at paper scale."""

HUB_CORPORA = {
    "wikibook": (13e9 / CHARACTERS_PER_TOKEN, 80_500_000),  # 13 GB (paper, Table 1); articles and sentences
    "web": (600e9, 968_000_000),  # paper §3.2; documents of tiiuae/falcon-refinedweb
}
"""Tokens and documents."""

SAMPLED_DOCUMENTS = 64
SYNTHETIC_CHARACTERS = 80.0
"""Of a GLUE example of the synthetic world."""


def corpus_bytes(source: Source, corpus: str) -> float | None:
    """What a corpus of a source takes in tokens; None where nobody knows."""
    size = _tokens_and_documents(source, corpus)
    return None if size is None else size[0] * TOKEN.itemsize + size[1] * DOCUMENT.itemsize


def _tokens_and_documents(source: Source, corpus: str) -> tuple[float, float] | None:
    if isinstance(source, HubSource):
        return HUB_CORPORA[corpus]
    if isinstance(source, SyntheticSource):  # its words are nearly all tokens
        sample = list(islice(source.documents(corpus), SAMPLED_DOCUMENTS))
        words = sum(len(text.split()) for text in sample) / len(sample)
        return words * source.documents_per_corpus, source.documents_per_corpus
    if isinstance(source, DirectorySource):
        characters, documents = source.text_size(corpus)
        return characters / CHARACTERS_PER_TOKEN, documents
    return None


def checkpoint_bytes(run: PretrainingRun) -> int:
    """What a finished stage keeps: weights at the milestones, and the newest checkpoints with the optimizer's state."""
    parameters = parameter_count(run.recipe.model, run.context).total
    return parameters * (MILESTONES * WEIGHT_BYTES + NEWEST_KEPT * (WEIGHT_BYTES + OPTIMIZER_BYTES))


def task_size(source: Source, task: str) -> TaskSize:
    """How large a task of a source is; a folder's tasks are taken to be the published ones."""
    if isinstance(source, SyntheticSource):
        from neobert.data.synthetic.tasks import example_counts

        return TaskSize(*example_counts(task), characters=SYNTHETIC_CHARACTERS)
    return PUBLISHED[task]


def study_bytes(study: GlueStudy, run: PretrainingRun, source: Source) -> int:
    """Records and predictions of all points, and the weights of the best one."""
    labels = task_named(study.task).labels
    predictions = task_size(source, study.task).validation * labels * 4
    encoder = parameter_count(run.recipe.model, run.context).encoder
    head = run.recipe.model.width * (run.recipe.model.width + 1 + labels) + labels
    return len(study.points) * (TRIAL_RECORD_BYTES + predictions) + WEIGHT_BYTES * (encoder + head)


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
