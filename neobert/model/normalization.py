"""Norms over the last dimension. Their result has the dtype of what comes in, under autocast too."""

from collections.abc import Callable
from typing import cast

from torch import Tensor, nn
from torch.nn import functional


class LayerNorm(nn.LayerNorm):
    """Layer norm with weight and bias (Ba et al. 2016)."""

    def forward(self, input: Tensor) -> Tensor:
        """`input` (…, width) normalized, in its own dtype."""
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps).to(input.dtype)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm with a weight (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """`x` (…, width) normalized, in its own dtype."""
        # A weight of another dtype than the activations' misses the fused kernel.
        weight = cast(Tensor, self.weight).to(x.dtype)
        return functional.rms_norm(x, self.normalized_shape, weight, self.eps).to(x.dtype)


NORMS: dict[str, Callable[[int, float], nn.Module]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
