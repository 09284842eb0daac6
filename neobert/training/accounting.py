"""Training costs for the records (rate, padding, FLOPs, utilization, time, memory), and traces of steps."""

import logging
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from neobert.execution import Execution
from neobert.files import sync_file, temporary_sibling
from neobert.model.attention import has_variable_length_kernels, variable_length_kernels
from neobert.model.size import datasheet_peak, stage_flops_per_token
from neobert.recipe import Pretraining, PretrainingPrecision
from neobert.training.loop import Step

logger = logging.getLogger(__name__)


@dataclass
class Totals:
    """Counts over all attempts; steps after an attempt's last checkpoint are repeated, and counted only then.

    `compile_seconds` is the time spent compiling, most of it before the first step, some within the `seconds` of steps.
    `checkpoint_seconds` is the time for which training waited for checkpoints.
    """

    real_tokens: int = 0
    seconds: float = 0.0
    slots: int = 0
    attended_tokens: int = 0
    compile_seconds: float = 0.0
    checkpoint_seconds: float = 0.0

    def add(self, step: Step) -> None:
        self.real_tokens += step.real_tokens
        self.seconds += step.seconds
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


def accounts(
    totals: Totals, recipe: Pretraining, processes: int, device: torch.device, metrics: Iterable[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the record's keys about the cost of a run; `metrics` are the lines of all its attempts."""
    flops = totals.flops(recipe)
    rate = flops / (totals.seconds * processes)
    measured, datasheet = matmul_ceiling(device, recipe.precision), datasheet_ceiling(device, recipe.precision)
    return {
        "flops": flops,
        "seconds": round(totals.seconds, 3),
        "tokens_per_second": totals.real_tokens / totals.seconds,
        "padding": totals.padding,
        "model_flops_utilization": {
            "of_measured_ceiling": rate / measured,
            "of_datasheet": None if datasheet is None else rate / datasheet,
            "ceiling_flops_per_second": measured,
        },
        "phase_seconds": mean_phase_seconds(metrics),
        "compile_seconds": round(totals.compile_seconds, 3),
        "checkpoint_seconds": round(totals.checkpoint_seconds, 3),
        "peak_memory_bytes": peak_memory_bytes(device),
    }


def mean_phase_seconds(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean seconds per step of each phase, over the lines that have them."""
    lines = [line["phase_seconds"] for line in metrics if "phase_seconds" in line]
    sums: dict[str, float] = defaultdict(float)
    for line in lines:
        for phase, seconds in line.items():
            sums[phase] += seconds
    return {phase: round(seconds / len(lines), 6) for phase, seconds in sums.items()}


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


BUDGET_SECONDS = 0.3
SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
REPEATS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "bf16_residual": torch.bfloat16}


def matmul_ceiling(device: torch.device, precision: PretrainingPrecision) -> float:
    """Return the floating-point operations per second of the fastest square matmul, with torch's current threads.

    It is measured once per process, in about 0.3 seconds: the best of a few sizes, each of them repeated.
    """
    return _measure_ceiling(device, precision, torch.get_num_threads())


@cache
def _measure_ceiling(device: torch.device, precision: PretrainingPrecision, threads: int) -> float:
    _seconds(*torch.ones(3, 16, 16, device=device, dtype=DTYPES[precision]))  # the first one loads a GPU's libraries
    deadline, best = time.perf_counter() + BUDGET_SECONDS, 0.0
    for size in SIZES[device.type]:
        work = 2.0 * size**3
        if best and time.perf_counter() + (1 + REPEATS) * work / best > deadline:
            break
        # Random numbers, since a GPU computes faster with zeros; a separate generator leaves torch's state alone.
        generator = torch.Generator(device).manual_seed(0)
        left, right = torch.randn(2, size, size, generator=generator, device=device).to(DTYPES[precision])
        out = torch.mm(left, right)
        best = max(best, work / min(_seconds(left, right, out) for _ in range(REPEATS)))
    return best


def _seconds(left: Tensor, right: Tensor, out: Tensor) -> float:
    wait = torch.cuda.synchronize if out.is_cuda else lambda device: None
    wait(out.device)
    started = time.perf_counter()
    torch.mm(left, right, out=out)
    wait(out.device)
    return time.perf_counter() - started


def datasheet_ceiling(device: torch.device, precision: PretrainingPrecision) -> float | None:
    """Return a GPU's bf16 peak from its data sheet; None on a CPU, for an unknown GPU, and in fp32."""
    if device.type != "cuda" or precision == "fp32":
        return None
    return datasheet_peak(torch.cuda.get_device_name(device))


WARM_UP_STEPS = 3
"""Steps before the trace begins: the first ones allocate, choose kernels and compile."""


def traced(steps: Iterator[Step], count: int, path: Path, device: torch.device) -> Iterator[Step]:
    """Yield the same steps, and trace `count` of them, after the first few, to `path`.

    The trace has the operations of host and GPU by phase (data, forward, backward, optimizer). If the steps end early
    it has fewer of them; if iteration is aborted while tracing, no trace is written.
    """
    yield from islice(steps, WARM_UP_STEPS)
    numbers: list[int] = []
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(activities=activities) as profiler:
        for step in islice(steps, count):
            numbers.append(step.number)
            yield step
    if numbers:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = temporary_sibling(path)
        try:
            profiler.export_chrome_trace(str(temporary))
            sync_file(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        logger.info(f"the trace of steps {numbers[0]} to {numbers[-1]} lies in {path}")
    yield from steps
