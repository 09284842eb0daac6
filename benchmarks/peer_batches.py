"""The same masked documents in the forms in which Hugging Face models are trained: padded, bucketed, concatenated."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from benchmarks.documents import MaskedDocument, MaskedDocuments, rows_per_step
from neobert.data.batches import IGNORED

Batching = Literal["padded", "bucketed", "concatenated"]

WIDTH_MULTIPLE = 8
"""Bucketed batches are as wide as their longest document, rounded up to this."""

GOLDEN_RATIO = (1 + 5**0.5) / 2


@dataclass(frozen=True, eq=False)
class PeerBatch:
    """Arguments of a Hugging Face model, all (rows, tokens) int64; no mask where no row is padded."""

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor | None
    real_tokens: int

    @property
    def arguments(self) -> dict[str, Tensor]:
        """What the model is called with."""
        given = {"input_ids": self.input_ids, "labels": self.labels}
        return given if self.attention_mask is None else given | {"attention_mask": self.attention_mask}

    def to(self, device: torch.device) -> "PeerBatch":
        """The batch on a device."""
        mask = None if self.attention_mask is None else self.attention_mask.to(device)
        return PeerBatch(self.input_ids.to(device), self.labels.to(device), mask, self.real_tokens)


def peer_batches(documents: MaskedDocuments, batching: Batching, documents_per_step: int) -> list[PeerBatch]:
    """All documents once, in steps of about equally many tokens."""
    if batching == "padded":
        return padded(documents, documents_per_step)
    if batching == "bucketed":
        return bucketed(documents, documents_per_step)
    return concatenated(documents, round(documents_per_step * documents.padded_fill))


def padded(documents: MaskedDocuments, documents_per_step: int) -> list[PeerBatch]:
    """One document a row, every row as wide as the context."""
    shown = documents.shown
    groups = [shown[first : first + documents_per_step] for first in range(0, len(shown), documents_per_step)]
    return [_stacked(group, documents.context) for group in groups]


def bucketed(documents: MaskedDocuments, documents_per_step: int) -> list[PeerBatch]:
    """Documents of like lengths together, so that little is padded; neighbouring steps differ in width, so that any
    few of them in turn are a fair sample of all."""
    shown = sorted(documents.shown, key=lambda document: len(document.token_ids))
    groups = [shown[first : first + documents_per_step] for first in range(0, len(shown), documents_per_step)]
    widths = [-(-len(group[-1].token_ids) // WIDTH_MULTIPLE) * WIDTH_MULTIPLE for group in groups]
    turns = np.argsort(np.argsort(np.arange(len(groups)) * GOLDEN_RATIO % 1))
    return [_stacked(groups[turn], min(widths[turn], documents.context)) for turn in turns]


def _stacked(group: Sequence[MaskedDocument], width: int) -> PeerBatch:
    input_ids = torch.zeros(len(group), width, dtype=torch.int64)
    labels = torch.full_like(input_ids, IGNORED)
    mask = torch.zeros_like(input_ids)
    for row, document in enumerate(group):
        tokens = len(document.token_ids)
        input_ids[row, :tokens] = torch.from_numpy(document.token_ids)
        labels[row, :tokens] = torch.from_numpy(document.labels)
        mask[row, :tokens] = 1
    return PeerBatch(input_ids, labels, mask, int(mask.sum()))


def concatenated(documents: MaskedDocuments, rows_about: int) -> list[PeerBatch]:
    """Documents one after the other, cut into full rows as run_mlm.py does: they see each other.

    The end of the last step is filler, as few rows of it as steps of about `rows_about` rows allow.
    """
    context = documents.context
    size = rows_per_step(-(-documents.real_tokens // context), rows_about) * context
    steps = -(-documents.real_tokens // size)
    input_ids = torch.zeros(steps * size, dtype=torch.int64)
    labels = torch.full_like(input_ids, IGNORED)
    input_ids[: documents.real_tokens] = torch.from_numpy(
        np.concatenate([shown.token_ids for shown in documents.shown])
    )
    labels[: documents.real_tokens] = torch.from_numpy(np.concatenate([shown.labels for shown in documents.shown]))
    real = [min(size, documents.real_tokens - step * size) for step in range(steps)]
    grids = zip(input_ids.view(steps, -1, context), labels.view(steps, -1, context), real, strict=True)
    return [PeerBatch(ids, targets, None, count) for ids, targets, count in grids]
