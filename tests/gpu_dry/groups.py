"""Steps of one rank of a process group that only pretends: its collectives return at once."""

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.nn.parallel import distributed as data_parallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.contenders import masked_documents, neobert_recipe, own_batches, pretraining_engine
from benchmarks.data import web_lengths
from neobert.model.build import build_masked_language_model, initialize
from neobert.training.compiling import TrialStep, compile_model, parts_of
from neobert.training.engine import Engine
from neobert.training.pretraining import summed_loss
from neobert.training.zero import ZERO_ENGINES
from tests.gpu_dry.passes import CONTEXT, Pass, fresh_engine, pretraining_batches
from tests.support.pretended_cuda import GPU, pretended_cuda

RANKS = 8


@contextmanager
def group(ranks: int) -> Iterator[None]:
    """A group of `ranks`, of which this process is the first."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


def send_buckets(engine: Engine[Any], buckets: list[int], note: Callable[[], object] = lambda: None) -> None:
    """Note the gradients that DDP sends, in place of a collective that would look at them."""

    def send(state: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buckets.append(bucket.buffer().numel())
        note()
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    assert isinstance(engine.network, data_parallel.DistributedDataParallel)
    engine.network.register_comm_hook(None, send)


def pretrain_with_ddp(layers: int = 4) -> tuple[Pass, list[int], int]:
    """A step of two micro-batches in DDP; (what was counted, numbers of each bucket that was sent, parameters)."""
    measured, buckets = Pass(), []
    untimed = mock.Mock(spec=["set_runtime_stats_and_log"])  # DDP's own timer belongs to CUDA's library
    with (
        pretended_cuda() as gpu,
        group(RANKS),
        mock.patch.object(data_parallel, "_verify_param_shape_across_processes", lambda *words: None),
        mock.patch.object(data_parallel, "_sync_module_states", lambda **words: None),
        mock.patch.object(dist.Reducer, "_rebuild_buckets", lambda reducer: False),  # by an order read from the device
    ):
        engine = fresh_engine(neobert_recipe("bf16", layers=layers))
        send_buckets(engine, buckets)
        engine.network.logger = untimed
        batches = [batch.to(GPU) for batch in pretraining_batches(8192)[:2]]
        for _ in range(2):
            buckets.clear()
            with gpu.counted() as measured.work:
                engine.step(batches, 1e-4)
        parameters = sum(weight.numel() for weight in engine.model.parameters())
    return measured, buckets, parameters


def pretrain_with_zero(engine_name: str, layers: int = 4) -> tuple[Pass, int, int]:
    """A step of two micro-batches under DeepSpeed; (what was counted, bytes that stay, parameters)."""
    warnings.filterwarnings("ignore", "Accessing the data pointer of FakeTensor", UserWarning)  # to check alignment
    recipe, measured = neobert_recipe("bf16", layers=layers), Pass()
    with (
        pretended_cuda() as gpu,
        group(RANKS),
        mock.patch.dict(os.environ, DS_ACCELERATOR="cuda"),
        # By a number read from the device, all of which are 1 here
        mock.patch("deepspeed.runtime.utils.is_invalid_grad_norm", lambda norm: False),
        mock.patch("deepspeed.runtime.zero.stage_1_and_2.is_invalid_grad_norm", lambda norm: False),
    ):
        with GPU:
            model = build_masked_language_model(recipe.model, CONTEXT, recipe.precision)
        engine = ZERO_ENGINES[engine_name](
            model.train(), summed_loss, lambda batch: batch.predicted_tokens, recipe.optimization, recipe.precision, GPU
        )
        batches = [batch.to(GPU) for batch in pretraining_batches(8192)[:2]]
        engine.step(batches, 1e-4)
        with gpu.counted() as measured.work:
            engine.step(batches, 1e-4)
        batches.clear()
        kept, parameters = gpu.alive_bytes, sum(weight.numel() for weight in model.parameters())
        engine.close()
    return measured, kept, parameters


def backward_and_buckets(by_part: bool, layers: int = 4) -> tuple[int, list[str]]:
    """(graphs of a compiled step of DDP, the order in which backward graphs ran and buckets were sent), on the CPU."""
    order: list[str] = []
    graphs: list[GraphModule] = []

    def forward_compiler(graph: GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    def backward_compiler(graph: GraphModule, inputs: Any) -> Any:
        def run(*values: Any) -> Any:
            order.append("backward")
            return graph.forward(*values)

        return make_boxed_func(run)

    backend = aot_autograd(fw_compiler=forward_compiler, bw_compiler=backward_compiler)
    cpu = torch.device("cpu")
    recipe = neobert_recipe("fp32", layers=layers, width=256, heads=4, feedforward_width=512, vocabulary_size=512)
    documents = masked_documents(web_lengths(40) // 8 + 8, recipe.model.vocabulary_size, 128)
    batch, *_ = own_batches(documents, 2, cpu)
    with group(2):
        model = build_masked_language_model(recipe.model, 128)
        initialize(model, recipe.model.initialization, 0)
        engine = pretraining_engine(model.train(), recipe, cpu)
        buckets: list[int] = []
        send_buckets(engine, buckets, lambda: order.append("send"))
        trial = TrialStep(model, lambda: summed_loss(model, batch), "fp32", cpu)
        compile_model(trial, "on", backend=backend, parts=parts_of(model, GPU) if by_part else None)
        for _ in range(2):  # the first step rebuilds the buckets in the order of the gradients
            order.clear()
            engine.step([batch], 1e-4)
    return len(graphs), order
