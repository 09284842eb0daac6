"""What the finished seeds of an arm show of its regime: when they leave the plateau, and how much they spread.

If the seeds of an arm leave the plateau of token frequencies at very different times, their mean is of two kinds of
runs, and its interval covers too little.
"""

import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from ablations.regime import Check

LATEST_SHARE = 0.2
"""Largest share of the run, at the 95th percentile of seeds, after which an arm may leave the plateau."""

MOST_DEVIATIONS = 3.0
SPREAD_LEVEL = 0.01
"""An arm spreads more than its parent if its standard deviation is this many times as large, and an F test of both
variances has a smaller p than this."""

LEAST_SHARED_VARIANCE = 0.5
LEAST_SEEDS = 5
"""The time of the transition explains the final loss of seeds if r² is larger than this, over as many seeds or more,
and if the part of the standard deviation that it explains exceeds the margin of the loss."""


@dataclass(frozen=True)
class ArmSeeds:
    """The seeds of an arm: final held-out loss in nats, and step of the transition as a share of the run. Seeds that
    never left the plateau have a share of 1."""

    name: str
    losses: Mapping[int, float]
    shares: Mapping[int, float]

    def first(self, seeds: int, declared: Collection[int] | None) -> "ArmSeeds":
        """Return the first seeds of the arm alone, at most so many, of the declared ones or of all if it is None."""
        kept = sorted(seed for seed in self.losses if declared is None or seed in declared)[:seeds]
        losses, shares = ({each: own[each] for each in kept if each in own} for own in (self.losses, self.shares))
        return ArmSeeds(self.name, losses, shares)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the losses; None for fewer than three seeds."""
        return statistics.stdev(self.losses.values()) if len(self.losses) > 2 else None

    @property
    def shared_variance(self) -> float | None:
        """r² of transition and loss; None for fewer than `LEAST_SEEDS` seeds with both, or if one does not vary."""
        seeds = sorted(self.losses.keys() & self.shares.keys())
        if len(seeds) < LEAST_SEEDS:
            return None
        losses, shares = ([values[seed] for seed in seeds] for values in (self.losses, self.shares))
        if len(set(losses)) == 1 or len(set(shares)) == 1:
            return None
        return statistics.correlation(shares, losses) ** 2

    def is_of_two_kinds(self, margin: float) -> bool:
        """Whether the time of the transition decides the final loss of a seed, by more than `margin` nats."""
        shared, deviation = self.shared_variance, self.deviation
        if shared is None or deviation is None:
            return False
        return shared > LEAST_SHARED_VARIANCE and math.sqrt(shared) * deviation > margin


def diagnose(arm: ArmSeeds, margin: float) -> str:
    """Return why differences to an arm get no verdict, in words that begin with "not measurable", if its seeds are of
    two kinds; empty if they are not. `margin` is the margin of equivalence of the loss in nats."""
    if not arm.is_of_two_kinds(margin):
        return ""
    return (
        f"not measurable: the seeds of {arm.name} differ by when they leave the plateau "
        f"(r² = {arm.shared_variance:.2f} with their loss, sd {arm.deviation:.3f})"
    )


def check_transition(arm: ArmSeeds) -> Check:
    """Check that an arm leaves the plateau early in its run: share of the run at the 95th percentile of its seeds."""
    name, bound = "transition time as a share of the run", LATEST_SHARE
    if not arm.shares:
        return Check(name, None, bound, holds=False, words="the time of its transition is not known")
    import numpy as np

    share = float(np.percentile(list(arm.shares.values()), 95))
    words = f"it leaves the plateau after {share:.0%} of the run (95th percentile of seeds; bound: ≤ {bound:.0%})"
    return Check(name, share, bound, share <= bound, words)


def check_spread(arm: ArmSeeds, parent: ArmSeeds) -> Check:
    """Check that an arm's seeds do not spread much more than its parent's, in the final held-out loss. It holds if the
    ratio is within the bound, or if as many seeds may have it by chance (F test)."""
    name, bound = "sd of child over parent", MOST_DEVIATIONS
    ours, theirs = arm.deviation, parent.deviation
    if ours is None or not theirs:
        words = f"the spread of its seeds over that of {parent.name} is not known"
        return Check(name, None, bound, holds=False, words=words)
    from scipy.special import fdtrc

    ratio = ours / theirs
    p = float(fdtrc(len(arm.losses) - 1, len(parent.losses) - 1, ratio**2))
    words = (
        f"its seeds have {ratio:.1f} times the sd of those of {parent.name} "
        f"(bound: ≤ {bound:g}, or F test p ≥ {SPREAD_LEVEL:g}; here p = {p:.2g})"
    )
    return Check(name, ratio, bound, ratio <= bound or p >= SPREAD_LEVEL, words)
