"""Pre-training: one stage is one run."""

import math
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from neobert.identity import NUMERICS, Neutral
from neobert.kinds.corpus import Corpus
from neobert.recipe import Optimization, Pretraining, Start, Value
from neobert.runs.layout import Layout
from neobert.runs.records import Open, unpack_numbers
from neobert.runs.work import Part, Training, Work

if TYPE_CHECKING:
    from neobert.processes import StopRequest
    from neobert.runs.claims import Claim
    from neobert.runs.run_file import RunFile
    from neobert.training.distributed import Process
    from neobert.training.trainer import Trainer

EXTERNAL_PREFIX = "model-"
"""Prefix of the ids of external models. Run ids are hexadecimal digits."""


def pretraining_of(weights: str) -> tuple[str, ...]:
    """Return the reference of the run that produced the weights; empty for an external model."""
    return () if weights.startswith(EXTERNAL_PREFIX) else (f"pretraining/{weights}",)


def mechanisms_of(optimization: Optimization) -> tuple[str, ...]:
    """Return the optimizer as a mechanism if it has a numerics version of its own, beside that of all optimizers."""
    return (optimization.optimizer,) if optimization.optimizer in NUMERICS else ()


class HeldoutScore(Value):
    """Loss on the held-out documents of a corpus under fixed masks or, in `next_token`, of their next tokens, in one
    context (tokens).

    Part of the record of pre-training. `texts` identifies the set of documents; only losses on the same set are
    compared. `tokens` and `text_bytes` measure what is shown of them. `loss` is in nats per predicted token;
    `neobert.evaluation.heldout` explains `bits_per_byte` and what it can compare. `frequency_loss` is the loss of token
    frequencies alone on the same documents; None of next tokens, and in records from before it was measured.

    `numerators` (nats, float32) and `denominators` (predicted tokens, int32) have one number per unit, packed as in
    `ReadoutScore`. A unit is a document, or a run of documents if there are more than 2,048, in the order of their
    hashes: those of records with the same `texts` are the same. None in the metrics and in older records.
    """

    corpus: str
    context: PositiveInt
    texts: str
    documents: PositiveInt
    tokens: PositiveInt
    text_bytes: PositiveInt
    predicted_tokens: PositiveInt
    loss: NonNegativeFloat
    bits_per_byte: NonNegativeFloat
    frequency_loss: Annotated[NonNegativeFloat | None, Neutral(None)]
    units: Annotated[PositiveInt | None, Neutral(None)]
    numerators: Annotated[str | None, Neutral(None)]
    denominators: Annotated[str | None, Neutral(None)]

    @model_validator(mode="after")
    def _has_the_loss_of_its_units(self) -> Self:
        if self.units is None and self.numerators is None and self.denominators is None:
            return self
        if self.units is None or self.numerators is None or self.denominators is None:
            raise ValueError("units, numerators and denominators are given together")
        nats = unpack_numbers(self.numerators, "<f4", self.units)
        tokens = unpack_numbers(self.denominators, "<i4", self.units)
        if tokens.min() < 0 or tokens.sum() != self.predicted_tokens:
            raise ValueError("denominators that do not add up to the predicted tokens")
        if not math.isclose(float(nats.sum(dtype="f8")) / self.predicted_tokens, self.loss, rel_tol=1e-5):
            raise ValueError("numerators that do not add up to the loss")
        return self

    @property
    def summary(self) -> Self:
        """The score without the numbers of its units."""
        return self.model_copy(update={"units": None, "numerators": None, "denominators": None})


class CurvePoint(Value):
    """Held-out loss on the small text after a step of a stage, in nats, and the real tokens of the stage until then."""

    step: PositiveInt
    tokens: PositiveInt
    loss: NonNegativeFloat


class Transition(Value):
    """When the held-out loss of a stage was `margin` nats below that of token frequencies for the first time.

    `tokens` are the stage's real tokens until then, and `step` its steps; both are interpolated between measurements in
    log tokens, and None for the `reason`. `steepest_step` is the step at which the loss falls fastest per log token,
    below the loss of frequencies; None if it never does. `curve` are the measurements. All losses are on one small
    text, the same for all runs with the same corpus, tokenizer and context (`neobert.training.transitions`).
    """

    margin: PositiveFloat
    frequency_loss: NonNegativeFloat
    tokens: PositiveFloat | None
    step: PositiveFloat | None
    steepest_step: PositiveFloat | None
    reason: str | None
    curve: tuple[CurvePoint, ...]

    @model_validator(mode="after")
    def _has_tokens_or_a_reason(self) -> Self:
        if (self.tokens is None) != (self.step is None) or (self.tokens is None) == (self.reason is None):
            raise ValueError("a transition has tokens and a step, or else a reason")
        return self


class PretrainingConfig(Open):
    """A stage of pre-training (from 0), its recipe up to it, and what identifies the bytes of its data."""

    recipe: Pretraining
    stage: int = Field(ge=0)
    origins: dict[str, str] = Field({})


class PretrainingScores(Open):
    """Losses in nats a predicted token: held-out by corpus, and of the last step. `transition` is when the held-out
    loss left that of token frequencies; None in older records.

    After a causal stage there is neither a held-out loss, which is of masked tokens read from both sides, nor a
    transition: `next_token` has the loss on the next tokens of the same texts."""

    heldout_loss: dict[str, float]
    heldout: tuple[HeldoutScore, ...] = ()
    training_loss: float | None
    transition: Transition | None = None
    next_token: tuple[HeldoutScore, ...] = ()


class PretrainingRun(Training):
    """One stage of pre-training. `recipe.stages` ends with this stage; `previous` is the id of the run before it.

    `position_table` is the size of a table of positions in tokens: the longest context of *all* stages of the variant.
    It is None with rotary positions, where later stages do not affect earlier ones; own ones may have a table.
    `mixed_origins` are the origins of the corpora that the stage reads beside that of the recipe's data.
    """

    kind: Annotated[Literal["pretraining"], Neutral("pretraining")] = "pretraining"
    recipe: Pretraining
    previous: str | None
    position_table: PositiveInt | None
    corpus_origin: str
    tokenizer_origin: str
    mixed_origins: Annotated[dict[str, str], Neutral({})] = Field(default_factory=dict)

    folder_pattern = "pretraining/{id}"
    record_place = "pretraining/{id}/done.json"
    config = PretrainingConfig
    scores = PretrainingScores
    named_by = "stage"
    mechanisms = ("tokenization", "batching", "masking", "model", "initialization", "optimization")

    @property
    def own_mechanisms(self) -> tuple[str, ...]:
        return mechanisms_of(self.recipe.optimization)

    @property
    def start(self) -> Start | None:
        return self.recipe.start

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
        return self.corpora

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        return tuple(layout.data(corpus.id) for corpus in self.corpora)

    def heldout_loss(self, losses: Mapping[str, float]) -> float | None:
        """Return the loss on the run's own corpus, None if there is none."""
        return losses.get(self.recipe.data.corpus)

    @property
    def context(self) -> int:
        """Context that the model is built for, in tokens."""
        return self.position_table or self.recipe.longest_context

    @cached_property
    def data_id(self) -> str:
        """Id of the tokenised corpus of the recipe's data."""
        return self.corpora[0].id

    @cached_property
    def corpora(self) -> tuple[Corpus, ...]:
        """The tokenised corpora that the stage reads, that of the recipe's data first, even if the mixture lacks it.

        The others are in the order of run.json, which is that of their names: masks depend on it, and ids do not.
        """
        origins = {self.recipe.data.corpus: self.corpus_origin, **dict(sorted(self.mixed_origins.items()))}
        return tuple(self.on_corpus(name, origin) for name, origin in origins.items())

    def on_corpus(self, name: str, origin: str) -> Corpus:
        """Return a corpus in the tokens of this run."""
        return Corpus(corpus=name, origin=origin, tokenizer=self.tokenizer_origin, run=self.id)

    def execute(self, layout: Layout, run_file: "RunFile", part: Part, claim: "Claim", stop: "StopRequest") -> None:
        from neobert.training.pretraining import execute

        execute(layout, run_file, part, claim, stop)

    def make_trainer(self, layout: Layout, run_file: "RunFile", process: "Process") -> "Trainer[Any]":
        from neobert.training.pretraining import PretrainingTrainer

        return PretrainingTrainer(layout, run_file, process)
