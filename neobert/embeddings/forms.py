"""Encoders as functions from a batch of framed texts to vectors, and how each wants its batch to lie."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from neobert.embeddings.flat import FlatBatch, flat_batch, mean_vectors
from neobert.glue.batching import ROW_MULTIPLE
from neobert.model.encoder import Encoder
from neobert.model.heads import mean_over_tokens
from neobert.sentence_modules import SentencePooling

Array = np.ndarray[Any, np.dtype[Any]]
Text = tuple[Array, Array]
"""Token ids and token types of a framed text."""


class FlatVectors(nn.Module):
    """This package's own encoder under the mean of a text's tokens."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: FlatBatch) -> Tensor:
        """(texts, width) float32."""
        return mean_vectors(self.model, batch)


@dataclass(frozen=True, eq=False)
class PaddedTexts:
    """One text a row, padded on the right: `token_ids`, `mask` (1 at tokens) and `token_types` (texts, tokens)."""

    token_ids: Tensor
    mask: Tensor
    token_types: Tensor


class PaddedVectors(nn.Module):
    """An encoder from elsewhere under the mean of a text's tokens, or another pooling of sentence-transformers; what
    it has beyond hidden states is not trained."""

    def __init__(self, model: nn.Module, pooling: SentencePooling = "mean") -> None:
        super().__init__()
        self.model = model
        self.pool = SENTENCE_POOLINGS[pooling]
        for name, parameter in model.named_parameters():
            if "pooler." in name:
                parameter.requires_grad_(False)

    def forward(self, batch: PaddedTexts) -> Tensor:
        """(texts, width) float32."""
        hidden = self.model(batch.token_ids, batch.mask, batch.token_types)
        return self.pool(hidden.float(), batch.mask - 1)


def _max_over_tokens(hidden: Tensor, positions: Tensor) -> Tensor:
    no_token = (positions < 0).unsqueeze(-1)
    return hidden.masked_fill(no_token, -torch.inf).amax(dim=1).masked_fill(no_token.all(dim=1), 0)


def _sum_by_square_root(hidden: Tensor, positions: Tensor) -> Tensor:
    tokens = (positions >= 0).sum(dim=1, keepdim=True)
    return mean_over_tokens(hidden, positions) * tokens.sqrt()


SENTENCE_POOLINGS: Mapping[SentencePooling, Callable[[Tensor, Tensor], Tensor]] = {
    "mean": mean_over_tokens,
    "cls": lambda hidden, positions: hidden[:, 0],
    "max": _max_over_tokens,
    "mean_sqrt_len_tokens": _sum_by_square_root,
}
"""From hidden states (rows, tokens, width) and positions (rows, tokens), −1 at padding, to vectors (rows, width)."""


class Form(Protocol):
    """How texts lie in a batch."""

    def lay_out(self, texts: Sequence[Text]) -> Any:
        """A batch of these texts, the longest first."""

    def slots(self, lengths: Array) -> int:
        """Slots of a batch of texts with these `lengths`, padding included."""


@dataclass(frozen=True)
class FlatForm:
    """All texts in one row, without padding."""

    device: torch.device
    dtype: torch.dtype

    def lay_out(self, texts: Sequence[Text]) -> FlatBatch:
        lengths = np.array([len(ids) for ids, _ in texts], np.int64)
        token_ids = np.concatenate([ids for ids, _ in texts]).astype(np.int64)
        return flat_batch(token_ids, lengths, self.device, self.dtype)

    def slots(self, lengths: Array) -> int:
        return int(lengths.sum())


@dataclass(frozen=True)
class PaddedForm:
    """One text a row, as long as the longest; never longer than `most_tokens`."""

    device: torch.device
    pad_id: int
    most_tokens: int

    def lay_out(self, texts: Sequence[Text]) -> PaddedTexts:
        tokens = self._row_tokens(max(len(ids) for ids, _ in texts))
        token_ids = np.full((len(texts), tokens), self.pad_id, np.int64)
        mask, types = np.zeros_like(token_ids), np.zeros_like(token_ids)
        for row, (ids, kinds) in enumerate(texts):
            token_ids[row, : len(ids)], mask[row, : len(ids)], types[row, : len(ids)] = ids, 1, kinds
        parts = (torch.from_numpy(part).to(self.device, non_blocking=True) for part in (token_ids, mask, types))
        return PaddedTexts(*parts)

    def slots(self, lengths: Array) -> int:
        return len(lengths) * self._row_tokens(int(lengths.max()))

    def _row_tokens(self, longest: int) -> int:
        return min(self.most_tokens, max(1, -(-longest // ROW_MULTIPLE)) * ROW_MULTIPLE)
