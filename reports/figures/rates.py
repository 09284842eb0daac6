"""Held-out loss over peak learning rates on pilot seeds: a panel per variant, with the optimum."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from neobert.rates import rate_text
from reports.figures.drawing import COLOURS, INK, KEPT, Picture, describe_data, panel_grid
from reports.rates import PilotSweep
from reports.remarks import warnings
from reports.rows import Study
from reports.tables import DASH, Table, frame_of, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TALLEST = 3.0
"""Maximum height of the axis above the best mean, in ranges of the best three rates; higher losses are cut."""
FOOT = (
    "Rings: pilot seeds; line: their mean; crosses: rates at which a run failed; curve: parabola through the best "
    "three rates; vertical line: the optimum; dotted: the shared rate. Losses far above the best are cut at the upper "
    "edge. Pilot seeds are in no comparison of variants."
)


def draw(study: Study) -> Picture | None:
    """Draw all sweeps of a study; None without a sweep."""
    return Picture(lambda: _draw(study)) if study.sweeps else None


def _draw(study: Study) -> "Figure":
    title = "Held-out loss (nats per token) by peak learning rate"
    figure, panels = panel_grid(len(study.sweeps), title, describe_data(study), FOOT)
    for axes, sweep in zip(panels, study.sweeps.values(), strict=True):
        _draw_panel(axes, sweep)
    return figure


def _draw_panel(axes: "Axes", sweep: PilotSweep) -> None:
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


def _limits(sweep: PilotSweep) -> tuple[float, float]:
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
    *("Variant", "Shared rate", "Loss at it", "Rates tried", "Pilot seeds", "Best tried", "Optimum", "Loss there"),
    *("At its best rate", "Its seeds", "Remark"),
)
FACTS = (
    *("variant", "peak_learning_rate", "pilot_seed", "heldout_loss", "failure", "shared_rate", "optimum"),
    *("optimum_loss", "at_best_rate", "records"),
)
NOTES = (
    "Held-out MLM loss in nats per token at the end of pre-training, on a variant's own corpus in its own context, by "
    "peak learning rate, on pilot seeds. Optimum: vertex of the parabola through the best three rates, in the "
    "logarithm of the rate. Where the loss jumps or a run failed at the next rate, it is the best rate tried.",
    "At its best rate: the arm of differences at own rates. Pilot seeds are in no difference and no score.",
)


def table(study: Study) -> Table | None:
    """Return a table with one line per variant, None without a sweep; the CSV file has one for each rate and pilot
    seed."""
    sweeps = study.sweeps.values()
    if not sweeps:
        return None
    return Table(
        title=f"Held-out loss by peak learning rate ({study.where})",
        shown=frame_of([_cells(sweep, study) for sweep in sweeps], HEADER),
        facts=frame_of([line for sweep in sweeps for line in _facts(sweep)], FACTS),
        alignment="lrrrrrrrlrl",
        notes=(*warnings(study), *NOTES, *(f"{sweep.variant}: {note}." for sweep in sweeps for note in sweep.notes)),
    )


def _cells(sweep: PilotSweep, study: Study) -> list[str]:
    curve, optimum, at_best = sweep.curve, sweep.optimum, study.row_at_best_rate(sweep.variant)
    means, rates = curve.means, curve.rates
    return [
        sweep.variant,
        rate_text(sweep.shared_rate),
        number(means.get(sweep.shared_rate), 4),
        f"{rate_text(rates[0])} to {rate_text(rates[-1])} ({len(rates)})",
        ", ".join(map(str, curve.seeds)),
        rate_text(min(means, key=means.__getitem__)) if means else DASH,
        rate_text(optimum.rate) if optimum else DASH,
        number(optimum.loss if optimum else None, 4),
        sweep.best or DASH,
        str(at_best.runs.seed.nunique() if at_best else 0) if optimum else DASH,
        _remark(sweep) or DASH,
    ]


def _remark(sweep: PilotSweep) -> str:
    """Return why the optimum is not the vertex of a parabola, or why there is none, and where runs failed."""
    curve = sweep.curve
    failed = [rate_text(rate) for rate in curve.rates if curve.has_failed(rate)]
    without = "the best rate lies at the edge of what was tried" if curve.means else "no rate has a loss"
    reason = sweep.optimum.reason if sweep.optimum else without
    return "; ".join(filter(None, (reason, f"a run failed at {', '.join(failed)}" if failed else "")))


def _facts(sweep: PilotSweep) -> Iterator[list[Any]]:
    """Yield a line for each run with a loss or a failure."""
    curve, optimum = sweep.curve, sweep.optimum
    of_sweep = (f"{sweep.shared_rate:.6g}", *((f"{optimum.exact:.6g}", optimum.loss) if optimum else (None, None)))
    for rate in curve.rates:
        losses, failures = curve.losses.get(rate, {}), curve.failures.get(rate, {})
        for seed in sorted({*losses, *failures}):
            own = sweep.variant, f"{rate:.6g}", seed, losses.get(seed), failures.get(seed)
            yield [*own, *of_sweep, sweep.best, sweep.ids.get(rate, {}).get(seed)]
