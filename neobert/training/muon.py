"""Muon: momentum, orthogonalized by a Newton–Schulz iteration, for the matrices of hidden layers (Jordan et al. 2024).

The update is that of torch.optim.Muon with Nesterov momentum and `match_rms_adamw` (Liu et al. 2025, arXiv 2502.16982).
Four things differ: a matrix that is several projections, such as query, key and value, is orthogonalized by projection;
matrices of equal shape are iterated as one batch; gradients are scaled and updates skipped on the device, as in torch's
fused optimizers, so that clipping needs no sync; and CPUs iterate in fp32.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from neobert.model.layers import FusedRows

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration, chosen for a steep slope at 0 (github.com/KellerJordan/Muon, muon.py; torch.optim.Muon)."""

ITERATIONS = 5
EPSILON = 1e-7
"""Least norm that a matrix is divided by, as in torch.optim.Muon."""

ADAMW_RMS = 0.2
"""Root mean square of an update for a learning rate of 1, near that of AdamW's updates (arXiv 2502.16982, §2.2)."""

FAST_IN_BF16 = ("cuda",)
"""Devices that iterate in bf16, like torch.optim.Muon. On a CPU with AVX2 products in bf16 take 13 to 50 times as long
as in fp32."""


class Muon(torch.optim.Optimizer):
    """Muon for matrices (rows, columns) with the layout of their projections; the state of each is its
    `momentum_buffer`."""

    # The protocol of GradScaler, see `neobert.training.optimization.takes_scale`.
    _step_supports_amp_scaling = True
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None

    def __init__(self, matrices: Mapping[Tensor, FusedRows], lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(list(matrices), {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})
        self.layouts = dict(matrices)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        for group in self.param_groups:
            of_shape: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    rows, columns = weight.shape
                    of_shape[tuple(sorted((rows // self.layouts[weight].projections, columns)))].append(weight)
            for (_, longer), weights in of_shape.items():
                self._update(weights, group, ADAMW_RMS * math.sqrt(longer))

    def _update(self, weights: list[Tensor], group: dict[str, Any], scale: float) -> None:
        """Update matrices with projections of one shape, transposed or not, by orthogonal ones times `scale`."""
        layouts = [self.layouts[weight] for weight in weights]
        directions = self._directions(weights, group["momentum"])
        projections = [layout.split(matrix) for layout, matrix in zip(layouts, directions, strict=True)]
        orthogonal = self._orthogonalized(projections)
        updates = [layout.join(matrices) for layout, matrices in zip(layouts, orthogonal, strict=True)]
        decay: float | Tensor = 1 - group["lr"] * group["weight_decay"]
        if self.found_inf is not None:
            decay = torch.where(self.found_inf == 0, decay, 1.0)
        torch._foreach_mul_(weights, decay)
        torch._foreach_add_(weights, updates, alpha=-group["lr"] * scale)

    def _directions(self, weights: list[Tensor], momentum: float) -> tuple[Tensor, ...]:
        """Update the momentum buffers and return the directions to orthogonalize."""
        for weight in weights:
            if "momentum_buffer" not in self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        buffers: list[Tensor] = [self.state[weight]["momentum_buffer"] for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        if self.grad_scale is not None:
            gradients = list(torch._foreach_div(gradients, self.grad_scale))
        if self.found_inf is not None:  # a buffer does not change by itself as a gradient
            skips = self.found_inf != 0
            gradients = [torch.where(skips, *pair) for pair in zip(buffers, gradients, strict=True)]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        return torch._foreach_lerp(gradients, buffers, momentum)

    def _orthogonalized(self, stacks: Sequence[Tensor]) -> list[Tensor]:
        """Orthogonalize stacks of matrices (count, rows, columns) as one batch; 0 if the update is to be skipped."""
        tall = [stack.shape[1] > stack.shape[2] for stack in stacks]
        wide = torch.cat([stack.mT if is_tall else stack for stack, is_tall in zip(stacks, tall, strict=True)])
        orthogonal = orthogonalize(wide)
        if self.found_inf is not None:
            orthogonal = orthogonal.where(self.found_inf == 0, 0.0)
        parts = orthogonal.split([len(stack) for stack in stacks])
        return [part.mT if is_tall else part for part, is_tall in zip(parts, tall, strict=True)]


def orthogonalize(matrices: Tensor) -> Tensor:
    """Replace the singular values of each of `matrices` (count, rows, columns), rows ≤ columns, by values of about 1.

    Those from 0.002 of the matrix's norm become 0.68 to 1.21; smaller ones grow by at most 3.4445⁵. The result has the
    dtype of `matrices`.
    """
    is_low = matrices.device.type in FAST_IN_BF16
    found = matrices.to(torch.bfloat16 if is_low else torch.promote_types(matrices.dtype, torch.float32))
    a, b, c = COEFFICIENTS
    found = found / torch.linalg.vector_norm(found, dim=(-2, -1), keepdim=True).clamp(min=EPSILON)
    for _ in range(ITERATIONS):
        gram = found @ found.mT
        found = torch.baddbmm(found, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.to(matrices.dtype)
