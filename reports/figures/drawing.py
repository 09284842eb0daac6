"""Shared code of all figures: a common style, and files whose bytes are equal if the numbers are.

Matplotlib is imported inside the functions. Its own defaults are used, independently of the user's style file.
"""

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any

from reports.statistics import BETTER, NO_CLEAR_DIFFERENCE, WORSE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

    from reports.rows import Study

KEPT, DISCARDED = "#2F6690", "#C9C9C9"  # dark blue, light grey: distinct for every colour vision and in greyscale
INK, GREY_INK, PAPER_INK = "#222222", "#444444", "#8A4F00"
PAPER_DIAMOND: Any = {"marker": "D", "mfc": "#F2A541", "mec": INK, "mew": 0.7, "markersize": 4.6}
COLOURS = ("#006BA4", "#FF800E", "#595959", "#5F9ED1", "#C85200", "#898989", "#A2C8EC", "#FFBC79")
"""The most distinct colours of matplotlib's tableau-colorblind10."""
WORD_COLOURS = {
    BETTER: "#0072B2",
    WORSE: "#D55E00",
    "equivalent": "#009E73",
    NO_CLEAR_DIFFERENCE: INK,
    "no word": "#767676",
}
"""Colours of the words of differences (Okabe and Ito): the last is that of too few seeds and of arms that cannot be
judged."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib
    "font.size": 7.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "path",
    "svg.hashsalt": "neobert-ablations",
    "hatch.linewidth": 0.6,
    "axes.linewidth": 0.6,
    "path.simplify": False,
    "text.parse_math": False,  # a $ in a name is not mathematics
}
NO_DATES: dict[str, dict[str, str | None]] = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}
DOTS_PER_INCH = 300


@contextmanager
def _style() -> Iterator[None]:
    """The style of all figures."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


class Picture:
    """A figure, which is drawn when it is first asked for, in the style of all figures."""

    def __init__(self, draw: "Callable[[], Figure]") -> None:
        self._draw = draw

    @cached_property
    def figure(self) -> "Figure":
        with _style():
            return self._draw()

    def files(self, name: str) -> dict[str, bytes]:
        """Return the figure as pdf, svg and png, by file name."""
        return {f"{name}.{suffix}": self._render(suffix) for suffix in NO_DATES}

    def _render(self, suffix: str) -> bytes:
        buffer = io.BytesIO()
        with _style():
            self.figure.savefig(buffer, format=suffix, dpi=DOTS_PER_INCH, metadata=NO_DATES[suffix])
        return buffer.getvalue()


def single_axes(width_inches: float, height_inches: float) -> "tuple[Figure, Axes]":
    """Create a figure with one plot."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    return figure, figure.add_subplot()


PANELS_BESIDE, PAGE_INCHES, PANEL_INCHES = 4, 6.75, 1.45
"""Panels beside each other, on the width of two columns of a paper."""
HEAD_INCHES, FOOT_INCHES, LABEL_INCHES = 0.65, 0.5, 0.2


def panel_grid(panels: int, title: str, subtitle: str, foot: str) -> "tuple[Figure, Sequence[Axes]]":
    """Create a figure of small plots in lines of four, with a title above and a foot below."""
    from matplotlib.figure import Figure

    columns = min(PANELS_BESIDE, panels)
    lines = math.ceil(panels / columns)
    height = HEAD_INCHES + PANEL_INCHES * lines + FOOT_INCHES
    figure = Figure(figsize=(PAGE_INCHES, height))
    axes = figure.subplots(lines, columns, squeeze=False).ravel()
    ends = {"bottom": (FOOT_INCHES + LABEL_INCHES) / height, "top": 1 - HEAD_INCHES / height}
    figure.subplots_adjust(left=LABEL_INCHES * 2 / PAGE_INCHES, right=0.99, **ends, wspace=0.32, hspace=0.55)
    for each in axes[panels:]:
        each.remove()
    label_figure(figure, title, subtitle, foot)
    return figure, list(axes[:panels])


def label_figure(figure: "Figure", title: str, subtitle: str, foot: str) -> None:
    """Write a title above the plots of a figure of the page's width, and a foot below."""
    height = figure.get_figheight()
    small: dict[str, Any] = {"color": GREY_INK, "linespacing": 1.3}
    figure.text(0.01, 1 - 0.08 / height, title, fontsize=9, weight="bold", color=INK, va="top")
    figure.text(0.01, 1 - 0.26 / height, subtitle, fontsize=7, va="top", **small)
    figure.text(0.01, 0.06 / height, "\n".join(textwrap.wrap(foot, 132)), fontsize=6, va="bottom", **small)


def word_colour(word: str) -> str:
    """Return the colour of the word of a difference."""
    return WORD_COLOURS.get(word.partition(" within")[0], WORD_COLOURS["no word"])


def describe_data(study: "Study") -> str:
    """Name the scale and data of a figure; at smoke scale with a warning."""
    return ("Pipeline check, not evidence — " if study.scale == "smoke" else "") + study.where


def line_style(index: int) -> dict[str, Any]:
    """Return colour and marker of the line with an index, distinct for every colour vision, and by marker in grey."""
    return {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)], "ms": 4, "lw": 1.2}


def format_ticks(axis: "Axis") -> None:
    """Write ticks as plain numbers with a true minus sign, and thousands with commas."""
    from matplotlib.ticker import FuncFormatter

    def text(value: float, _: object) -> str:
        return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}").replace("-", "−")

    axis.set_major_formatter(FuncFormatter(text))


def format_axes(axes: "Axes", titles: tuple[str, str], across: str, up: str) -> None:
    """Set title and subtitle, axis labels, and a light grid."""
    axes.set_title(f"{titles[0]}\n", fontsize=9.5, weight="bold", color=INK, loc="left")
    axes.annotate(
        textwrap.shorten(titles[1], 90, placeholder=" …"),
        (0, 1),
        xytext=(0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=7,
        color="#444444",
    )
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    axes.grid(axis="y", color="#DDDDDD", lw=0.5, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def use_logarithmic_axis(axes: "Axes") -> None:
    """Make the y axis logarithmic, with plain numbers at 1, 2 and 5."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def draw_legend_below(figure: "Figure", columns: int = 2) -> None:
    """Draw the legend of the figure's only axes below them, where it covers nothing."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=6.4)
