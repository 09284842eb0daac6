"""A pretended GPU on a CPU build of torch: sees where a step on CUDA would wait, its dtypes, devices and peak memory.

Tensors on "cuda" are fake: they have shapes, dtypes and a device, but no numbers. Tensors on the CPU are real. Reads
from the device return ones. Autograd needs a device guard, which a few lines of C++ register, in a process of its own
(`pretending_process`). In that process, this counts what a step would do on a GPU:

    with pretended_cuda() as gpu:
        model = build().to("cuda")
        with gpu.counted() as counts:
            step(model)
"""

import hashlib
import os
import shutil
import subprocess
import traceback
import weakref
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.cpp_extension import TORCH_LIB_PATH, include_paths

from neobert.processes import REPOSITORY

GUARD_SOURCE = Path(__file__).with_suffix(".cpp")
PACKAGES = tuple(f"/{name}/" for name in ("neobert", "ablations", "benchmarks", "tests"))
ALLOCATION_BYTES = 512
"""Size to which torch's allocator rounds up."""

GPU = torch.device("cuda", 0)

HOST_WAITS = {
    *("_local_scalar_dense", "bincount", "equal", "is_nonzero", "masked_select", "nonzero"),
    *("unique_consecutive", "unique_dim", "_unique2"),
}
"""Operators that wait for the device: their result on the host, or their shape, depends on numbers on the device."""

SINGLE_KERNELS = ("_fused_rms_norm", "_fused_rms_norm_backward", "silu_backward")
"""Operators that are one kernel on CUDA, with a gradient of its own, but decompose on devices that do not register
them."""

PRODUCTS = {"mm", "addmm", "bmm", "baddbmm"}


def build_guard() -> Path:
    """Return the library with the device guard, compiled once per version of torch; skips the test where it cannot
    be."""
    if torch.backends.cuda.is_built():
        pytest.skip(f"a GPU is pretended on a CPU build of torch, and {torch.__version__} is built for CUDA")
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no C++ compiler for the pretended GPU's device guard: install g++")
    content = hashlib.sha256(GUARD_SOURCE.read_bytes() + torch.__version__.encode()).hexdigest()[:16]
    library = REPOSITORY / "build" / "pretended_cuda" / f"{content}.so"
    if not library.exists():
        library.parent.mkdir(parents=True, exist_ok=True)
        links = [f"-L{TORCH_LIB_PATH}", f"-Wl,-rpath,{TORCH_LIB_PATH}", "-ltorch_cpu", "-lc10"]
        flags = ["-shared", "-fPIC", "-O0", "-std=c++20", *(f"-I{path}" for path in include_paths())]
        built = library.with_suffix(f".{os.getpid()}")  # other processes of tests may build it too
        subprocess.run([compiler, *flags, str(GUARD_SOURCE), *links, "-o", str(built)], check=True)
        built.rename(library)
    return library


@contextmanager
def pretending_process() -> Iterator[Executor]:
    """Start a process in which `pretended_cuda` supports autograd; it runs functions of modules one after the
    other."""
    guard = str(build_guard())
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
        with mock.patch.dict(os.environ, LD_PRELOAD=guard):
            executor.submit(os.getpid).result()  # started with the guard, before it imports torch
        yield executor


class Product(NamedTuple):
    """A matrix product in `dtype`, (rows, inner) by (inner, columns)."""

    dtype: str
    inner: int
    columns: int


@dataclass
class Counts:
    """What the pretended GPU saw.

    operators: the names of those that ran on it. products: matrix products.
    waits: operations that made the host wait for the device, each with the place in the code.
    pageable: asynchronous copies to the device from memory that is not pinned, which are staged on the host.
    peak_bytes: peak of allocated memory, earlier allocations included.
    """

    operators: set[str] = field(default_factory=set)
    products: Counter[Product] = field(default_factory=Counter)
    waits: list[str] = field(default_factory=list)
    pageable: list[str] = field(default_factory=list)
    peak_bytes: int = 0


class PretendedGPU(TorchDispatchMode):
    """Dispatch mode that runs operators on "cuda" without numbers and counts them in `counts`. Operators on the CPU run
    as usual."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.counts = Counts()
        self.alive_bytes = 0
        self._storages: dict[int, int] = {}
        self._pinned: set[int] = set()

    @contextmanager
    def counted(self) -> Iterator[Counts]:
        """Count the operations in the block, from zero."""
        before, self.counts = self.counts, Counts(peak_bytes=self.alive_bytes)
        try:
            yield self.counts
        finally:
            self.counts = before

    def wait(self, reason: str) -> None:
        self.counts.waits.append(f"{reason} at {_caller()}")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        if torch.is_inference_mode_enabled() and _is_composite(func):  # otherwise autograd decomposes it
            with self:
                return func.decompose(*args, **kwargs)
        call = Call(func, func._schema.name.partition("::")[2], args, kwargs)
        if not call.on_gpu and not _is_cuda(kwargs.get("device")):
            return self._on_host(call)
        copy = call.copy
        if copy is not None:
            self._note_copy(copy)
        for reason in call.waits:
            self.wait(reason)
        if call.name == "_local_scalar_dense":
            return torch.ones((), dtype=args[0].dtype).item()
        return copy.ones(call) if copy is not None and copy.reads else self._run(call)

    def _run(self, call: "Call") -> Any:
        """Run an operator without numbers; count the memory of its results."""
        args, kwargs = tree_map_only(Tensor, self._as_fake, (call.args, call.kwargs))
        with self.fake:
            out = call.func(*args, **kwargs)
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor) and leaf.device.type == "cuda"]
        self.counts.operators.add(call.name)
        if call.name in PRODUCTS:
            self.counts.products[_product(call)] += 1
        for tensor in made:
            self._keep(tensor)
        return out

    def _as_fake(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.fake.from_tensor(tensor.detach())

    def _on_host(self, call: "Call") -> Any:
        """Run an operator on the CPU; memory counts as pinned if that was requested."""
        if call.name == "is_pinned":
            return call.args[0].untyped_storage()._cdata in self._pinned
        if call.name == "_pin_memory":
            return self._pin(call.args[0].clone())
        if call.kwargs.get("pin_memory"):
            return self._pin(call.func(*call.args, **call.kwargs | {"pin_memory": False}))
        return call.func(*call.args, **call.kwargs)

    def _pin(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        self._pinned.add(storage._cdata)
        weakref.finalize(storage, self._pinned.discard, storage._cdata)
        return tensor

    def _note_copy(self, copy: "Copy") -> None:
        """Count a copy between host and device that waits, or that is staged on the host."""
        if copy.source.device.type == copy.target.type:
            return
        pinned = copy.host is None or copy.host.untyped_storage()._cdata in self._pinned
        what = f"copy of {tuple(copy.source.shape)} from {'pinned' if pinned else 'pageable'} memory to cuda"
        if copy.reads:
            what = f"copy of {tuple(copy.source.shape)} to the CPU"
        if not copy.non_blocking or (copy.reads and not pinned):
            self.wait(f"blocking {what}")
        elif not pinned:
            self.counts.pageable.append(f"{what} at {_caller()}")

    def _keep(self, tensor: Tensor) -> None:
        """Count the memory of a tensor during its lifetime."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._storages:
            return
        self._storages[key] = -(-storage.nbytes() // ALLOCATION_BYTES) * ALLOCATION_BYTES
        self.alive_bytes += self._storages[key]
        self.counts.peak_bytes = max(self.counts.peak_bytes, self.alive_bytes)
        weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.alive_bytes -= self._storages.pop(key)


def _is_cuda(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


@dataclass(frozen=True)
class Copy:
    """A copy of `source` to a device. `host` is the tensor on the CPU if there is one before the copy: without it, a
    non-blocking copy makes one in pinned memory."""

    source: Tensor
    target: torch.device
    host: Tensor | None
    non_blocking: bool

    @property
    def reads(self) -> bool:
        """Whether the copy brings numbers from the device to the host."""
        return self.source.device.type == "cuda" and self.target.type == "cpu"

    def ones(self, call: "Call") -> Tensor:
        """Return ones in place of the numbers that it reads."""
        if self.host is not None:
            return self.host.fill_(1)
        return torch.ones(self.source.shape, dtype=call.kwargs.get("dtype") or self.source.dtype)


@dataclass(frozen=True)
class Call:
    """A call of an operator; `name` is without name space and overload."""

    func: Any
    name: str
    args: Any
    kwargs: dict[str, Any]

    @cached_property
    def on_gpu(self) -> list[Tensor]:
        """The tensors on the device among the arguments."""
        leaves = tree_leaves((self.args, self.kwargs))
        return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.device.type == "cuda"]

    @property
    def copy(self) -> Copy | None:
        """The copy between devices that the call is. A number on the CPU is none: it travels with the launch."""
        non_blocking = bool(self.kwargs.get("non_blocking"))
        if self.name == "copy_":
            target, source, *flags = self.args
            if source.device.type == "cpu" and source.ndim == 0:
                return None
            host = source if target.device.type == "cuda" else target
            return Copy(source, target.device, host, any(flags) or non_blocking)
        if self.name == "_to_copy":
            source, device = self.args[0], torch.device(self.kwargs.get("device") or self.args[0].device)
            return Copy(source, device, source if device.type == "cuda" else None, non_blocking)
        return None

    @property
    def waits(self) -> Iterator[str]:
        """Why the call waits for the device, other than as a copy."""
        if self.name in HOST_WAITS:
            yield self.name
        if self.name in ("index", "index_put", "index_put_", "_unsafe_index"):
            indices = [index for index in self.args[1] if index is not None]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                yield f"{self.name} by a mask"
            if any(index.device.type == "cpu" and index.ndim for index in indices):
                yield f"{self.name} by indices on the CPU"
        if self.name == "repeat_interleave" and self.func._overloadname == "Tensor":
            yield self.name
        if self.name == "segment_reduce" and not self.kwargs.get("unsafe"):
            yield "segment_reduce that checks its lengths"


def _is_composite(func: Any) -> bool:
    """Return whether an operator decomposes into others on CUDA."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CUDA")


def _product(call: Call) -> Product:
    left, right = call.on_gpu[-2:]  # an added tensor comes first
    if left.dtype != right.dtype:
        raise RuntimeError(f"{call.name} of {left.dtype} and {right.dtype}")
    return Product(str(left.dtype).removeprefix("torch."), left.shape[-1], right.shape[-1])


def _caller() -> str:
    """Return where in this project the running operator was called."""
    frames = [frame for frame in traceback.extract_stack() if any(package in frame.filename for package in PACKAGES)]
    shown = [frame for frame in frames if frame.filename != __file__][-3:]
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(shown)) or "autograd"


@contextmanager
def pretended_cuda() -> Iterator[PretendedGPU]:
    """Make torch.cuda behave as if there were an H100; gradients need a `pretending_process`."""
    gpu = PretendedGPU()
    with ExitStack() as stack:
        patches: list[tuple[Any, str, Any]] = [
            *((torch.cuda, name, value) for name, value in _cuda_stubs(gpu).items()),
            (nn.Module, "to", _move_module),
            (torch.compiler, "cudagraph_mark_step_begin", lambda: None),  # imports a compiler
            (_foreach_utils, "_foreach_supported_types", [Tensor, nn.Parameter, FakeTensor]),
        ]
        for patch in patches:
            stack.enter_context(mock.patch.object(*patch))
        only_lifts_cpu = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # makes torch.tensor(…, device="cuda") an ordinary copy
        stack.callback(torch._C._set_only_lift_cpu_tensors, only_lifts_cpu)
        kernels = torch.library.Library("aten", "IMPL")
        stack.callback(kernels._destroy)
        for operator in SINGLE_KERNELS:
            kernels.impl(operator, _compute, "CUDA")
        stack.enter_context(gpu)
        yield gpu


def _compute(*args: object, **kwargs: object) -> None:
    raise NotImplementedError("a pretended GPU computes no numbers")


def _cuda_stubs(gpu: PretendedGPU) -> dict[str, Any]:
    """Return replacements for members of torch.cuda."""

    class Event:
        def __init__(self, enable_timing: bool = False) -> None: ...

        def record(self, stream: object = None) -> None: ...

        def synchronize(self) -> None:
            gpu.wait("event.synchronize")

    return {
        "Event": Event,
        "_lazy_init": lambda: None,
        "current_device": lambda: 0,
        "get_device_capability": lambda *device: (9, 0),
        "get_device_properties": lambda *device: SimpleNamespace(major=9, minor=0),
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "synchronize": lambda *device: gpu.wait("torch.cuda.synchronize"),
    }


def _move_module(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """Replacement for nn.Module.to that creates new parameters, since real ones cannot become fake in place."""
    device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    for owner in module.modules():
        assert not owner._buffers
        for name, tensor in owner._parameters.items():
            there = None if tensor is None else tensor.detach().to(device, dtype)
            if there is not None and (there.device, there.dtype) != (tensor.device, tensor.dtype):
                owner._parameters[name] = nn.Parameter(there, tensor.requires_grad)
    return module
