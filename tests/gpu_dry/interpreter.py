"""Kernels that inductor writes for an H100, run on tensors of the CPU by Triton's interpreter.

`step` runs in a `benchmarks.pretended_cuda.pretending_process` with TRITON_INTERPRET=1 in its environment and triton on
its path, which needs neither a GPU nor a driver.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, fx

from benchmarks.contenders import masked_documents, neobert_recipe
from benchmarks.data import NEOBERT_MASKING, web_lengths
from benchmarks.lowering import Finish, TracedPart, compile_for_h100
from benchmarks.pretended_cuda import GPU, H100
from neobert.data.batches import EXACT, Batch, collate
from neobert.data.rows import pack_documents
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import MaskedLanguageModel
from neobert.recipe import PretrainingPrecision
from neobert.training.compiling import compile_parts, parts_of
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss
from tests.gpu_dry.kernels_on_cpu import variable_length_kernels_on_cpu

CONTEXT, ROWS = 32, 3
CPU = torch.device("cpu")
SHAPE = {"layers": 2, "width": 48, "heads": 4, "feedforward_width": 96, "vocabulary_size": 500}
"""Heads of 12 are padded to 16, and 500 columns of logits to 512. The two blocks have a graph each."""

IN_PLACE_OF_CUDA = (
    (r"torch\.cuda\._DeviceGuard\(0\)", "__import__('contextlib').nullcontext()"),
    (r"torch\.cuda\.set_device\(0\)", "None"),
    (r"empty_strided_cuda\(", "empty_guarded("),
    (r"device='cuda'|device=device\(type='cuda', index=0\)", "device='cpu'"),
    (r"from torch\._C import _cuda_getCurrentRawStream as get_raw_stream", "get_raw_stream = lambda device: 0"),
)
"""What inductor's code for CUDA calls, and what runs in its place."""

GUARD = 1024
"""Numbers before and behind each buffer that kernels write to."""

Passes = dict[str, tuple[float, dict[str, Tensor]]]
"""Loss and gradients of a pass, by its name."""

Replacement = tuple[str, str]
"""A regular expression of code, and what is put in its place."""


def step(precision: PretrainingPrecision, parts: dict[str, str], *faults: Replacement) -> Passes:
    """Loss and gradients of a packed micro-batch: eagerly in fp32 and in `precision`, and `interpreted`. `faults` are
    put into the code that inductor writes."""
    torch.compiler.reset()  # beyond a number of graphs for one function it would go on eagerly
    recipe = neobert_recipe(precision, **SHAPE, **parts)
    model = build_masked_language_model(recipe.model, CONTEXT, precision)
    initialize(model, recipe.model.initialization, 0)
    documents = masked_documents(web_lengths(60) // 32 + 6, recipe.model.vocabulary_size, CONTEXT)
    rows = pack_documents(documents.view, np.arange(len(documents)), documents.keys, CONTEXT)[:ROWS]
    batch = collate(rows, documents.view.corpus, NEOBERT_MASKING, sizes=EXACT, flat=True)
    buffers: list[Tensor] = []
    with variable_length_kernels_on_cpu(), _interpreting():
        found = {"fp32": _pass(model, "fp32", batch), "eager": _pass(model, precision, batch)}
        loaded: list[str] = []
        load = partial(_load, faults, loaded, partial(_empty_guarded, buffers))
        compile_parts(parts_of(model, GPU), backend=partial(_backend, precision, load))
        found["interpreted"] = _pass(model, precision, batch)
    assert len(loaded) == 6, "a block, the last block and the loss, forward and backward"
    guards = [guard for buffer in buffers for guard in (buffer[:GUARD], buffer[-GUARD:])]
    assert buffers and all((guard == _filling(guard.dtype)).all() for guard in guards), "written beyond a buffer"
    return found


def _pass(model: MaskedLanguageModel, precision: PretrainingPrecision, batch: Batch) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad()
    with autocast(CPU, precision):
        loss = summed_loss(model.train(), batch)
    loss.backward()
    found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    return loss.item(), found


def _backend(
    precision: PretrainingPrecision, finish: Finish, graph: fx.GraphModule, inputs: list[Any]
) -> Callable[..., Any]:
    """A compiler of torch.compile; it begins at the first call, when nothing is traced any more."""
    part = TracedPart(graph, inputs)
    compiled = cache(partial(compile_for_h100, part, precision, finish))

    def run(*values: Any) -> Any:
        return compiled()(*values)

    return run


def _filling(dtype: torch.dtype) -> float:
    """What buffers hold before they are written. A number that is read beyond one, or too early, spoils the result."""
    return torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max if dtype != torch.bool else 1


def _empty_guarded(buffers: list[Tensor], size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return a tensor between two guards, and note the whole in `buffers`."""
    needed = 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) if all(size) else 0
    buffers.append(torch.full((needed + 2 * GUARD,), _filling(dtype), dtype=dtype))
    return buffers[-1].as_strided(size, stride, GUARD)


def _load(
    faults: Sequence[Replacement], loaded: list[str], empty_guarded: Callable[..., Tensor], lowering: Any
) -> SimpleNamespace:
    """Let inductor write the code of a graph, and load it for the CPU; note it in `loaded`."""
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    code, _ = lowering.codegen()
    text = code.value
    for pattern, replacement in (*IN_PLACE_OF_CUDA, *faults):
        text = re.sub(pattern, replacement, text)
    loaded.append(text)
    module: dict[str, Any] = {"__name__": "lowered", "__file__": __file__, "empty_guarded": empty_guarded}
    exec(compile(text, "lowered", "exec"), module)
    for kernel in module.values():
        if isinstance(kernel, CachingAutotuner):  # the largest blocks, since a program takes as long for small ones
            kernel.configs = sorted(kernel.configs, key=lambda config: -math.prod(config.kwargs.values()))
    call = module["call"] if "call" in module else module["runner"].call
    return SimpleNamespace(call=call, __file__=__file__, key=__file__)


@contextmanager
def _interpreting() -> Iterator[None]:
    """What Triton and inductor need of a GPU, its compiler and its mathematical library."""
    import triton.language as tl
    from torch._inductor.runtime import triton_helpers
    from triton.backends.compiler import GPUTarget
    from triton.runtime import interpreter
    from triton.runtime.driver import driver

    driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", 10 * H100.major + H100.minor, H100.warp_size),
            get_current_device=lambda: 0,
            get_current_stream=lambda device=0: 0,
            get_active_torch_device=lambda: CPU,
            get_device_interface=lambda: torch.cpu,
        )
    )
    with (
        mock.patch.object(triton_helpers, "libdevice", tl.math),
        # The same but for NaN; the interpreter computes inductor's own number by number.
        mock.patch.object(triton_helpers, "max2", tl.max),
        mock.patch.object(triton_helpers, "set_driver_to_gpu", lambda: None),
        mock.patch.object(interpreter, "_convert_float", partial(_convert, interpreter._convert_float)),
    ):
        yield


def _convert(convert: Callable[..., Any], numbers: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Round fp32 to the nearest bf16 as a GPU does; the interpreter cuts the digits off."""
    if (source.name, target.name) != ("fp32", "bf16"):
        return convert(numbers, source, target, rounding)
    rounded = torch.from_numpy(np.ascontiguousarray(numbers)).to(torch.bfloat16)
    return rounded.view(torch.int16).numpy().view(np.uint16)
