"""Scores of forecasts and of simple ones: closed forms against integrals, and the committed forecast's figures."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from reports.analysis.pairing import Delta
from reports.forecasts.comparators import (
    FORECAST,
    LINE,
    PERSISTENCE,
    Normal,
    as_normal,
    mean_over_steps,
    persistence,
    score,
    straight_line,
)
from reports.forecasts.outcomes import Outcome, _outcome, describe_scores
from reports.forecasts.sealed import AtBudget, Forecast, Predicted

finite = st.floats(-3, 3)


def predicted(*means: float, **changes: Any) -> Predicted:
    """A difference in loss on web, with budgets of half of the steps, a quarter, an eighth …"""
    count = len(means)
    budgets = [
        AtBudget(
            budget=f"study@steps{2.0 ** (place - count):g}", octaves=place - count, seeds=2, mean=mean, deviation=0.1
        )
        for place, mean in enumerate(means)
    ]
    facts = {"variant": "M1", "base": "M0", "quantity": "loss", "corpus": "web", "tasks": ""}
    numbers = {"probability_higher": 0.9, "mean": 0.1, "low": -0.1, "high": 0.3}
    return Predicted(**{**facts, **numbers, "budgets": tuple(budgets), **changes})


def forecast(*predictions: Predicted) -> Forecast:
    return Forecast(
        id="f", scale="study", data="d", budgets=("study@steps0.25", "study@steps0.5"), seeds=6, left_out=(),
        predictions=predictions, records=("r",), present=(), commit=None, dirty=None,
    )  # fmt: skip


@given(finite, st.floats(0.01, 3), finite)
def test_the_crps_is_its_integral(mean: float, deviation: float, measured: float) -> None:
    def squared(x: float) -> float:
        return float((norm.cdf(x, mean, deviation) - (x >= measured)) ** 2)

    ends = min(mean, measured) - 9 * deviation, max(mean, measured) + 9 * deviation
    breaks = sorted({ends[0], mean, measured, ends[1]})
    integral = sum(quad(squared, low, high)[0] for low, high in pairwise(breaks))
    assert Normal(mean, deviation).crps(measured) == pytest.approx(integral, abs=1e-6)


def test_the_crps_of_a_sure_forecast_is_its_absolute_error() -> None:
    assert Normal(1.0, 1e-9).crps(1.3) == pytest.approx(0.3)


def test_a_score_is_that_of_the_normal_distribution() -> None:
    found = score(Normal(0.1, 0.2), -0.3)
    assert found.error == pytest.approx(0.4) and found.brier == pytest.approx(norm.cdf(0.5) ** 2)
    low, high = Normal(0.1, 0.2).interval
    assert (low, high) == pytest.approx(norm.interval(0.8, 0.1, 0.2))
    assert [score(Normal(0.1, 0.2), at).is_covered for at in (low - 1e-9, low + 1e-9, high - 1e-9, high + 1e-9)] == [
        False,
        True,
        True,
        False,
    ]


def test_persistence_is_the_largest_budget_with_the_noise_of_both_means() -> None:
    found = persistence(predicted(0.5, 0.3), variance=0.09, seeds=6)
    assert found.mean == 0.3 and found.deviation == pytest.approx(0.3 * math.sqrt(1 / 2 + 1 / 6))


@given(finite, finite)
def test_the_straight_line_goes_on_through_two_budgets(level: float, slope: float) -> None:
    found = straight_line(predicted(level - 2 * slope, level - slope), variance=0.09, seeds=6)
    assert found.mean == pytest.approx(level, abs=1e-9)
    assert found.deviation == pytest.approx(0.3 * math.sqrt(4 / 2 + 1 / 2 + 1 / 6))


def test_through_three_budgets_it_is_the_least_squares_line() -> None:
    means = (0.9, 0.2, 0.4)
    found = straight_line(predicted(*means), variance=0.09, seeds=6)
    assert found.mean == pytest.approx(np.polyval(np.polyfit([-3, -2, -1], means, 1), 0))


def test_a_forecast_is_taken_as_normal_by_its_mean_and_interval() -> None:
    expected = as_normal(predicted(0.5, 0.3))
    assert expected is not None and expected.mean == 0.1 and expected.interval == pytest.approx((-0.1, 0.3))
    assert as_normal(predicted(0.5, 0.3, mean=None, low=None, high=None)) is None


@pytest.mark.parametrize(("measured", "covered"), [(-0.2, False), (-0.05, True), (0.25, True), (0.4, False)])
def test_an_interval_holds_what_lies_between_both_of_its_ends(measured: float, covered: bool) -> None:
    own = predicted(0.5, 0.3)
    outcome = Outcome(forecast(own), own, measured, "", (), variance=0.01)
    assert outcome.is_covered is covered and outcome.scores[FORECAST].is_covered is covered


def test_the_first_seeds_are_scored_and_later_ones_change_nothing() -> None:
    own = predicted(0.5, 0.3)
    values = {seed: 0.1 * seed for seed in range(8)}
    delta = Delta("M1", "M0", "loss", "web", differences=values, ids=("new",))
    found = _outcome(forecast(own), own, {delta.place: delta}, ())
    assert found.measured == pytest.approx(0.25), "the mean of seeds 0 to 5"


def test_a_step_counts_once() -> None:
    assert mean_over_steps([(("M1", "M0"), 1.0), (("M1", "M0"), 3.0), (("M2", "M1"), 5.0)]) == [2.0, 5.0]


def test_signs_and_unknown_noise_have_no_simple_forecast() -> None:
    signs = predicted(0.5, 0.3, mean=None, low=None, high=None)
    assert not Outcome(forecast(signs), signs, 0.1, "", (), variance=0.01).scores
    own = predicted(0.5, 0.3)
    assert list(Outcome(forecast(own), own, 0.1, "", ()).scores) == [FORECAST]
    assert list(Outcome(forecast(own), own, 0.1, "", (), variance=0.01).scores) == [FORECAST, PERSISTENCE, LINE]


def test_the_sentence_and_the_table_count_intervals_and_average_scores() -> None:
    own = predicted(0.5, 0.3)
    outcomes = [Outcome(forecast(own), own, measured, "", (), variance=0.01) for measured in (0.05, 0.25, 0.4)]
    brier, naive = (
        np.mean([each.brier or 0 for each in outcomes]),
        np.mean([each.naive_brier or 0 for each in outcomes]),
    )
    said = describe_scores([*outcomes, Outcome(forecast(own), own, None, "not measured", ())])
    assert said.startswith(f"2 of 3 intervals of 80 % hold what was measured; Brier score of the sign {brier:.3f}")
    assert f"of the smallest budget's sign {naive:.3f} (lower is better; 3 differences of 1 step" in said
    assert describe_scores([]) == "nothing is measured here yet that it could be scored on."
