"""How many parameters a recipe has and how much work a token is, without importing torch."""

from dataclasses import dataclass

from neobert import recipe

NORM_VECTORS = {"layer_norm": 2, "rms_norm": 1}


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a masked language model; `body` holds the blocks and the last norm."""

    embeddings: int
    positions: int
    body: int
    decoder: int

    @property
    def encoder(self) -> int:
        """Everything that fine-tuning keeps: all but the decoder."""
        return self.embeddings + self.positions + self.body

    @property
    def total(self) -> int:
        """All parameters, decoder included."""
        return self.encoder + self.decoder


def is_gated(feedforward: str) -> bool:
    """Whether a feed-forward is a gated linear unit: by Shazeer (2020), exactly those whose name ends in "glu"."""
    return feedforward.endswith("glu")


def gated_width(nominal_width: int) -> int:
    """Hidden width of a gated feed-forward: two thirds of the nominal one, rounded up to a multiple of 8."""
    return -(-int(2 * nominal_width / 3) // 8) * 8


def feedforward_weights(model: recipe.Model) -> int:
    """Weights of one feed-forward: two matrices, or three narrower ones where it is gated."""
    if is_gated(model.feedforward):
        return 3 * model.width * gated_width(model.feedforward_width)
    return 2 * model.width * model.feedforward_width


def body_weights(model: recipe.Model) -> int:
    """Entries of all matrices inside the blocks: query, key, value, output projection and feed-forward."""
    return model.layers * (4 * model.width**2 + feedforward_weights(model))


def parameter_count(model: recipe.Model, context: int) -> Parameters:
    """Counts for a model whose longest context is `context` tokens (the size of a learned position table)."""
    norms = (2 * model.layers + 1) * NORM_VECTORS[model.norm] * model.width
    return Parameters(
        embeddings=model.vocabulary_size * model.width,
        positions=(context + 1) * model.width if model.positions == "learned" else 0,
        body=body_weights(model) + norms,
        decoder=model.vocabulary_size * (model.width + 1),
    )


def training_flops_per_token(model: recipe.Model, attended_tokens: float, predicted_share: float) -> float:
    """Floating-point operations of forward and backward for one token.

    Six for each matrix entry of the body, six for each of the decoder at the `predicted_share` of tokens that get
    logits, and twelve × layers × width for each of the `attended_tokens`, the mean length that a token attends to
    (Chowdhery et al. 2022, appendix B, for attention in both directions).
    """
    decoder = model.vocabulary_size * model.width * predicted_share
    attention = model.layers * model.width * attended_tokens
    return 6 * body_weights(model) + 6 * decoder + 12 * attention
