"""Packed rows of documents. No tokens are read here."""

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from neobert.data.packing import Integers, best_fit_decreasing
from neobert.data.shards import Documents


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
