"""The encoder under transformers' task heads, with their losses."""

from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import initialization as init
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from neobert.hub.configuration import NeoBERTConfig
from neobert.hub.modeling import NeoBERTModel, NeoBERTPreTrainedModel
from neobert.model.attention import take
from neobert.model.heads import mean_over_tokens


class NeoBERTForMaskedLM(NeoBERTPreTrainedModel):
    """Masked language modelling: a linear decoder with bias, not tied to the embedding.

    ```python
    >>> from transformers import AutoTokenizer
    >>> from neobert import NeoBERTForMaskedLM

    >>> tokenizer = AutoTokenizer.from_pretrained("chandar-lab/NeoBERT")
    >>> model = NeoBERTForMaskedLM.from_pretrained("chandar-lab/NeoBERT")
    >>> logits = model(**tokenizer("The capital of France is [MASK].", return_tensors="pt")).logits
    ```
    """

    _needs_decoder = True

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERTModel(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self) -> nn.Linear:
        """The decoder."""
        return self.decoder

    def set_output_embeddings(self, new_embeddings: nn.Linear) -> None:
        """Replace the decoder."""
        self.decoder = new_embeddings

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
    ) -> MaskedLMOutput:
        """Logits (rows, tokens, vocabulary), and with `labels` (rows, tokens; −100 ignored) the mean cross-entropy."""
        outputs: BaseModelOutput = self.model(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.decoder(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return MaskedLMOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class NewHeadModel(NeoBERTPreTrainedModel):
    """A model whose linear head is new after pre-training: it starts from N(0, classifier_init_range²)."""

    _keys_to_ignore_on_load_unexpected = [r"^decoder\."]  # noqa: RUF012 - transformers' convention

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.normal_(module.weight, mean=0.0, std=self.config.classifier_init_range)
            init.zeros_(module.bias)


class NeoBERTForSequenceClassification(NewHeadModel):
    """Pooling, dropout, dense, tanh, dropout, classifier, as in the released code. One label is a regression."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERTModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

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
    ) -> SequenceClassifierOutput:
        """Logits (rows, labels), and with `labels` the loss of the configuration's problem type."""
        outputs: BaseModelOutput = self.model(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        pooled = self.dropout(self._pooled(cast(Tensor, outputs.last_hidden_state), attention_mask))
        logits = self.classifier(self.dropout(torch.tanh(self.dense(pooled))))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config, **kwargs)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )

    def _pooled(self, hidden: Tensor, mask: Tensor | None) -> Tensor:
        if mask is not None and mask.ndim != 2:
            raise ValueError(
                "sequence classification needs a 2-D attention_mask, (rows, tokens), to know which tokens to pool"
            )
        if self.config.classifier_pooling == "mean":
            return hidden.mean(dim=1) if mask is None else mean_over_tokens(hidden, mask.long() - 1)
        # With padding on the left, [CLS] is not the first column.
        return hidden[:, 0] if mask is None else take(hidden, mask.int().argmax(dim=1, keepdim=True))[:, 0]


class NeoBERTForTokenClassification(NewHeadModel):
    """A class for every token: dropout and a linear classifier."""

    def __init__(self, config: NeoBERTConfig) -> None:
        super().__init__(config)
        self.model = NeoBERTModel(config)
        self.dropout = nn.Dropout(config.classifier_dropout)
        self.classifier = nn.Linear(config.hidden_size, cast(int, config.num_labels))
        self.post_init()

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
    ) -> TokenClassifierOutput:
        """Logits (rows, tokens, labels), and with `labels` (rows, tokens; −100 ignored) the mean cross-entropy."""
        outputs: BaseModelOutput = self.model(
            input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None if labels is None else self.loss_function(logits, labels, self.config, **kwargs)
        return TokenClassifierOutput(
            loss=loss, logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions
        )


class NeoBERTForQuestionAnswering(NewHeadModel):
    """Where an answer starts and ends: two scores for every token."""

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
        """Start and end logits (rows, tokens); with both positions (rows) the mean of the two cross-entropies."""
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
