"""The endless streams of rows that a subset of a corpus gives, one class a way of packing. Torch-free.

A stream's whole state is two or fewer integers; restoring them continues with exactly the rows that would have come.
"""

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from neobert.data.masking import counter_hash
from neobert.data.permutation import permuted
from neobert.data.rows import Integers, Pieces, Rows, joined, reordered, whole_documents
from neobert.data.views import FRAME_TOKENS, Documents

PackingWord = Literal["padded", "packed", "packed_across_documents"]

WINDOW_DOCUMENTS = 4096
"""Documents that "packed" best-fit packs together: enough for a fill of 98 %."""

_DOCUMENT_ORDER, _ROW_ORDER = 1, 2


def shuffled(count: int, *words: int) -> Integers:
    """(count,) a permutation that belongs to the words; from Philox's raw bits, which numpy promises not to change."""
    bits = np.random.Philox(np.random.SeedSequence(words)).random_raw(count)
    return np.argsort(bits, kind="stable")


class Order:
    """The documents of a view, shuffled anew in each epoch, as one endless sequence of positions."""

    def __init__(self, documents: Documents, words: tuple[int, ...]) -> None:
        self.documents = documents
        self.words = words

    def take(self, start: int, count: int) -> tuple[Integers, Integers]:
        """(indices into the view, mask keys) of `count` positions from `start`, both (count,)."""
        epochs, places = np.divmod(np.arange(start, start + count), len(self.documents))
        chosen = permuted(places, len(self.documents), counter_hash(*self.words, _DOCUMENT_ORDER, epochs))
        return chosen, counter_hash(*self.words, epochs, self.documents.numbers[chosen])


class Stream(Protocol):
    """Rows without end."""

    def take(self, rows: int) -> Rows:
        """What a step of `rows` slots times context holds."""

    def state(self) -> dict[str, int]:
        """Where the stream stands, as JSON's own types."""

    def restore(self, state: dict[str, int]) -> None:
        """Go to where `state` was taken."""


class PaddedStream:
    """A step holds as many documents as slots rows, however short, each cut to the context (the paper's count).

    For computing they are best-fit packed with borders, so fewer rows come than were asked for. They come shuffled:
    packing puts long documents first, and every micro-batch and process is to meet all lengths, hence few sizes.
    """

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...]) -> None:
        self.context = context
        self.order = Order(documents.truncated(context), words)
        self.position = 0

    def take(self, rows: int) -> Rows:
        indices, keys = self.order.take(self.position, rows)
        packed = whole_documents(self.order.documents, indices, keys, self.context)
        places = shuffled(packed.count, *self.order.words, _ROW_ORDER, self.position)
        self.position += rows
        return reordered(packed, places)

    def state(self) -> dict[str, int]:
        return {"position": self.position}

    def restore(self, state: dict[str, int]) -> None:
        self.position = state["position"]


class PackedStream:
    """A step holds full rows: documents cut to the context and best-fit packed with borders, a window at a time."""

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...]) -> None:
        self.context = context
        self.order = Order(documents.truncated(context), words)
        self.window = 0
        self.row = 0
        self._packed: tuple[int, Rows] | None = None

    def take(self, rows: int) -> Rows:
        parts: list[Rows] = []
        missing = rows
        while missing:
            packed = self._of_window(self.window)
            part = packed[self.row : self.row + missing]
            parts.append(part)
            missing -= part.count
            self.row += part.count
            if self.row == packed.count:
                self.window, self.row = self.window + 1, 0
        return joined(parts)

    def _of_window(self, window: int) -> Rows:
        if self._packed is None or self._packed[0] != window:
            indices, keys = self.order.take(window * WINDOW_DOCUMENTS, WINDOW_DOCUMENTS)
            packed = whole_documents(self.order.documents, indices, keys, self.context)
            # Packing puts long documents first; a step must be a sample of all lengths.
            places = shuffled(packed.count, *self.order.words, _ROW_ORDER, window)
            self._packed = window, reordered(packed, places)
        return self._packed[1]

    def state(self) -> dict[str, int]:
        return {"window": self.window, "row": self.row}

    def restore(self, state: dict[str, int]) -> None:
        self.window, self.row = state["window"], state["row"]


class AcrossStream:
    """A step holds full rows cut from uncut documents one after the other; a row ignores the borders in it."""

    def __init__(self, documents: Documents, context: int, words: tuple[int, ...]) -> None:
        self.context = context
        self.order = Order(documents, words)
        self.position = 0
        self.offset = 0
        self._mean_tokens = float(documents.lengths.mean()) + FRAME_TOKENS

    def take(self, rows: int) -> Rows:
        wanted = rows * self.context
        indices, keys, ends = self._documents_for(self.offset + wanted)
        lengths = self.order.documents.framed(indices)
        starts = ends - lengths - self.offset
        borders = starts[(starts > 0) & (starts < wanted)]
        cuts = np.union1d(borders, np.arange(0, wanted, self.context))
        owner = np.searchsorted(starts, cuts, side="right") - 1
        pieces = Pieces(
            rows=cuts // self.context,
            columns=cuts % self.context,
            tokens=np.diff(cuts, append=wanted),
            documents=self.order.documents.numbers[indices[owner]],
            first=cuts - starts[owner],
            framed_lengths=lengths[owner],
            keys=keys[owner],
        )
        self._advance(ends, self.offset + wanted)
        return Rows(self.context, rows, pieces, isolated=False)

    def _documents_for(self, tokens: int) -> tuple[Integers, Integers, Integers]:
        """(indices, keys, cumulated tokens) of documents from here on that have at least `tokens` together."""
        count = int(tokens / self._mean_tokens) + 16
        while True:
            indices, keys = self.order.take(self.position, count)
            ends: NDArray[np.int64] = np.cumsum(self.order.documents.framed(indices))
            if ends[-1] >= tokens:
                return indices, keys, ends
            count *= 2

    def _advance(self, ends: Integers, used: int) -> None:
        finished = int(np.searchsorted(ends, used, side="right"))
        self.offset = used - (int(ends[finished - 1]) if finished else 0)
        self.position += finished

    def state(self) -> dict[str, int]:
        return {"position": self.position, "offset": self.offset}

    def restore(self, state: dict[str, int]) -> None:
        self.position, self.offset = state["position"], state["offset"]


STREAMS: dict[PackingWord, type[PaddedStream] | type[PackedStream] | type[AcrossStream]] = {
    "padded": PaddedStream,
    "packed": PackedStream,
    "packed_across_documents": AcrossStream,
}
