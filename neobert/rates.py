"""Peak learning rates: how names have them, and the rule by which a sweep over rates goes on."""

from collections.abc import Mapping

from neobert.recipe import Optimization

RATE = "peak_learning_rate"
RATE_DIGITS = 2
FIELDS = tuple(name for name, field in Optimization.model_fields.items() if field.annotation is float)
"""The numbers of the optimizer, which names can set."""
IN_NAMES = (*(name for name in FIELDS if name != RATE), RATE)
"""These numbers in their order in names of variants."""


def rate_text(rate: float) -> str:
    """Format a rate with one or two digits: 4e-3, 2.8e-3."""
    digits, exponent = f"{rate:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def rounded(rate: float) -> float:
    """Round a rate to two digits, as in names."""
    return float(rate_text(rate))


def with_number(name: str, field: str, value: float) -> str:
    """Return the name of a variant at another number of the optimizer. The rate is the last number of a name."""
    return f"{name}@rate{rate_text(value)}" if field == RATE else f"{name}@{field}-{value:g}"


def next_step(losses: Mapping[int, float | None], most: int) -> int | None:
    """Return the step to try next: a neighbour of the best one, or None.

    `losses` has the loss at each step that was tried, None if it failed. The result is None if both neighbours were
    tried or lie beyond ±`most`, or if no step has a loss.
    """
    known = {step: loss for step, loss in losses.items() if loss is not None}
    if not known:
        return None
    best = min(known, key=lambda step: (known[step], step))  # ties as in `ablations.rates.RateCurve.optimum`
    untried = (step for step in (best - 1, best + 1) if step not in losses and abs(step) <= most)
    return next(untried, None)
