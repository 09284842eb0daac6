"""What status.py prints: rows with the worst first, then failures grouped by cause."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.text import Text

from neobert.console import logs, output, table
from neobert.overview.causes import Cause, causes_of
from neobert.overview.row import ROW_STATES, Row, Worker, age
from neobert.overview.rows import Overview

COLUMNS = (
    "state",
    "run",
    "variants",
    "scale",
    "seed",
    "progress",
    "tokens/s",
    "GPU-hours",
    "result",
    "owner",
    "heartbeat",
    "note",
)
TABLE_ROWS = 100
"""A terminal's table ends here and says what it leaves out: nobody reads further, and drawing would take seconds."""
NAMES_SHOWN = 3


def print_json(overview: Overview, *, tracebacks: bool) -> None:
    """The rows in the order of the folder, each on a line of its own; problems go to stderr."""
    rows = [row.as_json() for row in overview.rows]
    for failure in (failure for row in rows for failure in row["errors"]):
        if not tracebacks:
            del failure["traceback"]
    print("[" + ",\n ".join(map(json.dumps, rows)) + "]")
    _print_problems(overview)


def print_overview(overview: Overview, root: Path, *, tracebacks: bool) -> None:
    """A table on a terminal, one line a run elsewhere; then causes of failures, with tracebacks where asked for."""
    console = output()
    if console.is_terminal:
        console.print(_drawn(overview, root))
    else:
        sys.stdout.write("\n".join(_plain_lines(overview, root)) + "\n")
    if tracebacks:
        for cause in causes_of(overview.rows):
            for failure in cause.failures:
                console.print(f"\n{failure.name}:\n{failure.traceback or failure.error}", markup=False, soft_wrap=True)
    _print_problems(overview)


class Drawing:
    """Draws an overview in place on a terminal; elsewhere prints it again and again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = Live(console=output(), auto_refresh=False, transient=True) if sys.stdout.isatty() else None

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self, overview: Overview) -> None:
        if self.live:
            self.live.update(_drawn(overview, self.root), refresh=True)
        else:
            sys.stdout.write("\n".join(_plain_lines(overview, self.root)) + "\n\n")
            sys.stdout.flush()


def _print_problems(overview: Overview) -> None:
    for problem in overview.problems:
        logs().print(problem, markup=False)


def _worst_first(rows: Sequence[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: ROW_STATES.index(row.state))


def _summary(rows: Sequence[Row], root: Path) -> str:
    if not rows:
        return f"no runs to show in {root}"
    states = Counter(row.state for row in rows)
    counts = ", ".join(f"{states[state]} {state}" for state in reversed(ROW_STATES) if states[state])
    hours = sum(row.gpu_hours or 0.0 for row in rows)
    spent = f"; {hours:,.1f} GPU-hours of pre-training" if hours else ""
    return f"{len(rows)} run{'s' if len(rows) > 1 else ''} in {root}: {counts}{spent}"


def _drawn(overview: Overview, root: Path) -> RenderableType:
    rows = _worst_first(overview.rows)
    shown, hidden = rows[:TABLE_ROWS], rows[TABLE_ROWS:]
    cells = [[escape(cell) if cell else None for cell in _cells(row)] for row in shown]
    used = [number for number in range(len(COLUMNS)) if any(row[number] for row in cells)]
    title = escape(_summary(rows, root))
    parts: list[RenderableType] = []
    if shown:
        parts.append(table(title, [COLUMNS[n] for n in used], [[row[n] for n in used] for row in cells]))
    else:
        parts.append(Text(title))
    if hidden:
        states = Counter(row.state for row in hidden)
        told = ", ".join(f"{count} {state}" for state, count in states.items())
        parts.append(Text(f"and {told}: narrow with --state or --variant; a pipe or --json gets all"))
    parts.extend(Text(line) for cause in causes_of(rows) for line in _cause_lines(cause))
    return Group(*parts)


def _plain_lines(overview: Overview, root: Path) -> list[str]:
    rows = _worst_first(overview.rows)
    lines = [_summary(rows, root), *("  ".join(filter(None, _cells(row, units=True))) for row in rows)]
    return [*lines, *(line for cause in causes_of(rows) for line in _cause_lines(cause))]


def _cells(row: Row, *, units: bool = False) -> list[str | None]:
    """The row's columns as text; with units where no header names them."""

    def told(text: str | None, before: str = "", after: str = "") -> str | None:
        return f"{before}{text}{after}" if units and text else text

    workers = [worker for worker in row.workers if worker.is_live]
    return [
        row.state,
        row.name,
        ",".join(row.variants),
        row.scale,
        told(_number(row.seed, "d"), "seed "),
        _progress(row),
        told(_number(row.tokens_per_second, ",.0f"), after=" tokens/s"),
        told(_number(row.gpu_hours, ",.1f"), after=" GPU-hours"),
        _result(row),
        told(_owners(workers), "on "),
        told(age(workers[0].heartbeat_seconds) if workers else None, "heartbeat ", " ago"),
        _note(row),
    ]


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form)


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


def _owners(workers: Sequence[Worker]) -> str:
    """The places where a run is worked on, each once: a study has many workers."""
    places = [f"{worker.host} job {worker.job}" if worker.job else worker.host for worker in workers]
    return ", ".join(f"{place} ×{count}" if count > 1 else place for place, count in Counter(places).items())


def _note(row: Row) -> str | None:
    where = f"logs {', '.join(row.logs)}" if row.logs and row.state != "done" else ""
    return "; ".join(filter(None, (row.note, where))) or None


def _cause_lines(cause: Cause) -> list[str]:
    lines = [f"{len(cause.names)} × {cause.error}", f"    {_first_of(cause.names)}"]
    return [*lines, f"    logs: {_first_of(cause.logs)}"] if cause.logs else lines


def _first_of(names: Sequence[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
