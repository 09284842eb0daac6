"""Triton kernels assembled for a GPU that is not there."""

import runpy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from benchmarks.lowering import write_kernels
from neobert.data.batches import Batch
from neobert.recipe import Pretraining


@dataclass(frozen=True)
class Assembled:
    """One kernel: what inductor wrote in Triton, and the size of its machine code."""

    source: str
    machine_code_bytes: int


def assemble_kernels(
    folder: Path, recipe: Pretraining, batch: Batch, capabilities: tuple[int, ...]
) -> dict[int, list[Assembled]]:
    """Every Triton kernel of a model's forward and backward pass, by compute capability (90: H100).

    Runs in a `pretending_process` that started with Triton on its path. `folder` takes the sources."""
    _pretend_driver(capabilities[0])
    sources = write_kernels(recipe, batch)
    kernels = {name: _load(name, source, folder) for name, source in sources.items()}
    return {
        capability: [Assembled(sources[name], _assemble(kernel, capability)) for name, kernel in kernels.items()]
        for capability in capabilities
    }


def _load(name: str, source: str, folder: Path) -> Any:
    """The kernel as inductor's own object."""
    from torch._inductor.runtime import triton_helpers

    path = folder / f"{name}.py"
    path.write_text(source)
    with mock.patch.object(triton_helpers, "set_driver_to_gpu", lambda: None):
        return runpy.run_path(str(path))[name]


def _pretend_driver(capability: int) -> None:
    import triton
    from triton.backends.compiler import GPUTarget

    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_target=lambda: GPUTarget("cuda", capability, 32),
            get_current_device=lambda: 0,
            get_current_stream=lambda *device: 0,
            get_active_torch_device=lambda: torch.device("cuda", 0),
            map_python_to_cpp_type=str,
        )
    )


def _assemble(kernel: Any, capability: int) -> int:
    """Bytes of machine code in the first configuration that inductor would try."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _pretend_driver(capability)
    meta = kernel._create_compile_meta(kernel.configs[0])
    meta["cc"] = capability
    options = kernel._create_compile_options(kernel.configs[0], meta)
    source = ASTSource(kernel.fn, meta["signature"], meta["constants"], meta["configs"][0])
    return len(triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm["cubin"])
