"""Curves of child over parent: the losses of both along the run, and their difference, at equal steps and at equal time
since each run left the plateau of token frequencies."""

import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ablations.rates import MARK, without_rate
from reports.analysis.inference import seed_interval
from reports.analysis.steps import Step
from reports.analysis.transitions import RunCurve, Wait, steps_of
from reports.curves import Array, Curves
from reports.figures.drawing import GREY_INK, INK, PAGE_INCHES, PANELS_BESIDE, describe_data, format_ticks, rendered
from reports.figures.tones import Tone, draw_tones, tone_of
from reports.scores import Group, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SEEDS = 20  # lines per panel: more cannot be told apart
POINTS = 60
"""Steps at which differences are drawn, evenly spaced in the logarithm."""
SKIPPED_SHARE = 0.02  # share of the run at the start that does not set the axes: the initial fall of the loss
LATE_SHARE = 0.1  # of the run: differences before it are of two models that have learned little
SMALL_TEXT, TRAINING = "held-out loss, small text", "training loss"
PARENT = "#C4C4C4"
DASHED: Any = (0, (3, 1.5))
UPPER_INCHES, LOWER_INCHES, GAP_INCHES, BETWEEN_INCHES = 0.95, 0.8, 0.1, 0.55
HEAD_INCHES, LEFT_INCHES, LINE_INCHES = 0.68, 0.4, 0.115


@dataclass(frozen=True)
class Pair:
    """A variant and its base: the curves of both by seed, what was measured, and the verdict on the step. `reason` says
    why no difference is drawn, if none is."""

    variant: str
    base: str
    measured: str
    ours: Mapping[int, RunCurve] = field(default_factory=dict)
    theirs: Mapping[int, RunCurve] = field(default_factory=dict)
    reason: str = ""
    tone: Tone = Tone.NOTHING

    @property
    def name(self) -> str:
        variant, base = (without_rate(name) for name in (self.variant, self.base))
        return f"{variant} − {base}{', own rates' if MARK in self.variant + self.base else ''}"

    @property
    def seeds(self) -> list[int]:
        return sorted(self.ours.keys() & self.theirs.keys())


def find_pairs(group: Group, curves: Curves, waits: Sequence[Wait], steps: Sequence[Step]) -> tuple[Pair, ...]:
    """Return the steps with curves, without parts: the curves of the waits, or else those of the training loss, without
    times of transition."""
    by_pair = {(wait.variant, wait.base): wait for wait in waits}
    tones = {(step.variant, step.base): tone_of(step.primary) for step in steps if step.primary}
    parts = {(step.variant, step.base) for step in steps if step.part_of}
    found = []
    for variant, base in steps_of(group):
        names = variant.name, base.name
        if names in parts:
            continue
        pair = _pair(variant, base, curves, by_pair.get(names))
        found.append(replace(pair, tone=tones.get(names, Tone.NOTHING)))
    return tuple(pair for pair in found if pair.ours and pair.theirs)


def _pair(variant: Row, base: Row, curves: Curves, wait: Wait | None) -> Pair:
    if wait is not None and wait.arms:
        arm, parent = wait.arms
        return Pair(variant.name, base.name, SMALL_TEXT, arm.runs, parent.runs, wait.left_out)
    ours, theirs = (dict(_training(row, curves)) for row in (variant, base))
    return Pair(variant.name, base.name, TRAINING, ours, theirs, wait.left_out if wait else "")


def _training(row: Row, curves: Curves) -> Iterator[tuple[int, RunCurve]]:
    """Yield the curve of the training loss of each seed that has one."""
    for seed, run in zip(row.runs.seed, row.runs.id, strict=True):
        if points := curves.training(run):
            yield seed, RunCurve(None, points)


@rendered
def draw_curves(pairs: Sequence[Pair], group: Group) -> "Figure":
    """Draw each pair in two panels: the losses above, the difference below."""
    from matplotlib.figure import Figure

    beside = min(PANELS_BESIDE, len(pairs))
    lines = math.ceil(len(pairs) / beside)
    block = UPPER_INCHES + GAP_INCHES + LOWER_INCHES + BETWEEN_INCHES
    foot = textwrap.wrap(_foot(pairs), 138)
    height = HEAD_INCHES + block * lines - 0.15 + LINE_INCHES * len(foot)
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
    title = f"Child over parent — {describe_data(group)}"
    figure.text(0.01, 1 - 0.08 / height, title, fontsize=8.5, weight="bold", color=INK, va="top")
    draw_tones(figure, {pair.tone for pair in pairs}, 1 - 0.42 / height)
    small: dict[str, Any] = {"fontsize": 6, "color": GREY_INK, "linespacing": 1.3}
    figure.text(0.01, 0.05 / height, "\n".join(foot), va="bottom", **small)
    return figure


def _foot(pairs: Sequence[Pair]) -> str:
    measured = " or ".join(dict.fromkeys(pair.measured for pair in pairs))
    return (
        f"Above: {measured}, nats per token, one line a seed, the parent's in light grey; ticks below them: when a run "
        "leaves the plateau of token frequencies. Below: variant minus parent, mean over paired seeds with its 95 % "
        "interval; solid at equal steps, dashed at equal time since each run's own transition, which is drawn from the "
        "mean transition of both arms on. Steps are logarithmic, the first tenth of the run is cut below."
    )


def _draw_losses(axes: "Axes", pair: Pair) -> None:
    values = []
    for runs, colour, order in ((pair.theirs, PARENT, 2), (pair.ours, pair.tone.colour, 3)):
        for run in [runs[seed] for seed in sorted(runs)[:MOST_SEEDS]]:
            steps, losses = zip(*run.points, strict=True)
            axes.plot(steps, losses, color=colour, lw=0.6, zorder=order)
            values += [loss for step, loss in run.points if step >= SKIPPED_SHARE * steps[-1]]
            if run.transition is not None:
                axes.axvline(run.transition, ymax=0.1, color=colour, lw=0.8, zorder=order)
    low, high = min(values), max(values)
    room = 0.08 * (high - low) or 0.1
    axes.set_ylim(low - 1.8 * room, high + room)
    title = textwrap.shorten(pair.name, 27, placeholder=" …")
    axes.set_title(title, fontsize=7, weight="bold", color=INK, loc="left", pad=3)


def _draw_difference(axes: "Axes", pair: Pair) -> None:
    axes.axhline(0, color=INK, lw=0.6, zorder=1)
    if pair.reason or not pair.seeds:
        told = "\n".join(textwrap.wrap(pair.reason or "no common seed", 24, max_lines=3, placeholder=" …"))
        words: dict[str, Any] = {"fontsize": 6, "color": GREY_INK, "ha": "center", "va": "center"}
        axes.text(0.5, 0.5, told, transform=axes.transAxes, bbox={"fc": "white", "ec": "none", "pad": 1.5}, **words)
        axes.set_ylim(-1, 1)
        axes.set_yticks([])
        return
    ends = [0.0]
    for differences, style in ((_at_equal_steps(pair), "-"), (_since_transition(pair), DASHED)):
        if differences:
            steps = [step for step, _ in differences]
            means, colour = [float(np.mean(own)) for _, own in differences], pair.tone.colour
            axes.plot(steps, means, color=colour, ls=style, lw=1.0, zorder=3)
            bands = [seed_interval(own) or (own[0], own[0]) for _, own in differences]
            low, high = zip(*bands, strict=True)
            axes.fill_between(steps, low, high, color=colour, alpha=0.16, lw=0, zorder=2)
            ends += [end for band in bands for end in band]
    room = 0.1 * (max(ends) - min(ends)) or 0.1
    axes.set_ylim(min(ends) - room, max(ends) + room)


Differences = list[tuple[float, list[float]]]
"""Steps with the differences of all paired seeds there."""


def _grid(pair: Pair) -> Array:
    """Return steps that are evenly spaced in the logarithm, up to the end of the run."""
    last = max(run.points[-1][0] for runs in (pair.ours, pair.theirs) for run in runs.values())
    return np.geomspace(LATE_SHARE * last, last, POINTS)


def _at_equal_steps(pair: Pair) -> Differences:
    return _differences(pair, pair.seeds, _grid(pair), lambda run, steps: steps)


def _since_transition(pair: Pair) -> Differences:
    """Return the differences at equal time since the transition, from the mean transition on; none without times."""
    arms = (pair.ours, pair.theirs)
    seeds = [seed for seed in pair.seeds if all(runs[seed].transition is not None for runs in arms)]
    if not seeds:
        return []
    middle = float(np.mean([runs[seed].transition or 0.0 for seed in seeds for runs in arms]))
    grid = _grid(pair)
    return _differences(pair, seeds, grid[grid >= middle], lambda run, steps: steps - middle + (run.transition or 0.0))


def _differences(
    pair: Pair, seeds: Sequence[int], steps: Array, own_steps: Callable[[RunCurve, Array], Array]
) -> Differences:
    """Return the steps at which the curves of all seeds have a value, with their differences; none without seeds."""
    if not seeds:
        return []
    ours, theirs = (
        np.array([runs[seed].losses_at(own_steps(runs[seed], steps)) for seed in seeds])
        for runs in (pair.ours, pair.theirs)
    )
    differences = (ours - theirs).T
    return [
        (step, found)
        for step, found in zip(steps.tolist(), differences.tolist(), strict=True)
        if not np.isnan(found).any()
    ]


def _format(upper: "Axes", lower: "Axes", pair: Pair) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

    last = _grid(pair)[-1]
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
