"""Rows become tensors: token ids with masks, document borders, positions and targets. The only module with torch."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neobert.data.masking import counter_hash, mask_tokens
from neobert.data.rows import Integers, Rows, whole_documents
from neobert.data.steps import StepIterator
from neobert.data.tokenized import TokenizedCorpus
from neobert.data.views import Documents
from neobert.recipe import Masking

__all__ = ["Batch", "Rows", "StepIterator", "collate", "heldout_batches", "micro_batches"]

IGNORED = -100
"""Target of a slot without a predicted token, as torch's cross-entropy has it."""

SLOT_MULTIPLE = 8

HELDOUT_MASKING = Masking(rate=0.15, mask_share=1.0, random_share=0.0)
HELDOUT_SEED = 20_250_226
"""One masking for every variant, so that their losses can be compared."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One micro-batch; all tensors int64.

    `token_ids` (rows, context): what the model reads; `documents` (rows, context): number of the attention document
    within its row, -1 at filler; `positions` (rows, context): place inside it from 0, -1 at filler;
    `slots` (rows, slots): columns of the predicted tokens, 0 where unused; `targets` (rows, slots): their ids,
    -100 where unused. `real_tokens` counts no filler, `predicted_tokens` the targets.
    """

    token_ids: Tensor
    documents: Tensor
    positions: Tensor
    slots: Tensor
    targets: Tensor
    real_tokens: int
    predicted_tokens: int

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The batch on a device; from pinned memory the copy can be asynchronous."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory (CUDA only)."""
        return self._mapped(lambda tensor: tensor.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return Batch(
            token_ids=change(self.token_ids),
            documents=change(self.documents),
            positions=change(self.positions),
            slots=change(self.slots),
            targets=change(self.targets),
            real_tokens=self.real_tokens,
            predicted_tokens=self.predicted_tokens,
        )


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The real tokens of some rows in reading order, every field (tokens,) int64.

    `pieces`: number of the piece; `framed`: place in the framed document; `places`: row times context plus column.
    """

    token_ids: Integers
    pieces: Integers
    framed: Integers
    places: Integers


def micro_batches(rows: Rows, rows_per_micro_batch: int, *, rank: int = 0, ranks: int = 1) -> Iterator[Rows]:
    """A rank's share of a step: every `ranks`-th run of rows, the same number of runs on all ranks.

    The last runs may hold fewer rows or none; `collate` fills them up.
    """
    assert 0 <= rank < ranks and rows_per_micro_batch > 0
    rounds = max(1, -(-rows.count // (rows_per_micro_batch * ranks)))
    for number in range(rank, rounds * ranks, ranks):
        yield rows[number * rows_per_micro_batch : (number + 1) * rows_per_micro_batch]


def collate(
    rows: Rows,
    corpus: TokenizedCorpus,
    masking: Masking,
    *,
    rows_at_least: int = 0,
    slots_at_least: int = SLOT_MULTIPLE,
) -> Batch:
    """Read the rows' tokens and mask them.

    `rows_at_least` adds rows of filler and `slots_at_least` unused slots, so that shapes stay fixed; where a row has
    more predicted tokens, slots grow to the next multiple of 8 that holds them all.
    """
    tokens = _read(rows, corpus)
    count, context = max(rows.count, rows_at_least), rows.context
    keys = rows.pieces.keys[tokens.pieces]
    masked, predicted = mask_tokens(tokens.token_ids, keys, tokens.framed - 1, masking, corpus.ids)
    documents, positions = _borders(rows, tokens)
    chosen = np.flatnonzero(predicted)
    slots, targets = _slots(tokens.places[chosen], tokens.token_ids[chosen], count, context, slots_at_least)
    return Batch(
        token_ids=_grid(masked, tokens.places, (count, context), corpus.ids.pad),
        documents=_grid(documents, tokens.places, (count, context), -1),
        positions=_grid(positions, tokens.places, (count, context), -1),
        slots=torch.from_numpy(slots),
        targets=torch.from_numpy(targets),
        real_tokens=len(tokens.token_ids),
        predicted_tokens=len(chosen),
    )


def _read(rows: Rows, corpus: TokenizedCorpus) -> _Tokens:
    pieces = rows.pieces
    ends = np.cumsum(pieces.tokens)
    begins = ends - pieces.tokens
    numbers = np.arange(pieces.tokens.sum())
    owner = np.repeat(np.arange(len(begins)), pieces.tokens)
    framed = numbers + (pieces.first - begins)[owner]
    places = numbers + (pieces.rows * rows.context + pieces.columns - begins)[owner]
    opens, closes = pieces.first == 0, pieces.first + pieces.tokens == pieces.framed_lengths
    token_ids = np.empty(len(numbers), dtype=np.int64)
    token_ids[begins[opens]] = corpus.ids.cls
    token_ids[ends[closes] - 1] = corpus.ids.sep
    first_addresses = corpus.starts[pieces.documents] + pieces.first - 1 + opens
    corpus.copy(first_addresses, pieces.tokens - opens - closes, token_ids, begins + opens)
    return _Tokens(token_ids, owner, framed, places)


def _borders(rows: Rows, tokens: _Tokens) -> tuple[Integers, Integers]:
    """(attention document within the row, place inside it) of each token."""
    if not rows.isolated:
        return np.zeros_like(tokens.places), tokens.places % rows.context
    numbers = np.arange(len(rows.pieces.rows))
    first_of_row = np.searchsorted(rows.pieces.rows, rows.pieces.rows)
    return (numbers - first_of_row)[tokens.pieces], tokens.framed


def _slots(places: Integers, token_ids: Integers, rows: int, context: int, at_least: int) -> tuple[Integers, Integers]:
    """(rows, slots) columns and targets of the predicted tokens at ascending `places`."""
    firsts = np.searchsorted(places, np.arange(rows + 1) * context)
    counts = np.diff(firsts)
    row = np.repeat(np.arange(rows), counts)
    needed = max(int(counts.max(initial=0)), at_least)
    slots = np.zeros((rows, -(-needed // SLOT_MULTIPLE) * SLOT_MULTIPLE), dtype=np.int64)
    targets = np.full_like(slots, IGNORED)
    slot = np.arange(len(places)) - firsts[row]
    slots[row, slot] = places - row * context
    targets[row, slot] = token_ids
    return slots, targets


def _grid(values: Integers, places: Integers, shape: tuple[int, int], filler: int) -> Tensor:
    flat = np.full(shape[0] * shape[1], filler, dtype=np.int64)
    flat[places] = values
    return torch.from_numpy(flat).view(shape)


def heldout_batches(
    heldout: Documents, context: int, rows_per_batch: int, *, most_documents: int | None = None
) -> Iterator[Batch]:
    """Held-out documents, cut to the context and packed with borders, under one fixed masking: 15 %, all [MASK].

    Documents are chosen and masked by the hash of their text, so they are the same for every recipe and tokenizer.
    """
    documents = heldout.truncated(context)
    hashes = documents.corpus.text_hashes[documents.numbers]
    chosen = np.argsort(hashes, kind="stable")[:most_documents]
    keys = counter_hash(HELDOUT_SEED, (hashes[chosen] & np.uint64(0xFFFFFFFF)).astype(np.int64))
    rows = whole_documents(documents, chosen, keys, context)
    for part in micro_batches(rows, rows_per_batch):
        yield collate(part, documents.corpus, HELDOUT_MASKING, rows_at_least=rows_per_batch)
