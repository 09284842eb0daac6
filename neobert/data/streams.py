"""Rows of each optimizer step of a stage, resumable at every step. No tokens are read here.

Documents are shuffled in each epoch and packed into rows (each class of `STREAMS` implements one kind of packing). A
step takes the next rows of one subset of the mixture. Everything is a function of seed, stage and step.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from math import isqrt
from typing import Any, ClassVar, Literal, Self

import numpy as np

from neobert.data.masking import Words, counter_hash, fold, threshold
from neobert.data.packing import PackedRows, Spans, join_rows, pack_documents, reorder_rows
from neobert.data.shards import FRAME_TOKENS, Documents, Integers
from neobert.recipe import LongDocuments, Stage

_LEAST_SIDE = 16
"""Minimum size of each Feistel half; smaller halves mix badly."""


def permute(numbers: Integers, count: int, keys: Words) -> Integers:
    """Permute `numbers` (n,), each below `count`; `keys` of 32 bits, one or (n,), select the permutation.

    No table is stored, so memory does not grow with the corpus. A Feistel network over two halves, each modulo about
    the square root of `count`, is a bijection for any round function. The few results at or above `count` are permuted
    again until they fall below it (Black and Rogaway 2002, generalised Feistel and cycle walking).
    """
    rows = max(_LEAST_SIDE, isqrt(count - 1) + 1)
    columns = max(_LEAST_SIDE, -(-count // rows))
    keys = np.broadcast_to(np.asarray(keys, dtype=np.int64), numbers.shape)
    numbers = _network(numbers, rows, columns, keys)
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


def random_order(count: int, generator: np.random.Philox) -> Integers:
    """Return a permutation (count,) from the generator's raw bits, which are the same in every version of numpy."""
    return np.argsort(generator.random_raw(count), kind="stable")


def shuffle(count: int, *words: int) -> Integers:
    """Return a permutation (count,) seeded by `words`."""
    return random_order(count, np.random.Philox(np.random.SeedSequence(words)))


@dataclass(frozen=True)
class Cursor:
    """Position in the endless order of documents: `document` of them are done; and of the next ones `taken`, rows of a
    packed window or tokens of a document."""

    document: int = 0
    taken: int = 0


class RowStream(ABC):
    """An endless stream of packed rows. Documents are reshuffled in each epoch; `words` seed the order.

    takes_whole_documents: whether rows are cut from uncut documents; otherwise documents are first fitted to the
        context.
    """

    takes_whole_documents: ClassVar[bool] = False

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...]) -> None:
        self.documents = documents
        self.context = context
        self.words = words
        self.cursor = Cursor()

    @abstractmethod
    def take(self, rows: int) -> PackedRows:
        """Return the packed rows of a step of `rows` × context token slots."""

    def draw(self, start: int, count: int) -> tuple[Integers, Integers]:
        """Return (indices of documents, mask keys), (count,) each, of `count` positions of the endless order, from
        `start` on."""
        epochs, numbers = np.divmod(np.arange(start, start + count), len(self.documents))
        chosen = permute(numbers, len(self.documents), counter_hash(*self.words, _DOCUMENT_ORDER, epochs))
        return chosen, counter_hash(*self.words, epochs, self.documents.numbers[chosen])

    def pack(self, start: int, count: int, word: int) -> PackedRows:
        """Best-fit pack `count` documents from `start` on, with borders, and shuffle the rows by `word`.

        Rows are shuffled because packing puts long documents first, but each step, micro-batch and rank should have all
        lengths.
        """
        packed = pack_documents(self.documents, *self.draw(start, count), self.context)
        return reorder_rows(packed, shuffle(packed.count, *self.words, _ROW_ORDER, word))


class PaddedStream(RowStream):
    """Each step has as many documents (or passages) as requested rows, however short, as the paper counts.

    They are best-fit packed, so a step has fewer rows than requested.
    """

    def take(self, rows: int) -> PackedRows:
        start = self.cursor.document
        self.cursor = Cursor(start + rows)
        return self.pack(start, rows, start)


class PackedStream(RowStream):
    """Each step has full rows: documents cut or split to the context and best-fit packed, one window at a time."""

    _window: tuple[int, PackedRows] | None = None

    def take(self, rows: int) -> PackedRows:
        parts: list[PackedRows] = []
        missing = rows
        while missing:
            start, taken = self.cursor.document, self.cursor.taken
            if self._window is None or self._window[0] != start:
                self._window = start, self.pack(start, WINDOW_DOCUMENTS, start // WINDOW_DOCUMENTS)
            packed = self._window[1]
            part = packed[taken : taken + missing]
            parts.append(part)
            missing -= part.count
            taken += part.count
            self.cursor = Cursor(start, taken) if taken < packed.count else Cursor(start + WINDOW_DOCUMENTS)
        return join_rows(parts)


class AcrossStream(RowStream):
    """Each step has full rows, cut from the concatenation of uncut documents; attention crosses document borders."""

    takes_whole_documents = True

    @cached_property
    def _mean_tokens(self) -> float:
        """Mean tokens of a document, specials included, found once: it takes a second for a billion documents."""
        return float(self.documents.lengths.mean()) + FRAME_TOKENS

    def take(self, rows: int) -> PackedRows:
        wanted, document, taken = rows * self.context, self.cursor.document, self.cursor.taken
        indices, keys, ends = self._documents_for(document, taken + wanted)
        lengths = self.documents.framed(indices)
        starts = ends - lengths - taken
        borders = starts[(starts > 0) & (starts < wanted)]
        cuts = np.union1d(borders, np.arange(0, wanted, self.context))
        doc_ids = np.searchsorted(starts, cuts, side="right") - 1
        spans = Spans(
            rows=cuts // self.context,
            columns=cuts % self.context,
            tokens=np.diff(cuts, append=wanted),
            documents=self.documents.numbers[indices[doc_ids]],
            first=cuts - starts[doc_ids],
            framed_lengths=lengths[doc_ids],
            keys=keys[doc_ids],
            begins=np.zeros_like(cuts),
        )
        finished = int(np.searchsorted(ends, taken + wanted, side="right"))
        done = int(ends[finished - 1]) if finished else 0
        self.cursor = Cursor(document + finished, taken + wanted - done)
        return PackedRows(self.context, rows, spans, isolated=False)

    def _documents_for(self, start: int, tokens: int) -> tuple[Integers, Integers, Integers]:
        """Return (indices, keys, cumulative tokens) of documents from `start` on, with at least `tokens` in total."""
        count = int(tokens / self._mean_tokens) + 16
        while True:
            indices, keys = self.draw(start, count)
            ends: Integers = np.cumsum(self.documents.framed(indices))
            if ends[-1] >= tokens:
                return indices, keys, ends
            count *= 2


STREAMS: dict[PackingWord, type[RowStream]] = {
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
        taken = self.streams[self._drawn_subset()].take(self.stage.tokens_per_step // self.stage.context)
        self.step += 1
        return taken

    def _drawn_subset(self) -> int:
        """Return the index of the subset that the step reads."""
        bounds = [threshold(bound) for bound in accumulate(subset.share for subset in self.stage.mixture[:-1])]
        return bisect_right(bounds, counter_hash(*self.words, _MIXTURE, self.step))

    def state(self) -> dict[str, Any]:
        """Return the position of the iterator, in JSON types."""
        return {"step": self.step, "streams": [asdict(stream.cursor) for stream in self.streams]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the step at which `state` was taken, by an iterator of the same stage and packing."""
        self.step = state["step"]
        for stream, saved in zip(self.streams, state["streams"], strict=True):
            stream.cursor = Cursor(**saved)
