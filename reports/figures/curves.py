"""Curves of pre-training: the loss, and the tokens per second, of every variant with its parent in grey behind it."""

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reports.curves import Curve, Curves, Points
from reports.figures.drawing import DISCARDED, GREY_INK, INK, KEPT, describe_data, panel_grid, rendered
from reports.scores import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_SEEDS = 20  # lines per panel: more cannot be told apart
SKIPPED_SHARE = 0.02  # share of a curve's start that does not set the axis: the initial fall of the loss
LOSS_FOOT = (
    "Line: training loss in nats a token, one a seed; rings: held-out loss; grey: the parent's first seed. Steps count "
    f"over all stages. Variants with the same runs share a panel, which has up to {MOST_SEEDS} seeds."
)
SPEED_FOOT = "Real tokens a second, medians, one line a seed; grey: the parent's first seed."

Drawn = Mapping[str, Sequence[Curve]]
"""The curves of the seeds of each variant, by the name of the first variant with the same runs."""


def find_curves(group: Group, curves: Curves) -> Drawn:
    """Read the curves of all rows with runs, as far as they have metrics."""
    first_of = {row.run_ids: name for name, row in reversed(group.rated_rows.items())}
    found = {}
    for name in sorted(first_of.values(), key=list(group.rated_rows).index):
        runs = group.rated_rows[name].runs.sort_values("seed").id[:MOST_SEEDS]
        if own := [curve for run in runs if (curve := curves.of(run)) is not None]:
            found[name] = own
    return found


@rendered
def draw_losses(drawn: Drawn, group: Group) -> "Figure":
    """Draw the training losses over steps, with the held-out losses."""
    tails = [value for own in drawn.values() for curve in own for _, value in _without_start(curve.loss)]
    heldout = [value for own in drawn.values() for curve in own for _, value in curve.heldout]
    limits = _padded([*tails, *heldout])
    return _draw(drawn, group, "Loss over steps", LOSS_FOOT, lambda curve: curve.loss, limits, heldout=True)


@rendered
def draw_speeds(drawn: Drawn, group: Group) -> "Figure":
    """Draw the tokens per second over steps."""
    highest = max((speed for own in drawn.values() for curve in own for _, speed in curve.tokens_per_second), default=1)
    limits = 0.0, 1.05 * highest
    return _draw(drawn, group, "Tokens a second over steps", SPEED_FOOT, lambda curve: curve.tokens_per_second, limits)


def _without_start(line: Points) -> Points:
    return line[int(len(line) * SKIPPED_SHARE) + (len(line) > 1) :]


def _padded(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values, default=0.0), max(values, default=1.0)
    room = 0.06 * (high - low) or 0.03 * max(abs(high), 1.0)
    return low - room, high + room


def _draw(
    drawn: Drawn,
    group: Group,
    title: str,
    foot: str,
    line_of: Callable[[Curve], Points],
    limits: tuple[float, float],
    *,
    heldout: bool = False,
) -> "Figure":
    rows = group.rated_rows
    figure, panels = panel_grid(len(drawn), title, describe_data(group), foot)
    last = max((step for own in drawn.values() for curve in own for step, _ in curve.loss), default=1)
    for axes, (name, own) in zip(panels, drawn.items(), strict=True):
        behind = drawn.get(rows[name].parent, ())[:1]
        _draw_lines(axes, [line_of(curve) for curve in behind], color=DISCARDED, lw=0.8)
        colour, style = (KEPT, "-") if rows[name].kept else (INK, (0, (4, 2)))
        _draw_lines(axes, [line_of(curve) for curve in own], color=colour, ls=style, lw=0.7, zorder=3)
        if heldout:
            rings: dict[str, Any] = {
                "ls": "",
                "marker": "o",
                "ms": 2.0,
                "mfc": "white",
                "mec": INK,
                "mew": 0.5,
                "clip_on": False,
            }
            _draw_lines(axes, [curve.heldout for curve in own], zorder=4, **rings)
        names = ", ".join(other for other, row in rows.items() if row.run_ids == rows[name].run_ids)
        shown = textwrap.shorten(names, 24, placeholder=" …")
        axes.set_title(shown, fontsize=7, weight="bold", color=INK, loc="left", pad=3)
        axes.set_ylim(*limits)
        axes.set_xlim(0, last)
        axes.locator_params(nbins=4)
        axes.tick_params(length=2.5, width=0.6, labelsize=6, labelcolor=GREY_INK)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_lines(axes: "Axes", lines: Sequence[Points], **style: Any) -> None:
    for line in lines:
        axes.plot([step for step, _ in line], [value for _, value in line], **style)
