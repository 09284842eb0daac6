"""Position-wise feed-forward networks, all without biases.

A new one is a class and a row of the table. One whose name ends in "glu" is a gated linear unit and takes two thirds
of the nominal width, so that all have equal parameters; `neobert.model.size` counts by the same rule.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional

from neobert.model.size import gated_width


class GELUFeedForward(nn.Sequential):
    """W₂·GELU(W₁·x) (Hendrycks and Gimpel 2016), keys `0.weight` and `2.weight`."""

    def __init__(self, width: int, nominal_width: int) -> None:
        super().__init__(
            nn.Linear(width, nominal_width, bias=False), nn.GELU(), nn.Linear(nominal_width, width, bias=False)
        )


class GatedFeedForward(nn.Module):
    """W₃·(activation(gate) · value) with [gate; value] = W₁₂·x (Shazeer 2020), keys `w12.weight` and `w3.weight`."""

    def __init__(self, width: int, nominal_width: int) -> None:
        super().__init__()
        hidden = gated_width(nominal_width)
        self.w12 = nn.Linear(width, 2 * hidden, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)

    def activation(self, gate: Tensor) -> Tensor:
        """What the gate goes through; a gated feed-forward says it."""
        raise NotImplementedError

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, width) to (…, width)."""
        gate, value = self.w12(hidden).chunk(2, dim=-1)
        return self.w3(self.activation(gate) * value)


class SwiGLU(GatedFeedForward):
    """Gated by SiLU, NeoBERT's feed-forward."""

    def activation(self, gate: Tensor) -> Tensor:
        """SiLU."""
        return functional.silu(gate)


class GeGLU(GatedFeedForward):
    """Gated by GELU, ModernBERT's feed-forward (Shazeer 2020)."""

    def activation(self, gate: Tensor) -> Tensor:
        """GELU."""
        return functional.gelu(gate)


FEEDFORWARDS: dict[str, Callable[[int, int], nn.Module]] = {
    "gelu": GELUFeedForward,
    "swiglu": SwiGLU,
    "geglu": GeGLU,
}
