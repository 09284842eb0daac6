"""Held-out loss over peak learning rates on pilot seeds: a panel per variant, with the optimum and its error."""

import math
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from ablations.rates import rate_text
from reports.figures.drawing import COLOURS, INK, KEPT, describe_data, rendered
from reports.notes import warnings
from reports.rates import Sweep
from reports.scores import Group
from reports.tables import DASH, Table, frame_of, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMNS = 4
WIDTH_INCHES, PANEL_INCHES = 6.75, 1.45
HEAD_INCHES, FOOT_INCHES, LABEL_INCHES = 0.65, 0.5, 0.2
"""The width spans two columns of a paper."""
TALLEST = 3.0
"""Maximum height of the axis above the best mean, in ranges of the best three rates; higher losses are cut."""
FOOT = (
    "Rings: pilot seeds; line: their mean; crosses: rates at which a run failed; curve: parabola through the best "
    "three rates; vertical line and band: the optimum, and one standard error over pilot seeds; dotted: the shared "
    "rate. Losses far above the best are cut at the upper edge. Pilot seeds are in no comparison of variants."
)


@rendered
def draw_sweeps(group: Group) -> "Figure":
    """Draw all sweeps of a group."""
    from matplotlib.figure import Figure

    sweeps = list(group.sweeps.values())
    columns = min(COLUMNS, len(sweeps))
    lines = math.ceil(len(sweeps) / columns)
    height = HEAD_INCHES + PANEL_INCHES * lines + FOOT_INCHES
    figure = Figure(figsize=(WIDTH_INCHES, height))
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    ends = {"bottom": (FOOT_INCHES + LABEL_INCHES) / height, "top": 1 - HEAD_INCHES / height}
    figure.subplots_adjust(left=LABEL_INCHES * 2 / WIDTH_INCHES, right=0.99, **ends, wspace=0.32, hspace=0.55)
    for axes, sweep in zip(panels, sweeps, strict=False):
        _draw_panel(axes, sweep)
    for axes in panels[len(sweeps) :]:
        axes.set_visible(False)
    title = "Held-out loss (nats a token) by peak learning rate"
    figure.text(0.01, 1 - 0.08 / height, title, fontsize=9, weight="bold", color=INK, va="top")
    figure.text(0.01, 1 - 0.26 / height, describe_data(group), fontsize=7, color="#444444", va="top")
    foot = "\n".join(textwrap.wrap(FOOT, 132))
    figure.text(0.01, 0.06 / height, foot, fontsize=6, color="#444444", va="bottom", linespacing=1.3)
    return figure


def _draw_panel(axes: "Axes", sweep: Sweep) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    curve, optimum = sweep.curve, sweep.optimum
    axes.set_xscale("log")
    low, high = _limits(sweep)
    ring: dict[str, Any] = {"ls": "", "marker": "o", "ms": 2.6, "mfc": "white", "mec": KEPT, "mew": 0.6, "zorder": 4}
    points = [(rate, loss) for rate, own in curve.losses.items() for loss in own.values()]
    axes.plot([rate for rate, _ in points], [min(loss, high) for _, loss in points], clip_on=False, **ring)
    axes.plot(list(curve.means), list(curve.means.values()), color=KEPT, lw=0.9, zorder=3)
    failed = [rate for rate in curve.rates if curve.has_failed(rate)]
    axes.plot(failed, [high] * len(failed), ls="", marker="x", ms=4, color=COLOURS[1], clip_on=False, zorder=5)
    axes.axvline(sweep.shared_rate, color=INK, lw=0.6, ls=":", zorder=1)
    if optimum is not None:
        if optimum.interval is not None:
            axes.axvspan(*optimum.interval, color=COLOURS[6], alpha=0.5, lw=0, zorder=0)
        axes.axvline(optimum.exact, color=COLOURS[0], lw=0.8, zorder=2)
    if optimum is not None and optimum.fitted:
        rates = np.geomspace(optimum.fitted[0], optimum.fitted[-1], 60)
        axes.plot(rates, [optimum.fitted_loss(float(rate)) for rate in rates], color=COLOURS[1], lw=0.9, zorder=3)
    best = "no optimum" if optimum is None else rate_text(optimum.rate)
    axes.set_title(f"{sweep.variant}: {best}", fontsize=7, weight="bold", color=INK, loc="left", pad=3)
    axes.set_ylim(low, high)
    axes.set_xlim(min(curve.rates) / 1.3, max(curve.rates) * 1.3)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 3), numticks=8))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: rate_text(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.tick_params(length=2.5, width=0.6, labelsize=6)
    axes.locator_params(axis="y", nbins=4)
    axes.spines[["top", "right"]].set_visible(False)


def _limits(sweep: Sweep) -> tuple[float, float]:
    """Return the ends of the axis of losses, from below the lowest; single bad rates do not stretch it."""
    losses = sorted(loss for own in sweep.curve.losses.values() for loss in own.values() if math.isfinite(loss))
    if not losses:
        return 0.0, 1.0
    means = sorted(sweep.curve.means.values()) or losses
    reach = TALLEST * (means[min(2, len(means) - 1)] - means[0])
    high = min(losses[-1], means[0] + reach) if reach else losses[-1]
    room = 0.08 * (high - losses[0]) or 0.5
    return losses[0] - room, high + room


HEADER = (
    *("Variant", "Shared rate", "Loss at it", "Rates tried", "Pilot seeds", "Best tried", "Optimum", "Within 1 s.e."),
    *("Loss there", "At its best rate", "Its seeds", "Remark"),
)
FACTS = (
    *("variant", "peak_learning_rate", "pilot_seed", "heldout_loss", "failure", "shared_rate", "optimum"),
    *("optimum_low", "optimum_high", "optimum_loss", "at_best_rate", "records"),
)
NOTES = (
    "Held-out MLM loss in nats a token at the end of pre-training, on a variant's own corpus in its own context, by "
    "peak learning rate, on pilot seeds. Optimum: vertex of the parabola through the best three rates, in the "
    "logarithm of the rate; within 1 s.e.: one standard error of the mean of the seeds' own vertices to each side "
    "(none with one seed). Where the loss jumps or a run failed at the next rate, it is the best rate tried.",
    "At its best rate: what the deltas at own rates take; a rate within a tenth of the optimum counts as it. Pilot "
    "seeds are in no delta, no score and no sum of costs.",
)


def sweeps_table(group: Group) -> Table:
    """Return a table with one line per variant; the CSV file has one for each rate and pilot seed."""
    sweeps = list(group.sweeps.values())
    return Table(
        title=f"Held-out loss by peak learning rate (scale {group.scale}, data {group.data})",
        shown=frame_of([_shown(sweep, group) for sweep in sweeps], HEADER),
        facts=frame_of([line for sweep in sweeps for line in _facts(sweep, group)], FACTS),
        alignment="l" + "r" * 8 + "lrl",
        notes=(*warnings(group), *NOTES, *(f"{sweep.variant}: {note}." for sweep in sweeps for note in sweep.notes)),
        records=tuple(tuple(run for ids in sweep.ids.values() for run in ids.values()) for sweep in sweeps),
    )


def _shown(sweep: Sweep, group: Group) -> tuple[str, ...]:
    curve, optimum = sweep.curve, sweep.optimum
    names = sweep.variant, rate_text(sweep.shared_rate), number(curve.means.get(sweep.shared_rate), 4)
    best = rate_text(min(curve.means, key=lambda rate: curve.means[rate])) if curve.means else DASH
    tried = f"{rate_text(curve.rates[0])} to {rate_text(curve.rates[-1])} ({len(curve.rates)})"
    seeds = ", ".join(map(str, curve.seeds))
    if optimum is None:
        reason = "the best rate lies at the edge of what was tried" if curve.means else "no rate has a loss"
        return (*names, tried, seeds, best, DASH, DASH, DASH, DASH, DASH, _remark(sweep, reason))
    interval = DASH if optimum.interval is None else " to ".join(map(rate_text, optimum.interval))
    row = group.row_at_best_rate(sweep.variant)
    at_best = sweep.best if row is None else row.name
    runs = "0" if row is None else str(row.runs.seed.nunique())
    loss = number(optimum.loss, 4)
    return (
        *(*names, tried, seeds, best, rate_text(optimum.rate), interval, loss, at_best, runs),
        _remark(sweep, optimum.reason),
    )


def _remark(sweep: Sweep, reason: str) -> str:
    failed = [rate_text(rate) for rate in sweep.curve.rates if sweep.curve.has_failed(rate)]
    said = [reason] if reason else []
    return "; ".join([*said, *([f"a run failed at {', '.join(failed)}"] if failed else [])]) or DASH


def _facts(sweep: Sweep, group: Group) -> list[tuple[Any, ...]]:
    """Return one line per pilot run with a loss or a failure, each with the optimum of the sweep."""
    curve, optimum = sweep.curve, sweep.optimum
    row = group.row_at_best_rate(sweep.variant)
    found: tuple[Any, ...] = (None,) * 5
    if optimum is not None:
        low, high = optimum.interval or (None, None)
        at_best = sweep.best if row is None else row.name
        found = (*map(_rate_fact, (optimum.exact, low, high)), optimum.loss, at_best)
    lines = []
    for rate in curve.rates:
        losses, failures = curve.losses.get(rate, {}), curve.failures.get(rate, {})
        for seed in sorted({*losses, *failures}):
            measured = losses.get(seed), failures.get(seed), _rate_fact(sweep.shared_rate)
            run = sweep.ids.get(rate, {}).get(seed)
            lines.append((sweep.variant, _rate_fact(rate), seed, *measured, *found, run))
    return lines


def _rate_fact(rate: float | None) -> str | None:
    """Format a rate for the CSV file, in which floats would have six decimals."""
    return None if rate is None else f"{rate:.6g}"
