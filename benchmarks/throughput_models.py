"""Encoders whose speed is compared, from configurations alone: NeoBERT and Hugging Face's BERT, RoBERTa, ModernBERT."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from benchmarks.contenders import neobert_recipe
from benchmarks.peers import CLS, PAD, SEP
from neobert.model.attention import whole_rows_plan
from neobert.model.build import build_encoder, initialize

Family = Literal["neobert", "bert", "roberta", "modernbert"]
Forward = Callable[[Tensor], Tensor]
"""Token ids (rows, tokens) to hidden states (rows, tokens, width)."""

HEAD_SIZE = 64
FIRST_TEXT_ID = 1000
ROBERTA_OFFSET = PAD + 1
"""Its positions begin behind the padding id."""


@dataclass(frozen=True)
class EncoderShape:
    """An encoder by name. `feedforward_width` is that of the family's own configuration; `positions` is how many tokens
    its table of positions or its published configuration holds, None where nothing bounds them."""

    name: str
    family: Family
    layers: int
    width: int
    feedforward_width: int
    vocabulary_size: int
    positions: int | None

    @property
    def heads(self) -> int:
        """All families have heads of 64."""
        return self.width // HEAD_SIZE

    def scaled_down(self, divisor: int) -> "EncoderShape":
        """Depth and width divided alike, so that their ratio stays; the name tells both."""
        layers, width = max(1, round(self.layers / divisor)), self.width // divisor
        assert width % HEAD_SIZE == 0, f"{self.name} has no {divisor}th"
        return replace(
            self,
            name=f"{self.name} ({layers} × {width})",
            layers=layers,
            width=width,
            feedforward_width=self.feedforward_width // divisor,
        )

    def reads(self, tokens: int) -> bool:
        """Whether sequences of this length fit into its positions."""
        return self.positions is None or tokens <= self.positions

    def build(self, attention: str) -> tuple[nn.Module, Forward]:
        """The encoder with random weights and without a head, in evaluation mode, and its forward pass."""
        torch.manual_seed(0)
        if self.family == "neobert":
            return self._neobert()
        module = BUILDERS[self.family](self, attention).eval()
        return module, lambda token_ids: module(input_ids=token_ids).last_hidden_state

    def _neobert(self) -> tuple[nn.Module, Forward]:
        shape = {name: getattr(self, name) for name in ("layers", "width", "heads", "feedforward_width")}
        model = neobert_recipe("bf16", **shape, vocabulary_size=self.vocabulary_size).model
        encoder = build_encoder(model, context=0).eval()
        initialize(encoder, model.initialization, 0)
        return encoder, lambda token_ids: encoder(token_ids, whole_rows_plan(token_ids))

    @property
    def configuration(self) -> dict[str, Any]:
        """What all Hugging Face configurations call by the same names."""
        return {
            "vocab_size": self.vocabulary_size,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": self.feedforward_width,
            "pad_token_id": PAD,
            "bos_token_id": CLS,
            "eos_token_id": SEP,
        }


def _bert(shape: EncoderShape, attention: str) -> nn.Module:
    from transformers import BertConfig, BertModel

    assert shape.positions is not None
    configuration = BertConfig(**shape.configuration, max_position_embeddings=shape.positions)
    built: nn.Module = BertModel._from_config(configuration, attn_implementation=attention, add_pooling_layer=False)
    return built


def _roberta(shape: EncoderShape, attention: str) -> nn.Module:
    from transformers import RobertaConfig, RobertaModel

    assert shape.positions is not None
    positions = shape.positions + ROBERTA_OFFSET
    configuration = RobertaConfig(**shape.configuration, max_position_embeddings=positions, type_vocab_size=1)
    built: nn.Module = RobertaModel._from_config(configuration, attn_implementation=attention, add_pooling_layer=False)
    return built


def _modernbert(shape: EncoderShape, attention: str) -> nn.Module:
    """With its own local attention: two layers of three see 128 tokens."""
    from transformers import ModernBertConfig, ModernBertModel

    assert shape.positions is not None
    configuration = ModernBertConfig(
        **shape.configuration, cls_token_id=CLS, sep_token_id=SEP, max_position_embeddings=shape.positions
    )
    built: nn.Module = ModernBertModel._from_config(configuration, attn_implementation=attention)
    return built


BUILDERS: dict[Family, Callable[[EncoderShape, str], nn.Module]] = {
    "bert": _bert,
    "roberta": _roberta,
    "modernbert": _modernbert,
}

NEOBERT = EncoderShape("NeoBERT", "neobert", 28, 768, 3072, 30_522, None)
BASES = (
    EncoderShape("BERT-base", "bert", 12, 768, 3072, 30_522, 512),
    EncoderShape("RoBERTa-base", "roberta", 12, 768, 3072, 50_265, 512),
    EncoderShape("ModernBERT-base", "modernbert", 22, 768, 1152, 50_368, 8192),
)
LARGES = (
    EncoderShape("BERT-large", "bert", 24, 1024, 4096, 30_522, 512),
    EncoderShape("RoBERTa-large", "roberta", 24, 1024, 4096, 50_265, 512),
    EncoderShape("ModernBERT-large", "modernbert", 28, 1024, 2624, 50_368, 8192),
)
PAPER_ENCODERS = (NEOBERT, *BASES, *LARGES)
"""Those of the paper's throughput table, with the sizes of their published configurations."""


def sequences(rows: int, tokens: int, vocabulary_size: int) -> Tensor:
    """(rows, tokens) int64: random text between [CLS] and [SEP], as long as the row, so that no token is padding."""
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(FIRST_TEXT_ID, vocabulary_size, (rows, tokens), generator=generator)
    token_ids[:, 0], token_ids[:, -1] = CLS, SEP
    return token_ids


def real_tokens(token_ids: Tensor) -> int:
    """Tokens that are no padding."""
    return int((token_ids != PAD).sum())
