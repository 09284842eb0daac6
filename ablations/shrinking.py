"""How a scale turns one number of a recipe into another: rows of a table, and values relative to the baseline's.

Order survives, and so does the ratio of any two numbers that go with the same row, up to the rounding of whole numbers.
A number for which that is impossible is refused with a sentence that says what to do.
"""

import math
from collections.abc import Mapping
from fractions import Fraction
from itertools import pairwise
from typing import Any

from ablations.variant import WAYS_OUT

SIGNIFICANT_DIGITS = 12
"""Scaled rates are rounded to these digits, so that 3 × 2e-3 is 6e-3."""

Rows = Mapping[Any, Any]
"""The rows of a table: {number of the recipe: number of the scale}, both above 0."""


def refuse_rows(name: str, rows: Rows) -> None:
    """Raise ValueError unless the numbers of a table are above 0 (or become 0) and a larger one never becomes
    smaller."""
    for number, small in rows.items():
        if not (isinstance(number, int | float) and isinstance(small, int | float)):
            raise ValueError(f"{name} maps {number!r} to {small!r}: its rows are numbers")
        if not 0 < number < math.inf or not 0 <= small < math.inf:
            raise ValueError(f"{name} maps {number!r} to {small!r}: its rows are numbers above 0")
    for (low, small), (high, large) in pairwise(sorted(rows.items())):
        if large < small:
            raise ValueError(f"{name} maps {low:g} to {small:g} and {high:g} to {large:g}: their order must stay")


def nearest_row(name: str, rows: Rows, number: float) -> Any:
    """Return the row (as the recipe's number) that a number goes with: the nearest in the logarithm.

    Raises:
        ValueError: in its ratio to this row the number would be nearer to another row than to this one, so that its
            order relative to what goes with the other row is not certain.
    """
    ordered = sorted(rows)
    near = min(ordered, key=lambda row: abs(math.log(number / row)))
    index = ordered.index(near)
    beyond = ordered[index + 1 : index + 2] if number > near else ordered[max(index - 1, 0) : index]
    scaled = number * rows[near] / near
    for other in beyond if number != near else ():
        border = math.sqrt(rows[near] * rows[other])
        if not (scaled < border if other > near else scaled > border):
            (low, small), (high, large) = sorted([(near, rows[near]), (other, rows[other])])
            raise ValueError(
                f"{name} {number:g} lies between the rows {low:g} → {small:g} and {high:g} → {large:g} of the scale, "
                f"and can keep its ratio to both in no order: add a row for {number:g} to the table of a scale of your "
                f"own, {WAYS_OUT}"
            )
    return near


def scaled_number(name: str, rows: Rows, number: float) -> float:
    """Return a number at a scale: that of its row, or in its ratio to the nearest row. 0 stays 0. Raises as
    `nearest_row`."""
    if not number or not rows:
        return number
    near = nearest_row(name, rows, number)
    return float(rows[near]) if number == near else in_ratio(number, near, rows[near])


def scaled_count(name: str, rows: Rows, number: int, unit: int = 1) -> int:
    """Return a whole number at a scale like `scaled_number`. If it is in no row it is rounded down to a multiple of
    `unit`, at least one."""
    if not number or not rows:
        return number
    near = nearest_row(name, rows, number)
    return int(rows[near]) if number == near else max(1, number * rows[near] // near // unit) * unit


def scaled_shape(
    rows: Mapping[tuple[int, int], tuple[int, int]],
    shape: tuple[int, int],
    baseline: tuple[int, int],
    feedforward_width: int,
    unit: int,
) -> tuple[int, int, int]:
    """Return layers, width and feed-forward width at a scale: those of the row, or in their ratios to another row.

    That is the row of the baseline's shape if the two have a number in common, or else the nearest, with the smallest
    sum of distances in the logarithms. Without a row the width is rounded to a multiple of `unit`, and all three are
    rounded to at least one (unit).
    """

    def distance(row: tuple[int, int]) -> float:
        return sum(abs(math.log(ours / theirs)) for ours, theirs in zip(shape, row, strict=True))

    is_arm = shape not in rows and baseline in rows and (shape[0] == baseline[0] or shape[1] == baseline[1])
    near = baseline if is_arm else min(rows, key=distance)
    (layers, width), (small_layers, small_width) = near, rows[near]
    feedforward_width = max(1, round(Fraction(feedforward_width * small_width, width)))
    if shape == near:
        return small_layers, small_width, feedforward_width
    shrunk_layers = round(Fraction(shape[0] * small_layers, layers))
    return (
        max(1, shrunk_layers),
        max(1, round(Fraction(shape[1] * small_width, width * unit))) * unit,
        feedforward_width,
    )


def in_ratio(number: float, before: float, after: float) -> float:
    """Return `number` × `after` / `before` in twelve significant digits."""
    return float(f"{number * after / before:.{SIGNIFICANT_DIGITS}g}")


def replaced(name: str, rule: Any, value: Any, baseline: Any) -> Any:
    """Return a value at a scale whose `rule` replaces the baseline's value.

    Another number keeps its ratio to the baseline's, whole numbers rounded down and at least 1. Another word stays.
    Mappings are replaced entry by entry; None stands for "all" and stays.

    Raises:
        ValueError: the baseline's value has no ratio to the number, because it is 0 or None.
    """
    if isinstance(rule, Mapping):
        return value | {key: replaced(f"{name}.{key}", each, value[key], baseline[key]) for key, each in rule.items()}
    if value == baseline:
        return rule
    if value is None or isinstance(value, str) or rule is None:
        return value
    if not baseline:
        raise ValueError(
            f"{name} {value:g} has no ratio to the baseline's {baseline}, which the scale replaces by {rule:g}: "
            f"leave it out of the rules of a scale of your own, {WAYS_OUT}"
        )
    if isinstance(rule, int) and isinstance(value, int):
        return max(1, rule * value // baseline) if value else 0
    return in_ratio(value, baseline, rule)
