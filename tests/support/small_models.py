"""Small recipes and random rows of documents that the tests of the model share."""

from collections.abc import Sequence
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
        "block": "pre_norm",
        "tied_embeddings": False,
        "initialization": START,
    }
    return recipe.Model.model_validate(values | NEOBERT_FORM | changes)


def released_shapes(model: recipe.Model, context: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of a language model, written down from the released checkpoint: 6 a block and 4
    more in NeoBERT's form. M0's differ in feed-forward and position table, and have biases in norms."""
    width, nominal = model.width, model.feedforward_width
    gated = {3072: 2048, 60: 40}[nominal]
    inner = {"ffn.w12.weight": (2 * gated, width), "ffn.w3.weight": (width, gated)}
    if model.feedforward == "gelu":
        inner = {"ffn.0.weight": (nominal, width), "ffn.2.weight": (width, nominal)}
    norm = ("weight", "bias") if model.norm == "layer_norm" else ("weight",)
    norms = {f"{name}.{part}": (width,) for name in ("attention_norm", "ffn_norm") for part in norm}
    block = {"qkv.weight": (3 * width, width), "wo.weight": (width, width), **norms, **inner}
    shapes: dict[str, tuple[int, ...]] = {"model.encoder.weight": (model.vocabulary_size, width)}
    if model.positions == "learned":
        shapes["model.positional_embedding.weight"] = (context + 1, width)
    for layer in range(model.layers):
        shapes |= {f"model.transformer_encoder.{layer}.{name}": shape for name, shape in block.items()}
    shapes |= {f"model.layer_norm.{part}": (width,) for part in norm}
    return shapes | {"decoder.weight": (model.vocabulary_size, width), "decoder.bias": (model.vocabulary_size,)}


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


def padded_rows(lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Token ids and mask (documents, longest) of random documents of these lengths, padding on the right."""
    ids, numbers, _ = pack([[random_document(length)] for length in lengths], max(lengths))
    return ids, (numbers >= 0).long()


def random_document(length: int, seed: int = 0, vocabulary_size: int = 50) -> Tensor:
    """`length` token ids."""
    return torch.randint(1, vocabulary_size, (length,), generator=torch.Generator().manual_seed(1000 * seed + length))
