"""The encoder: embedding, blocks, final norm.

Module names and weight layout are those of the released checkpoint (chandar-lab/NeoBERT), so that its weights load
unchanged. Blocks receive their parts ready-made and read no configuration.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.model.attention import AttentionPlan, GatherIndex, attend, gather_tokens
from neobert.model.positions import Positions, Rotation, rotation_form
from neobert.own_code import Parts

Normalize = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Function of query and key, each (rows, tokens, heads, head size), that returns both before they are rotated."""


def query_key_value(
    qkv: nn.Linear,
    heads: int,
    hidden: Tensor,
    rotation: Rotation,
    gather: GatherIndex | None = None,
    normalize: Normalize | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute query, key and value of `hidden` (rows, tokens, width), each (rows, tokens, heads, head size), rotated.

    qkv: the fused projection; its rows are grouped by head, and within a head by query, key, value. It is called as a
        module, so that adapters and hooks work, unless the rotation wants another order of dimensions or `gather` is
        given.
    gather: compute the query only at these tokens: (rows, most, heads, head size).
    normalize: is applied to query and key before they are rotated.
    """
    is_reordered = rotation.wants_even_dimensions_first and normalize is None
    weight = _even_dimensions_first(qkv.weight, heads) if is_reordered else qkv.weight.unflatten(0, (heads, 3, -1))
    if gather is not None:
        (query,) = _project(gather_tokens(hidden, gather.queries), weight[:, :1])
        key, value = _project(hidden, weight[:, 1:])
    elif is_reordered:
        query, key, value = _project(hidden, weight)
    else:
        query, key, value = qkv(hidden).unflatten(-1, (heads, 3, -1)).unbind(dim=-2)
    if normalize is not None:
        query, key = (rotation.ordered(vectors.to(value.dtype)) for vectors in normalize(query, key))
    of_queries = rotation if gather is None else rotation.at(gather.queries)
    return of_queries.rotate(query), rotation.rotate(key), value


def _even_dimensions_first(weight: Tensor, heads: int) -> Tensor:
    """Return the weight (heads, 3, head size, width) with the rows of query and key in the order of the rotation."""
    query_and_key, value = weight.unflatten(0, (heads, 3, -1)).split((2, 1), dim=1)
    return torch.cat((query_and_key.unflatten(2, (-1, 2)).transpose(2, 3).flatten(2, 3), value), dim=1)


def _project(hidden: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
    """Apply projections (heads, parts, head size, width) to `hidden`; return (rows, tokens, heads, head size) of each
    part."""
    return functional.linear(hidden, weight.flatten(0, 2)).unflatten(-1, weight.shape[:3]).unbind(dim=-2)


@dataclass(frozen=True)
class BlockParts:
    """What a block is made of. `norm` makes another norm of the model's kind, for vectors of a given size."""

    heads: int
    attention_norm: nn.Module
    qkv: nn.Linear
    wo: nn.Linear
    ffn_norm: nn.Module
    ffn: nn.Module
    dropout: nn.Dropout
    norm: Callable[[int], nn.Module]


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each with dropout and a residual connection.

    A subclass with a method `normalize` has it applied to query and key of each head before they are rotated.
    """

    normalize: Normalize | None = None
    output_is_normalized = False
    """Whether the encoder needs no norm after its last block."""

    def __init__(self, parts: BlockParts) -> None:
        super().__init__()
        self.heads = parts.heads
        self.attention_norm = parts.attention_norm
        self.qkv = parts.qkv
        self.wo = parts.wo
        self.ffn_norm = parts.ffn_norm
        self.ffn = parts.ffn
        self.dropout = parts.dropout

    def attention(self, hidden: Tensor, plan: AttentionPlan, rotation: Rotation, gather: GatherIndex | None) -> Tensor:
        """Return what attention adds to the residual stream, of `hidden` (rows, tokens, width); see `forward`."""
        query, key, value = query_key_value(self.qkv, self.heads, hidden, rotation, gather, self.normalize)
        return self.dropout(self.wo(attend(query, key, value, plan, gather).flatten(-2)))

    def forward(
        self, hidden: Tensor, plan: AttentionPlan, rotation: Rotation, gather: GatherIndex | None = None
    ) -> Tensor:
        """Map (rows, tokens, width) to the same shape, or with `gather` to exactly the same values, (gathered, width).

        Keys and values are computed for all tokens, everything else only for the gathered ones.
        """
        residual = gathered(hidden, gather) + self.attention(self.attention_norm(hidden), plan, rotation, gather)
        return residual + self.dropout(self.ffn(self.ffn_norm(residual)))


class PostNormBlock(Block):
    """The same with a norm after each sum, as in BERT (Devlin et al. 2019), and none at the end of the encoder."""

    output_is_normalized = True

    def forward(
        self, hidden: Tensor, plan: AttentionPlan, rotation: Rotation, gather: GatherIndex | None = None
    ) -> Tensor:
        """Map (rows, tokens, width) to the same shape, or with `gather` to the same values, (gathered, width)."""
        attended = self.attention_norm(gathered(hidden, gather) + self.attention(hidden, plan, rotation, gather))
        return self.ffn_norm(attended + self.dropout(self.ffn(attended)))


def gathered(hidden: Tensor, gather: GatherIndex | None) -> Tensor:
    """Return the states of the gathered tokens, (gathered, width), or all, (rows, tokens, width), without `gather`."""
    return hidden if gather is None else gather_tokens(hidden, gather.indices)


BLOCKS = Parts[Block]("block", "its parts, as BlockParts", {"pre_norm": Block, "post_norm": PostNormBlock})


class Encoder(nn.Module):
    """Token ids to hidden states, without norm, dropout or token types after the embedding (released code).

    residual_dtype: dtype of the residual stream; None means that of the embedding's weights.
    """

    def __init__(
        self,
        embedding: nn.Embedding,
        positions: Positions,
        blocks: Sequence[Block],
        norm: nn.Module,
        residual_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.residual_dtype = residual_dtype
        self.encoder = embedding
        self.positional_embedding = positions
        self.transformer_encoder = nn.ModuleList(blocks)
        self.layer_norm = norm

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return self.encoder.embedding_dim

    def forward(self, token_ids: Tensor, plan: AttentionPlan, gather: GatherIndex | None = None) -> Tensor:
        """Return hidden states (rows, tokens, width) of `token_ids` (rows, tokens) after the final norm.

        With `gather` only those of its tokens, (gathered, width), equal to the full ones; the last block then
        computes only keys and values for all other tokens.
        """
        plan = plan.with_bias(self.positional_embedding.score_bias(plan.positions))
        hidden = self.positional_embedding.add(self.encoder(token_ids), plan.positions, plan.most_tokens)
        hidden = hidden.to(dtype=self.residual_dtype)
        *blocks, last = self.transformer_encoder
        rotation = self.positional_embedding.rotation(plan.positions, rotation_form(last))
        for block in blocks:
            hidden = block(hidden, plan, rotation)
        if gather is not None and (plan.cu_seqlens is None) != (gather.cu_seqlens is None):
            # Flattened queries need variable-length kernels, which a score bias rules out, and those need flattened
            # queries.
            return self.layer_norm(gather_tokens(last(hidden, plan, rotation), gather.indices))
        return self.layer_norm(last(hidden, plan, rotation, gather))
