"""Regime checks: whether a run of this scale is in the regime that its recipe was tuned for.

A check compares one number with a bound. Those here follow from the plan and need no run.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One number beside its bound. `number` is None if it is not known yet; `words` is a sentence with both."""

    name: str
    number: float | None
    bound: float
    holds: bool
    words: str
