"""Selection of the best point of a grid, and its nested score. Torch-free.

The best score of a grid is biased upward, because it is the maximum of many noisy scores on the same examples. The
nested score corrects for this: choose on one half of the validation examples, report on the other, both ways round.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from neobert.glue.encoding import Array, permutation
from neobert.glue.tasks import Task
from neobert.recipe import FineTuning, Point

Labels = Mapping[str, Array]
"""True labels of the examples, by validation split."""

HALVES_SEED = 0
HALVES = (
    f"first half of the order of Philox4x64's raw output with key ({HALVES_SEED}, number of examples), and the rest"
)
NESTED_RULE = "chosen on one half of the validation examples, reported on the other; mean of both ways round"


def best_point(points: Iterable[Point], values: Iterable[tuple[Point, float | None]]) -> Point | None:
    """Return the point with the most seeds, then the highest mean, then first in the grid; None if none has a value.

    `values` has one entry per trial: its point and its `decisive_score`, None if undefined. A point that lacks a seed
    never beats one with all seeds, so that luck with few seeds does not win.
    """
    by_point: dict[Point, list[float]] = {point: [] for point in points}
    for point, value in values:
        if value is not None and point in by_point:
            by_point[point].append(value)
    scored = [point for point in by_point if by_point[point]]
    return max(scored, key=lambda point: (len(by_point[point]), statistics.fmean(by_point[point])), default=None)


@dataclass(frozen=True)
class Best:
    """The best point of a grid, its scores by seed, and the nested score (None if a half has no score or there were no
    labels)."""

    point: Point
    by_seed: Mapping[int, float]
    nested: float | None

    @property
    def mean(self) -> float:
        """The mean over seeds, the number reported in the paper (with one seed)."""
        return statistics.fmean(self.by_seed.values())

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None


@dataclass(frozen=True)
class TrialScore:
    """Result of one trial: the value used for selection and the reported score; None if undefined."""

    point: Point
    seed: int
    decisive: float | None
    score: float | None


def halves(examples: int) -> tuple[Array, Array]:
    """Return two disjoint halves of the example indices; they only depend on the number of examples."""
    order = permutation(examples, (HALVES_SEED, examples))
    return np.sort(order[: examples // 2]), np.sort(order[examples // 2 :])


def nested_score(points: Iterable[Point], first: Sequence[TrialScore], second: Sequence[TrialScore]) -> float | None:
    """Return the mean of two scores: on the second half at the point chosen on the first, and vice versa."""
    grid, reported = list(points), []
    for chosen_on, reported_on in ((first, second), (second, first)):
        point = best_point(grid, ((each.point, each.decisive) for each in chosen_on))
        scores = [each.score for each in reported_on if each.point == point and each.score is not None]
        if not scores:
            return None
        reported.append(statistics.fmean(scores))
    return statistics.fmean(reported)


def score_on(
    task: Task, protocol: FineTuning, predictions: Labels, labels: Labels, rows: Mapping[str, Array]
) -> tuple[float | None, float | None]:
    """Return the decisive value and the score on some `rows` of each validation split; None if undefined."""
    from neobert.glue.metrics import evaluate  # imports scikit-learn, which reports do not need

    chosen = {split: predictions[split][rows[split]] for split in rows}
    scores = evaluate(task, chosen, {split: labels[split][rows[split]] for split in rows})
    return scores.value(task.decisive_metric(protocol)), scores.score
