"""Selection: highest mean over seeds, fixed halves, and a nested score without the bias of the best."""

import statistics
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from status_worlds import record_trial, study_of
from tiny_runs import tiny_run

from neobert.glue.selection import TrialScore, best_of_grid, best_point, halves, nested_score
from neobert.recipe import Point
from neobert.runs.layout import Layout


def point(number: int) -> Point:
    return Point(batch_size=number + 1, learning_rate=1e-5, weight_decay=0.01)


scores_of_points = st.lists(
    st.dictionaries(st.integers(0, 2), st.floats(-1, 1, allow_nan=False), max_size=3), min_size=1, max_size=8
)


@given(scores_of_points)
def test_the_best_point_has_most_seeds_and_then_the_highest_mean_and_then_comes_first(
    drawn: list[dict[int, float]],
) -> None:
    points = [point(number) for number in range(len(drawn))]
    values = [(each, score) for each, by_seed in zip(points, drawn, strict=True) for score in by_seed.values()]
    best = best_point(points, [*values, (points[0], None), (point(99), 2.0)])
    if not any(drawn):
        assert best is None
        return
    assert best is not None
    most = max(map(len, drawn))
    means = [statistics.fmean(by_seed.values()) if len(by_seed) == most else -2 for by_seed in drawn]
    assert best == point(means.index(max(means)))


@given(st.integers(0, 300))
def test_halves_are_disjoint_complete_equal_and_always_the_same(count: int) -> None:
    first, second = halves(count)
    assert sorted([*first, *second]) == list(range(count))
    assert 0 <= len(second) - len(first) <= 1
    again = halves(count)
    assert (again[0] == first).all() and (again[1] == second).all()


def test_the_nested_score_of_equal_points_is_unbiased_where_the_best_of_the_grid_is_not() -> None:
    """Sixty points of coin flips: the best looks better than chance, the nested score does not."""
    rng = np.random.default_rng(0)
    best, nested = [], []
    for _ in range(200):
        first, second = (rng.normal(0.5, 0.03, 60) for _ in range(2))
        sides = [[TrialScore(point(n), 0, score, score) for n, score in enumerate(side)] for side in (first, second)]
        nested.append(nested_score(map(point, range(60)), *sides))
        best.append(max((first + second) / 2))
    assert statistics.fmean(best) > 0.53
    assert abs(statistics.fmean(nested) - 0.5) < 4 * 0.03 / np.sqrt(2 * 200)


def test_the_nested_score_of_stored_predictions_is_the_one_made_by_hand(tmp_path: Path) -> None:
    """Of eight reviews the first point gets all of the first half right and one of the second, the other point two
    and two: 1 of 4 on the second half where the first chose, and 2 of 4 on the first where the second did."""
    layout, run = Layout(tmp_path), tiny_run()
    study = study_of(run, "sst2", points=2)
    labels = {"validation": np.ones(8, np.int64)}
    for number, right in enumerate(((4, 1), (2, 2))):
        logits = np.tile([1.0, 0.0], (8, 1))
        for half, count in zip(halves(8), right, strict=True):
            logits[half[:count]] = [0.0, 1.0]
        record_trial(layout, study, number, score=sum(right) / 8)
        np.savez(study.trials(layout)[number].predictions, validation=logits)
    best = best_of_grid(layout, [study], labels)
    assert best is not None and (best.point, best.mean) == (study.points[0], 5 / 8)
    assert best.nested == (1 / 4 + 2 / 4) / 2
