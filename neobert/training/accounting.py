"""Training costs for the records: rate, padding, FLOPs, utilization, time, memory."""

import resource
import sys
from dataclasses import dataclass
from typing import Any

import torch

from neobert.execution import Execution
from neobert.model.attention import has_variable_length_kernels, variable_length_kernels
from neobert.model.size import datasheet_peak, stage_flops_per_token
from neobert.recipe import Pretraining, PretrainingPrecision
from neobert.training.engine import Step


@dataclass
class Totals:
    """Counts over all attempts; steps after an attempt's last checkpoint are repeated, and counted only then.

    `compile_seconds` is the time of steps that was spent compiling, which is not among their `seconds`.
    `checkpoint_seconds` is the time for which training waited for checkpoints.
    """

    real_tokens: int = 0
    seconds: float = 0.0
    slots: int = 0
    attended_tokens: int = 0
    compile_seconds: float = 0.0
    checkpoint_seconds: float = 0.0

    def add(self, step: Step, compile_seconds: float) -> None:
        self.real_tokens += step.real_tokens
        self.seconds += step.seconds - compile_seconds
        self.compile_seconds += compile_seconds
        self.slots += step.slots
        self.attended_tokens += step.attended_tokens

    @property
    def padding(self) -> float:
        """Share of slots without a real token."""
        return 1 - self.real_tokens / self.slots

    def flops(self, recipe: Pretraining) -> float:
        """Return the model's floating-point operations on real tokens, which attend only to their own document."""
        attended = self.attended_tokens / self.real_tokens
        return stage_flops_per_token(recipe, len(recipe.stages) - 1, attended) * self.real_tokens


@dataclass(frozen=True)
class TrainResult:
    """Result of an attempt, which trained from step `begun` to `step` of `steps`.

    `optimizer_state_bytes` counts this rank alone; `compiled` is whether its model was compiled. `heldout` are the
    scores at the end of the stage, None before it and in all ranks but rank 0. `started_at` is when the first attempt
    began, None if it was of a version that did not note it.
    """

    totals: Totals
    execution: Execution
    optimizer_state_bytes: int
    compiled: bool
    begun: int
    step: int
    steps: int
    heldout: dict[str, Any] | None
    started_at: str | None


ROW_KERNELS = "torch, by row, without cuDNN"


def attention_record(device: torch.device, *, by_row: bool = False) -> dict[str, str]:
    """Return the record's key about the kernels of attention on a GPU; external encoders compute it `by_row`."""
    if not has_variable_length_kernels(device):
        return {}
    return {"attention_kernels": ROW_KERNELS if by_row else variable_length_kernels()}


def accounts(totals: Totals, recipe: Pretraining, processes: int, device: torch.device) -> dict[str, Any]:
    """Return the record's keys about the cost of a run."""
    flops = totals.flops(recipe)
    rate, datasheet = flops / (totals.seconds * processes), datasheet_ceiling(device, recipe.precision)
    return {
        "flops": flops,
        "seconds": round(totals.seconds, 3),
        "tokens_per_second": totals.real_tokens / totals.seconds,
        "padding": totals.padding,
        "model_flops_utilization": {"of_datasheet": None if datasheet is None else rate / datasheet},
        "compile_seconds": round(totals.compile_seconds, 3),
        "checkpoint_seconds": round(totals.checkpoint_seconds, 3),
        "peak_memory_bytes": peak_memory_bytes(device),
    }


def forget_peak_memory(device: torch.device) -> None:
    """Reset a GPU's peak memory; the peak of a process cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> dict[str, int]:
    """Return the peak bytes of tensors on this process's GPU since `forget_peak_memory`, or without a GPU of the whole
    process since its start."""
    if device.type == "cuda":
        return {"gpu": torch.cuda.max_memory_allocated(device)}
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
    return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}


def datasheet_ceiling(device: torch.device, precision: PretrainingPrecision) -> float | None:
    """Return a GPU's bf16 peak from its data sheet; None on a CPU, for an unknown GPU, and in fp32."""
    if device.type != "cuda" or precision == "fp32":
        return None
    return datasheet_peak(torch.cuda.get_device_name(device))
