"""Speed over sequence lengths: Figure 3 and Table 9, ours beside the paper's. It is a machine's, not a study's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd

from ablations.ladders import current
from reports import published
from reports.figures.drawing import (
    DISCARDED,
    PAPER_INK,
    draw_legend_below,
    format_axes,
    line_style,
    rendered,
    use_logarithmic_axis,
)
from reports.tables import DASH, THIS_STUDY, Table, capitalized, frame_of, with_deviation

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "throughput"
PAPER_DEVICE = "one A100"
THOUSAND = 1000.0


@dataclass(frozen=True)
class ThroughputLine:
    """One model on one device in one precision; `results` has a row a length, of several of one length the newest."""

    model: str
    device: str
    precision: str
    results: pd.DataFrame

    @property
    def label(self) -> str:
        """Everything that tells it from other lines."""
        return f"{self.model}, {self.precision}, {self.device}"


def throughput_lines(results: pd.DataFrame) -> tuple[tuple[ThroughputLine, ...], list[str]]:
    """The lines by model, and a sentence for every result that a newer one replaces."""
    compiled = [f"{each.precision}{', compiled' if each.compiled else ''}" for each in results.itertuples()]
    newest = results.assign(precision=compiled).sort_values(["date", "id"], ascending=False)
    kept = newest.groupby(["model", "device", "precision", "sequence_tokens"]).id.transform("first")
    old = newest.id != kept
    notes = [
        f"throughput record {each} is older than {newer} and left out"
        for each, newer in zip(newest.id[old], kept[old], strict=True)
    ]
    lines = [
        ThroughputLine(model, device, precision, own.sort_values("sequence_tokens"))
        for (model, device, precision), own in newest[~old].groupby(["model", "device", "precision"])
    ]
    return tuple(lines), sorted(notes)


FACTS = (
    *("source", "model", "device", "precision", "sequence_tokens", "batch_size", "tokens_per_second", "spread"),
    *("parameters", "steps", "date", "reference", "records"),
)


def table9(lines: Sequence[ThroughputLine]) -> Table:
    """Thousands of tokens a second by length, and tokens a second in the CSV file."""
    lengths, paper = _lengths(lines), published.table9()
    printed = [
        (current().published_source, row.model, PAPER_DEVICE, "", *_print_speeds(row.thousands, lengths))
        for row in paper
    ]
    ours = [
        (THIS_STUDY, line.model, line.device, line.precision, *_print_speeds(_thousands(line), lengths))
        for line in lines
    ]
    return Table(
        title="Table 9: throughput, in thousands of tokens a second",
        shown=frame_of(
            [*printed, *ours], ("Source", "Model", "Device", "Precision", *(f"{length:,}" for length in lengths))
        ),
        facts=frame_of(list(_facts(lines)), FACTS),
        alignment="llll" + "r" * len(lengths),
        notes=(
            "By sequence length in tokens; ours are medians of real tokens after warm-up at the best batch size found, "
            f"± one standard deviation (sd) over steps. {capitalized(current().published_as)}'s rows are as printed "
            "there, on its own device.",
            "Only rows on the same device compare.",
        ),
        rules=frozenset({len(paper)}),
        records=(*(row.source for row in paper), *(tuple(line.results.id) for line in lines)),
    )


def throughput_files(lines: Sequence[ThroughputLine]) -> dict[str, bytes]:
    """Figure 3 and Table 9 by file name; nothing where there is no record."""
    if not lines:
        return {}
    table = table9(lines)
    images = {f"figure3.{suffix}": image for suffix, image in figure3(lines).items()}
    return {**images, "figure3.csv": table.csv.encode(), **table.files("table9")}


def _lengths(lines: Sequence[ThroughputLine]) -> list[int]:
    printed = {length for row in published.table9() for length in row.thousands}
    return sorted(printed | {length for line in lines for length in line.results.sequence_tokens})


def _thousands(line: ThroughputLine) -> dict[int, tuple[float, float]]:
    """Thousands of tokens a second and their spread by length."""
    return {
        each.sequence_tokens: (each.tokens_per_second / THOUSAND, each.spread / THOUSAND)
        for each in line.results.itertuples()
    }


def _print_speeds(thousands: dict[int, tuple[float, float]], lengths: Sequence[int]) -> list[str]:
    return [with_deviation(*thousands[length]) if length in thousands else DASH for length in lengths]


def _facts(lines: Sequence[ThroughputLine]) -> Iterator[list[Any]]:
    for row in published.table9():
        for length, (thousands, spread) in row.thousands.items():
            numbers = thousands * THOUSAND, spread * THOUSAND
            yield [
                current().published_source,
                row.model,
                PAPER_DEVICE,
                "",
                length,
                None,
                *numbers,
                None,
                None,
                "",
                row.source,
                "",
            ]
    for line in lines:
        for each in line.results.itertuples():
            names = THIS_STUDY, line.model, line.device, line.precision, each.sequence_tokens, each.batch_size
            own = each.tokens_per_second, each.spread, each.parameters, each.steps, each.date
            yield [*names, *own, "", each.id]


@rendered
def figure3(lines: Sequence[ThroughputLine]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for row in published.table9():
        values = [thousands for thousands, _ in row.thousands.values()]
        axes.plot(list(row.thousands), values, color=DISCARDED, ls="--", lw=0.9, marker=".", ms=3, zorder=2)
        axes.annotate(row.model, (max(row.thousands), values[-1]), fontsize=5, color=PAPER_INK)
    for index, line in enumerate(lines):
        medians, spreads = zip(*_thousands(line).values(), strict=True)
        lengths = list(line.results.sequence_tokens)
        axes.errorbar(lengths, medians, spreads, label=line.label, capsize=2, zorder=3, **line_style(index))
    axes.set_xscale("log", base=2)
    use_logarithmic_axis(axes)
    ticks = _lengths(lines)
    axes.set_xticks(ticks, [f"{length:,}" for length in ticks])
    titles = "Throughput by length", f"dashed: printed in the paper, on {PAPER_DEVICE}"
    format_axes(axes, titles, "sequence length (tokens)", "thousands of tokens a second")
    draw_legend_below(figure)
    return figure
