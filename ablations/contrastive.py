"""From a pre-trained or external encoder to its run of contrastive fine-tuning on a source's data sets of pairs."""

from collections.abc import Mapping, Sequence
from typing import Any

from ablations.protocol import CONTRASTIVE_PROTOCOL
from ablations.scales import Scale
from neobert.data.corpora import Source
from neobert.data.pair_repositories import DECLARED_SETS
from neobert.embeddings.specification import ContrastiveRun, PairSet
from neobert.errors import MissingData
from neobert.external import ExternalModel
from neobert.recipe import Contrastive
from neobert.specifications import PretrainingRun

Encoder = PretrainingRun | ExternalModel

SCALED: Mapping[Scale, Mapping[str, Any]] = {
    "smoke": {"steps": 300, "texts_per_step": 96, "warmup_steps": 30, "decay_steps": 300, "max_tokens": 64},
    "laptop": {"steps": 500, "texts_per_step": 128, "warmup_steps": 50, "decay_steps": 500, "max_tokens": 128},
    "proxy": {"steps": 1000, "texts_per_step": 128, "warmup_steps": 100, "decay_steps": 1000, "max_tokens": 256},
    "paper": {},
}
"""What a scale changes of the protocol. Short courses have no time to warm up all the way, so they also fall."""

PEAK_LEARNING_RATES: Mapping[Scale, float] = {"smoke": 1e-3, "laptop": 1e-3, "proxy": 2e-4}


def scaled_contrastive(scale: Scale, seed: int, protocol: Contrastive = CONTRASTIVE_PROTOCOL) -> Contrastive:
    """The protocol at a scale."""
    changes = {**SCALED[scale], "seed": seed}
    if scale in PEAK_LEARNING_RATES:
        peak = {"peak_learning_rate": PEAK_LEARNING_RATES[scale]}
        changes["optimization"] = protocol.optimization.model_copy(update=peak)
    return Contrastive.model_validate(protocol.model_copy(update=changes).model_dump())


def pair_sets(source: Source, names: Sequence[str] | None) -> tuple[PairSet, ...]:
    """The data sets that are asked for, or all that the source has.

    Raises:
        MissingData: one is not there, or there is none at all.
        ValueError: the source knows no such name.
    """
    chosen = tuple(dict.fromkeys(names)) if names is not None else source.pair_sets()
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


def contrastive_run(encoder: Encoder, scale: Scale, seed: int, sets: Sequence[PairSet]) -> ContrastiveRun:
    """Contrastive fine-tuning of what a stage of pre-training ends with, or of a model from elsewhere."""
    protocol = scaled_contrastive(scale, seed)
    return ContrastiveRun(
        weights=encoder.id,
        context=context_of(encoder, protocol.max_tokens),
        protocol=protocol,
        sets=tuple(sets),
        tokenizer_origin=encoder.tokenizer_origin,
    )


def contrastive_run_of(model: ExternalModel, scale: Scale, seed: int, sets: Sequence[PairSet]) -> ContrastiveRun:
    """The same of a model from elsewhere, with texts as long as it reads."""
    protocol = scaled_contrastive(scale, seed)
    return ContrastiveRun(
        weights=model.id,
        context=model.context or protocol.max_tokens,
        protocol=protocol,
        sets=tuple(sets),
        tokenizer_origin=model.tokenizer_origin,
    )
