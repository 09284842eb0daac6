"""Grids of rates end around the best rate, optima have errors, and the runs of a sweep are those of variants."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ablations import ladder
from ablations.ladders import SCALES
from ablations.loading import papers
from ablations.names import at_rate, at_scale
from ablations.rates import PILOT_SEEDS, Optimum, RateCurve, best_variant, grid_rate, shared_rate
from ablations.scales import Scale
from ablations.scaling import scaled_variant
from neobert.kinds.rates import RateSearch, RateSweep
from neobert.rates import rate_text
from neobert.search.space import Range
from tests.ablations.plans import SYNTHETIC, rows_of

# The grid


@settings(max_examples=20)
@given(factor=st.floats(1.2, 10), step=st.integers(-8, 8), scale=st.sampled_from(SCALES))
@example(factor=20, step=-1, scale="study")
@example(factor=6, step=1, scale="paper")
@example(factor=9.625, step=-1, scale="proxy")
def test_every_rate_of_a_grid_is_one_that_a_variant_can_have(factor: float, step: int, scale: Scale) -> None:
    rate = grid_rate(papers(), ladder.M4, scale, factor, step)
    assert math.isclose(rate, shared_rate(papers(), ladder.M4, scale) * factor**step, rel_tol=0.1)
    variant = at_scale(papers(), at_rate(ladder.M4, rate), scale)
    recipe, _ = scaled_variant(papers(), variant, scale, "published")
    assert recipe.pretraining.optimization.peak_learning_rate == rate


@pytest.mark.parametrize(
    ("exact", "name"), [(2.1e-3, "M4"), (1.83e-3, "M4"), (2.84e-3, "M4@rate2.8e-3"), (5.97e-4, "M4@rate6e-4")]
)
def test_the_best_variant_is_the_shared_one_within_a_tenth_of_its_rate(exact: float, name: str) -> None:
    assert best_variant(papers(), ladder.M4, Optimum(exact, 3.0), "study").name == name


# The optimum


def curve_of(*by_seed: dict[float, float]) -> RateCurve:
    """Losses by rate, one mapping a pilot seed."""
    rates = {rate for losses in by_seed for rate in losses}
    return RateCurve(
        {
            rate: {PILOT_SEEDS[index]: losses[rate] for index, losses in enumerate(by_seed) if rate in losses}
            for rate in rates
        },
        {},
    )


@given(
    place=st.floats(-0.49, 0.49),
    square=st.floats(0.01, 5),
    level=st.floats(1, 9),
    factor=st.sampled_from([1.5, 2.0, 4.0]),
)
@example(place=0.0, square=0.1, level=3.0, factor=2.0)
def test_the_vertex_is_that_of_numpys_parabola(place: float, square: float, level: float, factor: float) -> None:
    rates = [1e-3 / factor, 1e-3, 1e-3 * factor]
    losses = {rate: level + square * (math.log(rate / 1e-3, factor) - place) ** 2 for rate in rates}
    seeds = [{rate: loss + shift for rate, loss in losses.items()} for shift in (0.4, -0.4)]
    found = curve_of(*({**each, 1e-3 * factor**2: 99.0} for each in seeds)).optimum()
    assert found is not None and found.fitted == tuple(rates) and not found.reason
    second, first, constant = np.polyfit(np.log(rates), list(losses.values()), 2)
    assert math.isclose(found.exact, math.exp(-first / 2 / second), rel_tol=1e-5)
    assert math.isclose(found.loss, constant - first**2 / 4 / second, rel_tol=1e-6)
    assert math.isclose(found.exact, 1e-3 * factor**place, rel_tol=1e-6) and math.isclose(found.loss, level)
    assert all(math.isclose(found.fitted_loss(rate), losses[rate], rel_tol=1e-9) for rate in rates)
    assert found.rate == pytest.approx(found.exact, rel=0.05) and rate_text(found.rate)


def test_what_failed_is_a_point_without_a_loss() -> None:
    losses = {rate: {1000: loss} for rate, loss in ((1e-3, 3.2), (2e-3, 3.0))}
    diverged = RateCurve(losses, {4e-3: {1000: "the loss is nan"}})
    found = diverged.optimum()
    assert found is not None and found.rate == 2e-3 and found.reason == "the next rate, 4e-3, failed"
    assert not found.fitted
    assert RateCurve({**losses, 4e-3: {1000: math.nan}}, {}).optimum() == found
    assert RateCurve(losses, {}).optimum() is None, "the best rate lies at the edge"
    assert RateCurve({}, {4e-3: {1000: "the loss is nan"}}).optimum() is None


def test_no_parabola_skips_over_a_neighbour_that_failed() -> None:
    """The vertex would lie almost at the rate that failed."""
    by_rate = {5e-4: 3.05, 2e-3: 3.01, 4e-3: 3.40}
    losses = {rate: {1000: loss, 1001: loss} for rate, loss in by_rate.items()} | {1e-3: {1000: 3.0}}
    found = RateCurve(losses, {1e-3: {1001: "the loss is nan"}}).optimum()
    assert found is not None and (found.rate, found.fitted) == (2e-3, ())
    assert found.reason == "the next rate, 1e-3, failed"


def test_a_parabola_goes_through_no_jump_of_the_loss() -> None:
    """A run that diverged to a finite loss says nothing about the curvature where it trains."""
    losses = {5e-4: 3.5, 1e-3: 3.2, 2e-3: 3.0, 4e-3: 7.0}
    found = curve_of(losses).optimum()
    assert found is not None and found.rate == 2e-3 and found.reason == "the loss jumps at the next rate, 4e-3"
    found = curve_of({**losses, 4e-3: 3.1}).optimum()
    assert found is not None and found.fitted == (1e-3, 2e-3, 4e-3) and 2e-3 < found.exact < 3e-3


def test_one_seed_that_failed_takes_the_rate_away_and_an_unfinished_seed_changes_nothing() -> None:
    whole = {rate: {1000: loss, 1001: loss + 0.1} for rate, loss in ((1e-3, 3.2), (2e-3, 3.0), (4e-3, 2.9))}
    curve = RateCurve({**whole, 8e-3: {1000: 3.3}}, {8e-3: {1001: "diverged"}})
    assert curve.seeds == (1000, 1001) and 8e-3 not in curve.means and curve.has_failed(8e-3)
    found = curve.optimum()
    assert found is not None and found.rate == 4e-3 and "8e-3, failed" in found.reason
    begun = {rate: {**by_seed, 1002: 1.0} if rate < 2e-3 else by_seed for rate, by_seed in whole.items()}
    assert RateCurve(begun, {}).means == RateCurve(whole, {}).means


# The runs of a sweep

RATES = st.integers(10, 99).flatmap(
    lambda digits: st.integers(-4, -2).map(lambda power: float(f"{digits}e{power - 1}"))
)


SPACE = {
    "peak_learning_rate": Range(low=1e-5, high=1, log=True),
    "weight_decay": Range(low=0, high=1, log=False),
    "beta2": Range(low=0.5, high=1, log=False),
}


@pytest.mark.parametrize("scale", SCALES)
@settings(max_examples=5)
@given(
    name=st.sampled_from([*papers().steps, "M4@steps0.25"]),
    rate=RATES,
    decay=st.sampled_from([None, 0.0123, 0.2]),
    beta2=st.sampled_from([None, 0.91]),
    seed=st.integers(1000, 1099),
)
def test_a_run_of_a_sweep_has_the_id_and_labels_of_the_variant_of_its_name(
    scale: Scale, name: str, rate: float, decay: float | None, beta2: float | None, seed: int
) -> None:
    (own,) = rows_of(Path("none"), name, seeds=[1000], scale=scale, stages=["pretraining"])
    sweep = RateSweep(stages=own.stages, seeds=(1000, seed), by=RateSearch(sampler="tpe", trials=3, space=SPACE))
    sweep = RateSweep.read(sweep.model_dump(mode="json"))  # as workers have it
    changed = {"peak_learning_rate": rate, "weight_decay": decay, "beta2": beta2}
    point = {key: own_value if changed[key] is None else changed[key] for key, own_value in sweep.own.items()}
    named = sweep.name_at(own.name, point)
    (row,) = rows_of(Path("none"), named, seeds=[seed], scale=scale, stages=["pretraining"])
    assert [run.id for run in sweep.runs(point, seed)] == [run.id for run in row.stages]
    labels = own.labels(own.planned[-1], SYNTHETIC) | {"base": own.name}
    assert sweep.labels_at(labels, point) == row.labels(row.planned[-1], SYNTHETIC)
