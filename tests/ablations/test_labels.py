"""Labels say what was changed at the scale that ran: the paper's sizes and names of data stand where they are true."""

import pytest

from ablations.loading import papers
from ablations.names import named, variants_of_design
from ablations.scales import RULES, Scale, Vocabulary
from ablations.scaling import scaled
from ablations.variant import Variant, change_label

OWN = {"corpus": "texts/corpora/web:3f2a", "tokenizer": "trained:8192"}
PUBLISHED = {"corpus": "hub:tiiuae/falcon-refinedweb@c735", "tokenizer": "hub:meta-llama/Llama-2-7b-hf@01c7"}
ADDED = [variant.name for variant in variants_of_design(papers(), "add-one", "smoke", "trained")[0]]


def label(name: str, scale: Scale, origins: dict[str, str], vocabulary: Vocabulary = "trained") -> str:
    variant = papers().variants.get(name) or named(papers(), name)
    assert isinstance(variant, Variant)
    recipes = [scaled(papers(), each.recipe, scale, vocabulary) for each in (variant, variant.parent) if each]
    return change_label(variant, recipes[0], recipes[1] if len(recipes) > 1 else None, origins)


def test_the_papers_recipe_on_published_data_has_the_papers_titles() -> None:
    for name, variant in papers().variants.items():
        assert label(name, "paper", PUBLISHED, "published") == variant.title


@pytest.mark.parametrize("scale", list(RULES))
def test_no_small_variant_is_named_after_the_papers_sizes_or_data(scale: Scale) -> None:
    for name in (*papers().variants, *ADDED):
        text = label(name, scale, OWN)
        for claim in ("250M", "Optimal", "RefinedWeb", "LLaMA", "2M-token", "4,096"):
            assert claim not in text


def test_shapes_sizes_and_lengths_are_those_of_the_resolved_recipes() -> None:
    assert label("M7", "study", OWN) == "3 × 128 → 4 × 144 (paper: 16 × 1056)"
    assert label("M8", "study", OWN) == "4 × 144 → 6 × 128 (paper: 28 × 768)"
    assert label("M7@code", "smoke", OWN) == "3 × 128 → 4 × 136 (paper: 16 × 1008)"
    assert label("M2", "study", OWN) == "web text"
    assert label("M3", "study", OWN) == "own BPE, 8,192 tokens"
    assert label("M0+2m-token-batch", "study", OWN) == "1,024 → 1,536 tokens per step"


def test_data_decide_the_name_at_paper_scale_too() -> None:
    assert label("M2", "paper", OWN, "published") == "web text"
    assert label("M3", "paper", {**PUBLISHED, "tokenizer": "trained"}, "trained") == "own BPE, 32,064 tokens"
    assert label("M7", "paper", OWN, "published") == "250M Parameters"
    assert label("M2", "smoke", PUBLISHED, "published") == "RefinedWeb"
