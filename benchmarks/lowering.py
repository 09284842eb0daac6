"""Kernels and bytes of a compiled forward and backward pass on a GPU, computed without a GPU.

The parts of the model that training compiles are traced on the CPU and their graphs moved to a fake "cuda". Inductor
then differentiates, lowers and fuses them for an H100 as usual. It stops before it writes Triton code, so neither
Triton nor a GPU is needed.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial, partialmethod
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.pretended_cuda import GPU, H100, PretendedGPU, cuda_stubs, kernels_of_cuda
from neobert.data.batches import Batch
from neobert.model import attention
from neobert.model.build import build_masked_language_model
from neobert.recipe import Pretraining, PretrainingPrecision
from neobert.training.compiling import INDUCTOR_ON_GPU, compile_parts, parts_of
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensorMode


@dataclass(frozen=True)
class Kernels:
    """Numbers of kernels of a forward and backward pass: matrix products, attention, and all others (`streaming`).
    `streamed_bytes` are read and written by the others, counting each tensor once per kernel."""

    products: int
    attention: int
    streaming: int
    streamed_bytes: int

    @property
    def launches(self) -> int:
        return self.products + self.attention + self.streaming


STUBBED = (
    *("current_device", "device_count", "get_device_capability", "get_device_name", "get_device_properties"),
    *("is_available", "is_bf16_supported"),
)
"""Members of torch.cuda that inductor asks about the device."""


@dataclass
class TracedPart:
    """A part of a model that is compiled on its own, as a compiler gets it on "cuda": its graph and the inputs (on the
    CPU) of the first of `calls` calls."""

    graph: fx.GraphModule
    inputs: list[Any]
    calls: int = 0


Finish = Callable[[Any], Any]
"""Takes a graph of inductor, forward or backward, and returns a module with its function `call`."""


def lower(recipe: Pretraining, batch: Batch) -> Kernels:
    """Return the kernels of a model's compiled parts in a forward and backward pass on a batch on the CPU; runs in a
    `benchmarks.pretended_cuda.pretending_process`."""
    total: Counter[str] = Counter()
    for part in trace(recipe, batch):
        nodes: list[tuple[Any, int]] = []
        compile_for_h100(part, recipe.precision, partial(_take_nodes, nodes))
        for name, count in vars(_count(nodes)).items():
            total[name] += part.calls * count
    return Kernels(**total)


def _take_nodes(nodes: list[tuple[Any, int]], lowering: Any) -> SimpleNamespace:
    lowering.init_wrapper_code()
    lowering._update_scheduler()
    nodes.extend((node, node.get_read_write_buffers_sizes()) for node in lowering.scheduler.nodes)
    return SimpleNamespace(call=lambda inputs: None, __file__=__file__, key=__file__)


def trace(recipe: Pretraining, batch: Batch) -> list[TracedPart]:
    """Return the parts of a model that training compiles (`parts_of`), each once."""
    with torch.device("meta"):
        model = build_masked_language_model(recipe.model, batch.token_ids.shape[1], recipe.precision)
    model = model.to_empty(device="cpu").train()  # uninitialised memory
    traced: list[TracedPart] = []

    def take(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., list[Tensor]]:
        part = TracedPart(graph, inputs)
        traced.append(part)
        made = [node.meta["example_value"] for node in tree_leaves(graph.graph.output_node().args)]

        def skip(*inputs: Any) -> list[Tensor]:
            part.calls += 1
            return [torch.empty(out.shape, dtype=out.dtype).requires_grad_(out.requires_grad) for out in made]

        return skip

    compile_parts(parts_of(model, GPU), backend=take)
    with autocast(torch.device("cpu"), recipe.precision), mock.patch.object(attention, "CUDA_KERNELS", ("cpu",)):
        summed_loss(model, batch)
    return traced


def compile_for_h100(part: TracedPart, precision: PretrainingPrecision, finish: Finish) -> Callable[..., Any]:
    """Let inductor differentiate, lower and fuse a part for an H100. `finish` takes the scheduled graphs, in place of
    writing and compiling their code. Returns what inductor makes of the part."""
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.graph import GraphLowering
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    on_gpu = {"cpu": "cuda", torch.device("cpu"): GPU}
    for node in part.graph.graph.nodes:
        node.args, node.kwargs = tree_map(
            lambda value: on_gpu.get(value, value) if isinstance(value, str | torch.device) else value,
            (node.args, node.kwargs),
        )
    part.graph.recompile()
    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    moved = [_moved(tensor, fake) if isinstance(tensor, Tensor) else tensor for tensor in part.inputs]
    with (
        _inductor_for_h100(),
        mock.patch.object(GraphLowering, "compile_to_module", partialmethod(finish)),
        tracing(TracingContext(fake)),
        autocast(GPU, precision),
        fake,
    ):
        compiled: Any = compile_fx(part.graph, moved)
    return compiled


def _moved(tensor: Tensor, fake: "FakeTensorMode") -> Tensor:
    """Return a fake tensor on "cuda" in place of `tensor`."""
    with fake:
        there = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=GPU)
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(there)
    return there.requires_grad_(tensor.requires_grad)


@contextmanager
def _inductor_for_h100() -> Iterator[None]:
    """Make inductor behave as if there were an H100 and Triton, with caches disabled."""
    from torch._dynamo import device_interface
    from torch._functorch import config as differentiation
    from torch._inductor import config as inductor
    from torch._inductor import scheduler
    from torch._inductor.fx_passes import joint_graph

    pretended = cuda_stubs(PretendedGPU(), gpus=1)
    members = {name: pretended[name] for name in STUBBED} | {
        "device": lambda *index: nullcontext(),
        "get_rng_state": lambda *device: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *state: None,
    }
    with ExitStack() as stack:
        stack.enter_context(kernels_of_cuda())
        for name, value in members.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        cuda = device_interface.CudaInterface  # has its own reference to the function
        stack.enter_context(mock.patch.object(cuda, "get_device_properties", lambda *device: H100))
        stack.enter_context(mock.patch.object(scheduler, "has_triton", lambda: True))
        stack.enter_context(mock.patch.object(joint_graph, "lazy_init", lambda *device: None))  # traces on real tensors
        stack.enter_context(
            inductor.patch(
                {
                    "compile_threads": 1,
                    "fx_graph_cache": False,
                    "joint_graph_constant_folding": False,  # computes on real tensors
                    "shape_padding": False,  # runs timings on the device
                    **INDUCTOR_ON_GPU,
                }
            )
        )
        stack.enter_context(differentiation.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False))
        yield


def _count(nodes: list[tuple[Any, int]]) -> Kernels:
    """Count the scheduled nodes that launch a kernel, by kind. Nodes that are outputs of another node move nothing."""
    products = attention = streaming = streamed = 0
    for node, size in nodes:
        name = str(getattr(node.node, "python_kernel_name", None) or "")
        if name.endswith("mm"):
            products += 1
        elif "attn" in name:
            attention += 1
        elif size:
            streaming, streamed = streaming + 1, streamed + size
    return Kernels(products, attention, streaming, streamed)
