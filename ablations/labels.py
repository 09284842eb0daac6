"""What a variant changes, in few words: the paper's own where they are true, else those of the recipe as it is run."""

from collections.abc import Mapping

from ablations.modification import Modification, Recipe
from ablations.variant import Variant
from neobert.data.manifest import is_from_hub
from neobert.recipe import Pretraining

TOKENIZERS = {"wordpiece": "WordPiece", "bpe": "BPE"}


def change_label(variant: Variant, recipe: Recipe, parent: Recipe | None, origins: Mapping[str, str]) -> str:
    """The title of a variant with what its recipe and its parent's say at their scale in place of sizes, lengths and
    names of data that are the paper's alone. `origins` identify the bytes of the corpus and of the tokenizer."""
    own = ", ".join(modification.title for modification in variant.modifications)
    if parent is None or variant.title != own:
        return variant.title
    before, ours, paper = parent.pretraining, recipe.pretraining, variant.recipe.pretraining
    labels = [_label(each, before, ours, paper, origins) or each.title for each in variant.modifications]
    return ", ".join(dict.fromkeys(labels))


def _label(
    modification: Modification, before: Pretraining, ours: Pretraining, paper: Pretraining, origins: Mapping[str, str]
) -> str:
    """What a modification does here; empty where it does what its title says."""
    is_published = {name: is_from_hub(origins.get(name, "")) for name in ("corpus", "tokenizer")}
    of_stages = {name for stage in modification.stages for name in stage}
    if {"layers", "width"} & modification.model.keys() and _shape(ours) != _shape(paper):
        return f"{_shape(before)} → {_shape(ours)} (paper: {_shape(paper)})"
    if "corpus" in modification.data and not is_published["corpus"]:
        return f"{ours.data.corpus} text"
    if "tokenizer" in modification.data and not is_published["tokenizer"]:
        return f"own {TOKENIZERS[ours.data.tokenizer]}, {ours.model.vocabulary_size:,} tokens"
    if "context" in of_stages and _contexts(ours) != _contexts(paper):
        return f"context {before.stages[0].context:,} → {_contexts(ours)}"
    if "tokens_per_step" in of_stages and ours.stages[0].tokens_per_step != paper.stages[0].tokens_per_step:
        return f"{before.stages[0].tokens_per_step:,} → {ours.stages[0].tokens_per_step:,} tokens per step"
    return ""


def _shape(pretraining: Pretraining) -> str:
    return f"{pretraining.model.layers} × {pretraining.model.width}"


def _contexts(pretraining: Pretraining) -> str:
    return " → ".join(f"{stage.context:,}" for stage in pretraining.stages)
