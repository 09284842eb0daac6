"""Best-fit-decreasing packing of documents into rows. Torch-free.

Lengths are at most the context, so a document is placed by length, not by tokens: equal lengths fill equal gaps
together, and the smallest gap that fits is the lowest set bit of an integer.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Packing:
    """Where each document lies: `rows` and `columns` (documents,) int64; `count` rows."""

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    count: int


class _Gaps:
    """Rows by the room they have left."""

    def __init__(self) -> None:
        self.rows: defaultdict[int, list[int]] = defaultdict(list)
        self.present = 0

    def add(self, room: int, row: int) -> None:
        self.rows[room].append(row)
        self.present |= 1 << room

    def take(self, length: int) -> tuple[int, int] | None:
        """(room, row) of the tightest row that has room for `length`, removed; None where there is none."""
        fitting = self.present >> length
        if fitting == 0:
            return None
        room = length + (fitting & -fitting).bit_length() - 1
        row = self.rows[room].pop()
        if not self.rows[room]:
            self.present ^= 1 << room
        return room, row


def best_fit_decreasing(lengths: NDArray[np.int64], context: int) -> Packing:
    """Pack documents of `lengths` (documents,) into rows of `context` tokens, longest first, tightest gap first.

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
    gaps = _Gaps()
    rows_in_order: list[int] = []
    count = 0
    for length, documents in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        count = _place(length, documents, context, gaps, rows_in_order, count)
    rows = np.empty(len(lengths), dtype=np.int64)
    rows[order] = rows_in_order
    return Packing(rows, _columns(lengths, rows, order), count)


def _place(length: int, documents: int, context: int, gaps: _Gaps, rows: list[int], count: int) -> int:
    """Append the row of each of `documents` documents of one length; returns how many rows there are then."""
    while documents and (gap := gaps.take(length)) is not None:
        room, row = gap
        # The tightest row stays the tightest as long as it has room, so it takes all that fit.
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


def _columns(lengths: NDArray[np.int64], rows: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    """First column of each document when the documents of a row stand in `order`."""
    by_row = order[np.argsort(rows[order], kind="stable")]
    ends = np.cumsum(lengths[by_row])
    starts = ends - lengths[by_row]
    first_of_row = np.flatnonzero(np.diff(rows[by_row], prepend=-1))
    row_starts = np.repeat(starts[first_of_row], np.diff(first_of_row, append=len(by_row)))
    columns = np.empty(len(lengths), dtype=np.int64)
    columns[by_row] = starts - row_starts
    return columns
