"""Small encoders of other families with random weights and a tokenizer of the synthetic world, saved to folders."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertModel,
    ElectraConfig,
    ElectraModel,
    GPT2Config,
    GPT2Model,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedModel,
    RobertaConfig,
    RobertaModel,
    T5Config,
    T5Model,
)

from neobert.data.synthetic import task_examples
from neobert.data.tokenizers import TextTokenizer, train_wordpiece
from neobert.embeddings.encoders import TextEncoder
from neobert.executors.encoders import load_encoder
from neobert.executors.external import write_model_file
from neobert.export.huggingface import transformers_tokenizer
from neobert.external import ExternalModel
from neobert.runs.layout import Layout

CONTEXT = 48
SHAPE: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def text_encoder(model: ExternalModel, runs: Path, **options: Any) -> TextEncoder:
    """The encoder that a worker loads for an external model."""
    write_model_file(Layout(runs), model)
    return load_encoder(Layout(runs), model.id, torch.device("cpu"), **options)


@cache
def tokenizer() -> TextTokenizer:
    """Some hundred words of the synthetic tasks."""
    examples = task_examples("rte", "train")
    return train_wordpiece([*examples["sentence1"][:400], *examples["sentence2"][:400]], 400)


def specials() -> dict[str, int]:
    """The tokenizer's special ids and size, as configurations call them."""
    ids = tokenizer().ids
    named = {"pad_token_id": ids.pad, "cls_token_id": ids.cls, "sep_token_id": ids.sep}
    return {"vocab_size": tokenizer().vocabulary_size, **named}


def bert(**changes: Any) -> PreTrainedModel:
    """BERT with token types and learned positions."""
    return BertModel(BertConfig(**{**SHAPE, **specials(), "max_position_embeddings": CONTEXT, **changes}))


def modernbert() -> PreTrainedModel:
    """ModernBERT with rotary positions and local attention."""
    ends = {"bos_token_id": tokenizer().ids.cls, "eos_token_id": tokenizer().ids.sep}
    return ModernBertModel(ModernBertConfig(**{**SHAPE, **specials(), **ends, "max_position_embeddings": CONTEXT}))


def roberta() -> PreTrainedModel:
    """RoBERTa, whose positions start behind the padding id."""
    pad = tokenizer().ids.pad
    return RobertaModel(RobertaConfig(**{**SHAPE, **specials(), "max_position_embeddings": CONTEXT + pad + 1}))


def electra() -> PreTrainedModel:
    """ELECTRA, whose embedding is narrower or wider than its hidden states."""
    return ElectraModel(
        ElectraConfig(**{**SHAPE, **specials(), "max_position_embeddings": CONTEXT, "embedding_size": 24})
    )


FAMILIES = {"bert": bert, "modernbert": modernbert, "roberta": roberta, "electra": electra}


def gpt2() -> PreTrainedModel:
    """A decoder."""
    return GPT2Model(
        GPT2Config(vocab_size=specials()["vocab_size"], n_embd=16, n_layer=1, n_head=2, n_positions=CONTEXT)
    )


def t5() -> PreTrainedModel:
    """An encoder with a decoder."""
    return T5Model(
        T5Config(vocab_size=specials()["vocab_size"], d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    )


def save(model: PreTrainedModel, folder: Path, *, token_types: bool = False) -> Path:
    """The model and its tokenizer as transformers saves them."""
    model.save_pretrained(folder)
    fast = transformers_tokenizer(tokenizer(), CONTEXT)
    if token_types:
        fast.model_input_names = ["input_ids", "token_type_ids", "attention_mask"]
    fast.save_pretrained(folder)
    return folder


def seeded(build: Any) -> PreTrainedModel:
    """A model whose random weights are always the same."""
    torch.manual_seed(0)
    return build()
