"""InfoNCE over all texts of a step with the memory of one micro-batch: the gradient of the vectors is cached.

Gao et al. 2021 (Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup): all vectors are computed
without a graph and gathered from all processes, the loss gives the gradient of each vector, and every micro-batch is
computed again with a graph to carry its vectors' gradients to the weights. Dropout draws the same masks both times.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from neobert.embeddings.loss import Comparison, contrastive_losses


@dataclass(frozen=True, eq=False)
class Cached:
    """What the first pass leaves for the second: the randomness of the micro-batch, the gradient (texts, width) of its
    vectors, and the sum of the losses of its queries."""

    seed: int
    gradient: Tensor
    loss: Tensor


@dataclass(frozen=True, eq=False)
class TextBatch:
    """A micro-batch: some texts of a step. `numbers` (texts,) says which ones; what `inputs` holds beyond is filler.

    texts: how many the step has over all processes, and `comparison` what becomes of them. queries: (pairs,) 1 where a
    query of the comparison stands in this micro-batch, else 0; `query_count` of them.
    """

    inputs: Any
    numbers: Tensor
    texts: int
    comparison: Comparison
    queries: Tensor
    query_count: int
    cached: Cached | None = None


def query_count(batch: TextBatch) -> int:
    """What the loss is normalised by."""
    return batch.query_count


@dataclass(frozen=True)
class CachedContrast:
    """The objective of contrastive fine-tuning as the engine wants it: `prepare` is the first pass, `loss` the second.

    A step in a single micro-batch needs no cache and is computed once, unless `always` is set. The engine takes the
    mean over queries; a loss that is `summed` over them is given to it as many times.
    """

    temperature: float
    always: bool = False
    summed: bool = False

    def prepare(self, model: nn.Module, batches: Sequence[TextBatch]) -> list[TextBatch]:
        """The first pass over all micro-batches of a step; all processes must come together."""
        processes = dist.get_world_size() if dist.is_initialized() else 1
        if len(batches) == 1 and processes == 1 and not self.always:
            return list(batches)
        seeds = torch.randint(1 << 62, (len(batches),)).tolist()
        with torch.no_grad():
            vectors = gathered(
                [_seeded(model, batch, seed) for batch, seed in zip(batches, seeds, strict=True)], batches
            )
        if processes > 1:
            dist.all_reduce(vectors)  # a text's row is zero in all processes but its own
        losses, gradient = self._vector_gradient(vectors, batches[0].comparison)
        return [
            replace(batch, cached=Cached(seed, gradient[batch.numbers], (losses * batch.queries).sum()))
            for batch, seed in zip(batches, seeds, strict=True)
        ]

    def _vector_gradient(self, vectors: Tensor, comparison: Comparison) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            leaf = vectors.requires_grad_()
            losses = self._losses(leaf, comparison)
            (gradient,) = torch.autograd.grad(losses.sum(), leaf)
        return losses.detach(), gradient

    def _losses(self, vectors: Tensor, comparison: Comparison) -> Tensor:
        losses = contrastive_losses(vectors, comparison, self.temperature)
        return losses * len(losses) if self.summed else losses

    def loss(self, network: nn.Module, batch: TextBatch) -> Tensor:
        """The sum of the losses of the micro-batch's queries, with the gradient that its texts have in all losses."""
        if batch.cached is None:
            vectors = gathered([network(batch.inputs)], [batch])
            return self._losses(vectors, batch.comparison).sum()
        vectors = _seeded(network, batch, batch.cached.seed)
        carrier = (vectors * batch.cached.gradient).sum()
        return batch.cached.loss + carrier - carrier.detach()


def _seeded(network: nn.Module, batch: TextBatch, seed: int) -> Tensor:
    """The vectors (texts, width) of a micro-batch without filler."""
    torch.manual_seed(seed)
    vectors: Tensor = network(batch.inputs)
    return vectors[: len(batch.numbers)]


def gathered(parts: Sequence[Tensor], batches: Sequence[TextBatch]) -> Tensor:
    """(texts, width) the vectors of a step in the order of its texts, zero where they are another process's."""
    vectors = torch.cat(list(parts))
    numbers = torch.cat([batch.numbers for batch in batches])
    empty = vectors.new_zeros(batches[0].texts, vectors.shape[1])
    return empty.index_copy(0, numbers, vectors)
