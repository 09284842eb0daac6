"""Pre-training: one stage is one run."""

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PositiveInt

from neobert.external import EXTERNAL_PREFIX
from neobert.identity import Neutral
from neobert.kinds.corpus import Corpus
from neobert.recipe import Pretraining, Start
from neobert.runs.work import Training, Work


def pretraining_of(weights: str) -> tuple[str, ...]:
    """Return the reference of the run that produced the weights; empty for an external model."""
    return () if weights.startswith(EXTERNAL_PREFIX) else (f"pretraining/{weights}",)


class PretrainingRun(Training):
    """One stage of pre-training. `recipe.stages` ends with this stage; `previous` is the id of the run before it.

    `position_table` is the size of a table of positions in tokens: the longest context of *all* stages of the variant.
    It is None with rotary positions, where later stages do not affect earlier ones; own ones may have a table.
    """

    retired: ClassVar = {"mixed_origins": {}}

    kind: Annotated[Literal["pretraining"], Neutral("pretraining")] = "pretraining"
    recipe: Pretraining
    previous: str | None
    position_table: PositiveInt | None
    corpus_origin: str
    tokenizer_origin: str

    folder_pattern = "pretraining/{id}"
    record_place = "pretraining/{id}/done.json"
    mechanisms = ("tokenization", "batching", "masking", "model", "initialization", "optimization")

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
        return (self.corpus,)

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
        return self.corpus.id

    @cached_property
    def corpus(self) -> Corpus:
        """The tokenised corpus of the recipe's data."""
        return self.on_corpus(self.recipe.data.corpus, self.corpus_origin)

    def on_corpus(self, name: str, origin: str) -> Corpus:
        """Return a corpus in the tokens of this run."""
        return Corpus(corpus=name, origin=origin, tokenizer=self.tokenizer_origin, run=self.id)
