"""The transition of a run: when its held-out loss leaves the loss of word frequencies behind. Without torch.

A model first learns the frequencies of tokens, and stays near their loss until it begins to use the context. How long
it stays there differs between recipes, and between seeds of one recipe. The held-out loss on a small text is measured
at a few steps of each stage, at equal distances in log steps, so that this time is known.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

from neobert.kinds.pretraining import CurvePoint, Transition

SMALL_TEXT_LOSS = "small_text_loss"
"""Key of the loss on the small text in metrics."""

POINTS = 24
FIRST_SHARE = 1000
"""The first measurement is after this fraction of a stage's steps, and each is about 1.35 times as late as the one
before it."""

MARGIN_NATS = 0.5
"""A run has left the frequencies behind once its loss is this far below theirs."""


def curve_steps(steps: int) -> frozenset[int]:
    """Return the steps of a stage after which the loss on the small text is measured: at most `POINTS`, with the last
    step among them."""
    first = max(1.0, steps / FIRST_SHARE)
    return frozenset(round(first * (steps / first) ** (point / (POINTS - 1))) for point in range(POINTS))


def find_transition(curve: Sequence[CurvePoint], frequency_loss: float, margin: float = MARGIN_NATS) -> Transition:
    """Find when a loss is `margin` nats below that of frequencies for the first time, and when it falls fastest.

    The crossing is interpolated in log tokens. The steepest descent is the largest decrease per log token between two
    measurements that are both below `frequency_loss`: before, the model learns the frequencies.
    """
    level = frequency_loss - margin
    found = crossing([(math.log(point.tokens), point.loss) for point in curve], level)
    tokens = step = None
    reason = None
    if found is None:
        reason = f"the loss never falls below {level:.3f} nats"
    elif curve[0].loss < level:
        reason = f"the loss is below {level:.3f} nats at the first measurement, after step {curve[0].step}"
    else:
        tokens = math.exp(found)
        step = float(_interpolated(curve, found))
    return Transition(
        margin=margin,
        frequency_loss=frequency_loss,
        tokens=tokens,
        step=step,
        steepest_step=_steepest_step(curve, frequency_loss),
        reason=reason,
        curve=tuple(curve),
    )


def crossing(points: Sequence[tuple[float, float]], level: float) -> float | None:
    """Return where a curve of (place, value), ascending in places, is below `level` for the first time, linearly
    interpolated: its first place if it begins below, None if it never is."""
    for number, (place, value) in enumerate(points):
        if value < level:
            if number == 0:
                return place
            before, above = points[number - 1]
            return before + (place - before) * (above - level) / (above - value)
    return None


def _interpolated(curve: Sequence[CurvePoint], log_tokens: float) -> float:
    """Return the step at a number of tokens, interpolated between measurements in the logs of both."""
    before, after = next(pair for pair in pairwise(curve) if log_tokens <= math.log(pair[1].tokens))
    first, last = math.log(before.tokens), math.log(after.tokens)
    share = (log_tokens - first) / (last - first)
    return before.step ** (1 - share) * after.step**share


def _steepest_step(curve: Sequence[CurvePoint], frequency_loss: float) -> float | None:
    """Return the middle, in log steps, of the interval with the largest decrease per log token."""
    below = [pair for pair in pairwise(curve) if max(pair[0].loss, pair[1].loss) <= frequency_loss]
    falls = [
        ((before.loss - after.loss) / math.log(after.tokens / before.tokens), math.sqrt(before.step * after.step))
        for before, after in below
    ]
    fastest = max(falls, default=(0.0, 0.0))
    return fastest[1] if fastest[0] > 0 else None
