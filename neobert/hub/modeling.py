"""NeoBERT as a transformers model: the blocks of `neobert.model` behind transformers' attention interface."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import (
    and_masks,
    create_bidirectional_mask,
    find_packed_sequence_indices,
    packed_sequence_mask_function,
)
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from neobert.hub.configuration import NeoBERTConfig
from neobert.model.attention import AttentionPlan
from neobert.model.build import build_encoder
from neobert.model.encoder import block_views
from neobert.model.heads import mean_over_tokens
from neobert.model.positions import LearnedPositions


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


@dataclass(frozen=True)
class InterfaceAttention:
    """Adapter from a function of transformers' attention interface to the signature that `AttentionPlan` calls."""

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


def near_mask_function(window: int) -> Callable[..., Any]:
    """Return a mask function for transformers that is true for tokens at most `window` apart in their row."""
    return lambda row, head, asking, asked: abs(asking - asked) <= window


def refuse_mask(mask: Tensor | None, embeddings: Tensor) -> None:
    """Check the shape of a mask for `embeddings` (rows, tokens, width).

    Raises:
        ValueError: the mask is neither (rows, tokens) nor four-dimensional.
    """
    if mask is None or torch.compiler.is_compiling():
        return
    rows, tokens = embeddings.shape[:2]
    if mask.ndim != 4 and mask.shape != (rows, tokens):
        raise ValueError(
            f"attention_mask has the shape {tuple(mask.shape)}: {rows} rows of {tokens} tokens need "
            f"({rows}, {tokens}), or ({rows}, 1, {tokens}, {tokens}) where each token sees others"
        )


def document_positions(borders: Tensor, embeddings: Tensor, mask: Tensor | None, positions: Tensor | None) -> Tensor:
    """Compute each token's position in its document, (1, tokens), from the cumulative lengths of the documents.

    Raises:
        ValueError: there are several rows, a mask or positions are given as well, or the borders do not fit the row.
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


FLATTENED = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
"""The keywords by which transformers' DataCollatorWithFlattening tells kernels of the documents in a row."""


def refuse_borders_alone(options: Mapping[str, Any], mask: Tensor | None, positions: Tensor | None) -> None:
    """Check that the keywords of documents in a row come with positions, which separate them in every implementation.

    Raises:
        ValueError: there are no positions or there is a mask, so that documents would attend to each other; or the
            positions (1, tokens) start again elsewhere than at `cu_seq_lens_q`.
    """
    given = [name for name in FLATTENED if options.get(name) is not None]
    if given and (positions is None or mask is not None):
        raise ValueError(
            f"{', '.join(given)} without position_ids, or beside an attention_mask, would not keep documents apart: "
            "pass position_ids that start again at each document, and no attention_mask (DataCollatorWithFlattening: "
            "return_position_ids=True), or cu_seqlens alone"
        )
    borders = options.get("cu_seq_lens_q")
    if borders is None or positions is None or torch.compiler.is_compiling():
        return
    row = positions.reshape(-1)
    starts = [0, *(1 + (row.diff() != 1).nonzero().flatten()).tolist(), len(row)]
    if sorted({*borders.tolist()}) != starts:
        raise ValueError(
            f"cu_seq_lens_q has the borders {borders.tolist()}, but position_ids start again at {starts[:-1]}: the two "
            "must name the same documents"
        )


HEADS = ("decoder.", "dense.", "classifier.", "qa_outputs.")
"""Name prefixes of the heads' tensors; all others belong to the encoder."""

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

SHOWN_KEYS = 3


def refuse_pickle(name_or_folder: Any, use_safetensors: bool | None) -> None:
    """Check that the weights are safetensors, because loading a pickle can run code.

    Raises:
        ValueError: a pickle is requested, or the folder has pickles but no safetensors.
    """
    if use_safetensors is False:
        raise ValueError("use_safetensors=False asks for pickled weights, which run code when read: leave it out")
    named = Path(str(name_or_folder))
    files = sorted(named.iterdir()) if named.is_dir() else [named]
    pickles = [file for file in files if file.suffix in PICKLE_SUFFIXES and file.is_file()]
    if pickles and not any(file.suffix == ".safetensors" for file in files):
        raise ValueError(
            f"{pickles[0]} is a pickle, which runs code when read, and is refused: save it as model.safetensors"
        )


def refuse_incomplete(name: Any, info: Mapping[str, Any], needs_decoder: bool, may_replace_head: bool) -> None:
    """Check transformers' loading `info` for missing, unexpected and mismatched tensors.

    A classification head may be missing, and heads of other tasks may be left unused. A head of another size is
    replaced only with `may_replace_head` (transformers' ignore_mismatched_sizes).

    Raises:
        ValueError: tensors of the encoder, or of the decoder that a language model needs, are affected.
    """
    may_be_new = tuple(head for head in HEADS if not (needs_decoder and head == "decoder."))
    lacking = sorted(key for key in info["missing_keys"] if not key.startswith(may_be_new))
    extra = sorted(key for key in info["unexpected_keys"] if not key.startswith(HEADS))
    if lacking:
        raise ValueError(
            f"the checkpoint {name} lacks {list_tensors(lacking)}: it is incomplete or fits another config.json"
        )
    if extra:
        raise ValueError(
            f"the checkpoint {name} has the unknown {list_tensors(extra)}: its config.json describes another model"
        )
    for key, found, expected in sorted(info["mismatched_keys"], key=lambda entry: entry[0].startswith(may_be_new)):
        advice = "its config.json is of another model"
        if key.startswith(may_be_new):
            advice = "pass ignore_mismatched_sizes=True for a new head"
            if may_replace_head:
                continue
        raise ValueError(
            f"the checkpoint {name} holds {key} as {tuple(found)}, but the configuration asks for {tuple(expected)}: "
            f"{advice}"
        )


def list_tensors(keys: Sequence[str]) -> str:
    """Format tensor names for a message; only the first few are listed."""
    shown = ", ".join(keys[:SHOWN_KEYS])
    return f"tensors {shown}" + (f" and {len(keys) - SHOWN_KEYS} more" if len(keys) > SHOWN_KEYS else "")


logger = logging.get_logger(__name__)

INITIALIZERS: dict[str, Callable[[Tensor, float], Any]] = {
    "uniform": lambda weight, scale: init.uniform_(weight, -scale, scale),
    "normal": lambda weight, scale: init.normal_(weight, mean=0.0, std=scale),
}


class NeoBERTPreTrainedModel(PreTrainedModel):
    """Base class: weight initialization and checkpoint checks."""

    config_class = NeoBERTConfig
    config: NeoBERTConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012 - transformers' convention
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_attention_backend = True
    _input_embed_layer = "encoder"
    _needs_decoder = False

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *arguments: Any, **options: Any) -> Any:
        """Load a model from a folder or a repository on the hub, as transformers documents it.

        Raises:
            ValueError: the weights are a pickle, or tensors of the encoder are missing, unknown or of another shape.
        """
        refuse_pickle(pretrained_model_name_or_path, options.get("use_safetensors"))
        wants_info = options.pop("output_loading_info", False)
        may_replace_head = bool(options.pop("ignore_mismatched_sizes", False))
        # Mismatched shapes are allowed here, so that refuse_incomplete reports them in one sentence.
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
    """The bare encoder; it outputs hidden states after the final norm.

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
        self.local = encoder.local
        self.gradient_checkpointing = False
        self.post_init()

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
        """Return hidden states (rows, tokens, width); with `output_hidden_states` also the input of each block.

        token_type_ids are accepted for BERT's tokenizers and ignored. `kwargs` are passed to the attention function.

        attention_mask: (rows, tokens), 1 or true at tokens; or (rows, 1 or heads, tokens, tokens), added to the scores
            if floating, else true where a token may be attended to. position_ids: (rows, tokens), from 0. Without an
            attention_mask, positions that start again mark a new document, and documents do not attend to each other,
            as everywhere in transformers; cu_seq_lens_q and the other keywords of DataCollatorWithFlattening go with
            them to flash kernels. cu_seqlens: document borders as in the published forward: where the
            documents of a single row begin, then the row's length.

        Raises:
            ValueError: not exactly one of input_ids and inputs_embeds; a mask of another shape; learned positions
                beyond the context; attention weights requested from an implementation that computes none; document
                borders in several rows with a flash kernel, or together with a mask; keywords of
                DataCollatorWithFlattening without position_ids.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        embeddings = self.encoder(input_ids) if inputs_embeds is None else inputs_embeds
        refuse_mask(attention_mask, embeddings)
        if (borders := kwargs.pop("cu_seqlens", None)) is not None:
            position_ids = document_positions(borders, embeddings, attention_mask, position_ids)
        else:
            refuse_borders_alone(kwargs, attention_mask, position_ids)
        kwargs.pop("max_seqlen", None)  # follows from cu_seqlens
        positions = self._positions(embeddings, attention_mask, position_ids)
        wants_attentions = self.config.output_attentions if output_attentions is None else output_attentions
        weights: list[Any] | None = [] if wants_attentions else None
        attention = self._attention(embeddings, attention_mask, position_ids, bool(wants_attentions), kwargs)
        attention = replace(attention, weights=weights)
        near = None
        if self.local is not None:
            nearby = self._attention(embeddings, attention_mask, position_ids, False, kwargs, self.local.window)
            near = AttentionPlan(positions, attention=replace(nearby, weights=weights))
        states = self._states(embeddings, AttentionPlan(positions, attention=attention), near)
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutput(
            last_hidden_state=states[-1],
            hidden_states=tuple(states) if wants_states else None,
            attentions=None if weights is None else tuple(weights[: len(self.transformer_encoder)]),
        )

    def _states(self, embeddings: Tensor, plan: AttentionPlan, near: AttentionPlan | None) -> list[Tensor]:
        """Return the input of each block and the output of the final norm; `near` is the plan of local blocks."""
        blocks, positions = self.transformer_encoder, self.positional_embedding
        plan = plan.with_bias(positions.score_bias(plan.positions))
        states = [positions.add(embeddings, plan.positions, plan.most_tokens)]
        is_recomputed = self.gradient_checkpointing and self.training
        views = block_views(len(blocks), positions, plan, self.local, near, real=True)
        for block, view in zip(blocks, views, strict=True):
            call = partial(self._gradient_checkpointing_func, block.__call__) if is_recomputed else block
            states.append(call(states[-1], *view))
        states[-1] = self.layer_norm(states[-1])
        return states

    def _positions(self, embeddings: Tensor, mask: Tensor | None, given: Tensor | None) -> Tensor:
        """Return each token's position in its document, (rows, tokens): from 0, and −1 at padding."""
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
        window: int = 0,
    ) -> InterfaceAttention:
        """Return transformers' attention function with its mask; `window` is the number of tokens seen on each side.

        Raises:
            ValueError: the implementation does not support the request.
        """
        implementation = self.config._attn_implementation
        if wants_attentions and implementation != "eager":
            raise ValueError(
                f"attn_implementation {implementation!r} computes no attention weights: load the model with "
                f'attn_implementation="eager" for output_attentions=True'
            )
        function = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        if mask is not None and mask.ndim == 4 and not mask.is_floating_point():
            mask = mask.bool()
        if window and mask is not None and mask.ndim == 4:
            raise ValueError("local blocks make their own masks: give an attention_mask of (rows, tokens)")
        rows, tokens, _ = embeddings.shape
        documents = None
        if position_ids is not None and mask is None:
            documents = find_packed_sequence_indices(position_ids.expand(rows, tokens))
        if window and "flash" in implementation:
            options = {**options, "sliding_window": window + 1}  # transformers counts the token itself
        if documents is not None and "flash" in implementation:
            if rows > 1:
                raise ValueError(
                    f"position_ids start again within {rows} rows, and {implementation} separates documents of one row "
                    "alone: flatten the batch to one row, or give an attention_mask"
                )
            return InterfaceAttention(function, self, None, {**options, "position_ids": position_ids})
        functions = [] if documents is None else [packed_sequence_mask_function(documents)]
        functions += [near_mask_function(window)] if window and "flash" not in implementation else []
        visible = create_bidirectional_mask(
            config=self.config,
            inputs_embeds=embeddings,
            attention_mask=mask,
            and_mask_function=and_masks(*functions) if functions else None,
        )
        return InterfaceAttention(function, self, visible, options)


class LabelModel(NeoBERTPreTrainedModel):
    """Base class of models with one kind of logits and labels; subclasses implement `_head`."""

    _output: type[MaskedLMOutput | SequenceClassifierOutput | TokenClassifierOutput]

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERTModel(config)

    def _head(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        """Compute logits from hidden states (rows, tokens, width) and the attention mask."""
        raise NotImplementedError

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> MaskedLMOutput | SequenceClassifierOutput | TokenClassifierOutput:
        """Return logits, and with `labels` the loss; see the class for shapes, `NeoBERTModel.forward` for inputs."""
        outputs: BaseModelOutput = self.model(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self._head(cast(Tensor, outputs.last_hidden_state), attention_mask)
        loss = None
        if labels is not None:
            # transformers' loss functions take different parameters, and each ignores those of the others.
            sizes = {"config": self.config, "vocab_size": self.config.vocab_size}
            loss = self.loss_function(logits=logits, labels=labels, pooled_logits=logits, **sizes, **kwargs)
        return self._output(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class NeoBERTForMaskedLM(LabelModel):
    """Masked language modelling: a linear decoder with bias, not tied to the embedding.

    Logits (rows, tokens, vocabulary); the loss is the mean cross-entropy over labels (rows, tokens; −100 ignored).

    ```python
    >>> from transformers import AutoTokenizer
    >>> from neobert import NeoBERTForMaskedLM

    >>> tokenizer = AutoTokenizer.from_pretrained("chandar-lab/NeoBERT")
    >>> model = NeoBERTForMaskedLM.from_pretrained("chandar-lab/NeoBERT")
    >>> logits = model(**tokenizer("The capital of France is [MASK].", return_tensors="pt")).logits
    ```
    """

    _needs_decoder = True
    _output = MaskedLMOutput

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the decoder."""
        self.decoder = new_embeddings

    def _head(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return cast(Tensor, self.decoder(hidden))


class NewHead(NeoBERTPreTrainedModel):
    """Base class of linear heads added after pre-training, initialized from N(0, classifier_init_range²)."""

    _keys_to_ignore_on_load_unexpected = [r"^decoder\."]  # noqa: RUF012 - transformers' convention

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, mean=0.0, std=self.config.classifier_init_range)
            init.zeros_(module.bias)


class NeoBERTForSequenceClassification(NewHead, LabelModel):
    """Sequence classification: pooling, dropout, dense, tanh, dropout, classifier (released code).

    Logits (rows, labels); the loss follows the configuration's problem type. One label means regression.
    """

    _output = SequenceClassifierOutput

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

    def _head(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        pooled = self.dropout(self._pool(hidden, mask))
        return cast(Tensor, self.classifier(self.dropout(torch.tanh(self.dense(pooled)))))

    def _pool(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.ndim != 2:
            raise ValueError(
                "sequence classification needs a 2-D attention_mask, (rows, tokens), to know which tokens to pool"
            )
        if self.config.classifier_pooling == "mean":
            return hidden.mean(dim=1) if mask is None else mean_over_tokens(hidden, mask.long() - 1)
        if mask is None:
            return hidden[:, 0]
        rows = torch.arange(len(hidden), device=hidden.device)
        return hidden[rows, mask.int().argmax(dim=1)]  # with padding on the left, [CLS] is not the first column


class NeoBERTForTokenClassification(NewHead, LabelModel):
    """Token classification: dropout and a linear classifier.

    Logits (rows, tokens, labels); the loss is the mean cross-entropy over labels (rows, tokens; −100 ignored).
    """

    _output = TokenClassifierOutput

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

    def _head(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        return cast(Tensor, self.classifier(self.dropout(hidden)))


class NeoBERTForQuestionAnswering(NewHead):
    """Extractive question answering: a start and an end score for every token."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERTModel(config)
        self.qa_outputs = nn.Linear(config.hidden_size, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Any,
    ) -> QuestionAnsweringModelOutput:
        """Return start and end logits (rows, tokens), and given both positions (rows,) the mean cross-entropy."""
        outputs: BaseModelOutput = self.model(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        start_logits, end_logits = self.qa_outputs(outputs.last_hidden_state).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start_logits.contiguous(),
            end_logits=end_logits.contiguous(),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
