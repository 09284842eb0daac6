"""The points that a search has asked for: numbered files, each written before a worker takes its point."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from neobert.files import names_in
from neobert.runs.records import read_once, read_sealed
from neobert.runs.work import Part, Work, error_beside

Read = TypeVar("Read")

MOST_DIGITS = 12
"""Digits of the number of a point; a longer name is that of no request."""


def request_file(search: Path, number: int) -> Path:
    """Return the file with the point that the search of a folder asked for as its `number`-th, from 0."""
    return search / "asked" / _name(number)


def read_requests(search: Path, total: int, read: Callable[[Path], Read]) -> dict[int, Read]:
    """Return the points that the search of a folder has asked for, by their numbers below `total`, without damaged
    ones. `read` reads the file of one."""
    folder = search / "asked"
    files = {number: path for name in names_in(folder) for number, path in _request_in(folder, name)}
    wanted = sorted(number for number in files if number < total)
    found = {number: read_once(files[number], read) for number in wanted}
    return {number: point for number, point in found.items() if point is not None}


def request_part(work: Work, search: Path, number: int, total: int) -> Part:
    """Return the part that is done as soon as a search has asked for so many points. Its record has the point."""
    record = request_file(search, number)
    return Part(
        work=work,
        id=f"{work.id}-asked-{number}",
        title=f"point {number + 1} of {total}",
        record=record,
        error=error_beside(record),
        read=read_sealed,
    )


def _name(number: int) -> str:
    return f"{number:05d}.json"


@lru_cache(maxsize=1 << 16)
def _request_in(folder: Path, name: str) -> tuple[tuple[int, Path], ...]:
    """Return number and path of a request if a file has the name of one; else nothing."""
    stem = name.removesuffix(".json")
    number = int(stem) if stem.isascii() and stem.isdecimal() and len(stem) < MOST_DIGITS else -1
    return ((number, folder / name),) if name == _name(number) else ()
