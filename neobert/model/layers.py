"""Feed-forward networks, all without biases, and norms over the last dimension.

A new one is a class and a row of `FEEDFORWARDS` or `NORMS`, or a class in a user's file. A feed-forward of this package
whose name ends in "glu" is a gated linear unit and has two thirds of the nominal width, so that all have equally many
parameters; `neobert.model.size` counts by the same rule. A norm's output has the dtype of its input, also under
autocast.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.own_code import Parts
from neobert.recipe import gated_width

FEW_KERNELS_NUMBERS = 1 << 15
"""Elements of an input from which fewer CPU kernels outweigh the overhead of calling them from Python."""


class SelfInitialized(nn.Module, ABC):
    """Module that sets its own parameters (not those of modules in it), where the rules for all do not suit it."""

    @abstractmethod
    def initialize(self) -> None:
        """Set the parameters in place, after all others; it must not draw random numbers."""


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
        """Map (…, width) to (…, width)."""
        gate, value = self.w12(hidden).chunk(2, dim=-1)
        return self.w3(self.activation(gate) * value)


class SwiGLU(GatedFeedForward):
    """Gated feed-forward with SiLU, as in NeoBERT."""

    activation = staticmethod(functional.silu)


class GeGLU(GatedFeedForward):
    """Gated feed-forward with GELU, as in ModernBERT (Shazeer 2020)."""

    activation = staticmethod(functional.gelu)


FEEDFORWARDS = Parts[nn.Module](
    "feed-forward",
    "the width and the nominal width",
    {"gelu": GELUFeedForward, "swiglu": SwiGLU, "geglu": GeGLU},
)


class LayerNorm(nn.LayerNorm):
    """Layer norm with weight and bias (Ba et al. 2016)."""

    def forward(self, input: Tensor) -> Tensor:
        """Normalize `input` (…, width) in its own dtype."""
        weight, bias = self.weight.to(input.dtype), self.bias.to(input.dtype)
        with _without_upcast(input):
            return functional.layer_norm(input, self.normalized_shape, weight, bias, self.eps)


class RMSNorm(nn.RMSNorm):
    """Root-mean-square norm with a weight (Zhang and Sennrich 2019)."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize `x` (…, width) in its own dtype."""
        # The fused kernel needs weight and activations of the same dtype.
        weight = cast(Tensor, self.weight).to(x.dtype)
        if x.is_cpu and x.numel() >= FEW_KERNELS_NUMBERS and not _is_traced():
            return cast(Tensor, FewKernelsRMSNorm.apply(x, weight, self.eps))
        with _without_upcast(x):
            return functional.rms_norm(x, self.normalized_shape, weight, self.eps)


def _without_upcast(x: Tensor) -> AbstractContextManager[object]:
    """Disable autocast for low-precision inputs: it casts norms to fp32, but bf16 kernels already sum in fp32."""
    if x.dtype == torch.float32:
        return nullcontext()
    return torch.autocast(x.device.type, enabled=False)


def _is_traced() -> bool:
    """Whether a compiler, an exporter or a transform such as vmap traces the operations."""
    transformed: bool = torch._C._are_functorch_transforms_active()
    return torch.compiler.is_compiling() or torch.jit.is_tracing() or transformed


class FewKernelsRMSNorm(torch.autograd.Function):
    """RMS norm for eager mode on CPUs, where torch has no fused kernel but runs a dozen, at a third of the speed.

    The backward pass is layer norm's with a mean of 0, without the term that comes from subtracting the mean.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        """Normalize `x` (…, width); sums are in fp32 or better."""
        dtype = torch.promote_types(x.dtype, torch.float32)
        norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=dtype)
        inverse = norm.square_().mul_(1 / x.shape[-1]).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        return (x * inverse).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the gradients of input and weight."""
        x, weight, inverse = ctx.saved_tensors
        wide_x, wide_weight, gradient = (tensor.to(inverse.dtype) for tensor in (x, weight, gradient))
        of_x, of_weight, _ = torch.ops.aten.native_layer_norm_backward(
            gradient, wide_x, [x.shape[-1]], torch.zeros_like(inverse), inverse, wide_weight, None, [True, True, False]
        )
        of_x += (gradient * wide_weight).mean(dim=-1, keepdim=True).mul_(inverse)
        return of_x.to(x.dtype), of_weight.to(weight.dtype), None


NORMS = Parts[nn.Module]("norm", "the width and epsilon", {"layer_norm": LayerNorm, "rms_norm": RMSNorm})
