"""Padded batches for encoders that know no others: one example a row, a 2-D mask, token types where there are any."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from neobert.glue.batching import ROW_MULTIPLE
from neobert.glue.encoding import EncodedSplit
from neobert.model.heads import Classifier, mean_over_tokens

Array = np.ndarray[Any, np.dtype[Any]]


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
