"""Charts of the page, as data for the templates: axes, the ladder as a tree, curves, and grids as heat maps.

Coordinates are in user units, rounded so that equal numbers give equal bytes.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablations.ladders import current
from neobert.glue.tasks import TASKS
from neobert.recipe import Point
from reports import published
from reports.analysis.inference import Interval, seed_interval
from reports.analysis.pairing import OWN_RATES, Delta
from reports.analysis.quantities import QUANTITIES
from reports.curves import Curve, Curves, Points
from reports.figures.figure1 import Bar, Bars
from reports.findings import Findings
from reports.notes import why_no_average
from reports.page.costs import shorten
from reports.page.register import NO_NUMBER, Number, Register
from reports.scores import POINTS_OF_SCORE, Cell, Row, point_name
from reports.tables import count, number, printed_range, signed, signed_percent

# Axes

STEPS = (1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True)
class Axis:
    """Linear map of values from low to high to picture coordinates from start to end; y axes start at the bottom."""

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

    def ticks(self, most: int = 4, write: Callable[[float], str] | None = None) -> list[tuple[float, str]]:
        """Return coordinates and labels of at most `most` round numbers; `write` formats the labels."""
        least = (self.high - self.low) / most
        power = 10.0 ** math.floor(math.log10(least))
        step = next(each * power for each in STEPS if each * power >= least * (1 - 1e-9))
        digits = max(0, -math.floor(math.log10(step)))
        values = [k * step for k in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        write = write or (lambda value: f"{value:,.{digits}f}".replace("-", "−"))
        return [(self.at(value), write(value)) for value in values]


def axis_over(values: Iterable[float], start: float, end: float, padding: float = 0.06) -> Axis:
    """Return an axis that contains all values with some padding, also if they are all equal or absent."""
    known = list(values)
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = padding * (high - low) if high > low else 0.03 * max(abs(high), 1.0)
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


def path(points: Iterable[tuple[float, float]], across: Axis, up: Axis) -> str:
    """Return the line through some points as an SVG path."""
    return "M" + "L".join(f"{across.at(x):g} {up.at(y):g}" for x, y in points)


# The ladder: a trunk of kept variants with arms; score, delta and held-out loss on every line

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
    title = f"{delta.variant} against {delta.base}: {delta.measured} {signed(mean, QUANTITIES[delta.quantity].digits)}"
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


# Small multiples of pre-training: each variant, and its parent in grey behind

WIDTH, LEFT, BOTTOM, TOP = 236.0, 34.0, 108.0, 8.0
MOST_SEEDS = 20  # lines per panel: more cannot be told apart
SKIPPED_SHARE = 0.02  # share of a curve's start that does not set the axis: the initial fall of the loss


def draw_curves(findings: Findings, curves: Curves, register: Register) -> list[dict[str, Any]]:
    """Return the charts of loss and of tokens per second; an empty list if no run has metrics.

    A chart has ticks `across` and `up`, shared by its `panels`; variants with the same runs share a panel. A panel has
    `lines`, one per seed, the parent's first seed `behind` them, `dots` for held-out losses, and a text `summary` for
    screen readers.
    """
    rows = findings.group.rated_rows
    first_of = {tuple(row.runs.id): name for name, row in reversed(rows.items())}
    known = {
        name: {run: curve for run in rows[name].runs.sort_values("seed").id[:MOST_SEEDS] if (curve := curves.of(run))}
        for name in first_of.values()
    }
    drawn: dict[str, dict[str, Curve]] = {name: known[name] for name in rows if known.get(name)}
    if not drawn:
        return []
    shown = [curve for own in drawn.values() for curve in own.values()]
    steps = (step for curve in shown for step, _ in (*curve.loss, *curve.tokens_per_second))
    across = Axis(0.0, max(steps, default=0.0) or 1.0, LEFT, WIDTH - 6)
    heldout = [value for curve in shown for _, value in curve.heldout]
    tails = [value for curve in shown for _, value in _without_start(curve.loss)]
    of_loss = axis_over([*tails, *heldout], BOTTOM, TOP)
    speeds = [value for curve in shown for _, value in curve.tokens_per_second]
    of_speed = axis_over([0.0, *speeds], BOTTOM, TOP, padding=0.0)

    def draw_panel(name: str, up: Axis, line_of: Callable[[Curve], Points]) -> dict[str, Any]:
        row, own = rows[name], drawn[name]
        ids = list(row.runs.id)
        more = f" ({MOST_SEEDS} drawn)" if len(ids) > MOST_SEEDS else ""
        runs = f"{count(len(ids), 'run')}{more}"
        lines = {run: line_of(curve) for run, curve in own.items()}
        dots = [point for curve in own.values() for point in curve.heldout] if up is of_loss else []
        return {
            "name": ", ".join(other for other, each in rows.items() if list(each.runs.id) == ids),
            "kept": row.kept,
            "lines": [path(line, across, up) for line in lines.values()],
            "behind": "".join(path(line_of(each), across, up) for each in [*drawn.get(row.parent, {}).values()][:1]),
            "dots": [(across.at(step), up.at(value)) for step, value in dots],
            "summary": _summary(lines, is_loss=up is of_loss),
            "runs": register.number(runs, f"{name}: curves", "metrics.jsonl of the runs", ids),
        }

    ticks = across.ticks(3, shorten)
    return [
        {
            "title": "Loss",
            "note": "training loss in nats a token; dots: held-out loss; grey: the parent; steps count over all stages",
            "up": of_loss.ticks(),
            "across": ticks,
            "panels": [draw_panel(name, of_loss, lambda curve: curve.loss) for name in drawn],
        },
        {
            "title": "Tokens a second",
            "note": "real tokens, medians; grey: the parent",
            "up": of_speed.ticks(write=shorten),
            "across": ticks,
            "panels": [draw_panel(name, of_speed, lambda curve: curve.tokens_per_second) for name in drawn],
        },
    ]


def _without_start(line: Points) -> Points:
    return line[int(len(line) * SKIPPED_SHARE) + (len(line) > 1) :]


def _summary(lines: Mapping[str, Sequence[tuple[float, float]]], *, is_loss: bool) -> str:
    last = [line[-1][1] for line in lines.values() if line]
    if not last:
        return "nothing measured"
    if is_loss:
        return f"training loss ends at {min(last):.3g}" + (f" to {max(last):.3g}" if len(last) > 1 else "")
    return f"about {shorten(max(last))} tokens a second at the end"


# Grid searches: learning rate × batch size per task, one map for each weight decay


def draw_grids(findings: Findings, register: Register) -> list[dict[str, Any]]:
    """Return the maps of every row with trials; those of the last kept variant are initially open."""
    rows = [row for row in findings.group.recorded_rows if any(cell.trials for cell in row.cells.values())]
    kept = [row for row in rows if row.variant is not None and row.kept]
    return [_draw_grid(row, row in kept[-1:], register) for row in rows]


def _draw_grid(row: Row, is_open: bool, register: Register) -> dict[str, Any]:
    cells = {task: cell for task, cell in row.cells.items() if cell.trials}
    points = {point for cell in cells.values() for point in cell.recorded.point}
    trials = sum(cell.trials for cell in cells.values())
    return {
        "label": row.label,
        "size": f"{count(len(points), 'point')} a task, {count(trials, 'trial')}",
        "is_open": is_open,
        "maps": [_draw_map(row, task, cell, register) for task, cell in cells.items()],
    }


def _draw_map(row: Row, task: str, cell: Cell, register: Register) -> dict[str, Any]:
    """Return the map of one task: `panels` are (weight decay, [(learning rate, cells by batch size), …]). A cell has a
    `number` and its `share`, from 0 for the map's lowest to 1 for its highest, or a `remark` on why there is no number.

    A mean is shown only if every counted seed has a score, so that all means are over the same seeds.
    """
    seeds = cell.recorded.seeds.nunique()
    by_point = dict(list(cell.recorded.groupby("point", sort=False)))
    means = {point: own.score.mean() * POINTS_OF_SCORE for point, own in by_point.items() if own.score.count() == seeds}
    low, high = min(means.values(), default=0.0), max(means.values(), default=0.0)

    def cell_at(decay: float, rate: float, size: int) -> dict[str, Any]:
        point = Point(batch_size=size, learning_rate=rate, weight_decay=decay)
        own = by_point.get(point, cell.recorded.iloc[:0])
        title, ids = f"{row.label}, {TASKS[task].title} at {point_name(point)}", list(own.id)
        if point not in means:
            remark = _why_no_mean(own, seeds)
            return {"number": register.number(remark, title, remark, ids), "share": 0.0, "remark": remark}
        share = (means[point] - low) / (high - low) if high > low else 1.0
        how = "mean over the seeds that count at this point of the grid, in points"
        shown = register.number(number(means[point]), title, how, ids)
        return {"number": shown, "share": round(share, 2), "is_best": point == cell.point, "remark": ""}

    sizes = sorted({point.batch_size for point in by_point})
    rates = sorted({point.learning_rate for point in by_point})
    decays = sorted({point.weight_decay for point in by_point}, reverse=True)
    panels = [
        (f"{decay:g}", [(f"{rate:g}", [cell_at(decay, rate, size) for size in sizes]) for rate in rates])
        for decay in decays
    ]
    return {"task": TASKS[task].title, "batch_sizes": sizes, "panels": panels}


def _why_no_mean(trials: pd.DataFrame, seeds: int) -> str:
    """Return the states of the trials without a score, or the number of seeds present."""
    without = sorted(set(trials.state) - {"done"})
    return ", ".join(without) or (f"{len(trials)} of {seeds} seeds" if len(trials) else "missing")
