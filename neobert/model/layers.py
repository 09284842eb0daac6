"""Feed-forward networks, all without biases, and norms over the last dimension.

A new one is a class and a row of `FEEDFORWARDS` or `NORMS`. A feed-forward whose name ends in "glu" is a gated linear
unit and takes two thirds of the nominal width, so that all have equal parameters; `neobert.model.size` counts by the
same rule. What a norm gives has the dtype of what comes in, under autocast too.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.model.size import gated_width

FEW_KERNELS_NUMBERS = 1 << 15
"""Numbers of an input from which fewer kernels on a CPU outweigh that they are called from Python."""


class GELUFeedForward(nn.Sequential):
    """W₂·GELU(W₁·x) (Hendrycks and Gimpel 2016), keys `0.weight` and `2.weight`."""

    def __init__(self, width: int, nominal_width: int) -> None:
        super().__init__(
            nn.Linear(width, nominal_width, bias=False), nn.GELU(), nn.Linear(nominal_width, width, bias=False)
        )


class GatedFeedForward(nn.Module):
    """W₃·(activation(gate) · value) with [gate; value] = W₁₂·x (Shazeer 2020), keys `w12.weight` and `w3.weight`."""

    activation: Callable[[Tensor], Tensor]

    def __init__(self, width: int, nominal_width: int) -> None:
        super().__init__()
        hidden = gated_width(nominal_width)
        self.w12 = nn.Linear(width, 2 * hidden, bias=False)
        self.w3 = nn.Linear(hidden, width, bias=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """(…, width) to (…, width)."""
        gate, value = self.w12(hidden).chunk(2, dim=-1)
        return self.w3(self.activation(gate) * value)


class SwiGLU(GatedFeedForward):
    """Gated by SiLU, NeoBERT's feed-forward."""

    activation = staticmethod(functional.silu)


class GeGLU(GatedFeedForward):
    """Gated by GELU, ModernBERT's feed-forward (Shazeer 2020)."""

    activation = staticmethod(functional.gelu)


FEEDFORWARDS: dict[str, Callable[[int, int], nn.Module]] = {
    "gelu": GELUFeedForward,
    "swiglu": SwiGLU,
    "geglu": GeGLU,
}


class LayerNorm(nn.LayerNorm):
    """Layer norm with weight and bias (Ba et al. 2016)."""

    def forward(self, input: Tensor) -> Tensor:
        """`input` (…, width) normalized, in its own dtype."""
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        with _without_upcast(input):
            return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm with a weight (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """`x` (…, width) normalized, in its own dtype."""
        # A weight of another dtype than the activations' misses the fused kernel.
        weight = cast(Tensor, self.weight).to(x.dtype)
        if x.is_cpu and x.numel() >= FEW_KERNELS_NUMBERS and not _is_traced():
            return cast(Tensor, FewKernelsRMSNorm.apply(x, weight, self.eps))
        with _without_upcast(x):
            return functional.rms_norm(x, self.normalized_shape, weight, self.eps)


def _without_upcast(x: Tensor) -> AbstractContextManager[object]:
    """Autocast copies what norms read into fp32, which kernels for bf16 need not: they sum in fp32."""
    if x.dtype == torch.float32:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def _is_traced() -> bool:
    """Whether a compiler, an exporter or a transform such as vmap looks at the operations."""
    transformed: bool = torch._C._are_functorch_transforms_active()
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed


class FewKernelsRMSNorm(torch.autograd.Function):
    """The RMS norm for eager CPUs, where torch has no kernel of its own: it takes a dozen there, a third of the speed.

    Backward is that of the layer norm with a mean of 0, less what comes from subtracting a mean.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """`x` (…, width) normalized; sums are in fp32 or better."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
        inverse = norm.square_().mul_(1 / x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients of input and weight."""
        x, weight, inverse = ctx.saved_tensors
        wide_x, wide_weight, gradient = (tensor.to(inverse.dtype) for tensor in (x, weight, gradient))
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, wide_x, [x.shape[-1]], torch.zeros_like(inverse), inverse, wide_weight, None, [True, True, False]
        )
        of_x += (gradient * wide_weight).mean(dim=-1, keepdim=True).mul_(inverse)
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None


NORMS: dict[str, Callable[[int, float], nn.Module]] = {"layer_norm": LayerNorm, "rms_norm": RMSNorm}
