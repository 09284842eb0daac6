"""All results of one scale and data source, and the figures and tables written from them.

To add a figure or table, add an entry to `OUTPUTS`: it is written in every format and listed in the named part of the
page.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

from neobert.data.mteb_tasks import ENGLISH_SUITE_V2
from neobert.kinds import mteb
from reports.analysis.differences import Step, differences_table, find_steps
from reports.curves import Curves
from reports.evidence import Evidence
from reports.figures.curves import CurvePair, draw_curves, find_curves
from reports.figures.embeddings import Embeddings, embedding_table, figure4, find_embeddings
from reports.figures.figure1 import Bars, figure1, figure1_facts, find_bars
from reports.figures.forests import draw_forest
from reports.figures.glue_tables import score_tables, table2, table3, table5
from reports.figures.own_tasks import own_tasks_table
from reports.figures.perplexity import PerplexityLine, figure2, perplexity_lines, perplexity_table
from reports.figures.rates import draw_sweeps, sweeps_table
from reports.figures.searches import draw_search
from reports.scores import Group
from reports.searches import Tried
from reports.tables import Table, frame_of

CSV = ("csv",)
Images = Mapping[str, bytes]


@dataclass(frozen=True)
class Findings:
    """A group and its results, computed on demand. `folder` is the name of the output folder."""

    group: Group
    folder: str
    evidence: Evidence
    curves: Curves

    @cached_property
    def bars(self) -> Bars:
        return find_bars(self.group)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return find_steps(self.group, self.bars.tasks, self.embeddings.rows)

    @cached_property
    def embeddings(self) -> Embeddings:
        return find_embeddings(self.group, self.evidence)

    @cached_property
    def perplexities(self) -> tuple[PerplexityLine, ...]:
        return perplexity_lines(self.group, self.evidence)

    @cached_property
    def curve_pairs(self) -> tuple[CurvePair, ...]:
        return find_curves(self.group, self.curves, self.steps)

    @cached_property
    def searches(self) -> dict[str, Tried]:
        """The searches of the group's scale and data in which some trial has a score, by the name of their picture."""
        own = [each for each in self.evidence.searches.values() if self._has_scores_of(each)]
        return {f"search-{each.study.task}-{each.study.id}": each for each in own}

    def _has_scores_of(self, tried: Tried) -> bool:
        scored = self.evidence.trials[self.evidence.trials.id.isin(tried.scored)].score
        is_of_group = (tried.labels.scale, tried.labels.data) == (self.group.scale, self.group.data)
        return is_of_group and bool(scored.notna().any())

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
        for name, tried in self.searches.items():
            picture = draw_search(tried, self.group)
            contents |= {f"{name}.{suffix}": picture[suffix] for suffix in picture if suffix in formats}
        return contents


@dataclass(frozen=True)
class Output:
    """A figure or table. `table` returns None without records, `formats` are the file formats (only CSV for a figure's
    numbers), `draw` returns the images by suffix, `part` is the part of the page that shows it."""

    title: str
    table: Callable[[Findings], Table | None]
    draw: Callable[[Findings], Images] | None = None
    formats: tuple[str, ...] = ("md", "tex", "csv")
    part: str = ""


def _embeddings(title: str, protocol: mteb.Protocol, *, are_v2: bool = False) -> Callable[[Findings], Table | None]:
    def make(findings: Findings) -> Table | None:
        rows = findings.embeddings.of(protocol, are_v2=are_v2)
        return embedding_table(rows, findings.group, title) if rows else None

    return make


def _scores(place: int) -> Callable[[Findings], Table | None]:
    return lambda study: next(iter(score_tables(study.group)[place : place + 1]), None)


NO_TABLE = Table("", frame_of([], ()), frame_of([], ()), "")
OUTPUTS: Mapping[str, Output] = {
    "figure1": Output(
        "Figure 1, the ladder",
        lambda study: figure1_facts(study.bars) if study.group.ladder.fine_tunes_on_glue else None,
        lambda study: figure1(study.bars),
        CSV,
        part="Scores",
    ),
    "table2": Output("Table 2, modifications", lambda study: table2(study.group)),
    "table3": Output("Table 3, GLUE", lambda study: table3(study.group)),
    "scores": Output("GLUE and losses", _scores(0), formats=(), part="Scores"),
    "other-scores": Output("GLUE and losses of other arms", _scores(1), formats=(), part="Scores"),
    "own-tasks": Output("Own tasks", lambda study: own_tasks_table(study.group), part="Scores"),
    "table5": Output(
        "Table 5, best points", lambda study: table5(study.group) if study.group.ladder.fine_tunes_on_glue else None
    ),
    "differences": Output(
        "Differences",
        lambda study: differences_table(study.steps, study.group, study.bars.quantity) if study.steps else None,
        lambda study: draw_forest(study.steps, study.group) if any(step.judged for step in study.steps) else {},
        part="Differences",
    ),
    "rates": Output(
        "Peak learning rates",
        lambda study: sweeps_table(study.group) if study.group.sweeps else None,
        lambda study: draw_sweeps(study.group),
        part="Differences",
    ),
    "curves": Output(
        "Curves of child over parent",
        lambda study: NO_TABLE if study.curve_pairs else None,
        lambda study: draw_curves(study.curve_pairs, study.group),
        formats=(),
        part="Curves",
    ),
    "table4": Output(
        "Table 4, embeddings",
        _embeddings("Table 4: embeddings after contrastive fine-tuning", "contrastive"),
        part="Embeddings",
    ),
    "table4-v2": Output(
        f"Embeddings on {ENGLISH_SUITE_V2}",
        _embeddings(f"Embeddings after contrastive fine-tuning on {ENGLISH_SUITE_V2}", "contrastive", are_v2=True),
        part="Embeddings",
    ),
    "figure4": Output(
        "Figure 4, zero-shot embeddings",
        _embeddings("Zero-shot embeddings", "zero_shot"),
        lambda study: figure4(study.embeddings.of("zero_shot"), study.group),
        CSV,
        part="Embeddings",
    ),
    "zero-shot-v2": Output(
        f"Zero-shot embeddings on {ENGLISH_SUITE_V2}",
        _embeddings(f"Zero-shot embeddings on {ENGLISH_SUITE_V2}", "zero_shot", are_v2=True),
        part="Embeddings",
    ),
    "figure2": Output(
        "Figure 2, pseudo-perplexity",
        lambda study: perplexity_table(study.perplexities, study.group) if study.perplexities else None,
        lambda study: figure2(study.perplexities, study.group),
        CSV,
        part="Embeddings",
    ),
}
"""Outputs in the order of the page."""
