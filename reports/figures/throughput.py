"""Speed over sequence lengths: Figure 3 and Table 9, next to the paper's. It is measured per machine, not per study."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pandas as pd

from ablations.ladders import Ladder
from reports.figures import published
from reports.figures.drawing import (
    DISCARDED,
    PAPER_INK,
    Picture,
    draw_legend_below,
    format_axes,
    line_style,
    single_axes,
    use_logarithmic_axis,
)
from reports.tables import PAPER, THIS_STUDY, Table, frame_of, with_deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "throughput"
PAPER_DEVICE = "one A100"
THOUSAND = 1000.0
TITLES = {"figure3": "Figure 3, throughput", "table9": "Table 9, throughput"}

Lines = Mapping[tuple[str, str, str], pd.DataFrame]
"""Results by (model, device, precision): the newest row of each length."""


def throughput_lines(results: pd.DataFrame) -> Lines:
    """Return the lines by model."""
    compiled = [f"{each.precision}{', compiled' if each.compiled else ''}" for each in results.itertuples()]
    newest = results.assign(precision=compiled).sort_values(["date", "id"], ascending=False)
    kept = newest.drop_duplicates(["model", "device", "precision", "sequence_tokens"])
    return dict(list(kept.sort_values("sequence_tokens").groupby(["model", "device", "precision"])))


FACTS = (
    *("source", "model", "device", "precision", "sequence_tokens", "batch_size", "tokens_per_second", "spread"),
    *("parameters", "steps", "date", "reference", "records"),
)


def table9(ladder: Ladder, lines: Lines) -> Table:
    """Return a table of thousands of tokens per second by length; the CSV file has tokens per second."""
    paper = published.table9(ladder)
    lengths, rows, facts = _lengths(ladder, lines), [], []
    for *names, own in (
        *((PAPER, model, PAPER_DEVICE, "", own) for model, own in paper.items()),
        *((THIS_STUDY, *names, own.rename(columns={"id": "records"})) for names, own in lines.items()),
    ):
        at_lengths = zip(own.tokens_per_second / THOUSAND, own.spread / THOUSAND, strict=True)
        speeds = dict(zip(own.sequence_tokens, at_lengths, strict=True))
        rows.append([*names, *(with_deviation(*speeds.get(length, (None, None))) for length in lengths)])
        facts += [[*names, *values] for values in own.reindex(columns=FACTS[4:]).itertuples(index=False)]
    return Table(
        title="Table 9: throughput, in thousands of tokens per second",
        shown=frame_of(rows, ("Source", "Model", "Device", "Precision", *(f"{length:,}" for length in lengths))),
        facts=frame_of(facts, FACTS),
        alignment="llll" + "r" * len(lengths),
        notes=(
            "By sequence length in tokens; ours are medians of real tokens after warm-up at the best batch size found, "
            "± one standard deviation (sd) over steps. The paper's rows are as printed there, on its own device.",
            "Only rows on the same device compare.",
        ),
        rules=frozenset({len(paper)}),
    )


def throughput_files(ladder: Ladder, lines: Lines) -> dict[str, bytes]:
    """Return Figure 3 and Table 9 in all formats, by file name; nothing if there are no records."""
    if not lines:
        return {}
    picture = Picture(lambda: _draw(ladder, lines))
    return picture.files("figure3") | table9(ladder, lines).files("table9")


def _lengths(ladder: Ladder, lines: Lines) -> list[int]:
    every_line = *published.table9(ladder).values(), *lines.values()
    return sorted({length for own in every_line for length in own.sequence_tokens})


def _draw(ladder: Ladder, lines: Lines) -> "Figure":
    figure, axes = single_axes(5.8, 4.2)
    for model, own in published.table9(ladder).items():
        lengths, values = list(own.sequence_tokens), list(own.thousand_tokens_per_second)
        axes.plot(lengths, values, color=DISCARDED, ls="--", lw=0.9, marker=".", ms=3, zorder=2)
        axes.annotate(model, (max(lengths), values[-1]), fontsize=5, color=PAPER_INK)
    places = {f"{precision}, {device}" for _, device, precision in lines}
    for index, ((model, device, precision), own) in enumerate(lines.items()):
        medians, spreads = own.tokens_per_second / THOUSAND, own.spread / THOUSAND
        label = model if len(places) == 1 else f"{model}, {precision}, {device}"
        style = line_style(index) | {"label": label, "capsize": 2, "zorder": 3}
        axes.errorbar(list(own.sequence_tokens), medians, spreads, **style)
    axes.set_xscale("log", base=2)
    use_logarithmic_axis(axes)
    ticks = _lengths(ladder, lines)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks])
    of_this_study = f"; others: {places.pop()}" if len(places) == 1 else ""
    titles = "Throughput by length", f"dashed: printed in the paper, on {PAPER_DEVICE}{of_this_study}"
    format_axes(axes, titles, "sequence length (tokens)", "thousands of tokens per second")
    draw_legend_below(figure, columns=2 if of_this_study else 1)
    return figure
