"""The figures and tables of a study, and the page that shows them: one HTML file that needs no network.

To add a figure or table, add a row to `OUTPUTS`: it is written in every format and listed in the named part of the
page.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from ablations.ladders import Ladder
from reports.figures import (
    curves,
    differences,
    embeddings,
    figure1,
    glue_tables,
    perplexity,
    rates,
    searches,
    throughput,
)
from reports.figures.drawing import Picture
from reports.remarks import warnings
from reports.rows import Study
from reports.tables import Table

TEMPLATES = Path(__file__).resolve().parent / "templates"
PAGE = "index.html"
PARTS = ("Scores", "Searches", "Differences", "Curves", "Embeddings")
CSV = ("csv",)

Links = list[tuple[str, list[tuple[str, str]]]]
"""Titles with (suffix, link) of each file."""


def _nothing(_: Study) -> None:
    return None


@dataclass(frozen=True)
class Output:
    """A figure or table. `table` and `draw` return None without records. `formats` are the file formats of the table
    (only CSV for a figure's numbers), `part` is the part of the page that shows it."""

    name: str
    title: str
    table: Callable[[Study], Table | None]
    draw: Callable[[Study], Picture | None] = _nothing
    formats: tuple[str, ...] = ("md", "tex", "csv")
    part: str = ""


OUTPUTS = (
    Output("figure1", "Figure 1, the ladder", figure1.table, figure1.draw, CSV, "Scores"),
    Output("table2", "Table 2, modifications", glue_tables.table2),
    Output("table3", "Table 3, GLUE", glue_tables.table3, part="Scores"),
    Output("table5", "Table 5, best points", glue_tables.table5),
    Output("differences", "Differences", differences.table, differences.draw, part="Differences"),
    Output("rates", "Peak learning rates", rates.table, rates.draw, part="Differences"),
    Output("curves", "Curves of child over parent", _nothing, curves.draw, part="Curves"),
    Output("table4", "Table 4, embeddings", embeddings.table4, part="Embeddings"),
    Output("figure4", "Figure 4, zero-shot embeddings", embeddings.table, embeddings.draw, CSV, "Embeddings"),
    Output("figure2", "Figure 2, pseudo-perplexity", perplexity.table, perplexity.draw, CSV, "Embeddings"),
)
"""Outputs in the order of the page."""


@dataclass(frozen=True)
class Findings:
    """A study with its tables and pictures. `folder` is the name of the output folder."""

    study: Study
    folder: str

    @property
    def outputs(self) -> tuple[Output, ...]:
        """The outputs of every study, and a picture of each of its searches."""
        return (
            *OUTPUTS,
            *(
                Output(name, searches.title_of(tried), _nothing, partial(searches.draw, tried), part="Searches")
                for name, tried in self.study.searches.items()
            ),
        )

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables of the outputs that have one."""
        made = {output.name: output.table(self.study) for output in OUTPUTS}
        return {name: table for name, table in made.items() if table is not None}

    def files(self) -> dict[str, bytes]:
        """Return every figure and table of the study in all formats, by file name."""
        contents: dict[str, bytes] = {}
        for output in self.outputs:
            if picture := output.draw(self.study):
                contents |= picture.files(output.name)
            if table := self.tables.get(output.name):
                contents |= table.files(output.name, output.formats)
        return contents


def render_page(
    ladder: Ladder,
    studies: Sequence[Findings],
    speeds: throughput.Lines,
    files: Mapping[str, Sequence[str]],
    problems: Sequence[str],
) -> str:
    """Return the page for all studies. `files` are the paths of the written files, by folder; `problems` has a sentence
    for everything that is not counted."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(
        title=ladder.title,
        about=f"The ladder {ladder.name}" if ladder.name else "An ablation of arXiv 2502.19587",
        sections=[_section(each, files[each.folder]) for each in studies],
        throughput=throughput.table9(ladder, speeds) if speeds else None,
        throughput_files=_list_files(throughput.FOLDER, files[throughput.FOLDER], throughput.TITLES),
        problems=sorted(problems),
    )


def _section(findings: Findings, files: Sequence[str]) -> dict[str, Any]:
    """Return the section of one scale and data source, for the template. `id` is also the name of its folder."""
    study = findings.study
    parts = [_part(findings, name, {Path(file).name for file in files}) for name in PARTS]
    return {
        "id": findings.folder,
        "title": f"Scale {study.scale}, data {study.data}",
        "warning": " ".join(warnings(study)),
        "parts": [part for part in parts if part["tables"] or part["pictures"]],
        "files": _list_files(findings.folder, files, {output.name: output.title for output in findings.outputs}),
    }


def _part(findings: Findings, part: str, written: set[str]) -> dict[str, Any]:
    """Return the tables of a part, and its figures as SVG."""
    own = [output for output in findings.outputs if output.part == part]
    tables = [findings.tables[output.name] for output in own if output.name in findings.tables]
    return {
        "name": part,
        "pictures": [
            (each.title, f"{findings.folder}/{each.name}.svg") for each in own if f"{each.name}.svg" in written
        ],
        "tables": [table for table in tables if table.header],
    }


def _list_files(folder: str, paths: Sequence[str], titles: Mapping[str, str]) -> Links:
    """Return links to the files, grouped by figure or table. `titles` are those of figures and tables, by name."""
    by_stem: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in map(Path, paths):
        by_stem[path.stem].append((path.suffix.removeprefix("."), f"{folder}/{path.name}"))
    return [(titles[stem], by_stem[stem]) for stem in titles if stem in by_stem]
