"""Forests of deltas and of factorial effects: differences as lines and quantities as columns, each with its seeds and
intervals around zero."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reports.deltas import BITS, DIGITS, Delta
from reports.effects import Factorial
from reports.figures.drawing import INK, KEPT, describe_data, rendered
from reports.inference import Comparison, Interval
from reports.notes import describe_change
from reports.scores import Group
from reports.tables import signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

UNITS = {
    "GLUE": "points, higher is better",
    "loss": "nats a token, lower is better",
    BITS: "bits a byte, lower is better",
}
MOST_LETTERS_OF_A_REASON = 40  # of a reason, as many as a column holds
SEEDS = "line: 95 % t interval over paired seeds; rings: seeds"
CUT = "An interval much wider than all seeds is cut at the edge; numbers and tests are in the table of the same name."
GREY, SHADE, FAINT = "#8A8A8A", "#F4F4F4", "#B0B0B0"
LEFT_INCHES, NAME_INCHES, LABEL_INCHES = 0.08, 0.84, 2.15
COLUMN_INCHES, NUMBER_INCHES, LINE_INCHES = 2.0, 0.44, 0.27
HEAD_INCHES, FOOT_INCHES = 0.72, 0.72
LETTERS_AN_INCH, MOST_LETTERS = 21, 27
LETTER_INCHES = 0.053  # of a name
MOST_BEYOND = 0.8
"""How far an axis goes beyond seeds and zero to hold intervals, as a share of their range; wider ones are cut."""


@dataclass(frozen=True)
class Strip:
    """One difference. `examples` is its interval over development examples; `quiet` draws it in grey."""

    comparison: Comparison
    digits: int
    examples: Interval | None = None
    quiet: bool = False


@dataclass(frozen=True)
class Forest:
    """Lines of (name, what changes) from top to bottom, columns of (title, unit), and in the cells where they meet a
    strip, or why there is none."""

    lines: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    cells: Mapping[tuple[int, int], Strip | str]
    title: str
    foot: str


@rendered
def draw_forest(forest: Forest) -> "Figure":
    """The forest as a figure that is as large as its lines and columns ask."""
    from matplotlib.figure import Figure

    field_inches = LINE_INCHES * len(forest.lines)
    height = HEAD_INCHES + field_inches + FOOT_INCHES
    longest = max(len(name) for name, _ in forest.lines)
    label_inches = max(LABEL_INCHES, LEFT_INCHES + LETTER_INCHES * longest)
    width = label_inches + COLUMN_INCHES * len(forest.columns)
    figure = Figure(figsize=(width, height))
    for place in range(len(forest.columns)):
        left, wide = label_inches + COLUMN_INCHES * place, COLUMN_INCHES - NUMBER_INCHES
        axes = figure.add_axes((left / width, FOOT_INCHES / height, wide / width, field_inches / height))
        _draw_column(axes, forest, place)
    for index, (name, changes) in enumerate(forest.lines):
        up = (FOOT_INCHES + LINE_INCHES * (len(forest.lines) - index - 0.5)) / height
        figure.text(LEFT_INCHES / width, up, name, fontsize=7, weight="bold", color=INK, va="center")
        whole_shapes = changes.replace(" × ", "\u00a0×\u00a0")
        short = "\n".join(textwrap.wrap(whole_shapes, MOST_LETTERS, max_lines=2, placeholder=" …"))
        figure.text((LEFT_INCHES + NAME_INCHES) / width, up, short, fontsize=6, color=INK, va="center")
    figure.text(LEFT_INCHES / width, 1 - 0.2 / height, forest.title, fontsize=9, weight="bold", color=INK, va="top")
    foot = "\n".join(textwrap.wrap(forest.foot, int(width * LETTERS_AN_INCH)))
    figure.text(LEFT_INCHES / width, 0.06 / height, foot, fontsize=6, color="#444444", va="bottom", linespacing=1.3)
    return figure


def _draw_column(axes: "Axes", forest: Forest, place: int) -> None:
    title, unit = forest.columns[place]
    own = [forest.cells.get((line, place), "") for line in range(len(forest.lines))]
    axes.set_xlim(*limits([cell for cell in own if isinstance(cell, Strip)]))
    axes.set_ylim(len(own) - 0.5, -0.5)
    axes.axvline(0, color=INK, lw=0.7, zorder=1)
    for line, cell in enumerate(own):
        shade = SHADE if line % 2 else "white"
        axes.axhspan(line - 0.5, line + 0.5, color=shade, lw=0, zorder=0)
        if isinstance(cell, Strip):
            _draw_strip(axes, cell, line)
        elif cell:
            _print_reason(axes, cell, line, shade)
    axes.set_title(title, fontsize=7.5, weight="bold", color=INK, loc="left", pad=4)
    axes.set_xlabel(unit, fontsize=6.6, color=INK)
    axes.set_yticks([])
    axes.tick_params(axis="x", length=2.5, width=0.6, labelsize=6)
    axes.locator_params(axis="x", nbins=5)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _print_reason(axes: "Axes", reason: str, line: int, shade: str) -> None:
    box = {"fc": shade, "ec": "none", "pad": 0.5}  # the zero line stays clear of words
    words: dict[str, Any] = {"fontsize": 5, "color": GREY, "va": "center", "bbox": box}
    axes.text(0.02, line, reason, transform=axes.get_yaxis_transform(), **words)


def _draw_strip(axes: "Axes", strip: Strip, line: int) -> None:
    found, colour = strip.comparison, GREY if strip.quiet else KEPT
    flat: dict[str, Any] = {"solid_capstyle": "butt"}
    if strip.examples is not None:
        axes.plot(strip.examples, (line + 0.33, line + 0.33), color=FAINT, lw=1.0, zorder=2, **flat)
    if found.interval is not None:
        axes.plot(found.interval, (line, line), color=colour, lw=1.6, zorder=3, **flat)
    if found.seeds > 1:
        ring: dict[str, Any] = {"ls": "", "marker": "o", "ms": 3.0, "mfc": "white", "mec": colour, "mew": 0.7}
        axes.plot(found.differences, [line] * found.seeds, zorder=4, **ring)
    axes.plot(found.mean, line, ls="", marker="D", ms=3.6, color=colour, zorder=5)
    text = signed(found.mean, strip.digits - 1)
    axes.text(1.03, line, text, transform=axes.get_yaxis_transform(), fontsize=6, color=INK, va="center")


def limits(strips: Sequence[Strip]) -> Interval:
    """The ends of an axis that holds zero, all seeds, and of intervals what does not dwarf them."""
    seeds = [0.0, *(value for strip in strips for value in strip.comparison.differences)]
    low, high = min(seeds), max(seeds)
    beyond = MOST_BEYOND * (high - low)
    intervals = [each for strip in strips for each in (strip.comparison.interval, strip.examples) if each]
    ends = [end for interval in intervals for end in interval]
    low, high = max(low - beyond, min([low, *ends])), min(high + beyond, max([high, *ends]))
    room = 0.06 * (high - low) or 1.0
    return low - room, high + room


def forest_of_deltas(deltas: Sequence[Delta], group: Group, quantity: str) -> Forest:
    """A line for every pair of variants, a column for each quantity in which some pair is compared."""
    pairs = list(dict.fromkeys((delta.variant, delta.base) for delta in deltas))
    units = {delta.measured: UNITS[delta.quantity] for delta in deltas if delta.comparison is not None}
    cells: dict[tuple[int, int], Strip | str] = {}
    for delta in deltas:
        for place, (measured, unit) in enumerate(units.items()):
            if delta.measured == measured or (delta.comparison is None and unit == UNITS[delta.quantity]):
                cells[pairs.index((delta.variant, delta.base)), place] = _strip(delta, group)
    rows = group.last_rows  # the names of designs say themselves what changes
    lines = [
        (f"{variant} − {base}", describe_change(rows[variant], group) if {variant, base} <= set(rows) else "")
        for variant, base in pairs
    ]
    foot = (
        f"GLUE: {quantity}. Diamond: mean, grey of discarded variants; {SEEDS}; thin line: 95 % over development "
        f"examples. {CUT}"
    )
    return Forest(tuple(lines), tuple(units.items()), cells, f"Differences — {describe_data(group)}", foot)


def forest_of_effects(factorials: Sequence[Factorial], group: Group) -> Forest:
    """A line for every tested effect, a column for each quantity of each factorial that has any."""
    told = [each for each in factorials if each.effects]
    several = len({each.factors for each in told}) > 1
    tested = [[effect for effect in each.effects if effect.verdict] for each in told]
    lines = list(dict.fromkeys(effect.name for effects in tested for effect in effects))
    cells: dict[tuple[int, int], Strip | str] = {}
    for place, (each, effects) in enumerate(zip(told, tested, strict=True)):
        for effect in effects:
            strip = Strip(effect.comparison, DIGITS[each.quantity], quiet=effect.kind != "main")
            cells[lines.index(effect.name), place] = strip
    titles = [f"{each.measured}\n({', '.join(each.factors)})" if several else each.measured for each in told]
    columns = [(title, UNITS[each.quantity]) for title, each in zip(titles, told, strict=True)]
    foot = f"Diamond: mean, grey of interactions; {SEEDS}. {CUT}"
    return Forest(tuple((line, "") for line in lines), tuple(columns), cells, f"Effects — {describe_data(group)}", foot)


def _strip(delta: Delta, group: Group) -> Strip | str:
    if delta.comparison is None:
        return textwrap.shorten(delta.reason, MOST_LETTERS_OF_A_REASON, placeholder=" …")
    row = group.last_rows.get(delta.variant)
    is_discarded = row is not None and not row.kept
    return Strip(delta.comparison, DIGITS[delta.quantity], delta.examples, is_discarded)
