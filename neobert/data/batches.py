"""Micro-batches: packed rows as tensors of masked token ids, document borders, positions and targets.

Sizes are as small as possible, or rounded up to a few padding buckets so that a compiled model rarely recompiles.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neobert.data.masking import counter_hash, mask_tokens
from neobert.data.packing import PackedRows, Placement, pack_documents
from neobert.data.shards import Documents, Integers, TokenizedCorpus
from neobert.model.attention import AttentionPlan, GatherIndex, Tensors
from neobert.model.heads import IGNORED_TARGET
from neobert.recipe import Masking

MULTIPLE = 8
"""Sizes are rounded up to multiples of this, which kernels prefer."""

ROW_STEPS = 4
"""Number of different row counts of a micro-batch in padding buckets."""

FULLEST_ROW_DEVIATIONS = 4
"""Margin for the predicted tokens of the fullest row of a batch: standard deviations above the mean row."""


def multiple(number: float, of: int = MULTIPLE) -> int:
    """Round `number` up to a multiple of `of`."""
    return math.ceil(number / of) * of


@dataclass(frozen=True)
class ExactSizes:
    """Padded sizes of a micro-batch: the sizes needed, rounded up to a multiple of 8, and at least `least_rows`
    rows."""

    least_rows: int = 0

    def rows(self, needed: int) -> int:
        """Return the number of rows of tokens."""
        return max(self.least_rows, needed)

    def row_queries(self, needed: int) -> int:
        """Return the number of queries per row in the last block."""
        return multiple(max(1, needed))

    def gathered(self, needed: int, rows: int) -> int:
        """Return the number of predicted tokens."""
        return multiple(max(1, needed))

    def documents(self, needed: int, rows: int) -> int:
        """Return the number of documents; the padding at the end of a row counts as one."""
        return needed


@dataclass(frozen=True)
class PaddingBuckets:
    """Padded sizes with few different values: the usual size for the number of rows, plus quarters of it as needed.

    The number of rows is a multiple of a quarter of `most_rows`, and at most `most_rows`. `rate` is the share of
    predicted tokens, `document_tokens` the mean length of a document.
    """

    most_rows: int
    context: int
    rate: float
    document_tokens: float

    def rows(self, needed: int) -> int:
        return min(self.most_rows, multiple(max(1, needed), max(1, self.most_rows // ROW_STEPS)))

    def row_queries(self, needed: int) -> int:
        mean = self.rate * self.context
        usual = multiple(mean + FULLEST_ROW_DEVIATIONS * math.sqrt(mean * (1 - self.rate)))
        return min(_grown(usual, needed), multiple(self.context))

    def gathered(self, needed: int, rows: int) -> int:
        """Return the number of predicted tokens, assuming that specials are never predicted."""
        mean = self.rate * rows * self.context * (1 - 2 / self.document_tokens)
        return min(_grown(multiple(mean + math.sqrt(mean)), needed), multiple(rows * self.context))

    def documents(self, needed: int, rows: int) -> int:
        """Return the number of documents: a quarter more than the mean, plus one padding per row."""
        mean = rows * self.context / self.document_tokens
        return _grown(multiple(1.25 * mean + rows), needed)


def _grown(usual: int, needed: int) -> int:
    """Return `usual`, plus as many quarters of it as needed."""
    quarters = max(0, math.ceil(4 * (needed - usual) / usual))
    return multiple(usual * (1 + quarters / 4))


PaddingSizes = ExactSizes | PaddingBuckets

EXACT = ExactSizes()


def gather_by_row(masked_indices: Integers, rows: int, context: int, sizes: PaddingSizes) -> GatherIndex:
    """Build the gather index of masked positions, for kernels by row. `masked_indices` are ascending indices into the
    flattened rows.

    Padding queries point at the first token of their row; the gather index is padded with the first query.
    """
    firsts = np.searchsorted(masked_indices, np.arange(rows + 1) * context)
    counts = np.diff(firsts)
    row = np.repeat(np.arange(rows), counts)
    most = sizes.row_queries(int(counts.max(initial=0)))
    queries = np.repeat(np.arange(rows)[:, None] * context, most, axis=1)
    within = np.arange(len(masked_indices)) - firsts[row]
    queries[row, within] = masked_indices
    used = _filled(sizes.gathered(len(masked_indices), rows), 0, row * most + within)
    return GatherIndex(torch.from_numpy(queries), torch.from_numpy(used))


def gather_varlen(masked_indices: Integers, cu_seqlens: Tensor, rows: int, sizes: PaddingSizes) -> GatherIndex:
    """Build the gather index of masked positions, `masked_indices` as in `gather_by_row`, for variable-length kernels
    over documents with `cu_seqlens`.

    Padding queries point at the last token, so that they belong to a document like all others.
    """
    last = int(cu_seqlens[-1]) - 1
    queries = torch.from_numpy(_filled(sizes.gathered(len(masked_indices), rows), last, masked_indices))
    return GatherIndex(queries[None], cu_seqlens=torch.searchsorted(queries, cu_seqlens.long(), out_int32=True))


def document_cu_seqlens(doc_ids: Integers, sizes: PaddingSizes) -> Tensor:
    """Return the cumulative lengths, int32 from 0, of the documents and paddings of the flattened `doc_ids` (rows,
    context), with empty documents at the end up to the number given by `sizes`."""
    is_first = np.ones_like(doc_ids, dtype=bool)
    is_first[:, 1:] = doc_ids[:, 1:] != doc_ids[:, :-1]
    starts = np.flatnonzero(is_first)
    count = sizes.documents(len(starts), len(doc_ids))
    return torch.from_numpy(_filled(count + 1, doc_ids.size, starts).astype(np.int32))


def _filled(size: int, padding: int, values: Integers) -> Integers:
    return np.concatenate([values, np.full(size - len(values), padding, dtype=np.int64)])


HELDOUT_MASKING = Masking(rate=0.15, mask_share=1.0, random_share=0.0)
HELDOUT_SEED = 20_250_226
"""Masking and seed of the held-out loss, the same for every variant, so that losses can be compared."""


@dataclass(frozen=True, eq=False)
class Batch(Tensors):
    """One micro-batch of rows; tensors are int64.

    token_ids: (rows, context) input of the model.
    plan: the attention plan for every kernel; documents are numbered within their row.
    gather: the masked positions, padded at the end.
    targets: (gathered,) ids that are predicted at these positions, -100 at padding.
    real_tokens, predicted_tokens: number of tokens without padding, and of targets.
    """

    token_ids: Tensor
    plan: AttentionPlan
    gather: GatherIndex
    targets: Tensor
    real_tokens: int
    predicted_tokens: int


def micro_batches(rows: PackedRows, most_rows: int, *, rank: int = 0, ranks: int = 1) -> Iterator[PackedRows]:
    """Yield a rank's share of a step: every `ranks`-th run of at most `most_rows` rows, equally many on all ranks.

    Run sizes differ by at most one row, so that all ranks take the same time and compile the same sizes. With fewer
    rows than ranks some runs are empty; `collate` pads them.
    """
    assert 0 <= rank < ranks and most_rows > 0
    runs = ranks * max(1, -(-rows.count // (most_rows * ranks)))
    for number in range(rank, runs, ranks):
        yield rows[number * rows.count // runs : (number + 1) * rows.count // runs]


def collate(
    rows: PackedRows,
    corpus: TokenizedCorpus,
    masking: Masking,
    *,
    sizes: PaddingSizes = EXACT,
    varlen: bool = False,
) -> Batch:
    """Read the tokens of the rows and mask them.

    `sizes` gives the padded numbers of rows, positions and documents. `varlen` is for variable-length kernels, which
    take the rows as one sequence of tokens.
    """
    spans, count, context = rows.spans, sizes.rows(rows.count), rows.context
    token_ids = _read(rows, corpus)
    placed = Placement.of(spans.rows, spans.columns, spans.tokens, (count, context))
    in_document = placed.positions + spans.first[placed.doc_ids]
    offsets = in_document - 1 + spans.begins[placed.doc_ids]  # of the text, so that cut and split documents agree
    masked, is_predicted = mask_tokens(token_ids, spans.keys[placed.doc_ids], offsets, masking, corpus.ids)
    if rows.isolated:
        doc_ids = (np.arange(len(spans.rows)) - np.searchsorted(spans.rows, spans.rows))[placed.doc_ids]
        doc_ids, positions = placed.grid(doc_ids, -1), placed.grid(in_document, -1)
    else:
        doc_ids = placed.grid(np.zeros_like(placed.indices), -1)
        positions = placed.grid(placed.indices % context, -1)
    masked_indices = placed.indices[is_predicted]
    cu_seqlens = document_cu_seqlens(doc_ids, sizes) if varlen else None
    if cu_seqlens is None:
        gather = gather_by_row(masked_indices, count, context, sizes)
    else:
        gather = gather_varlen(masked_indices, cu_seqlens, count, sizes)
    targets = _filled(sizes.gathered(len(masked_indices), count), IGNORED_TARGET, token_ids[is_predicted])
    return Batch(
        token_ids=torch.from_numpy(placed.grid(masked, corpus.ids.pad)),
        plan=AttentionPlan(
            positions=torch.from_numpy(positions),
            cu_seqlens=cu_seqlens,
            max_seqlen=context,
            doc_ids=torch.from_numpy(doc_ids),
        ),
        gather=gather,
        targets=torch.from_numpy(targets),
        real_tokens=len(token_ids),
        predicted_tokens=len(masked_indices),
    )


def _read(rows: PackedRows, corpus: TokenizedCorpus) -> Integers:
    """Return the token ids of the rows' spans in order, without padding, (tokens,)."""
    spans = rows.spans
    ends = np.cumsum(spans.tokens)
    begins = ends - spans.tokens
    opens, closes = spans.first == 0, spans.first + spans.tokens == spans.framed_lengths
    token_ids = np.empty(spans.tokens.sum(), dtype=np.int64)
    token_ids[begins[opens]] = corpus.ids.cls
    token_ids[ends[closes] - 1] = corpus.ids.sep
    first_addresses = corpus.starts[spans.documents] + spans.begins + spans.first - 1 + opens
    corpus.copy(first_addresses, spans.tokens - opens - closes, token_ids, begins + opens)
    return token_ids


def heldout_rows(documents: Documents, context: int) -> PackedRows:
    """Pack documents fitted to the context, with borders. Documents are masked by the hash of their text, so that masks
    are the same for every recipe."""
    hashes = documents.corpus.text_hashes[documents.numbers]
    keys = counter_hash(HELDOUT_SEED, (hashes & np.uint64(0xFFFFFFFF)).astype(np.int64))
    return pack_documents(documents, np.arange(len(documents)), keys, context)


def heldout_batches(rows: PackedRows, corpus: TokenizedCorpus, rows_per_batch: int) -> Iterator[Batch]:
    """Yield batches of the rows under a fixed masking (15 %, all [MASK])."""
    for part in micro_batches(rows, rows_per_batch):
        yield collate(part, corpus, HELDOUT_MASKING, sizes=EXACT)
