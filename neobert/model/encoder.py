"""The encoder: embedding, pre-norm blocks, last norm.

Names of modules and layout of weights are those of the released checkpoint (chandar-lab/NeoBERT), so that its weights
load as they are. Blocks receive their parts and ask for no configuration.
"""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

from neobert.model.attention import AttentionPlan, attend
from neobert.model.positions import Positions, Rotation
from neobert.model.slots import take


def query_key_value(
    qkv: nn.Linear, heads: int, hidden: Tensor, rotation: Rotation, slots: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of `hidden` (rows, tokens, width), each (rows, tokens, heads, head size), rotated.

    qkv: the fused projection; its rows are grouped by head, and within a head by query, key, value. It is called as the
        plain linear layer that it is, so that adapters and hooks can stand in its place.
    slots: with (rows, slots) the query is computed there only: (rows, slots, heads, head size).
    """
    if slots is not None:
        return _with_queries_at(slots, qkv.weight, heads, hidden, rotation)
    fused = qkv(hidden).unflatten(-1, (heads, 3, -1))
    query, key = rotation.turn(fused[..., :2, :]).unbind(dim=-2)
    return query, key, fused[..., 2, :]


def _with_queries_at(
    slots: Tensor, weight: Tensor, heads: int, hidden: Tensor, rotation: Rotation
) -> tuple[Tensor, Tensor, Tensor]:
    of_head = weight.unflatten(0, (heads, 3, -1))
    query = functional.linear(take(hidden, slots), of_head[:, :1].flatten(0, 2)).unflatten(-1, (heads, 1, -1))
    fused = functional.linear(hidden, of_head[:, 1:].flatten(0, 2)).unflatten(-1, (heads, 2, -1))
    turned_query, turned_key = rotation.at(slots).turn(query), rotation.turn(fused[..., :1, :])
    return turned_query.squeeze(-2), turned_key.squeeze(-2), fused[..., 1, :]


class Block(nn.Module):
    """Pre-norm attention and feed-forward, each added to its input; dropout behind both."""

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

    def forward(self, hidden: Tensor, plan: AttentionPlan, rotation: Rotation, slots: Tensor | None = None) -> Tensor:
        """(rows, tokens, width) to the same shape, or with `slots` (rows, slots) to (rows, slots, width), exactly.

        Keys and values are computed everywhere, all else at the slots only.
        """
        query, key, value = query_key_value(self.qkv, self.heads, self.attention_norm(hidden), rotation, slots)
        attended = attend(query, key, value, plan, slots).flatten(-2)
        residual = hidden if slots is None else take(hidden, slots)
        residual = residual + self.dropout(self.wo(attended))
        return residual + self.dropout(self.ffn(self.ffn_norm(residual)))


class Encoder(nn.Module):
    """Token ids to hidden states. No norm, dropout or token types behind the embedding (released code)."""

    def __init__(self, embedding: nn.Embedding, positions: Positions, blocks: Sequence[Block], norm: nn.Module) -> None:
        super().__init__()
        self.encoder = embedding
        self.positional_embedding = positions
        self.transformer_encoder = nn.ModuleList(blocks)
        self.layer_norm = norm

    @property
    def width(self) -> int:
        """Size of a hidden state."""
        return self.encoder.embedding_dim

    def forward(self, token_ids: Tensor, plan: AttentionPlan, slots: Tensor | None = None) -> Tensor:
        """Hidden states (rows, tokens, width) of `token_ids` (rows, tokens) under the last norm.

        With `slots` (rows, slots) int64 only those of the tokens there, (rows, slots, width), equal to the full ones:
        the last block then computes nothing else but keys and values.
        """
        hidden = self.positional_embedding.add(self.encoder(token_ids), plan.positions)
        rotation = self.positional_embedding.rotation(plan.positions)
        *blocks, last = self.transformer_encoder
        for block in blocks:
            hidden = block(hidden, plan, rotation)
        return self.layer_norm(last(hidden, plan, rotation, slots))
