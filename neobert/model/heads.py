"""What stands on an encoder: masked language modelling, and classification or regression of whole texts."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.model.attention import AttentionPlan, GatherIndex
from neobert.model.encoder import Encoder

IGNORED_TARGET = -100
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

    def forward(self, token_ids: Tensor, plan: AttentionPlan, gather: GatherIndex | None, targets: Tensor) -> Tensor:
        """Cross-entropy in nats summed over the `targets` that are not −100: an fp32 scalar.

        targets: (rows, tokens) or, with `gather`, (gathered,).
        """
        logits = self.logits(token_ids, plan, gather).float()
        return functional.cross_entropy(
            logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED_TARGET, reduction="sum"
        )


def mean_over_tokens(hidden: Tensor, positions: Tensor) -> Tensor:
    """The mean of `hidden` (rows, tokens, width) over the tokens of each row, padding left out: (rows, width)."""
    token = (positions >= 0).unsqueeze(-1)
    total = hidden.masked_fill(~token, 0).sum(dim=1, dtype=torch.float32)
    return (total / token.sum(dim=1).clamp(min=1)).to(hidden.dtype)


def pool_first(model: Encoder, token_ids: Tensor, plan: AttentionPlan) -> Tensor:
    """The hidden state (rows, width) of the first token, [CLS]; the last block computes nothing else."""
    first = torch.zeros(token_ids.shape[0], 1, dtype=torch.int64, device=token_ids.device)
    return model(token_ids, plan, GatherIndex.at(first, token_ids.shape[1]))


def pool_mean(model: Encoder, token_ids: Tensor, plan: AttentionPlan) -> Tensor:
    """The mean hidden state (rows, width) of a row's tokens."""
    return mean_over_tokens(model(token_ids, plan), plan.positions)


POOLINGS: dict[str, Callable[[Encoder, Tensor, AttentionPlan], Tensor]] = {"cls": pool_first, "mean": pool_mean}


class Classifier(nn.Module):
    """Any encoder under dropout, dense, tanh, dropout, classifier (released code). One label is a regression."""

    model: nn.Module

    def __init__(self, model: nn.Module, width: int, labels: int, dropout: float) -> None:
        super().__init__()
        self.model = model
        self.dropout = nn.Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.classifier = nn.Linear(width, labels)

    def head(self, pooled: Tensor) -> Tensor:
        """Logits (texts, labels) of `pooled` (texts, width)."""
        return self.classifier(self.dropout(torch.tanh(self.dense(self.dropout(pooled)))))


class SequenceClassifier(Classifier):
    """This package's encoder under pooling and the classifier's head."""

    model: Encoder

    def __init__(self, model: Encoder, labels: int, pooling: str, dropout: float) -> None:
        super().__init__(model, model.width, labels, dropout)
        self.pool = POOLINGS[pooling]

    def forward(self, token_ids: Tensor, plan: AttentionPlan) -> Tensor:
        """Logits (rows, labels) of `token_ids` (rows, tokens), one document a row."""
        return self.head(self.pool(self.model, token_ids, plan))


def encoder_part(weights: Weights) -> Weights:
    """The tensors of a classifier that are not its head's."""
    return {name: tensor for name, tensor in weights.items() if name.startswith("model.")}


def all_but_classifier(weights: Weights) -> Weights:
    """The tensors of a classifier below its last layer, whose shape is the task's."""
    return {name: tensor for name, tensor in weights.items() if not name.startswith("classifier.")}
