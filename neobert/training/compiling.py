"""torch.compile for training: whether it pays, and the first step of the compiled model."""

import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from neobert.errors import RunFailed
from neobert.recipe import PretrainingPrecision
from neobert.runs.run_file import CompileWord
from neobert.training.engine import autocast

SAVED_SHARE = {("cpu", "fp32"): 0.2, ("cpu", "bf16"): 0.35, ("cuda", "fp32"): 0.15, ("cuda", "bf16"): 0.25}
"""Share of an eager step's time that a compiled one spares: CPU measured (benchmarks/), GPU a cautious guess."""

COMPILE_SECONDS = {"cpu": (60.0, 20.0), "cuda": (30.0, 3.0)}
"""Of a size, and for each layer. On a CPU twice what forward and backward pass took on two cores (28 to 80 s with 4
layers): the gain must be clear, and other processes may compile beside this one. On a GPU a guess from lowering for
one: about two minutes with 28 layers."""

GRAPH_WARM_UP_PASSES = 3
"""CUDA graphs run once, record once, and are replayed from then on."""

LEAST_SECONDS_LEFT = {"cpu": 3600.0, "cuda": 0.0}
"""With less pre-training to do, `auto` does not compile: processors that others keep busy compile more slowly than any
estimate says, and in less than an hour there is little to win."""

MOST_SIZES = 128
"""Different sizes of micro-batches that are compiled. Behind torch's own limit of 8 a step would run without, and which
sizes come first depends on where an attempt began: resuming would change bits. A GLUE grid has more than 8 too."""

INDUCTOR_ON_GPU = {"loop_ordering_after_fusion": False}
"""Settings of torch's compiler on a GPU. Where it may reorder loops (its default in torch 2.13), the gradient of a norm
is written by a kernel that sums in two directions, and read again by another that rounds it to bf16."""


def configure_inductor(device: torch.device) -> None:
    """Give torch's compiler the settings for a device."""
    from torch._inductor import config

    if device.type == "cuda":
        for name, value in INDUCTOR_ON_GPU.items():
            setattr(config, name, value)


@dataclass(frozen=True)
class TrialStep:
    """A step to time or compile a model on: `loss` is the objective on one micro-batch. Changes no weight."""

    model: nn.Module
    loss: Callable[[], Tensor]
    precision: PretrainingPrecision
    device: torch.device

    def run(self) -> None:
        """A forward and backward pass."""
        with autocast(self.device, self.precision):
            # Not `backward`: engines may send gradients away as soon as they are accumulated.
            torch.autograd.grad(self.loss(), list(self.model.parameters()))

    def seconds(self, warm_up: int = 1) -> float:
        """Seconds of a pass behind those that warm up; on a CPU of processor time, which other processes do not
        lengthen."""
        for _ in range(warm_up):
            self.run()
        started = self._now()
        self.run()
        return self._now() - started

    def _now(self) -> float:
        if self.device.type == "cpu":
            return time.process_time() / torch.get_num_threads()
        torch.cuda.synchronize(self.device)
        return time.perf_counter()


def compile_seconds() -> float:
    """What this process has spent on compiling so far."""
    if "torch._dynamo" not in sys.modules:  # importing the compiler takes a second
        return 0.0
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent().get("total_wall_time", 0.0)


@dataclass(frozen=True)
class Remainder:
    """What is left to do at one batch size.

    passes: how often, forward and backward. seconds: of an eager pass. slots_ratio: slots of a batch in fixed sizes to
    those of an eager one, which has less padding. shapes: sizes that would be compiled. compiled_seconds: of a compiled
    pass in fixed sizes, None where that was not measured.
    """

    passes: int
    seconds: float
    slots_ratio: float = 1.0
    shapes: int = 1
    compiled_seconds: float | None = None


def compiling_pays(
    left: Iterable[Remainder],
    layers: int,
    device: torch.device,
    precision: PretrainingPrecision,
    least_seconds: float = 0.0,
) -> bool:
    """Whether more than `least_seconds` are left to do, and compiling earns itself back in them."""
    kept = 1 - SAVED_SHARE[device.type, "fp32" if precision == "fp32" else "bf16"]
    of_size, of_layer = COMPILE_SECONDS[device.type]
    eager_seconds = gain_seconds = cost_seconds = 0.0
    for part in left:
        compiled_seconds = part.compiled_seconds
        if compiled_seconds is None:
            compiled_seconds = part.seconds * kept * part.slots_ratio
        eager_seconds += part.passes * part.seconds
        gain_seconds += part.passes * (part.seconds - compiled_seconds)
        cost_seconds += part.shapes * (of_size + of_layer * layers)
    return eager_seconds > least_seconds and gain_seconds > cost_seconds


def compile_model(
    trial: TrialStep, word: CompileWord, *, backend: str | Callable[..., Any] = "inductor", mode: str | None = None
) -> bool:
    """Compile the model in place, each shape for itself, and try it; False where that fails and is not insisted on.

    backend, mode: as torch.compile has them.

    Raises:
        RunFailed: `word` is on, and there is no compiler that works.
    """
    from torch._dynamo.exc import TorchDynamoException

    torch._dynamo.config.recompile_limit = MOST_SIZES
    # Compiled inside DDP, a model would be split at the borders of DDP's buckets into many graphs.
    torch._dynamo.config.optimize_ddp = False
    configure_inductor(trial.device)
    trial.model.compile(dynamic=False, backend=backend, mode=mode)
    try:
        trial.run()
    except TorchDynamoException as error:
        reason = str(error).strip().splitlines()[0]
        trial.model._compiled_call_impl = None
        if word == "on":
            raise RunFailed(f"the model cannot be compiled here ({reason}): take --compile off or auto") from error
        print(f"the model cannot be compiled here ({reason}): training goes on without", file=sys.stderr, flush=True)
        return False
    return True
