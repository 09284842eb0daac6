"""The verdict on a log: which kept changes are improvements, what survives of the session, and which runs to make."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from neobert.errors import MissingData
from neobert.referee.evidence import TAIL_DEGREES, boost, critical_t, seeds_needed
from reports.logs.chain import Chain, Try, Weighed, follow, in_logarithms, in_metric, is_at_bound, weigh
from reports.logs.noise import Repeats, Yardstick, load_notes
from reports.logs.reading import Log, Run
from reports.logs.survival import survival
from reports.logs.suspects import suspicions, suspicions_of_keep

Verdict = Literal["baseline", "real", "not shown", "worse", "seeds needed", "repeat"]
RETEST_RUNS = 5  # of the baseline and of the final state, where no spread is known
MOST_RETEST_RUNS = 10


@dataclass(frozen=True)
class Keep:
    """A kept run. `gain` is the improvement over the best kept before it, in the unit of the metric, above 0 if better;
    `shrunk_gain` is the expected true gain, `seeds` how many fresh runs of this change and of the one before would show
    it with power 0.8, and `real_below` the largest spread of single runs at which the recorded gain would be shown."""

    line: int
    description: str
    value: float
    verdict: Verdict
    against_line: int | None = None
    gain: float | None = None
    gain_in_spreads: float | None = None
    e_value: float | None = None
    shrunk_gain: float | None = None
    seeds: int | None = None
    real_below: float | None = None
    suspicions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """What a log shows. Gains are in the unit of the metric, above 0 if better; None is not known.

    `tried` counts the changes that were measured, kept or not: all are in the family whose false discovery rate is
    `alpha`. `surviving_gain` is the total with the winner's curse corrected, its range that of the spread's 80 %
    interval.
    """

    log: str
    metric: str
    lower_is_better: bool
    direction: str
    alpha: float
    rows: int
    measured: int
    tried: int
    spread: float | None
    degrees_of_freedom: int
    spread_source: str
    in_logarithms: bool
    keeps: tuple[Keep, ...]
    real: int
    total_gain: float | None
    surviving_gain: float | None
    surviving_range: tuple[float, float] | None
    expected_false_keeps: float | None
    plan: tuple[str, ...]
    suspicions: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def better(self) -> str:
        return "lower" if self.lower_is_better else "higher"

    @property
    def changes(self) -> list[Keep]:
        """The kept changes, without baselines and repeats."""
        return [keep for keep in self.keeps if keep.verdict not in ("baseline", "repeat")]

    @property
    def need_seeds(self) -> int:
        """The number of kept changes that more seeds would show."""
        return sum(keep.verdict == "seeds needed" for keep in self.changes)

    @property
    def without_gain(self) -> int:
        """The number of kept changes without a gain even in their own numbers."""
        return sum((keep.gain or 0) <= 0 for keep in self.changes)


@dataclass
class _Judge:
    """What the parts of a report have in common."""

    log: Log
    chain: Chain
    yardstick: Yardstick
    evidence: Weighed
    alpha: float
    most_seeds: int

    @property
    def degrees(self) -> float:
        return min(TAIL_DEGREES, self.yardstick.degrees)


def judge(log: Log, repeats: Sequence[Repeats], yardstick: Yardstick, alpha: float, most_seeds: int) -> Report:
    """Return the verdict on a log with a known or unknown spread of single runs.

    Raises:
        MissingData: no kept run has a value.
    """
    logarithms = in_logarithms(log)
    chain = follow(log, repeats, logarithms)
    if not chain.baselines:
        raise MissingData(f"{log.name}: no kept run has a value, so there is nothing to compare with")
    own = _Judge(log, chain, yardstick, weigh(chain, yardstick, alpha), alpha, most_seeds)
    middle = _surviving(own, yardstick.spread) if yardstick.spread is not None and chain.tries else None
    keeps = _keeps(own, middle.gains if middle else {})
    return Report(
        log=log.name,
        metric=log.metric,
        lower_is_better=log.lower_is_better,
        direction=log.reason,
        alpha=alpha,
        rows=len(log.runs),
        measured=len(log.measured),
        tried=len(chain.tries),
        spread=yardstick.spread,
        degrees_of_freedom=yardstick.degrees,
        spread_source=yardstick.source,
        in_logarithms=logarithms,
        keeps=tuple(keeps),
        real=sum(keep.verdict == "real" for keep in keeps),
        plan=tuple(_plan(own, keeps)),
        suspicions=tuple(suspicions(log, [keep.line for keep in keeps])),
        notes=tuple(_notes(own)),
        **_totals(own, middle),
    )


def _notes(own: _Judge) -> list[str]:
    notes = [*own.log.notes, *load_notes(own.log), *own.yardstick.notes]
    if own.yardstick.spread is None:
        notes.append(f"no spread of single runs is known: {own.yardstick.refusal}")
    dropped = [
        each.unit.runs[0].line
        for place, each in enumerate(own.chain.tries)
        if place in own.evidence and own.evidence[place][1] and not each.moves
    ]
    if dropped:
        lines = ", ".join(map(str, dropped[:6]))
        notes.append(
            f"{len(dropped)} changes are shown to be better than what was kept, and were not kept: line {lines}"
        )
    return notes


def _keeps(own: _Judge, shrunk: Mapping[int, float]) -> list[Keep]:
    """Return all kept runs with their verdicts, in their order."""
    tries = own.chain.tries
    kept = [place for place, each in enumerate(tries) if each.unit.is_kept]
    unsettled = [place for place in kept if tries[place].gain > 0 and not own.evidence.get(place, (0.0, False))[1]]
    found = [_keep_of(own.log, unit.runs[0], "baseline") for unit in own.chain.baselines]
    for place in kept:
        keep = _compared(own, tries[place])
        if place in own.evidence:
            keep = _weighed(own, keep, tries[place], own.evidence[place], shrunk[place], len(unsettled))
        found.append(keep)
    known = {keep.line for keep in found}
    for run in own.log.measured:
        if run.status == "keep" and run.line not in known:
            found.append(_keep_of(own.log, run, "not shown" if is_at_bound(own.log, run.value) else "repeat"))
    return sorted(found, key=lambda keep: keep.line)


def _keep_of(log: Log, run: Run, verdict: Verdict) -> Keep:
    found = tuple(suspicions_of_keep(log, run))
    return Keep(run.line, run.description, float(run.value or 0.0), verdict, suspicions=found)


def _compared(own: _Judge, each: Try) -> Keep:
    """Return a kept change with its recorded gain, and the verdict that it gives alone."""
    run = next((run for run in each.unit.runs if run.status == "keep"), each.unit.runs[0])
    gain = in_metric(own.log, float(np.mean(each.against.fair)), each.unit.mean)
    keep = _keep_of(own.log, run, "worse" if gain < 0 else "not shown")
    keep = replace(keep, against_line=each.against.fair_line, gain=gain)
    if gain > 0 and own.yardstick.spread is None:
        family = len(own.chain.tries)
        threshold = family / own.alpha / boost(TAIL_DEGREES, each.variance, family, own.alpha)
        critical = critical_t(threshold, TAIL_DEGREES, each.variance)
        keep = replace(keep, real_below=gain / critical / math.sqrt(each.variance))
    return keep


def _weighed(own: _Judge, keep: Keep, each: Try, evidence: tuple[float, bool], shrunk: float, unsettled: int) -> Keep:
    """Return a kept change with its evidence, and the verdict that it gives in the whole session."""
    spread = own.yardstick.spread or 1.0
    before = float(np.mean(each.against.fair))
    keep = replace(
        keep,
        e_value=evidence[0],
        gain_in_spreads=each.gain / spread,
        shrunk_gain=in_metric(own.log, before, before - shrunk * spread),
    )
    if evidence[1]:
        return replace(keep, verdict="real")
    if each.gain <= 0:
        return keep
    seeds = seeds_needed(shrunk, unsettled / own.alpha, own.degrees, own.most_seeds)
    return replace(keep, verdict="seeds needed" if seeds else "not shown", seeds=seeds)


@dataclass(frozen=True)
class _Surviving:
    """What survives at an assumed spread: the total in the unit of the metric, expected keeps without a gain among
    those that became the best, and the expected gain of each try in spreads."""

    total: float
    false: float
    gains: dict[int, float]


def _surviving(own: _Judge, spread: float) -> _Surviving:
    total, false, gains = 0.0, 0.0, dict[int, float]()
    for segment, base in enumerate(own.chain.baselines):
        places = {place: each for place, each in enumerate(own.chain.tries) if each.segment == segment}
        if places:
            values = np.array([each.unit.mean / spread for each in places.values()])
            runs = np.array([float(len(each.unit.values)) for each in places.values()])
            moves = np.array([each.moves for each in places.values()])
            found = survival(np.array(base.mean / spread), np.array(len(base.values)), values, runs, moves)
            total += in_metric(own.log, base.mean, base.mean - float(found.total) * spread)
            false += float(found.false.sum())
            gains.update(zip(places, found.gains.tolist(), strict=True))
    return _Surviving(total, false, gains)


def _totals(own: _Judge, middle: _Surviving | None) -> dict[str, Any]:
    """Return the recorded total gain, what survives of it, its range, and the expected number of keeps without gain."""
    ends = zip(own.chain.baselines, own.chain.last, strict=True)
    total = sum(in_metric(own.log, base.values[0], last.values[0]) for base, last in ends)
    names = ("total_gain", "surviving_gain", "surviving_range", "expected_false_keeps")
    if middle is None or own.yardstick.spread is None:
        return dict.fromkeys(names) | {"total_gain": total if own.chain.tries else None}
    interval = _spread_interval(own.yardstick.spread, own.yardstick.degrees)
    totals = [middle.total, *(_surviving(own, spread).total for spread in interval)]
    worse = sum(each.unit.is_kept and not each.moves for each in own.chain.tries)
    return dict(zip(names, (total, middle.total, (min(totals), max(totals)), middle.false + worse), strict=True))


def _spread_interval(spread: float, degrees: int) -> tuple[float, float]:
    """Return the 80 % interval of a standard deviation, by Wilson and Hilferty's approximation of chi-squared."""
    scale = 2 / (9 * degrees)
    low, high = (max(0.05, 1 - scale + z * math.sqrt(scale)) ** 1.5 for z in (1.2816, -1.2816))
    return spread / low, spread / high


def _plan(own: _Judge, keeps: Sequence[Keep]) -> list[str]:
    """Return the shortest list of runs that would settle what is open."""
    segments = [pair for pair in zip(own.chain.baselines, own.chain.last, strict=True) if pair[0] is not pair[1]]
    if not segments:
        return []
    base, last = segments[-1]
    pair = f"the baseline (line {base.runs[0].line}) and the final state (line {last.runs[0].line})"
    if own.yardstick.spread is None:
        runs = 2 * RETEST_RUNS
        return [
            f"run {pair} {RETEST_RUNS} times each{_duration(own.log, runs)}: this re-tests the total gain, and tells "
            f"the spread of single runs with {runs - 2} degrees of freedom"
        ]
    gain = (base.mean - last.mean) / own.yardstick.spread - 1  # the best of many is about a spread too good
    runs = max(2, seeds_needed(gain, 1 / own.alpha, own.degrees, MOST_RETEST_RUNS) or MOST_RETEST_RUNS)
    lines = [
        f"run {pair} {runs} times each with fresh seeds{_duration(own.log, 2 * runs)}: this re-tests the total gain"
    ]
    wanted = sorted((keep.seeds, keep.line, keep.against_line) for keep in keeps if keep.seeds)
    lines += [f"line {line} against line {against}: {seeds} fresh runs each" for seeds, line, against in wanted[:5]]
    if len(wanted) > 1:
        every = 2 * sum(seeds for seeds, _, _ in wanted)
        lines.append(f"{len(wanted)} changes need seeds{_duration(own.log, every)}")
    return lines


def _duration(log: Log, runs: int) -> str:
    if not log.minutes_per_run:
        return f" ({runs} runs)"
    minutes = runs * log.minutes_per_run
    return f" ({runs} runs, about {f'{minutes / 60:.1f} hours' if minutes > 90 else f'{minutes:.0f} minutes'})"
