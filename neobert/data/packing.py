"""Texts packed into rows: which row each goes to, and the index of every token in the flattened rows. No tokens are
read here."""

from collections import defaultdict
from dataclasses import dataclass, fields, replace
from heapq import heappop, heappush
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from neobert.data.shards import Documents, Integers


@dataclass(frozen=True, eq=False)
class Placement:
    """Tokens of documents in rows. `shape`: (rows, tokens of a row). For every token, in the order of the documents,
    (tokens,): `doc_ids`, the index of its document; `positions`, its index in the document; `indices`, its index in the
    flattened rows."""

    shape: tuple[int, int]
    doc_ids: Integers
    positions: Integers
    indices: Integers

    @classmethod
    def of(cls, rows: Integers, columns: Integers, lengths: Integers, shape: tuple[int, int]) -> "Placement":
        """Place documents of `lengths` at `rows` and first `columns`, (documents,) each."""
        doc_ids = np.repeat(np.arange(len(lengths)), lengths)
        positions = np.arange(len(doc_ids)) - (np.cumsum(lengths) - lengths)[doc_ids]
        return cls(shape, doc_ids, positions, (rows * shape[1] + columns)[doc_ids] + positions)

    def grid(self, values: NDArray[Any], padding: int) -> Integers:
        """Return rows with the `values` (tokens,), and `padding` elsewhere."""
        filled = np.full(self.shape, padding, dtype=np.int64)
        filled.reshape(-1)[self.indices] = values
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


@dataclass(frozen=True, eq=False)
class Spans:
    """Spans of framed documents ([CLS] text [SEP]); every field (spans,) int64.

    `rows`, `columns`: position of the span's first token; `tokens`: its length; `documents`: number in the corpus;
    `first`: index of its first token in the framed document; `framed_lengths`: tokens of that document; `keys`: its
    mask key in this epoch; `begins`: offset of the framed document in the whole one, if it is a passage.
    """

    rows: Integers
    columns: Integers
    tokens: Integers
    documents: Integers
    first: Integers
    framed_lengths: Integers
    keys: Integers
    begins: Integers

    def __getitem__(self, chosen: slice | Integers) -> Self:
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class PackedRows:
    """`count` rows of `context` tokens; spans are sorted by row and column.

    `isolated`: tokens attend only within their document; otherwise each row is one attention document with consecutive
    positions.
    """

    context: int
    count: int
    spans: Spans
    isolated: bool

    @property
    def real_tokens(self) -> int:
        """Number of tokens without padding, specials included."""
        return int(self.spans.tokens.sum())

    @property
    def attended_tokens(self) -> int:
        """Number of token pairs that attend to each other: the sum of the squared lengths of the attention
        documents."""
        by_row = np.bincount(self.spans.rows, self.spans.tokens, self.count).astype(np.int64)
        return int(((self.spans.tokens if self.isolated else by_row) ** 2).sum())

    def __getitem__(self, chosen: slice) -> "PackedRows":
        """Return consecutive rows, renumbered from 0; indices beyond the end select none."""
        start, stop, _ = chosen.indices(self.count)
        stop = max(start, stop)
        first, last = np.searchsorted(self.spans.rows, [start, stop])
        spans = self.spans[first:last]
        return replace(self, count=stop - start, spans=replace(spans, rows=spans.rows - start))


def pack_documents(documents: Documents, indices: Integers, keys: Integers, context: int) -> PackedRows:
    """Best-fit pack documents `indices` of a view fitted to `context`, with borders, fullest rows first."""
    lengths = documents.framed(indices)
    rows, columns, count = best_fit_decreasing(lengths, context)
    spans = Spans(
        rows=rows,
        columns=columns,
        tokens=lengths,
        documents=documents.numbers[indices],
        first=np.zeros_like(lengths),
        framed_lengths=lengths,
        keys=keys,
        begins=np.zeros_like(lengths) if documents.begins is None else documents.begins[indices],
    )
    return PackedRows(context, count, _sorted(spans), isolated=True)


def reorder_rows(rows: PackedRows, order: Integers) -> PackedRows:
    """Move row r to `order[r]`; `order` (rows,) is a permutation."""
    return replace(rows, spans=_sorted(replace(rows.spans, rows=order[rows.spans.rows])))


def join_rows(parts: list[PackedRows]) -> PackedRows:
    """Concatenate packed rows: at least one part, all with the same context and `isolated`."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.count for part in parts)])
    names = [field.name for field in fields(Spans)]
    spans = Spans(*(np.concatenate([getattr(part.spans, name) for part in parts]) for name in names))
    shifts = np.repeat(starts[:-1], [len(part.spans.rows) for part in parts])
    return replace(parts[0], count=int(starts[-1]), spans=replace(spans, rows=spans.rows + shifts))


def _sorted(spans: Spans) -> Spans:
    return spans[np.lexsort((spans.columns, spans.rows))]
