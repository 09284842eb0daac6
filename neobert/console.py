"""What a person sees: tables and live progress on a terminal, plain lines elsewhere. stdout is data, stderr logs."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table

PLAIN_INTERVAL_SECONDS = 30.0


def output() -> Console:
    """The console for data on stdout; wide where nobody looks, so that nothing is wrapped in a pipe."""
    return Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 200)


def logs() -> Console:
    """The console for logs on stderr."""
    return Console(file=sys.stderr, highlight=False, width=None if sys.stderr.isatty() else 200)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table of plain values; None prints as a dash."""
    shown = Table(title=title, title_justify="left", header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold")
    for row in rows:
        shown.add_row(*("—" if cell is None else str(cell) for cell in row))
    return shown


def quantity(value: float) -> str:
    """A large number with a unit letter: 245.1M, 1.2e+21."""
    for limit, letter in ((1e15, None), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value:.2g}" if letter is None else f"{value / limit:.4g}{letter}"
    return f"{value:.4g}"


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"


class Watch:
    """Shows progress while workers work; `describe` gives one row of cells a unit in progress, and a summary line."""

    def __init__(self, describe: Callable[[], tuple[str, list[list[Any]]]], columns: Sequence[str]) -> None:
        self.describe = describe
        self.columns = columns
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
            summary, rows = self.describe()
            self.live.update(table(summary, self.columns, rows), refresh=True)
        elif time.monotonic() - self.printed >= PLAIN_INTERVAL_SECONDS:
            self.printed = time.monotonic()
            summary, rows = self.describe()
            self.console.print(summary, markup=False)
            for row in rows:
                self.console.print("  " + " | ".join(str(cell) for cell in row), markup=False)
