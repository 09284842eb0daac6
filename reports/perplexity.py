"""Pseudo-perplexity over lengths, a line for each checkpoint that was measured: Figure 2."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neobert.runs.records import PerplexityAtLength
from reports.drawing import drawn, dressed, legend_below, line_style, logarithmic, provenance_line
from reports.embeddings import labels_of_runs
from reports.formats import Table, csv_text, number, raw
from reports.scores import Group
from reports.trials import Evidence

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_THE_PAPER = "The paper's Figure 2: 2,467 long Wikipedia articles, every position."
LINEAR_UP_TO = 20.0  # times the smallest value: beyond it the axis is logarithmic


@dataclass(frozen=True)
class PerplexityLine:
    """One checkpoint on one text; `points` are in the order of lengths, `sampled_positions` at most were masked of each
    document (None: all), and `same_documents` says that every length has the same ones."""

    label: str
    text: str
    sampled_positions: int | None
    same_documents: bool
    points: tuple[PerplexityAtLength, ...]
    id: str


def perplexity_lines(group: Group, evidence: Evidence) -> tuple[PerplexityLine, ...]:
    """The lines of a group, by label and seed."""
    runs, labels = {run.id: run for run in evidence.runs}, labels_of_runs(group, evidence.runs)
    lines = []
    for result in evidence.measurements.perplexities:
        if (result.scale, result.data) != (group.scale, group.data):
            continue
        run = runs.get(result.run_id)
        own = f"{labels[run.id]}, seed {run.seed}" if run else f"run {result.run_id}"
        points = tuple(sorted(result.scores.lengths, key=lambda point: point.tokens))
        config = result.config
        label = result.model or own
        lines.append(
            PerplexityLine(label, config.text, config.sampled_positions, config.same_documents, points, result.id)
        )
    return tuple(sorted(lines, key=lambda line: (line.label, line.text, line.id)))


def figure2(lines: Sequence[PerplexityLine], group: Group) -> dict[str, bytes]:
    """The figure as {"pdf": …, "svg": …, "png": …}."""
    return drawn(lambda: _draw(lines, group))


def _draw(lines: Sequence[PerplexityLine], group: Group) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for index, line in enumerate(lines):
        style = line_style(index)
        tokens = [point.tokens for point in line.points]
        low, high = [point.low for point in line.points], [point.high for point in line.points]
        axes.fill_between(tokens, low, high, color=style["color"], alpha=0.18, lw=0)
        values = [point.pseudo_perplexity for point in line.points]
        axes.plot(tokens, values, label=f"{line.label} ({line.text})", zorder=3, **style)
    values = [point.pseudo_perplexity for line in lines for point in line.points]
    if max(values) > LINEAR_UP_TO * min(values):
        logarithmic(axes)
    titles = "Pseudo-perplexity by length", provenance_line(group)
    dressed(axes, titles, "sequence length (tokens)", "pseudo-perplexity (band: 95 %)")
    note = "\n".join(textwrap.wrap(" ".join((what_is_read(lines), OF_THE_PAPER)), 100))
    figure.supxlabel(note, fontsize=6, color="#444444", x=0.02, ha="left")
    legend_below(figure, 2)
    return figure


def what_is_read(lines: Sequence[PerplexityLine]) -> str:
    """Which documents and positions the lines are of, in a sentence."""
    counts = sorted({point.documents for line in lines for point in line.points})
    documents = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    are_same = all(line.same_documents for line in lines)
    which = "the same at each length" if are_same else "other ones at other lengths"
    sampled = sorted({line.sampled_positions or 0 for line in lines})
    positions = " or ".join(f"at most {each:,} positions" if each else "every position" for each in sampled)
    return f"Beginnings of {documents} documents, {which}; {positions} of each, masked alone."


def perplexity_table(lines: Sequence[PerplexityLine], group: Group) -> Table:
    """The numbers of the figure for people: one line a checkpoint and length."""
    return Table(
        title=f"Pseudo-perplexity by length (scale {group.scale}, data {group.data})",
        header=("Model", "Text", "Tokens", "Pseudo-perplexity", "95 %", "Positions", "Documents"),
        alignment="ll" + "r" * 5,
        rows=tuple(_cells(line, point) for line in lines for point in line.points),
        notes=("exp of the mean loss of tokens that are masked alone.", what_is_read(lines), OF_THE_PAPER),
    )


def _cells(line: PerplexityLine, point: PerplexityAtLength) -> tuple[str, ...]:
    interval = f"{number(point.low, 2)} to {number(point.high, 2)}"
    counts = f"{point.positions:,}", f"{point.documents:,}"
    return line.label, line.text, f"{point.tokens:,}", number(point.pseudo_perplexity, 2), interval, *counts


def figure2_csv(lines: Sequence[PerplexityLine]) -> str:
    """What the figure shows, with the records."""
    header = ["model", "text", "tokens", "pseudo_perplexity", "low", "high", "positions", "documents", "records"]
    return csv_text(header, [_csv_row(line, point) for line in lines for point in line.points])


def _csv_row(line: PerplexityLine, point: PerplexityAtLength) -> list[str]:
    numbers = [raw(value) for value in (point.pseudo_perplexity, point.low, point.high)]
    counts = [str(point.positions), str(point.documents)]
    return [line.label, line.text, str(point.tokens), *numbers, *counts, line.id]
