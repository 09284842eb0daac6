"""Forest plots: a line per difference, a column per quantity, with seeds and intervals around zero. Colour is the
verdict; a mark is filled where something is claimed."""

import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from reports.analysis.effects import Factorial
from reports.analysis.inference import Comparison, Interval, compare
from reports.analysis.pairing import Delta
from reports.analysis.quantities import BITS, QUANTITIES
from reports.analysis.steps import REPEATED, Step
from reports.figures.drawing import GREY_INK, INK, describe_data, format_ticks, rendered
from reports.figures.tones import Tone, draw_tones, tone_of
from reports.scores import Group
from reports.tables import DASH, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_INCHES = 6.75
"""Width of two columns of a paper. At this width, no letter is smaller than six points."""
CUT = (
    "An interval much wider than all seeds is cut at the edge, a difference much larger than all others is an arrow "
    "there; the table of the same name has the numbers."
)
SHADE, BAND, FAINT = "#F4F4F4", "#DCE6EE", "#9A9A9A"
LEFT_INCHES, NAME_INCHES, LABEL_INCHES, ANSWER_INCHES = 0.08, 0.84, 2.15, 0.98
GAP_INCHES, NUMBER_INCHES, LINE_INCHES = 0.04, 0.42, 0.3
HEAD_INCHES, TICKS_INCHES, LINE_OF_TEXT_INCHES = 0.5, 0.28, 0.115
LETTERS_AN_INCH, MOST_LETTERS = 21, 27
LETTER_INCHES = 0.063  # per letter of a name
REASON_INCHES = 0.05  # per letter of a reason
NOT_COMPARED = "not compared"  # if the reason is longer than its cell
LEAST_FIELD_INCHES = 1.1  # of a column with its numbers; if columns would be narrower, the changes are left out
BESIDE = 0.2  # of a line: distance of two marks of one line from its middle
MOST_BEYOND = 0.8
"""Maximum extension of an axis beyond seeds and zero for intervals, as a share of their range; wider ones are cut."""
MOST_REACH = 3
"""A difference that is this many times larger than any other does not set the axis."""


@dataclass(frozen=True)
class Strip:
    """One difference with the interval that decides. It is drawn hollow if nothing is claimed, and as a square if it is
    on another corpus than the variant's own."""

    comparison: Comparison
    digits: int
    interval: Interval | None
    tone: Tone
    hollow: bool = False
    is_other: bool = False


@dataclass(frozen=True)
class Line:
    """A line of a forest: its name, what changes, and the answer. Parts of the line above are indented, and a rule is
    drawn above a line that is set apart."""

    name: str
    changes: str = ""
    answer: str = ""
    is_part: bool = False
    is_apart: bool = False


@dataclass(frozen=True)
class Panel:
    """A column of a forest; `margin` is drawn as a band around zero, `share` is its width relative to others."""

    title: str
    unit: str
    margin: float = 0.0
    share: float = 1.0


Cell = tuple[Strip, ...] | str


@dataclass(frozen=True)
class Forest:
    """Lines from top to bottom, panels beside each other, and cells by (line, panel): strips, or the reason why there
    are none."""

    lines: tuple[Line, ...]
    panels: tuple[Panel, ...]
    cells: Mapping[tuple[int, int], Cell]
    title: str
    foot: str

    def strips_in(self, place: int) -> list[Strip]:
        """The strips of a panel."""
        own = [self.cells.get((line, place), "") for line in range(len(self.lines))]
        return [strip for cell in own if not isinstance(cell, str) for strip in cell]


@rendered
def draw_forest(forest: Forest) -> "Figure":
    """Draw the forest; its height follows from its lines. If panels would be too narrow, the changes are left out, and
    panels are split into blocks below each other."""
    from matplotlib.figure import Figure

    label_inches, right_inches, has_changes = _columns(forest)
    whole_inches = right_inches - label_inches
    blocks = math.ceil(len(forest.panels) / max(1, int(whole_inches / LEAST_FIELD_INCHES)))
    beside = math.ceil(len(forest.panels) / blocks)
    rows = [range(start, min(start + beside, len(forest.panels))) for start in range(0, len(forest.panels), beside)]
    letters = int(PAGE_INCHES * LETTERS_AN_INCH)
    foot, title = textwrap.wrap(forest.foot, letters), textwrap.wrap(forest.title, int(0.68 * letters))
    field_inches = LINE_INCHES * len(forest.lines)
    narrow = int((whole_inches / beside - NUMBER_INCHES - GAP_INCHES) / REASON_INCHES)
    titles = [textwrap.wrap(panel.title, max(12, narrow)) for panel in forest.panels]
    units = [textwrap.wrap(panel.unit, max(12, int(1.2 * narrow))) for panel in forest.panels]
    above_inches = 0.06 + LINE_OF_TEXT_INCHES * max(map(len, titles))
    below_inches = TICKS_INCHES + LINE_OF_TEXT_INCHES * max(map(len, units))
    foot_inches = 0.1 + LINE_OF_TEXT_INCHES * len(foot)
    head_inches = HEAD_INCHES + 0.15 * (len(title) - 1)
    block_inches = above_inches + field_inches + below_inches
    bottoms = [foot_inches + below_inches + block_inches * block for block in reversed(range(blocks))]
    height, width = head_inches + block_inches * blocks + foot_inches, PAGE_INCHES
    figure = Figure(figsize=(width, height))
    for bottom, places in zip(bottoms, rows, strict=True):
        left, shares = label_inches, sum(forest.panels[place].share for place in places)
        for place in places:
            own_inches = whole_inches * forest.panels[place].share / shares
            wide_inches = own_inches - NUMBER_INCHES - GAP_INCHES
            axes = figure.add_axes((left / width, bottom / height, wide_inches / width, field_inches / height))
            axes.set_title("\n".join(titles[place]), fontsize=7, weight="bold", color=INK, loc="left", pad=4)
            axes.set_xlabel("\n".join(units[place]), fontsize=6, color=INK)
            _draw_panel(axes, forest, place, int(wide_inches / REASON_INCHES))
            left += own_inches
    for bottom, (index, line) in product(bottoms, enumerate(forest.lines)):
        up = (bottom + LINE_INCHES * (len(forest.lines) - index - 0.5)) / height
        _write_line(figure, line, up, right_inches, has_changes=has_changes)
    top: dict[str, Any] = {"fontsize": 8.5, "weight": "bold", "color": INK, "va": "top"}
    figure.text(LEFT_INCHES / width, 1 - 0.1 / height, "\n".join(title), **top)
    tones = dict.fromkeys(strip.tone for place in range(len(forest.panels)) for strip in forest.strips_in(place))
    has_margin = any(panel.margin for panel in forest.panels)
    draw_tones(figure, tones, 1 - (head_inches - 0.06) / height, BAND if has_margin else "")
    small: dict[str, Any] = {"fontsize": 6, "color": GREY_INK, "va": "bottom", "linespacing": 1.3}
    figure.text(LEFT_INCHES / width, 0.06 / height, "\n".join(foot), **small)
    return figure


def _columns(forest: Forest) -> tuple[float, float, bool]:
    """Return where the panels begin and end in inches, and whether there is room for the changes."""
    longest = max(LETTER_INCHES * len(line.name) for line in forest.lines)
    right_inches = PAGE_INCHES - (ANSWER_INCHES if any(line.answer for line in forest.lines) else 0.0)
    with_changes, needed = max(LABEL_INCHES, longest), LEAST_FIELD_INCHES * len(forest.panels)
    has_changes = any(line.changes for line in forest.lines) and right_inches - LEFT_INCHES - with_changes >= needed
    label_inches = LEFT_INCHES + (with_changes if has_changes else max(NAME_INCHES, longest))
    return label_inches, right_inches, has_changes


def _write_line(figure: "Figure", line: Line, up: float, right_inches: float, *, has_changes: bool) -> None:
    small: dict[str, Any] = {"fontsize": 6, "color": INK, "va": "center"}
    indent, weight = (0.1, "normal") if line.is_part else (0.0, "bold")
    place = (LEFT_INCHES + indent) / PAGE_INCHES
    figure.text(place, up, line.name, fontsize=7, weight=weight, color=INK, va="center")
    if has_changes and not line.is_part:
        whole_shapes = line.changes.replace(" × ", "\u00a0×\u00a0")
        short = "\n".join(textwrap.wrap(whole_shapes, MOST_LETTERS, max_lines=2, placeholder=" …"))
        figure.text((LEFT_INCHES + NAME_INCHES) / PAGE_INCHES, up, short, **small)
    answer = "\n".join(textwrap.wrap(line.answer, 17))
    figure.text(right_inches / PAGE_INCHES, up, answer, **small)


def _draw_panel(axes: "Axes", forest: Forest, place: int, most_letters: int) -> None:
    own = [forest.cells.get((line, place), "") for line in range(len(forest.lines))]
    low, high = limits(near_strips(forest.strips_in(place)))
    margin = forest.panels[place].margin
    axes.set_xlim(low, high)
    axes.set_ylim(len(own) - 0.5, -0.5)
    for line in range(1, len(own), 2):
        axes.axhspan(line - 0.5, line + 0.5, color=SHADE, lw=0, zorder=0)
    for line in (line for line, each in enumerate(forest.lines) if each.is_apart):
        axes.axhline(line - 0.5, color=FAINT, lw=0.8, zorder=1)
    if margin:
        axes.axvspan(max(low, -margin), min(high, margin), color=BAND, lw=0, zorder=0.5)
    axes.axvline(0, color=INK, lw=0.7, zorder=1)
    words: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "fontsize": 6, "va": "center"}
    for line, cell in enumerate(own):
        if isinstance(cell, str):
            if cell:  # hides the zero line behind it
                box = {"fc": SHADE if line % 2 else "white", "ec": "none", "pad": 0.5}
                reason = cell if len(cell) <= most_letters else NOT_COMPARED
                axes.text(0.02, line, reason, color=FAINT, bbox=box, **words)
            continue
        for strip, up in zip(cell, _heights(len(cell)), strict=True):
            _draw_strip(axes, strip, line + up, low, high)
            told = signed(strip.comparison.mean, strip.digits - 1)
            axes.text(1.05, line + 1.1 * up, told, color=INK if not strip.is_other else GREY_INK, **words)
    axes.set_yticks([])
    axes.tick_params(axis="x", length=2.5, width=0.6, labelsize=6)
    axes.locator_params(axis="x", nbins=3 if most_letters < 25 else 5)
    format_ticks(axes.xaxis)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _heights(strips: int) -> list[float]:
    """Return the distances of the strips of one line from its middle."""
    return [0.0] if strips == 1 else [BESIDE * (2 * place / (strips - 1) - 1) for place in range(strips)]


def _draw_strip(axes: "Axes", strip: Strip, line: float, low: float, high: float) -> None:
    colour, mean = strip.tone.colour, strip.comparison.mean
    filled = "white" if strip.hollow else colour
    marker: dict[str, Any] = {"marker": "s" if strip.is_other else "D", "ms": 2.8 if strip.is_other else 3.8}
    if not low <= mean <= high:  # an arrow at the edge
        is_left = mean < low
        marker = {"marker": "<" if is_left else ">", "ms": 4.5, "transform": axes.get_yaxis_transform()}
        mean = 0.04 if is_left else 0.96
    else:
        if strip.interval is not None:
            axes.plot(strip.interval, (line, line), color=colour, lw=1.4, zorder=3, solid_capstyle="butt")
        if strip.comparison.seeds > 1 and not strip.is_other:
            seeds: dict[str, Any] = {"ls": "", "marker": "o", "ms": 1.5, "color": colour, "mew": 0, "alpha": 0.55}
            axes.plot(strip.comparison.differences, [line - 0.17] * strip.comparison.seeds, zorder=2, **seeds)
    axes.plot(mean, line, ls="", mfc=filled, mec=colour, mew=0.8, zorder=5, **marker)


def near_strips(strips: Sequence[Strip]) -> list[Strip]:
    """Return the differences without those of an arm that reaches much further than all others: the one or two largest
    (one for each corpus), if there are at least two others."""
    reaches = sorted(max(map(abs, strip.comparison.differences)) for strip in strips)
    for far in (1, 2):
        if len(strips) >= far + 2 and 0 < MOST_REACH * reaches[-far - 1] < reaches[-far]:
            return [strip for strip in strips if max(map(abs, strip.comparison.differences)) < reaches[-far]]
    return list(strips)


def limits(strips: Sequence[Strip]) -> Interval:
    """Return the ends of an axis that contains zero, all seeds, and intervals as far as they are not much wider."""
    seeds = [0.0, *(value for strip in strips for value in strip.comparison.differences)]
    low, high = min(seeds), max(seeds)
    beyond = MOST_BEYOND * (high - low)
    ends = [end for strip in strips for end in strip.interval or ()]
    low, high = max(low - beyond, min([low, *ends])), min(high + beyond, max([high, *ends]))
    room = 0.09 * (high - low) or 1.0  # half a marker at least
    return low - room, high + room


# What is drawn


def forest_of_answers(steps: Sequence[Step], group: Group) -> Forest:
    """Return the forest of the steps and their parts in bits per byte, with their waiting beside it; without bits per
    byte, in GLUE and in loss."""
    main = _main_quantities(steps)
    panels = [_panel(quantity, steps, share=2.0 if len(main) == 1 else 1.0) for quantity in main]
    cells = _cells(steps, main)
    if any(step.waiting for step in steps):
        panels.append(Panel("waiting", "steps, + is later"))
        for line, step in enumerate(steps):
            tone = tone_of(step.primary) if step.primary else Tone.NOTHING
            found = compare(step.waiting.values(), 0.0) if step.waiting else None
            cells[line, len(main)] = (Strip(found, 1, found.interval, tone, hollow=True),) if found else ""
    return Forest(
        lines=tuple(
            Line(step.name, step.changes, "" if step.word == DASH else step.word, bool(step.part_of), is_apart)
            for step, is_apart in zip(steps, _starts_of_own_rates(steps), strict=True)
        ),
        panels=tuple(panels) if main else (),
        cells=cells,
        title=f"The answer — {describe_data(group)}",
        foot=_foot(steps, main, has_waiting=len(panels) > len(main)),
    )


def forest_of_readouts(steps: Sequence[Step], group: Group) -> Forest:
    """Return the forest of all quantities that are not in the forest of the answer, without those that repeat it."""
    main = _main_quantities(steps)
    left_out = (*main, *(REPEATED if BITS in main else ()))
    shown = tuple(each for each in _quantities(steps) if each not in left_out)
    steps = [step for step in steps if any(delta.comparison and delta.quantity in shown for delta in step.deltas)]
    lines = tuple(Line(step.name, is_part=bool(step.part_of)) for step in steps)
    panels = tuple(_panel(quantity, steps) for quantity in shown)
    foot = _foot(steps, shown, has_waiting=False)
    return Forest(lines, panels, _cells(steps, shown), f"Readouts — {describe_data(group)}", foot)


def _starts_of_own_rates(steps: Sequence[Step]) -> list[bool]:
    """Return whether each step is the first at the arms' own rates, below others."""
    before = [False, *(step.has_own_rates for step in steps)]
    return [place > 0 and step.has_own_rates > before[place] for place, step in enumerate(steps)]


def _quantities(steps: Sequence[Step]) -> list[str]:
    """Return the quantities in which some step is compared."""
    compared = {delta.quantity for step in steps for delta in step.deltas if delta.comparison}
    return [name for name in QUANTITIES if name in compared]


def _main_quantities(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the quantities of the forest of the answer."""
    told = _quantities(steps)
    return (BITS,) if BITS in told else tuple(each for each in ("GLUE", "loss") if each in told)


def _panel(quantity: str, steps: Sequence[Step], share: float = 1.0) -> Panel:
    deltas = [delta for step in steps for delta in step.deltas if delta.comparison and delta.quantity == quantity]
    return Panel(quantity, _unit(quantity), deltas[0].found.margin, share)


def _cells(steps: Sequence[Step], quantities: Sequence[str]) -> dict[tuple[int, int], Cell]:
    cells: dict[tuple[int, int], Cell] = {}
    for (line, step), (place, quantity) in product(enumerate(steps), enumerate(quantities)):
        own = [delta for delta in step.deltas if delta.quantity == quantity]
        compared = [delta for delta in own if delta.comparison]
        strips = tuple(_strip(delta) for delta in sorted(compared, key=lambda delta: not delta.is_own))
        cells[line, place] = strips or next((delta.reason for delta in own), "")
    return cells


def _strip(delta: Delta) -> Strip:
    return Strip(delta.found, delta.digits, delta.interval, tone_of(delta), not any(delta.claimed), not delta.is_own)


def _foot(steps: Sequence[Step], quantities: Collection[str], *, has_waiting: bool) -> str:
    deltas = [delta for step in steps for delta in step.deltas]
    are_own = all(delta.is_own for delta in deltas if delta.comparison)
    on_corpora = "" if are_own else ", on the corpus that the variant was trained on; square: on the other"
    parts = (
        (
            True,
            "Diamond: mean difference of the variant to its parent, filled where a difference or an equivalence is "
            f"claimed{on_corpora}",
        ),
        (True, "line: the 95 % interval that decides; dots: paired seeds; band: margin of equivalence"),
        (has_waiting, "waiting: how much later the variant leaves the plateau of token frequencies"),
        (any(step.part_of for step in steps), "indented: parts of the step above"),
    )
    told = "; ".join(text for is_told, text in parts if is_told)
    return f"{told}. {CUT}{_note_on_glue(deltas) if 'GLUE' in quantities else ''}"


def _note_on_glue(deltas: Sequence[Delta]) -> str:
    notes = next((delta.notes for delta in deltas if delta.quantity == "GLUE"), ())
    return f" GLUE: {notes[0]}." if notes else ""


def forest_of_effects(factorials: Sequence[Factorial], group: Group) -> Forest:
    """Return a forest with a line for every tested effect, and a panel for each factorial and quantity with effects."""
    told = [each for each in factorials if each.effects]
    several = len({each.factors for each in told}) > 1
    names = list(dict.fromkeys(effect.name for each in told for effect in each.effects))
    cells: dict[tuple[int, int], Cell] = {}
    for place, each in enumerate(told):
        for effect in each.effects:
            found, (direction, is_equivalent) = effect.comparison, effect.judged.claimed
            tone = Tone.of(direction == QUANTITIES[each.quantity].better if direction else None, is_equivalent)
            hollow = not (direction or is_equivalent)
            strip = Strip(found, QUANTITIES[each.quantity].digits, found.interval, tone, hollow)
            cells[names.index(effect.name), place] = (strip,)
    titles = [f"{each.measured}\n({', '.join(each.factors)})" if several else each.measured for each in told]
    panels = [Panel(title, _unit(each.quantity), each.margin) for title, each in zip(titles, told, strict=True)]
    foot = (
        "Diamond: mean, filled where a difference or an equivalence is claimed; line: 95 % t interval over seeds; "
        f"dots: seeds; band: margin of equivalence. {CUT}"
    )
    title = f"Effects — {describe_data(group)}"
    return Forest(tuple(map(Line, names)), tuple(panels), cells, title, foot)


def _unit(quantity: str) -> str:
    return f"{QUANTITIES[quantity].unit}, {QUANTITIES[quantity].better} is better"
