"""python reports/make_figures.py: every figure and table that the records under --runs can carry."""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if not __package__:  # run as a script: its own folder is on sys.path, the repository with the packages is not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from neobert.command_line import Parser

if TYPE_CHECKING:
    from ablations.scales import Scale
    from reports.findings import Findings
    from reports.trials import Evidence


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="make_figures.py",
        description="Regenerate the figures, the tables and the page OUT/index.html from records. "
        "Every pair of scale and data has a folder of its own, OUT/<scale>-<data>/, and a section of the page.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused configuration, 3 no runs or no record that "
        "fits, 4 a number that can be compared with the paper's is off (with --compare).",
    )
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    parser.add_argument("--out", type=Path, default=Path("reports/out"), help="where to write (default: reports/out)")
    parser.add_argument("--scale", help="only records of this scale: smoke, laptop, proxy or paper")
    parser.add_argument("--data", help="only records of this source of data, as --data named it")
    parser.add_argument("--compare", action="store_true", help="also write our numbers beside the paper's")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    return parser.parse_args(given)


def folder_names(groups: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """One folder a group: scale and the last part of the data's name, with a hash where two would be one."""
    from neobert.identity import identity

    plain = {
        (scale, data): f"{scale}-{re.sub(r'[^A-Za-z0-9._-]+', '-', Path(data).name).strip('-.') or 'data'}"
        for scale, data in groups
    }
    counts = Counter(plain.values())
    return {group: f"{name}-{identity(group[1])}" if counts[name] > 1 else name for group, name in plain.items()}


def _chosen(groups: "list[tuple[Scale, str]]", scale: str | None, data: str | None) -> "list[tuple[Scale, str]]":
    from ablations.scales import SCALES
    from neobert.errors import MissingData, did_you_mean

    if scale is not None and scale not in SCALES:
        raise ValueError(f"--scale {scale!r} is no scale: {did_you_mean(scale, SCALES)}")
    name = Path(data).name if data else None  # records carry a folder's name, not its path
    chosen = [group for group in groups if group[0] == (scale or group[0]) and group[1] in (data or group[1], name)]
    if not chosen:
        wanted = " and ".join(f"{key} {value}" for key, value in (("scale", scale), ("data", data)) if value)
        there = ", ".join(f"scale {found[0]} with data {found[1]}" for found in groups)
        raise MissingData(f"no record has {wanted}; there are records of {there}")
    return chosen


def _write(folder: Path, contents: Mapping[str, bytes]) -> list[Path]:
    from neobert.files import replace_file

    for name, content in contents.items():
        replace_file(folder / name, content)
    return [folder / name for name in contents]


def _compare(findings: "Findings", folder: Path) -> dict[str, Any]:
    """Write the comparison with the paper; what of it belongs into the summary."""
    from reports.comparison import compared_numbers
    from reports.comparison_table import agreement_sentences
    from reports.rank_agreement import rank_agreements
    from reports.writing import comparison_contents

    group = findings.group
    numbers, agreements = compared_numbers(group, findings.stored), rank_agreements(group, findings.bars.tasks)
    return {
        "files": _write(folder, comparison_contents(numbers, agreements, findings)),
        "verdicts": dict(sorted(Counter(each.verdict for each in numbers).items())),
        "off": [each.name for each in numbers if each.is_off],
        "rank_agreements": agreement_sentences(agreements),
    }


def _study(findings: "Findings", out: Path, compare: bool) -> dict[str, Any]:
    """Write all files of one scale and source of data; what is printed about them."""
    from reports.writing import contents

    group, bars, folder = findings.group, findings.bars, out / findings.folder
    files = _write(folder, contents(findings))
    comparison = _compare(findings, folder) if compare else None
    files += comparison.pop("files") if comparison else []
    return {
        "scale": group.scale,
        "data": group.data,
        "quantity": "average" if bars.is_average else f"mean of {' '.join(bars.tasks)}",
        "scores": {bar.variant.name: bar.score.mean if bar.score else None for bar in bars.bars},
        "files": [str(path) for path in files],
        **({"comparison": comparison} if comparison else {}),
    }


def _print_summary(summary: dict[str, Any]) -> None:
    present = {name: score for name, score in summary["scores"].items() if score is not None}
    missing = [name for name, score in summary["scores"].items() if score is None]
    print(f"scale {summary['scale']}, data {summary['data']} ({summary['quantity']} in points)")
    print("  " + ("  ".join(f"{name} {score:.1f}" for name, score in present.items()) or "no scores"))
    if missing:
        print(f"  no score: {', '.join(missing)}")
    for path in summary["files"]:
        print(f"  {path}")
    if comparison := summary.get("comparison"):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in comparison["verdicts"].items())
        print(f"  beside the paper: {counts or 'no number has a counterpart'}")
        print("\n".join(f"  {sentence}" for sentence in comparison["rank_agreements"]))
        if comparison["off"]:
            print(f"  off: {', '.join(comparison['off'])}")


def _studies(arguments: argparse.Namespace, evidence: "Evidence") -> "list[Findings]":
    from reports.findings import Findings
    from reports.predictions import StoredPredictions
    from reports.scores import group_of

    groups = evidence.groups()
    names, stored = folder_names(groups), StoredPredictions(arguments.runs, evidence.studies)
    if not (groups or arguments.scale or arguments.data):
        return []  # throughput alone, which belongs to no scale
    chosen = _chosen(groups, arguments.scale, arguments.data)
    return [Findings(group_of(evidence, *group), names[group], stored, evidence) for group in chosen]


def _report(arguments: argparse.Namespace) -> int:
    from neobert.command_line import refuse_no_folder
    from neobert.errors import EXIT_DONE, EXIT_OFF
    from reports.curves import Curves
    from reports.page.rendering import PAGE, page
    from reports.throughput import FOLDER, throughput_lines
    from reports.trials import read_evidence
    from reports.writing import throughput_contents

    refuse_no_folder("--out", arguments.out)
    evidence = read_evidence(arguments.runs)
    studies, curves = _studies(arguments, evidence), Curves(arguments.runs, evidence.runs)
    speeds, replaced = throughput_lines(evidence.measurements.throughputs)
    problems = [*evidence.problems, *(problem for study in studies for problem in study.problems), *replaced]
    summaries = [_study(study, arguments.out, arguments.compare) for study in studies]
    others = _write(arguments.out / FOLDER, throughput_contents(speeds))
    written = {study.folder: summary["files"] for study, summary in zip(studies, summaries, strict=True)}
    files = {folder: [Path(path).name for path in paths] for folder, paths in {**written, FOLDER: others}.items()}
    text = page(studies, speeds, evidence, curves, files, problems)
    others += _write(arguments.out, {PAGE: text.encode()})
    _print_problems([*problems, *curves.problems])
    _print_summaries(summaries, others, as_json=arguments.json)
    is_off = any(summary["comparison"]["off"] for summary in summaries if arguments.compare)
    return EXIT_OFF if is_off else EXIT_DONE


def _print_summaries(summaries: list[dict[str, Any]], others: list[Path], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(summaries, indent=1))
        return
    for summary in summaries:
        _print_summary(summary)
    print("for everything together:")
    for path in others:
        print(f"  {path}")


def _print_problems(problems: Sequence[str]) -> None:
    if problems:
        print(f"{len(problems)} finding(s) about records that are not counted:", file=sys.stderr)
        print("\n".join(f"  {problem}" for problem in problems), file=sys.stderr)


def main(given: list[str] | None = None) -> int:
    """Run the command; the exit code is the answer."""
    arguments = _arguments(given)
    from neobert.command_line import guarded

    return guarded("make_figures.py", lambda: _report(arguments), arguments.out)


if __name__ == "__main__":
    sys.exit(main())
