"""The encoder as a transformers model: the blocks of `neobert.model` under transformers' attention interface."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import (
    create_bidirectional_mask,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from neobert.hub.attention import InterfaceAttention, eager_attention, places_within, refuse_mask
from neobert.hub.configuration import NeoBERTConfig
from neobert.hub.loading import HEADS, refuse_incomplete, refuse_pickle
from neobert.model.attention import AttentionPlan
from neobert.model.build import build_encoder
from neobert.model.positions import LearnedPositions

logger = logging.get_logger(__name__)

INITIALIZERS: dict[str, Callable[[Tensor, float], Any]] = {
    "uniform": lambda weight, scale: init.uniform_(weight, -scale, scale),
    "normal": lambda weight, scale: init.normal_(weight, mean=0.0, std=scale),
}


class NeoBERTPreTrainedModel(PreTrainedModel):
    """What all NeoBERT models share: how weights start, and which checkpoints they take."""

    config_class = NeoBERTConfig
    config: NeoBERTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers' convention
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _needs_decoder = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **options: Any) -> Any:
        """A model with the weights of a folder or of a repository on the hub, as transformers documents it.

        Raises:
            ValueError: the weights are a pickle, or tensors of the encoder are missing, unknown or of another shape.
        """
        refuse_pickle(pretrained_model_name_or_path, options.get("use_safetensors"))
        wants_info = options.pop("output_loading_info", False)
        may_replace_head = bool(options.pop("ignore_mismatched_sizes", False))
        # Tensors of other shapes are found below, where they are named in a sentence.
        options |= {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
        loaded: Any = super().from_pretrained(pretrained_model_name_or_path, *arguments, **options)
        model, info = loaded
        refuse_incomplete(pretrained_model_name_or_path, info, cls._needs_decoder, may_replace_head)
        return (model, info) if wants_info else model

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        draw = INITIALIZERS[self.config.init_distribution]
        if isinstance(module, LearnedPositions):
            draw(module.weight, self.config.position_init_range)
        elif isinstance(module, nn.Embedding):
            draw(module.weight, self.config.embedding_init_range)
        elif isinstance(module, nn.Linear):
            draw(module.weight, self.config.decoder_init_range)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            super()._init_weights(module)


class NeoBERTModel(NeoBERTPreTrainedModel):
    """The bare encoder: hidden states under the last norm.

    ```python
    >>> from transformers import AutoTokenizer
    >>> from neobert import NeoBERTModel

    >>> tokenizer = AutoTokenizer.from_pretrained("chandar-lab/NeoBERT")
    >>> model = NeoBERTModel.from_pretrained("chandar-lab/NeoBERT")
    >>> outputs = model(**tokenizer("Hello, my dog is cute", return_tensors="pt"))
    >>> outputs.last_hidden_state.shape[-1]
    768
    ```
    """

    is_causal = False
    _keys_to_ignore_on_load_unexpected = [f"^{head}" for head in HEADS]  # noqa: RUF012 - transformers' convention

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        encoder = build_encoder(config.to_recipe(), config.max_length)
        self.encoder = encoder.encoder
        self.positional_embedding = encoder.positional_embedding
        self.transformer_encoder = encoder.transformer_encoder
        self.layer_norm = encoder.layer_norm
        self.gradient_checkpointing = False
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The token embedding."""
        return self.encoder

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the token embedding."""
        assert isinstance(value, nn.Embedding)
        self.encoder = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Hidden states (rows, tokens, width); with `output_hidden_states` also those before each block.

        token_type_ids are accepted, so that BERT's tokenizers fit, and ignored. `kwargs` go to the attention function.

        attention_mask: (rows, tokens), 1 or true at tokens; or (rows, 1 or heads, tokens, tokens), added to the scores
            where it is floating, else true where a token is seen. position_ids: (rows, tokens), places from 0; without
            an attention_mask, documents of a row whose places start again do not see each other, as everywhere in
            transformers. cu_seqlens: the published forward's other word for that: where the documents of a single row
            begin, and its length.

        Raises:
            ValueError: not exactly one of input_ids and inputs_embeds; a mask of another shape; learned positions
                beyond the context; attentions asked of an implementation that has none; borders of documents in
                several rows at once, where the implementation is a flash kernel, or beside a mask.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        embeddings = self.encoder(input_ids) if inputs_embeds is None else inputs_embeds
        refuse_mask(attention_mask, embeddings)
        if (borders := kwargs.pop("cu_seqlens", None)) is not None:
            position_ids = places_within(borders, embeddings, attention_mask, position_ids)
        kwargs.pop("max_seqlen", None)  # beside cu_seqlens, which say it
        positions = self._positions(embeddings, attention_mask, position_ids)
        wants_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        attention = self._attention(embeddings, attention_mask, position_ids, bool(wants_attentions), kwargs)
        states = self._states(embeddings, AttentionPlan(positions, attention=attention))
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutput(
            last_hidden_state=states[-1],
            hidden_states=tuple(states) if wants_states else None,
            attentions=tuple(attention.weights[: len(self.transformer_encoder)]) if wants_attentions else None,
        )

    def _states(self, embeddings: Tensor, plan: AttentionPlan) -> list[Tensor]:
        """What enters each block, and what leaves the last norm."""
        states = [self.positional_embedding.add(embeddings, plan.positions)]
        rotation = self.positional_embedding.rotation(plan.positions, real=True)
        for block in self.transformer_encoder:
            states.append(self._checkpointed(block)(states[-1], plan, rotation))
        states[-1] = self.layer_norm(states[-1])
        return states

    def _checkpointed(self, block: nn.Module) -> Callable[..., Tensor]:
        if not (self.gradient_checkpointing and self.training):
            return block
        return lambda *inputs: self._gradient_checkpointing_func(block.__call__, *inputs)

    def _positions(self, embeddings: Tensor, mask: Tensor | None, given: Tensor | None) -> Tensor:
        """The place of each token in its document, from 0, and −1 at padding: (rows, tokens)."""
        rows, tokens, _ = embeddings.shape
        if given is not None:
            positions = given.expand(rows, tokens)
        elif mask is not None and mask.ndim == 2:
            positions = torch.where(mask.bool(), mask.bool().long().cumsum(dim=1) - 1, -1)
        else:
            positions = torch.arange(tokens, device=embeddings.device).expand(rows, tokens)
        if not torch.compiler.is_compiling():
            self._check_context(positions, was_given=given is not None)
        return positions

    def _check_context(self, positions: Tensor, was_given: bool) -> None:
        context = self.config.max_length
        if positions.shape[1] <= context and not was_given:
            return
        longest = int(positions.max()) + 1
        if longest <= context:
            return
        if isinstance(self.positional_embedding, LearnedPositions):
            raise ValueError(
                f"a sequence reaches {longest} tokens, but the learned position table holds {context}: truncate it to "
                f"{context} tokens, or take a model with rotary positions or a longer context"
            )
        logger.warning_once(f"A sequence reaches {longest} tokens, and the model was trained on at most {context}.")

    def _attention(
        self,
        embeddings: Tensor,
        mask: Tensor | None,
        position_ids: Tensor | None,
        wants_attentions: bool,
        options: Mapping[str, Any],
    ) -> InterfaceAttention:
        implementation = self.config._attn_implementation
        if wants_attentions and implementation != "eager":
            raise ValueError(
                f"attn_implementation {implementation!r} computes no attention weights: load the model with "
                f'attn_implementation="eager" for output_attentions=True'
            )
        function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        if mask is not None and mask.ndim == 4 and not mask.is_floating_point():
            mask = mask.bool()
        rows, tokens, _ = embeddings.shape
        documents = None
        if position_ids is not None and mask is None:
            documents = find_packed_sequence_indices(position_ids.expand(rows, tokens))
        if documents is not None and "flash" in implementation:
            if rows > 1:
                raise ValueError(
                    f"position_ids start again within {rows} rows, and {implementation} separates documents of one row "
                    "alone: flatten the batch to one row, or give an attention_mask"
                )
            return InterfaceAttention(function, self, None, {**options, "position_ids": position_ids})
        together = None if documents is None else packed_sequence_mask_function(documents)
        visible = create_bidirectional_mask(
            config=self.config, inputs_embeds=embeddings, attention_mask=mask, and_mask_function=together
        )
        return InterfaceAttention(function, self, visible, options)
