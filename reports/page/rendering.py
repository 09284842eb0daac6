"""Render the page as one HTML file: templates with inline style and script; names are always escaped."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ablations.ladders import current, ladder
from reports.analysis.steps import answer
from reports.curves import Curves
from reports.evidence import Evidence
from reports.figures.throughput import FOLDER, Lines, table9
from reports.findings import OUTPUTS, Findings
from reports.notes import notes, warnings
from reports.page.costs import costs_table, trials_name
from reports.page.register import Number, Register
from reports.tables import Table, capitalized, count

TEMPLATES = Path(__file__).resolve().parent.parent / "templates"
PAGE = "index.html"
PARTS = tuple(
    (name.lower(), name)
    for name in ("Answer", "Scores", "Curves", "Costs", "Statistics", "Embeddings", "Remarks", "Files")
)
MAY_BE_MISSING = ("answer", "embeddings")
TITLES = {name: output.title for name, output in OUTPUTS.items()} | {
    "figure3": "Figure 3, throughput",
    "table9": "Table 9, throughput",
    "comparison": "Beside the paper",
    "remarks": "Remarks",
}
FACTS = {
    "tokens read": "Tokens read",
    "operations": "Operations",
    "process-hours": "Hours",
    "GPU-hours": "GPU-hours",
}
"""Facts in the head of a section, beside the numbers of stages and trials: titles, and the columns of the last line of
the costs."""

Links = tuple[tuple[str, tuple[tuple[str, str], ...]], ...]  # title, and (suffix, link) of each file


def render_page(
    studies: Sequence[Findings],
    speeds: Lines,
    evidence: Evidence,
    curves: Curves,
    files: Mapping[str, Sequence[str]],
    problems: Sequence[str],
    records: str,
) -> str:
    """Return the page for all studies. `files` are the paths of the written files, by folder; `problems` has a sentence
    for everything that is not counted; `records` is the path of the folder of runs relative to the page."""
    register = Register()
    ladder_name = current().name
    content: dict[str, Any] = {
        "title": current().title,
        "published_as": current().published_as,
        "about": f"The ladder {ladder_name}" if ladder_name else "An ablation of arXiv 2502.19587",
        "sections": [_section(study, files[study.folder], register) for study in studies],
        "throughput": [register.table(table9(speeds))] if speeds else [],
        "throughput_files": _list_files(FOLDER, files[FOLDER]),
        "problems": sorted([*problems, *curves.problems]),
        "count": count,
    }
    shown = {(study.group.scale, study.group.data) for study in studies}
    for run, scale, data in zip(evidence.runs.id, evidence.runs.scale, evidence.runs.data, strict=True):
        if (scale, data) in shown:
            register.mention(run)
    return _render({**content, "register": register.plain(evidence, records)})


def _section(study: Findings, files: Sequence[str], register: Register) -> dict[str, Any]:
    """Return the section of one scale and data source, for the template. `id` is also the name of its folder; `answer`
    is the sentence on top of it; `tables` and `pictures` are by part, `parts` are (suffix of its id, name) of each."""
    group = study.group
    tables: dict[str, list[Table]] = defaultdict(list)
    for name, table in study.tables.items():
        if (part := OUTPUTS[name].part) and table.header:
            tables[part].append(register.table(table))
    tables["costs"] = [register.table(costs_table(study))]
    return {
        "id": study.folder,
        "title": f"Scale {group.scale}, data {group.data}",
        "warning": " ".join(warnings(group)),
        "answer": answer(study.steps),
        "facts": _facts(study, tables["costs"][0]),
        "pictures": _pictures(study.folder, files),
        "tables": tables,
        "notes": notes(group, short=True),
        "files": _list_files(study.folder, files),
        "parts": [part for part in PARTS if tables[part[0]] or part[0] not in MAY_BE_MISSING],
    }


def _pictures(folder: str, files: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return (title, link) of the figures that the page shows, by part: as SVG if it was written, else as PNG."""
    written = {Path(file).name for file in files}
    pictures: dict[str, list[tuple[str, str]]] = {part: [] for part, _ in PARTS}
    for name, output in OUTPUTS.items():
        found = [f"{name}{suffix}" for suffix in (".svg", ".png") if f"{name}{suffix}" in written]
        if output.part and found:
            pictures[output.part].append((output.title, f"{folder}/{found[0]}"))
    return pictures


def _facts(study: Findings, costs: Table) -> tuple[tuple[str, Number], ...]:
    """Return the facts in the head of a section."""
    scored = sum(bar.score is not None and bar.row.name in ladder() for bar in study.bars.bars)
    rows = study.group.compared_rows.values()
    seeds = sorted(each for each in {row.runs.seed.nunique() for row in rows} if each)
    pretrained = sum(row.has_records for row in rows)
    total = dict(zip(costs.header, costs.rows[-1], strict=True))
    return (
        ("variants with scores", Number(f"{scored} of {len(ladder())}"))
        if scored
        else ("variants, all without scores", Number(str(pretrained))),
        ("seeds a variant", Number("–".join(dict.fromkeys(map(str, seeds[:1] + seeds[-1:]))) or "0")),
        ("stages of pre-training", total["Stages"]),
        (trials_name(), total[capitalized(trials_name())]),
        *((name, total[column]) for name, column in FACTS.items()),
    )


def _list_files(folder: str, paths: Sequence[str]) -> Links:
    """Return links to the files, grouped by figure or table."""
    by_stem: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path in map(Path, paths):
        by_stem[path.stem].append((path.suffix.removeprefix("."), f"{folder}/{path.name}"))
    titles = TITLES | {"comparison": f"Beside {current().published_as}"}
    return tuple((titles[stem], tuple(by_stem[stem])) for stem in TITLES if stem in by_stem)


def _render(content: Mapping[str, Any]) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["capitalized"] = capitalized
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "sort_keys": True}
    return environment.get_template(PAGE).render(content)
