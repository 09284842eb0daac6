"""Is a difference one of level or one of waiting?

A run stays near the loss of token frequencies until it begins to use the context (`neobert.training.transitions`).
Arms that leave this plateau at different times differ at every step after it, even if both then learn alike.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ablations.regime import Check
from reports.analysis.inference import seed_interval

LEVEL, WAITING = "level", "waiting"
ALL_SEEDS = 0


def timing_word(at_end: Sequence[float], since: Sequence[float], waiting: Sequence[float]) -> str:
    """Return how to read a difference: `LEVEL`, `WAITING`, or an empty text if the numbers tell neither.

    All are variant minus parent by paired seed: loss at the end, loss at equal time since each run's own transition,
    and time of the transition. A difference is one of level if it is still there at equal time since the transition
    (its 95 % t interval excludes 0, on the side of the end). It is one of waiting if it is not, and the arms do differ
    in when they leave the plateau (that interval excludes 0).
    """
    intervals = [seed_interval(values) for values in (since, waiting)]
    if not at_end or None in intervals:
        return ""
    of_level, of_waiting = (0 if low <= 0 <= high else math.copysign(1, low) for low, high in filter(None, intervals))
    if of_level and of_level == math.copysign(1, statistics.fmean(at_end)):
        return LEVEL
    return WAITING if of_waiting else ""


@dataclass(frozen=True)
class Regime:
    """What the runs of a group show of their regime.

    `checks` are those of each arm. `reasons` say why differences to an arm, beside a parent of it, get no verdict, in
    words that begin with "not measurable": by (arm, parent), and by the number of first seeds, `ALL_SEEDS` for all.
    `words` are the readings of steps, (variant, base), by `timing_word`, with the sign of the difference at the end.
    """

    checks: Mapping[str, tuple[Check, ...]] = field(default_factory=dict)
    reasons: Mapping[tuple[str, str], Mapping[int, str]] = field(default_factory=dict)
    words: Mapping[tuple[str, str], tuple[str, float]] = field(default_factory=dict)

    def why_no_verdict(self, variant: str, base: str, seeds: int = ALL_SEEDS) -> str:
        """Return why the difference of two arms gets no verdict from their first seeds; empty if it may.

        The variant is checked beside the base if that is a parent of it, otherwise beside its first parent, as the base
        is."""
        own = (variant, base) if (variant, base) in self.reasons else self._first_pair(variant)
        told = (self.reasons.get(pair, {}).get(seeds, "") for pair in (own, self._first_pair(base)))
        return next(filter(None, told), "")

    def reading(self, variant: str, base: str, difference: float) -> str:
        """Return how to read a difference of losses on the variant's own corpus. A reading of level holds only on the
        side that it was found on."""
        word, side = self.words.get((variant, base), ("", 0.0))
        return word if word != LEVEL or math.copysign(1, difference) == side else ""

    def why_barred(self, name: str, seeds: int) -> str:
        """Return why no difference to an arm gets a verdict from its first seeds; empty if they may."""
        return self.reasons.get(self._first_pair(name), {}).get(seeds, "")

    def _first_pair(self, name: str) -> tuple[str, str]:
        return next((pair for pair in self.reasons if pair[0] == name), (name, ""))

    @property
    def remarks(self) -> list[str]:
        """One sentence for each arm with all of its checks."""
        return [
            f"Regime of {name}: {'; '.join(('fails: ' if check.fails else '') + check.words for check in own)}."
            for name, own in self.checks.items()
        ]


UNKNOWN = Regime()
