"""Embeddings as bars: zero-shot (Figure 4), and by category after contrastive fine-tuning."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from reports import published
from reports.drawing import COLOURS, INK, KEPT, PAPER_MARK, drawn, dressed, legend_below, provenance_line
from reports.embeddings import ALL_TASKS, EmbeddingRow, shared_tasks
from reports.formats import number
from reports.scores import Group
from reports.table4 import TITLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

HATCHES = ("", "///", "...", "\\\\\\", "xx", "--")
PAPER_MODEL = "NeoBERT-4096"


def figure4(rows: Sequence[EmbeddingRow], group: Group) -> dict[str, bytes]:
    """Zero-shot means as {"pdf": …, "svg": …, "png": …}: of all 56 tasks, or of those that all rows share."""
    return drawn(lambda: _draw_zero_shot(rows, group))


def _draw_zero_shot(rows: Sequence[EmbeddingRow], group: Group) -> "Figure":
    from matplotlib.figure import Figure

    shared = shared_tasks(rows)
    means = [row.mean_over(shared) if shared else row.average for row in rows]
    figure = Figure(figsize=(max(4.4, 1.1 + 0.8 * len(rows)), 3.4), layout="constrained")
    axes = figure.add_subplot()
    for place, mean in enumerate(means):
        if mean is None:
            axes.text(place, 0, "no shared tasks", rotation=90, ha="center", va="bottom", color=INK)
            continue
        axes.bar(place, mean.mean, 0.7, color=KEPT, yerr=mean.spread, ecolor=INK, capsize=2, zorder=3)
        axes.text(place, 0, number(mean.mean), ha="center", va="bottom", color="white", weight="bold", zorder=4)
    axes.set_xticks(range(len(rows)), [row.label.replace(", ", ",\n") for row in rows], fontsize=6)
    what = f"mean of {len(shared)} shared tasks" if shared else f"average of {ALL_TASKS} tasks"
    dressed(axes, ("Zero-shot embeddings", provenance_line(group)), "", f"{what} (points)")
    return figure


def figure5(rows: Sequence[EmbeddingRow], group: Group) -> dict[str, bytes]:
    """Means by category after contrastive fine-tuning; an incomplete one says how many tasks it has."""
    return drawn(lambda: _draw_categories(rows, group))


def _draw_categories(rows: Sequence[EmbeddingRow], group: Group) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    for index, row in enumerate(rows):
        _draw_row(axes, row, index, 0.8 / len(rows))
    printed = next(row for row in published.table4() if row.model == PAPER_MODEL)
    diamonds: dict[str, Any] = {"marker": "D", "ls": "", "mfc": PAPER_MARK, "mec": INK, "mew": 0.7, "ms": 4.6}
    label = f"{PAPER_MODEL}, printed in the paper at its own scale and data"
    axes.plot(range(len(TITLES)), [printed.categories[each] for each in TITLES], zorder=6, label=label, **diamonds)
    axes.set_xticks(range(len(TITLES)), list(TITLES.values()))
    dressed(axes, ("Embeddings by category", provenance_line(group)), "", "mean main score (points; small: tasks)")
    legend_below(figure, 2)
    return figure


def _draw_row(axes: "Axes", row: EmbeddingRow, index: int, width: float) -> None:
    """A bar a category, beside those of other rows; the number of tasks stands on it where some are missing."""
    style: dict[str, Any] = {"color": COLOURS[index % len(COLOURS)], "hatch": HATCHES[index % len(HATCHES)]}
    means = [row.category(category) for category in TITLES]
    places = [place - 0.4 + (index + 0.5) * width for place in range(len(TITLES))]
    known = [(place, mean) for place, mean in zip(places, means, strict=True) if mean.score is not None]
    heights = [mean.score.mean for _, mean in known if mean.score]
    style |= {"edgecolor": "white", "lw": 0, "zorder": 3, "label": row.label}
    axes.bar([place for place, _ in known], heights, width * 0.92, **style)
    for (place, mean), height in zip(known, heights, strict=True):
        if not mean.is_whole:
            count = str(mean.tasks) if mean.expected is None else f"{mean.tasks}/{mean.expected}"
            axes.text(place, height, count, ha="center", va="bottom", fontsize=5, color=INK)
