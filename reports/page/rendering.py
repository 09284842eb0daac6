"""Everything together as one HTML file: templates with their own style and script inside, names always escaped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reports.curves import Curves
from reports.findings import Findings
from reports.page.costs import Costs, costs, counted
from reports.page.curves import CurveChart, curve_charts
from reports.page.facts import Fact, Files, facts, listed_files, order_in_words, remarks_of
from reports.page.grids import Grid, grids
from reports.page.ladder import STRIP_WIDTH, LadderChart, ladder_chart
from reports.page.numbers import Register
from reports.page.records import described_records
from reports.page.scores import ScoreTable, score_table
from reports.page.tables import PageTable, embedding_tables, statistics_tables, throughput_tables
from reports.remarks import warnings
from reports.throughput import FOLDER, ThroughputLine
from reports.trials import Evidence

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
PAGE = "index.html"
PARTS = tuple(
    (name.lower(), name)
    for name in ("Ladder", "Scores", "Curves", "Grids", "Costs", "Statistics", "Embeddings", "Remarks", "Files")
)


@dataclass(frozen=True)
class Section:
    """One scale and source of data. `id` is also the name of its folder; `warning` is empty where there is none;
    `parts` are the ends of the ids of its parts, with their names."""

    id: str
    title: str
    warning: str
    order: tuple[str, ...]
    facts: tuple[Fact, ...]
    ladder: LadderChart
    scores: ScoreTable
    curves: tuple[CurveChart, ...]
    grids: tuple[Grid, ...]
    costs: Costs
    statistics: tuple[PageTable, ...]
    embeddings: tuple[PageTable, ...]
    remarks: tuple[str, ...]
    files: tuple[Files, ...]
    parts: tuple[tuple[str, str], ...]


def page(
    studies: Sequence[Findings],
    speeds: Sequence[ThroughputLine],
    evidence: Evidence,
    curves: Curves,
    files: Mapping[str, Sequence[str]],
    problems: Sequence[str],
) -> str:
    """The page over all studies. `files` are the names of what was written, by folder; `problems` has a sentence for
    everything that is not counted."""
    register = Register()
    content: dict[str, Any] = {
        "sections": [_section(study, curves, files[study.folder], register) for study in studies],
        "throughput": throughput_tables(speeds, register),
        "throughput_files": listed_files(FOLDER, files.get(FOLDER, ())),
        "problems": sorted([*problems, *curves.problems]),
        "strip_width": STRIP_WIDTH,
        "counted": counted,
    }
    shown = {(study.group.scale, study.group.data) for study in studies}
    for run in evidence.runs:
        if (run.scale, run.data) in shown:
            register.mention(run.id)
    return _rendered({**content, "register": register.plain(described_records(register, evidence))})


def _section(study: Findings, curves: Curves, files: Sequence[str], register: Register) -> Section:
    group, spent = study.group, costs(study, register)
    embeddings = embedding_tables(study, register)
    return Section(
        id=study.folder,
        title=f"Scale {group.scale}, data {group.data}",
        warning=" ".join(warnings(group)),
        order=order_in_words(study),
        facts=facts(study, spent),
        ladder=ladder_chart(study, register),
        scores=score_table(study, register),
        curves=curve_charts(study, curves, register),
        grids=grids(study, register),
        costs=spent,
        statistics=statistics_tables(study, register),
        embeddings=embeddings,
        parts=tuple(part for part in PARTS if embeddings or part[0] != "embeddings"),
        remarks=remarks_of(study),
        files=listed_files(study.folder, files),
    )


def _rendered(content: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "sort_keys": True}
    return environment.get_template(PAGE).render(content)
