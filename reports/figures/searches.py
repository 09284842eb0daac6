"""A picture of each search: the scores over each field of a point, beside the importance of the fields."""

from typing import TYPE_CHECKING

from ablations.rates import rate_text
from neobert.runs.layout import Layout
from reports.figures.drawing import INK, KEPT, PAGE_INCHES, Picture, describe_data, format_ticks, label_figure
from reports.frames import Tried
from reports.rows import Study
from reports.scores import POINTS_OF_SCORE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HEIGHT_INCHES = 2.6
BOTTOM, HEIGHT = 0.27, 0.47
"""Of all plots, as shares of the height."""
LEFT, WIDTH, GAP = 0.07, 0.148, 0.038
"""Of the plots of scores, as shares of the width."""
BAR_LEFT, BAR_WIDTH = LEFT + 3 * WIDTH + 2.5 * GAP, 0.012
IMPORTANCES_LEFT = 0.795
SHORT_AXIS = 30
"""Ratio of the ends of a logarithmic axis below which it has ticks between powers of ten."""
DOT_AREA = 14
"""In square points."""
NAMES = {"batch_size": "batch size", "learning_rate": "learning rate", "weight_decay": "weight decay"}
FOOT = (
    "Left: a dot for each trial that ended with a score, which is the mean over its seeds; darker ones were asked for "
    "later. Right: shares of the fields in the variance of these scores (fANOVA)."
)


def title_of(tried: Tried) -> str:
    """Name a search by its task and what it fine-tunes."""
    owner = tried.labels.model or ", ".join(tried.labels.variants)
    return f"Search of {tried.study.about.title} on {owner or tried.study.weights}"


def draw(tried: Tried, study: Study) -> Picture:
    """Draw a search in which some trial has a score."""
    return Picture(lambda: _draw(tried, study))


def _draw(tried: Tried, of_study: Study) -> "Figure":
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    from neobert.search.memory import importances, plot_slices, study_in_memory

    study = study_in_memory(Layout(tried.files.root), tried.study)
    with plt.style.context({}):
        slices = plot_slices(study, POINTS_OF_SCORE, "score (points)")
        figure = slices[0].figure
        assert isinstance(figure, Figure)
        plt.close(figure)
    figure.set_size_inches(PAGE_INCHES, HEIGHT_INCHES)
    figure.suptitle("")
    _arrange_slices(figure, slices)
    _draw_importances(figure.add_axes((IMPORTANCES_LEFT, BOTTOM, 0.985 - IMPORTANCES_LEFT, HEIGHT)), importances(study))
    label_figure(figure, title_of(tried), f"{describe_data(of_study)}\n{tried.sentence}", FOOT)
    return figure


def _arrange_slices(figure: "Figure", slices: "list[Axes]") -> None:
    """Place Optuna's plots and their bar of colours, in the style of all figures."""
    from matplotlib.collections import PathCollection
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    for index, axes in enumerate(slices):
        axes.set_position((LEFT + index * (WIDTH + GAP), BOTTOM, WIDTH, HEIGHT))
        _restyle(axes)
        if axes.get_xscale() == "log":
            low, high = axes.get_xlim()
            is_short = high < SHORT_AXIS * low
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)) if is_short else LogLocator(numticks=4))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, place: rate_text(value)))
            axes.xaxis.set_minor_locator(NullLocator())
        for dots in axes.collections:
            assert isinstance(dots, PathCollection)
            dots.set_sizes([DOT_AREA])
        axes.set_xlabel(NAMES.get(axes.get_xlabel(), axes.get_xlabel()), fontsize=7, color=INK)
        axes.yaxis.label.set(fontsize=7, color=INK)
        axes.grid(visible=True, color="#DDDDDD", lw=0.5)
    colours = figure.axes[-1]
    colours.set_position((BAR_LEFT, BOTTOM, BAR_WIDTH, HEIGHT))
    _restyle(colours)
    colours.yaxis.label.set(fontsize=7, color=INK, text="number of the trial")


def _restyle(axes: "Axes") -> None:
    axes.set_facecolor("white")
    axes.tick_params(labelsize=6, colors=INK, length=2.5, width=0.6)
    axes.spines[:].set(visible=True, color=INK, linewidth=0.6)


def _draw_importances(axes: "Axes", shares: dict[str, float]) -> None:
    _restyle(axes)
    names = list(reversed(shares))
    axes.barh([NAMES.get(name, name) for name in names], [shares[name] for name in names], 0.6, color=KEPT)
    for place, name in enumerate(names):
        axes.annotate(
            f"{shares[name]:.2f}", (shares[name], place), (3, 0), textcoords="offset points", va="center", fontsize=6
        )
    axes.set_xlim(0, 1.25)
    axes.set_xticks([0, 0.5, 1])
    format_ticks(axes.xaxis)
    axes.set_xlabel("importance" if shares else "importance: scores are equal", fontsize=7, color=INK)
