"""Figure 2: pseudo-perplexity over lengths, a line per measured checkpoint."""

import math
import textwrap
from collections.abc import Iterator
from statistics import fmean
from typing import TYPE_CHECKING, Any

import pandas as pd

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
HEADER = ("Model", "Corpus", "Tokens", "Pseudo-perplexity", "95 %", "Positions", "Documents")
FACTS = ("model", "corpus", "tokens", "pseudo_perplexity", "low", "high", "positions", "documents", "records")
LINE = ["model", "corpus", "records"]


def find_lines(study: Study) -> pd.DataFrame:
    """Return the points of all lines, sorted by line: one checkpoint on the held-out text of one corpus."""
    seeds, labels, rows = study.seeds, study.run_labels, []
    for result in select_group(study.frames.readouts_of("perplexity"), study.scale, study.data).itertuples():
        label = f"{labels[result.run]}, seed {seeds[result.run]}" if result.run in seeds else f"run {result.run}"
        for corpus, answer in result.answers.items():
            rows += [(label, corpus, *point, result.id) for point in points_of(answer)]
    return frame_of(rows, FACTS).sort_values(LINE, kind="stable")


def points_of(answer: ReadoutScore) -> Iterator[tuple[Any, ...]]:
    """Yield length, pseudo-perplexity (exp of the mean loss over documents, Salazar et al. 2020, equally weighted), the
    ends of its interval, and the numbers of masked positions and documents.

    The interval is Student's t interval of the mean over documents, exponentiated; NaN below three. As positions are
    sampled, the variance of document means includes that of the sampling.
    """
    lengths = sorted(map(int, answer.groups))
    nats = unpack_numbers(answer.numerators, "<f4", answer.units).astype("f8").reshape(len(lengths), -1)
    counts = unpack_numbers(answer.denominators or "", "<i4", answer.units).reshape(len(lengths), -1)
    for tokens, own, positions in zip(lengths, (nats / counts).tolist(), counts.sum(axis=1), strict=True):
        low, high = t_interval(own) or (math.nan, math.nan)
        yield tokens, math.exp(fmean(own)), math.exp(max(low, 0.0)), math.exp(high), int(positions), len(own)


def draw(study: Study) -> Picture | None:
    lines = find_lines(study)
    return Picture(lambda: _draw(lines, describe_data(study))) if len(lines) else None


def _draw(lines: pd.DataFrame, data: str) -> "Figure":
    figure, axes = single_axes(5.6, 4.0)
    for index, ((model, corpus, _), own) in enumerate(lines.groupby(LINE, sort=False)):
        style, tokens = line_style(index), own.tokens.tolist()
        axes.fill_between(tokens, own.low.tolist(), own.high.tolist(), color=style["color"], alpha=0.18, lw=0)
        axes.plot(tokens, own.pseudo_perplexity.tolist(), label=f"{model} ({corpus})", zorder=3, **style)
    if lines.pseudo_perplexity.max() > LINEAR_UP_TO * lines.pseudo_perplexity.min():
        use_logarithmic_axis(axes)
    format_axes(
        axes, ("Pseudo-perplexity by length", data), "sequence length (tokens)", "pseudo-perplexity (band: 95 %)"
    )
    note = "\n".join(textwrap.wrap(" ".join((describe_documents(lines), OF_THE_PAPER)), 100))
    figure.supxlabel(note, fontsize=6, color="#444444", x=0.02, ha="left")
    draw_legend_below(figure)
    return figure


def describe_documents(lines: pd.DataFrame) -> str:
    """Describe the documents and positions of the lines in a sentence."""
    each = [round(positions / documents) for positions, documents in zip(lines.positions, lines.documents, strict=True)]
    documents, positions = (
        " to ".join(dict.fromkeys((f"{min(counts):,}", f"{max(counts):,}"))) for counts in (lines.documents, each)
    )
    which = f"{documents} held-out documents, the same at each length"
    return f"Beginnings of {which}; {positions} tokens of each, masked alone."


def table(study: Study) -> Table | None:
    """Return the numbers of the figure: one line per checkpoint and length; None without records."""
    lines = find_lines(study)
    if lines.empty:
        return None
    shown = []
    for at in lines.itertuples():
        values = number(at.pseudo_perplexity, 2), f"{number(at.low, 2)} to {number(at.high, 2)}"
        shown.append([at.model, at.corpus, f"{at.tokens:,}", *values, f"{at.positions:,}", f"{at.documents:,}"])
    return Table(
        title=f"Pseudo-perplexity by length ({study.where})",
        shown=frame_of(shown, HEADER),
        facts=lines,
        alignment="ll" + "r" * 5,
        notes=("exp of the mean loss of tokens that are masked alone.", describe_documents(lines), OF_THE_PAPER),
    )
