"""What a stage of pre-training cost, as its record says it: rate, padding, work, utilization, time and memory."""

import resource
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import torch

from neobert.model.size import training_flops_per_token
from neobert.recipe import Precision, Pretraining
from neobert.training.ceiling import datasheet_ceiling, matmul_ceiling
from neobert.training.loop import Step


@dataclass
class Totals:
    """Counts that go on over attempts; what one did behind its last checkpoint is done again, and counted then.

    `counted_tokens` are the real tokens of those steps whose `slots` and `attended_tokens` were counted, which
    checkpoints of older versions did not do. `compile_seconds` is what compiling took, most of it before the
    first step, some within the `seconds` of steps.
    """

    real_tokens: int = 0
    seconds: float = 0.0
    counted_tokens: int = 0
    slots: int = 0
    attended_tokens: int = 0
    compile_seconds: float = 0.0

    @classmethod
    def restored(cls, saved: Mapping[str, Any]) -> Self:
        """What a checkpoint says; of one without `counted_tokens` the slots are not told apart from those missing."""
        if "counted_tokens" in saved:
            return cls(**saved)
        return cls(real_tokens=saved["real_tokens"], seconds=saved["seconds"])

    def add(self, step: Step) -> None:
        """Count a step."""
        self.real_tokens += step.real_tokens
        self.seconds += step.seconds
        self.counted_tokens += step.real_tokens
        self.slots += step.slots
        self.attended_tokens += step.attended_tokens

    @property
    def padding(self) -> float | None:
        """Share of the slots without a real token; None where no slot was counted."""
        return 1 - self.counted_tokens / self.slots if self.slots else None

    def flops(self, recipe: Pretraining) -> float:
        """Floating-point operations of the model on real tokens, each of which sees its own document alone."""
        counted = self.counted_tokens
        attended = self.attended_tokens / counted if counted else recipe.stages[-1].context
        return training_flops_per_token(recipe.model, attended, recipe.masking.rate) * self.real_tokens


def accounts(
    totals: Totals, recipe: Pretraining, processes: int, device: torch.device, metrics: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """The keys of a record that tell what a run cost; `metrics` are the lines of all its attempts."""
    flops = totals.flops(recipe)
    rate = flops / (totals.seconds * processes)
    return {
        "flops": flops,
        "seconds": round(totals.seconds, 3),
        "tokens_per_second": totals.real_tokens / totals.seconds,
        "padding": totals.padding,
        "model_flops_utilization": _utilization(rate, recipe.precision, device),
        "phase_seconds": mean_phase_seconds(metrics),
        "compile_seconds": round(totals.compile_seconds, 3),
        "peak_memory_bytes": peak_memory_bytes(device),
    }


def _utilization(flops_per_second: float, precision: Precision, device: torch.device) -> dict[str, float | None]:
    measured, datasheet = matmul_ceiling(device, precision), datasheet_ceiling(device, precision)
    return {
        "of_measured_ceiling": flops_per_second / measured,
        "of_datasheet": None if datasheet is None else flops_per_second / datasheet,
        "ceiling_flops_per_second": measured,
    }


def mean_phase_seconds(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Mean seconds a step of each phase, over the lines that tell them."""
    lines = [line["phase_seconds"] for line in metrics if "phase_seconds" in line]
    sums: dict[str, float] = defaultdict(float)
    for line in lines:
        for phase, seconds in line.items():
            sums[phase] += seconds
    return {phase: round(seconds / len(lines), 6) for phase, seconds in sums.items()}


def forget_peak_memory(device: torch.device) -> None:
    """Let the peak of a GPU's memory begin here; that of a process cannot be set back."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory_bytes(device: torch.device) -> dict[str, int]:
    """Most bytes of tensors on this process's GPU since `forget_peak_memory`, else of the whole process since its
    start."""
    if device.type == "cuda":
        return {"gpu": torch.cuda.max_memory_allocated(device)}
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
    return {"process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit}
