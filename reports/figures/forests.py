"""Forest plots: a line per step, a panel per measure, with seeds, mean and interval around zero. Colour is the word."""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reports.analysis.differences import Step
from reports.figures.drawing import (
    GREY_INK,
    INK,
    PAGE_INCHES,
    PANELS_BESIDE,
    WORD_COLOURS,
    describe_data,
    format_ticks,
    rendered,
    word_colour,
)
from reports.scores import Group
from reports.statistics import NO_CLEAR_DIFFERENCE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHADE, BAND = "#F4F4F4", "#DCE6EE"
LINE_INCHES, HEAD_INCHES, FOOT_INCHES, BETWEEN_INCHES = 0.2, 0.5, 0.45, 0.75
LEFT_INCHES = 1.55
MOST_BEYOND = 1.0
"""Maximum extension of an axis beyond seeds and zero for intervals, as a share of their range; wider ones are cut."""
FOOT = (
    "Diamond: mean difference of the variant to its parent, filled where there is a claim; line: 95 % t interval over "
    "seeds; dots: paired seeds; band: margin of equivalence. An interval much wider than all seeds is cut at the edge."
)


@rendered
def draw_forest(steps: Sequence[Step], group: Group) -> "Figure":
    """Draw the steps that are compared: a line for each of a design, a panel for each measure."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    compared = [step for step in steps if step.judged is not None]
    lines = list(dict.fromkeys((step.design, step.name) for step in compared))
    measures = list(dict.fromkeys((step.pair.measure.name, step.pair.measure.unit) for step in compared))
    beside = min(PANELS_BESIDE, len(measures))
    blocks = [measures[start : start + beside] for start in range(0, len(measures), beside)]
    block_inches = LINE_INCHES * len(lines) + BETWEEN_INCHES
    height = HEAD_INCHES + block_inches * len(blocks) + FOOT_INCHES
    figure = Figure(figsize=(PAGE_INCHES, height))
    width = (PAGE_INCHES - LEFT_INCHES) / beside
    for row, block in enumerate(blocks):
        bottom = height - HEAD_INCHES - block_inches * (row + 1) + BETWEEN_INCHES - 0.2
        for column, measure in enumerate(block):
            left = LEFT_INCHES + width * column
            up, wide, high = bottom / height, (width - 0.15) / PAGE_INCHES, LINE_INCHES * len(lines) / height
            axes = figure.add_axes((left / PAGE_INCHES, up, wide, high))
            own = {(step.design, step.name): step for step in compared if _measure_of(step) == measure}
            _draw_panel(axes, measure, [own.get(line) for line in lines])
            if column == 0:
                names = [f"{name}, {design}" if design != lines[0][0] else name for design, name in lines]
                axes.set_yticks(range(len(lines)), [textwrap.shorten(name, 34, placeholder=" …") for name in names])
    title = f"Differences to the parent — {describe_data(group)}"
    figure.text(0.01, 1 - 0.08 / height, title, fontsize=8.5, weight="bold", color=INK, va="top")
    shown = [word for word in WORD_COLOURS if any(word_colour(step.word) == WORD_COLOURS[word] for step in compared)]
    hollow = (NO_CLEAR_DIFFERENCE, "no word")
    handles = [
        Line2D([], [], ls="", marker="D", ms=3.8, mec=own, mfc="white" if word in hollow else own, label=word)
        for word in shown
        for own in [WORD_COLOURS[word]]
    ]
    style: dict[str, Any] = {"frameon": False, "fontsize": 6, "ncols": len(handles), "handletextpad": 0.3}
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.002, 1 - 0.2 / height), **style)
    foot = "\n".join(textwrap.wrap(FOOT, 135))
    figure.text(0.01, 0.06 / height, foot, fontsize=6, color=GREY_INK, va="bottom", linespacing=1.3)
    return figure


def _measure_of(step: Step) -> tuple[str, str]:
    return step.pair.measure.name, step.pair.measure.unit


def _draw_panel(axes: "Axes", measure: tuple[str, str], steps: Sequence[Step | None]) -> None:
    low, high = limits([step for step in steps if step is not None])
    axes.set_xlim(low, high)
    axes.set_ylim(len(steps) - 0.5, -0.5)
    for line in range(1, len(steps), 2):
        axes.axhspan(line - 0.5, line + 0.5, color=SHADE, lw=0, zorder=0)
    margin = next(step.pair.measure.margin for step in steps if step is not None)
    axes.axvspan(max(low, -margin), min(high, margin), color=BAND, lw=0, zorder=0.5)
    axes.axvline(0, color=INK, lw=0.7, zorder=1)
    for line, step in enumerate(steps):
        if step is not None:
            _draw_step(axes, step, line)
    name, unit = measure
    axes.set_title("\n".join(textwrap.wrap(name, 24)), fontsize=6.5, weight="bold", color=INK, loc="left", pad=3)
    axes.set_xlabel(unit, fontsize=6, color=INK, labelpad=1)
    axes.set_yticks([])
    axes.tick_params(length=2.5, width=0.6, labelsize=6)
    axes.locator_params(axis="x", nbins=4)
    format_ticks(axes.xaxis)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_step(axes: "Axes", step: Step, line: int) -> None:
    colour, found = word_colour(step.word), step.found
    if found.interval is not None:
        axes.plot(found.interval, (line, line), color=colour, lw=1.4, zorder=3, solid_capstyle="butt")
    seeds: dict[str, Any] = {"ls": "", "marker": "o", "ms": 1.6, "color": colour, "mew": 0, "alpha": 0.55}
    axes.plot([*found.by_seed.values()], [line - 0.25] * found.n, zorder=2, **seeds)
    fill = "white" if colour in (WORD_COLOURS[NO_CLEAR_DIFFERENCE], WORD_COLOURS["no word"]) else colour
    axes.plot(found.mean, line, ls="", marker="D", ms=3.6, mfc=fill, mec=colour, mew=0.8, zorder=5)


def limits(steps: Sequence[Step]) -> tuple[float, float]:
    """Return the ends of an axis that contains zero, all seeds, and intervals as far as they are not much wider."""
    seeds = [0.0, *(value for step in steps for value in step.found.by_seed.values())]
    low, high = min(seeds), max(seeds)
    beyond = MOST_BEYOND * (high - low)
    ends = [end for step in steps for end in step.found.interval or ()]
    low, high = max(low - beyond, min([low, *ends])), min(high + beyond, max([high, *ends]))
    room = 0.08 * (high - low) or 1.0
    return low - room, high + room
