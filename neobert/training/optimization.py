"""Optimizers of the recipe, and their state by parameter name.

A new one is a row of `OPTIMIZERS` and its word in `neobert.recipe`, or a function in a user's file. Clipping, the guard
against values that are not finite, and checkpoints work with any optimizer whose state is tensors.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from neobert.own_code import Parts
from neobert.recipe import Optimization


def _adam(kind: type[torch.optim.Adam], weights: Iterable[nn.Parameter], recipe: Optimization) -> torch.optim.Optimizer:
    return kind(
        list(weights),
        lr=recipe.peak_learning_rate,
        betas=(recipe.beta1, recipe.beta2),
        eps=recipe.epsilon,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


OPTIMIZERS = Parts[torch.optim.Optimizer](
    "optimizer",
    "the model and the recipe of the optimization",
    {
        "adam": lambda model, recipe: _adam(torch.optim.Adam, model.parameters(), recipe),
        "adamw": lambda model, recipe: _adam(torch.optim.AdamW, model.parameters(), recipe),
    },
)


def build_optimizer(model: nn.Module, recipe: Optimization) -> torch.optim.Optimizer:
    """Build the recipe's optimizer of all parameters. Weight decay includes norms, embeddings and biases, as in the
    released code (optimizer.py). Raises ValueError if an own optimizer cannot be made, or is none of torch's kind."""
    optimizer = OPTIMIZERS.make(recipe.optimizer, model, recipe, settings=recipe.settings, field="optimizer")
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"the optimizer {recipe.optimizer} is a {type(optimizer).__name__}: make a torch.optim.Optimizer"
        )
    return optimizer


def takes_scale(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a step divides gradients by `grad_scale` and does nothing if `found_inf` is 1, as torch's fused
    optimizers do for GradScaler; clipping and guarding then need no sync."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


CLIP_EPSILON = 1e-6
"""Added to the norm, as in torch's own clipping."""


def clip(
    optimizer: torch.optim.Optimizer, gradients: list[Tensor], norm: Tensor, clip_norm: float, failed: Tensor
) -> None:
    """Make the optimizer's next step divide the gradients, of the joint `norm`, so that their norm is at most
    `clip_norm`; without a sync. `failed` is 1 if the step must not change the weights.

    Fused kernels take the divisor and the flag as they do from a GradScaler. For other optimizers gradients are divided
    here, and the flag is the caller's to read.
    """
    scale = ((norm + CLIP_EPSILON) / clip_norm).clamp(min=1)
    if takes_scale(optimizer):
        optimizer.grad_scale, optimizer.found_inf = scale, failed  # type: ignore[attr-defined]
    else:
        torch._foreach_div_(gradients, scale)


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Set the learning rate of the next update in every group."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def numbers_beside_state(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """Return the numbers in an optimizer's groups and attributes by their place, without learning rates, which are the
    engine's. No checkpoint has them."""
    groups = {f"param_groups[{number}]": group for number, group in enumerate(optimizer.param_groups)}
    return {
        f"{place}.{key}": float(value)
        for place, content in {"self": vars(optimizer), **groups}.items()
        for key, value in content.items()
        if key != "lr" and isinstance(value, int | float) and not isinstance(value, bool)
    }


def optimizer_tensors(
    optimizer: torch.optim.Optimizer, model: nn.Module, numbers: Mapping[str, float]
) -> dict[str, Tensor]:
    """Return the optimizer's state as {"<moment>/<parameter name>": tensor}; empty before the first update. `numbers`
    are its `numbers_beside_state` at its beginning. Raises ValueError if an own optimizer keeps something else, which a
    checkpoint could not hold."""
    kind, known = type(optimizer).__name__, set(model.parameters())
    for parameter, state in optimizer.state.items():
        if parameter not in known:
            raise ValueError(f"{kind} keeps state of something that is no parameter of the model: keep it by parameter")
        if other := next((key for key, value in state.items() if not isinstance(value, Tensor)), None):
            raise ValueError(f"{kind} keeps {other!r} as a {type(state[other]).__name__}: keep it as a tensor")
    now = numbers_beside_state(optimizer)
    if other := next((place for place in sorted(now.keys() | numbers) if now.get(place) != numbers.get(place)), None):
        raise ValueError(
            f"{kind} changes {other}, which checkpoints do not have, so that a resumed run would compute something "
            "else: keep it as a tensor in the state of each parameter"
        )
    return {
        f"{moment}/{name}": value
        for name, parameter in model.named_parameters()
        for moment, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Restore the state that `optimizer_tensors` returned, bit for bit."""
    parameters = dict(model.named_parameters())
    fused = {weight for group in optimizer.param_groups if group.get("fused") for weight in group["params"]}
    for key, value in tensors.items():
        moment, name = key.split("/", 1)
        parameter = parameters[name]
        # Only fused optimizers keep their step count on the device.
        device = parameter.device if moment != "step" or parameter in fused else torch.device("cpu")
        optimizer.state[parameter][moment] = value.to(device).clone()
