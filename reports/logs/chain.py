"""The chain of kept changes in a log: what each try is compared with, and the evidence for its gain."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from neobert.referee.evidence import TAIL_DEGREES, boost, e_bh, e_value
from reports.logs.noise import LOAD, Repeats, Yardstick
from reports.logs.reading import Log, Run

RANGE_FOR_LOGARITHMS = 1.5
"""If kept values differ by more than this factor, noise is taken as proportional to the value."""
BASELINE = re.compile(r"^\W*(?:[\w.-]+[: ]+){0,2}baseline\b", re.IGNORECASE)

Weighed = Mapping[int, tuple[float, bool]]
"""By place of a try: its e-value, and whether its gain is shown."""


@dataclass
class Unit:
    """A configuration: a run, or its repeats, as one mean in the unit of the analysis, lower is better."""

    runs: list[Run]
    values: list[float]
    is_kept: bool = False
    was_chosen: bool = False

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def fair(self) -> list[float]:
        """The values by which later changes are compared with this one: its repeats alone, if it was kept for its value
        and repeated since."""
        return self.values[1:] if self.was_chosen and len(self.values) > 1 else self.values

    @property
    def fair_line(self) -> int:
        """The line of the first of these values."""
        return self.runs[len(self.values) - len(self.fair)].line


@dataclass
class Try:
    """A configuration compared with the best kept before it; `moves` tells whether it became the best itself."""

    unit: Unit
    against: Unit
    moves: bool
    segment: int

    @property
    def gain(self) -> float:
        return float(np.mean(self.against.fair)) - self.unit.mean

    @property
    def variance(self) -> float:
        return 1 / len(self.unit.values) + 1 / len(self.against.fair)


@dataclass
class Chain:
    """All tries of a log in their order. A segment begins with each baseline; `last` has the best of each."""

    tries: list[Try] = field(default_factory=list)
    baselines: list[Unit] = field(default_factory=list)
    last: list[Unit] = field(default_factory=list)


def in_logarithms(log: Log) -> bool:
    """Return whether the kept values span so wide a range that noise is taken as proportional to the value."""
    kept = [run.value for run in log.measured if run.status in ("keep", "baseline")] or [r.value for r in log.measured]
    values = [value for value in kept if value is not None and value != 0]
    return min(values, default=0) > 0 and max(values) > RANGE_FOR_LOGARITHMS * min(values)


def follow(log: Log, repeats: Sequence[Repeats], logarithms: bool) -> Chain:
    """Follow the best of each series through the log."""
    chain, best = Chain(), dict[str, Unit]()
    for run, unit in _units(log, repeats, logarithms):
        at = best.get(run.series)
        unit.is_kept |= at is None and run.status == "baseline"
        unit.is_kept |= not log.has_marks and (at is None or unit.values[0] < min(at.values))
        if at is None or _restarts(run):
            if unit.is_kept or run.status == "baseline":
                best[run.series] = unit
                chain.baselines.append(unit)
                chain.last.append(unit)
            continue
        moves, segment = unit.is_kept and unit.values[0] < at.values[0], chain.last.index(at)
        chain.tries.append(Try(unit, at, moves, segment))
        if moves:
            unit.was_chosen = True
            chain.last[segment] = best[run.series] = unit
    return chain


def _units(log: Log, repeats: Sequence[Repeats], logarithms: bool) -> Iterator[tuple[Run, Unit]]:
    """Yield each configuration that can be compared, with the run that stands first in the log."""
    group_of = {run.line: group.runs for group in repeats for run in group.runs}
    seen = set[int]()
    for run in log.measured:
        own = group_of.get(run.line, (run,))
        if own[0].line not in seen:
            seen.add(own[0].line)
            values = [_comparable(log, each.value, logarithms) for each in own]
            known = [log.sign * value for value in values if value is not None]
            if known:
                yield run, Unit(list(own), known, any(each.status == "keep" for each in own))


def _comparable(log: Log, value: float | None, logarithms: bool) -> float | None:
    """Return a value in the unit of the analysis; None if nothing can be compared with it."""
    if value is None or is_at_bound(log, value) or (logarithms and value <= 0):
        return None
    return math.log(value) if logarithms else value


def is_at_bound(log: Log, value: float | None) -> bool:
    """Return whether a value is an error of 0, which is a fault of the measurement: nothing is compared with it."""
    return log.lower_is_better and value == 0


def _restarts(run: Run) -> bool:
    """Return whether a run measures the present state anew: it is no change, and what follows is compared with it."""
    is_new = run.status == "baseline" or (run.status == "keep" and bool(BASELINE.search(run.description)))
    return is_new and not LOAD.search(run.description)


def weigh(chain: Chain, yardstick: Yardstick, alpha: float) -> Weighed:
    """Return the e-value of each try, by its place, and whether it is shown; nothing without a spread."""
    if not yardstick.spread or not chain.tries:
        return {}
    degrees = min(TAIL_DEGREES, yardstick.degrees)
    gains = np.array([each.gain / yardstick.spread for each in chain.tries])
    variances = np.array([each.variance for each in chain.tries])
    values = e_value(gains / np.sqrt(variances), degrees, variances)
    factors = {v: boost(degrees, v, len(gains), alpha) for v in set(variances.tolist())}
    once = [
        factors[v] if len(t.unit.values) == 1 else 1.0 for v, t in zip(variances.tolist(), chain.tries, strict=True)
    ]
    shown = e_bh(values * once, alpha)
    return {place: (float(values[place]), bool(shown[place])) for place in range(len(gains))}


def in_metric(log: Log, before: float, after: float) -> float:
    """Return a gain between two values of the analysis in the unit of the metric."""
    if not in_logarithms(log):
        return before - after
    return log.sign * (math.exp(log.sign * before) - math.exp(log.sign * after))
