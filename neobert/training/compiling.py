"""torch.compile for training: whether compiling pays, and the first pass of the compiled model."""

import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from neobert.errors import RunFailed
from neobert.execution import CompileWord
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import PretrainingPrecision
from neobert.training.engine import autocast

logger = logging.getLogger(__name__)

SAVED_SHARE = {("cpu", "fp32"): 0.2, ("cpu", "bf16"): 0.35, ("cuda", "fp32"): 0.15, ("cuda", "bf16"): 0.25}
"""Share of an eager step's time that compiling saves: measured on CPU (benchmarks/) and, in bf16, on an H200 (0.25 at a
context of 4,096, 0.29 at 1,024); a cautious guess for fp32 on a GPU."""

COMPILE_SECONDS = {"cpu": (60.0, 20.0), "cuda": (30.0, 3.0)}
"""Seconds per size, and per size and layer, of a whole model. CPU: twice the measured time of forward and backward pass
on two cores (28 to 80 s with 4 layers), so that the gain is clear even if other processes compile too. GPU: almost
twice what an H200 with 16 cores took (67 s with 28 layers and dynamic sizes; 10 s for the parts of a model)."""

COMPILED_BLOCKS = 3
"""Layers that take as long to compile as the `parts_of` a model: a block, the last block, and the loss."""

GRAPH_SECONDS = 2.0
"""Seconds to record the CUDA graphs of one size, a guess. The kernels are compiled once, for all sizes."""

GRAPH_WARM_UP_PASSES = 3
"""Passes before CUDA graphs are only replayed: they first run once, then record once."""

LEAST_SECONDS_LEFT = {"cpu": 3600.0, "cuda": 0.0}
"""`auto` does not compile if less pre-training than this remains: on busy processors compiling takes longer than
estimated, and less than an hour leaves little to gain."""

MOST_SIZES = 128
"""Limit on compiled micro-batch sizes. Beyond torch's own limit of 8 a step would run eagerly, and which sizes come
first depends on where an attempt began, so resuming would change bits. A GLUE grid also has more than 8 sizes."""

INDUCTOR_ON_GPU = {"loop_ordering_after_fusion": False}
"""Inductor settings on a GPU. If it may reorder loops (the default in torch 2.13), the gradient of a norm is written
by a kernel that sums in two directions, and read again by another that rounds it to bf16."""


def configure_inductor(device: torch.device) -> None:
    """Set Inductor's settings for a device."""
    from torch._inductor import config

    if device.type == "cuda":
        for name, value in INDUCTOR_ON_GPU.items():
            setattr(config, name, value)


@dataclass(frozen=True)
class TrialStep:
    """A step to time or compile a model with; `loss` is the objective on one micro-batch. Neither weights nor buffers
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

    def seconds(self, warm_up: int = 1) -> float:
        """Return the seconds of a pass after the warm-up; on a CPU in processor time, so that other processes do not
        count."""
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
    """Return the seconds that this process has spent compiling so far."""
    if "torch._dynamo" not in sys.modules:  # importing the compiler takes a second
        return 0.0
    from torch._dynamo.utils import calculate_time_spent

    return calculate_time_spent().get("total_wall_time", 0.0)


@dataclass(frozen=True)
class Remainder:
    """Remaining work at one batch size.

    passes: number of forward and backward passes. seconds: of an eager pass. slots_ratio: ratio of a batch's slots in
    fixed sizes to its slots in eager mode, where it has less padding. shapes: sizes that would be compiled.
    compiled_seconds: of a compiled pass in fixed sizes, None if not measured.
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
    *,
    graphs: bool = False,
) -> bool:
    """Whether more than `least_seconds` of work remain, and compiling saves more time in them than it takes. With
    `graphs` sizes are dynamic, and each is only recorded."""
    kept = 1 - SAVED_SHARE[device.type, "fp32" if precision == "fp32" else "bf16"]
    of_size, of_layer = COMPILE_SECONDS[device.type]
    eager_seconds = gain_seconds = 0.0
    cost_seconds = of_size + of_layer * layers if graphs else 0.0
    for part in left:
        compiled_seconds = part.compiled_seconds
        if compiled_seconds is None:
            compiled_seconds = part.seconds * kept * part.slots_ratio
        eager_seconds += part.passes * part.seconds
        gain_seconds += part.passes * (part.seconds - compiled_seconds)
        cost_seconds += part.shapes * (GRAPH_SECONDS if graphs else of_size + of_layer * layers)
    return eager_seconds > least_seconds and gain_seconds > cost_seconds


Part = tuple[nn.Module, str]
"""A module and the name of one of its methods."""

COMPILED = ("forward", "summed_loss")
"""Methods that are compiled."""


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


@dataclass(frozen=True)
class Workload:
    """Work left at one batch size: `passes` forward and backward passes, as `eager` or in `fixed` sizes, which take
    `slots_ratio` times as many slots and have `shapes` sizes."""

    passes: int
    eager: TrialStep
    fixed: TrialStep
    slots_ratio: float
    shapes: int

    def remainder(self) -> Remainder:
        """Time an eager pass."""
        return Remainder(self.passes, self.eager.seconds(), self.slots_ratio, self.shapes)


@dataclass(frozen=True)
class CompilePolicy:
    """Whether the encoder of fine-tuning is compiled: `auto` compiles it if that pays for the work that is left;
    `backend` is one of torch.compile's.

    On CUDA the forward and backward passes become CUDA graphs, compiled once for all sizes and recorded for each.
    Passes over small batches are bound by kernel launches, so their time cannot be estimated from slots. The encoder is
    therefore compiled if that would pay with compiled passes of zero duration, and stays compiled if it pays with their
    measured duration.
    """

    word: CompileWord = "off"
    backend: str | Callable[..., Any] = "inductor"

    def compile(self, trial: TrialStep, workloads: Sequence[Workload], layers: int) -> bool:
        """Compile the model of `trial`, of `layers` blocks, in place if requested or worthwhile; return whether it is.
        Raises RunFailed if compilation was requested, but no compiler works."""
        if self.word != "auto":
            return self.word == "on" and self._compile(trial)
        left, is_gpu = [workload.remainder() for workload in workloads], trial.device.type == "cuda"
        pays = partial(compiling_pays, layers=layers, device=trial.device, precision=trial.precision, graphs=is_gpu)
        at_best = [replace(part, compiled_seconds=0.0) for part in left] if is_gpu else left
        if not pays(at_best) or not self._compile(trial):
            return False
        if is_gpu:
            replayed = [workload.fixed.seconds(GRAPH_WARM_UP_PASSES) for workload in workloads]
            if not pays([replace(part, compiled_seconds=taken) for part, taken in zip(left, replayed, strict=True)]):
                make_eager(trial.model)
                return False
        return True

    def _compile(self, trial: TrialStep) -> bool:
        is_gpu = trial.device.type == "cuda"
        mode = "reduce-overhead" if is_gpu and self.backend == "inductor" else None
        return compile_model(trial, self.word, backend=self.backend, mode=mode, dynamic=is_gpu)
