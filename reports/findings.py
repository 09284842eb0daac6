"""All results of one scale and data source, and the figures and tables written from them.

To add a figure or table, add an entry to `OUTPUTS`: it is written in every format and listed in the named part of the
page.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from ablations.declarations import PROTOCOL, Declaration, Protocol
from ablations.ladders import current
from neobert.kinds import mteb
from neobert.kinds.mteb import ENGLISH_SUITE_V2
from reports.analysis.compute_gain import ComputeGain, find_gains, gains_table
from reports.analysis.delta_table import deltas_table
from reports.analysis.deltas import find_deltas
from reports.analysis.effects import Factorial, effects_table, find_factorials
from reports.analysis.minimal_pairs import minimal_pairs_table
from reports.analysis.pairing import Delta
from reports.analysis.plateau import Regime
from reports.analysis.readouts import SignalToNoise, find_signals, signals_table
from reports.analysis.regime import find_regime
from reports.analysis.resampling import StoredPredictions
from reports.analysis.steps import Step, find_steps, steps_table
from reports.analysis.transitions import Wait, find_waits, waits_table
from reports.curves import Curves
from reports.deviations import Deviation, deviations_table, find_deviations
from reports.evidence import Evidence
from reports.figures.curves import Pair, draw_curves, find_pairs
from reports.figures.embeddings import Embeddings, embedding_table, figure4, find_embeddings
from reports.figures.figure1 import Bars, figure1, figure1_facts, find_bars
from reports.figures.forecasts import choose_outcomes, draw_forecasts
from reports.figures.forests import Forest, draw_forest, forest_of_answers, forest_of_effects, forest_of_readouts
from reports.figures.glue_tables import score_tables, table2, table3, table5
from reports.figures.own_readouts import own_readouts_table
from reports.figures.own_tasks import own_tasks_table
from reports.figures.perplexity import PerplexityLine, figure2, perplexity_lines, perplexity_table
from reports.figures.rates import draw_sweeps, sweeps_table
from reports.forecasts.outcomes import Outcome, forecasts_table, score_forecasts, scores_table
from reports.machines import Repeated, find_repeated, machines_table
from reports.scores import Group
from reports.tables import Table, frame_of

Images = Mapping[str, bytes]
CSV = ("csv",)


@dataclass(frozen=True)
class Findings:
    """A group and its results, computed on demand. `folder` is the name of the output folder. `declaration` judges the
    group, if there is one; `kept` are all declarations that are stored with the records. `other` are the records of
    another machine."""

    group: Group
    folder: str
    stored: StoredPredictions
    evidence: Evidence
    curves: Curves
    declaration: Declaration | None = None
    kept: tuple[Declaration, ...] = ()
    other: Evidence | None = None

    @property
    def protocol(self) -> Protocol:
        """The declared protocol, or the usual one."""
        return PROTOCOL if self.declaration is None else self.declaration.protocol

    @property
    def declared_seeds(self) -> tuple[int, ...] | None:
        """The seeds that looks count; None, for all, without a declaration."""
        return None if self.declaration is None else self.declaration.seeds

    @cached_property
    def deviations(self) -> tuple[Deviation, ...]:
        """The deviations from the declaration; none without one."""
        if self.declaration is None:
            return ()
        return find_deviations(self.declaration, self.group, self.evidence, self.kept)

    @cached_property
    def bars(self) -> Bars:
        return find_bars(self.group)

    @cached_property
    def deltas(self) -> tuple[Delta, ...]:
        found = self.group, self.bars.tasks, self.stored, self.evidence, self.signals
        return find_deltas(*found, self.protocol, self.regime, self.declared_seeds)

    @cached_property
    def delta_table(self) -> Table:
        return deltas_table(self.deltas, self.group, self.bars.quantity, self.protocol)

    @cached_property
    def factorials(self) -> tuple[Factorial, ...]:
        return find_factorials(
            self.group, self.bars.tasks, self.signals, self.protocol, self.regime, self.declared_seeds
        )

    @cached_property
    def embeddings(self) -> Embeddings:
        return find_embeddings(self.group, self.evidence)

    @cached_property
    def perplexities(self) -> tuple[PerplexityLine, ...]:
        return perplexity_lines(self.group, self.evidence)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return find_steps(self.group, self.deltas, self.waits, self.protocol)

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        return find_pairs(self.group, self.curves, self.waits, self.steps)

    @cached_property
    def gains(self) -> tuple[ComputeGain, ...]:
        return find_gains(self.group, self.curves)

    @cached_property
    def waits(self) -> tuple[Wait, ...]:
        return find_waits(self.group)

    @cached_property
    def regime(self) -> Regime:
        return find_regime(self.group, self.waits, self.protocol, self.declared_seeds)

    @cached_property
    def outcomes(self) -> tuple[Outcome, ...]:
        return score_forecasts(self.evidence.forecasts, self.deltas, self.group, self.bars.tasks)

    @cached_property
    def signals(self) -> tuple[SignalToNoise, ...]:
        return find_signals(self.group)

    @cached_property
    def repeated(self) -> tuple[Repeated, ...]:
        return () if self.other is None else find_repeated(self.group, self.evidence, self.other)

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for everything that is not counted."""
        return (*self.group.problems, *self.embeddings.problems)

    @cached_property
    def tables(self) -> dict[str, Table]:
        made = {name: output.table(self) for name, output in OUTPUTS.items()}
        return {name: table for name, table in made.items() if table is not None}

    def files(self, formats: Collection[str]) -> dict[str, bytes]:
        """Return every figure and table of the study in some formats, by file name."""
        contents: dict[str, bytes] = {}
        for name, table in self.tables.items():
            output = OUTPUTS[name]
            images = output.draw(self) if output.draw else {}
            contents |= {f"{name}.{suffix}": images[suffix] for suffix in images if suffix in formats}
            suffixes = tuple(suffix for suffix in output.formats if suffix in formats)
            contents |= {file: content for file, content in table.files(name).items() if file.endswith(suffixes)}
        return contents


@dataclass(frozen=True)
class Output:
    """A figure or table. `table` returns None without records, `formats` are the file formats (only CSV for a figure's
    numbers), `draw` returns the images by suffix, `part` is the part of the page with the table."""

    title: str
    table: Callable[[Findings], Table | None]
    draw: Callable[[Findings], Images] | None = None
    formats: tuple[str, ...] = ("md", "tex", "csv")
    part: str = ""


def _draw(forest: Forest) -> Images:
    return draw_forest(forest) if forest.panels else {}


def _draw_forecasts(study: Findings) -> Images:
    chosen = choose_outcomes(study.outcomes)
    return draw_forecasts(chosen, study.deltas, study.group) if chosen else {}


def _embeddings(title: str, protocol: mteb.Protocol, *, are_v2: bool = False) -> Callable[[Findings], Table | None]:
    def make(findings: Findings) -> Table | None:
        rows = findings.embeddings.of(protocol, are_v2=are_v2)
        return embedding_table(rows, findings.group, title) if rows else None

    return make


def _scores(place: int) -> Callable[[Findings], Table | None]:
    return lambda study: next(iter(score_tables(study.group)[place : place + 1]), None)


NO_TABLE = Table("", frame_of([], ()), frame_of([], ()), "")
OUTPUTS: Mapping[str, Output] = {
    "answer": Output(
        "The answer",
        lambda study: steps_table(study.steps, study.deltas, study.group, study.protocol) if study.steps else None,
        lambda study: _draw(forest_of_answers(study.steps, study.group)),
        part="answer",
    ),
    "figure1": Output(
        "Figure 1, the ladder",
        lambda study: figure1_facts(study.bars) if current().fine_tunes_on_glue else None,
        lambda study: figure1(study.bars),
        CSV,
    ),
    "table2": Output("Table 2, modifications", lambda study: table2(study.group)),
    "table3": Output("Table 3, GLUE", lambda study: table3(study.group)),
    "curves": Output(
        "Curves of child over parent",
        lambda study: NO_TABLE if study.pairs else None,
        lambda study: draw_curves(study.pairs, study.group),
        formats=(),
        part="curves",
    ),
    "scores": Output("GLUE and losses", _scores(0), formats=(), part="scores"),
    "other-scores": Output("GLUE and losses of other arms", _scores(1), formats=(), part="scores"),
    "own-tasks": Output("Own tasks", lambda study: own_tasks_table(study.group), part="scores"),
    "own-readouts": Output("Own readouts", lambda study: own_readouts_table(study.group), part="scores"),
    "table5": Output(
        "Table 5, best points", lambda study: table5(study.group) if current().fine_tunes_on_glue else None
    ),
    "deltas": Output("Deltas", lambda study: study.delta_table, part="statistics"),
    "readouts": Output(
        "Readouts by signal to noise",
        lambda study: signals_table(study.signals, study.group) if study.signals else None,
        lambda study: _draw(forest_of_readouts(study.steps, study.group)),
        part="statistics",
    ),
    "minimal-pairs": Output(
        "Minimal pairs by phenomenon", lambda study: minimal_pairs_table(study.group), part="statistics"
    ),
    "compute": Output(
        "Compute-equivalent gains",
        lambda study: gains_table(study.gains, study.group) if study.gains else None,
        part="statistics",
    ),
    "waiting": Output(
        "Waiting and level",
        lambda study: (
            waits_table(study.waits, study.regime, study.group) if any(wait.arms for wait in study.waits) else None
        ),
        part="statistics",
    ),
    "forecasts": Output(
        "Forecasts and outcomes",
        lambda study: forecasts_table(study.outcomes, study.group) if study.outcomes else None,
        _draw_forecasts,
        part="statistics",
    ),
    "forecast-scores": Output(
        "Forecasts beside simple ones",
        lambda study: (
            scores_table(study.outcomes, study.group) if any(each.scores for each in study.outcomes) else None
        ),
        part="statistics",
    ),
    "deviations": Output(
        "Deviations from the declaration",
        lambda study: deviations_table(study.declaration, study.deviations, study.group) if study.declaration else None,
        part="statistics",
    ),
    "machines": Output(
        "The same runs on another machine",
        lambda study: machines_table(study.repeated, study.group) if study.repeated else None,
        part="statistics",
    ),
    "effects": Output(
        "Effects",
        lambda study: effects_table(study.factorials, study.group, study.bars.quantity) if study.factorials else None,
        lambda study: _draw(forest_of_effects(study.factorials, study.group)),
        part="statistics",
    ),
    "rates": Output(
        "Peak learning rates",
        lambda study: sweeps_table(study.group) if study.group.sweeps else None,
        lambda study: draw_sweeps(study.group),
        part="statistics",
    ),
    "table4": Output(
        "Table 4, embeddings",
        _embeddings("Table 4: embeddings after contrastive fine-tuning", "contrastive"),
        part="embeddings",
    ),
    "table4-v2": Output(
        f"Embeddings on {ENGLISH_SUITE_V2}",
        _embeddings(f"Embeddings after contrastive fine-tuning on {ENGLISH_SUITE_V2}", "contrastive", are_v2=True),
        part="embeddings",
    ),
    "figure4": Output(
        "Figure 4, zero-shot embeddings",
        _embeddings("Zero-shot embeddings", "zero_shot"),
        lambda study: figure4(study.embeddings.of("zero_shot"), study.group),
        CSV,
        part="embeddings",
    ),
    "zero-shot-v2": Output(
        f"Zero-shot embeddings on {ENGLISH_SUITE_V2}",
        _embeddings(f"Zero-shot embeddings on {ENGLISH_SUITE_V2}", "zero_shot", are_v2=True),
        part="embeddings",
    ),
    "figure2": Output(
        "Figure 2, pseudo-perplexity",
        lambda study: perplexity_table(study.perplexities, study.group) if study.perplexities else None,
        lambda study: figure2(study.perplexities, study.group),
        CSV,
        part="embeddings",
    ),
}
"""Outputs in the order of the page."""
