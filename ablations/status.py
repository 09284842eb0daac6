"""Show every run of a folder: state, progress, speed, costs, who works on it, and what failed. Reads files only.

python ablations/status.py                            every run
python ablations/status.py --state failed --errors    what failed, with tracebacks
python ablations/status.py --ladder FILE.py           only what was planned from this ladder
python ablations/status.py --watch                    every 5 seconds, until all is done or Ctrl-C

`--json` is a list of rows with the keys of neobert/runs/index.py. SLURM is not asked: "submitted" means that a job
was submitted for a run and has not started.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

if __name__ == "__main__":  # a script's own folder would hide packages of the same names as its modules
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from rich.live import Live
from rich.text import Text

from ablations.ladders import Ladder
from ablations.launch.flags import add_ladder_flag
from neobert.command_line import guarded, number_above_0, parser_from
from neobert.console import logs, output
from neobert.errors import EXIT_DONE, name_first
from neobert.runs.collected import RunFiles
from neobert.runs.index import STATES, Cause, Row, State, age, causes_of, read_index
from neobert.runs.layout import Layout

WATCH_SECONDS = 5.0


def build_parser() -> argparse.ArgumentParser:
    """Return the command's parser."""
    parser = parser_from("python ablations/status.py", __doc__)
    add = parser.add_argument
    add("--runs", type=Path, default=Path("runs"), help="folder of runs (default: ./runs)")
    add("--variant", nargs="+", action="extend", metavar="NAME", help="only these: names, M0..M5, or all of the ladder")
    add_ladder_flag(parser)
    add("--state", nargs="+", action="extend", choices=STATES, metavar="STATE", help=f"only {', '.join(STATES)}")
    add("--errors", action="store_true", help="print the traceback of every failure shown")
    add("--json", action="store_true", help="print JSON on stdout")
    add(
        "--watch",
        nargs="?",
        type=number_above_0,
        const=WATCH_SECONDS,
        metavar="SECONDS",
        help=f"refresh until all is done or Ctrl-C (default: every {WATCH_SECONDS:g} seconds)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code (0 whatever the runs' states, 2 refused, 3 no such folder)."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.json and options.watch is not None:
        parser.error("--watch draws and --json prints once: choose one of them")

    def show() -> int:
        ladder = None
        if options.ladder is not None:
            from ablations.loading import load  # takes longer than the rest

            ladder = load(options.ladder)
        wanted = Wanted(options.runs.resolve(), ladder, options.variant or (), options.state or STATES)
        return _show(wanted, options.watch, as_json=options.json, tracebacks=options.errors)

    return guarded("status.py", show, options.runs)


@dataclass(frozen=True)
class Wanted:
    """The rows to show: of a ladder's runs, of variants by name, in one of the states.

    Without a ladder names are those of the paper's; without names every run counts.
    """

    runs: Path
    ladder: Ladder | None
    variants: Sequence[str]
    states: Sequence[State]

    def read(self, layout: Layout) -> tuple[list[Row], list[str]]:
        """Return the rows of all states, and a sentence for each unreadable file without a row.

        Raises:
            MissingData: there is no such folder.
            ValueError: a variant is neither on the ladder nor on any run.
        """
        index = read_index(layout)
        rows = index.rows()
        if self.ladder is not None:
            rows = [row for row in rows if self.ladder.is_named(row.ladder, layout)]
        if self.variants:
            from ablations.loading import papers
            from ablations.names import chosen_variants

            labelled = {name for row in rows for name in row.variants}
            unlabelled = [name for name in self.variants if name not in labelled]
            chosen = {variant.name for variant in chosen_variants(self.ladder or papers(), unlabelled)}
            rows = [row for row in rows if (labelled.intersection(self.variants) | chosen).intersection(row.variants)]
        return rows, index.problems

    def shown(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows in wanted states."""
        return [row for row in rows if row.state in self.states]


def _show(wanted: Wanted, watch: float | None, *, as_json: bool, tracebacks: bool) -> int:
    files = RunFiles(wanted.runs)
    layout = Layout(files.root)
    try:
        rows, problems = wanted.read(layout) if watch is None else _watch(layout, wanted, watch)
    except KeyboardInterrupt:  # the usual way to end a watch
        return EXIT_DONE
    shown = wanted.shown(rows)
    if as_json:
        entries = [row.as_json() for row in shown]
        for failure in (failure for entry in entries for failure in entry["errors"] if not tracebacks):
            del failure["traceback"]
        print("[" + ",\n ".join(map(json.dumps, entries)) + "]")
    else:
        print("\n".join(_lines(shown, wanted.runs)))
        for failure in (failure for cause in causes_of(shown) for failure in cause.failures if tracebacks):
            print(f"\n{failure.name}:\n{failure.traceback or failure.error}")
    for problem in (*problems, *files.problems):
        logs().print(problem, markup=False)
    return EXIT_DONE


def _watch(layout: Layout, wanted: Wanted, seconds: float) -> tuple[list[Row], list[str]]:
    """Redraw in place on a terminal, elsewhere print repeatedly, until there is something and all of it, of whatever
    state, is done; return what was read last."""
    console = output()
    with Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else nullcontext() as live:
        while True:
            rows, problems = wanted.read(layout)
            shown = wanted.shown(rows)
            if live is not None:
                live.update(Text("\n".join(_lines(shown, wanted.runs))), refresh=True)
            else:
                print("\n".join(_lines(shown, wanted.runs)), end="\n\n", flush=True)
            if rows and all(row.state == "done" for row in rows):
                return rows, problems
            time.sleep(seconds)


def _summary(rows: Sequence[Row], root: Path) -> str:
    if not rows:
        return f"no runs to show in {root}"
    states = Counter(row.state for row in rows)
    counts = ", ".join(f"{states[state]} {state}" for state in reversed(STATES) if states[state])
    hours = sum(row.gpu_hours or 0.0 for row in rows)
    spent = f"; {hours:,.1f} GPU-hours of pre-training" if hours else ""
    return f"{len(rows)} run{'s' if len(rows) > 1 else ''} in {root}: {counts}{spent}"


def _lines(rows: Sequence[Row], root: Path) -> list[str]:
    """Return the summary, one line per run with the worst states first, in columns, and the causes of failures."""
    cells = [_cells(row) for row in sorted(rows, key=lambda row: STATES.index(row.state))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    shown = (zip(line, widths, strict=True) for line in cells)
    lines = ["  ".join(cell.ljust(width) for cell, width in line if width).rstrip() for line in shown]
    return [_summary(rows, root), *lines, *(line for cause in causes_of(rows) for line in _cause_lines(cause))]


def _cells(row: Row) -> list[str]:
    """Return the columns of a run's line as text; what is unknown is empty."""
    workers = [worker for worker in row.workers if worker.is_live]
    places = Counter(f"{each.host} job {each.job}" if each.job else each.host for each in workers)
    owners = [f"{place} ×{count}" if count > 1 else place for place, count in places.items()]
    where = f"logs {', '.join(row.logs)}" if row.logs and row.state != "done" else ""
    cells = (
        row.state,
        row.name,
        ",".join(row.variants) + (f" ({row.ladder})" if row.ladder and row.variants else ""),
        row.scale,
        None if row.seed is None else f"seed {row.seed}",
        _progress(row),
        None if row.tokens_per_second is None else f"{row.tokens_per_second:,.0f} tokens/s",
        None if row.gpu_hours is None else f"{row.gpu_hours:,.1f} GPU-hours",
        _result(row),
        f"on {', '.join(owners)}" if owners else None,
        f"heartbeat {age(workers[0].heartbeat_seconds)} ago" if workers else None,
        "; ".join(filter(None, (row.note, where))),
    )
    return [cell or "" for cell in cells]


def _progress(row: Row) -> str | None:
    if row.total is None:
        return f"{row.done} {row.counted}" if row.done else None
    return f"{'?' if row.done is None else row.done}/{row.total} {row.counted}"


def _result(row: Row) -> str | None:
    if row.kind == "glue":
        return None if row.score is None else f"score {row.score * 100:.1f}"
    if row.heldout_loss is not None:
        return f"held-out loss {row.heldout_loss:.3f}"
    return None if row.loss is None else f"loss {row.loss:.3f}"


def _cause_lines(cause: Cause) -> list[str]:
    names = [failure.name for failure in cause.failures]
    lines = [f"{len(names)} × {cause.error}", f"    {name_first(names)}"]
    return [*lines, f"    logs: {name_first(cause.logs)}"] if cause.logs else lines


if __name__ == "__main__":
    sys.exit(main())
