"""Speed over sequence lengths: Figure 3 and Table 9, ours beside the paper's. It is a machine's, not a study's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

from reports import published
from reports.drawing import DISCARDED, PAPER_INK, drawn, dressed, legend_below, line_style, logarithmic
from reports.formats import DASH, Table, csv_text, raw, with_deviation
from reports.measurements import ThroughputResult
from reports.table3 import PAPER, THIS_STUDY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = "throughput"
PAPER_DEVICE = "one A100"
THOUSAND = 1000.0


@dataclass(frozen=True)
class ThroughputLine:
    """One model on one device in one precision; `results` by length, of several of one length the newest."""

    model: str
    device: str
    precision: str
    results: dict[int, ThroughputResult]

    @property
    def label(self) -> str:
        """Everything that tells it from other lines."""
        return f"{self.model}, {self.precision}, {self.device}"


def throughput_lines(results: Sequence[ThroughputResult]) -> tuple[tuple[ThroughputLine, ...], list[str]]:
    """The lines by model, and a sentence for every result that a newer one replaces."""
    lines: dict[tuple[str, str, str], dict[int, ThroughputResult]] = {}
    notes = []
    for result in sorted(results, key=lambda each: (each.date, each.id), reverse=True):
        config = result.config
        precision = f"{config.precision}{', compiled' if config.compiled else ''}"
        own = lines.setdefault((config.model, result.device, precision), {})
        kept = own.setdefault(config.sequence_tokens, result)
        if kept is not result:
            notes.append(f"throughput record {result.id} is older than {kept.id} and left out")
    made = [ThroughputLine(*key, dict(sorted(own.items()))) for key, own in sorted(lines.items())]
    return tuple(made), sorted(notes)


def table9(lines: Sequence[ThroughputLine]) -> Table:
    """The printed table: thousands of tokens a second by length."""
    lengths = _lengths(lines)
    paper = [_paper_cells(row, lengths) for row in published.table9()]
    ours = [_our_cells(line, lengths) for line in lines]
    return Table(
        title="Table 9: throughput, in thousands of tokens a second",
        header=("Source", "Model", "Device", "Precision", *(f"{length:,}" for length in lengths)),
        alignment="llll" + "r" * len(lengths),
        rows=(*paper, *ours),
        notes=(
            "By sequence length in tokens; ours are medians of real tokens after warm-up at the best batch size found, "
            "± one standard deviation (sd) over steps. The paper's rows are as printed there, on its own device.",
            "Only rows on the same device compare.",
        ),
        rules=frozenset({len(paper)}),
    )


def _lengths(lines: Sequence[ThroughputLine]) -> list[int]:
    printed = {length for row in published.table9() for length in row.thousands}
    return sorted(printed | {length for line in lines for length in line.results})


def _paper_cells(row: published.PublishedThroughput, lengths: Sequence[int]) -> tuple[str, ...]:
    numbers = [_printed(*row.thousands[length]) if length in row.thousands else DASH for length in lengths]
    return (PAPER, row.model, PAPER_DEVICE, "", *numbers)


def _our_cells(line: ThroughputLine, lengths: Sequence[int]) -> tuple[str, ...]:
    scores = [line.results[length].scores if length in line.results else None for length in lengths]
    numbers = [_printed(s.tokens_per_second / THOUSAND, s.spread / THOUSAND) if s else DASH for s in scores]
    return (THIS_STUDY, line.model, line.device, line.precision, *numbers)


def _printed(thousands: float, spread: float) -> str:
    return with_deviation(thousands, spread)


def table9_csv(lines: Sequence[ThroughputLine]) -> str:
    """One line a model and length, in tokens a second, with the records."""
    header = ["source", "model", "device", "precision", "sequence_tokens", "batch_size", "tokens_per_second", "spread"]
    header += ["parameters", "steps", "date", "reference", "records"]
    return csv_text(header, chain(_paper_lines(), *map(_our_lines, lines)))


def _paper_lines() -> Iterator[list[str]]:
    for row in published.table9():
        for length, (thousands, spread) in row.thousands.items():
            numbers = [raw(thousands * THOUSAND), raw(spread * THOUSAND)]
            yield [PAPER, row.model, PAPER_DEVICE, "", str(length), "", *numbers, "", "", "", row.source, ""]


def _our_lines(line: ThroughputLine) -> Iterator[list[str]]:
    for length, result in line.results.items():
        config, scores = result.config, result.scores
        numbers = [str(config.batch_size), raw(scores.tokens_per_second), raw(scores.spread)]
        names = [THIS_STUDY, line.model, line.device, line.precision, str(length)]
        yield [*names, *numbers, str(config.parameters), str(config.steps), result.date, "", result.id]


def figure3(lines: Sequence[ThroughputLine]) -> dict[str, bytes]:
    """The figure as {"pdf": …, "svg": …, "png": …}."""
    return drawn(lambda: _draw(lines))


def _draw(lines: Sequence[ThroughputLine]) -> "Figure":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.8, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for row in published.table9():
        values = [thousands for thousands, _ in row.thousands.values()]
        axes.plot(list(row.thousands), values, color=DISCARDED, ls="--", lw=0.9, marker=".", ms=3, zorder=2)
        axes.annotate(row.model, (max(row.thousands), values[-1]), fontsize=5, color=PAPER_INK)
    for index, line in enumerate(lines):
        scores = [result.scores for result in line.results.values()]
        medians, spreads = [s.tokens_per_second / THOUSAND for s in scores], [s.spread / THOUSAND for s in scores]
        axes.errorbar(list(line.results), medians, spreads, label=line.label, capsize=2, zorder=3, **line_style(index))
    axes.set_xscale("log", base=2)
    logarithmic(axes)
    lengths = _lengths(lines)
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    titles = "Throughput by length", f"dashed: printed in the paper, on {PAPER_DEVICE}"
    dressed(axes, titles, "sequence length (tokens)", "thousands of tokens a second")
    legend_below(figure, 2)
    return figure
