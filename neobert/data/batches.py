"""Micro-batches: packed rows become tensors of masked token ids, document borders, positions and targets.

Sizes are as small as they can be, or rounded to a few padding buckets, so that a compiled model meets them again.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from neobert.data.masking import counter_hash, mask_tokens
from neobert.data.rows import PackedRows, pack_documents
from neobert.data.shards import Documents, Integers, TokenizedCorpus
from neobert.model.attention import AttentionPlan, GatherIndex, Tensors
from neobert.model.heads import IGNORED_TARGET
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


@dataclass(frozen=True)
class ExactSizes:
    """The sizes to which the parts of a micro-batch are padded: what is needed, rounded up to a multiple of 8.

    There are at least `least_rows` rows.
    """

    least_rows: int = 0

    def rows(self, needed: int) -> int:
        """Rows of tokens."""
        return max(self.least_rows, needed)

    def row_queries(self, needed: int) -> int:
        """Queries of a row in the last block."""
        return multiple(max(1, needed))

    def gathered(self, needed: int, rows: int) -> int:
        """Predicted tokens."""
        return multiple(max(1, needed))

    def documents(self, needed: int, rows: int) -> int:
        """Documents; the padding at the end of a row counts as one."""
        return needed


@dataclass(frozen=True)
class PaddingBuckets:
    """What a batch of so many rows usually needs, or as many quarters more as it takes: few different sizes.

    Rows come in steps of a quarter of `most_rows`, and never more come. `rate` of the tokens are predicted, and a
    document has `document_tokens` in the mean.
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


PaddingSizes = ExactSizes | PaddingBuckets

EXACT = ExactSizes()


def gather_by_row(places: Integers, rows: int, context: int, sizes: PaddingSizes) -> GatherIndex:
    """The gather index of the masked positions at ascending `places` of the flattened rows, for kernels by row.

    Padding queries point at the first token of their row; the gather index is padded with the first query.
    """
    firsts = np.searchsorted(places, np.arange(rows + 1) * context)
    counts = np.diff(firsts)
    row = np.repeat(np.arange(rows), counts)
    most = sizes.row_queries(int(counts.max(initial=0)))
    queries = np.repeat(np.arange(rows)[:, None] * context, most, axis=1)
    within = np.arange(len(places)) - firsts[row]
    queries[row, within] = places
    used = _filled(sizes.gathered(len(places), rows), 0, slice(len(places)), row * most + within)
    return GatherIndex(torch.from_numpy(queries), torch.from_numpy(used))


def gather_in_a_run(places: Integers, boundaries: Integers, rows: int, sizes: PaddingSizes) -> GatherIndex:
    """The gather index of the masked positions at ascending `places`, for variable-length kernels over `boundaries`.

    Padding queries point at the last token, so that they belong to a document like all others.
    """
    last = int(boundaries[-1]) - 1
    queries = _filled(sizes.gathered(len(places), rows), last, slice(len(places)), places)
    of_documents = np.searchsorted(queries, boundaries).astype(np.int32)
    return GatherIndex(torch.from_numpy(queries[None]), boundaries=torch.from_numpy(of_documents))


def document_boundaries(documents: Integers, sizes: PaddingSizes) -> Integers:
    """Cumulated lengths from 0 of the documents and paddings of the flattened `documents` (rows, context), with empty
    documents at the end up to the number that `sizes` wants."""
    starts = np.ones_like(documents, dtype=bool)
    starts[:, 1:] = documents[:, 1:] != documents[:, :-1]
    begins = np.flatnonzero(starts)
    count = sizes.documents(len(begins), len(documents))
    return _filled(count + 1, documents.size, slice(len(begins)), begins)


def _filled(size: int, padding: int, places: Integers | slice, values: Integers) -> Integers:
    """(size,) `values` at `places`, `padding` elsewhere."""
    filled = np.full(size, padding, dtype=np.int64)
    filled[places] = values
    return filled


HELDOUT_MASKING = Masking(rate=0.15, mask_share=1.0, random_share=0.0, final_rate=None)
HELDOUT_SEED = 20_250_226
"""One masking for every variant, so that their losses can be compared."""


@dataclass(frozen=True, eq=False)
class Batch(Tensors):
    """One micro-batch of rows, tensors int64.

    token_ids: (rows, context) what the model reads.
    plan: which tokens attend to each other, for every kernel; documents are numbered within their row.
    gather: the masked positions, padded at the end.
    targets: (gathered,) their ids, -100 at padding.
    real_tokens, predicted_tokens: how many are no padding, and how many targets there are.
    """

    token_ids: Tensor
    plan: AttentionPlan
    gather: GatherIndex
    targets: Tensor
    real_tokens: int
    predicted_tokens: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of its tensors: for those with equal ones a compiled model has one graph."""
        boundaries = 0 if self.plan.boundaries is None else len(self.plan.boundaries)
        return (*self.token_ids.shape, *self.gather.queries.shape, len(self.targets), boundaries)


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
    rows: PackedRows,
    corpus: TokenizedCorpus,
    masking: Masking,
    *,
    sizes: PaddingSizes = EXACT,
    flat: bool = False,
) -> Batch:
    """Read the rows' tokens and mask them.

    `sizes` says to how many rows, positions and documents it is padded. `flat` is for variable-length kernels,
    which take the rows as one run of tokens.
    """
    token_ids, spans, framed, places = _read(rows, corpus)
    count, context = sizes.rows(rows.count), rows.context
    offsets = framed - 1 + rows.spans.begins[spans]
    masked, predicted = mask_tokens(token_ids, rows.spans.keys[spans], offsets, masking, corpus.ids)
    if rows.isolated:
        first_of_row = np.searchsorted(rows.spans.rows, rows.spans.rows)
        numbers, positions = (np.arange(len(first_of_row)) - first_of_row)[spans], framed
    else:
        numbers, positions = np.zeros_like(places), places % context

    def grid(values: Integers, padding: int) -> Integers:
        return _filled(count * context, padding, places, values).reshape(count, context)

    documents = grid(numbers, -1)
    chosen = np.flatnonzero(predicted)
    if flat:
        cumulated = document_boundaries(documents, sizes)
        boundaries = torch.from_numpy(cumulated.astype(np.int32))
        gather = gather_in_a_run(places[chosen], cumulated, count, sizes)
    else:
        boundaries = None
        gather = gather_by_row(places[chosen], count, context, sizes)
    targets = _filled(sizes.gathered(len(chosen), count), IGNORED_TARGET, slice(len(chosen)), token_ids[chosen])
    return Batch(
        token_ids=torch.from_numpy(grid(masked, corpus.ids.pad)),
        plan=AttentionPlan(
            positions=torch.from_numpy(grid(positions, -1)),
            boundaries=boundaries,
            longest=context,
            documents=torch.from_numpy(documents),
        ),
        gather=gather,
        targets=torch.from_numpy(targets),
        real_tokens=len(token_ids),
        predicted_tokens=len(chosen),
    )


def _read(rows: PackedRows, corpus: TokenizedCorpus) -> tuple[Integers, Integers, Integers, Integers]:
    """The real tokens of the rows in reading order, all (tokens,): ids, numbers of their spans, places in the framed
    document, and places in the flattened rows."""
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
    first_addresses = corpus.starts[spans.documents] + spans.begins + spans.first - 1 + opens
    corpus.copy(first_addresses, spans.tokens - opens - closes, token_ids, begins + opens)
    return token_ids, owner, framed, places


def heldout_batches(documents: Documents, context: int, rows_per_batch: int) -> Iterator[Batch]:
    """Documents fitted to the context, packed with borders, under one fixed masking: 15 %, all [MASK].

    They are masked by the hash of their text, so that masks are the same for every recipe.
    """
    hashes = documents.corpus.text_hashes[documents.numbers]
    keys = counter_hash(HELDOUT_SEED, (hashes & np.uint64(0xFFFFFFFF)).astype(np.int64))
    rows = pack_documents(documents, np.arange(len(documents)), keys, context)
    for part in micro_batches(rows, rows_per_batch):
        yield collate(part, documents.corpus, HELDOUT_MASKING, sizes=ExactSizes(rows_per_batch))
