"""All that the reports say about one scale and source of data, and the figures and tables that are written of it.

A new figure or table is one entry of `OUTPUTS`: it is written in every format and listed on the page, in the part that
the entry names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

from neobert.runs.records import ENGLISH_SUITE_V2, Protocol
from reports.analysis.compute_gain import ComputeGain, find_gains, gains_table
from reports.analysis.deltas import deltas_table, find_deltas
from reports.analysis.effects import Factorial, effects_table, find_factorials
from reports.analysis.pairing import Delta
from reports.analysis.quantities import OF_READOUTS
from reports.analysis.readouts import SignalToNoise, find_signals, signals_table
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
CSV = ("csv",)


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


def make_forest(findings: Findings, *, are_readouts: bool) -> Forest:
    """The differences of readouts, or all others; readouts are a figure by themselves, of up to ten columns."""
    deltas = [delta for delta in findings.deltas if (delta.quantity in OF_READOUTS) == are_readouts]
    return forest_of_deltas(deltas, findings.group, findings.bars.quantity, findings.signals)


def _draw_deltas(findings: Findings) -> Images:
    forest = make_forest(findings, are_readouts=False)
    return draw_forest(forest) if forest.columns else {}


def _draw_deltas_in_a_column(findings: Findings) -> Images:
    forest = make_forest(findings, are_readouts=False)
    return draw_forest(one_quantity(forest), COLUMN_INCHES) if forest.columns else {}


def _draw_readouts(findings: Findings) -> Images:
    forest = make_forest(findings, are_readouts=True)
    return draw_forest(forest) if forest.columns else {}


def _contrastive_table(findings: Findings) -> Table | None:
    rows = findings.embeddings.of("contrastive")
    return table4(rows, findings.group) if rows else None


def _v2_table(protocol: Protocol, title: str) -> Callable[[Findings], Table | None]:
    def make(findings: Findings) -> Table | None:
        rows = findings.embeddings.of_v2(protocol)
        return embedding_table(rows, findings.group, f"{title} on {ENGLISH_SUITE_V2}", ()) if rows else None

    return make


def _zero_shot_table(findings: Findings) -> Table | None:
    rows = findings.embeddings.of("zero_shot")
    return embedding_table(rows, findings.group, "Zero-shot embeddings", ()) if rows else None


def _draw_effects(findings: Findings) -> Images:
    forest = forest_of_effects(findings.factorials, findings.group)
    return draw_forest(forest) if forest.columns else {}


OUTPUTS: Mapping[str, Output] = {
    "figure1": Output("Figure 1, the ladder", lambda its: figure1_facts(its.bars), lambda its: figure1(its.bars), CSV),
    "table2": Output("Table 2, modifications", lambda its: table2(its.group)),
    "table3": Output("Table 3, GLUE", lambda its: table3(its.group)),
    "scores": Output("GLUE and losses", lambda its: score_table(its.group), formats=(), part="scores"),
    "table5": Output("Table 5, best points", lambda its: table5(its.group)),
    "deltas": Output("Deltas", lambda its: its.delta_table, _draw_deltas, part="statistics"),
    "deltas-column": Output(
        "Deltas, one column wide", lambda its: its.delta_table, _draw_deltas_in_a_column, formats=()
    ),
    "readouts": Output(
        "Readouts by signal to noise",
        lambda its: signals_table(its.signals, its.group) if its.signals else None,
        _draw_readouts,
        part="statistics",
    ),
    "compute": Output(
        "Compute-equivalent gains",
        lambda its: gains_table(its.gains, its.group) if its.gains else None,
        part="statistics",
    ),
    "forecasts": Output(
        "Forecasts and outcomes",
        lambda its: forecasts_table(its.outcomes, its.group) if its.outcomes else None,
        part="statistics",
    ),
    "effects": Output(
        "Effects",
        lambda its: effects_table(its.factorials, its.group, its.bars.quantity) if its.factorials else None,
        _draw_effects,
        part="statistics",
    ),
    "rates": Output(
        "Peak learning rates",
        lambda its: sweeps_table(its.group) if its.group.sweeps else None,
        lambda its: draw_sweeps(its.group),
        part="statistics",
    ),
    "table4": Output("Table 4, embeddings", _contrastive_table, part="embeddings"),
    "table4-v2": Output(
        "Embeddings on MTEB(eng, v2)",
        _v2_table("contrastive", "Embeddings after contrastive fine-tuning"),
        part="embeddings",
    ),
    "figure5": Output(
        "Embeddings by category",
        _contrastive_table,
        lambda its: figure5(its.embeddings.of("contrastive"), its.group),
        CSV,
    ),
    "figure4": Output(
        "Figure 4, zero-shot embeddings",
        _zero_shot_table,
        lambda its: figure4(its.embeddings.of("zero_shot"), its.group),
        CSV,
        part="embeddings",
    ),
    "zero-shot-v2": Output(
        "Zero-shot embeddings on MTEB(eng, v2)", _v2_table("zero_shot", "Zero-shot embeddings"), part="embeddings"
    ),
    "figure2": Output(
        "Figure 2, pseudo-perplexity",
        lambda its: perplexity_table(its.perplexities, its.group) if its.perplexities else None,
        lambda its: figure2(its.perplexities, its.group),
        CSV,
        part="embeddings",
    ),
}
"""In the order in which the page lists them."""
