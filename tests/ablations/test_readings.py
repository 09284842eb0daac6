"""Variants with another value in their names have that value at every scale."""

import json
from pathlib import Path

import pytest

from ablations import ladder, run
from ablations.designs import chosen_variants, named
from ablations.ladders import SCALES
from ablations.readings import FIELDS, at_scale, readings_in
from ablations.scales import Scale, scaled_variant
from neobert.errors import EXIT_DONE
from tests.ablations.plans import rows_of


@pytest.mark.parametrize("scale", SCALES)
def test_the_value_of_a_name_is_used_at_every_scale(scale: Scale) -> None:
    (variant,) = chosen_variants(["M4@beta2-0.9"])
    recipe, parent = scaled_variant(at_scale(variant, scale), scale, "published")
    assert recipe.pretraining.optimization.beta2 == 0.9 and parent is not None
    same = recipe.pretraining.optimization.model_copy(update={"beta2": parent.pretraining.optimization.beta2})
    assert same == parent.pretraining.optimization


def test_the_unscaled_reading_of_a_variant_is_the_variant_where_nothing_was_scaled(tmp_path: Path) -> None:
    unscaled = named("M4@beta2-0.95")
    assert unscaled is not None and unscaled.delta() == {}
    assert at_scale(unscaled, "smoke") is ladder.M4 and at_scale(unscaled, "study") is unscaled
    rows = rows_of(tmp_path, "M4", "M4@beta2-0.95", scale="study", stages=["pretrain"])
    assert [row.recipe.pretraining.optimization.beta2 for row in rows] == [0.998845, 0.95]
    assert [row.name for row in rows_of(tmp_path, "M4", "M4@beta2-0.95", scale="smoke")] == ["M4"]


def test_readings_have_shares_rates_and_other_readings() -> None:
    (variant,) = chosen_variants(["M2@steps0.25@beta2-0.95@weight_decay-0.1@rate4e-3"])
    recipe, _ = scaled_variant(variant, "study", "trained")
    optimization = recipe.pretraining.optimization
    assert (optimization.beta2, optimization.weight_decay, optimization.peak_learning_rate) == (0.95, 0.1, 4e-3)
    assert recipe.pretraining.stages[0].steps == 1500
    assert {"beta2", "beta1", "weight_decay", "epsilon", "peak_learning_rate"} <= set(FIELDS)


def test_of_the_names_in_records_readings_are_found_and_others_skipped() -> None:
    names = ["M4", "M4@beta2-0.95", "M9@contrastive-code", "M4@rate4e-3", "M4@beta9-1", "M4@steps0.5"]
    assert list(readings_in(names)) == ["M4@beta2-0.95"]


def test_a_plan_names_what_is_not_represented_and_the_checks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--variant", "M2", "M4", "--scale", "study", "--runs", str(tmp_path), "--dry-run", "--cluster", "here"]
    assert run.main(command) == EXIT_DONE
    said = " ".join(capsys.readouterr().out.split())
    assert "not represented at this scale (equal to the parent's): M4: optimization.beta2" in said
    assert "regime: 4 of 4 checks hold" in said and "peak rate not swept: M2, M4" in said
    assert run.main([*command, "--json"]) == EXIT_DONE
    first, second = json.loads(capsys.readouterr().out)
    assert (first["unrepresented"], second["unrepresented"]) == ([], ["optimization.beta2"])
    assert [check["name"] for check in second["regime"]] == [
        "gradients per vocabulary row",
        "half-life of beta2",
        "rate inside the swept grid",
    ]
    assert run.main(["--list", "--variant", "M4", "--scale", "study", "--runs", str(tmp_path)]) == EXIT_DONE
    assert "not represented" in " ".join(capsys.readouterr().out.split())
