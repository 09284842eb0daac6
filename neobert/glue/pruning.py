"""Asynchronous successive halving on intermediate validation scores (Li et al. 2020, arXiv:1810.05934). Torch-free.

Rungs are shares of a trial's course, so that batch sizes compare at equal epochs. A trial that reaches a rung goes on
if its best score so far is among the highest of all that reached that rung before; it never waits for others. Trials
that are as good as the last one that goes on, go on too: equal scores say nothing yet.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from neobert.recipe import Pruning


@dataclass(frozen=True)
class Curve:
    """Evaluations of a trial: (share of the course, score). `has_ended` where patience or the course's end came."""

    evaluations: Sequence[tuple[float, float | None]]
    has_ended: bool

    def best_until(self, rung: float) -> float | None:
        """The best score up to a rung; None where the trial has not come so far. Undefined scores are the lowest."""
        reached = self.has_ended or any(share >= rung for share, _ in self.evaluations)
        if not reached:
            return None
        scores = [score for share, score in self.evaluations[: _count_until(self.evaluations, rung)]]
        return max((score for score in scores if score is not None), default=-math.inf)


def _count_until(evaluations: Sequence[tuple[float, float | None]], rung: float) -> int:
    """How many evaluations come until the first at or behind a rung, which counts."""
    for number, (share, _) in enumerate(evaluations, start=1):
        if share >= rung:
            return number
    return len(evaluations)


def rung_reached(pruning: Pruning, before: float, now: float) -> float | None:
    """The highest rung that lies behind share `before` of the course and not behind `now`."""
    return max((rung for rung in pruning.rungs if before < rung <= now), default=None)


def is_beaten(pruning: Pruning, rung: float, own: Curve, others: Iterable[Curve]) -> bool:
    """Whether a trial that stands at a rung ends there."""
    score = own.best_until(rung)
    assert score is not None
    at_rung = [other for curve in others if (other := curve.best_until(rung)) is not None]
    better = sum(other > score for other in at_rung)
    return better >= max(1, (len(at_rung) + 1) // pruning.reduction)
