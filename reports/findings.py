"""All that the reports say about one scale and source of data, and the figures and tables that are written of it.

A new figure or table is one entry of `OUTPUTS`: it is written in every format and listed on the page, in the part that
the entry names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from reports.analysis.compute_gain import ComputeGain, find_gains, gains_table
from reports.analysis.deltas import Delta, deltas_table, find_deltas
from reports.analysis.effects import Factorial, effects_table, find_factorials
from reports.analysis.readouts import READOUTS, SignalToNoise, find_signals, signals_table
from reports.analysis.resampling import StoredPredictions
from reports.curves import Curves
from reports.evidence import Evidence
from reports.figures.embeddings import Embeddings, embedding_table, figure4, figure5, find_embeddings, table4
from reports.figures.figure1 import Bars, figure1, figure1_facts, find_bars
from reports.figures.forests import (
    COLUMN_INCHES,
    Forest,
    draw_forest,
    forest_of_deltas,
    forest_of_effects,
    one_quantity,
)
from reports.figures.glue_tables import score_table, table2, table3, table5
from reports.figures.perplexity import PerplexityLine, figure2, perplexity_lines, perplexity_table
from reports.figures.rates import draw_sweeps, sweeps_table
from reports.forecasts.outcomes import Outcome, forecasts_table, score_forecasts
from reports.scores import Group
from reports.tables import Table

Images = Mapping[str, bytes]


@dataclass(frozen=True)
class Findings:
    """A group and, on demand, what follows from it. `folder` is the name of the folder that its files go to."""

    group: Group
    folder: str
    stored: StoredPredictions
    evidence: Evidence
    curves: Curves

    @cached_property
    def bars(self) -> Bars:
        """Scores and relative changes of the ladder."""
        return find_bars(self.group)

    @cached_property
    def deltas(self) -> tuple[Delta, ...]:
        """Differences over paired seeds, with their statistics."""
        return find_deltas(self.group, self.bars.tasks, self.stored)

    @cached_property
    def delta_table(self) -> Table:
        """The differences as a table, which two figures share."""
        return deltas_table(self.deltas, self.group, self.bars.quantity)

    @cached_property
    def factorials(self) -> tuple[Factorial, ...]:
        """Effects in factorials, where there are any."""
        return find_factorials(self.group, self.bars.tasks)

    @cached_property
    def embeddings(self) -> Embeddings:
        """Scores on embedding tasks, where there are any."""
        return find_embeddings(self.group, self.evidence)

    @cached_property
    def perplexities(self) -> tuple[PerplexityLine, ...]:
        """Pseudo-perplexity over lengths, where it was measured."""
        return perplexity_lines(self.group, self.evidence)

    @cached_property
    def gains(self) -> tuple[ComputeGain, ...]:
        """Compute-equivalent gains, where there are curves of held-out losses."""
        return find_gains(self.group, self.curves)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Forecasts with what was measured since, where there are any."""
        return score_forecasts(self.evidence.forecasts, self.deltas, self.group)

    @cached_property
    def signals(self) -> tuple[SignalToNoise, ...]:
        """How well each readout tells arms apart, where arms have seeds."""
        return find_signals(self.group)

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for everything that is not counted in here."""
        return (*self.group.problems, *self.embeddings.problems)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The table of each output that has records."""
        made = {name: output.table(self) for name, output in OUTPUTS.items()}
        return {name: table for name, table in made.items() if table is not None}

    def files(self) -> dict[str, bytes]:
        """Every figure and table of the study by file name."""
        contents: dict[str, bytes] = {}
        for name, table in self.tables.items():
            output = OUTPUTS[name]
            images = output.draw(self) if output.draw else {}
            contents |= {f"{name}.{suffix}": image for suffix, image in images.items()}
            contents |= {file: content for file, content in table.files(name).items() if file.endswith(output.formats)}
        return contents


@dataclass(frozen=True)
class Output:
    """A figure or table: `table` is None where no record is, `formats` are those that it is written in (of a figure's
    numbers CSV alone), `draw` makes its images by suffix, `part` is where the page shows the table."""

    title: str
    table: Callable[[Findings], Table | None]
    draw: Callable[[Findings], Images] | None = None
    formats: tuple[str, ...] = ("md", "tex", "csv")
    part: str = ""


def _perplexity(findings: Findings) -> Table | None:
    return perplexity_table(findings.perplexities, findings.group) if findings.perplexities else None


def _zero_shot(findings: Findings) -> Table | None:
    rows = findings.embeddings.of("zero_shot")
    return embedding_table(rows, findings.group, "Zero-shot embeddings", ()) if rows else None


def _contrastive(findings: Findings) -> Table | None:
    rows = findings.embeddings.of("contrastive")
    return table4(rows, findings.group) if rows else None


def _draw_deltas(findings: Findings) -> Images:
    forest = make_forest(findings, are_readouts=False)
    return draw_forest(forest) if forest.columns else {}


def _draw_deltas_in_a_column(findings: Findings) -> Images:
    forest = make_forest(findings, are_readouts=False)
    return draw_forest(one_quantity(forest), COLUMN_INCHES) if forest.columns else {}


def _draw_readouts(findings: Findings) -> Images:
    forest = make_forest(findings, are_readouts=True)
    return draw_forest(forest) if forest.columns else {}


def make_forest(findings: Findings, *, are_readouts: bool) -> Forest:
    """The differences of readouts, or all others; readouts are a figure by themselves, of up to ten columns."""
    names = {each.quantity for each in READOUTS.values()}
    deltas = [delta for delta in findings.deltas if (delta.quantity in names) == are_readouts]
    return forest_of_deltas(deltas, findings.group, findings.bars.quantity, findings.signals)


def _effects(findings: Findings) -> Table | None:
    if not findings.factorials:
        return None
    return effects_table(findings.factorials, findings.group, findings.bars.quantity)


def _draw_effects(findings: Findings) -> Images:
    if not any(each.effects for each in findings.factorials):
        return {}
    return draw_forest(forest_of_effects(findings.factorials, findings.group))


def _gains(findings: Findings) -> Table | None:
    return gains_table(findings.gains, findings.group) if findings.gains else None


def _forecasts(findings: Findings) -> Table | None:
    return forecasts_table(findings.outcomes, findings.group) if findings.outcomes else None


def _signals(findings: Findings) -> Table | None:
    return signals_table(findings.signals, findings.group) if findings.signals else None


def _rates(findings: Findings) -> Table | None:
    sweeps = list(findings.group.sweeps.values())
    return sweeps_table(sweeps, findings.group) if sweeps else None


OUTPUTS: Mapping[str, Output] = {
    "figure1": Output(
        "Figure 1, the ladder",
        lambda findings: figure1_facts(findings.bars),
        lambda findings: figure1(findings.bars),
        formats=("csv",),
    ),
    "table2": Output("Table 2, modifications", lambda findings: table2(findings.group)),
    "table3": Output("Table 3, GLUE", lambda findings: table3(findings.group)),
    "scores": Output("GLUE and losses", lambda findings: score_table(findings.group), formats=(), part="scores"),
    "table5": Output("Table 5, best points", lambda findings: table5(findings.group)),
    "deltas": Output(
        "Deltas",
        lambda findings: findings.delta_table,
        _draw_deltas,
        part="statistics",
    ),
    "deltas-column": Output(
        "Deltas, one column wide",
        lambda findings: findings.delta_table,
        _draw_deltas_in_a_column,
        formats=(),
    ),
    "readouts": Output("Readouts by signal to noise", _signals, _draw_readouts, part="statistics"),
    "compute": Output("Compute-equivalent gains", _gains, part="statistics"),
    "forecasts": Output("Forecasts and outcomes", _forecasts, part="statistics"),
    "effects": Output("Effects", _effects, _draw_effects, part="statistics"),
    "rates": Output(
        "Peak learning rates",
        _rates,
        lambda findings: draw_sweeps(list(findings.group.sweeps.values()), findings.group),
        part="statistics",
    ),
    "table4": Output("Table 4, embeddings", _contrastive, part="embeddings"),
    "figure5": Output(
        "Embeddings by category",
        _contrastive,
        lambda findings: figure5(findings.embeddings.of("contrastive"), findings.group),
        formats=("csv",),
    ),
    "figure4": Output(
        "Figure 4, zero-shot embeddings",
        _zero_shot,
        lambda findings: figure4(findings.embeddings.of("zero_shot"), findings.group),
        formats=("csv",),
        part="embeddings",
    ),
    "figure2": Output(
        "Figure 2, pseudo-perplexity",
        _perplexity,
        lambda findings: figure2(findings.perplexities, findings.group),
        formats=("csv",),
        part="embeddings",
    ),
}
"""In the order in which the page lists them."""
