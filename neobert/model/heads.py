"""Heads on an encoder: masked language modelling, classification or regression of texts."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.model.attention import AttentionPlan, GatherIndex, has_cuda_kernels, padded_plan, whole_rows_plan
from neobert.model.encoder import Encoder
from neobert.recipe import PretrainingPrecision

IGNORED_TARGET = -100
"""Target of padding, which torch's cross-entropy ignores."""

COLUMN_MULTIPLE = 64
"""CUDA's fast matmuls need rows aligned to 16 bytes, and tile columns by this number."""

Weights = dict[str, Tensor]


class MaskedLanguageModel(nn.Module):
    """An encoder and a linear decoder with bias, not tied to the embedding (released code).

    `precision` is that of the recipe, in which the passes of training are computed.
    """

    def __init__(self, model: Encoder, decoder: nn.Linear, precision: PretrainingPrecision = "fp32") -> None:
        super().__init__()
        self.model = model
        self.decoder = decoder
        self.precision: PretrainingPrecision = precision

    def _padded_logits(self, hidden: Tensor) -> Tensor:
        """Return logits, padded to aligned rows where kernels need them; columns of −∞ do not change the loss."""
        missing = -self.decoder.out_features % COLUMN_MULTIPLE
        if not missing or not has_cuda_kernels(hidden):
            logits: Tensor = self.decoder(hidden)
            return logits
        weight = functional.pad(self.decoder.weight, (0, 0, 0, missing))
        return functional.linear(hidden, weight, functional.pad(self.decoder.bias, (0, missing), value=-torch.inf))

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: AttentionPlan | Tensor | None = None,
        gather: GatherIndex | None = None,
        targets: Tensor | None = None,
    ) -> Tensor:
        """Return scores over the vocabulary, or with `targets` the loss.

        input_ids: (rows, tokens) int64.
        attention_mask: (rows, tokens), 1 at tokens and 0 at padding; None for rows without padding; or the plan of
            packed rows.
        gather: the tokens to predict; by default all.
        targets: (rows, tokens) or, with `gather`, (gathered,) token ids; −100 is ignored.

        Returns:
            (rows, tokens, vocabulary) or, with `gather`, (gathered, vocabulary); or the cross-entropy in nats, summed
            over the targets: an fp32 scalar.
        """
        plan = attention_mask
        if not isinstance(plan, AttentionPlan):
            plan = whole_rows_plan(input_ids) if plan is None else padded_plan(plan)
        hidden = self.model(input_ids, plan, gather)
        return self.decoder(hidden) if targets is None else self.summed_loss(hidden, targets)

    def summed_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of `forward` from the hidden states."""
        logits = self._padded_logits(hidden).float()
        return functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
        )

    def losses(self, token_ids: Tensor, plan: AttentionPlan, gather: GatherIndex, targets: Tensor) -> Tensor:
        """Return the cross-entropy in nats of each of the `targets` (gathered,), 0 where it is −100: fp32."""
        logits = self._padded_logits(self.model(token_ids, plan, gather)).float()
        return functional.cross_entropy(logits, targets, ignore_index=IGNORED_TARGET, reduction="none")


def mean_over_tokens(hidden: Tensor, positions: Tensor) -> Tensor:
    """Return the mean of `hidden` (rows, tokens, width) over each row's tokens, without padding: (rows, width)."""
    token = (positions >= 0).unsqueeze(-1)
    total = hidden.masked_fill(~token, 0).sum(dim=1, dtype=torch.float32)
    return (total / token.sum(dim=1).clamp(min=1)).to(hidden.dtype)


class Classifier(nn.Module):
    """Any encoder followed by dropout, dense, tanh, dropout, classifier (released code). One label means regression.

    Pooling depends on the layout of texts in a batch, and is done in `neobert.glue.batching`.
    """

    def __init__(self, model: nn.Module, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.model = model
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, labels)

    def head(self, pooled: Tensor) -> Tensor:
        """Return logits (texts, labels) of `pooled` (texts, width)."""
        return self.classifier(self.dropout(torch.tanh(self.dense(self.dropout(pooled)))))


def encoder_part(weights: Weights) -> Weights:
    """Return a classifier's tensors without its head's."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("model.")}


def all_but_classifier(weights: Weights) -> Weights:
    """Return a classifier's tensors without the last layer's, whose shape depends on the task."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
