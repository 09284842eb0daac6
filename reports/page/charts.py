"""Geometry of the page's small pictures: axes in user units, rounded so that equal numbers give equal bytes."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reports.analysis.inference import Interval

STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """A stretch of numbers, low to high, on a stretch of a picture, start to end; y axes have start below end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Where a number lies, to a tenth; what is outside lies on the edge."""
        inside = min(max(value, self.low), self.high)
        return round(self.start + (self.end - self.start) * (inside - self.low) / (self.high - self.low), 1)

    def holds(self, value: float) -> bool:
        """Whether a number is on the axis."""
        return self.low <= value <= self.high

    def ticks(self, most: int = 4, write: Callable[[float], str] | None = None) -> list[tuple[float, str]]:
        """Places and labels of round numbers, at most `most`; `write` makes labels of them."""
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(each * power for each in STEPS if each * power >= least * (1 - 1e-9))
        digits = max(0, -math.floor(math.log10(step)))
        values = [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        write = write or (lambda value: f"{value:,.{digits}f}".replace("-", "−"))
        return [(self.at(value), write(value)) for value in values]


def axis_over(values: Iterable[float], start: float, end: float, padding: float = 0.06) -> Axis:
    """An axis that holds all values with a little room; of one width where they are all equal or absent."""
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = padding * (high - low) if high > low else 0.03 * max(abs(high), 1.0)
    return Axis(low - room, high + room, start, end)


@dataclass(frozen=True)
class Mark:
    """A mean with its interval on an axis; an end that lies outside is cut and points outwards."""

    mean: float
    seeds: tuple[float, ...]
    low: float | None
    high: float | None
    cut_low: bool
    cut_high: bool


def mark(axis: Axis, mean: float, seeds: Sequence[float], interval: Interval | None) -> Mark:
    """What a row of a strip chart shows."""
    low, high = interval or (None, None)
    return Mark(
        mean=axis.at(mean),
        seeds=tuple(map(axis.at, seeds)) if len(seeds) > 1 else (),
        low=None if low is None else axis.at(low),
        high=None if high is None else axis.at(high),
        cut_low=low is not None and not axis.holds(low),
        cut_high=high is not None and not axis.holds(high),
    )


def path(points: Iterable[tuple[float, float]], across: Axis, up: Axis) -> str:
    """A line through points as an SVG path."""
    return "M" + "L".join(f"{across.at(x):g} {up.at(y):g}" for x, y in points)
