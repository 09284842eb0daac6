"""What records of embeddings, pseudo-perplexity and throughput hold beside what every record holds. Torch-free.

docs/records.md shows a whole record of each kind; `publish_record` writes them, the paths are `Layout`'s.
"""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from neobert.identity import Neutral
from neobert.recipe import Value

ENGLISH_SUITE = "MTEB(eng, v1)"
Category = Literal[
    "classification", "clustering", "pair_classification", "reranking", "retrieval", "sts", "summarization"
]
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

    `suite` is MTEB(eng, v1), or an honest name for tasks that are none of it; `metric` is the task's main score.
    """

    task: str
    category: Category
    suite: str
    protocol: Protocol
    metric: str
    split: str
    revision: str | None


class EmbeddingScores(Value):
    """The main score, −1..1 as mteb gives it, and all metrics."""

    score: float = Field(ge=-1, le=1)
    metrics: dict[str, float]


class HeldoutScore(Value):
    """Loss on the held-out documents of a corpus under fixed masks, in one context (tokens); of pre-training's record.

    `texts` names the set of documents, so that only losses on the same ones are compared. `tokens` and `text_bytes`
    are what is shown of them, `loss` is in nats a predicted token; `neobert.evaluation.heldout` says how
    `bits_per_byte` follows and what it can compare.
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


class PerplexityConfig(Value):
    """Where pseudo-perplexity was measured: a checkpoint behind a stage (from 0), on a text with a name.

    `sampled_positions` is how many positions a document were masked; None for all. `same_documents` says that every
    length was measured on the same ones.
    """

    stage: NonNegativeInt
    text: str
    sampled_positions: PositiveInt | None
    same_documents: Annotated[bool, Neutral(False)]


class PerplexityAtLength(Value):
    """exp of the mean loss of tokens masked alone, at one length in tokens; `low` to `high` is the 95 % interval."""

    tokens: PositiveInt
    pseudo_perplexity: float = Field(ge=1)
    low: float = Field(ge=1)
    high: float = Field(ge=1)
    positions: PositiveInt
    documents: PositiveInt

    @model_validator(mode="after")
    def _lies_in_its_interval(self) -> Self:
        if not self.low <= self.pseudo_perplexity <= self.high:
            raise ValueError(f"{self.pseudo_perplexity} at {self.tokens} tokens is not in {self.low} … {self.high}")
        return self


class PerplexityScores(Value):
    """Pseudo-perplexity over lengths."""

    lengths: tuple[PerplexityAtLength, ...]


class ThroughputConfig(Value):
    """One model at one sequence length, at the best batch size that was found."""

    model: str
    parameters: PositiveInt
    sequence_tokens: PositiveInt
    batch_size: PositiveInt
    precision: str
    compiled: bool
    steps: PositiveInt


class ThroughputScores(Value):
    """Real tokens a second: the median over steps after warm-up, and their standard deviation."""

    tokens_per_second: PositiveFloat
    spread: NonNegativeFloat
