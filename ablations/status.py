"""Show every run of a folder: state, progress, speed, costs, who works on it, and what failed. Reads files only.

python ablations/status.py                            every run
python ablations/status.py --state failed --errors    what failed, with tracebacks
python ablations/status.py --watch                    drawn anew every 5 seconds until all is done or Ctrl-C

`--json` is a list of rows with the keys of neobert/overview/row.py. No scheduler is asked: "submitted" means that a job
was submitted for a run and nobody has begun it since.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # a script's own folder would hide packages of the same names as its modules
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from neobert.command_line import guarded, parser_from, seconds_of_a_day
from neobert.errors import EXIT_DONE
from neobert.overview.row import ROW_STATES

if TYPE_CHECKING:
    from neobert.overview.row import Row
    from neobert.overview.rows import Overview

WATCH_SECONDS = 5.0


def build_parser() -> argparse.ArgumentParser:
    """The command's flags."""
    parser = parser_from("python ablations/status.py", __doc__)
    add = parser.add_argument
    add("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add("--variant", nargs="+", action="extend", metavar="NAME", help="only these: names, M0..M5, or all of the ladder")
    add(
        "--state", nargs="+", action="extend", choices=ROW_STATES, metavar="STATE", help=f"only {', '.join(ROW_STATES)}"
    )
    add("--errors", action="store_true", help="print the traceback of every failure shown")
    add("--json", action="store_true", help="print JSON on stdout")
    add(
        "--watch",
        nargs="?",
        type=seconds_of_a_day,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"draw again until all is done or Ctrl-C (default: every {WATCH_SECONDS:g} seconds)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code (0 whatever the runs' states, 2 refused, 3 no such folder)."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.json and options.watch is not None:
        parser.error("--watch draws and --json prints once: choose one of them")
    return guarded("status.py", lambda: _show(options), options.runs)


def _show(options: argparse.Namespace) -> int:
    from ablations.status_listing import Drawing, print_json, print_overview
    from neobert.layout import Layout
    from neobert.overview.rows import read_overview

    layout = Layout(options.runs.resolve())
    overview = _chosen(read_overview(layout), options)
    if options.json:
        print_json(overview, tracebacks=options.errors)
    elif options.watch is None:
        print_overview(overview, layout.root, tracebacks=options.errors)
    else:
        try:
            with Drawing(layout.root) as draw:
                draw(overview)
                while any(row.state != "done" for row in overview.rows):
                    time.sleep(options.watch)
                    overview = _chosen(read_overview(layout), options)
                    draw(overview)
        except KeyboardInterrupt:  # the way to end a watch
            return EXIT_DONE
        print_overview(overview, layout.root, tracebacks=options.errors)
    return EXIT_DONE


def _chosen(overview: "Overview", options: argparse.Namespace) -> "Overview":
    """The rows that the flags ask for.

    Raises:
        ValueError: a variant is neither on the ladder nor on any run.
    """
    from dataclasses import replace

    rows: Sequence[Row] = overview.rows
    if options.variant:
        names = _variant_names(options.variant, rows)
        rows = [row for row in rows if names.intersection(row.variants)]
    if options.state:
        rows = [row for row in rows if row.state in options.state]
    return replace(overview, rows=tuple(rows))


def _variant_names(wanted: Sequence[str], rows: "Sequence[Row]") -> set[str]:
    from ablations.plan import chosen_variants

    labelled = {name for row in rows for name in row.variants}
    unlabelled = [name for name in wanted if name not in labelled]
    return {name for name in wanted if name in labelled} | {variant.name for variant in chosen_variants(unlabelled)}


if __name__ == "__main__":
    sys.exit(main())
