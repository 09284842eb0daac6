"""Order of the examples, and their layout in batches. The layout changes results only by rounding.

`PackedLayout` is for this package's encoder: short examples share rows. `PaddedLayout` is for external encoders, which
take one text per row and a mask; `neobert.embeddings` uses it too.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from neobert.data.packing import Placement, best_fit_decreasing
from neobert.data.tokenizers import Array, Text
from neobert.glue.encoding import EncodedSplit, permutation
from neobert.model.attention import AttentionPlan, GatherIndex, Tensors, packed_plan, padded_plan, send
from neobert.model.heads import Classifier, mean_over_tokens

Pooling = Literal["cls", "mean"]
ROW_MULTIPLE = 8
"""Row lengths are multiples of this, which kernels prefer."""

LEAST_FIXED_TOKENS = 16
"""Tokens of the shortest row of fixed size; the others are a power of two times as long."""

PACKED_ROW_LENGTHS = (1.0, 1.5)
"""Candidate lengths of shared rows, in units of the longest example; the one with the fewest slots is used."""

PACKED_SHARE = 0.8
"""Examples share rows if that reduces the slots to at most this share."""

EVALUATION_SLOTS = {"cpu": 4096, "cuda": 32_768}
"""Slots (rows × tokens) of an evaluation batch. A GPU computes 4,096 in the time of their launches."""


def training_batches(split: EncodedSplit, batch_size: int, epochs: int, seed: int) -> Iterator[Array]:
    """Yield the example indices of every step; the last batch of an epoch may be smaller. The order of an epoch is a
    pure function of seed and epoch, the same on every machine and at every batch size."""
    for epoch in range(epochs):
        order = permutation(len(split), (seed, epoch))
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size]


def evaluation_batches(split: EncodedSplit, device: torch.device) -> Iterator[Array]:
    """Yield batches of example indices of a split for a device, each once, sorted by length to reduce padding."""
    lengths = split.lengths
    order = np.argsort(-lengths, kind="stable")
    for batch in padded_batches(lengths[order], EVALUATION_SLOTS[device.type], _row_tokens):
        yield order[batch]


def padded_batches(lengths: Array, most_slots: int, row_tokens: Callable[[int], int]) -> Iterator[slice]:
    """Split texts of `lengths` (texts), the longest first, into batches of at most `most_slots` slots, but at least one
    text. `row_tokens` gives the row length for the longest text."""
    start = 0
    while start < len(lengths):
        stop = start + max(1, most_slots // row_tokens(int(lengths[start])))
        yield slice(start, stop)
        start = stop


def _row_tokens(tokens: float) -> int:
    return math.ceil(tokens / ROW_MULTIPLE) * ROW_MULTIPLE


class ExampleLayout(Protocol):
    """Batch layout for a kind of encoder. Batches have `labels` and whatever else `logits` reads.

    has_fixed_sizes: whether batches can have fixed sizes, which compilation requires.
    """

    has_fixed_sizes: bool

    def collate(self, split: EncodedSplit, examples: Array, device: torch.device, fixed_rows: int | None = None) -> Any:
        """Build one batch of the examples on `device`; `fixed_rows` gives the number of rows, of a fixed size."""

    def logits(self, classifier: Any, batch: Any, pooling: Pooling) -> Tensor:
        """Return the logits of `classifier`, (examples, labels), as if each example were alone."""


@dataclass(frozen=True, eq=False)
class PackedBatch(Tensors):
    """Examples in rows of `token_ids` (rows, tokens), several per row if that saves slots.

    starts: (rows, most examples of a row) column of each example's first token; 0 if a row has fewer.
    members: (rows, most examples of a row, tokens) float32, 1 if a token belongs to the example.
    order: (examples) index of each example among the flattened `starts`.
    labels: (examples) int64 class ids or float32 values.
    """

    token_ids: Tensor
    plan: AttentionPlan
    starts: Tensor
    members: Tensor
    order: Tensor
    labels: Tensor


class PackedLayout:
    """Layout in which examples share rows if that saves enough slots; with fixed sizes, each has its own row."""

    has_fixed_sizes = True

    def collate(
        self, split: EncodedSplit, examples: Array, device: torch.device, fixed_rows: int | None = None
    ) -> PackedBatch:
        """Build one batch. Rows of a fixed size have `fixed_row_tokens` tokens; surplus rows stay empty."""
        lengths = split.lengths[examples]
        if fixed_rows is None:
            rows, columns, shape = arrange(lengths)
        else:
            rows, columns = _one_per_row(lengths)
            shape = fixed_rows, fixed_row_tokens(int(lengths.max()))
        numbers = _number_in_rows(rows, columns)
        width = int(numbers.max()) + 1
        placed = Placement.of(rows, columns, lengths, shape)
        token_ids = placed.grid(np.concatenate([split[example][0] for example in examples]), 0)
        documents, positions = placed.grid(numbers[placed.doc_ids], -1), placed.grid(placed.positions, -1)
        starts = np.zeros((shape[0], width), np.int64)
        starts[rows, numbers] = columns
        belongs = documents[:, None, :] == np.arange(width)[None, :, None]
        if width == 1:
            plan = padded_plan(torch.from_numpy(documents) >= 0, device)
        else:
            plan = packed_plan(torch.from_numpy(documents), torch.from_numpy(positions), device)
        batch = PackedBatch(
            token_ids=torch.from_numpy(token_ids),
            plan=plan,
            starts=torch.from_numpy(starts),
            members=torch.from_numpy(belongs.astype(np.float32)),
            order=torch.from_numpy(rows * width + numbers),
            labels=torch.from_numpy(split.labels[examples]),
        )
        return batch.to(device)

    def logits(self, classifier: Classifier, batch: PackedBatch, pooling: Pooling) -> Tensor:
        """Pool each example and apply the head; return logits (examples, labels)."""
        if pooling == "cls":
            shared = batch.starts.shape[1] > 1
            index = GatherIndex.at(batch.starts, batch.token_ids.shape[1], batch.order if shared else None)
            first: Tensor = classifier.model(batch.token_ids, batch.plan, index)
            return classifier.head(first if shared else first[: len(batch.order)])  # rows without an example come last
        hidden: Tensor = classifier.model(batch.token_ids, batch.plan)
        with torch.autocast(hidden.device.type, enabled=False):  # sums and lengths need float32
            total = torch.bmm(batch.members, hidden.float())
            mean = (total / batch.members.sum(dim=2, keepdim=True).clamp(min=1)).to(hidden.dtype)
        return classifier.head(mean.flatten(0, 1).index_select(0, batch.order))


def _number_in_rows(rows: Array, columns: Array) -> Array:
    """Return the number of each thing among those of its row, from left to right."""
    order = np.lexsort((columns, rows))
    numbers = np.empty_like(rows)
    numbers[order] = np.arange(len(rows)) - np.searchsorted(rows[order], rows[order])
    return numbers


def arrange(lengths: Array) -> tuple[Array, Array, tuple[int, int]]:
    """Return the row and first column of each example, and the shape of the rows; one example per row if sharing saves
    too little."""
    longest = int(lengths.max())
    packed = []
    for factor in PACKED_ROW_LENGTHS:
        row_tokens = _row_tokens(factor * longest)
        rows, columns, count = best_fit_decreasing(lengths, row_tokens, first_row=True)
        packed.append((rows, columns, (count, row_tokens)))
    shared = min(packed, key=lambda option: math.prod(option[2]))
    if math.prod(shared[2]) <= PACKED_SHARE * len(lengths) * _row_tokens(longest):
        return shared
    return *_one_per_row(lengths), (len(lengths), _row_tokens(longest))


def _one_per_row(lengths: Array) -> tuple[Array, Array]:
    return np.arange(len(lengths)), np.zeros(len(lengths), np.int64)


def fixed_row_tokens(longest: int) -> int:
    """Return the fixed row length for a longest example of `longest` tokens."""
    return max(LEAST_FIXED_TOKENS, 1 << (longest - 1).bit_length())


@dataclass(frozen=True, eq=False)
class PaddedTexts(Tensors):
    """One text per row, padded on the right: `token_ids`, `mask` (1 at tokens) and `token_types`, (texts, tokens)
    int64."""

    token_ids: Tensor
    mask: Tensor
    token_types: Tensor


@dataclass(frozen=True, eq=False)
class PaddedBatch(Tensors):
    """Examples as padded texts; `labels` (examples) are int64 class ids or float32 values."""

    texts: PaddedTexts
    labels: Tensor


@dataclass(frozen=True)
class PaddedLayout:
    """Layout with one text per row, padded with `pad_id` to a multiple of 8 tokens, but never beyond `most_tokens`."""

    pad_id: int
    most_tokens: int
    has_fixed_sizes = False

    def row_tokens(self, longest: int) -> int:
        """Return the row length of a batch whose longest text has `longest` tokens."""
        return min(self.most_tokens, max(ROW_MULTIPLE, _row_tokens(longest)))

    def pad(self, texts: Sequence[Text], device: torch.device) -> PaddedTexts:
        """Pad texts into one batch on `device`."""
        lengths = np.array([len(ids) for ids, _ in texts])
        rows = np.arange(len(texts))
        placed = Placement.of(rows, np.zeros_like(rows), lengths, (len(texts), self.row_tokens(int(lengths.max()))))
        ids, types = (np.concatenate(column) for column in zip(*texts, strict=True))
        parts = (placed.grid(ids, self.pad_id), placed.grid(np.ones_like(ids), 0), placed.grid(types, 0))
        return PaddedTexts(*map(torch.from_numpy, parts)).to(device)

    def collate(
        self, split: EncodedSplit, examples: Array, device: torch.device, fixed_rows: int | None = None
    ) -> PaddedBatch:
        """Build one batch of examples, padded to the longest."""
        assert fixed_rows is None
        texts = self.pad([split[example] for example in examples], device)
        return PaddedBatch(texts, send(torch.from_numpy(split.labels[examples]), device))

    def logits(self, classifier: Classifier, batch: PaddedBatch, pooling: Pooling) -> Tensor:
        """Return logits (examples, labels); `classifier.model` maps ids, mask and types to hidden states (rows,
        tokens, width)."""
        hidden: Tensor = classifier.model(batch.texts.token_ids, batch.texts.mask, batch.texts.token_types)
        if pooling == "mean":
            return classifier.head(mean_over_tokens(hidden, batch.texts.mask - 1))
        return classifier.head(hidden[:, 0])
