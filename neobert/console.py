"""Console output: tables and live progress on a terminal, plain lines elsewhere. stdout has data, stderr logs."""

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from neobert.command_line import drop

PLAIN_INTERVAL_SECONDS = 30.0
BAR_CELLS = 16
UNBROKEN_CELLS = 16
"""Columns up to this width are never wrapped: ids, states and numbers."""


class _Output(Console):
    def on_broken_pipe(self) -> None:
        """Leave it to `guarded` that the reader of the output has closed it; rich would exit with code 1."""
        raise BrokenPipeError


class _Logs(Console):
    def on_broken_pipe(self) -> None:
        """Go on without logs if their reader has closed them; rich would exit with code 1."""
        drop(sys.stderr)


def output() -> Console:
    """Return the console for data on stdout. In a pipe it is wide, so that nothing is wrapped."""
    return _Output(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 200)


def logs() -> Console:
    """Return the console for logs on stderr."""
    return _Logs(file=sys.stderr, highlight=False, width=None if sys.stderr.isatty() else 200)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """Return a table of plain values, in which brackets are no markup; None is shown as a dash."""
    cells = [["—" if cell is None else str(cell) for cell in row] for row in rows]
    shown = Table(title=Text(title, style="table.title"), title_justify="left", header_style="bold")
    for number, column in enumerate(columns):
        widest = max(map(cell_len, "\n".join(row[number] for row in cells).splitlines()), default=0)
        shown.add_column(column, overflow="fold", no_wrap=widest <= UNBROKEN_CELLS)
    for row in cells:
        shown.add_row(*map(Text, row))
    return shown


def quantity(value: float) -> str:
    """Format a large number with a unit letter: 245.1M, 1.2e+21."""
    for limit, letter in ((1e15, None), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value:.2g}" if letter is None else f"{value / limit:.4g}{letter}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Progress:
    """How far a run is. `details` have their labels or units: loss 4.020, 4,389 tokens/s, 5 min left."""

    name: str
    counted: str
    done: int
    total: int
    details: tuple[str, ...] = ()

    @property
    def words(self) -> tuple[str, ...]:
        """What is done, and the details."""
        of = f"/{self.total:,}" if self.total else ""
        return (f"{self.done:,}{of} {self.counted}", *self.details)


class Watch:
    """Shows progress while workers work: bars on a terminal, otherwise a line per run from time to time. `describe`
    returns a summary and the runs in progress."""

    def __init__(self, describe: Callable[[], tuple[str, list[Progress]]]) -> None:
        self.describe = describe
        self.console = logs()
        self.live = Live(console=self.console, auto_refresh=False, transient=True) if self.console.is_terminal else None
        self.printed = time.monotonic()

    def __enter__(self) -> Self:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()

    def __call__(self) -> None:
        if self.live:
            self.live.update(_bars(*self.describe()), refresh=True)
        elif time.monotonic() - self.printed >= PLAIN_INTERVAL_SECONDS:
            self.printed = time.monotonic()
            summary, runs = self.describe()
            self.console.print(summary, markup=False)
            for run in runs:
                self.console.print(f"  {run.name}:  {'  '.join(run.words)}", markup=False)


def _bars(summary: str, runs: Sequence[Progress]) -> Group:
    rows = Table.grid(padding=(0, 2))
    for run in runs:
        said = Text(f"{run.name}\n{'  '.join(run.words)}", no_wrap=True, overflow="ellipsis")
        rows.add_row(ProgressBar(run.total or 1, run.done, width=BAR_CELLS), said)
    return Group(Text(summary), rows)
