"""python reports/make_figures.py: every figure and table that the records under --runs can carry."""

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script: the repository in place of the script's own folder, with its `statistics`
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from ablations.launch.flags import add_ladder_flag
from neobert.command_line import Parser, guarded, refuse_no_folder
from neobert.errors import EXIT_DONE, MissingData
from neobert.files import replace_file

if TYPE_CHECKING:
    from ablations.ladders import Ladder
    from ablations.scales import Scale
    from reports.findings import Findings
    from reports.frames import Frames


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="make_figures.py",
        description="Regenerate the figures, the tables and the page OUT/index.html from records. "
        "Every pair of scale and data has a folder of its own, OUT/<scale>-<data>/, and a section of the page.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused configuration, 3 no runs, no record that "
        "fits, or a damaged archive.",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    parser.add_argument("--out", type=Path, default=Path("reports/out"), help="where to write (default: reports/out)")
    add_ladder_flag(parser)
    parser.add_argument("--scale", help="only records of this scale, such as smoke, study or paper")
    parser.add_argument("--data", help="only records of this source of data, as --data named it")
    parser.add_argument("--compare", action="store_true", help="also print the paper's averages beside ours")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser.parse_args(given)


def name_folders(groups: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Name a folder for each group: scale and the last part of the data's name."""
    return {
        (scale, data): f"{scale}-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(data).name).strip('-.') or 'data'}"
        for scale, data in groups
    }


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


def _write(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files; return their paths."""
    for name, content in contents.items():
        replace_file(folder / name, content)
    return [folder / name for name in contents]


def _write_study(findings: "Findings", arguments: argparse.Namespace) -> dict[str, Any]:
    """Write all files of one scale and data source; return the summary to print."""
    from reports.figures.published import figure1

    study = findings.study
    scores = {row.name: row.mean_over(study.averaged_tasks) for row in study.last_rows.values()}
    summary = {
        "scale": study.scale,
        "data": study.data,
        "quantity": study.quantity,
        "scores": {name: score.mean if score else None for name, score in scores.items()},
    }
    if arguments.compare and study.is_average_of_eight:
        summary["published"] = {name: bar.average for name, bar in figure1(study.ladder).items() if scores[name]}
    return summary | {"files": list(map(str, _write(arguments.out / findings.folder, findings.files())))}


def _lines(ladder: "Ladder", summary: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that are printed of a summary."""
    scores = summary["scores"]
    present = [f"{name} {score:.1f}" for name, score in scores.items() if score is not None]
    missing = [name for name, score in scores.items() if score is None]
    if ladder.glue_tasks:
        yield f"scale {summary['scale']}, data {summary['data']} ({summary['quantity']} in points)"
        yield f"  {'  '.join(present) or 'no scores'}"
        if missing:
            yield f"  no score: {', '.join(missing)}"
    else:
        yield f"scale {summary['scale']}, data {summary['data']}"
    yield from (f"  {path}" for path in summary["files"])
    if printed := summary.get("published"):
        yield f"  the paper: {'  '.join(f'{name} {average}' for name, average in printed.items())}"


def _find_studies(arguments: argparse.Namespace, frames: "Frames") -> "list[Findings]":
    from reports.findings import Findings
    from reports.rows import read_study

    groups = frames.groups()
    if not (groups or arguments.scale or arguments.data):
        return []  # throughput alone, which belongs to no scale
    names, chosen = name_folders(groups), _choose_groups(frames.ladder, groups, arguments.scale, arguments.data)
    return [Findings(read_study(frames, *group), names[group]) for group in chosen]


def _report(arguments: argparse.Namespace, ladder: "Ladder") -> int:
    from reports.figures.throughput import FOLDER, throughput_files, throughput_lines
    from reports.findings import PAGE, render_page
    from reports.frames import read_frames

    for package in ("jinja2", "matplotlib"):
        if find_spec(package) is None:
            raise MissingData(f"reports need {package}, which is not installed: pip install -e '.[reports]'")
    refuse_no_folder("--out", arguments.out)
    frames = read_frames(ladder, arguments.runs)
    studies = _find_studies(arguments, frames)
    speeds = throughput_lines(frames.by_kind["throughput"])
    summaries = [_write_study(study, arguments) for study in studies]
    others = _write(arguments.out / FOLDER, throughput_files(ladder, speeds))
    files = {study.folder: summary["files"] for study, summary in zip(studies, summaries, strict=True)}
    of_studies = chain.from_iterable(findings.study.problems for findings in studies)
    problems = [*frames.problems, *of_studies, *frames.curves.problems]
    page = render_page(ladder, studies, speeds, files | {FOLDER: list(map(str, others))}, problems)
    others += _write(arguments.out, {PAGE: page.encode()})
    if problems:
        print(f"{len(problems)} finding(s) about records that are not counted:", file=sys.stderr)
        print("\n".join(f"  {problem}" for problem in problems), file=sys.stderr)
    if arguments.json:
        print(json.dumps(summaries, indent=1))
    else:
        lines = [line for summary in summaries for line in _lines(ladder, summary)]
        print("\n".join([*lines, "for everything together:", *(f"  {path}" for path in others)]))
    return EXIT_DONE


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = _arguments(given)

    from ablations.loading import load

    return guarded("make_figures.py", lambda: _report(arguments, load(arguments.ladder)), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
