"""Rows become tensors: token ids with masks, document borders, positions and targets. The only module with torch."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from neobert.data.masking import counter_hash, mask_tokens
from neobert.data.rows import Integers, Pieces, Rows, whole_documents
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
        """The batch on a device; pinned memory makes the copy asynchronous."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The batch in page-locked memory (CUDA only)."""
        return self._with_tensors(lambda tensor: tensor.pin_memory())
