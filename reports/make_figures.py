# PYTHON_ARGCOMPLETE_OK
"""python reports/make_figures.py: every figure and table that the records under --runs can carry."""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script: the repository in place of the script's own folder, with its `statistics`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.loading import add_ladder_flag, load
from neobert.command_line import Parser, guarded, refuse_no_folder
from neobert.errors import EXIT_DONE, EXIT_OFF, MissingData
from neobert.files import replace_file

FORMATS = ("csv", "md", "tex", "png", "svg", "pdf")

if TYPE_CHECKING:
    from ablations.ladders import Ladder
    from ablations.scales import Scale
    from reports.curves import Curves
    from reports.evidence import Evidence
    from reports.findings import Findings


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="make_figures.py",
        description="Regenerate the figures, the tables and the page OUT/index.html from records. "
        "Every pair of scale and data has a folder of its own, OUT/<scale>-<data>/, and a section of the page.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused configuration, 3 no runs, no record that "
        "fits, or a damaged archive, 4 a number that can be compared with the paper's is off (with --compare).",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    parser.add_argument("--out", type=Path, default=Path("reports/out"), help="where to write (default: reports/out)")
    add_ladder_flag(parser)
    parser.add_argument("--scale", help="only records of this scale, such as smoke, study or paper")
    parser.add_argument("--data", help="only records of this source of data, as --data named it")
    parser.add_argument("--compare", action="store_true", help="also write our numbers next to the paper's")
    parser.add_argument(
        "--formats", nargs="+", choices=FORMATS, default=FORMATS, help="write only these formats (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser.parse_args(given)


def name_folders(groups: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Name a folder for each group: scale and the last part of the data's name, with a hash if names collide."""
    from neobert.identity import identity

    plain = {
        (scale, data): f"{scale}-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(data).name).strip('-.') or 'data'}"
        for scale, data in groups
    }
    counts = Counter(plain.values())
    return {group: f"{name}-{identity(group[1])}" if counts[name] > 1 else name for group, name in plain.items()}


def _choose_groups(
    ladder: "Ladder", groups: "list[tuple[Scale, str]]", scale: str | None, data: str | None
) -> "list[tuple[Scale, str]]":

    if scale is not None:
        ladder.scale_named(scale)
    name = Path(data).name if data else None  # records carry a folder's name, not its path
    chosen = [group for group in groups if group[0] == (scale or group[0]) and group[1] in (data or group[1], name)]
    if not chosen:
        wanted = " and ".join(f"{key} {value}" for key, value in (("scale", scale), ("data", data)) if value)
        there = ", ".join(f"scale {found[0]} with data {found[1]}" for found in groups)
        raise MissingData(f"no record has {wanted}; there are records of {there}")
    return chosen


def _write(folder: Path, contents: Mapping[str, bytes], formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write the files of the given formats, and those of formats that cannot be chosen; return their paths."""
    written = [name for name in contents if Path(name).suffix[1:] in formats or Path(name).suffix[1:] not in FORMATS]
    for name in written:
        replace_file(folder / name, contents[name])
    return [folder / name for name in written]


def _write_comparison(findings: "Findings", folder: Path, formats: Sequence[str]) -> dict[str, Any]:
    """Write our numbers next to the paper's; return their part of the summary."""
    from reports.analysis.comparison import OFF, compare_numbers, comparison_table

    numbers = compare_numbers(findings.group)
    files = comparison_table(numbers, findings.group).files("comparison")
    del files["comparison.tex"]
    return {
        "files": _write(folder, files, formats),
        "verdicts": dict(sorted(Counter(number.verdict for number in numbers).items())),
        "off": [number.name for number in numbers if number.verdict == OFF],
    }


def _write_study(findings: "Findings", arguments: argparse.Namespace) -> dict[str, Any]:
    """Write all files of one scale and data source; return the summary to print."""
    from reports.notes import notes_page

    group, bars, folder = findings.group, findings.bars, arguments.out / findings.folder
    made = {**findings.files(arguments.formats), "remarks.md": notes_page(group).encode()}
    files = _write(folder, made, arguments.formats)
    comparison = _write_comparison(findings, folder, arguments.formats) if arguments.compare else None
    files += comparison.pop("files") if comparison else []
    return {
        "scale": group.scale,
        "data": group.data,
        "quantity": "average" if bars.is_average else f"mean of {' '.join(bars.tasks)}",
        "scores": {bar.row.name: bar.score.mean if bar.score else None for bar in bars.bars},
        "files": [str(path) for path in files],
        **({"comparison": comparison} if comparison else {}),
    }


def _lines(ladder: "Ladder", summary: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that are printed of a summary."""
    scores = summary["scores"]
    present = [f"{name} {score:.1f}" for name, score in scores.items() if score is not None]
    missing = [name for name, score in scores.items() if score is None]
    if ladder.fine_tunes_on_glue:
        yield f"scale {summary['scale']}, data {summary['data']} ({summary['quantity']} in points)"
        yield f"  {'  '.join(present) or 'no scores'}"
        if missing:
            yield f"  no score: {', '.join(missing)}"
    else:
        yield f"scale {summary['scale']}, data {summary['data']}"
    yield from (f"  {path}" for path in summary["files"])
    if "comparison" in summary:
        yield from _lines_of_comparison(ladder, summary["comparison"])


def _lines_of_comparison(ladder: "Ladder", comparison: dict[str, Any]) -> Iterator[str]:
    counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison["verdicts"].items())
    yield f"  beside {ladder.published_as}: {counts or 'no number has a counterpart'}"
    if comparison["off"]:
        yield f"  off: {', '.join(comparison['off'])}"


def _find_studies(arguments: argparse.Namespace, evidence: "Evidence", curves: "Curves") -> "list[Findings]":
    from reports.findings import Findings
    from reports.matching import group_of

    groups = evidence.groups()
    if not (groups or arguments.scale or arguments.data):
        return []  # throughput alone, which belongs to no scale
    names, chosen = name_folders(groups), _choose_groups(evidence.ladder, groups, arguments.scale, arguments.data)
    return [Findings(group_of(evidence, *group), names[group], evidence, curves) for group in chosen]


def _require_packages() -> None:
    """Check that the optional packages are installed.

    Raises:
        MissingData: one is not.
    """
    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise MissingData(f"reports need {package}, which is not installed: pip install -e '.[reports]'")


def _report(arguments: argparse.Namespace, ladder: "Ladder") -> int:
    from reports.curves import Curves
    from reports.evidence import read_evidence
    from reports.figures.throughput import FOLDER, throughput_files, throughput_lines
    from reports.page import PAGE, render_page

    _require_packages()
    refuse_no_folder("--out", arguments.out)
    evidence = read_evidence(ladder, arguments.runs)
    curves = Curves(arguments.runs, evidence.runs)
    studies = _find_studies(arguments, evidence, curves)
    speeds, of_speeds = throughput_lines(evidence.throughputs)
    problems = [*evidence.problems, *chain.from_iterable(study.problems for study in studies), *of_speeds]

    summaries = [_write_study(study, arguments) for study in studies]
    others = _write(arguments.out / FOLDER, throughput_files(ladder, speeds), arguments.formats)
    files = {study.folder: summary["files"] for study, summary in zip(studies, summaries, strict=True)}
    problems += curves.problems
    page = render_page(ladder, studies, speeds, files | {FOLDER: list(map(str, others))}, problems)
    others += _write(arguments.out, {PAGE: page.encode()})
    _print_problems(problems)
    if arguments.json:
        print(json.dumps(summaries, indent=1))
    else:
        lines = [line for summary in summaries for line in _lines(ladder, summary)]
        print("\n".join([*lines, "for everything together:", *(f"  {path}" for path in others)]))
    is_off = any(summary["comparison"]["off"] for summary in summaries if arguments.compare)
    return EXIT_OFF if is_off else EXIT_DONE


def _print_problems(problems: Sequence[str]) -> None:
    if problems:
        print(f"{len(problems)} finding(s) about records that are not counted:", file=sys.stderr)
        print("\n".join(f"  {problem}" for problem in problems), file=sys.stderr)


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _arguments(given)
    return guarded("make_figures.py", lambda: _report(arguments, load(arguments.ladder)), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
