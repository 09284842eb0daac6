"""Masked-language-model loss on documents that no run trains on, under fixed masks: the continuous readout."""

from collections.abc import Iterable

import torch

from neobert.data.batching import Batch
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import Precision
from neobert.training.engine import autocast


@torch.no_grad()
def heldout_loss(
    model: MaskedLanguageModel, batches: Iterable[Batch], precision: Precision, device: torch.device
) -> float:
    """Mean cross-entropy in nats over all predicted tokens of the batches."""
    was_training = model.training
    model.eval()
    total, predicted = 0.0, 0
    for batch in batches:
        moved = batch.to(device)
        # Its batches have other shapes than those that the model may be compiled for.
        with autocast(device, precision), torch.compiler.set_stance("force_eager"):
            total += model(moved.token_ids, moved.plan, moved.slots, moved.targets).item()
        predicted += batch.predicted_tokens
    model.train(was_training)
    return total / predicted
