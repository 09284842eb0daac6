"""Rows of tokens described by the pieces of documents in them; no token is read here. Torch-free."""

from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from neobert.data.packing import best_fit_decreasing
from neobert.data.views import Documents

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Runs of framed documents ([CLS] text [SEP]); every field (pieces,) int64.

    `rows`, `columns`: where the run begins; `tokens`: its length; `documents`: number in the corpus; `first`: its first
    token's place in the framed document; `framed_lengths`: tokens of that document; `keys`: its mask key in this pass.
    """

    rows: Integers
    columns: Integers
    tokens: Integers
    documents: Integers
    first: Integers
    framed_lengths: Integers
    keys: Integers

    def __getitem__(self, chosen: slice | Integers) -> Self:
        return type(self)(*(getattr(self, field.name)[chosen] for field in fields(self)))


@dataclass(frozen=True, eq=False)
class Rows:
    """`count` rows of `context` tokens; pieces in the order of rows and columns.

    `isolated`: a token sees its own document; otherwise each row is one attention document with running positions.
    """

    context: int
    count: int
    pieces: Pieces
    isolated: bool

    @property
    def real_tokens(self) -> int:
        """Tokens that are no filler, specials included."""
        return int(self.pieces.tokens.sum())

    @property
    def fill(self) -> float:
        """Share of the slots that hold a real token."""
        return self.real_tokens / max(1, self.count * self.context)

    @property
    def attended_tokens(self) -> int:
        """How many tokens the real tokens see, all together: the squares of the lengths of what sees itself."""
        lengths = self.pieces.tokens if self.isolated else self._tokens_by_row
        return int((lengths**2).sum())

    @property
    def _tokens_by_row(self) -> Integers:
        return np.bincount(self.pieces.rows, self.pieces.tokens, self.count).astype(np.int64)

    def __getitem__(self, chosen: slice) -> "Rows":
        """Consecutive rows, numbered from 0 again; beyond the end there are none."""
        start, stop, _ = chosen.indices(self.count)
        stop = max(start, stop)
        first, last = np.searchsorted(self.pieces.rows, [start, stop])
        pieces = self.pieces[first:last]
        return replace(self, count=stop - start, pieces=replace(pieces, rows=pieces.rows - start))


def whole_documents(documents: Documents, indices: Integers, keys: Integers, context: int) -> Rows:
    """Documents `indices` of a truncated view, best-fit packed with borders, fullest rows first."""
    lengths = documents.framed(indices)
    packing = best_fit_decreasing(lengths, context)
    pieces = Pieces(
        rows=packing.rows,
        columns=packing.columns,
        tokens=lengths,
        documents=documents.numbers[indices],
        first=np.zeros_like(lengths),
        framed_lengths=lengths,
        keys=keys,
    )
    return Rows(context, packing.count, _sorted(pieces), isolated=True)


def reordered(rows: Rows, places: Integers) -> Rows:
    """The same rows with row r at `places[r]`; `places` (rows,) is a permutation."""
    return replace(rows, pieces=_sorted(replace(rows.pieces, rows=places[rows.pieces.rows])))


def joined(parts: list[Rows]) -> Rows:
    """Rows one after the other; at least one part, all of one context and kind."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(part.count for part in parts)])
    names = [field.name for field in fields(Pieces)]
    pieces = Pieces(*(np.concatenate([getattr(part.pieces, name) for part in parts]) for name in names))
    shifts = np.repeat(starts[:-1], [len(part.pieces.rows) for part in parts])
    return replace(parts[0], count=int(starts[-1]), pieces=replace(pieces, rows=pieces.rows + shifts))


def _sorted(pieces: Pieces) -> Pieces:
    return pieces[np.lexsort((pieces.columns, pieces.rows))]
