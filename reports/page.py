"""The page: Figure 1, tables, curves and links to all files, as one HTML file that needs no network."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.ladders import Ladder
from reports.figures.searches import title_of
from reports.figures.throughput import FOLDER, Lines, table9
from reports.findings import OUTPUTS, Findings
from reports.notes import notes, warnings
from reports.tables import capitalized

TEMPLATES = Path(__file__).resolve().parent / "templates"
PAGE = "index.html"
SEARCHES = "Searches"
PARTS = ("Scores", SEARCHES, "Differences", "Curves", "Embeddings")

Links = list[tuple[str, list[tuple[str, str]]]]
"""Titles with (suffix, link) of each file."""


def render_page(
    ladder: Ladder,
    studies: Sequence[Findings],
    speeds: Lines,
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
    environment.filters["capitalized"] = capitalized
    return environment.get_template("page.html").render(
        title=ladder.title,
        published_as=ladder.published_as,
        about=f"The ladder {ladder.name}" if ladder.name else "An ablation of arXiv 2502.19587",
        sections=[_section(study, files[study.folder]) for study in studies],
        throughput=table9(ladder, speeds) if speeds else None,
        throughput_files=_list_files(ladder, FOLDER, files[FOLDER], {}),
        problems=sorted(problems),
    )


def _section(study: Findings, files: Sequence[str]) -> dict[str, Any]:
    """Return the section of one scale and data source, for the template. `id` is also the name of its folder."""
    group = study.group
    parts = [_part(study, name, {Path(file).name for file in files}) for name in PARTS]
    return {
        "id": study.folder,
        "title": f"Scale {group.scale}, data {group.data}",
        "warning": " ".join(warnings(group)),
        "parts": [part for part in parts if part["tables"] or part["pictures"]],
        "notes": notes(group, short=True),
        "files": _list_files(group.ladder, study.folder, files, _titles_of_searches(study)),
    }


def _part(study: Findings, part: str, written: set[str]) -> dict[str, Any]:
    """Return the tables of a part, and its figures as SVG if they were written as such, else as PNG."""
    names = [name for name, output in OUTPUTS.items() if output.part == part]
    titles = _titles_of_searches(study) if part == SEARCHES else {name: OUTPUTS[name].title for name in names}
    pictures = []
    for name, title in titles.items():
        if found := [file for file in (f"{name}.svg", f"{name}.png") if file in written]:
            pictures.append((title, f"{study.folder}/{found[0]}"))
    tables = [study.tables[name] for name in names if name in study.tables and study.tables[name].header]
    return {"name": part, "pictures": pictures, "tables": tables}


def _titles_of_searches(study: Findings) -> dict[str, str]:
    return {name: title_of(tried) for name, tried in study.searches.items()}


def _list_files(ladder: Ladder, folder: str, paths: Sequence[str], of_searches: Mapping[str, str]) -> Links:
    """Return links to the files, grouped by figure or table. `of_searches` are titles of pictures, by name."""
    titles = {name: output.title for name, output in OUTPUTS.items()} | {
        "figure3": "Figure 3, throughput",
        "table9": "Table 9, throughput",
        "comparison": f"Beside {ladder.published_as}",
        "remarks": "Remarks",
        **of_searches,
    }
    by_stem: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in map(Path, paths):
        by_stem[path.stem].append((path.suffix.removeprefix("."), f"{folder}/{path.name}"))
    return [(titles[stem], by_stem[stem]) for stem in titles if stem in by_stem]
