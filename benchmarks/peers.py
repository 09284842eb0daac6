"""Hugging Face's BERT and ModernBERT of one's own shape, and the training step that a careful user gives them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Literal

import torch
from torch import nn

from benchmarks.peer_batches import Batching, PeerBatch
from neobert.model.size import gated_width
from neobert.recipe import Model, Pretraining
from neobert.training.engine import autocast

Family = Literal["bert", "modernbert"]
PAD, CLS, SEP = 0, 2, 3


@dataclass(frozen=True)
class Peer:
    """A class and how it is fed; `sparse` computes logits at predicted tokens alone, which only ModernBERT knows."""

    family: Family
    batching: Batching
    sparse: bool = False

    @property
    def name(self) -> str:
        """Family, head and batching."""
        return f"HF {self.family}, {'sparse head, ' if self.sparse else ''}{self.batching}"

    def build(self, model: Model, context: int, attention: str = "sdpa") -> nn.Module:
        """The class with layers, width, heads and vocabulary of `model`, an untied decoder and no dropout."""
        torch.manual_seed(0)
        if self.family == "bert":
            return _bert(model, context, attention)
        return _modernbert(model, context, attention, sparse=self.sparse)


def _bert(model: Model, context: int, attention: str) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    configuration = BertConfig(
        **_shape(model),
        intermediate_size=model.feedforward_width,
        max_position_embeddings=context,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    built: nn.Module = BertForMaskedLM._from_config(configuration, attn_implementation=attention)
    return built


def _modernbert(model: Model, context: int, attention: str, *, sparse: bool) -> nn.Module:
    """With its own local attention: two layers of three see 128 tokens."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    configuration = ModernBertConfig(
        **_shape(model),
        intermediate_size=gated_width(model.feedforward_width),
        max_position_embeddings=context,
        bos_token_id=CLS,
        cls_token_id=CLS,
        eos_token_id=SEP,
        sep_token_id=SEP,
        sparse_prediction=sparse,
    )
    built: nn.Module = ModernBertForMaskedLM._from_config(configuration, attn_implementation=attention)
    return built


def _shape(model: Model) -> dict[str, Any]:
    return {
        "vocab_size": model.vocabulary_size,
        "hidden_size": model.width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
    }


def parameters(module: nn.Module) -> int:
    """How many numbers a model learns; a tied one counts once."""
    return sum(parameter.numel() for parameter in module.parameters())


def peer_step(
    module: nn.Module,
    batches: Sequence[PeerBatch],
    recipe: Pretraining,
    device: torch.device,
    *,
    compiled: bool,
) -> Callable[[], int]:
    """A function that makes one update on the next batch and returns the real tokens of it.

    Mean loss of the class, autocast, gradients clipped as Trainer does by default, fused AdamW.
    """
    module = module.to(device).train()
    network: Callable[..., Any] = _compiled_for(batches, module) if compiled else module
    rate, decay = recipe.optimization.peak_learning_rate, recipe.optimization.weight_decay
    optimizer = torch.optim.AdamW(module.parameters(), lr=rate, weight_decay=decay, fused=True)
    turns = cycle([batch.to(device) for batch in batches])

    def step() -> int:
        batch = next(turns)
        with autocast(device, recipe.precision):
            loss = network(**batch.arguments).loss
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), recipe.optimization.clip_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return batch.real_tokens

    return step


def _compiled_for(batches: Sequence[PeerBatch], module: nn.Module) -> Callable[..., Any]:
    """For the one width that batches have, else for any."""
    widths = {batch.input_ids.shape[1] for batch in batches}
    compiled: Callable[..., Any] = torch.compile(module, dynamic=True if len(widths) > 1 else None)
    return compiled
