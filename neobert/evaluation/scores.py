"""Scores of a model as records have them. Without torch."""

from typing import Annotated, ClassVar

from pydantic import NonNegativeFloat, PositiveInt

from neobert.identity import Neutral
from neobert.recipe import ANY, Value


class HeldoutScore(Value):
    """Loss on the held-out documents of a corpus under fixed masks, in one context (tokens).

    Part of the record of pre-training. `texts` identifies the set of documents; only losses on the same set are
    compared. `tokens` and `text_bytes` measure what is shown of them. `loss` is in nats per predicted token;
    `neobert.evaluation.heldout` explains `bits_per_byte` and what it can compare. `frequency_loss` is the loss of token
    frequencies alone on the same documents; None in records from before it was measured.

    """

    retired: ClassVar = {"units": ANY, "numerators": ANY, "denominators": ANY}

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
