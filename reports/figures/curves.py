"""Curves of child over parent: the losses of both along the run, and their difference at equal steps."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.curves import Curves, Points
from reports.differences import LADDER, LOSS, OWN_RATES, find_steps, pairs_at_own_rates, why_not_paired
from reports.figures.drawing import (
    GREY_INK,
    INK,
    PAGE_INCHES,
    PANELS_BESIDE,
    Picture,
    describe_data,
    format_ticks,
    label_figure,
    word_colour,
)
from reports.rows import Study
from reports.scores import ScoreRow
from reports.statistics import t_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SEEDS = 20  # lines per panel: more cannot be told apart
POINTS = 60
"""Steps at which differences are drawn, evenly spaced in the logarithm."""
SKIPPED_SHARE = 0.02  # share of the run at the start that does not set the axes: the initial fall of the loss
LATE_SHARE = 0.1  # of the run: differences before it are of two models that have learned little
PARENT = "#C4C4C4"
UPPER_INCHES, LOWER_INCHES, GAP_INCHES, BETWEEN_INCHES = 0.95, 0.8, 0.1, 0.55
HEAD_INCHES, LEFT_INCHES, FOOT_INCHES = 0.5, 0.4, 0.2
FOOT = (
    "Above: training loss, nats per token, one line a seed, the parent's in light grey. Below: variant minus parent at "
    "equal steps, mean over paired seeds with its 95 % interval. Steps are logarithmic, the first tenth of the run is "
    "cut below. The colour is that of the difference in held-out loss."
)


@dataclass(frozen=True)
class CurvePair:
    """A variant and its parent with the curves of both by seed. `reason` says why no difference is drawn, if none is;
    `word` is that of their difference in held-out loss."""

    name: str
    ours: Mapping[int, Points] = field(default_factory=dict)
    theirs: Mapping[int, Points] = field(default_factory=dict)
    reason: str = ""
    word: str = ""

    @property
    def seeds(self) -> list[int]:
        return sorted(self.ours.keys() & self.theirs.keys())


def find_curves(study: Study) -> tuple[CurvePair, ...]:
    """Return the steps of the ladder, and those at own rates, with the curves of their training losses."""
    words = {(step.design, step.name): step.word for step in find_steps(study) if step.measure.name == LOSS}
    rows = [row for row in study.last_rows.values() if row.parent]
    pairs = [(LADDER, row, study.last_rows[row.parent]) for row in rows]
    pairs += [(OWN_RATES, *rows) for rows in pairs_at_own_rates(study)]
    found, seen = [], set()
    for design, variant, parent in pairs:
        name = f"{variant.name} − {parent.name}"
        if name in seen or variant.run_ids == parent.run_ids:
            continue
        seen.add(name)
        ours, theirs = (dict(_training(row, study.frames.curves)) for row in (variant, parent))
        found.append(CurvePair(name, ours, theirs, _why_not(variant, parent), words.get((design, name), "")))
    return tuple(pair for pair in found if pair.ours and pair.theirs)


def _training(row: ScoreRow, curves: Curves) -> Iterator[tuple[int, Points]]:
    """Yield the curve of the training loss of each seed that has one."""
    for seed, run in zip(row.runs.seed, row.runs.id, strict=True):
        if points := curves.training(run):
            yield seed, points


def _why_not(variant: ScoreRow, parent: ScoreRow) -> str:
    """Return why the training losses of two rows cannot be compared; empty if they can."""
    corpora = [row.recipe.pretraining.data.corpus for row in (variant, parent)]
    if corpora[0] != corpora[1]:
        return "losses on other text"
    if variant.tokens != parent.tokens:
        return "losses on other tokens"
    if variant.recipe.pretraining.masking != parent.recipe.pretraining.masking:
        return "losses under other masks"
    return "losses in other contexts" if variant.context != parent.context else why_not_paired(variant, parent)


def draw(study: Study) -> Picture | None:
    """Draw each pair in two panels, the losses above and the difference below; None without a pair of curves."""
    pairs = find_curves(study)
    return Picture(lambda: draw_pairs(pairs, describe_data(study))) if pairs else None


def draw_pairs(pairs: Sequence[CurvePair], data: str) -> "Figure":
    """Draw pairs of curves; `data` describes where they are from."""
    from matplotlib.figure import Figure

    beside = min(PANELS_BESIDE, len(pairs))
    lines = math.ceil(len(pairs) / beside)
    block = UPPER_INCHES + GAP_INCHES + LOWER_INCHES + BETWEEN_INCHES
    height = HEAD_INCHES + block * lines + FOOT_INCHES
    figure = Figure(figsize=(PAGE_INCHES, height))
    wide = (PAGE_INCHES - 0.05) / PANELS_BESIDE
    for place, pair in enumerate(pairs):
        left = (wide * (place % beside) + LEFT_INCHES) / PAGE_INCHES
        width = (wide - LEFT_INCHES - 0.06) / PAGE_INCHES
        up = height - HEAD_INCHES - block * (place // beside) - UPPER_INCHES
        upper = figure.add_axes((left, up / height, width, UPPER_INCHES / height))
        up -= GAP_INCHES + LOWER_INCHES
        lower = figure.add_axes((left, up / height, width, LOWER_INCHES / height))
        _draw_losses(upper, pair)
        _draw_difference(lower, pair)
        _format(upper, lower, pair)
    label_figure(figure, f"Child over parent — {data}", "", FOOT)
    return figure


def _draw_losses(axes: "Axes", pair: CurvePair) -> None:
    values = []
    for runs, colour, order in ((pair.theirs, PARENT, 2), (pair.ours, word_colour(pair.word), 3)):
        for points in [runs[seed] for seed in sorted(runs)[:MOST_SEEDS]]:
            steps, losses = zip(*points, strict=True)
            axes.plot(steps, losses, color=colour, lw=0.6, zorder=order)
            values += [loss for step, loss in points if step >= SKIPPED_SHARE * steps[-1]]
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - room, high + room)
    title = textwrap.shorten(pair.name, 30, placeholder=" …")
    axes.set_title(title, fontsize=6.5, weight="bold", color=INK, loc="left", pad=3)


def _draw_difference(axes: "Axes", pair: CurvePair) -> None:
    axes.axhline(0, color=INK, lw=0.6, zorder=1)
    if pair.reason or not pair.seeds:
        told = "\n".join(textwrap.wrap(pair.reason or "no common seed", 24, max_lines=3, placeholder=" …"))
        words: dict[str, Any] = {"fontsize": 6, "color": GREY_INK, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, told, transform=axes.transAxes, bbox={"fc": "white", "ec": "none", "pad": 1.5}, **words)
        axes.set_ylim(-1, 1)
        axes.set_yticks([])
        return
    last = min(points[-1][0] for runs in (pair.ours, pair.theirs) for points in runs.values())
    grid = np.geomspace(LATE_SHARE * last, last, POINTS) if last > 0 else np.zeros(1)
    ours, theirs = (
        np.array([np.interp(grid, *np.array(runs[seed]).T) for seed in pair.seeds]) for runs in (pair.ours, pair.theirs)
    )
    differences = (ours - theirs).T
    colour, means = word_colour(pair.word), differences.mean(axis=1)
    axes.plot(grid, means, color=colour, lw=1.0, zorder=3)
    bands = [t_interval(own) for own in differences.tolist()]
    low, high = zip(*(band or (mean, mean) for band, mean in zip(bands, means.tolist(), strict=True)), strict=True)
    axes.fill_between(grid, low, high, color=colour, alpha=0.16, lw=0, zorder=2)
    ends = [0.0, *low, *high]
    room = 0.1 * (max(ends) - min(ends)) or 0.1
    axes.set_ylim(min(ends) - room, max(ends) + room)


def _format(upper: "Axes", lower: "Axes", pair: CurvePair) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    last = max(points[-1][0] for runs in (pair.ours, pair.theirs) for points in runs.values()) or 1.0
    for axes in (upper, lower):
        axes.set_xscale("log")
        axes.set_xlim(SKIPPED_SHARE * last, last * 1.04)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=6))
        axes.xaxis.set_minor_locator(NullLocator())
        format_ticks(axes.xaxis)
        if axes is upper or not pair.reason:
            axes.locator_params(axis="y", nbins=4)
        format_ticks(axes.yaxis)
        axes.tick_params(length=2.5, width=0.6, labelsize=6, labelcolor=GREY_INK, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
    upper.xaxis.set_major_formatter(NullFormatter())
