"""Batches of examples as rows of tokens: a draw says which examples a step sees, and no result tells how they lie."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from neobert.glue.encoding import EncodedSplit, permutation
from neobert.model.attention import AttentionPlan, Slots, packed_plan, padded_plan
from neobert.model.heads import Classifier, SequenceClassifier, mean_over_tokens

Array = np.ndarray[Any, np.dtype[Any]]
Rows = list[list[int]]

ROW_MULTIPLE = 8
"""Row lengths are multiples of this, as kernels like them."""

LEAST_FIXED_TOKENS = 16
"""Rows in fixed sizes have this many tokens or a power of two times as many."""

PACKED_ROW_LENGTHS = (1.0, 1.5)
"""Lengths of shared rows that are tried, in units of the longest example; the one with the fewest slots is taken."""

PACKED_SHARE = 0.8
"""Examples share rows where that leaves at most this share of the slots."""

EVALUATION_SLOTS = 4096
"""Slots (rows × tokens) of an evaluation batch."""


@dataclass(frozen=True, eq=False)
class ExampleBatch:
    """Examples in rows of `token_ids` (rows, tokens), each at one of the places of a row.

    starts: (rows, places) slot of each example's first token, 0 at empty places.
    members: (rows, places, tokens) float32, 1 where a token belongs to the example.
    order: (examples) where each example stands among the flattened rows × places.
    labels: (examples) int64 class ids or float32 values.
    """

    token_ids: Tensor
    plan: AttentionPlan
    starts: Tensor
    members: Tensor
    order: Tensor
    labels: Tensor


class Batch(Protocol):
    """Examples on a device, however they lie there."""

    @property
    def labels(self) -> Tensor:
        """(examples) int64 class ids or float32 values."""


BatchT = TypeVar("BatchT", bound=Batch)


@dataclass(frozen=True)
class Form(Generic[BatchT]):
    """How a kind of encoder gets its examples, and what a classifier on it gives for them, (examples, labels).

    fixed: the layout in few sizes for a compiled encoder, told how many rows there are; without it none is compiled.
    """

    lay_out: Callable[[EncodedSplit, Array, torch.device], BatchT]
    logits: Callable[[Any, BatchT, Literal["cls", "mean"]], Tensor]
    fixed: Callable[[EncodedSplit, Array, torch.device, int], BatchT] | None = None


def training_batches(split: EncodedSplit, batch_size: int, epochs: int, seed: int) -> Iterator[Array]:
    """The example numbers of every step; the last batch of an epoch may be smaller. The order of an epoch is a pure
    function of seed and epoch: the same on every machine and at every batch size."""
    for epoch in range(epochs):
        order = permutation(len(split), (seed, epoch))
        for start in range(0, len(order), batch_size):
            yield order[start : start + batch_size]


def evaluation_batches(split: EncodedSplit) -> Iterator[Array]:
    """The example numbers of a split, each once, sorted by length so that rows are full."""
    lengths = split.lengths
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        rows = max(1, EVALUATION_SLOTS // _row_tokens(lengths[order[start]]))
        yield order[start : start + rows]
        start += rows


def _row_tokens(tokens: float) -> int:
    return math.ceil(tokens / ROW_MULTIPLE) * ROW_MULTIPLE


def packed_rows(lengths: Sequence[int], row_tokens: int) -> Rows:
    """Best fit, longest first: every example joins the fullest row that has room, else it opens a new one."""
    rows: Rows = []
    room: list[int] = []
    for example in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        fitting = [row for row, free in enumerate(room) if free >= lengths[example]]
        if fitting:
            row = min(fitting, key=lambda number: room[number])
            rows[row].append(example)
            room[row] -= lengths[example]
        else:
            rows.append([example])
            room.append(row_tokens - lengths[example])
    return rows


def arrange(lengths: Sequence[int]) -> tuple[Rows, int]:
    """Which examples share a row, and the length of the rows: one example a row where sharing spares too little."""
    longest = max(lengths)
    alone: Rows = [[example] for example in range(len(lengths))]
    shared = [(packed_rows(lengths, row), row) for row in (_row_tokens(n * longest) for n in PACKED_ROW_LENGTHS)]
    rows, row_tokens = min(shared, key=lambda option: len(option[0]) * option[1])
    if len(rows) * row_tokens <= PACKED_SHARE * len(alone) * _row_tokens(longest):
        return rows, row_tokens
    return alone, _row_tokens(longest)


def lay_out(split: EncodedSplit, examples: Array, device: torch.device) -> ExampleBatch:
    """One batch of these examples on `device`."""
    rows, row_tokens = arrange(split.lengths[examples].tolist())
    return _laid_out(split, examples, rows, row_tokens, device)


def lay_out_fixed(split: EncodedSplit, examples: Array, device: torch.device, rows: int) -> ExampleBatch:
    """The same in `rows` rows, an example in each of the first ones, of as many tokens as few other batches have."""
    row_tokens = fixed_row_tokens(int(split.lengths[examples].max()))
    alone: Rows = [[example] for example in range(len(examples))]
    return _laid_out(split, examples, alone + [[]] * (rows - len(examples)), row_tokens, device)


def fixed_row_tokens(longest: int) -> int:
    """Tokens of a row in fixed sizes that holds an example of `longest` tokens."""
    return max(LEAST_FIXED_TOKENS, 1 << (longest - 1).bit_length())


def _laid_out(split: EncodedSplit, examples: Array, rows: Rows, row_tokens: int, device: torch.device) -> ExampleBatch:
    lengths = split.lengths[examples]
    places = max(map(len, rows))
    token_ids = np.zeros((len(rows), row_tokens), np.int64)
    documents, positions = np.full_like(token_ids, -1), np.full_like(token_ids, -1)
    starts, order = np.zeros((len(rows), places), np.int64), np.zeros(len(lengths), np.int64)
    for row, members in enumerate(rows):
        start = 0
        for place, example in enumerate(members):
            stop = start + lengths[example]
            token_ids[row, start:stop] = split.tokens(examples[example])
            documents[row, start:stop] = place
            positions[row, start:stop] = np.arange(lengths[example])
            starts[row, place], order[example] = start, row * places + place
            start = stop
    belongs = documents[:, None, :] == np.arange(places)[None, :, None]
    return ExampleBatch(
        token_ids=torch.from_numpy(token_ids).to(device),
        plan=_plan(torch.from_numpy(documents), torch.from_numpy(positions), places, device),
        starts=torch.from_numpy(starts).to(device),
        members=torch.from_numpy(belongs.astype(np.float32)).to(device),
        order=torch.from_numpy(order).to(device),
        labels=torch.from_numpy(split.labels[examples]).to(device),
    )


def _plan(documents: Tensor, positions: Tensor, places: int, device: torch.device) -> AttentionPlan:
    if places == 1:
        return padded_plan(documents >= 0).to(device)
    return packed_plan(documents, positions, device)


def batch_logits(classifier: SequenceClassifier, batch: ExampleBatch, pooling: Literal["cls", "mean"]) -> Tensor:
    """What `classifier` gives for each example alone, (examples, labels): pooled example by example, then its head."""
    return classifier.head(_first_tokens(classifier, batch) if pooling == "cls" else _means(classifier, batch))


def _first_tokens(classifier: SequenceClassifier, batch: ExampleBatch) -> Tensor:
    shared = batch.starts.shape[1] > 1
    slots = Slots.at(batch.starts, batch.token_ids.shape[1], batch.order if shared else None)
    hidden: Tensor = classifier.model(batch.token_ids, batch.plan, slots)
    return hidden if shared else hidden[: len(batch.order)]  # rows without an example stand last


def _means(classifier: SequenceClassifier, batch: ExampleBatch) -> Tensor:
    hidden: Tensor = classifier.model(batch.token_ids, batch.plan)
    with torch.autocast(hidden.device.type, enabled=False):  # sums and lengths are not for bf16
        total = torch.bmm(batch.members, hidden.float())
        mean = (total / batch.members.sum(dim=2, keepdim=True).clamp(min=1)).to(hidden.dtype)
    return mean.flatten(0, 1).index_select(0, batch.order)


SHARED_ROWS = Form(lay_out, batch_logits, lay_out_fixed)
"""The form of this package's own encoder."""


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """One example a row, padding on the right: `token_ids`, `mask` (1 at tokens) and `token_types` are (examples,
    tokens) int64; `labels` (examples) int64 class ids or float32 values."""

    token_ids: Tensor
    mask: Tensor
    token_types: Tensor | None
    labels: Tensor


@dataclass(frozen=True)
class PaddedRows:
    """How an encoder wants its rows: filled with `pad_id`, never longer than `most_tokens`."""

    pad_id: int
    most_tokens: int

    def lay_out(self, split: EncodedSplit, examples: Array, device: torch.device) -> PaddedBatch:
        """One batch of these examples on `device`, as long as its longest; kernels like multiples of 8."""
        longest = int((split.offsets[examples + 1] - split.offsets[examples]).max())
        row_tokens = min(self.most_tokens, -(-longest // ROW_MULTIPLE) * ROW_MULTIPLE)
        token_ids = np.full((len(examples), row_tokens), self.pad_id, np.int64)
        mask, token_types = np.zeros_like(token_ids), np.zeros_like(token_ids)
        for row, example in enumerate(examples):
            tokens, types = split.tokens(example), split.types(example)
            token_ids[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
            if types is not None:
                token_types[row, : len(tokens)] = types
        return PaddedBatch(
            token_ids=torch.from_numpy(token_ids).to(device),
            mask=torch.from_numpy(mask).to(device),
            token_types=None if split.token_types is None else torch.from_numpy(token_types).to(device),
            labels=torch.from_numpy(split.labels[examples]).to(device),
        )


def padded_logits(classifier: Classifier, batch: PaddedBatch, pooling: Literal["cls", "mean"]) -> Tensor:
    """Logits (examples, labels); `classifier.model` maps ids, mask and types to hidden states (rows, tokens, width)."""
    hidden: Tensor = classifier.model(batch.token_ids, batch.mask, batch.token_types)
    if pooling == "cls":
        return classifier.head(hidden[:, 0])
    return classifier.head(mean_over_tokens(hidden, batch.mask - 1))
