"""Which data set and which of its pairs a step holds: a pure function of seed and step. Torch-free."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from neobert.data.streams import shuffled

Array = np.ndarray[Any, np.dtype[Any]]

_SETS, _PAIRS, _HELDOUT = 11, 12, 13
_ORDERS_KEPT = 32
MOST_HELDOUT = 64
HELDOUT_SHARE = 10
FEWEST_PAIRS = 2


@dataclass(frozen=True)
class Draw:
    """What a step holds: `pairs` (pairs,) numbers, each once, of data set number `of_set`."""

    of_set: int
    pairs: Array


def probabilities(sizes: Sequence[int], exponent: float) -> Array:
    """The share of steps that each data set gets: n^exponent over the sum of all (paper App. D.2)."""
    weights = np.asarray(sizes, np.float64) ** exponent
    shares: Array = weights / weights.sum()
    return shares


@lru_cache(maxsize=_ORDERS_KEPT)
def _order(size: int, *words: int) -> Array:
    """One of the last orders: sorting millions of pairs anew for each step would take longer than the step."""
    return shuffled(size, *words)


@dataclass(frozen=True)
class Sampling:
    """Draws without replacement: a set's pairs come in an order of their own, shuffled anew in each epoch.

    sizes: pairs of each set. pairs_per_step: how many of them a step holds.
    """

    sizes: tuple[int, ...]
    pairs_per_step: tuple[int, ...]
    exponent: float
    seed: int
    steps: int

    @cached_property
    def sets(self) -> Array:
        """(steps,) the data set of each step; a longer course begins with the shorter one."""
        bits = np.random.Philox(np.random.SeedSequence((self.seed, _SETS))).random_raw(self.steps)
        edges = np.cumsum(probabilities(self.sizes, self.exponent))
        drawn: Array = np.searchsorted(edges[:-1], (bits >> np.uint64(11)) * 2.0**-53, side="right")
        return drawn

    def draw(self, step: int) -> Draw:
        """What step number `step`, counted from 1, holds."""
        of_set = int(self.sets[step - 1])
        size, count = self.sizes[of_set], min(self.pairs_per_step[of_set], self.sizes[of_set])
        epoch, round_ = divmod(int((self.sets[: step - 1] == of_set).sum()), size // count)
        order = _order(size, self.seed, _PAIRS, of_set, epoch)
        return Draw(of_set, order[round_ * count : (round_ + 1) * count])


def split_heldout(pairs: int) -> tuple[Array, Array]:
    """(pairs to train on, pairs held out) of a data set, the same for every run: a tenth, and 64 at most.

    One that has too few pairs for both holds none out.
    """
    order = shuffled(pairs, _HELDOUT)
    heldout = min(MOST_HELDOUT, pairs // HELDOUT_SHARE)
    heldout = heldout if heldout >= FEWEST_PAIRS else 0
    return np.sort(order[heldout:]), order[:heldout]
