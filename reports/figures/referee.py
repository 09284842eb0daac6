"""The picture of a session: progress, the band of noise, and which kept changes are real."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reports.figures.drawing import DISCARDED, GREY_INK, INK, KEPT, format_axes, rendered, single_axes
from reports.logs.judging import Keep, Report
from reports.logs.reading import Log
from reports.logs.rendering import headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BAND = "#C9DBEA"
SUSPECT = "#C85200"
LABELLED = 4
"""Real changes with a label, the largest gains first."""

Places = Mapping[int, int]
"""The place of each line of a log among its runs."""


@rendered
def draw_session(log: Log, report: Report) -> "Figure":
    """Draw the runs in their order, the best kept so far with the spread of single runs around it, and the verdicts."""
    figure, axes = single_axes(6.75, 3.6)
    places = {run.line: place for place, run in enumerate(log.runs)}
    best = _best(log, report, places)
    low, high = _limits(report, best)
    outside = _draw_others(axes, log, report, places, (low, high))
    _draw_best(axes, report, [*best, (len(log.runs), best[-1][1])])
    _draw_keeps(axes, report, places, (low, high))
    axes.set_ylim(low, high)
    axes.set_xlim(-0.02 * len(log.runs), 1.02 * len(log.runs))
    title, _, more = headline(report).partition(". ")
    format_axes(axes, (title, more), "experiment", f"{report.metric} ({report.better} is better)")
    foot = f"{report.log}; band: one standard deviation of single runs around the best" if report.spread else report.log
    foot += f"; {outside} runs lie outside" if outside else ""
    figure.text(0.01, 0.005, foot, fontsize=6.4, color=GREY_INK, va="bottom")
    figure.set_layout_engine("constrained", rect=(0, 0.04, 1, 0.96))
    axes.legend(loc="upper right" if report.lower_is_better else "lower right", frameon=False, fontsize=6.8)
    return figure


def _draw_others(axes: "Axes", log: Log, report: Report, places: Places, limits: tuple[float, float]) -> int:
    """Draw the runs that were not kept; return how many lie outside of the limits."""
    kept = {keep.line for keep in report.keeps}
    others = [(places[run.line], float(run.value or 0)) for run in log.measured if run.line not in kept]
    inside = [point for point in others if limits[0] <= point[1] <= limits[1]]
    style: dict[str, Any] = {"ms": 2.6, "mfc": DISCARDED, "mec": "none", "zorder": 1}
    axes.plot([place for place, _ in inside], [value for _, value in inside], "o", **style)
    return len(others) - len(inside)


def _draw_best(axes: "Axes", report: Report, best: Sequence[tuple[int, float]]) -> None:
    """Draw the best value so far, with a band of one spread."""
    across, up = [place for place, _ in best], np.array([value for _, value in best])
    axes.step(across, up, where="post", color=KEPT, lw=1.1, zorder=2)
    if report.spread is not None:
        half = report.spread * (np.abs(up) if report.in_logarithms else 1.0)
        axes.fill_between(across, up - half, up + half, step="post", color=BAND, lw=0, zorder=0)


def _best(log: Log, report: Report, places: Places) -> list[tuple[int, float]]:
    """Return where the best kept value changes, and its values."""
    best: list[tuple[int, float]] = []
    for keep in report.keeps:
        is_bound = "the metric is at its bound" in keep.suspicions
        is_better = bool(best) and log.sign * keep.value < log.sign * best[-1][1]
        if keep.verdict == "baseline" or (is_better and not is_bound):
            best.append((places[keep.line], keep.value))
    return best


def _limits(report: Report, best: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return limits that show all kept runs, and of the others those near them."""
    kept = [value for _, value in best] + [keep.value for keep in report.keeps if keep.verdict != "not shown"]
    low, high = min(kept), max(kept)
    margin = 0.12 * (high - low) or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


STYLES: dict[str, dict[str, Any]] = {
    "baseline": {"mfc": INK, "mec": INK, "marker": "s"},
    "kept and real": {"mfc": KEPT, "mec": KEPT, "marker": "o"},
    "kept, not shown to be real": {"mfc": "white", "mec": KEPT, "marker": "o"},
    "kept and suspicious": {"mfc": "white", "mec": SUSPECT, "marker": "D"},
}


def _kind(keep: Keep) -> str:
    """Return the key of `STYLES` of a kept run."""
    if keep.verdict == "baseline":
        return "baseline"
    if keep.verdict == "real":
        return "kept and real"
    return "kept and suspicious" if keep.suspicions else "kept, not shown to be real"


def _draw_keeps(axes: "Axes", report: Report, places: Places, limits: tuple[float, float]) -> None:
    for kind, style in STYLES.items():
        keeps = [keep for keep in report.keeps if _kind(keep) == kind]
        seen = [keep for keep in keeps if limits[0] <= keep.value <= limits[1]]
        if seen:
            label = kind if kind == "baseline" else f"{kind} ({len(keeps)})"
            spots = [places[keep.line] for keep in seen]
            axes.plot(spots, [keep.value for keep in seen], ls="", ms=5, mew=1.1, zorder=3, label=label, **style)
    real = sorted((keep for keep in report.keeps if keep.verdict == "real"), key=lambda keep: -abs(keep.gain or 0))
    for keep in real[:LABELLED]:
        words = textwrap.shorten(keep.description, 34, placeholder=" …")
        spot = (places[keep.line], keep.value)
        axes.annotate(words, spot, xytext=(5, 5), textcoords="offset points", fontsize=6, color=INK)
