"""Optimizers of the recipe, and their state by parameter name."""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from neobert.recipe import Optimization

OPTIMIZERS: dict[str, type[torch.optim.Adam]] = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def build_optimizer(parameters: Iterable[nn.Parameter], recipe: Optimization) -> torch.optim.Optimizer:
    """One group for all parameters: the released code decays norms, embeddings and biases too (optimizer.py)."""
    return OPTIMIZERS[recipe.optimizer](
        list(parameters),
        lr=recipe.peak_learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The rate of the next update, in every group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimizer's state as {"<moment>/<parameter name>": tensor}; empty before the first update."""
    return {
        f"{moment}/{name}": value
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` gave, bit for bit."""
    parameters = dict(model.named_parameters())
    for key, value in tensors.items():
        moment, name = key.split("/", 1)
        parameter = parameters[name]
        device = "cpu" if moment == "step" and parameter.device.type == "cpu" else parameter.device
        optimizer.state[parameter][moment] = value.to(device).clone()
