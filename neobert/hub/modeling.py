"""NeoBERT as a transformers model: the blocks of `neobert.model` behind transformers' attention interface."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils import logging
from transformers.utils.generic import can_return_tuple

from neobert.hub.attention import document_positions, refuse_mask, requested_attention
from neobert.hub.configuration import NeoBERTConfig
from neobert.model.attention import AttentionPlan
from neobert.model.build import build_encoder
from neobert.model.heads import mean_over_tokens
from neobert.model.positions import LearnedPositions

HEADS = ("decoder.", "dense.", "classifier.")
"""Name prefixes of the heads' tensors; all others belong to the encoder."""

PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")

SHOWN_KEYS = 3


def refuse_pickle(name_or_folder: Any, use_safetensors: bool | None) -> None:
    """Check that the weights are safetensors, because loading a pickle can run code. Raises ValueError if a pickle is
    requested, or the folder has pickles but no safetensors."""
    if use_safetensors is False:
        raise ValueError("use_safetensors=False loads pickled weights, which can run code: leave it out")
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
            f"the checkpoint {name} has {key} of shape {tuple(found)}, but the configuration needs {tuple(expected)}: "
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
    >>> from neobert.hub import NeoBERTModel

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
        self._no_split_modules = {type(block).__name__ for block in self.transformer_encoder}
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
                borders in several rows with a flash kernel, or together with a mask.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        embeddings = self.encoder(input_ids) if inputs_embeds is None else inputs_embeds
        refuse_mask(attention_mask, embeddings)
        if (borders := kwargs.pop("cu_seqlens", None)) is not None:
            position_ids = document_positions(borders, embeddings, attention_mask, position_ids)
        kwargs.pop("max_seqlen", None)  # follows from cu_seqlens
        positions = self._positions(embeddings, attention_mask, position_ids)
        wants_weights = self.config.output_attentions if output_attentions is None else output_attentions
        weights: list[Any] | None = [] if wants_weights else None
        attention = requested_attention(self, embeddings, attention_mask, position_ids, kwargs, weights)
        states = self._states(embeddings, AttentionPlan(positions, attention=attention))
        wants_states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        return BaseModelOutput(
            last_hidden_state=states[-1],
            hidden_states=tuple(states) if wants_states else None,
            attentions=None if weights is None else tuple(weights[: len(self.transformer_encoder)]),
        )

    def _states(self, embeddings: Tensor, plan: AttentionPlan) -> list[Tensor]:
        """Return the input of each block and the output of the final norm."""
        positions = self.positional_embedding
        plan = plan.with_bias(positions.score_bias(plan.positions))
        states = [positions.add(embeddings, plan.positions, plan.most_tokens)]
        is_recomputed = self.gradient_checkpointing and self.training
        rotation = positions.rotation(plan.positions, "real")
        for block in self.transformer_encoder:
            call = partial(self._gradient_checkpointing_func, block.__call__) if is_recomputed else block
            states.append(call(states[-1], plan, rotation))
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
        context = self.config.max_length
        if torch.compiler.is_compiling() or (tokens <= context and given is None):
            return positions
        longest = int(positions.max()) + 1
        if longest > context and isinstance(self.positional_embedding, LearnedPositions):
            raise ValueError(
                f"a sequence reaches {longest} tokens, but the learned position table has {context}: truncate it to "
                f"{context} tokens, or take a model with rotary positions or a longer context"
            )
        if longest > context:
            logger.warning_once(f"A sequence reaches {longest} tokens, and the model was trained on at most {context}.")
        return positions


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
    >>> from neobert.hub import NeoBERTForMaskedLM

    >>> tokenizer = AutoTokenizer.from_pretrained("chandar-lab/NeoBERT")
    >>> model = NeoBERTForMaskedLM.from_pretrained("chandar-lab/NeoBERT")
    >>> logits = model(**tokenizer("The capital of France is [MASK].", return_tensors="pt")).logits
    ```
    """

    _needs_decoder = True
    _output = MaskedLMOutput
    _tied_weights_keys = {"decoder.weight": "model.encoder.weight"}  # noqa: RUF012 - transformers' convention

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
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
        else:
            super()._init_weights(module)


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
        mask = None if mask is None else mask.to(hidden.device)  # the last block may be on another device
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
