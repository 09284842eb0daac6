"""Texts one behind the other in one row, without padding: those of equal length attend together, without a mask."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.model.attention import AttentionPlan, attend, packed_plan, whole_rows_plan
from neobert.model.encoder import Encoder

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class AttentionOfEqualLengths:
    """Attention of texts that lie sorted by length in one row: `runs` are (texts, tokens of each), in their order.

    Texts of a run become rows of their own, so nothing is masked and nothing computed in vain.
    """

    runs: tuple[tuple[int, int], ...]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(1, tokens, heads, head size) each."""
        sizes = [texts * tokens for texts, tokens in self.runs]
        parts = zip(*(vectors[0].split(sizes) for vectors in (query, key, value)), strict=True)
        attended = [self._run(shape, *part) for shape, part in zip(self.runs, parts, strict=True)]
        return torch.cat(attended).unsqueeze(0)

    def _run(self, shape: tuple[int, int], *vectors: Tensor) -> Tensor:
        query, key, value = (part.unflatten(0, shape) for part in vectors)
        return attend(query, key, value, whole_rows_plan(query[..., 0, 0])).flatten(0, 1)


@dataclass(frozen=True, eq=False)
class FlatBatch:
    """Texts in one row: `token_ids` (1, tokens) under `plan`, and the `lengths` (texts) of the texts, int64."""

    token_ids: Tensor
    plan: AttentionPlan
    lengths: Tensor


def flat_batch(token_ids: Array, lengths: Array, device: torch.device, dtype: torch.dtype) -> FlatBatch:
    """Texts of `token_ids` (tokens) with `lengths` (texts), sorted by length, for an encoder of `dtype` on `device`."""
    numbers = np.repeat(np.arange(len(lengths)), lengths)
    positions = torch.from_numpy(np.arange(len(token_ids)) - (np.cumsum(lengths) - lengths)[numbers]).unsqueeze(0)
    if device.type == "cuda" and dtype != torch.float32:
        plan = packed_plan(torch.from_numpy(numbers).unsqueeze(0), positions, device)
    else:
        plan = AttentionPlan(positions, attention=AttentionOfEqualLengths(_runs(lengths))).to(device)
    row = torch.from_numpy(token_ids).unsqueeze(0).to(device, non_blocking=True)
    return FlatBatch(row, plan, torch.from_numpy(lengths).to(device, non_blocking=True))


def _runs(lengths: Array) -> tuple[tuple[int, int], ...]:
    first = np.flatnonzero(np.diff(lengths, prepend=-1))
    texts = np.diff(first, append=len(lengths))
    return tuple(zip(texts.tolist(), lengths[first].tolist(), strict=True))


def mean_vectors(encoder: Encoder, batch: FlatBatch) -> Tensor:
    """The mean hidden state of each text over all of its tokens, specials included: (texts, width) float32."""
    hidden = encoder(batch.token_ids, batch.plan).squeeze(0).float()  # sums are not for half precision
    return torch.segment_reduce(hidden, "mean", lengths=batch.lengths)


def slices(lengths: Array, most_tokens: int) -> Iterator[slice]:
    """Neighbours of `lengths` (texts) that together have at most `most_tokens`; a longer text stands alone."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = ends[start] - lengths[start]
        stop = max(start + 1, int(np.searchsorted(ends, before + most_tokens, side="right")))
        yield slice(start, stop)
        start = stop
