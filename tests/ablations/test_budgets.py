"""Variants with a share of the steps: nothing else changes, at every scale, and names say which."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablations import ladder, ladders
from ablations.budgets import MARK, share_text, shares, shorter, shorter_ladder
from ablations.designs import chosen_variants, named
from ablations.ladders import SCALES
from ablations.readings import at_scale
from ablations.scales import RULES, Scale, scaled_variant


@given(st.integers(1, 999))
def test_a_share_is_the_same_in_a_name_and_out_of_it(thousandths: int) -> None:
    share = thousandths / 1000
    variant = named(f"M4{MARK}{share_text(share)}")
    assert variant == shorter(ladder.M4, share) and variant is not None and shares([variant.name]) == (share,)
    assert variant.recipe.pretraining.stages[0].steps == 1000 * thousandths


@pytest.mark.parametrize("name", ladders.ladder())
@pytest.mark.parametrize("scale", SCALES)
def test_a_shorter_run_has_its_share_of_every_stage_and_all_else_of_its_parent(name: str, scale: Scale) -> None:
    variant = shorter(ladders.ladder()[name], 0.25)
    assert variant.parent is ladders.ladder()[name] and at_scale(variant, scale) is variant
    recipe, parent = scaled_variant(variant, scale, "published")
    for ours, theirs in zip(recipe.pretraining.stages, parent.pretraining.stages, strict=True):
        for part in ("steps", "warmup_steps", "decay_steps"):
            assert getattr(ours, part) == pytest.approx(getattr(theirs, part) / 4, abs=1)
    optimization = recipe.pretraining.optimization
    if scale in RULES and RULES[scale].second_moment == "token_half_life":  # at most a tenth of the shorter run
        assert optimization.beta2 <= parent.pretraining.optimization.beta2
        optimization = optimization.model_copy(update={"beta2": parent.pretraining.optimization.beta2})
    same = recipe.pretraining.model_copy(update={"stages": parent.pretraining.stages, "optimization": optimization})
    assert same == parent.pretraining and recipe.model_copy(update={"pretraining": same}) == parent


def test_a_shorter_run_may_have_a_rate_of_its_own_and_ranges_have_shares() -> None:
    (variant,) = chosen_variants(["M4@steps0.25@rate4e-3"])
    pretraining = variant.recipe.pretraining
    assert pretraining.optimization.peak_learning_rate == 4e-3 and pretraining.stages[0].steps == 250_000
    assert [each.name for each in chosen_variants(["M1..M3@steps0.5", "M1"])] == [
        "M1",
        *(f"{name}@steps0.5" for name in ("M1", "M2", "M3")),
    ]
    assert [each.name for each in chosen_variants(["all@steps0.5"])] == list(shorter_ladder(["M0@steps0.5"]))
    assert not any(MARK in name for name in ladders.variants())
