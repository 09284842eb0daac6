"""The forward pass of every evaluation of a masked language model: losses of the predicted tokens of a batch."""

from dataclasses import replace

import torch

from neobert.data.batches import Batch
from neobert.model.attention import has_variable_length_kernels, packed_plan
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import PretrainingPrecision
from neobert.training.engine import autocast

BATCH_TOKENS = {"cpu": 1 << 12, "cuda": 1 << 17}
"""Tokens of a batch. On a CPU the activations of larger ones leave the caches: with three layers of width 128, batches
of 16,384 tokens take a tenth longer."""


def batch_losses(
    model: MaskedLanguageModel, batch: Batch, precision: PretrainingPrecision, device: torch.device
) -> torch.Tensor:
    """Return the loss of each predicted token in nats, (predicted,) in fp32, without a sync."""
    if batch.plan.doc_ids is not None and has_variable_length_kernels(device) and precision != "fp32":
        batch = replace(batch, plan=packed_plan(batch.plan.doc_ids, batch.plan.positions, device))
    moved = batch.to(device)
    with autocast(device, precision):
        losses = model.losses(moved.token_ids, moved.plan, moved.gather, moved.targets)
    return losses[: batch.predicted_tokens]
