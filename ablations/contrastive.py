"""From a pre-trained or external encoder to its run of contrastive fine-tuning on a source's data sets of pairs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ablations.modification import Embedding
from ablations.protocol import CONTRASTIVE_PROTOCOL, EMBEDDING_PROTOCOL
from neobert.data.pairs import DECLARED_SETS, Mix, sets_of
from neobert.data.sources import Source
from neobert.errors import MissingData
from neobert.external import ExternalModel
from neobert.recipe import Contrastive
from neobert.runs.specifications import ContrastiveRun, PairSet, PretrainingRun

if TYPE_CHECKING:
    from ablations.scales import Scale

Encoder = PretrainingRun | ExternalModel

SCALED: "Mapping[Scale, Mapping[str, Any]]" = {
    "smoke": {"steps": 300, "texts_per_step": 96, "warmup_steps": 30, "decay_steps": 300, "max_tokens": 64},
    "laptop": {"steps": 500, "texts_per_step": 128, "warmup_steps": 50, "decay_steps": 500, "max_tokens": 128},
    "proxy": {"steps": 1000, "texts_per_step": 128, "warmup_steps": 100, "decay_steps": 1000, "max_tokens": 256},
    "paper": {},
}
"""What a scale changes of the protocol. Short courses have no time to warm up all the way, so they also fall."""

PEAK_LEARNING_RATES: "Mapping[Scale, float]" = {"smoke": 1e-3, "laptop": 1e-3, "proxy": 2e-4}


def scaled_embedding(scale: "Scale", embedding: Embedding = EMBEDDING_PROTOCOL) -> Embedding:
    """How an encoder is made an embedder at a scale; vectors of small models are computed in fp32."""
    if scale == "paper":
        return embedding
    contrastive = scaled_contrastive(scale, embedding.contrastive)
    return embedding.model_copy(update={"contrastive": contrastive, "precision": "fp32"})


def scaled_contrastive(scale: "Scale", protocol: Contrastive = CONTRASTIVE_PROTOCOL) -> Contrastive:
    """The protocol at a scale; another number of texts a step than the paper's stays in proportion to it."""
    changes = dict(SCALED[scale])
    if "texts_per_step" in changes:
        texts = changes["texts_per_step"] * protocol.texts_per_step // CONTRASTIVE_PROTOCOL.texts_per_step
        changes["texts_per_step"] = texts
    if scale in PEAK_LEARNING_RATES:
        peak = {"peak_learning_rate": PEAK_LEARNING_RATES[scale]}
        changes["optimization"] = protocol.optimization.model_copy(update=peak)
    return Contrastive.model_validate(protocol.model_copy(update=changes).model_dump())


def pair_sets(source: Source, names: Sequence[str] | None, mix: Mix = "paper") -> tuple[PairSet, ...]:
    """The data sets that are asked for, or all that the source has; of published ones those of the mix.

    Raises:
        MissingData: one is not there, or there is none at all.
        ValueError: the source knows no such name.
    """
    if names is None:
        others = DECLARED_SETS.keys() - set(sets_of(mix))
        names = [name for name in source.pair_sets() if name not in others]
    chosen = tuple(dict.fromkeys(names))
    if not chosen:
        raise MissingData(f"{source.label} holds no data sets of pairs: put parquet files into its folder pairs/")
    return tuple(
        PairSet(
            name=name,
            origin=source.pair_origin(name),
            instruction=source.pair_instruction(name),
            texts_per_pair=DECLARED_SETS[name].texts_per_pair if name in DECLARED_SETS else None,
        )
        for name in chosen
    )


def context_of(encoder: Encoder, most_tokens: int) -> int:
    """Tokens that an encoder reads: as many as its pre-training taught, or those of a model from elsewhere, which may
    bound nothing: then `most_tokens`."""
    if isinstance(encoder, PretrainingRun):
        return encoder.recipe.longest_context
    return encoder.context or most_tokens


def contrastive_run(encoder: Encoder, protocol: Contrastive, seed: int, sets: Sequence[PairSet]) -> ContrastiveRun:
    """Contrastive fine-tuning of what a stage of pre-training ends with, or of a model from elsewhere."""
    return ContrastiveRun(
        weights=encoder.id,
        context=context_of(encoder, protocol.max_tokens),
        protocol=protocol.model_copy(update={"seed": seed}),
        sets=tuple(sets),
        tokenizer_origin=encoder.tokenizer_origin,
    )
