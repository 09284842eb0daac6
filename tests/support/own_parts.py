"""Own parts of tests, in a file of their own, as a user's file: its text is run again where the parts are used."""

import torch
from torch import Tensor, nn

from neobert.model.layers import GELUFeedForward
from neobert.model.positions import Positions
from neobert.recipe import Model


class ALiBiPositions(Positions):
    """Scores fall with the distance of two tokens, in each head at another rate (Press et al. 2022), to both sides."""

    def __init__(self, model: Model, context: int) -> None:
        super().__init__()
        self.slopes = [2.0 ** (-8 * (head + 1) / model.heads) for head in range(model.heads)]

    def score_bias(self, positions: Tensor) -> Tensor:
        """−slope × distance: (rows, heads, tokens, tokens)."""
        distances = (positions[:, None, :, None] - positions[:, None, None, :]).abs()
        return -torch.tensor(self.slopes, device=positions.device)[:, None, None] * distances


class Halved(GELUFeedForward):
    def forward(self, hidden: Tensor) -> Tensor:
        return super().forward(hidden) / 2


class OwnNorm(nn.LayerNorm):
    """A layer norm by another name."""
