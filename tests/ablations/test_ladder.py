"""The ladder is the paper's, and every variant is its parent plus what it declares."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ablations import ladder, rates
from ablations.loading import papers
from ablations.names import chosen_variants
from ablations.scales import RULES, Scale, Vocabulary
from ablations.scaling import scaled
from ablations.variant import Modification, Recipe, Variant, prove, prove_scaled, validated
from neobert.identity import canonical, difference, leaves
from neobert.model.size import parameter_count
from tests.ablations.papers_ladder import PAPERS_LADDER
from tests.ablations.plans import with_leaf
from tests.support.golden_files import GoldenFiles

ALL = list(papers().variants.values())
CHILDREN = [variant for variant in ALL if variant.parent is not None]
SHRUNK: list[tuple[Scale, Vocabulary]] = [(s, v) for s in RULES for v in ("trained", "published")]


def test_the_lineage_is_the_papers_tree() -> None:
    """M3 and M6 are discarded: M4 continues M2, and M7 continues M5."""
    assert tuple(papers().steps)[:11] == PAPERS_LADDER
    assert ladder.M10.lineage() == ["M0", "M1", "M2", "M4", "M5", "M7", "M8", "M9", "M10"]
    assert ladder.M3.lineage() == ["M0", "M1", "M2", "M3"]
    assert ladder.M6.lineage()[-2:] == ["M5", "M6"]
    discarded = [name for name, variant in papers().steps.items() if not variant.kept]
    assert discarded[:2] == ["M3", "M6"] and not {*discarded[2:]} & {*PAPERS_LADDER}


def test_resolved_recipes_are_the_golden_ones(golden: GoldenFiles) -> None:
    """A change of any number of the ladder must be made in the golden file too. Its source stands in ladder.py. The
    baseline is there in full, the others with what differs from their parents."""
    resolved = {variant.name: json.loads(canonical(variant.recipe)) for variant in ALL if variant.parent is None}
    resolved |= {variant.name: difference(variant.parent.recipe, variant.recipe) for variant in CHILDREN}
    golden.compare_entries("resolved_recipes.json", resolved)


@pytest.mark.parametrize(
    ("name", "paper_parameters"), [("M7", 278.6e6), ("M7@code", 256.7e6), ("M8", 245_136_954), ("M9", 245_136_954)]
)
def test_sizes_are_the_papers(name: str, paper_parameters: float) -> None:
    pretraining = papers().variants[name].recipe.pretraining
    count = parameter_count(pretraining.model, pretraining.longest_context).total
    assert count == pytest.approx(paper_parameters, rel=2e-4 if paper_parameters % 1e5 == 0 else 0)


def _tampered(recipe: Recipe, path: str, value: Any) -> Recipe:
    return validated(with_leaf(recipe.model_dump(), path, value), "tampered")


@pytest.mark.parametrize(
    "variant", (ladder.M1, ladder.M4, ladder.M9, ladder.M10_CODE), ids=lambda variant: variant.name
)
def test_any_undeclared_change_is_found(variant: Variant) -> None:
    """Whatever single number of a child is touched, the proof names it."""
    numbers = {path: leaf for path, leaf in leaves(variant.recipe).items() if isinstance(leaf, int | float) and leaf}
    caught = 0
    for path, leaf in numbers.items():
        try:
            child = _tampered(variant.recipe, path, leaf * 2)
        except (ValueError, TypeError):
            continue  # an impossible recipe is refused before any proof
        with pytest.raises(ValueError, match=f"(differs|does not have).*{path.replace('.', '[.]')}"):
            prove(variant.name, variant.parent.recipe, child, variant.modifications)
        caught += 1
    assert caught > 20


# Confounds of the released ablation scripts, as they would look here.


def test_confound_a_change_that_stands_in_no_field_is_refused() -> None:
    """Two released packing scripts differ in a comment alone."""
    comment = Modification("Sequence Packing", source="comment", packing="padded")
    with pytest.raises(ValueError, match="changes nothing"):
        ladder.M5.derive("M6", comment)


def test_confound_an_arm_proven_against_the_wrong_parent_is_refused() -> None:
    """Script 06 departs from 04, not from 05: against any other parent the proof fails."""
    with pytest.raises(ValueError, match="more than it declares"):
        prove("M7", ladder.M6.recipe, ladder.M7.recipe, ladder.M7.modifications)


def test_an_impossible_model_is_refused_in_one_sentence() -> None:
    with pytest.raises(ValueError, match="width 770 is not divisible by 12 heads") as refusal:
        ladder.M1.derive("X", Modification("impossible", source="test", model={"width": 770}))
    assert "\n" not in str(refusal.value)
    with pytest.raises(
        ValueError,
        match=r"modification 'GeGLU': pretraining\.model\.feedfoward: there is no such field; did you",
    ):
        ladder.M1.derive("X", Modification("GeGLU", source="test", model={"feedfoward": "geglu"}))


def test_a_scale_that_leaks_is_found() -> None:
    parent = scaled(papers(), ladder.M2.recipe, "smoke", "trained")
    child = _tampered(scaled(papers(), ladder.M4.recipe, "smoke", "trained"), "pretraining.model.layers", 5)
    with pytest.raises(ValueError, match=r"more than it declares: pretraining\.model\.layers"):
        prove_scaled("M4", parent, child, ladder.M4)


@pytest.mark.parametrize(("scale", "vocabulary"), SHRUNK)
def test_shrunk_steps_are_like_the_papers(scale: Scale, vocabulary: Vocabulary) -> None:
    """M8 is deeper and narrower than M7 at equal size; M9 has a longer context and a larger batch."""
    variants = (ladder.M7, ladder.M8, ladder.M9)
    m7, m8, m9 = (scaled(papers(), each.recipe, scale, vocabulary).pretraining for each in variants)
    sizes = [parameter_count(recipe.model, recipe.longest_context).total for recipe in (m7, m8)]
    assert m8.model.layers > m7.model.layers and m8.model.width < m7.model.width
    assert sizes[1] == pytest.approx(sizes[0], rel=0.05)
    (before,), (first, second) = m8.stages, m9.stages
    assert before.context < first.context < second.context
    assert before.tokens_per_step < first.tokens_per_step == second.tokens_per_step
    assert first.context <= max(part.minimum_tokens for part in second.mixture) < second.context


def contradictions() -> list[list[str]]:
    """The cells of the table of what paper and code say differently, row by row."""
    text = (Path(__file__).parents[2] / "docs" / "paper-and-code.md").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_contradiction_names_its_variant_or_says_why_there_is_none() -> None:
    rows = contradictions()
    named = [re.fullmatch(r"`(M\d+@[\w-]+)`", row[-1]) for row in rows]
    assert all(found or re.fullmatch(r"none( yet)?: .{10,}", row[-1]) for found, row in zip(named, rows, strict=True))
    names = [found.group(1) for found in named if found]
    at_rates = [name for name in names if rates.MARK in name]
    assert sorted({*names} - {*at_rates}) == sorted(name for name in papers().variants if "@" in name)
    (variant,) = chosen_variants(papers(), at_rates)
    assert variant.delta() == {"pretraining.optimization.peak_learning_rate": (1e-4, 3e-4)}
    assert scaled(papers(), variant.recipe, "paper", "published") == variant.recipe
    assert len({row[0] for row in rows}) == len(rows) > len(names)
