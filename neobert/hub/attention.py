"""How a forward pass of the transformers classes attends: requests are checked, then passed on to the functions of
transformers' attention interface."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.masking_utils import (
    create_bidirectional_mask,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from neobert.model.attention import Tensors


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
    """Compute attention with two matrix products; return (rows, tokens, heads, head size) and the attention weights.

    query, key and value: (rows, heads, tokens, head size). attention_mask: either added to the scores, or boolean and
        true where a token may be attended to.
    """
    scores = query @ key.transpose(-2, -1) * scaling
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        # The smallest number instead of −∞, so that fully masked rows give no NaN.
        scores = scores.masked_fill(~attention_mask, torch.finfo(scores.dtype).min)
    elif attention_mask is not None:
        scores = scores + attention_mask
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return (weights @ value).transpose(1, 2), weights


@dataclass(frozen=True, eq=False)
class InterfaceAttention(Tensors):
    """Adapter from a function of transformers' attention interface to the signature that `AttentionPlan` calls. Its
    mask and options move with the plan, as the blocks of a model may be on several devices."""

    function: Callable[..., tuple[Tensor, Tensor | None]]
    module: nn.Module
    mask: Any
    options: Mapping[str, Any]
    weights: list[Any] | None = None

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return attended values; all tensors are (rows, tokens, heads, head size). The layer's weights
        are appended if there is a list for them."""
        heads_first = (vectors.transpose(1, 2) for vectors in (query, key, value))
        scaling = query.shape[-1] ** -0.5
        attended, weights = self.function(
            self.module, *heads_first, self.mask, dropout=0.0, scaling=scaling, **self.options
        )
        if self.weights is not None:
            self.weights.append(weights)
        return attended


def refuse_mask(mask: Tensor | None, embeddings: Tensor) -> None:
    """Check the shape of a mask for `embeddings` (rows, tokens, width). Raises ValueError if the mask is neither (rows,
    tokens) nor four-dimensional."""
    if mask is None or torch.compiler.is_compiling():
        return
    rows, tokens = embeddings.shape[:2]
    if mask.ndim != 4 and mask.shape != (rows, tokens):
        raise ValueError(
            f"attention_mask has the shape {tuple(mask.shape)}: {rows} rows of {tokens} tokens need "
            f"({rows}, {tokens}), or ({rows}, 1, {tokens}, {tokens}) where each token sees others"
        )


def document_positions(borders: Tensor, embeddings: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
    """Compute each token's position in its document, (1, tokens), from the cumulative lengths of the documents. Raises
    ValueError if there are several rows, a mask or positions are given as well, or the borders do not fit the row."""
    rows, tokens = embeddings.shape[:2]
    if rows != 1 or mask is not None or positions is not None:
        raise ValueError(
            "cu_seqlens are borders of documents in a single row without attention_mask and position_ids, not in "
            f"{rows} rows or together with these"
        )
    starts, lengths = borders[:-1].long(), borders.diff().long()
    if not torch.compiler.is_compiling() and (borders[0] != 0 or borders[-1] != tokens or bool((lengths < 0).any())):
        raise ValueError(f"cu_seqlens {borders.tolist()} do not rise from 0 to the {tokens} tokens of the row")
    begun = torch.repeat_interleave(starts, lengths, output_size=tokens)
    return (torch.arange(tokens, device=embeddings.device) - begun.to(embeddings.device))[None]


def requested_attention(
    module: PreTrainedModel,
    embeddings: Tensor,
    mask: Tensor | None,
    position_ids: Tensor | None,
    options: Mapping[str, Any],
    weights: list[Any] | None,
) -> InterfaceAttention:
    """Return the attention function that a forward pass of `module` asks of transformers, with its mask and options, as
    in `NeoBERTModel.forward`; the layers' weights go to `weights`. Raises ValueError if the configuration's
    implementation does not support that.

    mask: (rows, tokens), or (rows, 1 or heads, tokens, tokens), boolean or floating. options: for the function.
    """
    if mask is not None and mask.ndim == 4:
        mask = mask if mask.is_floating_point() else mask.bool()
    implementation, (rows, tokens) = module.config._attn_implementation, embeddings.shape[:2]
    if weights is not None and implementation != "eager":
        raise ValueError(
            f"attn_implementation {implementation!r} computes no attention weights: load the model with "
            f'attn_implementation="eager" for output_attentions=True'
        )
    function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
    documents = None  # or the number of each token's document, (rows, tokens)
    if position_ids is not None and mask is None:
        documents = find_packed_sequence_indices(position_ids.expand(rows, tokens))
    if "flash" in str(implementation) and documents is not None:  # such kernels separate documents by themselves
        if rows > 1:
            raise ValueError(
                f"position_ids start again within {rows} rows, and {implementation} separates documents of one row "
                "alone: flatten the batch to one row, or give an attention_mask"
            )
        return InterfaceAttention(function, module, None, {**options, "position_ids": position_ids}, weights)
    made = create_bidirectional_mask(
        config=module.config,
        inputs_embeds=embeddings,
        attention_mask=mask,
        and_mask_function=None if documents is None else packed_sequence_mask_function(documents),
    )
    return InterfaceAttention(function, module, made, options, weights)
