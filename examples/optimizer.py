"""An optimizer of one's own: Muon (torch.optim.Muon) for the matrices of the blocks, AdamW for all else.

python ablations/run.py --ladder examples/optimizer.py --variant all --scale tiny --stages pretrain --cluster here
"""

from dataclasses import replace

from torch import Tensor, nn, no_grad, optim

from ablations import ladder
from ablations.scales import SMOKE
from ablations.variant import Modification, Variant
from neobert.model.encoder import Block
from neobert.model.layers import GatedFeedForward
from neobert.recipe import Optimization


class Muon(optim.Optimizer):
    def __init__(self, model: nn.Module, recipe: Optimization) -> None:
        super().__init__(model.parameters(), {"lr": recipe.peak_learning_rate})
        self.recipe = recipe
        named = list(model.named_parameters())
        self.matrices = [weight for name, weight in named if weight.ndim == 2 and "transformer_encoder" in name]
        others = [weight for name, weight in named if weight.ndim != 2 or "transformer_encoder" not in name]
        betas = recipe.beta1, recipe.beta2
        self.adamw = optim.AdamW(others, betas=betas, eps=recipe.epsilon, weight_decay=recipe.weight_decay)
        self.adamw.state = self.state  # checkpoints have the tensors in it
        self.layouts: dict[Tensor, tuple[int, int]] = {}  # (groups, projections): each is orthogonalized alone
        for module in model.modules():
            if isinstance(module, Block):
                self.layouts[module.qkv.weight] = module.heads, 3
            elif isinstance(module, GatedFeedForward):
                self.layouts[module.w12.weight] = 1, 2

    @no_grad()
    def step(self, closure: None = None) -> None:
        rate = self.adamw.param_groups[0]["lr"] = self.param_groups[0]["lr"]
        self.adamw.step()
        for weight in self.matrices:
            groups, count = self.layouts.get(weight, (1, 1))
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = weight.new_zeros(count, len(weight) // count, weight.shape[1])
            for number, momentum in enumerate(self.state[weight]["momentum_buffer"]):
                rows, gradient = (each.unflatten(0, (groups, count, -1))[:, number] for each in (weight, weight.grad))
                part = nn.Parameter(rows.flatten(0, 1).clone())
                part.grad = gradient.flatten(0, 1)
                settings = {"weight_decay": self.recipe.weight_decay, "momentum": self.recipe.beta1}
                muon = optim.Muon([part], rate, adjust_lr_fn="match_rms_adamw", **settings)
                muon.state[part]["momentum_buffer"] = momentum
                muon.step()
                rows.copy_(part.view_as(rows))


ADAMW = Modification("AdamW", source=ladder.ADAMW.source, optimization={"optimizer": "adamw", "weight_decay": 0.01})
BASE = Variant("adamw", "AdamW on M2", "this study", ADAMW.apply(ladder.M2.recipe))
ARM = BASE.derive("muon", Modification("Muon", source="arXiv 2502.16982 §2.2", optimization={"optimizer": Muon}))

SHAPES = {(12, 768): (2, 16)}
TINY = replace(SMOKE, shapes={"trained": SHAPES, "published": SHAPES}, heads=2, documents=200)
SCALES = {"tiny": replace(TINY, contexts={512: 64}, tokens_per_step={131_072: 256}, steps={1_000_000: 6})}
