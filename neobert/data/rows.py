"""Packed rows of each optimizer step of a stage, resumable at every step. No tokens are read here.

Documents are shuffled in each epoch and packed into rows (each class of `STREAMS` implements one kind of packing). A
step takes the next rows of one subset of the mixture. Everything is a function of seed, stage and step.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import isqrt
from typing import Any, Literal, Self

import numpy as np

from neobert.data.masking import Words, counter_hash, fold, threshold
from neobert.data.shards import FRAME_TOKENS, Documents, Integers
from neobert.recipe import LongDocuments, Stage


class _Gaps:
    """Rows by free space. The lowest set bit of an integer gives the smallest gap that fits."""

    def __init__(self) -> None:
        self.rows: defaultdict[int, list[int]] = defaultdict(list)
        self.present = 0

    def add(self, room: int, row: int) -> None:
        self.rows[room].append(row)
        self.present |= 1 << room

    def take(self, length: int) -> tuple[int, int] | None:
        """Remove and return (room, row) of the tightest row that has room for `length`, or None."""
        fitting = self.present >> length
        if fitting == 0:
            return None
        room = length + (fitting & -fitting).bit_length() - 1
        row = self.rows[room].pop()
        if not self.rows[room]:
            self.present ^= 1 << room
        return room, row


def best_fit_decreasing(lengths: Integers, context: int) -> tuple[Integers, Integers, int]:
    """Pack documents of `lengths` (documents,) into rows of `context` tokens, longest first, tightest gap first.

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
    gaps = _Gaps()
    rows_in_order: list[int] = []
    count = 0
    for length, documents in zip(distinct[::-1].tolist(), counts[::-1].tolist(), strict=True):
        count = _place(length, documents, context, gaps, rows_in_order, count)
    rows = np.empty(len(lengths), dtype=np.int64)
    rows[order] = rows_in_order
    return rows, _columns(lengths, rows, order), count


def _place(length: int, documents: int, context: int, gaps: _Gaps, rows: list[int], count: int) -> int:
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


def reorder_rows(rows: PackedRows, places: Integers) -> PackedRows:
    """Move row r to `places[r]`; `places` (rows,) is a permutation."""
    return replace(rows, spans=_sorted(replace(rows.spans, rows=places[rows.spans.rows])))


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


_LEAST_SIDE = 16
"""Minimum size of each Feistel half; smaller halves mix badly."""


def permute(places: Integers, count: int, keys: Words) -> Integers:
    """Permute `places` (n,), numbers below `count`; `keys` of 32 bits, one or (n,), select the permutation.

    No table is stored, so memory does not grow with the corpus. A Feistel network over two halves, each modulo about
    the square root of `count`, is a bijection for any round function. The few results at or above `count` are permuted
    again until they fall below it (Black and Rogaway 2002, generalised Feistel and cycle walking).
    """
    rows = max(_LEAST_SIDE, isqrt(count - 1) + 1)
    columns = max(_LEAST_SIDE, -(-count // rows))
    keys = np.broadcast_to(np.asarray(keys, dtype=np.int64), places.shape)
    numbers = _network(places, rows, columns, keys)
    outside = np.flatnonzero(numbers >= count)
    while len(outside):
        numbers[outside] = _network(numbers[outside], rows, columns, keys[outside])
        outside = outside[numbers[outside] >= count]
    return numbers


def _network(numbers: Integers, rows: int, columns: int, keys: Integers) -> Integers:
    """Apply six Feistel rounds, which shift column and row in turn by a hash of the other."""
    row, column = np.divmod(numbers, columns)
    for number in (0, 2, 4):
        column = _shifted(column, fold(keys ^ number, row), columns)
        row = _shifted(row, fold(keys ^ (number + 1), column), rows)
    return row * columns + column


def _shifted(numbers: Integers, hashes: Integers, size: int) -> Integers:
    """Shift numbers below `size` by hashes of 32 bits, modulo `size`."""
    moved = numbers + ((hashes * size) >> 32)
    return moved - size * (moved >= size)


PackingWord = Literal["padded", "packed", "packed_across_documents"]

WINDOW_DOCUMENTS = 4096
"""Number of documents that "packed" packs at a time, enough to fill 98 % of the slots."""

_DOCUMENT_ORDER, _ROW_ORDER, _MIXTURE = 1, 2, 3
"""Random streams: document order in an epoch, order of packed rows, and subset of a step."""


def shuffle(count: int, *words: int) -> Integers:
    """Return a permutation (count,) seeded by `words`, from Philox's raw bits, which numpy guarantees to be stable."""
    bits = np.random.Philox(np.random.SeedSequence(words)).random_raw(count)
    return np.argsort(bits, kind="stable")


class Stream:
    """An endless stream of packed rows. Documents are reshuffled in each epoch; `words` seed the order.

    place: the position of the stream, in JSON types.
    takes_whole_documents: whether rows are cut from uncut documents; otherwise documents are first fitted to the
        context.
    """

    takes_whole_documents = False

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...], **place: int) -> None:
        self.documents = documents
        self.context = context
        self.words = words
        self.place = place

    def take(self, rows: int) -> PackedRows:
        """Return the packed rows of a step of `rows` × context token slots."""
        raise NotImplementedError

    def draw(self, start: int, count: int) -> tuple[Integers, Integers]:
        """Return (indices of documents, mask keys), (count,) each, of `count` positions of the endless order, from
        `start` on."""
        epochs, places = np.divmod(np.arange(start, start + count), len(self.documents))
        chosen = permute(places, len(self.documents), counter_hash(*self.words, _DOCUMENT_ORDER, epochs))
        return chosen, counter_hash(*self.words, epochs, self.documents.numbers[chosen])

    def pack(self, start: int, count: int, word: int) -> PackedRows:
        """Best-fit pack `count` documents from `start` on, with borders, and shuffle the rows by `word`.

        Rows are shuffled because packing puts long documents first, but each step, micro-batch and rank should have all
        lengths.
        """
        packed = pack_documents(self.documents, *self.draw(start, count), self.context)
        return reorder_rows(packed, shuffle(packed.count, *self.words, _ROW_ORDER, word))


class PaddedStream(Stream):
    """Each step has as many documents (or passages) as requested rows, however short, as the paper counts.

    They are best-fit packed, so a step has fewer rows than requested.
    """

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...]) -> None:
        super().__init__(documents, context, words, position=0)

    def take(self, rows: int) -> PackedRows:
        position = self.place["position"]
        self.place["position"] += rows
        return self.pack(position, rows, position)


class PackedStream(Stream):
    """Each step has full rows: documents cut or split to the context and best-fit packed, one window at a time."""

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...]) -> None:
        super().__init__(documents, context, words, window=0, row=0)
        self._packed: tuple[int, PackedRows] | None = None

    def take(self, rows: int) -> PackedRows:
        parts: list[PackedRows] = []
        missing = rows
        while missing:
            window, row = self.place["window"], self.place["row"]
            if self._packed is None or self._packed[0] != window:
                self._packed = window, self.pack(window * WINDOW_DOCUMENTS, WINDOW_DOCUMENTS, window)
            packed = self._packed[1]
            part = packed[row : row + missing]
            parts.append(part)
            missing -= part.count
            row += part.count
            self.place = {"window": window, "row": row} if row < packed.count else {"window": window + 1, "row": 0}
        return join_rows(parts)


class AcrossStream(Stream):
    """Each step has full rows, cut from the concatenation of uncut documents; attention crosses document borders."""

    takes_whole_documents = True

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...]) -> None:
        super().__init__(documents, context, words, position=0, offset=0)
        self._mean_tokens = float(documents.lengths.mean()) + FRAME_TOKENS

    def take(self, rows: int) -> PackedRows:
        wanted, position, offset = rows * self.context, self.place["position"], self.place["offset"]
        indices, keys, ends = self._documents_for(position, offset + wanted)
        lengths = self.documents.framed(indices)
        starts = ends - lengths - offset
        borders = starts[(starts > 0) & (starts < wanted)]
        cuts = np.union1d(borders, np.arange(0, wanted, self.context))
        owner = np.searchsorted(starts, cuts, side="right") - 1
        spans = Spans(
            rows=cuts // self.context,
            columns=cuts % self.context,
            tokens=np.diff(cuts, append=wanted),
            documents=self.documents.numbers[indices[owner]],
            first=cuts - starts[owner],
            framed_lengths=lengths[owner],
            keys=keys[owner],
            begins=np.zeros_like(cuts),
        )
        finished = int(np.searchsorted(ends, offset + wanted, side="right"))
        done = int(ends[finished - 1]) if finished else 0
        self.place = {"position": position + finished, "offset": offset + wanted - done}
        return PackedRows(self.context, rows, spans, isolated=False)

    def _documents_for(self, position: int, tokens: int) -> tuple[Integers, Integers, Integers]:
        """Return (indices, keys, cumulative tokens) of documents from `position` on, with at least `tokens` in
        total."""
        count = int(tokens / self._mean_tokens) + 16
        while True:
            indices, keys = self.draw(position, count)
            ends: Integers = np.cumsum(self.documents.framed(indices))
            if ends[-1] >= tokens:
                return indices, keys, ends
            count *= 2


STREAMS: dict[PackingWord, type[Stream]] = {
    "padded": PaddedStream,
    "packed": PackedStream,
    "packed_across_documents": AcrossStream,
}


class StepIterator:
    """Iterator over the rows of each optimizer step of a stage.

    With n = tokens_per_step / context, a step has n documents ("padded", as the paper counts), n full rows ("packed")
    or n rows cut from uncut documents ("packed_across_documents"). Each step draws one subset of the mixture (§3.2).
    Everything is a function of (seed, stage number, step), so variants with equal seeds see the same documents.

    Args:
        documents: the training side of a corpus, uncut.
        stage_number: index of the stage in its recipe; each stage has its own order and masks.
        long_documents: whether documents longer than the context are cut or split; ignored across documents.

    Raises:
        ValueError: a subset of the mixture has no document.
    """

    def __init__(
        self,
        documents: Documents,
        stage: Stage,
        packing: PackingWord,
        *,
        seed: int,
        stage_number: int = 0,
        long_documents: LongDocuments = "cut",
    ) -> None:
        self.stage = stage
        self.words = (seed, stage_number)
        self.step = 0
        stream = STREAMS[packing]
        self.streams = []
        for number, subset in enumerate(stage.mixture):
            view = documents.at_least(subset.minimum_tokens)
            if not stream.takes_whole_documents:
                view = view.fitted(stage.context, long_documents)
            self.streams.append(stream(view, stage.context, (*self.words, number)))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> PackedRows:
        if self.step >= self.stage.steps:
            raise StopIteration
        stream = self.streams[self._drawn_subset()]
        rows = stream.take(self.stage.tokens_per_step // self.stage.context)
        self.step += 1
        return rows

    def _drawn_subset(self) -> int:
        draw = counter_hash(*self.words, _MIXTURE, self.step)
        bound = 0.0
        for number, subset in enumerate(self.stage.mixture[:-1]):
            bound += subset.share
            if draw < threshold(bound):
                return number
        return len(self.stage.mixture) - 1

    def state(self) -> dict[str, Any]:
        """Return the position of the iterator, in JSON types."""
        return {"step": self.step, "streams": [dict(stream.place) for stream in self.streams]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the step at which `state` was taken.

        Raises:
            ValueError: `state` belongs to another packing or mixture.
        """
        if [stream.keys() for stream in state["streams"]] != [stream.place.keys() for stream in self.streams]:
            raise ValueError(f"the saved state {dict(state)} belongs to another packing or mixture: start the run anew")
        self.step = state["step"]
        for stream, saved in zip(self.streams, state["streams"], strict=True):
            stream.place = dict(saved)
