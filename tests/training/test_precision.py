"""What `precision` changes: the dtype of the residual stream and of what norms read, and the distance to fp32."""

from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from neobert.data.batches import Batch
from neobert.model.attention import AttentionPlan, GatherIndex
from neobert.model.build import build_masked_language_model, initialize
from neobert.model.heads import MaskedLanguageModel
from neobert.model.layers import NORMS
from neobert.recipe import Model, PretrainingPrecision
from neobert.training.engine import autocast
from neobert.training.pretraining import summed_loss
from tests.support.tiny_runs import tiny_model

CPU = torch.device("cpu")
PRECISIONS: tuple[PretrainingPrecision, ...] = get_args(PretrainingPrecision)
FORMS = [("rotary", "swiglu", "rms_norm"), ("learned", "gelu", "layer_norm")]
ROWS, TOKENS, PREDICTED = 4, 48, 40
STREAM = {"fp32": torch.float32, "bf16": torch.float32, "bf16_residual": torch.bfloat16}


def model_of(layers: int = 12, positions: str = "rotary", feedforward: str = "swiglu", norm: str = "rms_norm") -> Model:
    """Blocks of width 48."""
    parts = {"positions": positions, "feedforward": feedforward, "norm": norm}
    return tiny_model(layers=layers, width=48, heads=4, feedforward_width=96, dropout=0.0, **parts)


def network_of(model: Model, precision: PretrainingPrecision) -> MaskedLanguageModel:
    network = build_masked_language_model(model, TOKENS, precision)
    initialize(network, model.initialization, seed=0)
    return network.train()


def batch_of(model: Model) -> Batch:
    """Rows of two documents each, random tokens."""
    generator = torch.Generator().manual_seed(0)
    token_ids = torch.randint(model.vocabulary_size, (ROWS, TOKENS), generator=generator)
    half = torch.arange(TOKENS) % (TOKENS // 2)
    documents = (torch.arange(TOKENS) >= TOKENS // 2).long()
    columns = torch.randint(TOKENS, (ROWS, PREDICTED // ROWS), generator=generator)
    targets = torch.randint(model.vocabulary_size, (PREDICTED,), generator=generator)
    plan = AttentionPlan(half.expand(ROWS, -1), doc_ids=documents.expand(ROWS, -1))
    return Batch(token_ids, plan, GatherIndex.at(columns, TOKENS), targets, ROWS * TOKENS, PREDICTED)


def loss_and_gradient(precision: PretrainingPrecision, model: Model) -> tuple[float, Tensor]:
    network = network_of(model, precision)
    with autocast(CPU, precision):
        loss = summed_loss(network, batch_of(model))
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    return loss.item(), torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_the_residual_stream_has_the_dtype_that_the_precision_names(
    precision: PretrainingPrecision, form: tuple[str, str, str]
) -> None:
    model = model_of(3, *form)
    network, seen = network_of(model, precision), set()

    def note(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        seen.update([inputs[0].dtype, output.dtype])

    norms = [module for name, module in network.named_modules() if name.endswith("norm")]
    for module in (*network.model.transformer_encoder, *norms):
        module.register_forward_hook(note)
    with autocast(CPU, precision):
        summed_loss(network, batch_of(model))
    assert len(norms) == 2 * model.layers + 1 and seen == {STREAM[precision]}
    assert {weight.dtype for weight in network.parameters()} == {torch.float32}


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms_of_a_stream_in_bf16_are_not_copied_into_fp32(
    norm: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Autocast would: both norms are on CUDA's list of operations in fp32."""
    calls = []

    def note(x: Tensor, *others: object) -> Tensor:
        calls.append((x.dtype, torch.is_autocast_enabled("cpu")))
        return x

    monkeypatch.setattr(functional, norm, note)
    hidden = torch.ones(2, 3, 48, dtype=dtype)
    with autocast(CPU, "bf16_residual"):
        assert NORMS[norm](48, 1e-5)(hidden).dtype == dtype
    assert calls == [(dtype, dtype == torch.float32)]


def test_gradients_stay_near_those_in_fp32() -> None:
    """At twelve blocks: within 2 % for products in bf16, within 4 % for a stream in bf16 too."""
    model = model_of()
    (exact_loss, exact), *others = (loss_and_gradient(precision, model) for precision in PRECISIONS)
    distances = [float((gradient - exact).norm() / exact.norm()) for _, gradient in others]
    losses = [abs(loss / exact_loss - 1) for loss, _ in others]
    assert 0 < distances[0] < 0.02 and distances[0] < distances[1] < 0.04
    assert max(losses) < 0.002
