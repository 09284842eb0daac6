"""Evaluation of one encoder on embedding tasks, such as those of MTEB. Each task is a part with its own record."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from neobert.data.mteb_tasks import MECHANISMS, Category, TaskOnData
from neobert.identity import NUMERICS, Neutral, chosen, identity
from neobert.kinds.pretraining import pretraining_of
from neobert.recipe import EmbeddingPrecision, Value
from neobert.runs.layout import Layout
from neobert.runs.work import Evaluation, Part

Protocol = Literal["contrastive", "zero_shot"]
TASKS_IN_SUITE: Mapping[Category, int] = {  # paper, Table 4; CQADupstack's forums count as one task
    "classification": 12,
    "clustering": 11,
    "pair_classification": 3,
    "reranking": 4,
    "retrieval": 15,
    "sts": 10,
    "summarization": 1,
}


class EmbeddingConfig(Value):
    """One task on one encoder: after contrastive fine-tuning (Table 4) or as pre-trained (zero-shot, Figure 4).

    `suite` is MTEB(eng, v1) for its tasks, also if they are in v2; MTEB(eng, v2) for tasks that are only in v2; or a
    descriptive name for tasks of neither. `metric` is the task's main score.
    """

    task: str
    category: Category
    suite: str
    protocol: Protocol
    metric: str
    split: str
    revision: str | None


class EmbeddingScores(Value):
    """Main score, −1..1 as mteb returns it, and all metrics."""

    score: float = Field(ge=-1, le=1)
    metrics: dict[str, float]


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

    @property
    def revision(self) -> str:
        """Name of the encoder in mteb's cache.

        It consists of the weights, the context if they are zero-shot (otherwise their id determines it), and the
        precision if it is not fp32.
        """
        read = self.weights if self.protocol == "contrastive" else f"{self.weights}-{self.context}"
        return read if self.precision == "fp32" else f"{read}-{self.precision}"


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

    kind: Annotated[Literal["mteb"], Neutral("mteb")] = "mteb"
    encoder: MeasuredEncoder
    tasks: tuple[TaskOnData, ...]

    counted = "tasks"
    folder_pattern = "mteb/evaluations/{id}"
    record_place = "mteb/{config[task]}/{id}.json"
    hashed_as = ("embedding_evaluation", "evaluation")
    mechanisms = MECHANISMS

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
    def pretrained(self) -> str:
        return self.encoder.pretraining

    @property
    def after(self) -> tuple[str, ...]:
        """Reference of the encoder: its contrastive run, or its pre-training run if measured zero-shot."""
        if self.encoder.protocol == "contrastive":
            return (f"contrastive/{self.weights}",)
        return pretraining_of(self.weights)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return one part per task, in order."""
        return tuple(
            self.measurement(
                run.id,
                f"{run.task.name} on {self.weights} ({self.encoder.protocol})",
                layout.embedding_task(run.task.name, run.id),
            )
            for run in self.runs()
        )

    def runs(self) -> tuple[EmbeddingRun, ...]:
        """Return one run per task."""
        return tuple(EmbeddingRun(encoder=self.encoder, task=task) for task in self.tasks)
