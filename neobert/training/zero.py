"""DeepSpeed's ZeRO: the optimizer state (stage 1) and also the gradients (stage 2) are split over the ranks.

With P parameters and N processes, each process needs in addition to 4·P bytes of fp32 weights, in bytes:

            moments     second copy of the weights     gradients
    ddp     8·P         0                              4·P
    zero1   8·P / N     4·P / N                        4·P
    zero2   8·P / N     4·P / N                        4·P / N (and a bucket)

Only this module imports deepspeed (Rajbhandari et al. 2020, ZeRO: Memory Optimizations Toward Training Trillion
Parameter Models).
"""

import math
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from neobert.errors import MissingData, RunFailed
from neobert.model.size import ZERO_BUCKET_ELEMENTS
from neobert.recipe import PretrainingPrecision
from neobert.training.engine import Engine, autocast, on_device

MicroBatch = TypeVar("MicroBatch")
STEP, MOMENTS = "step", ("exp_avg", "exp_avg_sq")
SHARDED = ("single_partition_of_fp32_groups", "refresh_fp32_params", "_lazy_init_hp_params_optimizer_state")
"""What is used of DeepSpeed's sharded optimizer beyond its documented interface: checkpoints name the state by
parameter, whatever the engine."""


def _deepspeed(device: torch.device) -> ModuleType:
    """Import deepspeed, set to use `device`, compile nothing and log to stderr. Raises MissingData if it is not
    installed."""
    if device.type == "cpu":
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    os.environ["LOCAL_RANK"] = str(device.index or 0)
    try:
        with redirect_stdout(sys.stderr):  # its logger keeps the stdout of the import
            import deepspeed
    except ModuleNotFoundError as error:
        raise MissingData(
            f"engines zero1 and zero2 need deepspeed ({error}): pip install -e '.[deepspeed]', or choose engine ddp"
        ) from error
    warnings.filterwarnings("ignore", r".*torch\.distributed\..* is deprecated", FutureWarning)
    deepspeed.utils.logger.setLevel("WARNING")
    require_internals(deepspeed.utils.groups, ("_release_process_group_references",), deepspeed.__version__)
    require_internals(deepspeed.ops, ("__compatible_ops__",), deepspeed.__version__)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # else compiled at first use
    module: ModuleType = deepspeed
    return module


def require_internals(owner: object, names: Sequence[str], version: str) -> None:
    """Raise MissingData if this version of DeepSpeed lacks what is used of it beyond its documented interface."""
    if missing := [name for name in names if not hasattr(owner, name)]:
        raise MissingData(
            f"engines zero1 and zero2 work with deepspeed 0.19, not with {version}, which lacks {', '.join(missing)}: "
            "pip install 'deepspeed>=0.19,<0.20', or choose engine ddp"
        )


class _Autocast(nn.Module):
    """Wrapper that applies the recipe's precision, which DeepSpeed would disable around the forward pass."""

    def __init__(self, model: nn.Module, device: torch.device, precision: PretrainingPrecision) -> None:
        super().__init__()
        self.model = model
        self.device = device
        self.precision: PretrainingPrecision = precision

    def forward(self, *inputs: Any) -> Any:
        with autocast(self.device, self.precision):
            return self.model(*inputs)


class ZeroEngine(Engine[MicroBatch]):
    """Engine on DeepSpeed, which wraps the optimizer; its state then belongs to one flat part of all parameters."""

    stage: ClassVar[int]

    def _shared(self) -> nn.Module:
        if not isinstance(self.optimizer, torch.optim.Adam):
            raise ValueError(
                "engines zero1 and zero2 split the state of adam and adamw, not of optimizer "
                f"{self.recipe.optimizer!r}: choose engine ddp"
            )
        settings = {
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": self.recipe.clip_norm,
            "zero_optimization": {
                "stage": self.stage,
                "overlap_comm": False,
                "reduce_bucket_size": ZERO_BUCKET_ELEMENTS,
                "allgather_bucket_size": ZERO_BUCKET_ELEMENTS,
            },
            "zero_allow_untested_optimizer": True,
        }
        self._package = _deepspeed(self.device)
        self._deepspeed, self._sharded, _, _ = self._package.initialize(
            model=_Autocast(self.model, self.device, self.precision),
            optimizer=self.optimizer,
            config=settings,
            dist_init_required=False,
        )
        require_internals(self._sharded, SHARDED, self._package.__version__)
        network: nn.Module = self._deepspeed
        return network

    def _accumulate(self, batch: MicroBatch, total: Tensor, *, last: bool) -> Tensor:
        self._deepspeed.set_gradient_accumulation_boundary(last)
        share = self.objective(self.network, batch) / total
        self._deepspeed.backward(share * self.processes)
        return share.detach()

    def _clip_and_update(self, loss: Tensor) -> Tensor:
        """Let DeepSpeed clip and update; it returns the norm to the host, which needs a sync."""
        if not loss.isfinite():
            raise RunFailed(f"the loss is {loss.item()}")
        self._deepspeed.step()
        norm = float(self._deepspeed.get_global_grad_norm())
        if not math.isfinite(norm) or not self._deepspeed.was_step_applied():
            raise RunFailed(f"the gradient's norm is {norm}")
        return on_device([norm], self.device).squeeze()

    @property
    def _flat(self) -> Tensor:
        """This process's flat part of all parameters, which the wrapped optimizer updates."""
        flat: Tensor = self._sharded.single_partition_of_fp32_groups[0]
        return flat

    def optimizer_tensors(self, *, wanted: bool = True) -> dict[str, Tensor]:
        state = self.optimizer.state.get(self._flat, {})
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters() if state else ():
            for moment in MOMENTS:  # one at a time: only a process that wants the state needs room for it
                full = self._package.utils.safe_get_full_optimizer_state(parameter, moment)
                if wanted:
                    tensors[f"{moment}/{name}"] = full.cpu()
            if wanted:
                tensors[f"{STEP}/{name}"] = state[STEP].detach().cpu().clone()
        return tensors

    def restore_optimizer(self, optimizer: Mapping[str, Tensor]) -> None:
        self._sharded.refresh_fp32_params()
        if not optimizer:
            return
        names = dict(self.model.named_parameters())
        state = self.optimizer.state[self._flat]
        steps = {float(optimizer[f"{STEP}/{name}"]) for name in names}
        assert len(steps) == 1, "one flat state has one step"
        state[STEP] = torch.tensor(steps.pop(), dtype=torch.float32, device=self._flat.device)
        for moment in MOMENTS:
            state[moment] = torch.zeros_like(self._flat)
        self._sharded._lazy_init_hp_params_optimizer_state()  # links the full tensors to their parts
        for name, parameter in names.items():
            for moment in MOMENTS:
                full = optimizer[f"{moment}/{name}"].to(self.device)
                self._package.utils.safe_set_full_optimizer_state(parameter, full, moment)

    def close(self) -> None:
        self._deepspeed.destroy()
        self._package.utils.groups._release_process_group_references(group=None)  # the next run has a new group


class ZeroOne(ZeroEngine[MicroBatch]):
    """ZeRO stage 1, which splits the optimizer state."""

    stage = 1


class ZeroTwo(ZeroEngine[MicroBatch]):
    """ZeRO stage 2, which splits the optimizer state and the gradients."""

    stage = 2


ZERO_ENGINES: dict[str, type[ZeroEngine[Any]]] = {"zero1": ZeroOne, "zero2": ZeroTwo}
