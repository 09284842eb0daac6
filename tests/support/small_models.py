"""Small recipes and random rows of documents that the tests of the model share."""

from typing import Any

import torch
from torch import Tensor

from neobert import recipe
from neobert.model.attention import AttentionPlan
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import Classifier, MaskedLanguageModel, mean_over_tokens

CONTEXT = 24

START = recipe.Initialization(distribution="uniform", weight_scale=0.2, embedding_scale=0.3, position_scale=0.3)

BERT_FORM = {"positions": "learned", "feedforward": "gelu", "norm": "layer_norm"}
NEOBERT_FORM = {"positions": "rotary", "feedforward": "swiglu", "norm": "rms_norm"}
FORMS = {"M0 form": BERT_FORM, "NeoBERT form": NEOBERT_FORM}


def small_model(**changes: Any) -> recipe.Model:
    """A model of three narrow layers in NeoBERT's form, with `changes`."""
    values: dict[str, Any] = {
        "vocabulary_size": 50,
        "layers": 3,
        "width": 24,
        "heads": 3,
        "feedforward_width": 60,
        "rotary_base": 10_000.0,
        "norm_epsilon": 1e-5,
        "dropout": 0.0,
        "attention_window": 0,
        "global_every": 1,
        "local_rotary_base": None,
        "initialization": START,
    }
    return recipe.Model.model_validate(values | NEOBERT_FORM | changes)


def language_model(context: int = CONTEXT, seed: int = 0, **changes: Any) -> MaskedLanguageModel:
    """A small model with values; norms and biases leave 1 and 0, so that no test can miss them."""
    network = build_masked_language_model(small_model(**changes), context)
    initialize(network, START, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return network


def classified(classifier: Classifier, token_ids: Tensor, plan: AttentionPlan, pooling: str = "cls") -> Tensor:
    """Logits (rows, labels) of rows of one document each, from all of its states."""
    states = classifier.model(token_ids, plan)
    return classifier.head(states[:, 0] if pooling == "cls" else mean_over_tokens(states, plan.positions))


def pack(rows: list[list[Tensor]], tokens: int) -> tuple[Tensor, Tensor, Tensor]:
    """Token ids, document numbers and positions (rows, tokens) of rows of documents, filler behind them."""
    token_ids = torch.zeros(len(rows), tokens, dtype=torch.int64)
    documents, positions = torch.full_like(token_ids, -1), torch.full_like(token_ids, -1)
    for row, texts in enumerate(rows):
        start = 0
        for number, text in enumerate(texts):
            here = slice(start, start + len(text))
            token_ids[row, here], documents[row, here] = text, number
            positions[row, here] = torch.arange(len(text))
            start += len(text)
    return token_ids, documents, positions


def random_document(length: int, seed: int = 0, vocabulary_size: int = 50) -> Tensor:
    """`length` token ids."""
    return torch.randint(1, vocabulary_size, (length,), generator=torch.Generator().manual_seed(1000 * seed + length))
