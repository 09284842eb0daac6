"""What stands on an encoder: masked language modelling, and classification or regression of whole texts."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.model.attention import AttentionPlan, GatherIndex
from neobert.model.encoder import Encoder

IGNORED_TARGET = -100
"""The target of padding: torch's cross-entropy leaves it out."""

COLUMN_MULTIPLE = 64
"""CUDA's fast products of matrices want rows that begin at multiples of 16 bytes, and tile columns by this."""

WANT_ALIGNED_ROWS = ("cuda",)

Weights = dict[str, Tensor]


class MaskedLanguageModel(nn.Module):
    """An encoder and a linear decoder with bias, not tied to the embedding (released code)."""

    def __init__(self, model: Encoder, decoder: nn.Linear) -> None:
        super().__init__()
        self.model = model
        self.decoder = decoder

    def logits(self, token_ids: Tensor, plan: AttentionPlan, gather: GatherIndex | None = None) -> Tensor:
        """Scores over the vocabulary, (rows, tokens, vocabulary) or, with `gather`, (gathered, vocabulary)."""
        return self.decoder(self.model(token_ids, plan, gather))

    def _padded_logits(self, hidden: Tensor) -> Tensor:
        """Logits whose rows are aligned in memory where kernels want that: columns of minus infinity change no loss."""
        missing = -self.decoder.out_features % COLUMN_MULTIPLE
        if not missing or hidden.device.type not in WANT_ALIGNED_ROWS:
            logits: Tensor = self.decoder(hidden)
            return logits
        weight = functional.pad(self.decoder.weight, (0, 0, 0, missing))
        return functional.linear(hidden, weight, functional.pad(self.decoder.bias, (0, missing), value=-torch.inf))

    def forward(self, token_ids: Tensor, plan: AttentionPlan, gather: GatherIndex | None, targets: Tensor) -> Tensor:
        """Cross-entropy in nats summed over the `targets` that are not −100: an fp32 scalar.

        targets: (rows, tokens) or, with `gather`, (gathered,).
        """
        logits = self._padded_logits(self.model(token_ids, plan, gather)).float()
        return functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
        )


def mean_over_tokens(hidden: Tensor, positions: Tensor) -> Tensor:
    """The mean of `hidden` (rows, tokens, width) over the tokens of each row, padding left out: (rows, width)."""
    token = (positions >= 0).unsqueeze(-1)
    total = hidden.masked_fill(~token, 0).sum(dim=1, dtype=torch.float32)
    return (total / token.sum(dim=1).clamp(min=1)).to(hidden.dtype)


class Classifier(nn.Module):
    """Any encoder, and behind it dropout, dense, tanh, dropout, classifier (released code). One label is a regression.

    How tokens are pooled for the head depends on how texts lie in a batch (`neobert.glue.batching`).
    """

    def __init__(self, model: nn.Module, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.model = model
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, labels)

    def head(self, pooled: Tensor) -> Tensor:
        """Logits (texts, labels) of `pooled` (texts, width)."""
        return self.classifier(self.dropout(torch.tanh(self.dense(self.dropout(pooled)))))


def encoder_part(weights: Weights) -> Weights:
    """The tensors of a classifier that are not its head's."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("model.")}


def all_but_classifier(weights: Weights) -> Weights:
    """The tensors of a classifier below its last layer, whose shape is the task's."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
