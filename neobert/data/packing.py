"""Texts packed into rows: which row each goes to, and the index of every token in the flattened rows."""

from collections import defaultdict
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Placement:
    """Tokens of texts in rows. `shape`: (rows, tokens of a row). For every token, in the order of the texts, (tokens,):
    `owner`, the index of its text; `offsets`, its index in the text; `flat`, its index in the flattened rows."""

    shape: tuple[int, int]
    owner: Integers
    offsets: Integers
    flat: Integers

    @classmethod
    def of(cls, rows: Integers, columns: Integers, lengths: Integers, shape: tuple[int, int]) -> "Placement":
        """Place texts of `lengths` at `rows` and first `columns`, (texts,) each."""
        owner = np.repeat(np.arange(len(lengths)), lengths)
        offsets = np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]
        return cls(shape, owner, offsets, (rows * shape[1] + columns)[owner] + offsets)

    def grid(self, values: NDArray[Any], padding: int) -> Integers:
        """Return rows with the `values` (tokens,), and `padding` elsewhere."""
        filled = np.full(self.shape, padding, dtype=np.int64)
        filled.reshape(-1)[self.flat] = values
        return filled


class _Gaps:
    """Rows by free space. The lowest set bit of an integer gives the smallest gap that fits. Of rows with equal space
    the last one added is taken, or the first row."""

    def __init__(self, *, first_row: bool) -> None:
        self.first_row = first_row
        self.rows: defaultdict[int, list[int]] = defaultdict(list)
        self.present = 0

    def add(self, room: int, row: int) -> None:
        if self.first_row:
            heappush(self.rows[room], row)
        else:
            self.rows[room].append(row)
        self.present |= 1 << room

    def take(self, length: int) -> tuple[int, int] | None:
        """Remove and return (room, row) of the tightest row that has room for `length`, or None."""
        fitting = self.present >> length
        if fitting == 0:
            return None
        room = length + (fitting & -fitting).bit_length() - 1
        row = heappop(self.rows[room]) if self.first_row else self.rows[room].pop()
        if not self.rows[room]:
            self.present ^= 1 << room
        return room, row


def best_fit_decreasing(lengths: Integers, context: int, *, first_row: bool = False) -> tuple[Integers, Integers, int]:
    """Pack documents of `lengths` (documents,) into rows of `context` tokens, longest first, tightest gap first. Of
    equal gaps the one made last is taken, or that of the first row.

    Returns the row and the first column of each document, (documents,), and the number of rows. Documents of equal
    length are placed together.

    Raises:
        ValueError: a document is longer than a row, or empty.
    """
    if len(lengths) and not 0 < int(lengths.min()) <= int(lengths.max()) <= context:
        raise ValueError(
            f"documents of {int(lengths.min())} to {int(lengths.max())} tokens do not go into rows of {context}: "
            f"truncate them first"
        )
    order = np.argsort(-lengths, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    gaps = _Gaps(first_row=first_row)
    rows_in_order: list[int] = []
    count = 0
    for length, documents in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        count = _add_rows(length, documents, context, gaps, rows_in_order, count)
    rows = np.empty(len(lengths), dtype=np.int64)
    rows[order] = rows_in_order
    return rows, _columns(lengths, rows, order), count


def _add_rows(length: int, documents: int, context: int, gaps: _Gaps, rows: list[int], count: int) -> int:
    """Append the row of each of `documents` documents of one length to `rows`; return the new number of rows."""
    while documents and (gap := gaps.take(length)) is not None:
        room, row = gap
        # The tightest row stays the tightest while it has room, so it takes all documents that fit.
        fitting = min(room // length, documents)
        rows.extend([row] * fitting)
        gaps.add(room - fitting * length, row)
        documents -= fitting
    while documents:
        fitting = min(context // length, documents)
        rows.extend([count] * fitting)
        gaps.add(context - fitting * length, count)
        documents -= fitting
        count += 1
    return count


def _columns(lengths: Integers, rows: Integers, order: Integers) -> Integers:
    """Return the first column of each document, with the documents of a row placed in `order`."""
    by_row = order[np.argsort(rows[order], kind="stable")]
    ends = np.cumsum(lengths[by_row])
    starts = ends - lengths[by_row]
    first_of_row = np.flatnonzero(np.diff(rows[by_row], prepend=-1))
    row_starts = np.repeat(starts[first_of_row], np.diff(first_of_row, append=len(by_row)))
    columns = np.empty(len(lengths), dtype=np.int64)
    columns[by_row] = starts - row_starts
    return columns
