"""Pseudo-perplexity of one length from the losses of documents, with its interval. Torch-free."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neobert.errors import RunFailed
from neobert.result_records import PerplexityAtLength

CONFIDENCE = 0.95
LEAST_DOCUMENTS = 2
"""One document says nothing about how documents differ."""


@dataclass(frozen=True)
class DocumentLoss:
    """Mean −log p in nats of a document's tokens that were masked alone, and how many these were."""

    loss: float
    positions: int


def pseudo_perplexity(tokens: int, documents: Sequence[DocumentLoss]) -> PerplexityAtLength:
    """exp of the mean loss (Salazar et al. 2020), each document counting once, with a 95 % interval.

    The interval is Student's t interval of the mean over at least two documents, exponentiated. Where positions are
    sampled, the scatter of document means holds that of the draw too.

    Raises:
        RunFailed: a loss is not finite.
    """
    from scipy import stats

    losses = np.array([document.loss for document in documents])
    if not np.isfinite(losses).all():
        raise RunFailed(
            f"a loss at {tokens} tokens is not finite: the checkpoint's weights or its precision are broken"
        )
    mean, count = float(losses.mean()), len(losses)
    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    half = quantile * float(losses.std(ddof=1)) / math.sqrt(count)
    return PerplexityAtLength(
        tokens=tokens,
        pseudo_perplexity=math.exp(mean),
        low=math.exp(max(0.0, mean - half)),
        high=math.exp(mean + half),
        positions=sum(document.positions for document in documents),
        documents=count,
    )
