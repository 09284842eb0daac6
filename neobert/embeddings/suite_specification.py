"""What decides the scores of an encoder on tasks of embeddings: weights, protocol, tasks, their data. Torch-free."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import NonNegativeInt, PositiveInt, model_validator

from neobert.embeddings.specification import pretraining_of
from neobert.identity import NUMERICS, Neutral, chosen, identity
from neobert.layout import Layout
from neobert.recipe import EmbeddingPrecision, Value
from neobert.result_records import Category, Protocol
from neobert.runs.work import Counted, JobKind, Kind, Part, Work

MECHANISMS = ("tokenization", "model")


class TaskOnData(Value):
    """A task of embeddings as it is measured: `neobert.data.mteb_tasks.EmbeddingTask` with `origin`, which identifies
    its data, and `prompts`, what an encoder is told of its texts ("query", "document"); none where it is told nothing.
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
    """The encoder behind scores.

    `weights` is the id of a contrastive run, or where there was none (zero-shot) that of `pretraining`: a run, or a
    model from elsewhere (`neobert.external`). Texts are cut to `context` tokens, specials included. `seed` tells equal
    encoders of other seeds apart. Vectors are computed in `precision` on every device.
    """

    weights: str
    pretraining: str
    protocol: Protocol
    context: PositiveInt
    tokenizer_origin: str
    seed: NonNegativeInt
    precision: Annotated[EmbeddingPrecision, Neutral("fp32")]

    @model_validator(mode="after")
    def _is_told_by_its_protocol(self) -> Self:
        if (self.weights == self.pretraining) != (self.protocol == "zero_shot"):
            raise ValueError(f"protocol {self.protocol} does not go with weights {self.weights} of {self.pretraining}")
        return self

    @property
    def revision(self) -> str:
        """What mteb's cache tells encoders apart by: the weights, how many tokens of a text they read where the name of
        the weights does not decide it, and the precision where it is not fp32."""
        read = self.weights if self.protocol == "contrastive" else f"{self.weights}-{self.context}"
        return read if self.precision == "fp32" else f"{read}-{self.precision}"


class EmbeddingRun(Value):
    """One task on one encoder: a unit of work with one record."""

    encoder: MeasuredEncoder
    task: TaskOnData

    @cached_property
    def id(self) -> str:
        """The result's name: it does not depend on which other tasks are measured."""
        return identity({"kind": "mteb", "run": self, "numerics": chosen(NUMERICS, MECHANISMS)})


class EmbeddingEvaluation(Value):
    """The tasks that one encoder is to be measured on."""

    encoder: MeasuredEncoder
    tasks: tuple[TaskOnData, ...]

    kind: ClassVar[Kind] = "mteb"
    job: ClassVar[JobKind] = "mteb"
    counted: ClassVar[Counted] = "tasks"
    steps: ClassVar[None] = None
    preparation: ClassVar[tuple[Work, ...]] = ()

    @model_validator(mode="after")
    def _has_tasks(self) -> Self:
        names = [task.name for task in self.tasks]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"an evaluation needs tasks, each once, not {names}")
        return self

    @cached_property
    def id(self) -> str:
        """The name of the evaluation."""
        return self.id_under(NUMERICS)

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """The name under the numerics versions of another time."""
        versions = chosen(numerics, MECHANISMS)
        return identity({"kind": "embedding_evaluation", "evaluation": self, "numerics": versions})

    @property
    def weights(self) -> str:
        """The weights that are measured."""
        return self.encoder.weights

    @property
    def reference(self) -> str:
        return f"mteb/evaluations/{self.id}"

    @property
    def folder(self) -> str:
        return self.reference

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
        return {"task": self.encoder.protocol, "weights": self.weights}

    @property
    def after(self) -> tuple[str, ...]:
        """The encoder: contrastive fine-tuning, or pre-training where it is measured zero-shot."""
        if self.encoder.protocol == "contrastive":
            return (f"contrastive/{self.weights}",)
        return pretraining_of(self.weights)

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        references = dict.fromkeys((*self.after, *pretraining_of(self.encoder.pretraining)))
        return tuple(layout.root / reference for reference in references)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return self.task_parts(layout)

    def task_parts(self, layout: Layout) -> "tuple[TaskPart, ...]":
        """The tasks as parts, in their order."""
        return tuple(TaskPart.of(layout, run) for run in self.runs())

    def closing(self, layout: Layout) -> None:
        """None: each task stands alone."""

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        return {}

    def runs(self) -> tuple[EmbeddingRun, ...]:
        """One for each task."""
        return tuple(EmbeddingRun(encoder=self.encoder, task=task) for task in self.tasks)


@dataclass(frozen=True, kw_only=True)
class TaskPart(Part):
    """One task on one encoder as a part of an evaluation."""

    run: EmbeddingRun

    @classmethod
    def of(cls, layout: Layout, run: EmbeddingRun) -> Self:
        """The part that measures a task."""
        record = layout.embedding_task(run.task.name, run.id)
        return cls(
            id=run.id,
            title=f"{run.task.name} on {run.encoder.weights} ({run.encoder.protocol})",
            record=record,
            error=record.parent / "errors" / record.name,
            run=run,
        )
