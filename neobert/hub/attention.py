"""transformers' attention interface as the blocks of `neobert.model` call it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    """Attention by two products, with its weights; (rows, heads, tokens, head size) in, heads behind tokens out.

    attention_mask: added to the scores, or boolean and true where a token is seen.
    """
    scores = query @ key.transpose(-2, -1) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # The smallest number in place of −∞: a token that sees nothing makes no NaN.
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


@dataclass(frozen=True)
class InterfaceAttention:
    """Any function of transformers' attention interface, as a plan of `neobert.model` calls it."""

    function: Callable[..., tuple[Tensor, Tensor | None]]
    module: nn.Module
    mask: Any
    options: Mapping[str, Any]
    weights: list[Any] = field(default_factory=list)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(rows, tokens, heads, head size) each; what the function says about its weights is kept, layer by layer."""
        heads_first = (vectors.transpose(1, 2) for vectors in (query, key, value))
        scaling = query.shape[-1] ** -0.5
        attended, weights = self.function(
            self.module, *heads_first, self.mask, dropout=0.0, scaling=scaling, **self.options
        )
        self.weights.append(weights)
        return attended


def refuse_mask(mask: Tensor | None, embeddings: Tensor) -> None:
    """Check the shape of a mask for `embeddings` (rows, tokens, width).

    Raises:
        ValueError: it is neither (rows, tokens) nor has it four dimensions.
    """
    if mask is None or torch.compiler.is_compiling():
        return
    rows, tokens = embeddings.shape[:2]
    if mask.ndim != 4 and mask.shape != (rows, tokens):
        raise ValueError(
            f"attention_mask has the shape {tuple(mask.shape)}: {rows} rows of {tokens} tokens need "
            f"({rows}, {tokens}), or ({rows}, 1, {tokens}, {tokens}) where each token sees others"
        )


def places_within(borders: Tensor, embeddings: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
    """The place of each token of one row (1, tokens) in its document, from the cumulated lengths of documents.

    Raises:
        ValueError: there are several rows, a mask or positions beside the borders, or they do not fit the row.
    """
    rows, tokens = embeddings.shape[:2]
    if rows != 1 or mask is not None or positions is not None:
        raise ValueError(
            "cu_seqlens are borders of documents in a single row without attention_mask and position_ids, not in "
            f"{rows} rows or beside these"
        )
    starts, lengths = borders[:-1].long(), borders.diff().long()
    if not torch.compiler.is_compiling() and (borders[0] != 0 or borders[-1] != tokens or bool((lengths < 0).any())):
        raise ValueError(f"cu_seqlens {borders.tolist()} do not rise from 0 to the {tokens} tokens of the row")
    begun = torch.repeat_interleave(starts, lengths, output_size=tokens)
    return (torch.arange(tokens, device=embeddings.device) - begun.to(embeddings.device))[None]
