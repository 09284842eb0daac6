"""The picture of a session: progress, the band of noise, and which kept changes are real."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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


@rendered
def draw_session(log: Log, report: Report) -> "Figure":
    """Draw the runs in their order, the best kept so far with the spread of single runs around it, and the verdicts."""
    figure, axes = single_axes(6.75, 3.6)
    places = {run.line: place for place, run in enumerate(log.runs)}
    others = [run for run in log.measured if run.line not in {keep.line for keep in report.keeps}]
    best = _best(log, report)
    low, high = _limits(log, report, best)
    inside = [run for run in others if run.value is not None and low <= run.value <= high]
    axes.plot(
        [places[r.line] for r in inside],
        [float(r.value or 0) for r in inside],
        "o",
        ms=2.6,
        mfc=DISCARDED,
        mec="none",
        zorder=1,
    )
    across = [place for place, _ in best] + [len(log.runs)]
    up = [value for _, value in best] + [best[-1][1]]
    axes.step(across, up, where="post", color=KEPT, lw=1.1, zorder=2)
    if report.spread is not None:
        half = [report.spread * (abs(value) if report.in_logarithms else 1.0) for value in up]
        ends = ([v - h for v, h in zip(up, half, strict=True)], [v + h for v, h in zip(up, half, strict=True)])
        axes.fill_between(across, *ends, step="post", color=BAND, lw=0, zorder=0)
    _draw_keeps(axes, report, places, (low, high))
    axes.set_ylim(low, high)
    axes.set_xlim(-0.02 * len(log.runs), 1.02 * len(log.runs))
    better = "lower" if report.lower_is_better else "higher"
    outside = len(others) - len(inside)
    title, _, more = headline(report).partition(". ")
    format_axes(axes, (title, more), "experiment", f"{report.metric} ({better} is better)")
    foot = f"{report.log}; band: one standard deviation of single runs around the best" if report.spread else report.log
    foot += f"; {outside} runs lie outside" if outside else ""
    figure.text(0.01, 0.005, foot, fontsize=6.4, color=GREY_INK, va="bottom")
    figure.set_layout_engine("constrained", rect=(0, 0.04, 1, 0.96))
    axes.legend(loc="upper right" if report.lower_is_better else "lower right", frameon=False, fontsize=6.8)
    return figure


def _best(log: Log, report: Report) -> list[tuple[int, float]]:
    """Return where the best kept value changes, and its values."""
    places = {run.line: place for place, run in enumerate(log.runs)}
    sign = 1.0 if log.lower_is_better else -1.0
    best: list[tuple[int, float]] = []
    for keep in report.keeps:
        is_bound = "the metric is at its bound" in keep.suspicions
        if keep.verdict == "baseline" or (best and not is_bound and sign * keep.value < sign * best[-1][1]):
            best.append((places[keep.line], keep.value))
    return best


def _limits(log: Log, report: Report, best: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return limits that show all kept runs, and of the others those near them."""
    kept = [value for _, value in best] + [keep.value for keep in report.keeps if keep.verdict != "not shown"]
    low, high = min(kept), max(kept)
    margin = 0.12 * (high - low) or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def _draw_keeps(axes: "Axes", report: Report, places: dict[int, int], limits: tuple[float, float]) -> None:
    groups: dict[str, tuple[list[Keep], dict[str, Any]]] = {
        "baseline": (
            [keep for keep in report.keeps if keep.verdict == "baseline"],
            {"mfc": INK, "mec": INK, "marker": "s"},
        ),
        "kept and real": ([k for k in report.keeps if k.verdict == "real"], {"mfc": KEPT, "mec": KEPT, "marker": "o"}),
        "kept, not shown to be real": (
            [k for k in report.keeps if k.verdict not in ("baseline", "real") and not k.suspicions],
            {"mfc": "white", "mec": KEPT, "marker": "o"},
        ),
        "kept and suspicious": (
            [k for k in report.keeps if k.verdict not in ("baseline", "real") and k.suspicions],
            {"mfc": "white", "mec": SUSPECT, "marker": "D"},
        ),
    }
    for label, (keeps, style) in groups.items():
        seen = [keep for keep in keeps if limits[0] <= keep.value <= limits[1]]
        if seen:
            words = f"{label} ({len(keeps)})" if label != "baseline" else label
            spots = [places[keep.line] for keep in seen]
            axes.plot(spots, [keep.value for keep in seen], ls="", ms=5, mew=1.1, zorder=3, label=words, **style)
    real = sorted((k for k in report.keeps if k.verdict == "real"), key=lambda keep: -abs(keep.gain or 0))
    for keep in real[:LABELLED]:
        words = textwrap.shorten(keep.description, 34, placeholder=" …")
        axes.annotate(
            words, (places[keep.line], keep.value), xytext=(5, 5), textcoords="offset points", fontsize=6, color=INK
        )
