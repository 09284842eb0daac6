"""Figure 2: pseudo-perplexity over lengths, a line per measured checkpoint."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from neobert.runs.records import PerplexityAtLength
from reports.evidence import Evidence, select_group
from reports.figures.drawing import (
    describe_data,
    draw_legend_below,
    format_axes,
    line_style,
    rendered,
    single_axes,
    use_logarithmic_axis,
)
from reports.figures.embeddings import label_runs
from reports.scores import Group
from reports.tables import Column, Table, make_table, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_THE_PAPER = "The paper's Figure 2: 2,467 long Wikipedia articles, every position."
LINEAR_UP_TO = 20.0  # times the smallest value; for a wider range, the axis is logarithmic


@dataclass(frozen=True)
class PerplexityLine:
    """One checkpoint on one text. `points` are in the order of lengths, at most `sampled_positions` were masked per
    document (None: all), and `same_documents` is true if every length has the same documents."""

    label: str
    text: str
    sampled_positions: int | None
    same_documents: bool
    points: tuple[PerplexityAtLength, ...]
    id: str


def perplexity_lines(group: Group, evidence: Evidence) -> tuple[PerplexityLine, ...]:
    """Return the lines of a group, sorted by label and seed."""
    seeds, labels = evidence.seeds, label_runs(group, evidence.runs)
    lines = []
    for result in select_group(evidence.perplexities, group.scale, group.data).itertuples():
        own = f"{labels[result.run]}, seed {seeds[result.run]}" if result.run in seeds else f"run {result.run}"
        lines.append(
            PerplexityLine(
                label=result.model or own,
                text=result.text,
                sampled_positions=result.sampled_positions,
                same_documents=result.same_documents,
                points=tuple(sorted(result.lengths, key=lambda point: point.tokens)),
                id=result.id,
            )
        )
    return tuple(sorted(lines, key=lambda line: (line.label, line.text, line.id)))


@rendered
def figure2(lines: Sequence[PerplexityLine], group: Group) -> "Figure":
    figure, axes = single_axes(5.6, 4.0)
    for index, line in enumerate(lines):
        style = line_style(index)
        tokens = [point.tokens for point in line.points]
        low, high = [point.low for point in line.points], [point.high for point in line.points]
        axes.fill_between(tokens, low, high, color=style["color"], alpha=0.18, lw=0)
        values = [point.pseudo_perplexity for point in line.points]
        axes.plot(tokens, values, label=f"{line.label} ({line.text})", zorder=3, **style)
    values = [point.pseudo_perplexity for line in lines for point in line.points]
    if max(values) > LINEAR_UP_TO * min(values):
        use_logarithmic_axis(axes)
    titles = "Pseudo-perplexity by length", describe_data(group)
    format_axes(axes, titles, "sequence length (tokens)", "pseudo-perplexity (band: 95 %)")
    note = "\n".join(textwrap.wrap(" ".join((describe_documents(lines), OF_THE_PAPER)), 100))
    figure.supxlabel(note, fontsize=6, color="#444444", x=0.02, ha="left")
    draw_legend_below(figure)
    return figure


def describe_documents(lines: Sequence[PerplexityLine]) -> str:
    """Describe the documents and positions of the lines in a sentence."""
    counts = sorted({point.documents for line in lines for point in line.points})
    documents = f"{counts[0]:,}" + (f" to {counts[-1]:,}" if len(counts) > 1 else "")
    are_same = all(line.same_documents for line in lines)
    which = "the same at each length" if are_same else "other ones at other lengths"
    sampled = sorted({line.sampled_positions or 0 for line in lines})
    positions = " or ".join(f"at most {each:,} positions" if each else "every position" for each in sampled)
    return f"Beginnings of {documents} documents, {which}; {positions} of each, masked alone."


@dataclass(frozen=True)
class _Line:
    """A line of the table: a checkpoint at one length."""

    of: PerplexityLine
    point: PerplexityAtLength


def _thousands(value: int, _: _Line) -> str:
    return f"{value:,}"


COLUMNS: Sequence[Column[_Line]] = (
    Column("Model", "model", lambda line: line.of.label),
    Column("Text", "text", lambda line: line.of.text),
    Column("Tokens", "tokens", lambda line: line.point.tokens, _thousands, "r"),
    Column(
        "Pseudo-perplexity",
        "pseudo_perplexity",
        lambda line: line.point.pseudo_perplexity,
        lambda mean, _: number(mean, 2),
        "r",
    ),
    Column(
        "95 %",
        "low high",
        lambda line: (line.point.low, line.point.high),
        lambda ends, _: " to ".join(number(end, 2) for end in ends),
        "r",
    ),
    Column("Positions", "positions", lambda line: line.point.positions, _thousands, "r"),
    Column("Documents", "documents", lambda line: line.point.documents, _thousands, "r"),
    Column("", "records", lambda line: line.of.id),
)


def perplexity_table(lines: Sequence[PerplexityLine], group: Group) -> Table:
    """Return the numbers of the figure: one line per checkpoint and length."""
    return make_table(
        f"Pseudo-perplexity by length (scale {group.scale}, data {group.data})",
        COLUMNS,
        [_Line(line, point) for line in lines for point in line.points],
        ("exp of the mean loss of tokens that are masked alone.", describe_documents(lines), OF_THE_PAPER),
        records=lambda line: (line.of.id,),
    )
