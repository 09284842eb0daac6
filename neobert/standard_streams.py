"""Standard streams that are closed (`>&-`, as under some daemons), or whose reader has gone (`… | head`)."""

import os
import sys
from typing import Literal, TextIO


def open_closed_streams() -> None:
    """Connect standard streams that are closed to /dev/null, also for child processes.

    Otherwise the next file that is opened takes the number of one of them, and what is printed is written into it.
    """
    sys.stdin = sys.stdin or _to_null(0, "r")
    sys.stdout = sys.stdout or _to_null(1, "w")
    sys.stderr = sys.stderr or _to_null(2, "w")


def _to_null(number: int, mode: Literal["r", "w"]) -> TextIO:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        os.fstat(number)
    except OSError:
        os.dup2(null, number)
    if null == number:  # it was the lowest free number
        os.set_inheritable(number, True)
    return open(null, mode, encoding="utf-8")  # noqa: PTH123 (a descriptor, for the rest of the process)


def flush_output() -> None:
    """Write what is buffered for stdout; drop it if its reader has gone or its disk is full."""
    try:
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)


def drop(stream: TextIO) -> None:
    """Send what is buffered for a stream, and what is printed to it from now on, to /dev/null."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
