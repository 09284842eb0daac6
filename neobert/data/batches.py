"""Micro-batches: packed rows become tensors of masked token ids, document borders, positions and targets.

Sizes are as small as they can be, or rounded to a few padding buckets, so that a compiled model meets them again.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from neobert.data.masking import counter_hash, mask_tokens
from neobert.data.rows import Integers, PackedRows, StepIterator, pack_documents
from neobert.data.shards import Documents, TokenizedCorpus
from neobert.model.attention import AttentionPlan, GatherIndex
from neobert.recipe import Masking

MULTIPLE = 8
"""Kernels like sizes that are multiples of this."""

ROW_STEPS = 4
"""So many different numbers of rows a micro-batch may have in buckets."""

FULLEST_ROW_DEVIATIONS = 4
"""How many standard deviations more predicted tokens than the mean one the fullest row of a batch may have."""


def multiple(number: float, of: int = MULTIPLE) -> int:
    """`number` rounded up."""
    return math.ceil(number / of) * of


class PaddingSizes(Protocol):
    """The sizes to which the parts of a micro-batch are padded, given how many entries they need."""

    def rows(self, needed: int) -> int:
        """Rows of tokens."""

    def row_queries(self, needed: int, context: int) -> int:
        """Queries of a row in the last block."""

    def gathered(self, needed: int, rows: int) -> int:
        """Predicted tokens."""

    def documents(self, needed: int, rows: int) -> int:
        """Documents; the padding at the end of a row counts as one."""


@dataclass(frozen=True)
class ExactSizes:
    """What is needed, rounded up to a multiple of 8; at least `least_rows` rows."""

    least_rows: int = 0

    def rows(self, needed: int) -> int:
        return max(self.least_rows, needed)

    def row_queries(self, needed: int, context: int) -> int:
        return multiple(max(1, needed))

    def gathered(self, needed: int, rows: int) -> int:
        return multiple(max(1, needed))

    def documents(self, needed: int, rows: int) -> int:
        return needed


@dataclass(frozen=True)
class PaddingBuckets:
    """What a batch of so many rows usually needs, or as many quarters more as it takes: few different sizes.

    Rows come in steps of a quarter of `most_rows`. `rate` of the tokens are predicted, and a document has
    `document_tokens` in the mean.
    """

    most_rows: int
    context: int
    rate: float
    document_tokens: float

    def rows(self, needed: int) -> int:
        step = max(1, self.most_rows // ROW_STEPS)
        return multiple(max(1, needed), step)

    def row_queries(self, needed: int, context: int) -> int:
        mean = self.rate * self.context
        usual = multiple(mean + FULLEST_ROW_DEVIATIONS * math.sqrt(mean * (1 - self.rate)))
        return min(_grown(usual, needed), multiple(context))

    def gathered(self, needed: int, rows: int) -> int:
        """Specials are never predicted."""
        mean = self.rate * rows * self.context * (1 - 2 / self.document_tokens)
        return _grown(multiple(mean + math.sqrt(mean)), needed)

    def documents(self, needed: int, rows: int) -> int:
        """Each row may end with padding, and there may be a quarter more documents than in the mean."""
        mean = rows * self.context / self.document_tokens
        return _grown(multiple(1.25 * mean + rows), needed)


def _grown(usual: int, needed: int) -> int:
    """`usual`, or as many quarters of it more as are needed."""
    quarters = max(0, math.ceil(4 * (needed - usual) / usual))
    return multiple(usual * (1 + quarters / 4))


IGNORED = -100
"""The target of padding: torch's cross-entropy leaves it out."""


def pad_targets(token_ids: Integers, gathered: int) -> Tensor:
    """(gathered,) the predicted ids, then padding."""
    targets = np.full(gathered, IGNORED, dtype=np.int64)
    targets[: len(token_ids)] = token_ids
    return torch.from_numpy(targets)


def gather_by_row(places: Integers, rows: int, context: int, sizes: PaddingSizes) -> GatherIndex:
    """The gather index of the masked positions at ascending `places` of the flattened rows, for kernels by row.

    Padding queries point at the first token of their row; the gather index is padded with the first query.
    """
    firsts = np.searchsorted(places, np.arange(rows + 1) * context)
    counts = np.diff(firsts)
    row = np.repeat(np.arange(rows), counts)
    most = sizes.row_queries(int(counts.max(initial=0)), context)
    queries = np.repeat(np.arange(rows)[:, None] * context, most, axis=1)
    within = np.arange(len(places)) - firsts[row]
    queries[row, within] = places
    used = np.zeros(sizes.gathered(len(places), rows), dtype=np.int64)
    used[: len(places)] = row * most + within
    return GatherIndex(torch.from_numpy(queries), torch.from_numpy(used))


def gather_in_a_run(places: Integers, boundaries: Integers, rows: int, sizes: PaddingSizes) -> GatherIndex:
    """The gather index of the masked positions at ascending `places`, for variable-length kernels over `boundaries`.

    Padding queries point at the last token, so that they belong to a document like all others.
    """
    queries = np.full(sizes.gathered(len(places), rows), int(boundaries[-1]) - 1, dtype=np.int64)
    queries[: len(places)] = places
    of_documents = np.searchsorted(queries, boundaries).astype(np.int32)
    return GatherIndex(torch.from_numpy(queries[None]), boundaries=torch.from_numpy(of_documents))


def document_boundaries(documents: Integers, sizes: PaddingSizes) -> Integers:
    """Cumulated lengths from 0 of the documents and paddings of the flattened `documents` (rows, context), with empty
    documents at the end up to the number that `shapes` wants."""
    starts = np.ones_like(documents, dtype=bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    begins = np.flatnonzero(starts)
    count = sizes.documents(len(begins), len(documents))
    return np.pad(begins, (0, count + 1 - len(begins)), constant_values=documents.size)


__all__ = ["Batch", "PackedRows", "StepIterator", "collate", "heldout_batches", "micro_batches"]

EXACT = ExactSizes()

HELDOUT_MASKING = Masking(rate=0.15, mask_share=1.0, random_share=0.0)
HELDOUT_SEED = 20_250_226
"""One masking for every variant, so that their losses can be compared."""


@dataclass(frozen=True, eq=False)
class Batch:
    """One micro-batch; tensors int64.

    `token_ids` (rows, context): what the model reads; `documents` (rows, context): number of the attention document
    within its row, -1 at padding; `positions` (rows, context): place inside it from 0, -1 at padding;
    `gather`: the masked positions, padded at the end; `targets` (gathered,): their ids, -100 at padding;
    `boundaries`: for variable-length kernels, int32 cumulated lengths of the documents and of the padding of each row.
    `real_tokens` counts no padding, `predicted_tokens` the targets.
    """

    token_ids: Tensor
    documents: Tensor
    positions: Tensor
    gather: GatherIndex
    targets: Tensor
    boundaries: Tensor | None
    real_tokens: int
    predicted_tokens: int

    @property
    def plan(self) -> AttentionPlan:
        """The attention mask, in the form of each kernel."""
        longest = self.token_ids.shape[1]
        return AttentionPlan(self.positions, None, self.boundaries, longest, self.documents)

    def to(self, device: torch.device | str) -> "Batch":
        """The batch on a device; from pinned memory the copy is asynchronous."""
        return self._mapped(lambda part: part.to(device, non_blocking=True))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory (CUDA only)."""
        return self._mapped(lambda part: part.pin_memory())

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        return replace(
            self,
            token_ids=change(self.token_ids),
            documents=change(self.documents),
            positions=change(self.positions),
            gather=self.gather.mapped(change),
            targets=change(self.targets),
            boundaries=None if self.boundaries is None else change(self.boundaries),
        )


@dataclass(frozen=True, eq=False)
class _Tokens:
    """The real tokens of some rows in reading order, every field (tokens,) int64.

    `spans`: number of the piece; `framed`: place in the framed document; `places`: row times context plus column.
    """

    token_ids: Integers
    spans: Integers
    framed: Integers
    places: Integers


def micro_batches(rows: PackedRows, most_rows: int, *, rank: int = 0, ranks: int = 1) -> Iterator[PackedRows]:
    """A rank's share of a step: every `ranks`-th run of at most `most_rows` rows, the same number of runs on all ranks.

    Their sizes differ by one row at most, so that all ranks need the same time and compile the same sizes. Where there
    are fewer rows than ranks some runs are empty, and `collate` fills them up.
    """
    assert 0 <= rank < ranks and most_rows > 0
    runs = ranks * max(1, -(-rows.count // (most_rows * ranks)))
    for number in range(rank, runs, ranks):
        yield rows[number * rows.count // runs : (number + 1) * rows.count // runs]


def collate(
    rows: PackedRows, corpus: TokenizedCorpus, masking: Masking, *, sizes: PaddingSizes = EXACT, flat: bool = False
) -> Batch:
    """Read the rows' tokens and mask them.

    `sizes` says to how many rows, positions and documents it is padded. `flat` is for variable-length kernels,
    which take the rows as one run of tokens.
    """
    tokens = _read(rows, corpus)
    count, context = sizes.rows(rows.count), rows.context
    keys = rows.spans.keys[tokens.spans]
    masked, predicted = mask_tokens(tokens.token_ids, keys, tokens.framed - 1, masking, corpus.ids)
    numbers, positions = _borders(rows, tokens)
    chosen = np.flatnonzero(predicted)
    places, documents = tokens.places[chosen], _grid(numbers, tokens.places, (count, context), -1)
    boundaries = document_boundaries(documents, sizes) if flat else None
    if boundaries is None:
        gather = gather_by_row(places, count, context, sizes)
    else:
        gather = gather_in_a_run(places, boundaries, count, sizes)
    return Batch(
        token_ids=torch.from_numpy(_grid(masked, tokens.places, (count, context), corpus.ids.pad)),
        documents=torch.from_numpy(documents),
        positions=torch.from_numpy(_grid(positions, tokens.places, (count, context), -1)),
        gather=gather,
        targets=pad_targets(tokens.token_ids[chosen], sizes.gathered(len(places), count)),
        boundaries=None if boundaries is None else torch.from_numpy(boundaries.astype(np.int32)),
        real_tokens=len(tokens.token_ids),
        predicted_tokens=len(places),
    )


def _read(rows: PackedRows, corpus: TokenizedCorpus) -> _Tokens:
    spans = rows.spans
    ends = np.cumsum(spans.tokens)
    begins = ends - spans.tokens
    numbers = np.arange(spans.tokens.sum())
    owner = np.repeat(np.arange(len(begins)), spans.tokens)
    framed = numbers + (spans.first - begins)[owner]
    places = numbers + (spans.rows * rows.context + spans.columns - begins)[owner]
    opens, closes = spans.first == 0, spans.first + spans.tokens == spans.framed_lengths
    token_ids = np.empty(len(numbers), dtype=np.int64)
    token_ids[begins[opens]] = corpus.ids.cls
    token_ids[ends[closes] - 1] = corpus.ids.sep
    first_addresses = corpus.starts[spans.documents] + spans.first - 1 + opens
    corpus.copy(first_addresses, spans.tokens - opens - closes, token_ids, begins + opens)
    return _Tokens(token_ids, owner, framed, places)


def _borders(rows: PackedRows, tokens: _Tokens) -> tuple[Integers, Integers]:
    """(attention document within the row, place inside it) of each token."""
    if not rows.isolated:
        return np.zeros_like(tokens.places), tokens.places % rows.context
    numbers = np.arange(len(rows.spans.rows))
    first_of_row = np.searchsorted(rows.spans.rows, rows.spans.rows)
    return (numbers - first_of_row)[tokens.spans], tokens.framed


def _grid(values: Integers, places: Integers, shape: tuple[int, int], padding: int) -> Integers:
    flat = np.full(shape[0] * shape[1], padding, dtype=np.int64)
    flat[places] = values
    return flat.reshape(shape)


def heldout_batches(heldout: Documents, context: int, rows_per_batch: int) -> Iterator[Batch]:
    """Documents, cut to the context and packed with borders, under one fixed masking: 15 %, all [MASK].

    They are masked by the hash of their text, so that masks are the same for every recipe.
    """
    documents = heldout.truncated(context)
    hashes = documents.corpus.text_hashes[documents.numbers]
    keys = counter_hash(HELDOUT_SEED, (hashes & np.uint64(0xFFFFFFFF)).astype(np.int64))
    rows = pack_documents(documents, np.arange(len(documents)), keys, context)
    for part in micro_batches(rows, rows_per_batch):
        yield collate(part, documents.corpus, HELDOUT_MASKING, sizes=ExactSizes(rows_per_batch))
