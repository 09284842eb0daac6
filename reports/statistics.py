"""How two variants are compared: a paired t test over seeds, adjusted for the number of steps by Holm's method.

`judge` takes the differences of one measure and gives each its adjusted p and one word. See
docs/statistics.md for what the words mean and why these methods were chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import special

ALPHA = 0.05
"""Largest adjusted p of a claim; intervals have the confidence 1 − ALPHA."""
LEAST_SEEDS_OF_INTERVAL = 3
LEAST_SEEDS_OF_WORD = 5
SPREAD_RATIO = 3.0
"""A variant's standard deviation that is this many times its parent's gives no word, if an F test confirms it."""
SPREAD_ALPHA = 0.01

BETTER, WORSE = "better", "worse"
NO_CLEAR_DIFFERENCE = "no clear difference"
TOO_FEW_SEEDS = "too few seeds"
NOT_TRAINED = "not trained"
UNEQUAL_SPREAD = "unequal spread"


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the 95 % t interval of the mean of independent values; None for fewer than three."""
    n = len(values)
    if n < LEAST_SEEDS_OF_INTERVAL:
        return None
    half = float(special.stdtrit(n - 1, 1 - ALPHA / 2) * np.std(values, ddof=1) / n**0.5)
    return float(np.mean(values)) - half, float(np.mean(values)) + half


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted by Holm's method, in the order given: the k-th smallest of m times m − k + 1."""
    order = np.argsort(p_values, kind="stable")
    factors = np.arange(len(p_values), 0, -1)
    stepped = np.maximum.accumulate(np.asarray(p_values, dtype=float)[order] * factors)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(stepped, 1)
    return adjusted.tolist()


@dataclass(frozen=True)
class Difference:
    """A variant and its parent in one measure.

    Args:
        ours: The variant's value of each seed, in the measure's unit.
        theirs: The parent's value of each seed.
        margin: Differences between −margin and +margin do not matter.
        higher_is_better: False for losses.
        trained: False if the loss of one of the two is not below that of token frequencies.
    """

    ours: Mapping[int, float]
    theirs: Mapping[int, float]
    margin: float
    higher_is_better: bool
    trained: bool = True

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """The variant's value less the parent's, for each seed that both have."""
        return {seed: self.ours[seed] - self.theirs[seed] for seed in sorted(self.ours.keys() & self.theirs.keys())}

    @property
    def n(self) -> int:
        """Number of paired seeds."""
        return len(self.by_seed)

    @cached_property
    def mean(self) -> float:
        """Mean difference; nan without paired seeds."""
        return float(np.mean([*self.by_seed.values()])) if self.by_seed else float("nan")

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % t interval of the mean difference; None below three seeds."""
        return t_interval([*self.by_seed.values()])

    @cached_property
    def _error(self) -> float:
        """Standard error of the mean difference; nan below two seeds."""
        return float(np.std([*self.by_seed.values()], ddof=1) / self.n**0.5) if self.n > 1 else float("nan")

    @property
    def is_tested(self) -> bool:
        """Whether there are enough seeds for a test, and any spread to test against."""
        return self.n >= LEAST_SEEDS_OF_WORD and self._error > 0

    @property
    def p(self) -> float:
        """Two-sided p of the paired t test. Only for differences that are tested."""
        return float(2 * special.stdtr(self.n - 1, -abs(self.mean) / self._error))

    @property
    def p_equivalence(self) -> float:
        """P of two one-sided t tests against ±margin (TOST). Only for differences that are tested."""
        return float(special.stdtr(self.n - 1, (abs(self.mean) - self.margin) / self._error))

    @property
    def spreads_differ(self) -> bool:
        """Whether the variant's values spread more than three times as much as its parent's, by an F test too."""
        ours, theirs = (np.var([arm[seed] for seed in self.by_seed], ddof=1) for arm in (self.ours, self.theirs))
        if ours <= SPREAD_RATIO**2 * theirs:
            return False
        return theirs == 0 or bool(special.fdtrc(self.n - 1, self.n - 1, ours / theirs) < SPREAD_ALPHA)


@dataclass(frozen=True)
class Judged:
    """The adjusted p values of a difference (None if it is not tested), and its word."""

    p: float | None
    p_equivalence: float | None
    word: str


def judge(differences: Sequence[Difference]) -> list[Judged]:
    """Judge the differences of one measure, in the order given. All that are tested count as one family for Holm, also
    those that get no claim for another reason."""
    tested = [number for number, difference in enumerate(differences) if difference.is_tested]
    p_values = dict(zip(tested, holm([differences[number].p for number in tested]), strict=True))
    p_equivalences = dict(zip(tested, holm([differences[number].p_equivalence for number in tested]), strict=True))
    judged = []
    for number, difference in enumerate(differences):
        p, p_equivalence = p_values.get(number), p_equivalences.get(number)
        judged.append(Judged(p, p_equivalence, _word(difference, p, p_equivalence)))
    return judged


def _word(difference: Difference, p: float | None, p_equivalence: float | None) -> str:
    if not difference.trained:
        return NOT_TRAINED
    if difference.n < LEAST_SEEDS_OF_WORD:
        return TOO_FEW_SEEDS
    if difference.spreads_differ:
        return UNEQUAL_SPREAD
    # Without adjusted values, every seed has the same difference: there is no spread to test against.
    if p is None or p_equivalence is None or min(p, p_equivalence) >= ALPHA:
        return NO_CLEAR_DIFFERENCE
    if p_equivalence < ALPHA:
        return f"equivalent within {difference.margin:g}"
    return BETTER if (difference.mean > 0) == difference.higher_is_better else WORSE
