"""torch.compile for training: when models are compiled, and the first pass of the compiled model."""

import logging
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neobert.errors import RunFailed
from neobert.execution import CompileWord
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import PretrainingPrecision
from neobert.training.engine import autocast

logger = logging.getLogger(__name__)

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

COMPILED = ("forward", "summed_loss")
"""Methods that are compiled."""


def wants_compiling(word: CompileWord, device: torch.device, updates: float = math.inf) -> bool:
    """Whether to compile: `on` and `off` say so; `auto` compiles on a GPU, where at least `UPDATES_WORTH_COMPILING` are
    due (those of pre-training always are enough)."""
    if word == "auto":
        return device.type in AUTO_DEVICES and updates >= UPDATES_WORTH_COMPILING
    return word == "on"


@dataclass(frozen=True)
class TrialStep:
    """A step to compile a model with; `loss` is the objective on one micro-batch. Neither weights nor buffers
    change."""

    model: nn.Module
    loss: Callable[[], Tensor]
    precision: PretrainingPrecision
    device: torch.device

    def run(self) -> None:
        """Run a forward and backward pass."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]  # own parts may count passes in them
        with autocast(self.device, self.precision):
            # Not `backward`: engines may send gradients away as soon as they are accumulated.
            torch.autograd.grad(self.loss(), list(self.model.parameters()), allow_unused=True)
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def compile_model(
    trial: TrialStep,
    word: CompileWord,
    *,
    backend: str | Callable[..., Any] = "inductor",
    mode: str | None = None,
    dynamic: bool = False,
    parts: Sequence[Part] | None = None,
) -> bool:
    """Compile the model in place and try it; return False if that fails and `word` is not on.

    backend, mode, dynamic: as in torch.compile. parts: what is compiled on its own, by default the whole model.

    Raises:
        RunFailed: `word` is on and compiling fails.
    """
    from torch._dynamo.exc import TorchDynamoException

    torch._dynamo.reset_code_caches()  # graphs of earlier models count too; one that is still used is compiled again
    torch._dynamo.config.recompile_limit = MOST_SIZES
    torch._dynamo.config.specialize_float = True  # constants of a model, also where its sizes are dynamic
    # Compiling inside DDP would split the model into many graphs, at the borders of DDP's buckets.
    torch._dynamo.config.optimize_ddp = False
    configure_inductor(trial.device)
    compile_parts(parts or [(trial.model, "forward")], backend=backend, mode=mode, dynamic=dynamic)
    try:
        trial.run()
    except (TorchDynamoException, RuntimeError) as error:  # also what CUDA and Triton raise, as for want of memory
        reason = str(error).strip().splitlines()[0]
        make_eager(trial.model)
        if trial.device.type == "cuda":
            torch.cuda.empty_cache()  # raises if the GPU is lost to this process
        if word == "on":
            raise RunFailed(f"the model cannot be compiled here ({reason}): take --compile off or auto") from error
        logger.warning(f"the model cannot be compiled here ({reason}): training continues eagerly")
        return False
    return True


def configure_inductor(device: torch.device) -> None:
    """Set Inductor's settings for a device."""
    if device.type == "cuda":
        from torch._inductor import config

        # If it may reorder loops (the default in torch 2.13), the gradient of a norm is written by a kernel that sums
        # in two directions, and read again by another that rounds it to bf16.
        config.loop_ordering_after_fusion = False


def compile_parts(
    parts: Sequence[Part], *, backend: str | Callable[..., Any], mode: str | None = None, dynamic: bool = False
) -> None:
    """Let each part be compiled when it is first called; the options are those of torch.compile."""
    # Of torch's compiler, which looks at the gradient of a part's input.
    warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf", UserWarning)
    for module, name in parts:
        setattr(module, name, torch.compile(getattr(module, name), dynamic=dynamic, backend=backend, mode=mode))


def make_eager(model: nn.Module) -> None:
    """Undo `compile_model`."""
    for module in model.modules():
        for name in COMPILED:
            vars(module).pop(name, None)  # the compiled one; the class has the eager one


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
