"""Held-out loss over peak learning rates on pilot seeds: a panel per variant, with the optimum and its error."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ablations.rates import Optimum
from neobert.rates import rate_text
from reports.figures.drawing import COLOURS, INK, KEPT, Picture, describe_data, panel_grid
from reports.rates import PilotSweep
from reports.remarks import warnings
from reports.rows import Study
from reports.scores import ScoreRow
from reports.tables import DASH, Column, Table, facts_frame, make_table, rounded

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TALLEST = 3.0
"""Maximum height of the axis above the best mean, in ranges of the best three rates; higher losses are cut."""
FOOT = (
    "Rings: pilot seeds; line: their mean; crosses: rates at which a run failed; curve: parabola through the best "
    "three rates; vertical line and band: the optimum, and one standard error over pilot seeds; dotted: the shared "
    "rate. Losses far above the best are cut at the upper edge. Pilot seeds are in no comparison of variants."
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


@dataclass(frozen=True)
class _SweepLine:
    """A line of the table: a sweep, and the row of its variant at the best rate, if there is one."""

    sweep: PilotSweep
    at_best: ScoreRow | None

    @property
    def optimum(self) -> Optimum | None:
        return self.sweep.optimum

    @property
    def best(self) -> str:
        """Name of the variant at its best rate; empty without an optimum."""
        return self.sweep.best if self.at_best is None else self.at_best.name

    @property
    def tried(self) -> str:
        rates = self.sweep.curve.rates
        return f"{rate_text(rates[0])} to {rate_text(rates[-1])} ({len(rates)})"

    @property
    def best_tried(self) -> float | None:
        means = self.sweep.curve.means
        return min(means, key=means.__getitem__, default=None)

    @property
    def remark(self) -> str:
        """Why the optimum is not the vertex of a parabola, or why there is none, and the rates at which runs failed."""
        curve = self.sweep.curve
        failed = [rate_text(rate) for rate in curve.rates if curve.has_failed(rate)]
        without = "the best rate lies at the edge of what was tried" if curve.means else "no rate has a loss"
        reason = self.optimum.reason if self.optimum else without
        return "; ".join(filter(None, (reason, f"a run failed at {', '.join(failed)}" if failed else "")))


@dataclass(frozen=True)
class _PilotRun:
    """A line of the CSV file: a run with a loss or a failure."""

    of: _SweepLine
    rate: float
    seed: int

    def among(self, values: Mapping[float, Mapping[int, Any]]) -> Any:
        return values.get(self.rate, {}).get(self.seed)


def _rate(rate: float | None, _: Any = None) -> str:
    return DASH if rate is None else rate_text(rate)


def _rate_fact(rate: float | None) -> str | None:
    """Format a rate for the CSV file, in which floats would have six decimals."""
    return None if rate is None else f"{rate:.6g}"


def _interval(optimum: Optimum | None) -> tuple[float, float] | None:
    return None if optimum is None else optimum.interval


COLUMNS: Sequence[Column[_SweepLine]] = (
    Column("Variant", "", lambda line: line.sweep.variant),
    Column("Shared rate", "", lambda line: line.sweep.shared_rate, _rate, "r"),
    Column("Loss at it", "", lambda line: line.sweep.curve.means.get(line.sweep.shared_rate), rounded(4), "r"),
    Column("Rates tried", "", lambda line: line.tried, side="r"),
    Column("Pilot seeds", "", lambda line: ", ".join(map(str, line.sweep.curve.seeds)), side="r"),
    Column("Best tried", "", lambda line: line.best_tried, _rate, "r"),
    Column("Optimum", "", lambda line: line.optimum and line.optimum.rate, _rate, "r"),
    Column(
        "Within 1 s.e.",
        "",
        lambda line: _interval(line.optimum),
        lambda ends, _: " to ".join(map(rate_text, ends)) if ends else DASH,
        "r",
    ),
    Column("Loss there", "", lambda line: line.optimum and line.optimum.loss, rounded(4), "r"),
    Column("At its best rate", "", lambda line: line.best or None),
    Column(
        "Its seeds",
        "",
        lambda line: line.optimum and (0 if line.at_best is None else line.at_best.runs.seed.nunique()),
        side="r",
    ),
    Column("Remark", "", lambda line: line.remark or None),
)
FACTS: Sequence[Column[_PilotRun]] = (
    Column("", "variant", lambda run: run.of.sweep.variant),
    Column("", "peak_learning_rate", lambda run: _rate_fact(run.rate)),
    Column("", "pilot_seed", lambda run: run.seed),
    Column("", "heldout_loss", lambda run: run.among(run.of.sweep.curve.losses)),
    Column("", "failure", lambda run: run.among(run.of.sweep.curve.failures)),
    Column("", "shared_rate", lambda run: _rate_fact(run.of.sweep.shared_rate)),
    Column("", "optimum", lambda run: _rate_fact(run.of.optimum.exact if run.of.optimum else None)),
    Column("", "optimum_low optimum_high", lambda run: map(_rate_fact, _interval(run.of.optimum) or (None, None))),
    Column("", "optimum_loss", lambda run: run.of.optimum and run.of.optimum.loss),
    Column("", "at_best_rate", lambda run: run.of.best),
    Column("", "records", lambda run: run.among(run.of.sweep.ids)),
)
NOTES = (
    "Held-out MLM loss in nats per token at the end of pre-training, on a variant's own corpus in its own context, by "
    "peak learning rate, on pilot seeds. Optimum: vertex of the parabola through the best three rates, in the "
    "logarithm of the rate; within 1 s.e.: one standard error of the mean of the seeds' own vertices to each side "
    "(none with one seed). Where the loss jumps or a run failed at the next rate, it is the best rate tried.",
    "At its best rate: the arm of differences at own rates; a rate within a tenth of the optimum counts as it. Pilot "
    "seeds are in no difference and no score.",
)


def table(study: Study) -> Table | None:
    """Return a table with one line per variant, None without a sweep; the CSV file has one for each rate and pilot
    seed."""
    sweeps = study.sweeps.values()
    if not sweeps:
        return None
    lines = [_SweepLine(sweep, study.row_at_best_rate(sweep.variant)) for sweep in sweeps]
    shown = make_table(
        f"Held-out loss by peak learning rate ({study.where})",
        COLUMNS,
        lines,
        (*warnings(study), *NOTES, *(f"{sweep.variant}: {note}." for sweep in sweeps for note in sweep.notes)),
    )
    runs = [
        _PilotRun(line, rate, seed)
        for line in lines
        for rate in line.sweep.curve.rates
        for seed in sorted({*line.sweep.curve.losses.get(rate, {}), *line.sweep.curve.failures.get(rate, {})})
    ]
    return replace(shown, facts=facts_frame(FACTS, runs))
