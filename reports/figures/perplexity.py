"""Figure 2: pseudo-perplexity over lengths, a line per measured checkpoint."""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from neobert.kinds.readouts import ReadoutScore
from neobert.runs.records import unpack_numbers
from reports.figures.drawing import (
    Picture,
    describe_data,
    draw_legend_below,
    format_axes,
    line_style,
    single_axes,
    use_logarithmic_axis,
)
from reports.frames import select_group
from reports.rows import Study
from reports.statistics import t_interval
from reports.tables import Table, frame_of, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OF_THE_PAPER = "The paper's Figure 2: 2,467 long Wikipedia articles, every position."
LINEAR_UP_TO = 20.0  # times the smallest value; for a wider range, the axis is logarithmic


@dataclass(frozen=True)
class PerplexityAtLength:
    """Pseudo-perplexity at one length in tokens: exp of the mean loss of tokens that are masked one at a time.

    `low` to `high` is the 95 % interval, NaN below three documents. `positions` is the number of masked tokens.
    """

    tokens: int
    pseudo_perplexity: float
    low: float
    high: float
    positions: int
    documents: int


@dataclass(frozen=True)
class PerplexityLine:
    """One checkpoint on the held-out text of one corpus. `points` are in the order of lengths."""

    label: str
    corpus: str
    points: tuple[PerplexityAtLength, ...]
    id: str


def find_lines(study: Study) -> tuple[PerplexityLine, ...]:
    """Return the lines of a study, sorted by label and corpus."""
    seeds, labels, lines = study.seeds, study.run_labels, []
    for result in select_group(study.frames.readouts_of("perplexity"), study.scale, study.data).itertuples():
        label = f"{labels[result.run]}, seed {seeds[result.run]}" if result.run in seeds else f"run {result.run}"
        lines += [
            PerplexityLine(label, corpus, points_of(answer), result.id) for corpus, answer in result.answers.items()
        ]
    return tuple(sorted(lines, key=lambda line: (line.label, line.corpus, line.id)))


def points_of(answer: ReadoutScore) -> tuple[PerplexityAtLength, ...]:
    """Return pseudo-perplexity by length: exp of the mean loss over documents (Salazar et al. 2020), equally weighted.

    The interval is Student's t interval of the mean over documents, exponentiated. As positions are sampled, the
    variance of document means includes that of the sampling.
    """
    lengths = sorted(map(int, answer.groups))
    nats = unpack_numbers(answer.numerators, "<f4", answer.units).astype("f8").reshape(len(lengths), -1)
    counts = unpack_numbers(answer.denominators or "", "<i4", answer.units).reshape(len(lengths), -1)
    losses = (nats / counts).tolist()
    ends = [t_interval(own) or (math.nan, math.nan) for own in losses]
    return tuple(
        PerplexityAtLength(tokens, math.exp(fmean(own)), math.exp(max(low, 0.0)), math.exp(high), int(count), len(own))
        for tokens, own, (low, high), count in zip(lengths, losses, ends, counts.sum(axis=1), strict=True)
    )


def draw(study: Study) -> Picture | None:
    lines = find_lines(study)
    return Picture(lambda: _draw(lines, describe_data(study))) if lines else None


def _draw(lines: Sequence[PerplexityLine], data: str) -> "Figure":
    figure, axes = single_axes(5.6, 4.0)
    for index, line in enumerate(lines):
        style = line_style(index)
        tokens = [point.tokens for point in line.points]
        low, high = [point.low for point in line.points], [point.high for point in line.points]
        axes.fill_between(tokens, low, high, color=style["color"], alpha=0.18, lw=0)
        values = [point.pseudo_perplexity for point in line.points]
        axes.plot(tokens, values, label=f"{line.label} ({line.corpus})", zorder=3, **style)
    values = [point.pseudo_perplexity for line in lines for point in line.points]
    if max(values) > LINEAR_UP_TO * min(values):
        use_logarithmic_axis(axes)
    format_axes(
        axes, ("Pseudo-perplexity by length", data), "sequence length (tokens)", "pseudo-perplexity (band: 95 %)"
    )
    note = "\n".join(textwrap.wrap(" ".join((describe_documents(lines), OF_THE_PAPER)), 100))
    figure.supxlabel(note, fontsize=6, color="#444444", x=0.02, ha="left")
    draw_legend_below(figure)
    return figure


def describe_documents(lines: Sequence[PerplexityLine]) -> str:
    """Describe the documents and positions of the lines in a sentence."""
    points = [point for line in lines for point in line.points]
    documents = _range(point.documents for point in points)
    positions = _range(round(point.positions / point.documents) for point in points)
    which = f"{documents} held-out documents, the same at each length"
    return f"Beginnings of {which}; {positions} tokens of each, masked alone."


def _range(counts: Iterable[int]) -> str:
    least, *_, most = sorted([*counts] * 2)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


HEADER = ("Model", "Corpus", "Tokens", "Pseudo-perplexity", "95 %", "Positions", "Documents")
FACTS = ("model", "corpus", "tokens", "pseudo_perplexity", "low", "high", "positions", "documents", "records")


def table(study: Study) -> Table | None:
    """Return the numbers of the figure: one line per checkpoint and length; None without records."""
    lines = find_lines(study)
    if not lines:
        return None
    shown, facts = [], []
    for line, at in ((each, point) for each in lines for point in each.points):
        values = number(at.pseudo_perplexity, 2), f"{number(at.low, 2)} to {number(at.high, 2)}"
        shown.append([line.label, line.corpus, f"{at.tokens:,}", *values, f"{at.positions:,}", f"{at.documents:,}"])
        numbers = at.tokens, at.pseudo_perplexity, at.low, at.high, at.positions, at.documents
        facts.append([line.label, line.corpus, *numbers, line.id])
    return Table(
        title=f"Pseudo-perplexity by length ({study.where})",
        shown=frame_of(shown, HEADER),
        facts=frame_of(facts, FACTS),
        alignment="ll" + "r" * 5,
        notes=("exp of the mean loss of tokens that are masked alone.", describe_documents(lines), OF_THE_PAPER),
    )
