"""What decides the result of contrastive fine-tuning: the encoder, the data sets of pairs, the protocol. Torch-free."""

import statistics
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import PositiveInt, model_validator

from neobert.identity import NUMERICS, chosen, decisive, identity, neutral_values
from neobert.layout import Layout
from neobert.recipe import Contrastive, Instructed, Value
from neobert.runs.work import Counted, JobKind, Kind, Part, Work, training_columns, training_part

EXTERNAL_PREFIX = "model-"
"""Of the ids of models that were not pre-trained here; run ids are hexadecimal digits."""

MECHANISMS = ("tokenization", "model", "optimization", "contrastive")
PAIR_MECHANISMS = ("tokenization", "contrastive")


def pretraining_of(weights: str) -> tuple[str, ...]:
    """The reference of the run that ends with weights; none for an external model, which nobody trains."""
    return () if weights.startswith(EXTERNAL_PREFIX) else (f"pretraining/{weights}",)


class PairSet(Value):
    """A data set of pairs as a run reads it.

    origin: identifies its bytes. texts_per_pair: how many texts of a step one pair counts for; None counts its own.
    """

    name: str
    origin: str
    instruction: str | None
    texts_per_pair: PositiveInt | None


class ContrastiveRun(Value):
    """Contrastive fine-tuning of one encoder.

    `weights` is the id of a pre-training run, or of a model from elsewhere (`neobert.external`), which reads at most
    `context` tokens.
    """

    weights: str
    context: PositiveInt
    protocol: Contrastive
    sets: tuple[PairSet, ...]
    tokenizer_origin: str

    kind: ClassVar[Kind] = "contrastive"
    job: ClassVar[JobKind] = "pretrain"
    counted: ClassVar[Counted] = "steps"
    title: ClassVar[str] = "contrastive"
    columns: ClassVar[Mapping[str, Any]] = {}
    preparation: ClassVar[tuple[Work, ...]] = ()

    @model_validator(mode="after")
    def _has_sets(self) -> Self:
        names = [pairs.name for pairs in self.sets]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"contrastive fine-tuning needs data sets, each once, not {names}")
        return self

    @cached_property
    def id(self) -> str:
        """The run's name."""
        return self.id_under(NUMERICS)

    def id_under(self, numerics: Mapping[str, int]) -> str:
        """The run's name under the numerics versions of another time."""
        return identity({"kind": "contrastive", "run": self, "numerics": chosen(numerics, MECHANISMS)})

    @property
    def reference(self) -> str:
        return f"contrastive/{self.id}"

    @property
    def folder(self) -> str:
        return self.reference

    @property
    def seed(self) -> int:
        return self.protocol.seed

    @property
    def steps(self) -> int:
        return self.protocol.steps

    @property
    def total(self) -> int:
        return self.steps

    @property
    def after(self) -> tuple[str, ...]:
        return pretraining_of(self.weights)

    def uses(self, layout: Layout) -> tuple[Path, ...]:
        pairs = (layout.pairs(self.pairs_id(pairs)) for pairs in self.sets)
        return (*pairs, *(layout.root / reference for reference in self.after))

    def parts(self, layout: Layout) -> tuple[Part, ...]:
        return (self.closing(layout),)

    def closing(self, layout: Layout) -> Part:
        return training_part(self, layout, f"contrastive fine-tuning {self.id} of {self.weights}")

    def result(self, record: Mapping[str, Any]) -> Mapping[str, Any]:
        """The held-out loss is the mean over data sets of pairs."""
        return training_columns(record, statistics.fmean(record["scores"]["heldout_loss"].values()))

    @property
    def is_external(self) -> bool:
        """Whether the encoder was pre-trained elsewhere."""
        return self.weights.startswith(EXTERNAL_PREFIX)

    @property
    def instructed(self) -> Instructed:
        """Which texts stood behind an instruction in training: none where no data set has one."""
        return self.protocol.instructed if any(pairs.instruction for pairs in self.sets) else "nothing"

    @property
    def max_tokens(self) -> int:
        """Tokens of a text, specials and instruction included."""
        return min(self.context, self.protocol.max_tokens)

    def pairs_id(self, pairs: PairSet) -> str:
        """The name of a data set in token ids; runs of equal tokenizer, length and instructions share it."""
        instructed = self.protocol.instructed
        content: dict[str, object] = {
            "pairs": {key: value for key, value in decisive(pairs).items() if key in ("name", "origin")},
            "instruction": None if instructed == "nothing" else pairs.instruction,
            "instructed": instructed,
            "tokenizer": self.tokenizer_origin,
            "max_tokens": self.max_tokens,
            "numerics": chosen(NUMERICS, PAIR_MECHANISMS),
        }
        if self.protocol.similar_above != neutral_values(Contrastive)["similar_above"]:
            content["similar_above"] = self.protocol.similar_above
        return f"{pairs.name}-{identity(content)}"
