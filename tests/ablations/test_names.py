"""Variants made from names: numbers at every scale, shares of the steps, one modification more or less."""

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablations import ladder, ladders
from ablations.ladders import SCALES
from ablations.loading import papers
from ablations.names import (
    at_rate,
    at_scale,
    chosen_variants,
    named,
    names_of_design,
    shorter,
    variants_in,
    variants_of_design,
)
from ablations.rates import shared_rate
from ablations.scales import RULES, Scale
from ablations.scaling import scaled_variant
from neobert.identity import difference
from neobert.rates import FIELDS, rate_text, rounded
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from tests.ablations.plans import EXECUTION, SOURCE, SYNTHETIC, rows_of

RATES = st.integers(10, 99).flatmap(lambda digits: st.integers(-6, 1).map(lambda power: digits * 10.0**power / 10))


# Numbers


@settings(max_examples=20)
@given(rate=RATES, thousandths=st.integers(1, 999))
def test_a_number_is_the_same_in_a_name_and_out_of_it(rate: float, thousandths: int) -> None:
    own = rounded(rate)
    assert math.isclose(own, rate, rel_tol=1e-9) and float(rate_text(own)) == own and len(rate_text(own)) <= 6
    variant = named(papers(), f"M4@rate{rate_text(own)}")
    assert variant is not None and variant.recipe.pretraining.optimization.peak_learning_rate == own
    assert at_rate(ladder.M4, rate) == variant == named(papers(), f"M4@peak_learning_rate-{rate_text(own)}")
    share = thousandths / 1000
    variant = named(papers(), f"M4@steps{share:g}")
    assert variant == shorter(ladder.M4, share) and variant is not None
    assert variant.recipe.pretraining.stages[0].steps == 1000 * thousandths


def test_every_number_of_the_optimizer_can_be_in_a_name() -> None:
    for field in FIELDS:
        text = "4e-1" if field == "peak_learning_rate" else "0.4"
        variant = named(papers(), f"M4@{field}-{text}")
        assert variant is not None and variant.parent is ladder.M4
        assert vars(variant.recipe.pretraining.optimization)[field] == 0.4


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("M4@rate0.001", "names no value of rate: write one or two digits and a power of ten, as @rate2.8e-3"),
        ("M4@rate1e999", "names no value of rate"),
        ("M4@steps1.5", "names no value of steps: write a share between 0 and 1 in up to three digits"),
        ("M4@beta2-0.950", "names no value of beta2: write up to six digits"),
        ("M4@beta2-2", "beta2: Input should be less than 1"),
        ("M4@beta9-1", "names no number of the optimizer: did you mean 'beta2' or 'beta1'"),
        ("M4@lr1e-3", "for another peak learning rate write M4@rate1e-3"),
        ("M4@rate4e-3@steps0.5", "name each number once, @steps first and @rate last"),
        ("M4@rate", "there is no variant 'M4@rate'"),
        ("M99@rate4e-3", "there is no variant 'M99@rate4e-3'"),
    ],
)
def test_an_impossible_number_is_one_sentence(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=" ") as refused:
        chosen_variants(papers(), [name])
    assert said in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("scale", SCALES)
def test_a_variant_at_a_number_is_its_parent_but_for_that(scale: Scale) -> None:
    """A rate is the same at every scale; a shorter run has its share of every stage."""
    for parent in (ladder.M0, ladder.M6, ladder.M9):
        variant, short = at_rate(parent, 4.1e-3), shorter(parent, 0.25)
        assert chosen_variants(papers(), [variant.name, short.name]) == [variant, short] and variant.source
        recipe, theirs = scaled_variant(papers(), at_scale(papers(), variant, scale), scale, "published")
        assert theirs is not None and recipe.pretraining.optimization.peak_learning_rate == 4.1e-3
        assert difference(theirs, recipe).keys() == {"pretraining.optimization.peak_learning_rate"}
        recipe, theirs = scaled_variant(papers(), at_scale(papers(), short, scale), scale, "published")
        for ours, whole in zip(recipe.pretraining.stages, theirs.pretraining.stages, strict=True):
            for part in ("steps", "warmup_steps", "decay_steps"):
                assert getattr(ours, part) == pytest.approx(getattr(whole, part) / 4, abs=1)
        others = [path for path in difference(theirs, recipe) if not path.startswith("pretraining.stages.")]
        assert others in ([], ["pretraining.optimization.beta2"])  # half-lives are at most a tenth of the run


@pytest.mark.parametrize("scale", RULES)
def test_the_rate_of_a_scale_is_the_variant_itself_and_every_other_rate_is_used_as_it_is(scale: Scale) -> None:
    shared = shared_rate(papers(), ladder.M4, scale)
    assert at_scale(papers(), at_rate(ladder.M4, shared), scale) is ladder.M4
    for rate in (*RULES[scale].peak_learning_rates, 3e-4):  # also rates that the scale replaces, or refuses to scale
        recipe, _ = scaled_variant(papers(), at_scale(papers(), at_rate(ladder.M4, rate), scale), scale, "published")
        assert recipe.pretraining.optimization.peak_learning_rate == rate
    assert at_scale(papers(), at_rate(ladder.M4, 1e-4), "paper") is ladder.M4


def test_a_number_that_a_variant_has_anyway_is_the_variant_where_nothing_was_scaled(tmp_path: Path) -> None:
    unscaled = named(papers(), "M4@beta2-0.95")
    assert unscaled is not None and unscaled.delta() == {}
    assert at_scale(papers(), unscaled, "smoke") is ladder.M4 and at_scale(papers(), unscaled, "study") is unscaled
    rows = rows_of(tmp_path, "M4", "M4@beta2-0.95", scale="study", stages=["pretrain"])
    assert [row.recipe.pretraining.optimization.beta2 for row in rows] == [0.998845, 0.95]
    assert [row.name for row in rows_of(tmp_path, "M4", "M4@beta2-0.95", scale="smoke")] == ["M4"]


def test_names_have_several_numbers_and_ranges_have_them_too() -> None:
    (variant,) = chosen_variants(papers(), ["M2@steps0.25@beta2-0.95@weight_decay-0.1@rate4e-3"])
    recipe, _ = scaled_variant(papers(), variant, "study", "trained")
    optimization = recipe.pretraining.optimization
    assert (optimization.beta2, optimization.weight_decay, optimization.peak_learning_rate) == (0.95, 0.1, 4e-3)
    assert recipe.pretraining.stages[0].steps == 1500
    assert [each.name for each in chosen_variants(papers(), ["M1..M3@steps0.5", "M1"])] == [
        "M1",
        *(f"{name}@steps0.5" for name in ("M1", "M2", "M3")),
    ]
    at_rates = chosen_variants(papers(), ["all@rate4e-3"])
    assert [each.name for each in at_rates] == [f"{name}@rate4e-3" for name in papers().steps]
    assert chosen_variants(papers(), ["M9-rope@steps0.5"])[0].parent == named(papers(), "M9-rope")
    assert [each.name for each in chosen_variants(papers(), ["M7@code@rate4e-3"])] == ["M7@code@rate4e-3"]


def test_of_the_names_in_records_those_of_this_version_are_found_and_others_skipped() -> None:
    names = ["M4", "M4@beta2-0.95", "M9@contrastive-code", "M4@rate4e-3", "M4@beta9-1", "M9-rope", "F:norm", "M0+no"]
    assert list(variants_in(papers(), names)) == ["M4@beta2-0.95", "M4@rate4e-3", "M9-rope"]


def test_runs_at_a_rate_have_ids_of_their_own_and_are_planned_and_labelled_like_any_other(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "M4", "M4@rate2e-3", "M4@rate4e-3", stages=["pretrain"])
    assert [row.name for row in rows] == ["M4", "M4@rate4e-3"], "smoke scale trains M4 at 2e-3"
    assert rows[0].stages[0].id != rows[1].stages[0].id
    rows[1].write(Layout(tmp_path), SYNTHETIC, SOURCE, EXECUTION)
    labels = read_run_file(rows[1].planned[0].folder).labels
    assert labels["variants"] == ["M4@rate4e-3"] and labels["parent"] == "M4"
    assert labels["delta"] == {"optimization.peak_learning_rate": [0.002, 0.004]}
    assert rows[1].title == "peak learning rate 4e-3"


# One modification more or less

LEFT_OUT, _ = variants_of_design(papers(), "leave-one-out", "paper", "published")
ADDED, _ = variants_of_design(papers(), "add-one", "paper", "published")
BY_ONE = [*LEFT_OUT[1:], *ADDED[1:]]


def test_every_variant_of_a_design_is_proven_and_made_again_from_its_name() -> None:
    way = ladders.modifications_of(ladder.M9)
    for made in BY_ONE:
        variant = named(papers(), made.name)
        assert variant is not None and chosen_variants(papers(), [made.name]) == [variant]
        assert variant.parent is ladder.M0
        scaled_variant(papers(), variant, "proxy", "published")
        if made.name.startswith("M9-"):
            (left_out,) = (each for each in way if each not in variant.modifications)
            assert left_out.title in variant.title and variant.recipe != ladder.M9.recipe
        else:
            assert len(variant.modifications) == 1


def test_a_design_has_every_modification_that_is_possible() -> None:
    assert [each.name for each in LEFT_OUT[:3]] == ["M9", "M9-rope", "M9-swiglu"]
    assert [each.name for each in ADDED[:3]] == ["M0", "M0+rope", "M0+swiglu"]
    assert (
        "M0+llama-tokenizer" in names_of_design(papers(), "add-one") and len(ADDED) == len(papers().modifications) + 1
    )
    variants, left_out = variants_of_design(papers(), "leave-one-out", "smoke", "trained")
    assert len(variants) + len(left_out) == len(names_of_design(papers(), "leave-one-out"))
    assert any(each.startswith("M9-2m-token-batch: scale smoke") for each in left_out)


def test_any_variant_can_do_without_one_or_have_one_more() -> None:
    less, more = named(papers(), "M7-rope"), named(papers(), "M3+cosine-decay")
    assert less is not None and less.recipe.pretraining.model.positions == "learned" and less.parent is ladder.M0
    assert more is not None and more.recipe.pretraining.optimization.decay == "cosine" and more.parent is ladder.M3
    for name, said in {
        "M2-cosine-decay": "M2 does not have 'Cosine Decay', so it cannot be left out of it",
        "M9-250m-parameters": "without '250M Parameters' M9 has the same recipe",
        "M7+rope": "'RoPE' declares a change but changes nothing",
        "M9-rop": "there is no variant 'M9-rop': did you mean 'M9-rope'",
    }.items():
        with pytest.raises(ValueError, match=" ") as refused:
            chosen_variants(papers(), [name])
        assert said in str(refused.value)


def test_equal_recipes_are_trained_once_under_every_name(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "M3", "M2+llama-tokenizer", "M9-rope", stages=["pretrain"])
    ids = [row.stages[0].id for row in rows]
    assert ids[0] == ids[1] != ids[2]
    for row in rows[1:]:
        row.write(Layout(tmp_path), SYNTHETIC, SOURCE, EXECUTION)
    labels = {row.variant.name: read_run_file(row.planned[0].folder).labels for row in rows[1:]}
    assert labels["M9-rope"]["variants"] == ["M9-rope"] and labels["M9-rope"]["parent"] == "M0"
    assert "model.positions" not in labels["M9-rope"]["delta"] and "model.norm" in labels["M9-rope"]["delta"]
    assert labels["M2+llama-tokenizer"]["variants"] == ["M3", "M2+llama-tokenizer"]
