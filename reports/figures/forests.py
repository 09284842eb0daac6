"""Forest plots of deltas and of factorial effects: a line per difference, a column per quantity, with seeds and
intervals around zero."""

import math
import textwrap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from reports.analysis.effects import Factorial
from reports.analysis.inference import Comparison, Interval, compare
from reports.analysis.pairing import Delta
from reports.analysis.plateau import Regime
from reports.analysis.quantities import QUANTITIES
from reports.analysis.readouts import SignalToNoise
from reports.analysis.transitions import Wait
from reports.figures.drawing import INK, KEPT, describe_data, rendered
from reports.notes import describe_change
from reports.scores import Group
from reports.tables import number, signed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE_INCHES, COLUMN_INCHES = 6.75, 3.25
"""Widths of a page and of one of two columns. At these widths, no letter is smaller than six points."""
SEEDS = "line: 95 % t interval over paired seeds; rings: seeds"
CUT = (
    "An interval much wider than all seeds is cut at the edge, a difference much larger than all others is an arrow "
    "there; numbers and tests are in the table of the same name."
)
OF_RATIOS = "; SNR: signal to noise, the spread between arms of one training corpus over that between seeds"
GREY, SHADE, FAINT = "#8A8A8A", "#F4F4F4", "#B0B0B0"
LEFT_INCHES, NAME_INCHES, LABEL_INCHES = 0.08, 0.84, 2.15
GAP_INCHES, NUMBER_INCHES, LINE_INCHES = 0.04, 0.42, 0.27
HEAD_INCHES, TICKS_INCHES, LINE_OF_TEXT_INCHES = 0.3, 0.28, 0.115
LETTERS_AN_INCH, MOST_LETTERS = 21, 27
LETTER_INCHES = 0.063  # per letter of a name
REASON_INCHES = 0.05  # per letter of a reason
NOT_COMPARED = "not compared"  # if the reason is longer than its cell
LEAST_FIELD_INCHES = 1.15  # of a column with its numbers; if columns would be narrower, the changes are left out
MOST_BEYOND = 0.8
"""Maximum extension of an axis beyond seeds and zero for intervals, as a share of their range; wider ones are cut."""
MOST_REACH = 2
"""A difference that is this many times larger than any other does not set the axis."""


@dataclass(frozen=True)
class Strip:
    """One difference. `examples` is its interval over development examples; if `quiet`, it is drawn in grey; its
    diamond is `hollow` if no difference is claimed."""

    comparison: Comparison
    digits: int
    examples: Interval | None = None
    quiet: bool = False
    hollow: bool = False


@dataclass(frozen=True)
class Forest:
    """Lines of (name, change) from top to bottom, columns of (title, unit), and cells by (line, column): a strip, or
    the reason why there is none."""

    lines: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]
    cells: Mapping[tuple[int, int], Strip | str]
    title: str
    foot: str


@rendered
def draw_forest(forest: Forest, width_inches: float = PAGE_INCHES) -> "Figure":
    """Draw the forest at a width; the height follows from its lines. If columns would be too narrow, the changes are
    left out, and columns are split into blocks below each other."""
    from matplotlib.figure import Figure

    longest = max(len(name) for name, _ in forest.lines)
    name_inches = max(NAME_INCHES, LETTER_INCHES * longest)
    with_changes = max(LABEL_INCHES, name_inches)
    has_changes = any(changes for _, changes in forest.lines) and (
        width_inches - LEFT_INCHES - with_changes >= LEAST_FIELD_INCHES * len(forest.columns)
    )
    label_inches = LEFT_INCHES + (with_changes if has_changes else name_inches)
    blocks = math.ceil(len(forest.columns) / max(1, int((width_inches - label_inches) / LEAST_FIELD_INCHES)))
    columns = math.ceil(len(forest.columns) / blocks)
    column_inches = (width_inches - label_inches) / columns
    letters = int(width_inches * LETTERS_AN_INCH)
    foot = textwrap.wrap(forest.foot, letters)
    title = textwrap.wrap(forest.title, int(0.68 * letters))
    field_inches = LINE_INCHES * len(forest.lines)
    wide_inches = column_inches - NUMBER_INCHES - GAP_INCHES
    most_letters = int(wide_inches / REASON_INCHES)
    titles = [textwrap.wrap(name, max(12, most_letters)) for name, _ in forest.columns]
    units = [textwrap.wrap(unit, max(12, int(1.2 * most_letters))) for _, unit in forest.columns]
    above_inches = 0.06 + LINE_OF_TEXT_INCHES * max(map(len, titles))
    below_inches = TICKS_INCHES + LINE_OF_TEXT_INCHES * max(map(len, units))
    head_inches = HEAD_INCHES + 0.15 * (len(title) - 1)
    foot_inches = 0.1 + LINE_OF_TEXT_INCHES * len(foot)
    block_inches = above_inches + field_inches + below_inches
    bottoms = [foot_inches + below_inches + block_inches * block for block in reversed(range(blocks))]
    height, width = head_inches + block_inches * blocks + foot_inches, width_inches
    figure = Figure(figsize=(width, height))
    for place in range(len(forest.columns)):
        left, bottom = label_inches + column_inches * (place % columns), bottoms[place // columns]
        axes = figure.add_axes((left / width, bottom / height, wide_inches / width, field_inches / height))
        axes.set_title("\n".join(titles[place]), fontsize=7, weight="bold", color=INK, loc="left", pad=4)
        axes.set_xlabel("\n".join(units[place]), fontsize=6, color=INK)
        _draw_column(axes, forest, place, most_letters)
    for bottom, (index, (name, changes)) in product(bottoms, enumerate(forest.lines)):
        up = (bottom + LINE_INCHES * (len(forest.lines) - index - 0.5)) / height
        figure.text(LEFT_INCHES / width, up, name, fontsize=7, weight="bold", color=INK, va="center")
        if has_changes:
            whole_shapes = changes.replace(" × ", "\u00a0×\u00a0")
            short = "\n".join(textwrap.wrap(whole_shapes, MOST_LETTERS, max_lines=2, placeholder=" …"))
            figure.text((LEFT_INCHES + NAME_INCHES) / width, up, short, fontsize=6, color=INK, va="center")
    top: dict[str, Any] = {"fontsize": 8.5, "weight": "bold", "color": INK, "va": "top"}
    figure.text(LEFT_INCHES / width, 1 - 0.1 / height, "\n".join(title), **top)
    small: dict[str, Any] = {"fontsize": 6, "color": "#444444", "va": "bottom", "linespacing": 1.3}
    figure.text(LEFT_INCHES / width, 0.06 / height, "\n".join(foot), **small)
    return figure


def _draw_column(axes: "Axes", forest: Forest, place: int, most_letters: int) -> None:
    from matplotlib.ticker import FuncFormatter

    own = [forest.cells.get((line, place), "") for line in range(len(forest.lines))]
    low, high = limits(near_strips([cell for cell in own if isinstance(cell, Strip)]))
    axes.set_xlim(low, high)
    axes.set_ylim(len(own) - 0.5, -0.5)
    axes.axvline(0, color=INK, lw=0.7, zorder=1)
    for line, cell in enumerate(own):
        shade = SHADE if line % 2 else "white"
        axes.axhspan(line - 0.5, line + 0.5, color=shade, lw=0, zorder=0)
        if isinstance(cell, Strip) and low <= cell.comparison.mean <= high:
            _draw_strip(axes, cell, line)
        elif isinstance(cell, Strip):  # an arrow at the edge
            is_left = cell.comparison.mean < low
            style: dict[str, Any] = {"marker": "<" if is_left else ">", "ms": 4.5, "color": _colour(cell)}
            axes.plot(0.04 if is_left else 0.96, line, ls="", zorder=5, transform=axes.get_yaxis_transform(), **style)
        elif cell:
            reason = cell if len(cell) <= most_letters else NOT_COMPARED
            box = {"fc": shade, "ec": "none", "pad": 0.5}  # hides the zero line behind the words
            words: dict[str, Any] = {"fontsize": 6, "color": GREY, "va": "center", "bbox": box}
            axes.text(0.02, line, reason, transform=axes.get_yaxis_transform(), **words)
        if isinstance(cell, Strip):
            text = signed(cell.comparison.mean, cell.digits - 1)
            axes.text(1.05, line, text, transform=axes.get_yaxis_transform(), fontsize=6, color=INK, va="center")
    axes.set_yticks([])
    axes.tick_params(axis="x", length=2.5, width=0.6, labelsize=6)
    axes.locator_params(axis="x", nbins=3 if most_letters < 25 else 5)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}".replace("-", "−")))
    axes.spines[["top", "right", "left"]].set_visible(False)


def _colour(strip: Strip) -> str:
    return GREY if strip.quiet else KEPT


def _draw_strip(axes: "Axes", strip: Strip, line: int) -> None:
    found, colour = strip.comparison, _colour(strip)
    flat: dict[str, Any] = {"solid_capstyle": "butt"}
    if strip.examples is not None:
        axes.plot(strip.examples, (line + 0.33, line + 0.33), color=FAINT, lw=1.0, zorder=2, **flat)
    if found.interval is not None:
        axes.plot(found.interval, (line, line), color=colour, lw=1.6, zorder=3, **flat)
    if found.seeds > 1:
        ring: dict[str, Any] = {"ls": "", "marker": "o", "ms": 3.0, "mfc": "white", "mec": colour, "mew": 0.7}
        axes.plot(found.differences, [line] * found.seeds, zorder=4, **ring)
    filled = "white" if strip.hollow else colour
    axes.plot(found.mean, line, ls="", marker="D", ms=3.6, mfc=filled, mec=colour, mew=0.7, zorder=5)


def near_strips(strips: Sequence[Strip]) -> list[Strip]:
    """Return the differences without one that is much larger than all others, if there are at least two others."""
    reaches = [max(map(abs, strip.comparison.differences)) for strip in strips]
    most, second = sorted(reaches)[-1:], sorted(reaches)[-2:-1]
    if len(strips) < 3 or not 0 < MOST_REACH * second[0] < most[0]:
        return list(strips)
    return [strip for strip, reach in zip(strips, reaches, strict=True) if reach < most[0]]


def limits(strips: Sequence[Strip]) -> Interval:
    """Return the ends of an axis that contains zero, all seeds, and intervals as far as they are not much wider."""
    seeds = [0.0, *(value for strip in strips for value in strip.comparison.differences)]
    low, high = min(seeds), max(seeds)
    beyond = MOST_BEYOND * (high - low)
    intervals = [each for strip in strips for each in (strip.comparison.interval, strip.examples) if each]
    ends = [end for interval in intervals for end in interval]
    low, high = max(low - beyond, min([low, *ends])), min(high + beyond, max([high, *ends]))
    room = 0.09 * (high - low) or 1.0  # half a marker at least
    return low - room, high + room


def forest_of_deltas(
    deltas: Sequence[Delta], group: Group, quantity: str, signals: Sequence[SignalToNoise] = ()
) -> Forest:
    """Return a forest with a line for every pair of variants compared in some quantity, and a column for each such
    quantity, with its signal-to-noise ratio if known."""
    compared = [delta for delta in deltas if delta.comparison is not None]
    order = {name: place for place, name in enumerate(group.last_rows)}
    pairs = sorted(dict.fromkeys(delta.pair for delta in compared), key=lambda pair: order.get(pair[0], len(order)))
    columns = list({delta.measured: delta for delta in compared}.values())
    cells: dict[tuple[int, int], Strip | str] = {}
    for delta in deltas:
        if delta.pair in pairs:
            line = pairs.index(delta.pair)
            cells |= {(line, place): _strip(delta) for place, each in enumerate(columns) if _is_in(delta, each)}
    ratios = _ratios(signals)
    return Forest(
        lines=tuple((" − ".join(pair), _describe_pair(pair, group)) for pair in pairs),
        columns=tuple((each.measured, _unit_with_ratio(each, ratios)) for each in columns),
        cells=cells,
        title=f"Differences — {describe_data(group)}",
        foot=_foot_of_deltas(deltas, pairs, quantity, OF_RATIOS if ratios else ""),
    )


def _ratios(signals: Sequence[SignalToNoise]) -> dict[tuple[str, str], float]:
    """Return the known signal-to-noise ratios by quantity and corpus."""
    return {
        (each.readout, each.corpus): each.ratio for each in signals if each.ratio is not None and each.readout != "GLUE"
    }


def _describe_pair(pair: tuple[str, str], group: Group) -> str:
    """Describe what a step of the ladder changes; names of designs describe it themselves."""
    rows = group.last_rows
    return describe_change(rows[pair[0]], group) if set(pair) <= set(rows) else ""


def _foot_of_deltas(deltas: Sequence[Delta], pairs: Collection[tuple[str, str]], quantity: str, of_ratios: str) -> str:
    of_glue = f"GLUE: {quantity}. " if any(delta.quantity == "GLUE" for delta in deltas) else ""
    left_out = [delta.step for delta in deltas if delta.pair not in pairs]
    return (
        f"{of_glue}Diamond: mean, filled where a difference is claimed, grey where a step gets no verdict, for the "
        f"reason in the table; {SEEDS}; thin line: 95 % over development examples, texts or items{of_ratios}. {CUT}"
        f"{_list_left_out(' Not compared in any of these: ', left_out)}"
    )


def _is_in(delta: Delta, column: Delta) -> bool:
    """Whether a delta belongs in the column of another: without a comparison in all columns of its quantity."""
    return delta.measured == column.measured or (delta.comparison is None and delta.quantity == column.quantity)


def _unit_with_ratio(delta: Delta, ratios: Mapping[tuple[str, str], float]) -> str:
    ratio = ratios.get((delta.quantity, delta.corpus))
    return _unit(delta.quantity) + ("" if ratio is None else f"; SNR {number(ratio, 1)}")


def _list_left_out(words: str, names: Iterable[str]) -> str:
    listed = ", ".join(dict.fromkeys(names))
    return f"{words}{listed}." if listed else ""


def one_quantity(forest: Forest) -> Forest:
    """Return the forest reduced to the column with most strips, for a narrow figure."""
    counts = [
        sum(isinstance(cell, Strip) for (_, at), cell in forest.cells.items() if at == place)
        for place in range(len(forest.columns))
    ]
    best = counts.index(max(counts))
    kept = [line for line in range(len(forest.lines)) if isinstance(forest.cells.get((line, best)), Strip)]
    return Forest(
        lines=tuple((forest.lines[line][0], "") for line in kept),
        columns=(forest.columns[best],),
        cells={(index, 0): forest.cells[line, best] for index, line in enumerate(kept)},
        title=forest.title,
        foot=forest.foot,
    )


def forest_of_effects(factorials: Sequence[Factorial], group: Group) -> Forest:
    """Return a forest with a line for every tested effect, and a column for each factorial and quantity with
    effects."""
    told = [each for each in factorials if each.effects]
    several = len({each.factors for each in told}) > 1
    tested = [each.effects for each in told]
    lines = list(dict.fromkeys(effect.name for effects in tested for effect in effects))
    cells: dict[tuple[int, int], Strip | str] = {}
    for place, (each, effects) in enumerate(zip(told, tested, strict=True)):
        for effect in effects:
            strip = Strip(effect.comparison, QUANTITIES[each.quantity].digits, quiet=effect.kind != "main")
            cells[lines.index(effect.name), place] = strip
    titles = [f"{each.measured}\n({', '.join(each.factors)})" if several else each.measured for each in told]
    columns = [(title, _unit(each.quantity)) for title, each in zip(titles, told, strict=True)]
    foot = f"Diamond: mean, grey of interactions; {SEEDS}. {CUT}"
    return Forest(tuple((line, "") for line in lines), tuple(columns), cells, f"Effects — {describe_data(group)}", foot)


def forest_of_waits(waits: Sequence[Wait], regime: Regime, group: Group) -> Forest:
    """Return a forest with a line for every ladder step whose times are compared: its difference in loss at the end and
    at equal time since the transition, and its waiting. Steps without a verdict are grey."""
    told = [wait for wait in waits if wait.waiting]
    loss = QUANTITIES["loss"]
    columns = (
        ("loss at the end", _unit("loss")),
        ("at equal time since the transition", _unit("loss")),
        ("waiting", "steps, positive is later"),
    )
    cells: dict[tuple[int, int], Strip | str] = {}
    for line, wait in enumerate(told):
        is_quiet = bool(regime.why_no_verdict(wait.variant, wait.base))
        for place, (values, digits) in enumerate(
            ((wait.at_end, loss.digits), (wait.since, loss.digits), (wait.waiting, 1))
        ):
            found = Strip(compare(values.values(), loss.margin), digits, quiet=is_quiet) if values else wait.no_losses
            cells[line, place] = found
    lines = tuple((f"{wait.variant} − {wait.base}", "") for wait in told)
    left_out = [f"{wait.variant} − {wait.base}" for wait in waits if not wait.waiting]
    foot = f"Diamond: mean, grey of steps that get no verdict; {SEEDS}. {CUT}"
    foot += _list_left_out(" Not compared: ", left_out)
    return Forest(lines, columns if told else (), cells, f"Waiting and level — {describe_data(group)}", foot)


def _unit(quantity: str) -> str:
    return f"{QUANTITIES[quantity].unit}, {QUANTITIES[quantity].better} is better"


def _strip(delta: Delta) -> Strip | str:
    if delta.comparison is None:
        return delta.reason
    digits, is_hollow = QUANTITIES[delta.quantity].digits, not delta.claimed[0]
    return Strip(delta.comparison, digits, delta.examples, quiet=bool(delta.no_verdict), hollow=is_hollow)
