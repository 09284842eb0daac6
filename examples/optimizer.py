"""An optimizer of one's own: Muon (torch.optim.Muon) for the matrices of the blocks, AdamW for all else.

python ablations/run.py --ladder examples/optimizer.py --variant all --scale tiny --stages pretrain --cluster here

A matrix that is several projections, such as query, key and value, is orthogonalized by projection.
"""

from dataclasses import replace

from torch import Tensor, nn, no_grad, optim, zeros_like

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant
from neobert.model.encoder import Block
from neobert.model.layers import GatedFeedForward
from neobert.recipe import Optimization


class Muon(optim.Optimizer):
    def __init__(self, model: nn.Module, recipe: Optimization) -> None:
        self.layouts: dict[Tensor, tuple[int, int]] = {}  # groups of rows, and projections in each group
        for module in model.modules():
            if isinstance(module, Block):
                self.layouts[module.qkv.weight] = module.heads, 3
            elif isinstance(module, GatedFeedForward):
                self.layouts[module.w12.weight] = 1, 2
        super().__init__(model.parameters(), {"lr": recipe.peak_learning_rate})
        self.matrices, others = [], []
        for name, weight in model.named_parameters():
            is_matrix = weight.ndim == 2 and "transformer_encoder" in name
            (self.matrices if is_matrix else others).append(weight)
        self.recipe = recipe
        self.adamw = optim.AdamW(
            others, betas=(recipe.beta1, recipe.beta2), eps=recipe.epsilon, weight_decay=recipe.weight_decay
        )
        self.adamw.state = self.state  # checkpoints have what lies in it as tensors

    @no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        rate = self.adamw.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.adamw.step()
        for weight in self.matrices:
            groups, projections = self.layouts.get(weight, (1, 1))

            def split(matrix: Tensor, shape: tuple[int, int, int] = (groups, projections, -1)) -> Tensor:
                return matrix.unflatten(0, shape).transpose(0, 1).flatten(1, 2)

            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = zeros_like(split(weight))
            parts = [nn.Parameter(part) for part in split(weight)]
            decay, momentum = self.recipe.weight_decay, self.recipe.beta1  # made anew, as the state is by weight
            muon = optim.Muon(parts, rate, decay, momentum, adjust_lr_fn="match_rms_adamw")
            for part, gradient, buffer in zip(
                parts, split(weight.grad), self.state[weight]["momentum_buffer"], strict=True
            ):
                part.grad, muon.state[part]["momentum_buffer"] = gradient, buffer
            muon.step()
            for row, part in zip(weight.unflatten(0, (groups, projections, -1)).transpose(0, 1), parts, strict=True):
                row.copy_(part.view_as(row))


SOURCE = "Jordan et al. 2024, kellerjordan.github.io/posts/muon; arXiv 2502.16982 §2.2"
ADAMW = Modification("AdamW", source=ladder.ADAMW.source, optimization={"optimizer": "adamw", "weight_decay": 0.01})
BASE = Variant("adamw", "AdamW on M2", "this study", ADAMW.apply(ladder.M2.recipe))
ARM = BASE.derive("muon", Modification("Muon", source=SOURCE, optimization={"optimizer": Muon}))

SHAPES = {(12, 768): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200)
SCALES = {"tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 256}, steps={1_000_000: 6})}
