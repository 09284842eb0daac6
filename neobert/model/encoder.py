"""The encoder: embedding, pre-norm blocks, final norm.

Module names and weight layout are those of the released checkpoint (chandar-lab/NeoBERT), so that its weights load
unchanged. Blocks receive their parts ready-made and read no configuration.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.model.attention import AttentionPlan, GatherIndex, attend, take_places
from neobert.model.layers import FusedModule, FusedRows
from neobert.model.positions import Positions, Rotation

TURN_PARTS_ALONE = ("cuda",)
"""Devices where a compiled model rotates query and key separately, so that the rotation of each gradient is fused into
its write. For both at once torch's compiler first makes fp32 copies; CPUs keep that, since their bits are recorded."""


class Stream:
    """Dtype of the residual stream; None means the dtype of the embedding's weights."""

    dtype: ClassVar[torch.dtype | None] = None


@contextmanager
def residual_stream(dtype: torch.dtype) -> Iterator[None]:
    """Set the dtype of the encoders' residual stream within the context."""
    before, Stream.dtype = Stream.dtype, dtype
    try:
        yield
    finally:
        Stream.dtype = before


def query_key_value(
    qkv: nn.Linear, heads: int, hidden: Tensor, rotation: Rotation, gather: GatherIndex | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute query, key and value of `hidden` (rows, tokens, width), each (rows, tokens, heads, head size), rotated.

    qkv: the fused projection; its rows are grouped by head, and within a head by query, key, value. It is called as a
        module, so that adapters and hooks work, unless the rotation needs another order of the numbers in a head or
        `gather` is given.
    gather: compute the query only at these places: (rows, most, heads, head size).
    """
    if gather is not None:
        return _with_queries_at(gather, _by_head(qkv.weight, heads, rotation), hidden, rotation)
    if rotation.even_first:
        fused = functional.linear(hidden, _by_head(qkv.weight, heads, rotation).flatten(0, 2))
    else:
        fused = qkv(hidden)
    # The backward of split joins the gradients of its parts; each slice would allocate a full tensor of zeros.
    parts = fused.unflatten(-1, (heads, 3, -1))
    if rotation.even_first and hidden.device.type in TURN_PARTS_ALONE:
        query, key, value = parts.split(1, dim=-2)
        return rotation.turn(query).squeeze(-2), rotation.turn(key).squeeze(-2), value.squeeze(-2)
    query_and_key, value = parts.split((2, 1), dim=-2)
    query, key = rotation.turn(query_and_key).unbind(dim=-2)
    return query, key, value.squeeze(-2)


def _by_head(weight: Tensor, heads: int, rotation: Rotation) -> Tensor:
    """Return the fused projection's weight as (heads, 3, head size, width), in the order that the rotation needs."""
    of_head = weight.unflatten(0, (heads, 3, -1))
    if not rotation.even_first:
        return of_head
    query_and_key = of_head[:, :2].unflatten(2, (-1, 2)).transpose(2, 3).flatten(2, 3)
    return torch.cat((query_and_key, of_head[:, 2:]), dim=1)


def _with_queries_at(
    gather: GatherIndex, of_head: Tensor, hidden: Tensor, rotation: Rotation
) -> tuple[Tensor, Tensor, Tensor]:
    heads, asking = of_head.shape[0], take_places(hidden, gather.queries)
    query = functional.linear(asking, of_head[:, :1].flatten(0, 2)).unflatten(-1, (heads, 1, -1))
    fused = functional.linear(hidden, of_head[:, 1:].flatten(0, 2)).unflatten(-1, (heads, 2, -1))
    key, value = fused.split(1, dim=-2)
    turned_query, turned_key = rotation.at(gather.queries).turn(query), rotation.turn(key)
    return turned_query.squeeze(-2), turned_key.squeeze(-2), value.squeeze(-2)


class Block(FusedModule):
    """Pre-norm attention and feed-forward, each with dropout and a residual connection."""

    def __init__(
        self,
        heads: int,
        attention_norm: nn.Module,
        qkv: nn.Linear,
        wo: nn.Linear,
        ffn_norm: nn.Module,
        ffn: nn.Module,
        dropout: nn.Dropout,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = attention_norm
        self.qkv = qkv
        self.wo = wo
        self.ffn_norm = ffn_norm
        self.ffn = ffn
        self.dropout = dropout

    def fused_rows(self) -> dict[Tensor, FusedRows]:
        """Return the layout of query, key and value."""
        return {self.qkv.weight: FusedRows(projections=3, groups=self.heads)}

    def forward(
        self, hidden: Tensor, plan: AttentionPlan, rotation: Rotation, gather: GatherIndex | None = None
    ) -> Tensor:
        """Map (rows, tokens, width) to the same shape, or with `gather` to exactly the same values, (gathered, width).

        Keys and values are computed for all tokens, everything else only for the gathered ones.
        """
        query, key, value = query_key_value(self.qkv, self.heads, self.attention_norm(hidden), rotation, gather)
        attended = attend(query, key, value, plan, gather).flatten(-2)
        residual = hidden if gather is None else take_places(hidden, gather.places)
        residual = residual + self.dropout(self.wo(attended))
        return residual + self.dropout(self.ffn(self.ffn_norm(residual)))


@dataclass(frozen=True)
class LocalBlocks:
    """Blocks with local attention: all but the first of every `global_every` (Beltagy et al. 2020; ModernBERT, Warner
    et al. 2024).

    window: tokens seen on each side. positions: positions of the local blocks, without parameters; None if they are
        those of all blocks.
    """

    window: int
    global_every: int
    positions: Positions | None


View = tuple[AttentionPlan, Rotation]
"""Attention plan and rotation of a block for one batch."""


def block_views(
    blocks: int,
    positions: Positions,
    plan: AttentionPlan,
    local: LocalBlocks | None = None,
    near: AttentionPlan | None = None,
    real: bool = False,
) -> list[View]:
    """Return the view of each of `blocks`: `plan` for global blocks, `near` for `local` ones (by default the plan
    within their window). `real` is as in `Positions.rotation`."""
    whole = plan, positions.rotation(plan.positions, real)
    if local is None:
        return [whole] * blocks
    rotation = whole[1] if local.positions is None else local.positions.rotation(plan.positions, real)
    part = near or plan.within(local.window), rotation
    return [part if number % local.global_every else whole for number in range(blocks)]


class Encoder(nn.Module):
    """Token ids to hidden states, without norm, dropout or token types after the embedding (released code)."""

    def __init__(
        self,
        embedding: nn.Embedding,
        positions: Positions,
        blocks: Sequence[Block],
        norm: nn.Module,
        local: LocalBlocks | None = None,
    ) -> None:
        super().__init__()
        self.local = local
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
        hidden = hidden.to(dtype=Stream.dtype)
        *blocks, last = self.transformer_encoder
        *views, last_view = block_views(len(blocks) + 1, self.positional_embedding, plan, self.local)
        for block, view in zip(blocks, views, strict=True):
            hidden = block(hidden, *view)
        plan, _ = last_view
        if gather is not None and gather.boundaries is not None and (plan.boundaries is None or plan.window):
            # Flattened queries need variable-length kernels, which a score bias rules out; and a window counts places
            # in the document, not among the gathered queries.
            return self.layer_norm(take_places(last(hidden, *last_view), gather.places))
        return self.layer_norm(last(hidden, *last_view, gather))
