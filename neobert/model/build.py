"""Building modules from a recipe, and initializing their parameters."""

import hashlib
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor, nn

from neobert import recipe
from neobert.model.encoder import BLOCKS, Block, BlockParts, Encoder
from neobert.model.heads import Classifier, MaskedLanguageModel
from neobert.model.layers import FEEDFORWARDS, NORMS, SelfInitialized
from neobert.model.positions import POSITIONS, Positions

POSITION_MODULE = "positional_embedding"
"""Name of the encoder's module of positions."""


def _build_norm(model: recipe.Model, width: int) -> nn.Module:
    return NORMS.make(model.norm, width, model.norm_epsilon, settings=model.settings, field="norm")


def _build_block(model: recipe.Model) -> Block:
    norm, settings = partial(_build_norm, model), model.settings
    widths = model.width, model.feedforward_width
    parts = BlockParts(
        heads=model.heads,
        attention_norm=norm(model.width),
        qkv=nn.Linear(model.width, 3 * model.width, bias=False),
        wo=nn.Linear(model.width, model.width, bias=False),
        ffn_norm=norm(model.width),
        ffn=FEEDFORWARDS.make(model.feedforward, *widths, settings=settings, field="feedforward"),
        dropout=nn.Dropout(model.dropout),
        norm=norm,
    )
    return BLOCKS.make(model.block, parts, settings=settings, field="block")


def build_encoder(model: recipe.Model, context: int, precision: recipe.PretrainingPrecision | None = None) -> Encoder:
    """Build a recipe's encoder for documents of up to `context` tokens; `initialize` sets its parameters.

    precision: the precision of its passes, which decides the dtype of the residual stream; by default that of the
        weights.

    Raises:
        ValueError: an own part cannot be made, or is of another kind.
    """
    positions = POSITIONS.make(model.positions, model, context, settings=model.settings, field="positions")
    blocks = [_build_block(model) for _ in range(model.layers)]
    for name, part, kind in ((model.positions, positions, Positions), (model.block, blocks[0], Block)):
        if not isinstance(part, kind):
            raise ValueError(f"{name} is a {type(part).__name__}: derive it from {kind.__module__}.{kind.__name__}")
    return Encoder(
        embedding=nn.Embedding(model.vocabulary_size, model.width),
        positions=positions,
        blocks=blocks,
        norm=nn.Identity() if blocks[0].output_is_normalized else _build_norm(model, model.width),
        residual_dtype=torch.bfloat16 if precision == "bf16_residual" else None,
    )


def build_masked_language_model(
    model: recipe.Model, context: int, precision: recipe.PretrainingPrecision | None = None
) -> MaskedLanguageModel:
    """Build the encoder with its decoder, for pre-training; see `build_encoder`."""
    encoder, decoder = build_encoder(model, context, precision), nn.Linear(model.width, model.vocabulary_size)
    if model.tied_embeddings:
        decoder.weight = encoder.encoder.weight
    return MaskedLanguageModel(encoder, decoder, precision or "fp32")


def build_classifier(model: recipe.Model, context: int, labels: int, dropout: float) -> Classifier:
    """Build the encoder with a classifier of `labels` classes, or 1 for regression."""
    return Classifier(build_encoder(model, context), model.width, labels, dropout)


def initialize(module: nn.Module, initialization: recipe.Initialization, seed: int) -> None:
    """Set every parameter of `module` in place.

    Token embeddings are drawn with `embedding_scale`, tables of positions with `position_scale` (padding rows
    included), all other matrices with `weight_scale`; vectors become 1 and biases 0; last, modules that are
    `SelfInitialized` set their own. Each parameter has a generator of its own,
    seeded by `seed` and its name, so that two variants start with equal values in the parameters that they share.
    """
    for name, owner, parameter in _parameters(module):
        scale = initialization.weight_scale
        if isinstance(owner, nn.Embedding):
            is_position = isinstance(owner, Positions) or POSITION_MODULE in name.split(".")
            scale = initialization.position_scale if is_position else initialization.embedding_scale
        _fill(parameter, name, initialization.distribution, scale, seed)
    with torch.no_grad():
        for part in module.modules():
            if isinstance(part, SelfInitialized):
                part.initialize()


def initialize_classifier(classifier: Classifier, scale: float, seed: int) -> None:
    """Set the head of `classifier` in place: matrices from N(0, scale²), biases 0. The encoder is not changed."""
    for name, _, parameter in _parameters(classifier):
        if not name.startswith("model."):
            _fill(parameter, name, "normal", scale, seed)


def _parameters(module: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Parameter]]:
    """Yield each parameter's full name, the module that owns it, and the parameter; a shared one once."""
    seen = set[nn.Parameter]()
    for path, owner in module.named_modules():
        for name, parameter in owner.named_parameters(prefix=path, recurse=False):
            if parameter not in seen:
                seen.add(parameter)
                yield name, owner, parameter


@torch.no_grad()
def _fill(parameter: nn.Parameter, name: str, distribution: str, scale: float, seed: int) -> None:
    if name.endswith("bias"):
        parameter.zero_()
    elif parameter.ndim == 1:
        parameter.fill_(1.0)
    else:
        parameter.copy_(_draw(parameter.shape, distribution, scale, f"{seed}/{name}"))


def _draw(shape: torch.Size, distribution: str, scale: float, stream: str) -> Tensor:
    """Draw an fp32 tensor on the CPU, so that every device starts from the same values."""
    seed = int.from_bytes(hashlib.sha256(stream.encode()).digest()[:8]) >> 1
    generator = torch.Generator().manual_seed(seed)
    values = torch.empty(shape, dtype=torch.float32)
    if distribution == "uniform":
        return values.uniform_(-scale, scale, generator=generator)
    return values.normal_(0.0, scale, generator=generator)
