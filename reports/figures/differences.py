"""Differences to the parent: a table with one line per step and measure, and a forest plot with a panel per measure.

In the plot, a step is a line with its seeds, mean and interval around zero; the colour is the word.
"""

import textwrap
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from reports.differences import ADD_ONE, BITS, LADDER, LEAVE_ONE_OUT, LOSS, OWN_RATES, ComparedStep, Measure, find_steps
from reports.figures.drawing import (
    INK,
    PAGE_INCHES,
    PANELS_BESIDE,
    WORD_COLOURS,
    Picture,
    describe_data,
    format_ticks,
    label_figure,
    word_colour,
)
from reports.remarks import searches_noted, warnings
from reports.rows import Study
from reports.scores import ScoreRow
from reports.statistics import LEAST_SEEDS_OF_INTERVAL, LEAST_SEEDS_OF_WORD, NO_CLEAR_DIFFERENCE
from reports.tables import DASH, Table, frame_of, number, print_by_seed, printed_range, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIMS = {
    LADDER: "Ladder: each difference is the effect of one step on top of all kept steps before it, so effects depend "
    "on the order of the steps.",
    OWN_RATES: "Own rates: each arm at the peak rate that a sweep found best for it on pilot seeds, which no "
    "difference counts. It supports claims about arms that are tuned alike.",
    LEAVE_ONE_OUT: "Leave-one-out: each difference is what a variant owes to one modification in the presence of all "
    "others. The differences do not add up where modifications overlap or depend on each other.",
    ADD_ONE: "Add-one: each difference is what one modification does to a variant by itself.",
}
"""What each design supports."""
SHADE, BAND = "#F4F4F4", "#DCE6EE"
LINE_INCHES, HEAD_INCHES, FOOT_INCHES, BETWEEN_INCHES = 0.2, 0.5, 0.45, 0.75
LEFT_INCHES = 1.55
MOST_BEYOND = 1.0
"""Maximum extension of an axis beyond seeds and zero for intervals, as a share of their range; wider ones are cut."""
FOOT = (
    "Diamond: mean difference of the variant to its parent, filled where there is a claim; line: 95 % t interval over "
    "seeds; dots: paired seeds; band: margin of equivalence. An interval much wider than all seeds is cut at the edge."
)
HEADER = ("Design", "Step", "Measure", "Unit", "n", "Mean", "95 % interval", "p (Holm)", "Word")
FACTS = (
    *("design", "variant", "parent", "measure", "unit", "n", "mean", "low", "high", "p_holm", "p_t"),
    *("p_equivalence_holm", "margin", "word", "by_seed", "notes", "records"),
)


def table(study: Study) -> Table | None:
    """Return the table with one line per step and measure; None if no rows are compared."""
    steps = find_steps(study)
    if not steps:
        return None
    names = {name for step in steps if step.judged for name in (step.variant, step.parent)}
    rows: Iterator[ScoreRow] = (row for name, row in study.compared_rows.items() if name in names)
    families = enumerate(pairwise((step.design, step.measure.name) for step in steps), 1)
    return Table(
        title=f"Differences at paired seeds ({study.where})",
        shown=frame_of(list(map(_cells, steps)), HEADER),
        facts=frame_of(list(map(_facts, steps)), FACTS),
        alignment="llllrrrrl",
        notes=(*warnings(study), *_notes(steps), *searches_noted(rows, mark="")),
        rules=frozenset(line for line, (above, own) in families if above != own),
    )


def _cells(step: ComparedStep) -> list[str]:
    numbers, found, digits = [DASH] * 4, step.difference, step.measure.digits
    if step.judged is not None:
        p = step.judged.p
        printed_p = "<0.001" if p is not None and p < 0.0005 else number(p, 3)
        numbers = [str(found.n), signed(found.mean, digits), printed_range(found.interval, digits), printed_p]
    return [step.design, step.name, step.measured, step.measure.unit, *numbers, step.word]


def _facts(step: ComparedStep) -> list[Any]:
    names, found, judged = (step.design, step.variant, step.parent, step.measured), step.difference, step.judged
    if judged is None:
        return [*names, step.measure.unit, *[None] * 8, step.word, None, "; ".join(step.notes), None]
    numbers = found.n, found.mean, *(found.interval or (None, None))
    p_values = judged.p, found.p if found.is_tested else None, judged.p_equivalence
    about = step.word, print_by_seed(found.by_seed), "; ".join(step.notes), " ".join(step.ids)
    return [*names, step.measure.unit, *numbers, *p_values, step.measure.margin, *about]


def _notes(steps: Sequence[ComparedStep]) -> Iterator[str]:
    yield (
        "Mean: variant minus parent over the seeds of pre-training that both have, with its t interval. "
        "Loss: on held-out text of the variant's own corpus, lower is better."
    )
    yield (
        "p (Holm): paired t test, adjusted by Holm's method for all steps of a design in one measure. A step is better "
        "or worse if it is below 0.05, and equivalent within the margin if two one-sided t tests are "
        "(docs/statistics.md)."
    )
    compared = [step for step in steps if step.judged]
    if any(step.difference.n < LEAST_SEEDS_OF_WORD for step in compared):
        yield f"Below {LEAST_SEEDS_OF_INTERVAL} seeds there is no interval, below {LEAST_SEEDS_OF_WORD} no word."
    if any((step.measure.name, step.measure.unit) == (LOSS, BITS) for step in compared):
        yield (
            "Bits per byte: the loss a token times the tokens of the text over its bytes. Masks hide tokens, so a "
            "tokenizer of shorter ones shows more beside each mask: between tokenizers it is no strict comparison."
        )
    yield from (CLAIMS[design] for design in dict.fromkeys(step.design for step in steps) if design in CLAIMS)
    yield from dict.fromkeys(f"{step.name}: {note}." for step in steps for note in step.notes)


def draw(study: Study) -> Picture | None:
    """Draw the steps that are compared; None if there are none."""
    compared = [step for step in find_steps(study) if step.judged is not None]
    return Picture(lambda: forest(compared, describe_data(study))) if compared else None


def forest(steps: Sequence[ComparedStep], data: str) -> "Figure":
    """Draw steps: a line for each of a design, a panel for each measure. `data` describes where they are from."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines = list(dict.fromkeys((step.design, step.name) for step in steps))
    measures = list(dict.fromkeys(step.measure for step in steps))
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
            own = {(step.design, step.name): step for step in steps if step.measure == measure}
            _draw_panel(axes, measure, [own.get(line) for line in lines])
            if column == 0:
                names = [f"{name}, {design}" if design != lines[0][0] else name for design, name in lines]
                axes.set_yticks(range(len(lines)), [textwrap.shorten(name, 34, placeholder=" …") for name in names])
    label_figure(figure, f"Differences to the parent — {data}", "", FOOT)
    shown = [word for word in WORD_COLOURS if any(word_colour(step.word) == WORD_COLOURS[word] for step in steps)]
    handles = [
        Line2D([], [], ls="", marker="D", ms=3.8, mec=WORD_COLOURS[word], mfc=_fill(WORD_COLOURS[word]), label=word)
        for word in shown
    ]
    style: dict[str, Any] = {"frameon": False, "fontsize": 6, "ncols": len(handles), "handletextpad": 0.3}
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=(0.002, 1 - 0.2 / height), **style)
    return figure


def _fill(colour: str) -> str:
    """Return the fill of a diamond: white without a claim."""
    return "white" if colour in (WORD_COLOURS[NO_CLEAR_DIFFERENCE], WORD_COLOURS["no word"]) else colour


def _draw_panel(axes: "Axes", measure: Measure, steps: Sequence[ComparedStep | None]) -> None:
    low, high = limits([step for step in steps if step is not None])
    axes.set_xlim(low, high)
    axes.set_ylim(len(steps) - 0.5, -0.5)
    for line in range(1, len(steps), 2):
        axes.axhspan(line - 0.5, line + 0.5, color=SHADE, lw=0, zorder=0)
    axes.axvspan(max(low, -measure.margin), min(high, measure.margin), color=BAND, lw=0, zorder=0.5)
    axes.axvline(0, color=INK, lw=0.7, zorder=1)
    for line, step in enumerate(steps):
        if step is not None:
            _draw_step(axes, step, line)
    title = "\n".join(textwrap.wrap(measure.name, 21))
    axes.set_title(title, fontsize=6.5, weight="bold", color=INK, loc="left", pad=3)
    axes.set_xlabel(measure.unit, fontsize=6, color=INK, labelpad=1)
    axes.set_yticks([])
    axes.tick_params(length=2.5, width=0.6, labelsize=6)
    axes.locator_params(axis="x", nbins=4)
    format_ticks(axes.xaxis)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_step(axes: "Axes", step: ComparedStep, line: int) -> None:
    colour, found = word_colour(step.word), step.difference
    if found.interval is not None:
        axes.plot(found.interval, (line, line), color=colour, lw=1.4, zorder=3, solid_capstyle="butt")
    seeds: dict[str, Any] = {"ls": "", "marker": "o", "ms": 1.6, "color": colour, "mew": 0, "alpha": 0.55}
    axes.plot([*found.by_seed.values()], [line - 0.25] * found.n, zorder=2, **seeds)
    axes.plot(found.mean, line, ls="", marker="D", ms=3.6, mfc=_fill(colour), mec=colour, mew=0.8, zorder=5)


def limits(steps: Sequence[ComparedStep]) -> tuple[float, float]:
    """Return the ends of an axis that contains zero, all seeds, and intervals as far as they are not much wider."""
    seeds = [0.0, *(value for step in steps for value in step.difference.by_seed.values())]
    low, high = min(seeds), max(seeds)
    beyond = MOST_BEYOND * (high - low)
    ends = [end for step in steps for end in step.difference.interval or ()]
    low, high = max(low - beyond, min([low, *ends])), min(high + beyond, max([high, *ends]))
    room = 0.08 * (high - low) or 1.0
    return low - room, high + room
