"""Verdicts: which differences and equivalences are claimed, at which look. Nothing else in the reports claims anything.

A family is a list of steps, each with a sequence of measures. A measure is tested at every look of its seeds, and only
for the steps that all measures before it claimed at the same look; a part of a step only if the step is claimed. A
claim stays: the first look that makes it counts.
docs/statistics.md has the argument for the family-wise error.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

import numpy as np

from reports.analysis.inference import (
    ALPHA,
    EQUIVALENCE_LEVEL,
    LOOKS,
    TINY,
    Array,
    Interval,
    adjust,
    detectable,
    flip_statistics,
    p_of_equivalence,
    pooled_variance,
    sign_patterns,
    stepwise_p_values,
)

Place = tuple[int, int]
"""A step, and the place of a measure in its sequence."""

TOO_FEW = "too few seeds"
WITHIN_NOISE = "within noise"


@dataclass(frozen=True)
class Candidate:
    """The differences of a step in one measure, by seed. `level` numbers the measure: variances are pooled within it.
    `scale` divides the differences; None for all of a level or for none.

    `collapsed` are, by look, seeds at which one side lies far from its arm's other seeds. No look that is `barred`
    counts. `both` has, for each look, the interval over seeds and examples and its p, if records have numbers by
    example. `tells_apart`: whether the measure can tell arms apart, without which nothing is equivalent in it.
    """

    differences: Mapping[int, float]
    margin: float
    level: int = 0
    scale: float | None = None
    collapsed: Mapping[int, Collection[int]] = field(default_factory=dict)
    barred: Collection[int] = ()
    both: Mapping[int, tuple[Interval, float]] = field(default_factory=dict)
    tells_apart: bool = True

    def first(self, seeds: int) -> dict[int, float]:
        """Return the differences of the first seeds; none if there are fewer, or if that look is barred."""
        if len(self.differences) < seeds or seeds in self.barred:
            return {}
        return dict(islice(sorted(self.differences.items()), seeds))


@dataclass(frozen=True)
class Look:
    """What the first `seeds` of a measure show: family-wise p-values of the difference and of the equivalence, and what
    they claim."""

    seeds: int
    p_difference: float
    p_equivalence: float | None
    direction: str
    is_equivalent: bool


@dataclass(frozen=True)
class Verdict:
    """The looks at one measure of a step, at its `place` in the sequence; 0 is the primary one. `is_tested` is False
    for exploratory measures, and for those whose turn did not come: they have no verdict. `detectable` is the smallest
    true difference that the test of the last look claims with power 0.8."""

    looks: tuple[Look, ...] = ()
    is_tested: bool = False
    place: int | None = None
    margin: float = 0.0
    detectable: float | None = None

    @property
    def p_difference(self) -> float | None:
        """The p of the difference at the last look."""
        return self.looks[-1].p_difference if self.looks else None

    @property
    def p_equivalence(self) -> float | None:
        """The p of the equivalence at the last look."""
        return self.looks[-1].p_equivalence if self.looks else None

    @property
    def p_by_look(self) -> dict[int, float]:
        """The p of the difference, by the number of seeds of the look."""
        return {look.seeds: look.p_difference for look in self.looks}

    @property
    def p_equivalence_by_look(self) -> dict[int, float]:
        """The p of the equivalence, by the number of seeds of the look."""
        return {look.seeds: look.p_equivalence for look in self.looks if look.p_equivalence is not None}

    @property
    def claimed(self) -> tuple[str, bool]:
        """The direction claimed, or an empty text, and whether equivalence is claimed."""
        direction, equivalence = self._first
        return (direction.direction if direction else "", equivalence is not None)

    @property
    def words(self) -> str:
        """The verdict in words; empty for what is not tested."""
        if not self.is_tested:
            return ""
        if not self.looks:
            return TOO_FEW
        direction, equivalence = self._first
        told = [f"{direction.direction} (claimed at {direction.seeds} seeds)"] if direction else []
        told += [f"equivalent within {self.margin:g} (claimed at {equivalence.seeds} seeds)"] if equivalence else []
        return ", yet ".join(told) or WITHIN_NOISE

    @property
    def _first(self) -> tuple[Look | None, Look | None]:
        return (
            next((look for look in self.looks if look.direction), None),
            next((look for look in self.looks if look.is_equivalent), None),
        )


EXPLORATORY = Verdict()


def judge(
    steps: Sequence[Sequence[Candidate]],
    looks: Mapping[int, float] = LOOKS,
    wholes: Sequence[int | None] = (),
    *,
    with_detectable: bool = True,
) -> list[list[Verdict]]:
    """Return the verdict of every measure of every step of one family; the detectable differences, which take nearly
    all of the time, only if asked for. `wholes` has for each step the place of the one that it is a part of, or None;
    no whole is a part itself."""
    wholes = wholes or [None] * len(steps)
    found: list[list[list[Look]]] = [[[] for _ in sequence] for sequence in steps]
    families = {seeds: _Family(steps, wholes, seeds, level) for seeds, level in sorted(looks.items())}
    in_order = sorted(range(len(steps)), key=lambda step: wholes[step] is not None)
    places = [(step, place) for step in in_order for place in range(len(steps[step]))]

    for family in families.values():
        for step, place in places:
            if family.has(step, place) and _is_open(found, wholes, step, place):
                found[step][place].append(family.look(step, place))
    verdicts: list[list[Verdict]] = [[] for _ in steps]
    for step, place in places:
        own, margin = tuple(found[step][place]), steps[step][place].margin
        size = families[own[-1].seeds].detectable((step, place), found) if own and with_detectable else None
        verdicts[step].append(Verdict(own, _is_open(found, wholes, step, place), place, margin, size))
    return verdicts


def _is_open(found: Sequence[Sequence[Sequence[Look]]], wholes: Sequence[int | None], step: int, place: int) -> bool:
    """Return whether a measure may be tested: the one before it is claimed to differ, or it is the first of its step,
    and the whole that this is a part of is claimed to differ in its own first one."""
    whole = wholes[step]
    if place == 0:
        return whole is None or any(look.direction for look in found[whole][0])
    return any(look.direction for look in found[step][place - 1])


class _Family:
    """All measures of all steps at one look."""

    def __init__(
        self, steps: Sequence[Sequence[Candidate]], wholes: Sequence[int | None], seeds: int, level: float
    ) -> None:
        self.seeds, self.level, self._wholes = seeds, level, wholes
        places = [(step, place) for step, sequence in enumerate(steps) for place in range(len(sequence))]
        self._measures = {(step, place): steps[step][place] for step, place in places}
        self._first = {at: own for at, measure in self._measures.items() if (own := measure.first(seeds))}
        collapsed = {at: set(self._measures[at].collapsed.get(seeds, ())) & set(own) for at, own in self._first.items()}
        self._p_values = self._test(self._statistics_of_first)
        if any(collapsed.values()):  # then p is the larger of the values with and without these seeds
            kept = {at: {s: d for s, d in own.items() if s not in collapsed[at]} for at, own in self._first.items()}
            without = self._test(self._statistics({at: own for at, own in kept.items() if len(own) > 1}))
            self._p_values = {at: max(p, without.get(at, 1.0)) for at, p in self._p_values.items()}
        whole = {at: own for at, own in self._first.items() if wholes[at[0]] is None}
        tost = [p_of_equivalence(np.array(list(own.values())), self._measures[at].margin) for at, own in whole.items()]
        self._p_equivalence = dict(zip(whole, adjust(tost), strict=True))

    def has(self, step: int, place: int) -> bool:
        """Whether a measure has as many seeds as the look, which is not barred."""
        return (step, place) in self._first

    @cached_property
    def _statistics_of_first(self) -> dict[Place, Array]:
        return self._statistics(self._first)

    def _test(self, found: Mapping[Place, Array]) -> dict[Place, float]:
        """Return the family-wise p of each measure of each step from its statistics."""
        if not found:
            return {}
        shape = (len(self._wholes), max(place for _, place in found) + 1)
        statistics = np.full((*shape, len(next(iter(found.values())))), np.nan)
        for at, own in found.items():
            statistics[at] = own
        p_values = stepwise_p_values(statistics, self._wholes)
        return {at: float(p_values[at]) for at in found}

    def _statistics(self, differences: Mapping[Place, Mapping[int, float]]) -> dict[Place, Array]:
        """Return the statistics of each measure of each step, (patterns,)."""
        found: dict[Place, Array] = {}
        for level in dict.fromkeys(self._measures[at].level for at in differences):
            places = [at for at in differences if self._measures[at].level == level]
            pooled = self._pooled(differences, places)
            found |= dict(zip(places, flip_statistics(self._scaled(differences, places), pooled), strict=True))
        return found

    def _pooled(self, differences: Mapping[Place, Mapping[int, float]], places: Sequence[Place]) -> Array:
        """Return the pooled variance at some places, (1,): that of the steps, so that their parts do not change it."""
        steps = [at for at in places if self._wholes[at[0]] is None]
        return pooled_variance(self._scaled(differences, steps or places))

    def _scaled(self, differences: Mapping[Place, Mapping[int, float]], places: Sequence[Place]) -> Array:
        """Return the scaled differences at some places, (places, seeds), NaN where a seed of the family is missing."""
        seeds = sorted(set[int]().union(*differences.values()))
        values = np.array([[differences[at].get(seed, np.nan) for seed in seeds] for at in places])
        return values / np.array([[self._measures[at].scale or 1.0] for at in places])

    def detectable(self, at: Place, found: Sequence[Sequence[Sequence[Look]]]) -> float | None:
        """Return the smallest true difference that is claimed at this look with power 0.8, beside the measures of other
        steps that are not claimed; None if the seeds do not differ."""
        values = np.array(list(self._first[at].values())) / (scale := self._measures[at].scale or 1.0)
        if values.std() < TINY:
            return None
        left = [
            next((place for place, looks in enumerate(sequence) if not any(look.direction for look in looks)), -1)
            if _is_open(found, self._wholes, step, 0)
            else -1
            for step, sequence in enumerate(found)
        ]
        rest = [
            own for (step, place), own in self._statistics_of_first.items() if step != at[0] and place == left[step]
        ]
        level = [other for other in self._first if self._measures[other].level == self._measures[at].level]
        pooled = float(self._pooled(self._first, level)[0])
        seeds = sorted(set[int]().union(*self._first.values()))
        signs = sign_patterns(len(seeds))[:, [seeds.index(seed) for seed in self._first[at]]]
        others = np.max([*rest, np.zeros(len(signs))], axis=0)
        return scale * detectable(values, signs, others, pooled, self.level)

    def look(self, step: int, place: int) -> Look:
        """Return what is claimed of a measure whose turn it is."""
        measure = self._measures[step, place]
        p_difference, p_equivalence = self._p_values[step, place], self._p_equivalence.get((step, place))
        interval, p_both = measure.both.get(self.seeds, (None, 0.0))
        is_apart = p_difference <= self.level and p_both <= ALPHA
        is_within = interval is None or max(map(abs, interval)) <= measure.margin
        is_equivalent = p_equivalence is not None and p_equivalence <= EQUIVALENCE_LEVEL and is_within
        direction = "higher" if sum(self._first[step, place].values()) > 0 else "lower"
        return Look(
            self.seeds,
            p_difference,
            p_equivalence,
            direction if is_apart else "",
            is_equivalent and measure.tells_apart,
        )
