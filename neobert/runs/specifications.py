"""Specifications of work: for each kind, the fields that determine its result, its id, and its place on disk.

In the order of a study: corpus, pre-training, GLUE, contrastive fine-tuning, MTEB, readouts. `neobert.runs.work.Work`
is the interface of all kinds.
"""

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import NonNegativeInt, PositiveInt, field_validator, model_validator

from neobert.files import read_json
from neobert.identity import NUMERICS, Neutral, chosen, decisive, identity, neutral_values
from neobert.recipe import (
    Contrastive,
    EmbeddingPrecision,
    FineTuning,
    Instructed,
    Optimization,
    Point,
    Pretraining,
    Value,
)
from neobert.runs.layout import MANIFEST, Layout
from neobert.runs.records import Category, Protocol, ReadoutName, read_selection
from neobert.runs.work import Part, Training, Work, error_beside

EXTERNAL_PREFIX = "model-"
"""Prefix of the ids of external models. Run ids are hexadecimal digits."""


def pretraining_of(weights: str) -> tuple[str, ...]:
    """Return the reference of the run that produced the weights; empty for an external model."""
    return () if weights.startswith(EXTERNAL_PREFIX) else (f"pretraining/{weights}",)


def mechanisms_of(optimization: Optimization) -> tuple[str, ...]:
    """Return the optimizer as a mechanism if it has a numerics version of its own, beside that of all optimizers."""
    return (optimization.optimizer,) if optimization.optimizer in NUMERICS else ()


class PretrainingRun(Training):
    """One stage of pre-training. `recipe.stages` ends with this stage; `previous` is the id of the run before it.

    `position_table` is the size of a learned position table in tokens: the longest context of *all* stages of the
    variant. It is None with rotary positions, where later stages do not affect earlier ones.
    """

    recipe: Pretraining
    previous: str | None
    position_table: PositiveInt | None
    corpus_origin: str
    tokenizer_origin: str

    kind = "pretraining"
    form = "pretraining/<id>"
    hashed_as = ("pretraining", "run")
    mechanisms = ("tokenization", "batching", "masking", "model", "initialization", "optimization")

    @property
    def own_mechanisms(self) -> tuple[str, ...]:
        return mechanisms_of(self.recipe.optimization)

    @property
    def stage(self) -> int:
        """Index of this stage, from 0."""
        return len(self.recipe.stages) - 1

    @property
    def title(self) -> str:
        return f"pretraining stage {self.stage + 1}"

    @property
    def seed(self) -> int:
        return self.recipe.seed

    @property
    def total(self) -> int:
        return self.recipe.stages[-1].steps

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"stage": self.stage + 1, "seed": self.seed}

    @property
    def after(self) -> tuple[str, ...]:
        return () if self.previous is None else (f"pretraining/{self.previous}",)

    @property
    def preparation(self) -> tuple[Work, ...]:
        return (Corpus(run=self),)

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        return (layout.data(self.data_id),)

    def heldout_loss(self, losses: Mapping[str, float]) -> float | None:
        """Return the loss on the run's own corpus, None if there is none."""
        return losses.get(self.recipe.data.corpus)

    @property
    def context(self) -> int:
        """Context that the model is built for, in tokens."""
        return self.position_table or self.recipe.longest_context

    @cached_property
    def data_id(self) -> str:
        """Id of the tokenised corpus."""
        return Corpus(run=self).id


class Corpus(Work):
    """Tokenised corpus that a stage of pre-training reads."""

    run: PretrainingRun

    kind = "corpus"
    job = "prepare"
    counted = "shards"
    form = "data/<id>"

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """Return the id of the tokens, the same for every run that reads them.

        It includes the corpus name, since both corpora of a source may have the same origin.
        """
        content = {
            "corpus": self.run.recipe.data.corpus,
            "origin": self.run.corpus_origin,
            "tokenizer": self.run.tokenizer_origin,
        }
        return identity({**content, "numerics": chosen(numerics, ("tokenization",))})

    @property
    def reference(self) -> str:
        return f"corpus/{self.id}/{self.run.id}"

    @property
    def title(self) -> str:
        return f"corpus {self.run.recipe.data.corpus}"

    def closing(self, layout: Layout) -> Part:
        return Part(
            id=f"corpus-{self.id}",
            title=f"{self.title} {self.id}",
            record=layout.data(self.id) / MANIFEST,
            error=layout.root / "data" / "errors" / f"{self.id}.json",
            read=read_json,
        )


class Start(Value):
    """The weights a fine-tuning trial starts from: the pre-trained ones, or the best trial of another task's study."""

    kind: Literal["pretraining", "study"]
    task: str | None
    study: str | None
    rule: str | None
    reason: str | None

    @property
    def name(self) -> str:
        """Name in records: "pretraining" or the task."""
        return self.task or "pretraining"


class GlueStudy(Work):
    """A grid of fine-tuning trials of one task on one pre-trained model with one seed.

    `weights` is the id of a pre-training run, or of an external model (`neobert.external`). `pruning` is always None:
    studies that earlier versions pruned are refused, since their trials depend on each other.
    """

    task: str
    weights: str
    stage: NonNegativeInt
    context: PositiveInt
    protocol: FineTuning
    points: tuple[Point, ...]
    seed: NonNegativeInt
    starts_from: Start
    task_origin: str
    tokenizer_origin: str
    pruning: Annotated[None, Neutral(None)] = None

    kind = "glue"
    job = "glue"
    counted = "points"
    form = "glue/<task>/studies/<id>"
    hashed_as = ("glue_study", "study")
    mechanisms = ("tokenization", "model", "finetuning", "metrics")

    @field_validator("pruning", mode="before")
    @classmethod
    def _is_whole(cls, pruning: Any) -> None:
        if pruning is not None:
            raise ValueError("the study was made with --prune, which this version no longer has")

    @property
    def title(self) -> str:
        return f"glue {self.task}"

    @property
    def total(self) -> int:
        return len(self.points)

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"task": self.task, "stage": self.stage + 1, "weights": self.weights, "seed": self.seed}

    @property
    def is_external(self) -> bool:
        """Whether the model is an external one."""
        return self.weights.startswith(EXTERNAL_PREFIX)

    @property
    def after(self) -> tuple[str, ...]:
        """References of the encoder and, if the trials start from another task, of that task's study."""
        start = self.starts_from
        study = () if start.study is None else (f"glue/{start.task}/studies/{start.study}",)
        return (*pretraining_of(self.weights), *study)

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        return (self.encoded_task(layout),)

    def encoded_task(self, layout: Layout) -> Path:
        """Return the path of the task in token ids. Studies with the same task, tokenizer and length share it."""
        decides = {"task": self.task_origin, "tokenizer": self.tokenizer_origin, "max_tokens": self.protocol.max_tokens}
        if NUMERICS["tokenization"] > 2:  # files of version 2 are named without it
            decides["tokenization"] = NUMERICS["tokenization"]
        return layout.root / "data" / "glue" / f"{self.task}-{identity(decides)}.safetensors"

    @cached_property
    def shared_by_trials(self) -> dict[str, Any]:
        """Fields that all trials share. The points of the grid are left out, so that grids can share trials."""
        return {key: value for key, value in decisive(self).items() if key != "points"}

    def trial_id(self, point: Point) -> str:
        """Return the id of the trial at one point."""
        numerics = chosen(NUMERICS, self.mechanisms)
        return identity({"kind": "glue", "trial": self.shared_by_trials, "point": point, "numerics": numerics})

    @cached_property
    def trial_ids(self) -> tuple[str, ...]:
        """Ids of all trials, in the order of the grid."""
        return tuple(map(self.trial_id, self.points))

    def trials(self, layout: Layout) -> "tuple[Trial, ...]":
        """Return the trials, in the order of the grid."""
        named = zip(self.trial_ids, self.points, strict=True)
        return tuple(Trial.of(layout, self, trial_id, point) for trial_id, point in named)

    def trial(self, layout: Layout, point: Point) -> "Trial":
        """Return the trial at one point, which need not be in the grid."""
        return Trial.of(layout, self, self.trial_id(point), point)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return the trials, followed by the selection."""
        trials = self.trials(layout)
        return (*trials, replace(self.closing(layout), after=trials))

    def closing(self, layout: Layout) -> Part:
        """Return the part that selects the best point."""
        folder = layout.root / self.folder
        return Part(
            id=f"{self.id}-selection",
            title=f"selection of {self.task} on {self.weights}",
            record=folder / "selection.json",
            error=folder / "error.json",
            read=read_selection,
        )

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"score": record["score"]}


@dataclass(frozen=True, kw_only=True)
class Trial(Part):
    """Fine-tuning at one point of a study's grid, and the files beside its record."""

    layout: Layout
    study: GlueStudy
    point: Point

    @classmethod
    def of(cls, layout: Layout, study: GlueStudy, trial_id: str, point: Point) -> Self:
        """Build the trial of a study at one point from its id."""
        record = layout.trial(study.task, trial_id)
        cell = f"batch {point.batch_size}, rate {point.learning_rate:g}, decay {point.weight_decay:g}"
        return cls(
            id=trial_id,
            title=f"{study.task} on {study.weights} ({cell})",
            record=record,
            error=error_beside(record),
            layout=layout,
            study=study,
            point=point,
        )

    @property
    def predictions(self) -> Path:
        """Per-example predictions at the best evaluation."""
        return self.record.with_suffix(".npz")

    @property
    def weights(self) -> Path:
        """Weights at the best evaluation; kept for the best trial of a study."""
        return self.record.with_suffix(".safetensors")


class PairSet(Value):
    """Data set of pairs, as read by a run.

    origin: identifies its bytes. texts_per_pair: number of texts that a pair counts as in a step; None: those it has.
    """

    name: str
    origin: str
    instruction: str | None
    texts_per_pair: PositiveInt | None


class ContrastiveRun(Training):
    """Contrastive fine-tuning of one encoder.

    `weights` is the id of a pre-training run, or of an external model (`neobert.external`). The encoder reads at most
    `context` tokens.
    """

    weights: str
    context: PositiveInt
    protocol: Contrastive
    sets: tuple[PairSet, ...]
    tokenizer_origin: str

    kind = "contrastive"
    form = "contrastive/<id>"
    hashed_as = ("contrastive", "run")
    mechanisms = ("tokenization", "model", "optimization", "contrastive")

    @property
    def own_mechanisms(self) -> tuple[str, ...]:
        return mechanisms_of(self.protocol.optimization)

    @model_validator(mode="after")
    def _has_sets(self) -> Self:
        names = [pairs.name for pairs in self.sets]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"contrastive fine-tuning needs data sets, each once, not {names}")
        return self

    @property
    def title(self) -> str:
        return "contrastive"

    @property
    def seed(self) -> int:
        return self.protocol.seed

    @property
    def total(self) -> int:
        return self.protocol.steps

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"seed": self.seed}

    @property
    def after(self) -> tuple[str, ...]:
        return pretraining_of(self.weights)

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        return tuple(layout.pairs(self.pairs_id(pairs)) for pairs in self.sets)

    def heldout_loss(self, losses: Mapping[str, float]) -> float:
        """Return the mean over the data sets of pairs."""
        return statistics.fmean(losses.values())

    @property
    def is_external(self) -> bool:
        """Whether the encoder is an external model."""
        return self.weights.startswith(EXTERNAL_PREFIX)

    @property
    def instructed(self) -> Instructed:
        """Which texts followed an instruction in training; "nothing" if no data set has one."""
        return self.protocol.instructed if any(pairs.instruction for pairs in self.sets) else "nothing"

    @property
    def max_tokens(self) -> int:
        """Maximum length of a text in tokens, including special tokens and the instruction."""
        return min(self.context, self.protocol.max_tokens)

    def pairs_id(self, pairs: PairSet) -> str:
        """Return the id of a data set in token ids. Runs with the same tokenizer, length and instructions share it."""
        instructed = self.protocol.instructed
        content: dict[str, object] = {
            "pairs": {key: value for key, value in decisive(pairs).items() if key in ("name", "origin")},
            "instruction": None if instructed == "nothing" else pairs.instruction,
            "instructed": instructed,
            "tokenizer": self.tokenizer_origin,
            "max_tokens": self.max_tokens,
            "numerics": chosen(NUMERICS, ("tokenization", "contrastive")),
        }
        if self.protocol.similar_above != neutral_values(Contrastive)["similar_above"]:
            content["similar_above"] = self.protocol.similar_above
        return f"{pairs.name}-{identity(content)}"


class TaskOnData(Value):
    """Embedding task with its data (see `neobert.data.mteb_tasks.EmbeddingTask`).

    `origin` identifies the data. `prompts` are the texts put before an encoder's inputs ("query", "document"); it may
    be empty.
    """

    name: str
    category: Category
    suite: str
    metric: str
    split: str
    members: tuple[str, ...]
    origin: str
    prompts: dict[str, str]


class MeasuredEncoder(Value):
    """Encoder whose embeddings are evaluated.

    `pretraining` is the id of a pre-training run, or of an external model (`neobert.external`). `weights` is the id of
    a contrastive run, or equals `pretraining` without one (zero-shot). Texts are cut to `context` tokens, including
    special tokens. `seed` distinguishes encoders that are otherwise equal. Vectors are computed in `precision` on every
    device.
    """

    weights: str
    pretraining: str
    protocol: Protocol
    context: PositiveInt
    tokenizer_origin: str
    seed: NonNegativeInt
    precision: Annotated[EmbeddingPrecision, Neutral("fp32")]

    @model_validator(mode="after")
    def _fits_its_protocol(self) -> Self:
        if (self.weights == self.pretraining) != (self.protocol == "zero_shot"):
            raise ValueError(f"protocol {self.protocol} does not go with weights {self.weights} of {self.pretraining}")
        return self

    @property
    def revision(self) -> str:
        """Name of the encoder in mteb's cache.

        It consists of the weights, the context if they are zero-shot (otherwise their id determines it), and the
        precision if it is not fp32.
        """
        read = self.weights if self.protocol == "contrastive" else f"{self.weights}-{self.context}"
        return read if self.precision == "fp32" else f"{read}-{self.precision}"


class Evaluation(Work):
    """Measurements of one encoder. Each task or readout is a part with its own record."""

    job = "mteb"

    def closing(self, layout: Layout) -> None:
        return None


def _measurement(run_id: str, title: str, record: Path) -> Part:
    return Part(id=run_id, title=title, record=record, error=error_beside(record))


class EmbeddingRun(Value):
    """One task on one encoder, with one record."""

    encoder: MeasuredEncoder
    task: TaskOnData

    @cached_property
    def id(self) -> str:
        """Id of the result. It does not depend on the other tasks that are measured."""
        return identity({"kind": "mteb", "run": self, "numerics": chosen(NUMERICS, EmbeddingEvaluation.mechanisms)})


class EmbeddingEvaluation(Evaluation):
    """Evaluation of one encoder on a set of embedding tasks."""

    encoder: MeasuredEncoder
    tasks: tuple[TaskOnData, ...]

    kind = "mteb"
    counted = "tasks"
    form = "mteb/evaluations/<id>"
    hashed_as = ("embedding_evaluation", "evaluation")
    mechanisms = ("tokenization", "model")

    @model_validator(mode="after")
    def _has_tasks(self) -> Self:
        names = [task.name for task in self.tasks]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"an evaluation needs tasks, each once, not {names}")
        return self

    @property
    def weights(self) -> str:
        """Id of the weights that are measured."""
        return self.encoder.weights

    @property
    def title(self) -> str:
        return f"mteb {self.encoder.protocol}"

    @property
    def seed(self) -> int:
        return self.encoder.seed

    @property
    def total(self) -> int:
        return len(self.tasks)

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"task": self.encoder.protocol, "weights": self.weights, "seed": self.seed}

    @property
    def after(self) -> tuple[str, ...]:
        """Reference of the encoder: its contrastive run, or its pre-training run if measured zero-shot."""
        if self.encoder.protocol == "contrastive":
            return (f"contrastive/{self.weights}",)
        return pretraining_of(self.weights)

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        return tuple(layout.root / reference for reference in pretraining_of(self.encoder.pretraining))

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return one part per task, in order."""
        return tuple(
            _measurement(
                run.id,
                f"{run.task.name} on {self.weights} ({self.encoder.protocol})",
                layout.embedding_task(run.task.name, run.id),
            )
            for run in self.runs()
        )

    def runs(self) -> tuple[EmbeddingRun, ...]:
        """Return one run per task."""
        return tuple(EmbeddingRun(encoder=self.encoder, task=task) for task in self.tasks)


class ReadoutRun(Value):
    """One readout of one finished stage of pre-training, with one record.

    `corpora` are the corpora of the source with their origins. `context` is in tokens, including special tokens. These
    two determine the items (`items_id`); the model and its tokenizer do not.
    """

    readout: ReadoutName
    weights: str
    context: PositiveInt
    corpora: dict[str, str]
    tokenizer_origin: str

    @cached_property
    def id(self) -> str:
        """Id of the result. It does not depend on the other readouts that are measured."""
        numerics = chosen(NUMERICS, ReadoutEvaluation.mechanisms)
        return identity({"kind": "readout", "run": self, "numerics": numerics})

    @property
    def items_id(self) -> str:
        """Id of the texts and items."""
        content = {"corpora": self.corpora, "context": self.context, "numerics": chosen(NUMERICS, ("readouts",))}
        return identity({**content, "documents": True} if self.reads_documents else content)

    @property
    def reads_documents(self) -> bool:
        """Whether it reads beginnings of documents up to the context, which other readouts do not."""
        return self.readout == "perplexity"


class ReadoutEvaluation(Evaluation):
    """Readouts of one finished stage of pre-training."""

    readouts: tuple[ReadoutName, ...]
    weights: str
    stage: NonNegativeInt
    context: PositiveInt
    corpora: dict[str, str]
    tokenizer_origin: str
    seed: NonNegativeInt

    kind = "readouts"
    counted = "readouts"
    form = "readouts/evaluations/<id>"
    hashed_as = ("readout_evaluation", "evaluation")
    mechanisms = ("tokenization", "masking", "model", "readouts")

    @property
    def title(self) -> str:
        return "readouts"

    @property
    def total(self) -> int:
        return len(self.readouts)

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"stage": self.stage + 1, "weights": self.weights, "seed": self.seed}

    @property
    def after(self) -> tuple[str, ...]:
        return pretraining_of(self.weights)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return one part per readout, in order."""
        return tuple(
            _measurement(run.id, f"readout {run.readout} of {self.weights}", layout.readout(run.readout, run.id))
            for run in self.runs()
        )

    def runs(self) -> tuple[ReadoutRun, ...]:
        """Return one run per readout."""
        shared = {name: getattr(self, name) for name in ReadoutRun.model_fields if name != "readout"}
        return tuple(ReadoutRun(readout=readout, **shared) for readout in self.readouts)


Run = PretrainingRun | GlueStudy | ContrastiveRun | EmbeddingEvaluation | ReadoutEvaluation
RunT = TypeVar("RunT", PretrainingRun, GlueStudy, ContrastiveRun, EmbeddingEvaluation, ReadoutEvaluation)


def only(runs: Iterable[Run], specification: type[RunT]) -> list[RunT]:
    """Return the runs of one kind, in order."""
    return [run for run in runs if isinstance(run, specification)]
