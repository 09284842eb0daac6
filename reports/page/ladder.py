"""The ladder of the page, as data for the templates: a trunk of kept variants with arms; score, difference and held-out
loss on every line, with strips of seeds and intervals.

Coordinates are in user units, rounded so that equal numbers give equal bytes.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.ladders import current
from reports import published
from reports.analysis.inference import Interval, seed_interval
from reports.analysis.pairing import OWN_RATES, Delta
from reports.figures.figure1 import Bar, Bars
from reports.findings import Findings
from reports.notes import why_no_average
from reports.page.register import NO_NUMBER, Number, Register
from reports.scores import Row
from reports.tables import number, printed_range, signed, signed_percent

STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """Linear map of values from low to high to picture coordinates from start to end."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the coordinate of a value, rounded to a tenth and clipped to the axis."""
        inside = min(max(value, self.low), self.high)
        return round(self.start + (self.end - self.start) * (inside - self.low) / (self.high - self.low), 1)

    def holds(self, value: float) -> bool:
        """Whether a value is on the axis."""
        return self.low <= value <= self.high

    def ticks(self) -> list[tuple[float, str]]:
        """Return coordinates and labels of at most four round numbers."""
        least = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(least))
        step = next(each * power for each in STEPS if each * power >= least * (1 - 1e-9))
        digits = max(0, -math.floor(math.log10(step)))
        values = [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [(self.at(value), number(value, digits)) for value in values]


def axis_over(values: Iterable[float], start: float, end: float) -> Axis:
    """Return an axis that contains all values with some padding, also if they are all equal or absent."""
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = 0.06 * (high - low) if high > low else 0.03 * max(abs(high), 1.0)
    return Axis(low - room, high + room, start, end)


def mark(axis: Axis, mean: float, seeds: Sequence[float], interval: Interval | None) -> dict[str, Any]:
    """Return the marks of one row of a strip chart: the mean, the seeds, and the interval from `low` to `high`. Ends
    outside the axis are cut and drawn as arrows."""
    low, high = interval or (None, None)
    return {
        "mean": axis.at(mean),
        "seeds": list(map(axis.at, seeds)) if len(seeds) > 1 else [],
        "low": None if low is None else axis.at(low),
        "high": None if high is None else axis.at(high),
        "cut_low": low is not None and not axis.holds(low),
        "cut_high": high is not None and not axis.holds(high),
    }


STRIP_WIDTH = 136.0
EDGE = 8.0


def draw_ladder(findings: Findings, register: Register) -> dict[str, Any]:
    """Return the tree of all variants of Figure 1: its `lines` from top to bottom, and their shared axes.

    The `depth` of a line is 0 on the trunk; `has_above` and `has_below` tell whether the trunk continues. `strip` and
    `forest` are the marks of the score and of the difference to the parent; `why` is the reason for a missing score,
    `loss_why` for a missing comparison of losses.
    """
    bars = {bar.row.name: bar for bar in findings.bars.bars}
    of_glue, of_loss = _deltas_to_parents(findings, bars)
    verdicts = {
        delta.variant: f"{delta.measured}: {delta.verdict}"
        for delta in findings.deltas
        if delta.judged.place == 0 and delta.variant in bars and delta.design != OWN_RATES
    }
    scores = [score for bar in bars.values() if bar.score for score in bar.score.by_seeds.values()]
    differences = [0.0, *(value for delta in of_glue.values() for value in delta.differences.values())]
    order = list(_in_tree_order(findings.group.last_rows))
    trunk = [index for index, (_, depth) in enumerate(order) if depth == 0]
    of_scores, of_deltas = (axis_over(values, EDGE, STRIP_WIDTH - EDGE) for values in (scores, differences))

    def draw_line(index: int, name: str, depth: int) -> dict[str, Any]:
        bar, delta, loss_delta = bars[name], of_glue.get(name), of_loss.get(name)
        score, found = bar.score, delta.comparison if delta else None
        interval = seed_interval(score.by_pretraining.values()) if score else None
        seeds = list(score.by_seeds.values()) if score else []
        return {
            "bar": bar,
            "depth": depth,
            "has_above": index > trunk[0],
            "has_below": index < trunk[-1],
            "score": _score(bar, findings.bars, register),
            "interval": "" if interval is None else f"{number(interval[0])} to {number(interval[1])}",
            "strip": mark(of_scores, score.mean, seeds, interval) if score else None,
            "paper": _paper(bar, register),
            "delta": _difference(delta, register),
            "delta_percent": "" if bar.delta_percent is None else signed_percent(bar.delta_percent),
            "delta_interval": "" if found is None or found.interval is None else printed_range(found.interval, 1),
            "forest": None if found is None else mark(of_deltas, found.mean, found.differences, found.interval),
            "verdict": verdicts.get(name, ""),
            "loss": _loss(bar.row, register),
            "loss_delta": _difference(loss_delta, register),
            "loss_why": loss_delta.reason.partition(":")[0] if loss_delta else "",
            "why": "" if score else why_no_average(bar.row, findings.group),
        }

    lines = [draw_line(index, name, depth) for index, (name, depth) in enumerate(order)]
    return {"lines": lines, "scores": of_scores, "deltas": of_deltas, "quantity": findings.bars.quantity}


def _deltas_to_parents(findings: Findings, bars: Mapping[str, Bar]) -> tuple[dict[str, Delta], dict[str, Delta]]:
    """Return the deltas of variants to their parents in GLUE and in loss, the latter on the corpus of the variant's
    own loss if possible, else on another common corpus."""
    of_glue: dict[str, Delta] = {}
    of_loss: dict[str, list[Delta]] = defaultdict(list)
    for delta in findings.deltas:
        is_to_parent = delta.variant in bars and delta.base == bars[delta.variant].row.parent
        if is_to_parent and delta.design != OWN_RATES:
            if delta.quantity == "GLUE":
                of_glue[delta.variant] = delta
            elif delta.quantity == "loss":
                of_loss[delta.variant].append(delta)
    shown = {name: bar.row.own_loss[0] if bar.row.own_loss else "" for name, bar in bars.items()}
    first = {name: min(own, key=lambda delta: delta.corpus != shown[name]) for name, own in of_loss.items()}
    return of_glue, first


def _in_tree_order(rows: Mapping[str, Row]) -> Iterator[tuple[str, int]]:
    """Yield (name, depth), with 0 for the trunk: after each variant first its arms with their subtrees, then the
    trunk."""
    children: dict[str, list[str]] = defaultdict(list)
    for name, row in rows.items():
        children[row.parent].append(name)
    trunk = frozenset(current().last_kept.lineage())

    def below(name: str, depth: int) -> Iterator[tuple[str, int]]:
        for child in sorted(children[name], key=lambda each: each in trunk):
            own = 0 if child in trunk else depth + 1
            yield child, own
            yield from below(child, own)

    return below("", 0)


def _score(bar: Bar, bars: Bars, register: Register) -> Number:
    if bar.score is None:
        return NO_NUMBER
    how = f"{bars.quantity}; of each task the best point of its grid, mean over seeds, in points"
    title, ids = f"{bar.row.name}: GLUE", bar.row.mean_ids(bars.tasks)
    return register.number(number(bar.score.mean), title, how, ids)


def _difference(delta: Delta | None, register: Register) -> Number:
    if delta is None or delta.comparison is None:
        return NO_NUMBER
    mean = delta.comparison.mean
    how = f"mean over paired seeds of {delta.variant} less {delta.base}"
    title = f"{delta.variant} against {delta.base}: {delta.measured} {signed(mean, delta.digits)}"
    return register.number(signed(mean, 1 if delta.quantity == "GLUE" else 3), title, how, delta.ids)


def _loss(row: Row, register: Register) -> Number:
    if row.own_loss is None:
        return NO_NUMBER
    corpus, loss = row.own_loss
    ids = sorted(set(row.heldout[row.heldout.corpus == corpus].run))
    how = "held-out MLM loss in nats a token on fixed masks, mean over seeds"
    return register.number(number(loss.mean, 3), f"{row.name}: held-out loss on {corpus}", how, ids)


def _paper(bar: Bar, register: Register) -> Number:
    """Return the paper's average and its relative change, if printed. Next to a mean of other tasks only the change is
    shown; it still refers to the average."""
    paper = published.figure1().get(bar.row.name)
    if paper is None:
        return Number("")
    step = "" if paper.printed_delta_percent is None else signed_percent(paper.printed_delta_percent)
    if bar.paper is None:
        title = f"{bar.row.name}: change of the average of eight tasks to its parent in {current().published_as}"
        return register.number(step, title, "", paper.source)
    text = number(bar.paper.average) + (f" ({step})" if step else "")
    return register.number(text, f"{bar.row.name}: GLUE average in {current().published_as}", "", paper.source)
