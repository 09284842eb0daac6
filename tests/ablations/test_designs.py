"""Designs over the ladder's own modifications: proven, named, shared with the ladder, and refused with a sentence."""

import json
from itertools import combinations
from pathlib import Path

import pytest

from ablations import designs, ladder, ladders, run
from ablations.designs import (
    cell,
    cells,
    chosen_variants,
    design_of,
    named,
    possible_factorials,
    single_variants,
)
from ablations.ladder import FACTORS
from ablations.scales import Scale, scaled_variant
from ablations.variant import Modification, Variant
from neobert.runs.layout import Layout
from neobert.runs.run_file import read_run_file
from tests.ablations.plans import EXECUTION, SOURCE, SYNTHETIC, rows_of

ADDED = [name for name, factor in FACTORS.items() if factor.added]
PAIRS = [cell(pair) for pair in combinations(ADDED, 2)]
EVERYTHING = [*single_variants().values(), *PAIRS, cell(tuple(ADDED))]


@pytest.mark.parametrize("variant", EVERYTHING, ids=lambda variant: variant.name)
def test_every_variant_is_proven_at_every_scale_that_holds_it(variant: Variant) -> None:
    assert variant.parent is ladder.M0
    scales: tuple[Scale, ...] = ("proxy", "paper")
    for scale in scales:
        scaled_variant(variant, scale, "published")
    switched = {name for name in ("batch", "context") if FACTORS[name].added[0] in variant.modifications}
    if switched != {"context"}:
        scaled_variant(variant, "smoke", "trained")


def test_all_modifications_of_m9_make_m9() -> None:
    again = ladder.M0.derive("again", *ladders.modifications_of(ladder.M9))
    assert again.recipe == ladder.M9.recipe


@pytest.mark.parametrize("name", [name for name, factor in FACTORS.items() if factor.removed])
def test_leaving_one_out_of_m9_and_putting_it_back_is_m9(name: str) -> None:
    variant = designs.without(name)
    left = [one for one in ladders.modifications_of(ladder.M9) if one in variant.modifications]
    assert list(variant.modifications) == left and variant.recipe != ladder.M9.recipe
    missing: list[Modification] = [one for one in ladders.modifications_of(ladder.M9) if one not in left]
    assert missing == list(FACTORS[name].removed)


def test_size_and_shape_are_one_ordered_factor() -> None:
    models = {name: variant.recipe.pretraining.model for name, variant in single_variants().items()}
    shapes = {name: (model.layers, model.width) for name, model in models.items()}
    assert shapes["M9-size"] == (12, 768) and shapes["M9-shape"] == (16, 1056) and shapes["M0+size"] == (28, 768)


def test_names_are_enough_to_make_a_variant_again() -> None:
    for variant in EVERYTHING:
        assert named(variant.name) == variant and chosen_variants([variant.name]) == [variant]
    for wrong in ("F:norm+positions", "F:", "F:grid", "M9-tokenizer", "M0+shape", "M9"):
        assert named(wrong) is None, wrong


def test_a_factorial_has_all_combinations_and_its_half_every_second_one() -> None:
    factors = ("positions", "feedforward", "norm", "masking")
    full, half = cells(factors), cells(factors, "half")
    assert len(set(full)) == 16 and () in full and factors in full
    assert len(set(half)) == 8 and factors in half and set(half) < set(full)
    for name in factors:
        assert sum(name in on for on in half) == 4, "every factor is as often on as off"
    assert design_of("factorial", list(reversed(factors))).variants[0] is ladder.M0


def test_factorials_are_known_from_the_names_of_their_cells() -> None:
    assert possible_factorials(["M9", "F:positions", "F:norm+masking"]) == [
        ("positions", "norm", "masking"),
        ("norm", "masking"),
    ]
    assert possible_factorials(["M0+norm", "F:positions"]) == []


def test_equal_recipes_are_trained_once_under_every_name(tmp_path: Path) -> None:
    names = ("M1", "M0+norm", "F:norm", "F:positions+feedforward+norm")
    ids = [row.stages[0].id for row in rows_of(tmp_path, *names, stages=["pretrain"])]
    assert ids[0] == ids[3] and ids[1] == ids[2] and len(set(ids)) == 2


def test_runs_of_designs_are_labelled_with_their_names_and_with_the_ladders(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "M9-norm", "F:positions+feedforward+norm", stages=["pretrain"])
    for row in rows:
        row.write(Layout(tmp_path), SYNTHETIC, SOURCE, EXECUTION)
    labels = {row.variant.name: read_run_file(row.planned[0].folder).labels for row in rows}
    assert labels["M9-norm"]["variants"] == ["M9-norm"] and labels["M9-norm"]["parent"] == "M0"
    assert "model.norm" not in labels["M9-norm"]["delta"] and "model.positions" in labels["M9-norm"]["delta"]
    assert labels["F:positions+feedforward+norm"]["variants"] == ["M1", "F:positions+feedforward+norm"]


def test_a_dry_run_says_what_a_design_needs_and_which_claims_it_supports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--runs", str(tmp_path), "--stages", "pretrain", "--seed", "0", "1"]
    factors = ["positions", "feedforward", "norm"]
    assert run.main(["--design", "factorial", "--factors", *factors, "--dry-run", *common]) == 0
    words = " ".join(capsys.readouterr().out.split())
    assert "8 variants, 2 seed(s) need 16 pre-training stage(s) (16 missing)" in words
    assert "F:positions+feedforward+norm = M1" in words and "It supports main effects" in words
    assert run.main(["--design", "leave-one-out", "--list", "--json", *common]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)[0]["name"] == "M9" and "left out: M9-batch: scale smoke" in printed.err


@pytest.mark.parametrize("kind", ["ladder", "leave-one-out", "add-one"])
def test_designs_without_factors_take_all_that_they_can(kind: designs.DesignKind) -> None:
    names = [variant.name for variant in design_of(kind).variants]
    assert (
        names[:2]
        == {"ladder": ["M0", "M1"], "leave-one-out": ["M9", "M9-positions"], "add-one": ["M0", "M0+positions"]}[kind]
    )
    assert len(names) == {"ladder": len(ladders.ladder()), "leave-one-out": 12, "add-one": 13}[kind]
