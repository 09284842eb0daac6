"""Figure 1: the ladder as bars, drawn so that equal records give equal bytes.

Matplotlib is imported inside the functions; its own defaults are used, whatever the user's style file says.
"""

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from neobert.glue.tasks import TASKS
from reports.bars import Bar, Bars
from reports.drawing import DISCARDED, INK, KEPT, PAPER_INK, PAPER_MARK, drawn, provenance_line
from reports.formats import DASH, number, signed_percent
from reports.scores import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCHES_PER_BAR, HEIGHT_INCHES = 0.66, 4.05
LEFT_INCHES, RIGHT_INCHES = 0.66, 0.12
LEAST_WIDTH_INCHES = 5.6  # what the lines of text need, however few bars there are
BAR_WIDTH = 0.74
ALTERNATIVES_GAP = 0.35  # in bars, before the first variant with an @
NAME_SIZES = ((4, 7.5), (10, 6.2), (99, 5.2))  # letters of a name at most, and their size in points
FOOT_SHARE = 0.30  # of the axis, kept free below the lowest value for the numbers printed on the bars


def figure1(bars: Bars) -> dict[str, bytes]:
    """The figure as {"pdf": …, "svg": …, "png": …}."""
    return drawn(lambda: _draw(bars))


def _draw(bars: Bars) -> "Figure":
    from matplotlib.figure import Figure

    shown = _shown(bars)
    places = _places(shown)
    width = max(LEAST_WIDTH_INCHES, LEFT_INCHES + RIGHT_INCHES + INCHES_PER_BAR * (places[-1] + 1))
    figure = Figure(figsize=(width, HEIGHT_INCHES))
    axes = figure.add_axes((LEFT_INCHES / width, 0.32, 1 - (LEFT_INCHES + RIGHT_INCHES) / width, 0.515))
    low, high = _limits(shown)
    for place, bar in zip(places, shown, strict=True):
        _draw_bar(axes, place, bar, low)
    _dress(axes, shown, places, (width - LEFT_INCHES - RIGHT_INCHES) / INCHES_PER_BAR)
    axes.set_ylim(low, high)
    _label_axis(axes, bars, low)
    _caption(figure, bars, width)
    return figure


def _shown(bars: Bars) -> list[Bar]:
    """The variants that were run; of a study without any record all, so that there is something to see."""
    return [bar for bar in bars.bars if bar.row.has_records] or list(bars.bars)


def _places(bars: Sequence[Bar]) -> list[float]:
    """Where the bars stand: the ladder without gaps, alternatives a little apart."""
    return [index + ALTERNATIVES_GAP * ("@" in bar.variant.name) for index, bar in enumerate(bars)]


def _limits(bars: Sequence[Bar]) -> tuple[float, float]:
    """The axis: multiples of five with room below the lowest value, from 0 where the values start low."""
    values = [bar.paper.average for bar in bars if bar.paper]
    for bar in bars:
        values += list(bar.score.by_seeds.values()) if bar.score else []
    lowest, highest = min(values, default=0.0), max(values, default=100.0)
    top = highest + max(1.0, 0.06 * (highest - lowest))
    low = lowest - FOOT_SHARE / (1 - FOOT_SHARE) * (top - lowest)
    return max(0.0, 5 * (low // 5)), top


def _draw_bar(axes: "Axes", place: float, bar: Bar, low: float) -> None:
    if bar.paper is not None:
        axes.plot(place, bar.paper.average, marker="D", markersize=4.6, mfc=PAPER_MARK, mec=INK, mew=0.7, zorder=6)
    if bar.score is None:
        axes.text(place, 0.035, DASH, transform=axes.get_xaxis_transform(), ha="center", color=INK, fontsize=10)
        return
    fill = KEPT if bar.variant.kept else DISCARDED
    hatch = None if bar.row.is_best_of_whole_grid else "////"
    mean = bar.score.mean
    axes.bar(place, mean - low, BAR_WIDTH, bottom=low, color=fill, hatch=hatch, edgecolor="white", lw=0, zorder=2)
    if bar.score.spread is not None:
        for colour, width in (("white", 2.6), (INK, 1.0)):  # a white border keeps it visible on dark bars
            style: dict[str, Any] = {"color": colour, "capsize": 2.2, "lw": width, "capthick": width, "zorder": 4}
            axes.errorbar(place - 0.2, mean, bar.score.spread, **style)
        _draw_seeds(axes, place, list(bar.score.by_seeds.values()))
    _print_numbers(axes, place, bar)


def _draw_seeds(axes: "Axes", place: float, values: list[float]) -> None:
    """Each seed as a dot in the right half of the bar, clear of the error bar and of the paper's mark."""
    step = 0.2 / max(1, len(values) - 1)
    places = [place + 0.12 + index * step for index in range(len(values))]
    axes.plot(places, values, ls="", marker="o", markersize=2.8, mfc="white", mec=INK, mew=0.6, zorder=5)


def _print_numbers(axes: "Axes", place: float, bar: Bar) -> None:
    """Score and relative change at the foot of the bar, where no mark can cover them."""
    assert bar.score is not None
    ink = "white" if bar.variant.kept else INK
    box = {"boxstyle": "round,pad=0.15", "fc": KEPT if bar.variant.kept else DISCARDED, "ec": "none"}
    foot: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom", "zorder": 7}
    axes.text(place, 0.125, number(bar.score.mean), color=ink, weight="bold", fontsize=8.5, bbox=box, **foot)
    if bar.delta_percent is not None:
        axes.text(place, 0.045, signed_percent(bar.delta_percent), color=ink, fontsize=6.6, bbox=box, **foot)


def _label_axis(axes: "Axes", bars: Bars, low: float) -> None:
    from matplotlib.ticker import MaxNLocator

    what = "GLUE dev average" if bars.is_average else f"Mean of {len(bars.tasks)} shared GLUE tasks"
    axes.set_ylabel(f"{what} (points)" + (f"\naxis starts at {low:g}" if low else ""), color=INK, labelpad=4)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.tick_params(axis="y", length=2.5, width=0.6)
    axes.grid(axis="y", color="#DDDDDD", lw=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _dress(axes: "Axes", bars: Sequence[Bar], places: list[float], room: float) -> None:
    """Names and numbers below the axis, which is `room` bars long; few bars stand in its middle."""
    middle, half = (places[0] + places[-1]) / 2, max(room, places[-1] + 1.1) / 2
    axes.set_xlim(middle - half, middle + half)
    axes.set_xticks(places, [bar.variant.name for bar in bars], weight="bold")
    axes.tick_params(axis="x", length=0, pad=3)
    for label, bar in zip(axes.get_xticklabels(), bars, strict=True):
        label.set_color(INK if bar.variant.kept else "#777777")
        label.set_fontsize(next(size for most, size in NAME_SIZES if len(bar.variant.name) <= most))
    names = ["", *(bar.variant.name for bar in bars)]
    for place, bar, follows in zip(places, bars, names[:-1], strict=True):
        _print_paper(axes, place, bar)
        _print_loss(axes, place, bar)
        _print_title(axes, place, bar, follows)


def _print_paper(axes: "Axes", place: float, bar: Bar) -> None:
    """What the paper prints, in a line of its own below the axis: score and, where it has one, relative change."""
    if bar.paper is not None:
        printed = bar.paper.printed_delta_percent
        text = f"◆ {number(bar.paper.average)}" + ("" if printed is None else f" ({signed_percent(printed)})")
        below: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top"}
        axes.text(place, -0.085, text.replace(" %", "%"), fontsize=5.4, color=PAPER_INK, **below)


def _print_loss(axes: "Axes", place: float, bar: Bar) -> None:
    """The continuous readout, in a line of its own below the paper's."""
    if bar.loss is not None:
        below: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top"}
        axes.text(place, -0.133, f"loss {number(bar.loss[1].mean, 3)}", fontsize=5.4, color="#444444", **below)


def _print_title(axes: "Axes", place: float, bar: Bar, follows: str) -> None:
    """What the variant changes, and its parent where that is not the bar to the left."""
    parent = bar.variant.parent.name if bar.variant.parent else ""
    label = bar.label.replace("Depth-to-", "Depth-to- ").replace(" × ", "\u00a0×\u00a0")  # a shape is one word
    lines = textwrap.wrap(label, 11, break_on_hyphens=False)
    lines += [f"(vs {parent})"] if parent and parent != follows else []
    colour = "#333333" if bar.variant.kept else "#777777"
    text: dict[str, Any] = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top"}
    axes.text(place, -0.19, "\n".join(lines), linespacing=1.15, fontsize=5.9, color=colour, **text)


def _caption(figure: "Figure", bars: Bars, width: float) -> None:
    left = LEFT_INCHES / width
    figure.text(left, 0.95, _title(bars.group), fontsize=9.5, weight="bold", color=INK)
    figure.text(left, 0.905, _subtitle(bars), fontsize=7, color="#444444")
    handles = _legend_handles(bars)
    figure.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(left - 0.004, 0.889), ncols=len(handles), **_LEGEND
    )
    note = "\n".join(textwrap.wrap(_foot(bars), int(width * 21)))
    figure.text(left, 0.015, note, fontsize=6, color="#444444", va="bottom", linespacing=1.3)


_LEGEND: dict[str, Any] = {
    "frameon": False,
    "fontsize": 6.6,
    "handletextpad": 0.5,
    "columnspacing": 1.3,
    "handlelength": 1.3,
    "borderaxespad": 0.0,
}


def _title(group: Group) -> str:
    what = "" if group.scale == "smoke" else "GLUE along the ladder — "
    return what + provenance_line(group)


def _subtitle(bars: Bars) -> str:
    quantity = "Flat mean of the eight GLUE tasks on development data"
    if not bars.is_average:
        left_out = ", ".join(task.title for name, task in TASKS.items() if name not in bars.tasks)
        quantity = (
            f"Mean of the {len(bars.tasks)} tasks that all shown variants have (without {left_out}): not the average"
        )
    return f"{quantity}; {_spread(bars)}."


def _spread(bars: Bars) -> str:
    scores = [bar.score for bar in bars.bars if bar.score]
    spreads = [score.spread for score in scores if score.spread is not None]
    if not scores:
        return "no scores yet"
    if not spreads:
        return "one seed: spread unknown"
    counts = sorted({len(score.by_seeds) for score in scores} - {1})
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    between = f"{number(min(spreads))} to {number(max(spreads))}"
    return f"n = {seeds} seeds, standard deviation {between} points"


def _legend_handles(bars: Bars) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(fc=KEPT, label="this study"), Patch(fc=DISCARDED, label="this study, discarded")]
    if bars.incomplete:
        handles.append(Patch(fc=KEPT, hatch="////", ec="white", lw=0, label="grid incomplete"))
    if any(bar.score and bar.score.spread is not None for bar in bars.bars):
        seed: dict[str, Any] = {
            "marker": "o",
            "ls": "-",
            "lw": 1.0,
            "color": INK,
            "mfc": "white",
            "mew": 0.5,
            "markersize": 2.7,
        }
        handles.append(Line2D([], [], label="each seed, ± one sd", **seed))
    if any(bar.paper for bar in bars.bars):
        diamond: dict[str, Any] = {
            "marker": "D",
            "ls": "",
            "mfc": PAPER_MARK,
            "mec": INK,
            "mew": 0.7,
            "markersize": 4.6,
        }
        handles.append(Line2D([], [], label="printed in the paper, at its own scale and data", **diamond))
    return handles


def _foot(bars: Bars) -> str:
    parts = ["On the bars: score, and relative change to the parent in the tree of variants."]
    shown = {bar.variant.name for bar in _shown(bars)}
    if any("@" in name for name in shown):
        parts.append("Grey with an @: not discarded, another reading of the paper or its code.")
    without = [name for name in bars.missing if name in shown]
    if without:
        parts.append(f"{DASH} no value: {', '.join(without)} (reasons in figure1.csv).")
    if len(shown) < len(bars.bars):
        parts.append(f"Not run: {', '.join(name for name in bars.missing if name not in shown)}.")
    single = [bar.variant.name for bar in bars.bars if bar.score and bar.score.spread is None]
    if 0 < len(single) < len(bars.bars) - len(bars.missing):
        parts.append(f"One seed, spread unknown: {', '.join(single)}.")
    if bars.incomplete:
        parts.append(f"Best of an incomplete grid: {', '.join(bars.incomplete)}.")
    if any(bar.loss for bar in bars.bars):
        parts.append("Loss: held-out MLM loss, nats a token; not comparable between corpora or tokenizers.")
    return " ".join(parts)
