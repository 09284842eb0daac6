"""Regime checks: numbers against the paper's and hand computation, bounds, and rates of finished sweeps."""

import math
from pathlib import Path

import pytest

from ablations import ladder
from ablations.designs import chosen_variants
from ablations.rates import RateCurve
from ablations.readings import at_scale
from ablations.regime import (
    check_half_life,
    check_rate,
    check_window,
    checks_of,
    describe_checks,
    pilot_records,
    sweep_of,
)
from ablations.scales import scaled, scaled_variant
from neobert.identity import plain
from neobert.recipe import Pretraining
from neobert.runs.layout import Layout
from neobert.runs.records import publish_sealed
from tests.ablations.plans import rows_of


def as_written(name: str) -> Pretraining:
    """A variant at the scale study, with the beta2 that its name gives."""
    (variant,) = chosen_variants([name])
    return scaled_variant(at_scale(variant, "study"), "study", "trained")[0].pretraining


def test_the_paper_averages_thirteen_gradients_a_row_and_as_written_a_small_model_a_third_of_one() -> None:
    paper, study = (scaled(ladder.M4.recipe, each, "trained").pretraining for each in ("paper", "study"))
    assert check_window(paper).number == pytest.approx(20 * 0.15 * 131_072 / 30_522) == pytest.approx(12.9, abs=0.05)
    found = check_window(as_written("M4@beta2-0.95"))
    assert found.number == pytest.approx(20 * 0.15 * 1024 / 8192) and not found.holds and found.fails
    assert "0.375 gradients per vocabulary row" in found.words and "≥ 4" in found.words
    assert check_window(paper).holds and check_window(study).holds


def test_a_half_life_is_a_share_of_all_steps() -> None:
    recipe = as_written("M2@beta2-0.999")
    found = check_half_life(recipe)
    assert found.number == pytest.approx(math.log(2) / -math.log(0.999) / 6000) and not found.holds
    assert check_half_life(scaled(ladder.M2.recipe, "study", "trained").pretraining).holds, "the cap is the bound"
    none = recipe.model_copy(update={"optimization": recipe.optimization.model_copy(update={"beta2": 0.0})})
    assert check_half_life(none).number == 0 and check_window(none).number == pytest.approx(0.15 * 1024 / 8192)


def curve(losses: dict[float, float]) -> RateCurve:
    return RateCurve({rate: {1000: loss} for rate, loss in losses.items()}, {})


def test_a_rate_is_inside_where_the_best_has_neighbours_and_so_has_the_arms_own() -> None:
    swept = curve({5e-4: 3.2, 1e-3: 3.0, 2e-3: 2.9, 4e-3: 3.1})
    assert check_rate(2e-3, swept).number == 1 and check_rate(2e-3, swept).holds
    assert check_rate(4e-3, swept).number == 0 and check_rate(4e-3, swept).fails, "the arm is at the edge"
    assert check_rate(2e-3, curve({1e-3: 3.0, 2e-3: 2.9})).fails, "the best is at the edge"
    unknown = check_rate(2e-3, RateCurve({}, {}))
    assert unknown.number is None and not unknown.holds and not unknown.fails and "not swept" in unknown.words


def test_sweeps_are_read_from_records_of_pilot_seeds_that_differ_in_rate_and_seed_alone(tmp_path: Path) -> None:
    names = ("M4@rate1e-3", "M4", "M4@rate4e-3", "M2")
    for number, row in enumerate(rows_of(tmp_path, *names, seeds=(1000, 0), stages=["pretrain"])):
        (run,) = row.stages
        record = {
            "schema": 3,
            "kind": "pretraining",
            "id": run.id,
            "seed": row.seed,
            "config": {"recipe": plain(run.recipe)},
        }
        record["scores"] = {"heldout_loss": {run.recipe.data.corpus: 3.0 + number / 100}}
        (tmp_path / run.folder).mkdir(parents=True)
        publish_sealed(tmp_path / run.folder / "done.json", record)
    pilots = pilot_records(Layout(tmp_path))
    assert len(pilots) == 4
    (row,) = rows_of(tmp_path, "M4", stages=["pretrain"])
    assert sorted(sweep_of(row.stages[0], pilots).means) == [1e-3, 2e-3, 4e-3]
    checks = checks_of(row.stages[0], pilots)
    assert checks[2].number is not None


def test_lines_say_each_failure_and_sum_up_the_rest() -> None:
    recipe = as_written("M4@beta2-0.95")
    own = [check_window(recipe), check_half_life(recipe), check_rate(2e-3, RateCurve({}, {}))]
    lines = describe_checks({"M4": own})
    assert lines[0].startswith("regime: 1 of 2 checks hold (after the runs: transition time")
    assert lines[1].startswith("  M4: 0.375 gradients") and lines[2] == "  peak rate not swept: M4" and len(lines) == 3
