"""Parts of steps: arms that have some of what a variant changes in its parent, and how much of the step they carry.

A part is found by its recipe, whatever design trained it: one modification added to the parent, all but one, or one
number of the optimizer (`M0+positions`, `F:positions+norm`, `M2@beta2-0.95`).
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ablations.ladders import ladder
from ablations.readings import PATTERN
from neobert.identity import leaves
from reports.analysis.inference import ALPHA, Interval
from reports.scores import Group, Row
from reports.tables import number

PARTS = "parts"
Changes = frozenset[tuple[str, object]]
Pair = tuple[str, str]
"""(variant, base)."""


def find_parts(group: Group) -> dict[Pair, tuple[Row, ...]]:
    """Return the parts of steps that have any, by (variant, base): rows that differ from the base in some of the values
    in which the variant does, and in nothing else.

    Of rows with equal recipes only the first is a part, the ladder's before those of designs.
    """
    rows = group.last_rows | group.compared_rows
    values = {name: leaves(row.recipe.pretraining) for name, row in rows.items()}

    def changes(name: str, base: str) -> Changes:
        before, after = values[base], values[name]
        paths = before.keys() | after.keys()
        return frozenset((path, after.get(path)) for path in paths if before.get(path) != after.get(path))

    found = {}
    for variant, base in _steps(rows):
        whole, by_changes = changes(variant, base), {changes(name, base): row for name, row in reversed(rows.items())}
        parts = [row for own, row in by_changes.items() if frozenset() < own < whole]
        # a reading is a step of its own only for parts beside the variant that it reads
        if any(row.name != variant.partition("@")[0] for row in parts):
            found[variant, base] = tuple(reversed(parts))
    return found


def wholes_of_parts(group: Group) -> dict[Pair, Pair]:
    """Return the step of each part; the largest one that has it, which is a part of no other step."""
    steps: dict[Pair, Pair] = {}
    for (whole, base), parts in find_parts(group).items():
        for row in parts:
            steps.setdefault((row.name, base), (whole, base))

    def largest(step: Pair) -> Pair:
        return largest(steps[step]) if step in steps else step

    return {part: largest(step) for part, step in steps.items()}


def _steps(rows: Mapping[str, Row]) -> Iterator[Pair]:
    """Yield (variant, base) of steps, then those of readings of a variant to the variant's parent."""
    for name, row in rows.items():
        reading = PATTERN.fullmatch(name)
        if name in ladder() and row.parent in rows:
            yield name, row.parent
        elif reading is not None and reading["base"] in rows and rows[reading["base"]].parent in rows:
            yield name, rows[reading["base"]].parent


def list_changes(part: Row, base: Row) -> str:
    """List the fields of pre-training that a part changes, by their last names."""
    before, after = leaves(base.recipe.pretraining), leaves(part.recipe.pretraining)
    changed = [path for path in sorted(before.keys() | after.keys()) if before.get(path) != after.get(path)]
    return ", ".join(dict.fromkeys(path.rpartition(".")[2].replace("_", " ") for path in changed))


@dataclass(frozen=True)
class Share:
    """The difference of a part over that of its step, at paired seeds, with its 95 % interval."""

    value: float
    interval: Interval

    def __str__(self) -> str:
        value, low, high = (number(100 * each, 0) for each in (self.value, *self.interval))
        return f"{value} % ({low} to {high})"


def share_of(part: Mapping[int, float], whole: Mapping[int, float]) -> Share | None:
    """Return the share of a step's difference that a part carries, both by seed, with Fieller's interval for the ratio
    of two paired means; None for fewer than two common seeds, or if the step's difference is not clear of 0, so that no
    share is excluded."""
    from scipy.special import stdtrit

    seeds = sorted(part.keys() & whole.keys())
    if len(seeds) < 2:
        return None
    pairs = np.array([[part[seed], whole[seed]] for seed in seeds])
    mine, all_ = map(float, pairs.mean(axis=0))
    bound = float(stdtrit(len(seeds) - 1, 1 - ALPHA / 2)) ** 2 / len(seeds)
    variances = bound * np.cov(pairs, rowvar=False)
    square, product, rest = all_**2 - variances[1, 1], mine * all_ - variances[0, 1], mine**2 - variances[0, 0]
    if square <= 0:
        return None
    half = math.sqrt(max(0.0, product**2 - square * rest))
    return Share(mine / all_, (float((product - half) / square), float((product + half) / square)))
