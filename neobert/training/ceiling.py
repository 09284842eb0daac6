"""How fast this process multiplies matrices at best: the ceiling that training is measured against."""

import time
from functools import cache

import torch
from torch import Tensor

from neobert.model.peaks import datasheet_peak
from neobert.recipe import Precision

BUDGET_SECONDS = 0.3
SIZES = {"cpu": (256, 512, 1024, 2048), "cuda": (2048, 4096, 8192)}
LEAST_REPEATS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def matmul_ceiling(device: torch.device, precision: Precision) -> float:
    """Floating-point operations a second of the fastest square product, with the threads that torch has now.

    Measured once a process, for some 0.3 seconds: of a few sizes the best, and of each size the best of several.
    """
    return _measured(device, precision, torch.get_num_threads())


def datasheet_ceiling(device: torch.device, precision: Precision) -> float | None:
    """The data sheet's peak of a GPU in bf16; None on a CPU, for a GPU that no row names, and in fp32."""
    if device.type != "cuda" or precision != "bf16":
        return None
    return datasheet_peak(torch.cuda.get_device_name(device))


@cache
def _measured(device: torch.device, precision: Precision, threads: int) -> float:
    deadline = time.perf_counter() + BUDGET_SECONDS
    best = 0.0
    for size in SIZES[device.type]:
        work = 2.0 * size**3
        if best and time.perf_counter() + (1 + LEAST_REPEATS) * work / best > deadline:
            break
        best = max(best, work / _best_seconds(*_factors(size, device, DTYPES[precision])))
    return best


def _factors(size: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Random numbers, since a GPU computes faster with zeros; from a generator of their own."""
    generator = torch.Generator(device).manual_seed(0)
    left, right = torch.randn(2, size, size, generator=generator, device=device).to(dtype)
    return left, right


def _best_seconds(left: Tensor, right: Tensor) -> float:
    out = torch.mm(left, right)
    return min(_seconds(left, right, out) for _ in range(LEAST_REPEATS))


def _seconds(left: Tensor, right: Tensor, out: Tensor) -> float:
    _synchronize(out.device)
    started = time.perf_counter()
    torch.mm(left, right, out=out)
    _synchronize(out.device)
    return time.perf_counter() - started


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
