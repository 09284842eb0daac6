"""Scaling keeps the order of numbers and their ratios, or refuses with what to do; unscaled values stay as they are."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ablations import ladder
from ablations.loading import papers
from ablations.scales import RULES, SMOKE, Rules, Scale
from ablations.scaling import nearest_row, replaced, scaled, scaled_count, scaled_number, scaled_variant, unrepresented
from ablations.variant import Modification, Variant
from neobert.identity import leaves

NUMBERS = st.floats(1e-6, 1e-1)
COUNTS = st.integers(1, 1 << 22)


def tables(numbers: st.SearchStrategy[Any], smaller: st.SearchStrategy[Any]) -> st.SearchStrategy[Mapping[Any, Any]]:
    """Tables of one to four rows that keep the order of their own numbers."""

    def pair(befores: list[Any]) -> st.SearchStrategy[dict[Any, Any]]:
        afters = st.lists(smaller, min_size=len(befores), max_size=len(befores)).map(sorted)
        return afters.map(lambda found: dict(zip(sorted(befores), found, strict=True)))

    return st.lists(numbers, min_size=1, max_size=4, unique=True).flatmap(pair)


@given(table=tables(NUMBERS, NUMBERS), low=NUMBERS, high=NUMBERS)
@example(table={1e-4: 2e-3, 6e-4: 2.5e-3}, low=1e-4, high=3e-4)
@example(table={1e-4: 2e-3}, low=1e-4, high=3e-4)
def test_of_two_rates_the_larger_stays_larger_and_those_of_one_row_keep_their_ratio(
    table: Mapping[float, float], low: float, high: float
) -> None:
    assume(low * (1 + 1e-12) < high)  # closer ones are one number after a product
    try:
        small, large = (scaled_number("rate", table, each) for each in (low, high))
    except ValueError as error:
        assert "lies between the rows" in str(error) and "add a row" in str(error) and len(table) > 1
        return
    assert small <= large * (1 + 1e-11)
    if nearest_row("rate", table, low) == nearest_row("rate", table, high):
        assert math.isclose(large / small, high / low, rel_tol=1e-10) and small < large


@given(table=tables(COUNTS, st.integers(1, 1 << 16)), low=COUNTS, high=COUNTS, unit=st.integers(1, 96))
@example(table={512: 64, 1024: 96, 4096: 192}, low=2000, high=4096, unit=1)
@example(table={131_072: 512, 2_097_152: 768}, low=262_144, high=2_097_152, unit=64)
def test_whole_numbers_keep_order_and_ratio_up_to_their_rounding(
    table: Mapping[int, int], low: int, high: int, unit: int
) -> None:
    assume(low < high)
    table = {before: after * unit for before, after in table.items()}  # a row that is no multiple is no valid recipe
    try:
        near = [nearest_row("steps", table, each) for each in (low, high)]
    except ValueError as error:
        assert "lies between the rows" in str(error)
        return
    small, large = (scaled_count("steps", table, each, unit) for each in (low, high))
    assert unit <= small <= large
    for row, before, after in zip(near, (low, high), (small, large), strict=True):
        exact = before * table[row] / row
        assert after % unit == 0 and exact - unit < after <= max(exact, unit)


def at_rules(variant: Variant, rules: Rules) -> Any:
    """The recipes of a variant and its parent under rules of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RULES, "own", rules)  # type: ignore[arg-type]
        return scaled_variant(papers(), variant, "own", "trained")


FIELDS: dict[str, tuple[str, ...]] = {
    "model": ("layers", "width", "feedforward_width", "heads", "vocabulary_size", "rotary_base"),
    "optimization": ("peak_learning_rate", "weight_decay", "beta2", "epsilon", "clip_norm"),
    "stages": ("steps", "warmup_steps", "decay_steps", "tokens_per_step", "context"),
    "finetuning": ("epochs", "max_tokens", "dropout", "classifier_scale", "evaluations_per_epoch", "warmup_fraction"),
    "contrastive": ("steps", "texts_per_step", "warmup_steps", "decay_steps", "max_tokens", "temperature"),
}
PATHS = {"model": "pretraining.model", "optimization": "pretraining.optimization", "stages": "pretraining.stages.0"}
FIELD_NAMES = [(section, field) for section, fields in FIELDS.items() for field in fields]


@settings(max_examples=50)
@given(
    name=st.sampled_from(["M0", "M2", "M4", "M8", "M9"]),
    place=st.sampled_from(FIELD_NAMES),
    factor=st.sampled_from([0.1, 0.25, 0.5, 0.75, 1.25, 1.5, 2, 3, 4, 10]),
    scale=st.sampled_from(sorted(RULES)),
    unscaled=st.booleans(),
)
@example(name="M0", place=("stages", "warmup_steps"), factor=2, scale="smoke", unscaled=False)
@example(name="M0", place=("model", "heads"), factor=0.5, scale="smoke", unscaled=False)
@example(name="M0", place=("model", "width"), factor=2, scale="smoke", unscaled=False)
@example(name="M0", place=("stages", "steps"), factor=2, scale="study", unscaled=False)
def test_no_scale_turns_a_modification_of_any_number_around(
    name: str, place: tuple[str, str], factor: float, scale: Scale, unscaled: bool
) -> None:
    parent, (section, field) = papers().variants[name], place
    path = f"{PATHS.get(section, f'embedding.{section}' if section == 'contrastive' else section)}.{field}"
    before = leaves(parent.recipe)[path]
    after = type(before)(before * factor)
    assume(after != before)
    changes: Any = {field: after}
    try:
        own: Any = {section: (changes,) if section == "stages" else changes}
        change = Modification("times", source="here", unscaled=unscaled, **own)
        variant = parent.derive("times", change)
    except ValueError:
        assume(False)
    try:
        recipe, base = scaled_variant(papers(), variant, scale, "trained")
    except ValueError as error:
        assert scale in str(error) or "scaled" in str(error) or "the scale" in str(error)
        assert "unscaled" in str(error) and "--scale as-written" in str(error), "and what to do"
        return
    assert base is not None
    ours, theirs = leaves(recipe)[path], leaves(base)[path]
    if unscaled:
        assert ours == after
        return
    assert (ours - theirs) * (after - before) >= 0
    several_rows = (
        "peak_learning_rate",
        "context",
        "max_tokens",
        "tokens_per_step",
        "layers",
        "width",
        "vocabulary_size",
    )
    if field not in (*several_rows, "feedforward_width", "beta2"):
        unit = 1 if isinstance(ours, int) else 0
        assert abs(ours - theirs * after / before) <= (unit + unit * factor) + 1e-9 * abs(ours), (ours, theirs)


def test_what_a_scale_replaces_keeps_its_ratio_and_words_stay() -> None:
    initial = ladder.M0.recipe.pretraining.model.initialization.model_dump()
    wide = Modification("wide", source="here", model={"initialization": {**initial, "weight_scale": 0.04}})
    usual = ladder.M0.recipe.embedding.contrastive.optimization
    rate = {"optimization": usual.model_copy(update={"peak_learning_rate": 3e-4}).model_dump()}
    variant = ladder.M0.derive("arm", wide, Modification("3x", source="here", contrastive=rate))
    recipe, _ = scaled_variant(papers(), variant, "smoke", "trained")
    assert recipe.pretraining.model.initialization.weight_scale == 0.1
    assert recipe.embedding.contrastive.optimization.peak_learning_rate == 3e-3
    assert replaced("x", "split", "cut", "split") == "cut" and replaced("x", "split", "cut", "cut") == "split"
    with pytest.raises(ValueError, match="train_examples 5000 has no ratio to the baseline's None"):
        replaced("train_examples", 1000, 5000, None)


def test_a_rate_of_the_grid_without_a_row_keeps_its_ratio_to_the_nearest() -> None:
    grid = ladder.M0.recipe.grid
    for rates, expected in (((4e-5,), (2e-3,)), ((1e-5, 2e-5, 3e-5), (1e-3, 1.5e-3))):
        changed = ladder.M0.recipe.model_copy(update={"grid": grid.model_copy(update={"learning_rates": rates})})
        assert scaled(papers(), changed, "smoke", "trained").grid.learning_rates == expected


def test_a_scale_that_would_turn_a_shape_around_refuses() -> None:
    shapes = {(12, 768): (3, 128), (28, 768): (6, 120)}
    wider = Modification("deeper, wider", source="here", model={"layers": 26, "width": 792, "feedforward_width": 3168})
    rules = replace(SMOKE, shapes={"trained": shapes, "published": shapes})
    with pytest.raises(
        ValueError, match=r"turns a change around: pretraining\.model\.feedforward_width 3072 → 3168 becomes 512 → 495"
    ):
        at_rules(ladder.M0.derive("wider", wider), rules)


def test_an_added_stage_that_does_not_decay_has_no_plateau() -> None:
    plateau = Modification("WSD", source="here", stages=({"stable_steps": 500_000},))
    constant = Modification("more", source="here", stages=({}, {"steps": 50_000, "warmup_steps": 0, "decay_steps": 0}))
    stages = ladder.M0.derive("two", plateau, constant).recipe.pretraining.stages
    assert [stage.stable_steps for stage in stages] == [500_000, 0]


@pytest.mark.parametrize("scale", ["as-written", "paper"])
def test_scales_without_rules_take_recipes_as_they_are(scale: Scale) -> None:
    assert all(scaled(papers(), each.recipe, scale, "trained") is each.recipe for each in papers().variants.values())


# Time constants


@settings(max_examples=20)
@given(beta2=st.floats(0.1, 0.9999), scale=st.sampled_from(["study", "proxy"]))
def test_the_second_moment_keeps_its_half_life_in_tokens_up_to_a_tenth_of_the_run(beta2: float, scale: Scale) -> None:
    recipe = Modification("b", source="here", optimization={"beta2": beta2}).apply(ladder.M0.recipe)
    ours = scaled(papers(), recipe, scale, "trained").pretraining
    written, stage = recipe.pretraining.stages[0], ours.stages[0]
    tokens = written.tokens_per_step * math.log(2) / -math.log(beta2)
    steps = min(tokens / stage.tokens_per_step, 0.1 * stage.steps)
    assert ours.optimization.beta2 == pytest.approx(0.5 ** (1 / steps), abs=1e-6)


def test_what_a_scale_does_not_represent_is_named() -> None:
    assert unrepresented(papers(), ladder.M4, "study", "trained") == ("optimization.beta2",)
    assert (
        unrepresented(papers(), ladder.M4, "smoke", "trained")
        == unrepresented(papers(), ladder.M0, "study", "trained")
        == ()
    )
    assert unrepresented(papers(), ladder.M3, "smoke", "trained") == ("model.vocabulary_size",)
    assert unrepresented(papers(), ladder.M3, "smoke", "published") == ()
    assert unrepresented(papers(), ladder.M10, "smoke", "trained") == ("grid.batch_sizes", "grid.learning_rates")
    assert all(unrepresented(papers(), each, "paper", "published") == () for each in papers().variants.values())


def test_a_modification_of_beta2_alone_is_erased_where_the_cap_binds_and_said_to_be() -> None:
    beta2 = Modification("beta2", source="here", optimization={"beta2": 0.95})
    variant = ladder.M2.derive("beta2", beta2)
    with pytest.raises(ValueError, match=r"the scale erases modification 'beta2'.*unscaled=True.*--scale as-written"):
        scaled_variant(papers(), variant, "study", "trained")
    recipe, _ = scaled_variant(papers(), ladder.M2.derive("own", replace(beta2, unscaled=True)), "study", "trained")
    assert recipe.pretraining.optimization.beta2 == 0.95
