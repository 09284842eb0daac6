"""Contrastive fine-tuning of one encoder on data sets of pairs."""

import statistics
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import PositiveInt

from neobert.external import EXTERNAL_PREFIX
from neobert.identity import NUMERICS, Neutral, chosen, decisive, identity, neutral_values
from neobert.kinds.pretraining import pretraining_of
from neobert.recipe import Contrastive, Instructed, Value
from neobert.runs.work import Training


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

    kind: Annotated[Literal["contrastive"], Neutral("contrastive")] = "contrastive"
    weights: str
    context: PositiveInt
    protocol: Contrastive
    sets: tuple[PairSet, ...]
    tokenizer_origin: str

    folder_pattern = "contrastive/{id}"
    record_place = "contrastive/{id}/done.json"
    mechanisms = ("tokenization", "model", "optimization", "contrastive")

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
    def pretrained(self) -> str:
        return self.weights

    @property
    def after(self) -> tuple[str, ...]:
        return pretraining_of(self.weights)

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
