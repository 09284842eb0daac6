"""InfoNCE on cosines (paper §5.2.1): each query has to find its document among the documents and hard negatives of its
step."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, eq=False)
class Comparison:
    """Who is compared with whom among the texts of a step.

    queries: (pairs,) numbers of texts. candidates: (candidates,) numbers of texts. targets: (pairs,) which candidate is
        the query's document. hidden: (pairs, candidates) bool, candidates that a query does not see.
    """

    queries: Tensor
    candidates: Tensor
    targets: Tensor
    hidden: Tensor

    def to(self, device: torch.device) -> Self:
        """The comparison on a device."""
        moved = {name: value.to(device, non_blocking=True) for name, value in vars(self).items()}
        return replace(self, **moved)


def compared(queries: Array, documents: Array, negatives: Array, *, keep_false_negatives: bool) -> Comparison:
    """The comparison of pairs (`queries`, `documents`), each (pairs,) numbers of texts, and of `negatives`, (any,).

    Equal texts have one number. Unless false negatives are kept, no candidate comes twice, and a query does not see the
    documents of other pairs with the same query.
    """
    if keep_false_negatives:
        candidates, targets = np.concatenate([documents, negatives]), np.arange(len(documents))
        hidden = np.zeros((len(queries), len(candidates)), bool)
    else:
        candidates = np.unique(np.concatenate([documents, negatives]))
        targets = np.searchsorted(candidates, documents)
        hidden = np.zeros((len(queries), len(candidates)), bool)
        first, second = np.nonzero(queries[:, None] == queries[None, :])
        hidden[first, targets[second]] = True
        hidden[np.arange(len(queries)), targets] = False
    return Comparison(
        queries=torch.from_numpy(queries.astype(np.int64)),
        candidates=torch.from_numpy(candidates.astype(np.int64)),
        targets=torch.from_numpy(targets.astype(np.int64)),
        hidden=torch.from_numpy(hidden),
    )


def contrastive_losses(vectors: Tensor, comparison: Comparison, temperature: float) -> Tensor:
    """The loss of each query in nats, (pairs,), from the `vectors` (texts, width) of all texts; at least fp32."""
    with torch.autocast(vectors.device.type, enabled=False):
        cosines = cosine_scores(vectors, comparison)
        return functional.cross_entropy(cosines / temperature, comparison.targets, reduction="none")


def cosine_scores(vectors: Tensor, comparison: Comparison) -> Tensor:
    """(pairs, candidates) cosines, −∞ where a candidate is hidden from a query."""
    units = functional.normalize(vectors if vectors.dtype == torch.float64 else vectors.float(), dim=-1)
    cosines = units[comparison.queries] @ units[comparison.candidates].T
    return cosines.masked_fill(comparison.hidden, float("-inf"))
