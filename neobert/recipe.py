"""Recipe values: the fields that determine the result of a run, as frozen pydantic models with a JSON form.

No field has a default but the `settings` of own parts: a missing field is an error. A
field that is added later has a neutral value (`neobert.identity.Neutral`), so that older records keep their ids and
stay readable; one that goes is named in `Value.retired`, so that records that have it keep both too. Torch is not
imported here, so that listing, planning and reporting start fast. Labels, paths, devices and micro-batches are not part
of a recipe.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    model_validator,
)

from neobert.errors import did_you_mean
from neobert.identity import Neutral, neutral_values
from neobert.own_code import is_own, own_name

Beta = Annotated[float, Field(ge=0, lt=1)]
"""Decay of one of Adam's averages per step."""

Precision = Literal["fp32", "bf16"]

PretrainingPrecision = Literal["fp32", "bf16", "bf16_residual"]
"""Precision of pre-training, with weights in fp32: bf16 is autocast with the residual stream in fp32; `bf16_residual`
has it in bf16, and norms read and write bf16 (as the released code trains)."""

EngineWord = Literal["single", "ddp", "zero1", "zero2"]
"""How processes share a model; the only word here that does not affect results."""

LongDocuments = Literal["cut", "split"]

EmbeddingPrecision = Literal["fp32", "bf16", "fp16"]
"""Precision of embeddings: bf16 has weights in bf16, fp16 is autocast with weights in fp32. Nothing is trained in fp16,
which needs loss scaling."""

Instructed = Literal["nothing", "queries", "queries_and_documents"]
"""Which texts of a pair or a task are preceded by an instruction."""


@dataclass(frozen=True)
class Reading:
    """Validation context of `Value.read`; the constructor stays strict. `about` is what validators of a subclass read
    the content with, if they need more than it."""

    about: Any = None


ANY = object()
"""In `Value.retired`: no result depended on the field, so that any value of it is dropped."""


def retired(what: str) -> str:
    """Return the sentence that refuses what a run used and this version no longer has."""
    return f"this run used {what}, which this version no longer has: read it with the commit that CHANGELOG.md names"


class Value(BaseModel):
    """Base of all recipe values: frozen, and an unknown key is an error.

    `retired` are the fields that older versions wrote and this one no longer has, with the value at which their
    mechanism did nothing. At this value a field was in no id, and `read` drops it.
    """

    retired: ClassVar[Mapping[str, Any]] = {}

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @classmethod
    def read(cls, content: Any, about: Any = None) -> Self:
        """Parse JSON that this or an older version wrote. Fields that were added since get their neutral values, and
        retired fields with theirs are dropped. `about` is handed to validators (`Reading`).

        Raises ValueError if a field is missing, unknown or invalid, or retired and not neutral.
        """
        return cls.model_validate(content, context=Reading(about))

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the fields in `update` replaced. Cached ids, computed from the fields, are not copied."""
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @model_validator(mode="before")
    @classmethod
    def _from_older_version(cls, content: Any, info: ValidationInfo) -> Any:
        if not isinstance(info.context, Reading) or not isinstance(content, dict):
            return content
        for name in content.keys() & cls.retired.keys():
            if cls.retired[name] is not ANY and content[name] != cls.retired[name]:
                raise ValueError(retired(f"{name} {json.dumps(content[name])}"))
        return {**neutral_values(cls), **{name: content[name] for name in content if name not in cls.retired}}


POSITIONS = ("learned", "rotary")
FEEDFORWARDS = ("gelu", "swiglu", "geglu")
NORMS = ("layer_norm", "rms_norm")
BLOCKS = ("pre_norm", "post_norm")
OPTIMIZERS = ("adam", "adamw")
DECAYS = ("linear", "cosine", "sqrt")
"""Words of this package's parts. A recipe names one of them, or own code (`neobert.own_code`)."""


def _part_word(words: Collection[str], word: str) -> str:
    if word == "muon":
        raise ValueError(retired("the optimizer muon"))
    if word not in words and not is_own(word):
        raise ValueError(f"{word!r} is no part of this package: {did_you_mean(word, words)}")
    return word


_OWN_NAMED = BeforeValidator(lambda value: own_name(value) if callable(value) else value)
PositionsPart = Annotated[str, _OWN_NAMED, AfterValidator(partial(_part_word, POSITIONS))]
FeedForwardPart = Annotated[str, _OWN_NAMED, AfterValidator(partial(_part_word, FEEDFORWARDS))]
NormPart = Annotated[str, _OWN_NAMED, AfterValidator(partial(_part_word, NORMS))]
BlockPart = Annotated[str, _OWN_NAMED, AfterValidator(partial(_part_word, BLOCKS))]
OptimizerPart = Annotated[str, _OWN_NAMED, AfterValidator(partial(_part_word, OPTIMIZERS))]
DecayPart = Annotated[str, _OWN_NAMED, AfterValidator(partial(_part_word, DECAYS))]

Settings = dict[str, dict[str, bool | int | float | str]]
"""Hyper-parameters of own parts: by the field that names the part, then by their own names."""


def _hash_but_settings(value: "Value") -> int:
    """Return a hash of all fields but the settings, whose dictionaries have none; equal values have equal hashes."""
    return hash(tuple(part for name, part in value if name != "settings"))


def _refuse_strange_settings(settings: Settings, fields: Collection[str]) -> None:
    for field in settings:
        if field not in fields:
            raise ValueError(f"settings are those of a part, and {field!r} is none: {did_you_mean(field, fields)}")


class Initialization(Value):
    """How weights start. `scale` is the half-width of a uniform or the standard deviation of a normal distribution."""

    distribution: Literal["uniform", "normal"]
    weight_scale: PositiveFloat
    embedding_scale: PositiveFloat
    position_scale: PositiveFloat


KERNEL_HEAD_MULTIPLE = 8
"""Accelerator kernels take head sizes that are multiples of this; others are padded with zeros."""


def gated_width(nominal_width: int) -> int:
    """Return the hidden width of a gated feed-forward: two thirds of the nominal one, rounded up to a multiple of 8."""
    return -(-int(2 * nominal_width / 3) // 8) * 8


class Model(Value):
    """The encoder's shape and parts.

    `feedforward_width` is nominal: a gated feed-forward takes two thirds of it, rounded up to a multiple of 8, so that
    GELU and SwiGLU have equal parameters. `tied_embeddings` is whether the decoder's matrix is that of the token
    embeddings. `settings` are the hyper-parameters of own parts.
    """

    retired: ClassVar = {"attention_window": 0, "global_every": 1, "local_rotary_base": None}

    vocabulary_size: PositiveInt
    layers: PositiveInt
    width: PositiveInt
    heads: PositiveInt
    feedforward_width: PositiveInt
    positions: PositionsPart
    rotary_base: PositiveFloat
    feedforward: FeedForwardPart
    norm: NormPart
    norm_epsilon: PositiveFloat
    dropout: NonNegativeFloat
    initialization: Initialization
    block: Annotated[BlockPart, Neutral("pre_norm")]
    tied_embeddings: Annotated[bool, Neutral(False)]
    settings: Annotated[Settings, Neutral({})] = {}

    @model_validator(mode="after")
    def _settings_are_of_parts(self) -> Self:
        _refuse_strange_settings(self.settings, ("positions", "feedforward", "norm", "block"))
        return self

    def __hash__(self) -> int:
        return _hash_but_settings(self)

    @model_validator(mode="after")
    def _shape_is_possible(self) -> Self:
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads: choose a multiple of {self.heads}"
            )
        if self.positions == "rotary" and (self.width // self.heads) % 2:
            raise ValueError(
                f"rotary positions need an even head size, but width {self.width} / {self.heads} heads is odd"
            )
        if self.dropout >= 1:
            raise ValueError(f"dropout {self.dropout} would drop everything: it must be below 1")
        return self


class Data(Value):
    """Which text in which tokens; a source (synthetic, hub, directory) says where the bytes come from.

    Documents longer than a stage's context are cut to it, or split into passages that fit, so that all is read.
    """

    corpus: str
    tokenizer: Literal["wordpiece", "bpe"]
    long_documents: Annotated[LongDocuments, Neutral("cut")]


class Masking(Value):
    """Masked language modelling: `rate` of the tokens are predicted; of these `mask_share` become [MASK] and
    `random_share` a random token, the rest stay as they are."""

    retired: ClassVar = {"final_rate": None, "drawn_up_to": None}

    rate: PositiveFloat
    mask_share: NonNegativeFloat
    random_share: NonNegativeFloat

    @model_validator(mode="after")
    def _shares_add_up(self) -> Self:
        if self.rate >= 1:
            raise ValueError(f"masking rate {self.rate} leaves nothing to read: it must be below 1")
        if self.mask_share + self.random_share > 1:
            raise ValueError(f"mask_share {self.mask_share} + random_share {self.random_share} exceed 1")
        return self


class Optimization(Value):
    """Optimizer and learning-rate shape. Adam adds weight decay to the gradient, AdamW to the weights. `settings` are
    the hyper-parameters of an own optimizer or decay."""

    optimizer: OptimizerPart
    beta1: Beta
    beta2: Beta
    epsilon: PositiveFloat
    weight_decay: NonNegativeFloat
    clip_norm: PositiveFloat
    peak_learning_rate: PositiveFloat
    decay: DecayPart
    floor_fraction: NonNegativeFloat
    settings: Annotated[Settings, Neutral({})] = {}

    @model_validator(mode="after")
    def _settings_are_of_parts(self) -> Self:
        _refuse_strange_settings(self.settings, ("optimizer", "decay"))
        return self

    def __hash__(self) -> int:
        return _hash_but_settings(self)


class Subset(Value):
    """Documents of at least `minimum_tokens`, drawn with probability `share`."""

    retired: ClassVar = {"corpus": None}

    minimum_tokens: NonNegativeInt
    share: PositiveFloat


class Stage(Value):
    """One stretch of pre-training. The rate rises over `warmup_steps`, stays at its peak for `stable_steps`, reaches
    its floor at `decay_steps` and stays there. Each step draws one subset of the mixture (paper §3.2)."""

    retired: ClassVar = {"objective": "masked"}

    context: PositiveInt
    tokens_per_step: PositiveInt
    steps: PositiveInt
    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    mixture: tuple[Subset, ...]
    stable_steps: Annotated[NonNegativeInt, Neutral(0)]

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if self.tokens_per_step % self.context:
            raise ValueError(f"tokens_per_step {self.tokens_per_step} is no multiple of the context {self.context}")
        if self.decay_steps and self.decay_steps <= self.warmup_steps:
            raise ValueError(f"decay_steps {self.decay_steps} must lie behind warmup_steps {self.warmup_steps} or be 0")
        if self.stable_steps and self.decay_steps <= self.warmup_steps + self.stable_steps:
            raise ValueError(
                f"decay_steps {self.decay_steps} must lie behind warmup_steps {self.warmup_steps} and stable_steps "
                f"{self.stable_steps}"
            )
        if abs(sum(subset.share for subset in self.mixture) - 1) > 1e-9:
            raise ValueError(f"the shares of a mixture must add up to 1, not {sum(s.share for s in self.mixture)}")
        return self

    @property
    def tokens(self) -> int:
        """Token slots of the stage, as the paper counts them: tokens per step × steps."""
        return self.tokens_per_step * self.steps


class Start(Value):
    """Weights that pre-training starts from, by the first digits of the SHA-256 of their file (`neobert.starts`).
    `optimizer_state` is that of the optimizer's state if it is restored, None if the optimizer starts anew."""

    weights: str
    optimizer_state: str | None


class Pretraining(Value):
    """Everything that decides a pre-trained model, apart from the bytes of the corpus. Without a `start`, weights are
    drawn at random."""

    model: Model
    data: Data
    masking: Masking
    packing: Literal["padded", "packed", "packed_across_documents"]
    optimization: Optimization
    stages: tuple[Stage, ...]
    precision: PretrainingPrecision
    seed: NonNegativeInt
    start: Annotated[Start | None, Neutral(None)]

    @model_validator(mode="after")
    def _has_stages(self) -> Self:
        if not self.stages:
            raise ValueError("a pre-training recipe needs at least one stage")
        return self

    @property
    def longest_context(self) -> int:
        """Longest context of all stages, in tokens: the size of a learned position table."""
        return max(stage.context for stage in self.stages)

    @property
    def tokens(self) -> int:
        """Token slots of all stages."""
        return sum(stage.tokens for stage in self.stages)


class FineTuning(Value):
    """The protocol of one fine-tuning study on GLUE: all but task, grid point and seed.

    Evaluations come every `evaluation_interval_steps` updates or, where that is sooner, `evaluations_per_epoch` times
    an epoch, whose length is counted in updates or in examples (`neobert.training.schedule`). `transferred` is what a
    task that starts from another one takes over: its encoder, or the layer of the head below the classifier too.
    `decisive_metric` is what patience, the best step and the best point of a grid go by: the mean of a task's metrics,
    which is its score, or the first of them (on MNLI the matched accuracy).
    """

    epochs: PositiveInt
    max_tokens: PositiveInt
    train_examples: PositiveInt | None
    pooling: Literal["cls", "mean"]
    dropout: NonNegativeFloat
    classifier_scale: PositiveFloat
    beta1: Beta
    beta2: Beta
    epsilon: PositiveFloat
    warmup_fraction: NonNegativeFloat
    decay_fraction: PositiveFloat
    floor_fraction: NonNegativeFloat
    evaluation_interval_steps: PositiveInt
    evaluations_per_epoch: PositiveInt
    patience_evaluations: PositiveInt
    precision: Precision
    epoch_counted_in: Annotated[Literal["steps", "examples"], Neutral("steps")]
    weight_decay_on: Annotated[Literal["all", "all_but_biases"], Neutral("all")]
    transferred: Annotated[Literal["encoder", "encoder_and_dense"], Neutral("encoder")]
    decisive_metric: Annotated[Literal["mean", "first"], Neutral("mean")]


class Contrastive(Value):
    """The protocol of contrastive fine-tuning: InfoNCE on cosines, each step on pairs of one data set.

    A step holds about `texts_per_step` texts; data sets of n pairs are drawn with probability ~ n^`sampling_exponent`.
    `most_negatives` hard negatives of a pair are taken at most, None takes all. Whether a text that is known to belong
    to a query (its document again, or that of an equal query) may stand among its negatives is in `false_negatives`.
    Pairs of a similarity task count as pairs above the score `similar_above` (0..5), None takes all. `reduction` is
    that of the loss over the queries of a step, before the gradient is clipped. The rate rises over `warmup_steps` and
    falls until `decay_steps`, as in a stage of pre-training.
    """

    stable_steps: ClassVar[int] = 0

    steps: PositiveInt
    texts_per_step: PositiveInt
    warmup_steps: NonNegativeInt
    decay_steps: NonNegativeInt
    temperature: PositiveFloat
    sampling_exponent: NonNegativeFloat
    most_negatives: NonNegativeInt | None
    false_negatives: Literal["left_out", "kept"]
    similar_above: Annotated[NonNegativeFloat | None, Neutral(4.0)]
    reduction: Annotated[Literal["mean", "sum"], Neutral("mean")]
    max_tokens: PositiveInt
    pooling: Literal["mean"]
    instructed: Instructed
    optimization: Optimization
    precision: Precision
    seed: NonNegativeInt

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.decay_steps and self.decay_steps <= self.warmup_steps:
            raise ValueError(f"decay_steps {self.decay_steps} must lie behind warmup_steps {self.warmup_steps} or be 0")
        if self.texts_per_step < 4:
            raise ValueError(
                f"texts_per_step {self.texts_per_step} holds no two pairs, so no negative: give at least 4"
            )
        return self


class Point(Value):
    """One cell of a fine-tuning grid."""

    batch_size: PositiveInt
    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat

    @property
    def name(self) -> str:
        """The point in titles of parts."""
        return f"batch {self.batch_size}, rate {self.learning_rate:g}, decay {self.weight_decay:g}"


class Grid(Value):
    """The axes of a fine-tuning grid; its points are their product."""

    batch_sizes: tuple[PositiveInt, ...]
    learning_rates: tuple[PositiveFloat, ...]
    weight_decays: tuple[NonNegativeFloat, ...]

    def points(self) -> tuple[Point, ...]:
        """Return all cells. The largest batches come first, and small ones, which cost most, last."""
        return tuple(
            Point(batch_size=batch, learning_rate=rate, weight_decay=decay)
            for batch in sorted(self.batch_sizes, reverse=True)
            for rate in self.learning_rates
            for decay in self.weight_decays
        )
