# PYTHON_ARGCOMPLETE_OK
"""Say which kept changes of an experiment log are real, from the log alone.

python reports/referee.py results.tsv                                      noise from runs that the log repeats
python reports/referee.py results.tsv --seed-spread 0.0005 --runs-behind 9    noise that is known from elsewhere
python reports/referee.py results.tsv --replicates seeds.txt --out DIR     tables and the picture below DIR
python reports/referee.py */results.tsv --summary                          one line per log
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:  # run as a script: its own folder is on sys.path, the repository with the packages is not
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from neobert.command_line import Parser, count, guarded, number_above_0
from neobert.errors import EXIT_DONE, MissingData

if TYPE_CHECKING:
    from reports.logs.judging import Report
    from reports.logs.noise import Repeats, Yardstick
    from reports.logs.reading import Log

ALPHA, MOST_SEEDS = 0.1, 20
SUFFIXES = ("md", "csv", "json", "png", "svg")


def build_parser() -> Parser:
    """Return the parser of the command's flags."""
    parser = Parser(
        prog="referee.py",
        description="Read a log of keep-or-discard experiments (tsv, csv or JSON lines) and say of each kept change "
        "whether it is real, not shown, worse, or how many seeds would tell; of the session how much of its gain "
        "survives, and which runs would settle it. The noise of single runs comes from runs that the log repeats, or "
        "from a flag.",
        epilog="Exit codes: 0 done, 1 a file cannot be written, 2 refused, 3 the log cannot be read.",
    )
    add = parser.add_argument
    add("logs", type=Path, nargs="+", metavar="LOG", help="the log: one run per line; several with --summary")
    add("--metric", metavar="COLUMN", help="column of the metric (default: found by name)")
    add("--status", metavar="COLUMN", help="column that says keep, discard, crash (default: found by name)")
    add("--description", metavar="COLUMN", help="column that says what was changed (default: found by name)")
    add("--commit", metavar="COLUMN", help="column of the commit (default: found by name)")
    add(
        "--columns", metavar="NAME,NAME,…", help="names of all columns, for a file without a header or with a wrong one"
    )
    add(
        "--by",
        nargs="+",
        default=[],
        metavar="COLUMN",
        help="judge separately by these columns (default: agent, task, …)",
    )
    direction = parser.add_mutually_exclusive_group()
    direction.add_argument(
        "--lower", action="store_true", help="a lower metric is better (default: found from the log, with the reason)"
    )
    direction.add_argument("--higher", action="store_true", help="a higher metric is better")
    noise = parser.add_mutually_exclusive_group()
    noise.add_argument(
        "--replicates",
        type=Path,
        metavar="FILE",
        help="values of repeated runs: a number per line, or columns group and value",
    )
    noise.add_argument("--seed-spread", type=number_above_0, metavar="SD", help="standard deviation of single runs")
    add("--runs-behind", type=count, metavar="N", help="number of runs that --seed-spread was computed from")
    add(
        "--alpha",
        type=number_above_0,
        default=ALPHA,
        metavar="SHARE",
        help=f"largest expected share of false ones among changes called real (default: {ALPHA})",
    )
    add(
        "--most-seeds",
        type=count,
        default=MOST_SEEDS,
        metavar="N",
        help=f"largest number of seeds to ask for (default: {MOST_SEEDS})",
    )
    add("--out", type=Path, metavar="DIR", help="also write NAME.md, .csv, .json and the picture (.png, .svg) there")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print the report as JSON")
    shown.add_argument("--summary", action="store_true", help="print a table with one line per log, refusals included")
    return parser


def _referee(arguments: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from reports.logs.rendering import markdown

    if not arguments.alpha < 1:
        raise ValueError(f"--alpha {arguments.alpha:g}: a share below 1")
    if arguments.out is not None:
        _refuse_overwriting(arguments)
    if arguments.summary:
        return _summarise(arguments)
    if len(arguments.logs) > 1:
        raise ValueError(f"{len(arguments.logs)} logs: name one, or add --summary for a line of each")
    log, report = judge_file(arguments, arguments.logs[0])
    if arguments.out is not None:
        _write(arguments.out, log, report)
    print(json.dumps(asdict(report), indent=1, ensure_ascii=False) if arguments.json else markdown(report))
    return EXIT_DONE


def _refuse_overwriting(arguments: argparse.Namespace) -> None:
    """Raise ValueError if a file below --out would replace a file that is read, or that of another log."""
    read = {path.resolve() for path in (*arguments.logs, arguments.replicates) if path is not None}
    logs = dict[str, Path]()
    for path in arguments.logs:
        other = logs.setdefault(path.stem, path)
        if other is not path:
            if other.resolve() == path.resolve():
                raise ValueError(f"{path} is named twice: name it once")
            raise ValueError(
                f"--out {arguments.out}: {other} and {path} would write the same files; rename one of them"
            )
        for suffix in SUFFIXES:
            place = arguments.out / f"{path.stem}.{suffix}"
            if place.resolve() in read:
                raise ValueError(f"--out {arguments.out} would replace {place}, which is read: name another folder")


def _summarise(arguments: argparse.Namespace) -> int:
    from collections import Counter
    from dataclasses import replace

    from reports.logs.rendering import SUMMARY_HEADER, refusal_row, summary_row

    print(f"| {' | '.join(SUMMARY_HEADER)} |\n|{'---|' * len(SUMMARY_HEADER)}")
    alike = Counter(path.name for path in arguments.logs)
    for path in arguments.logs:
        name = str(path) if alike[path.name] > 1 else path.name
        try:
            log, report = judge_file(arguments, path)
        except (ValueError, MissingData) as error:
            print(refusal_row(name, str(error).removeprefix(str(path)).lstrip(":, ")))
            continue
        print(summary_row(replace(report, log=name)))
        if arguments.out is not None:
            _write(arguments.out, log, report)
    return EXIT_DONE


def judge_file(arguments: argparse.Namespace, path: Path) -> "tuple[Log, Report]":
    """Return a log that a command names, and the report on it."""
    from reports.logs.chain import in_logarithms
    from reports.logs.judging import judge
    from reports.logs.noise import find_repeats
    from reports.logs.reading import Columns, read_log

    wanted = Columns(
        metric=arguments.metric,
        status=arguments.status,
        description=arguments.description,
        commit=arguments.commit,
        lower_is_better=True if arguments.lower else False if arguments.higher else None,
        names=tuple(name.strip() for name in arguments.columns.split(",")) if arguments.columns else None,
        by=tuple(arguments.by),
    )
    log = read_log(path, wanted)
    repeats = find_repeats(log)
    yardstick = _yardstick(arguments, log, repeats, in_logarithms(log))
    return log, judge(log, repeats, yardstick, arguments.alpha, arguments.most_seeds)


def _yardstick(arguments: argparse.Namespace, log: "Log", repeats: "list[Repeats]", logarithms: bool) -> "Yardstick":
    from reports.logs.noise import given_yardstick, measure_spread, read_replicates

    if arguments.seed_spread is not None:
        if arguments.runs_behind is None or arguments.runs_behind < 2:
            raise ValueError("--seed-spread needs --runs-behind N, the number of runs it was computed from, 2 or more")
        first = next((run.value for run in log.measured if run.value), 1.0)
        return given_yardstick(arguments.seed_spread, arguments.runs_behind, abs(first) if logarithms else 1.0)
    if arguments.runs_behind is not None:
        raise ValueError("--runs-behind belongs to --seed-spread SD")
    if arguments.replicates is None:
        return measure_spread(repeats, logarithms)
    found = measure_spread(read_replicates(arguments.replicates, log.metric), logarithms)
    if found.spread is None:
        raise MissingData(f"{arguments.replicates}: {found.refusal}")
    return found


def _write(folder: Path, log: "Log", report: "Report") -> None:
    from dataclasses import asdict

    from neobert.files import json_bytes, replace_file
    from reports.figures.referee import draw_session
    from reports.logs.rendering import comma_separated, markdown

    contents = {
        "md": markdown(report).encode(),
        "csv": comma_separated(report).encode(),
        "json": json_bytes(asdict(report)),
        **draw_session(log, report),
    }
    for suffix in SUFFIXES:
        replace_file(folder / f"{Path(log.name).stem}.{suffix}", contents[suffix])


def main(given: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    arguments = build_parser().parse_args(given)
    return guarded("referee.py", lambda: _referee(arguments), arguments.out or arguments.logs[0])


if __name__ == "__main__":
    sys.exit(main())
