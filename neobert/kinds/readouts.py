"""Readouts of a finished stage of pre-training on held-out text. Each readout is a part with its own record."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import NonNegativeInt, PositiveInt, field_validator, model_validator

from neobert.identity import NUMERICS, Neutral, chosen, identity
from neobert.kinds.pretraining import pretraining_of
from neobert.recipe import Value, retired
from neobert.runs.layout import Layout
from neobert.runs.records import unpack_numbers
from neobert.runs.work import Evaluation, Part

ReadoutName = Literal["loss", "perplexity", "blimp"]

READOUTS: tuple[ReadoutName, ...] = get_args(ReadoutName)
BLIMP: ReadoutName = "blimp"

RetiredReadout = Literal["loss_80_10_10", "words", "cloze"]
"""Readouts of older versions. Evaluations that asked for them too keep their ids, and the records of the others."""


class ReadoutConfig(Value):
    """Setting of a readout: the checkpoint after a stage (from 0), and the context in tokens.

    `items` identifies the texts and items: only records with the same ones are compared.
    """

    readout: ReadoutName
    stage: NonNegativeInt
    context: PositiveInt
    items: str

    @field_validator("readout", mode="before")
    @classmethod
    def _is_not_retired(cls, readout: Any) -> Any:
        if readout in get_args(RetiredReadout):
            raise ValueError(retired(f"the readout {readout}"))
        return readout


class ReadoutScore(Value):
    """Readout on one corpus or on BLiMP: `value` is the sum of numerators over the sum of denominators.

    `numerators` (float32) and `denominators` (int32) have one number per unit (a stretch of text, a document, or a
    paradigm of BLiMP), in the order of the items: little-endian, compressed by zlib, in base64. For
    losses these are nats and predicted tokens; for BLiMP, right answers and pairs. `ties` is the number of answers that
    count half, None for losses.
    `groups` are values on some of the units: the accuracy by field, phenomenon and paradigm, or the loss by length in
    tokens. Units of perplexity are the same documents at each of these lengths, in ascending order.
    """

    value: float
    units: PositiveInt
    numerators: str
    denominators: str | None
    groups: dict[str, float]
    ties: Annotated[NonNegativeInt | None, Neutral(None)]

    @model_validator(mode="after")
    def _has_a_number_for_each_unit(self) -> Self:
        above = unpack_numbers(self.numerators, "<f4", self.units)
        below = None if self.denominators is None else unpack_numbers(self.denominators, "<i4", self.units)
        if not math.isfinite(above.sum()) or (below is not None and (below.min() < 0 or below.sum() == 0)):
            raise ValueError("numerators that are no numbers, or denominators that add up to nothing")
        return self


class ReadoutRun(Value):
    """One readout of one finished stage of pre-training, with one record.

    `corpora` are the corpora of the source with their origins, or BLiMP with its. `context` is in tokens, including
    special tokens. `pairs_per_paradigm` is the number of pairs of BLiMP, None for other readouts. These three determine
    the items (`items_id`); the model and its tokenizer do not.
    """

    readout: ReadoutName
    weights: str
    context: PositiveInt
    corpora: dict[str, str]
    tokenizer_origin: str
    pairs_per_paradigm: Annotated[PositiveInt | None, Neutral(None)]

    @cached_property
    def id(self) -> str:
        """Id of the result. It does not depend on the other readouts that are measured."""
        numerics = chosen(NUMERICS, ReadoutEvaluation.mechanisms)
        return identity({"kind": "readout", "run": self, "numerics": numerics})

    @property
    def items_id(self) -> str:
        content = {"corpora": self.corpora, "context": self.context, "numerics": chosen(NUMERICS, ("readouts",))}
        return identity({**content, "documents": True} if self.reads_documents else content)

    @property
    def reads_documents(self) -> bool:
        """Whether it reads beginnings of documents up to the context, which other readouts do not."""
        return self.readout == "perplexity"


class ReadoutEvaluation(Evaluation):
    """Readouts of one finished stage of pre-training."""

    retired: ClassVar = {"own": None}

    kind: Annotated[Literal["readouts"], Neutral("readouts")] = "readouts"
    readouts: tuple[ReadoutName | RetiredReadout, ...]
    weights: str
    stage: NonNegativeInt
    context: PositiveInt
    corpora: dict[str, str]
    tokenizer_origin: str
    pairs_per_paradigm: Annotated[PositiveInt | None, Neutral(None)]
    seed: NonNegativeInt

    counted = "readouts"
    folder_pattern = "readouts/evaluations/{id}"
    record_place = "readouts/{config[readout]}/{id}.json"
    hashed_as = ("readout_evaluation", "evaluation")
    mechanisms = ("tokenization", "masking", "model", "readouts")

    @property
    def title(self) -> str:
        return "readouts" if len(self.readouts) > 1 else f"readouts {self.readouts[0]}"

    @property
    def total(self) -> int:
        return len(self.runs())

    @property
    def columns(self) -> Mapping[str, Any]:
        return {"stage": self.stage + 1, "weights": self.weights, "seed": self.seed}

    @property
    def pretrained(self) -> str:
        return self.weights

    @property
    def after(self) -> tuple[str, ...]:
        return pretraining_of(self.weights)

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        """Return one part per readout, in order."""
        return tuple(
            self.measurement(run.id, f"readout {run.readout} of {self.weights}", layout.readout(run.readout, run.id))
            for run in self.runs()
        )

    def runs(self) -> tuple[ReadoutRun, ...]:
        """Return one run per readout that is not retired."""
        shared = {name: getattr(self, name) for name in ReadoutRun.model_fields if name != "readout"}
        kept = [readout for readout in READOUTS if readout in self.readouts]
        return tuple(ReadoutRun(readout=readout, **shared) for readout in kept)
