"""torch.compile for training: when models are compiled, and which parts of them."""

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from neobert.execution import CompileWord
from neobert.model.heads import MaskedLanguageModel

AUTO_DEVICES = ("cuda",)
"""Devices on which `auto` compiles. On a CPU compiling takes minutes, and several runs share the cores."""

UPDATES_WORTH_COMPILING = 3500
"""Updates of fine-tuning for which `auto` compiles: 67 s on an H200 for 28 layers, over some 20 ms that an update saves
(8 ms as a CUDA graph, and 30 ms eagerly on a usual host). With fewer layers both take less."""

MOST_SIZES = 128
"""Limit on compiled micro-batch sizes. Beyond torch's own limit of 8 a step would run eagerly, and which sizes come
first depends on where an attempt began, so resuming would change bits. A GLUE grid also has more than 8 sizes."""

Part = tuple[nn.Module, str]
"""A module and the name of one of its methods."""


def wants_compiling(word: CompileWord, device: torch.device, updates: float = math.inf) -> bool:
    """Whether to compile: `on` and `off` say so; `auto` compiles on a GPU, where at least `UPDATES_WORTH_COMPILING` are
    due (those of pre-training always are enough)."""
    if word == "auto":
        return device.type in AUTO_DEVICES and updates >= UPDATES_WORTH_COMPILING
    return word == "on"


def compile_model(
    parts: Sequence[Part],
    device: torch.device,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    dynamic: bool = False,
) -> None:
    """Let the parts of a model be compiled when they are first called, each on its own; the options are those of
    torch.compile."""
    torch._dynamo.reset_code_caches()  # graphs of earlier models count too; one that is still used is compiled again
    torch._dynamo.config.recompile_limit = MOST_SIZES
    torch._dynamo.config.specialize_float = True  # constants of a model, also where its sizes are dynamic
    # Compiling inside DDP would split the model into many graphs, at the borders of DDP's buckets.
    torch._dynamo.config.optimize_ddp = False
    if device.type == "cuda":
        from torch._inductor import config

        # If it may reorder loops (the default in torch 2.13), the gradient of a norm is written by a kernel that sums
        # in two directions, and read again by another that rounds it to bf16.
        config.loop_ordering_after_fusion = False
    # Of torch's compiler, which looks at the gradient of a part's input.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    for module, name in parts:
        setattr(module, name, torch.compile(getattr(module, name), dynamic=dynamic, backend=backend, mode=mode))


def parts_of(model: MaskedLanguageModel, device: torch.device) -> list[Part]:
    """Return the parts of a model that are compiled on their own for training. On a GPU these are its blocks, which
    share a graph (the last one has its own), and the loss; elsewhere the whole model.

    Compiling takes seconds rather than minutes for a deep model, and the gradients of a block reach DDP while the
    blocks before it still compute theirs. A graph of the whole model returns all gradients at its end.
    """
    if device.type != "cuda":
        return [(model, "forward")]
    return [*((block, "forward") for block in model.model.transformer_encoder), (model, "summed_loss")]


def compile_seconds() -> float:
    """Return the seconds that this process has spent compiling so far."""
    if "torch._dynamo" not in sys.modules:  # importing the compiler takes a second
        return 0.0
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent().get("total_wall_time", 0.0)
