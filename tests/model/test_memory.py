"""The memory formulas count what autograd really keeps, and behave as memory does."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from neobert import recipe
from neobert.data.batches import PaddingBuckets
from neobert.model import layers as normalization
from neobert.model import size
from neobert.model.attention import GatherIndex, packed_plan
from neobert.model.build import build_masked_language_model
from neobert.model.size import (
    MicroBatchShape,
    logits_bytes,
    saved_bytes,
    training_memory,
)
from neobert.recipe import EngineWord, PretrainingPrecision
from neobert.training.engine import autocast
from tests.support.small_models import small_model
from tests.support.tiny_runs import tiny_model, tiny_recipe

ENGINES: tuple[EngineWord, ...] = ("ddp", "zero1", "zero2")
FORMS = list(itertools.product(("learned", "rotary"), ("gelu", "swiglu"), ("layer_norm", "rms_norm")))
ROWS, CONTEXT, SLOTS = 2, 520, 80  # rows so long that attention on a CPU takes torch's flash kernel in bf16 too
BATCH = MicroBatchShape(ROWS, CONTEXT, ROWS * SLOTS)
SHAPE = {"vocabulary_size": 53, "layers": 3, "width": 48, "heads": 3, "feedforward_width": 96}


def counted_bytes(model: recipe.Model, precision: PretrainingPrecision) -> int:
    """Bytes of the storages that a forward pass saves: without weights, their copies and the masks of attention, which
    the variable-length kernels of CUDA do not have."""
    network = build_masked_language_model(model, CONTEXT, precision).train()
    shapes = {tuple(p.shape) for p in network.parameters()} | {tuple(p.shape[::-1]) for p in network.parameters()}
    width = model.width
    shapes |= {(width, width), (width, 2 * width)}  # the last block's query, key and value
    token_ids = torch.randint(model.vocabulary_size, (ROWS, CONTEXT))
    places = torch.arange(CONTEXT).expand(ROWS, CONTEXT)
    slots = GatherIndex.at(torch.arange(SLOTS).expand(ROWS, SLOTS), CONTEXT)
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        is_mask = tensor.ndim == 4 and tensor.shape[1] == 1 and tensor.shape[-1] == CONTEXT
        if tuple(tensor.shape) not in shapes and not is_mask and tensor.data_ptr() != token_ids.data_ptr():
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        autocast(torch.device("cpu"), precision),
    ):
        network(token_ids, packed_plan(places // 100, places % 100), slots, slots.indices % model.vocabulary_size)
    return sum(storage.nbytes() for storage in storages.values())


def other_kernels_bytes(model: recipe.Model, precision: PretrainingPrecision) -> int:
    """What is known to differ: dropout on a CPU keeps numbers and not bits, and masks are counted apart."""
    element = 4 if precision == "fp32" else 2
    full, slots, width = (model.layers - 1) * ROWS * CONTEXT, ROWS * SLOTS, model.width
    dropout = 2 * (element - 1) * width * (full + slots) if model.dropout else 0
    masks = 4 * CONTEXT * (full + slots) if precision == "fp32" else 0
    return dropout - masks


@pytest.mark.parametrize(("positions", "feedforward", "norm"), FORMS)
@pytest.mark.parametrize("precision", ["bf16", "bf16_residual", "fp32"])
def test_activations_are_what_autograd_saves_within_one_percent(positions, feedforward, norm, precision, monkeypatch):
    dropout = 0.1 if norm == "layer_norm" else 0.0
    monkeypatch.setattr(normalization, "FEW_KERNELS_NUMBERS", 0)  # keeps what the fused kernel of CUDA does
    model = small_model(positions=positions, feedforward=feedforward, norm=norm, dropout=dropout, **SHAPE)
    log_probabilities = logits_bytes(model, BATCH) // 3
    expected = saved_bytes(model, precision, BATCH) + log_probabilities + other_kernels_bytes(model, precision)
    assert counted_bytes(model, precision) == pytest.approx(expected, rel=0.01)


def memory_of(engine: EngineWord = "single", processes: int = 1, rows: int = 4, **model: object) -> size.TrainingMemory:
    pretraining = tiny_recipe(model=tiny_model(**model))
    return training_memory(pretraining, 32, MicroBatchShape.of(rows, 32, 0.2), engine, processes, step_tokens=256)


@given(st.sampled_from(ENGINES), st.integers(1, 64), st.integers(1, 1 << 16))
def test_memory_grows_with_the_micro_batch(engine, processes, rows):
    assert memory_of(engine, processes, rows).total < memory_of(engine, processes, rows + 1).total


@given(st.integers(1, 512), st.sampled_from([16, 64, 256, 1024]), st.integers(1, 24))
def test_what_is_split_is_never_more_than_what_is_whole(processes, width, layers):
    """But for the bucket of ZeRO's exchange; DDP's gradients lie in its buckets."""
    ddp, one, two = (memory_of(engine, processes, width=width, layers=layers) for engine in ENGINES)
    assert two.total <= one.total and one.total - one.buckets <= ddp.total and ddp.buckets == 0
    assert (two.total - two.buckets < ddp.total) == (processes > 1)


def test_a_billion_parameters_take_sixteen_gigabytes_beside_activations():
    """Weights, gradients and Adam's two moments in fp32: sixteen bytes a parameter (Rajbhandari et al. 2020)."""
    held = memory_of(width=2048, layers=24, feedforward_width=8192, vocabulary_size=30_000)
    parameters = held.weights / 4
    assert parameters > 1e9
    assert held.weights + held.gradients + held.optimizer == 16 * parameters


@pytest.mark.parametrize("rate", [0.15, 0.2, 0.4])
@pytest.mark.parametrize("context", [32, 512, 1024, 4096])
def test_a_micro_batch_has_the_slots_that_training_gives_it(context, rate):
    reckoned = MicroBatchShape.of(16, context, rate).slots
    drawn = torch.rand(16, context, generator=torch.Generator().manual_seed(0)) < rate
    given = PaddingBuckets(16, context, rate, document_tokens=math.inf).gathered(int(drawn.sum()), 16)
    assert reckoned <= given <= 1.25 * reckoned + 8 and given >= int(drawn.sum())


def test_heads_of_a_size_that_kernels_dislike_are_counted_padded():
    shape = {"layers": 4, "width": 1008, "positions": "learned"}
    odd, even = (memory_of(heads=heads, **shape).activations for heads in (12, 14))
    assert odd > even
